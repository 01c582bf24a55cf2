//! A buffer used after it was handed to the stream that reduces it.
use thalweg::{Device, stream_tags};
use thalweg_collective::{Result, Sum, World};

stream_tags!(Compute, Reduce);

fn main() -> Result<()> {
    let device = Device::cpu()?;
    let (compute, reduce) = (device.stream::<Compute>()?, device.stream::<Reduce>()?);
    let mut comm = World::single().comm(reduce)?;
    let mut x = compute.alloc_zeroed::<f32>(8)?;
    compute.fill(&mut x, 1.0)?; // fix
    let mut y = compute.hand_off(x, &reduce).map_err(thalweg::Error::from)?;
    comm.all_reduce_in_place(Sum, &mut y)?;
    compute.fill(&mut x, 1.0)?; // bug
    //~^ E0382 `x`
    Ok(())
}
