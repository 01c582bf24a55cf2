//! A buffer of a foreign stream that leaves the closure without an event.
use thalweg::{Device, ForeignStream, Result};

fn main() -> Result<()> {
    let theirs = ForeignStream::legacy(Device::cpu()?)?;
    let filled = theirs.enter(|s| -> Result<_> {
        let mut x = s.alloc::<u8>(16)?;
        s.fill(&mut x, 1)?;
        Ok(x) // bug
        //~^ error `Foreign<` `DeviceBuffer<u8>`
        Ok(s.record(x)?) // fix
    })?;
    drop(filled);
    Ok(())
}
