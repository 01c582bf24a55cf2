//! A graph replayed over a buffer that is idle.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let (mut graph, image) = work.capture(work.alloc::<u8>(16)?, |s, image| s.fill(image, 1))?;
    let image = work.record(image)?.synchronize()?;
    let image = work.bind(image)?; // fix
    let image = work.replay(&mut graph, image)?;
    //~^ E0308 `On<Work, DeviceBuffer<u8>>` `DeviceBuffer<u8>`
    drop(image);
    Ok(())
}
