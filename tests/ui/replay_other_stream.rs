//! A graph replayed on a stream that does not order its bundle.
use thalweg::{Device, stream_tags};

stream_tags!(Work, Other);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let (work, other) = (gpu.stream::<Work>()?, gpu.stream::<Other>()?);
    let (mut graph, image) = work.capture(work.alloc::<u8>(16)?, |s, image| s.fill(image, 1))?;
    let image = work.hand_off(image, &other)?; // fix
    let image = other.replay(&mut graph, image)?;
    //~^ E0308 `On<Other, DeviceBuffer<u8>>` `On<Work, DeviceBuffer<u8>>`
    drop(image);
    Ok(())
}
