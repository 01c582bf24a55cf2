//! A buffer of another stream in a collective operation.
use thalweg::{Device, stream_tags};
use thalweg_collective::{Mean, Result, World};

stream_tags!(Compute, Reduce);

fn main() -> Result<()> {
    let device = Device::cpu()?;
    let (compute, reduce) = (device.stream::<Compute>()?, device.stream::<Reduce>()?);
    let mut comm = World::single().comm(reduce)?;
    let mut x = compute.alloc_zeroed::<f32>(8)?;
    let mut x = compute.hand_off(x, &reduce).map_err(thalweg::Error::from)?; // fix
    comm.all_reduce_in_place(Mean, &mut x)
    //~^ E0308 `DeviceSlice<Reduce,` `On<Compute, DeviceBuffer<f32>>`
}
