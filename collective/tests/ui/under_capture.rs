//! A collective operation on a buffer of a capture.
use thalweg::{Capture, DeviceSlice, Tag};
use thalweg_collective::{Comm, Result, Sum};

fn sum<S: Tag>(
    comm: &mut Comm<S>,
    x: &mut DeviceSlice<Capture<'_>, f32>, // bug
    x: &mut DeviceSlice<S, f32>, // fix
) -> Result<()> {
    comm.all_reduce_in_place(Sum, x)
    //~^ E0308 `DeviceSlice<S,` `DeviceSlice<Capture<'_>, f32>`
}

fn main() {}
