//! A copy between devices inside a capture, which CUDA cannot capture.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let there = work.wait(work.record(work.alloc_zeroed::<u8>(16)?)?.map_peer())?;
    let mut here = work.alloc::<u8>(16)?;
    work.copy_from_peer(&there, &mut here)?; // fix
    work.capture((there, here), |s, (there, here)| { // bug
    work.capture((there, here), |s, (_, here)| { // fix
        s.copy_from_peer(there, here) // bug
        //~^ E0277 `cannot do this` `Capture<'_>` `a stream under capture takes copies, fills and kernel launches only`
        s.zero(here) // fix
    })?;
    Ok(())
}
