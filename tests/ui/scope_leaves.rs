//! A buffer that leaves its scope without an event.
use thalweg::{Device, Result, stream_tags};

stream_tags!(Compute);

fn main() -> Result<()> {
    let filled = Device::cpu()?.scope(|rank| -> Result<_> {
        let s = rank.stream::<Compute>()?;
        let x = s.alloc::<u8>(16)?;
        Ok(x) // bug
        //~^ error `DeviceBuffer<u8>`
        Ok(s.record(x)?) // fix
    })?;
    drop(filled);
    Ok(())
}
