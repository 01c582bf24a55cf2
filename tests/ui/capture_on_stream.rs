//! A buffer under capture in an operation of an ordinary stream, which would run at once.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    work.capture(work.alloc::<u8>(16)?, |s, image| {
        work.fill(image, 1)?; // bug
        //~^ E0308 `DeviceSlice<Work` `On<Capture<'_>, DeviceBuffer<u8>>`
        s.fill(image, 1)?; // fix
        Ok(())
    })?;
    Ok(())
}
