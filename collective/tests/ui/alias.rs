//! An operation that reads and writes one buffer through two arguments.
use thalweg::{DeviceSlice, Tag};
use thalweg_collective::{Comm, Result, Sum};

fn sum<S: Tag>(comm: &mut Comm<S>, x: &mut DeviceSlice<S, f32>) -> Result<()> {
    comm.all_reduce(Sum, x, x) // bug
    //~^ E0502 `*x`
    comm.all_reduce_in_place(Sum, x) // fix
}

fn main() {}
