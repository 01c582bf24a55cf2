//! A source and a destination of different elements.
use thalweg::{DeviceSlice, Tag};
use thalweg_collective::{Comm, Result, Sum};

fn sum<S: Tag>(
    comm: &mut Comm<S>,
    x: &DeviceSlice<S, f32>,
    y: &mut DeviceSlice<S, f64>, // bug
    y: &mut DeviceSlice<S, f32>, // fix
) -> Result<()> {
    comm.all_reduce(Sum, x, y)
    //~^ E0308 `DeviceSlice<S, f32>` `DeviceSlice<S, f64>`
}

fn main() {}
