//! A buffer that leaves its capture.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let mut kept = None;
    work.capture(Some(work.alloc::<u8>(16)?), |s, image| {
        if let Some(image) = image {
            s.fill(image, 1)?;
        }
        kept = image.take(); // bug
        //~^ E0521 `kept` `escapes outside of closure` `On<Capture<'_>, DeviceBuffer<u8>>`
        kept = Some(image.is_some()); // fix
        Ok(())
    })?;
    drop(kept);
    Ok(())
}
