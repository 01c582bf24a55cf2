//! Memory that one foreign stream borrowed, written by another stream.
#![allow(unsafe_code)] // what `borrow` asks for is kept
use thalweg::{Device, ForeignStream, Result, stream_tags};

stream_tags!(Ours);

fn main() -> Result<()> {
    let mut theirs = vec![0u32; 16];
    let addr = theirs.as_mut_ptr().expose_provenance() as u64;
    let ours = Device::cpu()?.stream::<Ours>()?;
    ForeignStream::stand_in(ours.device(), 0)?.enter(|s| {
        // SAFETY: Nobody else uses the vector until `synchronize` returns.
        let x = unsafe { s.borrow::<u32>(addr, 16) }?;
        ours.fill(x, 1)?; // bug
        //~^ E0308 `Ours` `Foreign<`
        s.fill(x, 1)?; // fix
        s.synchronize()?;
        ours.synchronize()
    })
}
