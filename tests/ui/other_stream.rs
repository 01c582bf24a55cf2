//! What one stream orders, used on another without an event between.
use thalweg::{Device, stream_tags};

stream_tags!(Upload, Compute);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    let mut image = up.alloc::<u8>(16)?;
    up.fill(&mut image, 1)?;
    let image = up.hand_off(image, &compute)?; // fix
    let mut copy = compute.alloc::<u8>(16)?;
    compute.copy(&image, &mut copy)?;
    //~^ E0308 `DeviceSlice<Compute,` `On<Upload, DeviceBuffer<`
    Ok(())
}
