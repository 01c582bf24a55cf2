//! A gradient read while it is being summed: the stream that sums it has it.
use thalweg::{Device, stream_tags};
use thalweg_collective::{Result, Sum, World};

stream_tags!(Compute, Reduce);

fn main() -> Result<()> {
    let device = Device::cpu()?;
    let (compute, reduce) = (device.stream::<Compute>()?, device.stream::<Reduce>()?);
    let mut comm = World::from_env()?.comm(reduce)?;
    let gradient = compute.alloc_zeroed::<f32>(8)?;
    let mut gradient = compute.hand_off(gradient, &reduce).map_err(thalweg::Error::from)?;
    comm.all_reduce_in_place(Sum, &mut gradient)?;
    let gradient = reduce.hand_off(gradient, &compute).map_err(thalweg::Error::from)?; // fix
    compute.read_blocking(&gradient)?;
    //~^ E0308 `DeviceSlice<Compute,` `On<Reduce, DeviceBuffer<f32>>`
    Ok(())
}
