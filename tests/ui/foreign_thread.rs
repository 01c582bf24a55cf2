//! A foreign stream, used on another thread.
use thalweg::{AnyStream, Device, ForeignStream, Result};

fn main() -> Result<()> {
    let gpu = Device::cpu()?;
    let theirs = ForeignStream::legacy(gpu)?; // bug
    let theirs = AnyStream::new(gpu)?; // fix
    std::thread::scope(|threads| {
        threads.spawn(|| theirs.enter(|s| s.synchronize()));
        //~^ E0277 `*const ()` `cannot be shared between threads safely`
    });
    Ok(())
}
