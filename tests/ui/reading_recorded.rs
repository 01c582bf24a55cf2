//! A reader that passes what it reads on as its own.
use thalweg::{Device, DeviceBuffer, Event, stream_tags};

stream_tags!(Upload, Compute);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    let shared = up.share(up.alloc::<u8>(16)?)?;
    let image = compute.reading(&shared)?; // bug
    let image = compute.unshare(shared)?; // fix
    let _: Event<DeviceBuffer<u8>> = compute.record(image)?;
    //~^ E0308 `Event<DeviceBuffer<u8>>` `Event<Shared<DeviceBuffer<u8>>>`
    Ok(())
}
