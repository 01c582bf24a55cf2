//! An event given to an operation, which did not wait for it.
use thalweg::{Device, stream_tags};

stream_tags!(Upload, Compute);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    let image = up.alloc_zeroed::<u8>(16)?;
    let image = up.record(image)?;
    let image = compute.wait(image)?; // fix
    let mut copy = compute.alloc::<u8>(16)?;
    compute.copy(&image, &mut copy)?;
    //~^ E0308 `DeviceSlice<Compute,` `Event<DeviceBuffer<u8>>`
    Ok(())
}
