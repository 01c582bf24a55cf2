//! A buffer that no stream orders in a collective operation.
use thalweg::{DeviceBuffer, Tag};
use thalweg_collective::{Comm, Result, Sum};

fn sum<S: Tag>(comm: &mut Comm<S>, mut x: DeviceBuffer<f32>) -> Result<()> {
    let mut x = comm.stream().bind(x).map_err(thalweg::Error::from)?; // fix
    comm.all_reduce_in_place(Sum, &mut x)
    //~^ E0308 `DeviceSlice<S,` `DeviceBuffer<f32>`
}

fn main() {}
