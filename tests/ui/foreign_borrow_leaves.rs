//! Memory that a foreign stream borrowed, used after the closure.
#![allow(unsafe_code)] // what `borrow` asks for is kept
use thalweg::{Device, ForeignStream, Result};

fn main() -> Result<()> {
    let mut theirs = vec![0u32; 16];
    let addr = theirs.as_mut_ptr().expose_provenance() as u64;
    let stream = ForeignStream::stand_in(Device::cpu()?, 0)?;
    stream.enter(|s| {
        // SAFETY: Nobody else uses the vector until `synchronize` returns.
        let x = unsafe { s.borrow::<u32>(addr, 16) }?;
        s.fill(x, 1)?;
        s.synchronize()?;
        Ok::<_, thalweg::Error>(x) // bug
        //~^ error `Foreign<`
        Ok::<_, thalweg::Error>(()) // fix
    })?;
    Ok(())
}
