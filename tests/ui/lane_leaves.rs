//! A buffer that leaves its lane without an event.
use thalweg::{AnyStream, Device, Result};

fn main() -> Result<()> {
    let stream = AnyStream::new(Device::cpu()?)?;
    let filled = stream.enter(|s| -> Result<_> {
        let mut x = s.alloc::<u8>(16)?;
        s.fill(&mut x, 1)?;
        Ok(x) // bug
        //~^ error `Scoped<` `DeviceBuffer<u8>`
        Ok(s.record(x)?) // fix
    })?;
    drop(filled);
    Ok(())
}
