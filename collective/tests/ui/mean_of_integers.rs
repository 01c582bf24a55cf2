//! A mean of integers.
use thalweg::{DeviceSlice, Tag};
use thalweg_collective::{Comm, Mean, Result, Sum};

fn mean<S: Tag>(comm: &mut Comm<S>, x: &mut DeviceSlice<S, i32>) -> Result<()> {
    comm.all_reduce_in_place(Mean, x) // bug
    //~^ E0277 `a reduction by` `is not defined for elements of`
    comm.all_reduce_in_place(Sum, x) // fix
}

fn main() {}
