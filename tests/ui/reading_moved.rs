//! A reader that takes what it reads.
use thalweg::{Device, stream_tags};

stream_tags!(Upload, Compute);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    let shared = up.share(up.alloc::<u8>(16)?)?;
    let reading = compute.reading(&shared)?;
    let image = *reading; // bug
    //~^ E0507 `SharedRead<Compute, DeviceBuffer<u8>>` `On<Compute, DeviceBuffer<u8>>`
    let image = &*reading; // fix
    compute.read_blocking(&image)?;
    Ok(())
}
