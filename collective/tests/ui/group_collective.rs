//! A collective operation inside a group of the same communicator.
use thalweg::{DeviceSlice, Tag};
use thalweg_collective::{Comm, Result, Sum};

fn sum<S: Tag>(comm: &mut Comm<S>, x: &mut DeviceSlice<S, f32>) -> Result<()> {
    comm.group(|group| {
        comm.all_reduce_in_place(Sum, x)?; // bug
    //~ E0500 `*comm`
    //~ E0501 `*comm`
        group.send(1, x) // fix
        Ok(()) // bug
    })?;
    comm.all_reduce_in_place(Sum, x)
}

fn main() {}
