//! An event recorded on a stream that has nothing to do with the resource.
use thalweg::{Device, stream_tags};

stream_tags!(Upload, Compute);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    let mut image = compute.alloc::<u8>(16)?;
    compute.fill(&mut image, 1)?;
    let image = compute.hand_off(image, &up)?; // fix
    up.record(image)?.synchronize()?;
    //~^ E0277 `On<Compute, DeviceBuffer<u8>>` `is not ordered by stream` `Upload`
    Ok(())
}
