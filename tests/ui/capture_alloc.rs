//! Memory allocated inside a capture.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let image = work.alloc::<u8>(16)?;
    let copy = work.alloc::<u8>(16)?; // fix
    work.capture((image,), |s, (image,)| { // bug
    work.capture((image, copy), |s, (image, copy)| { // fix
        let mut copy = s.alloc::<u8>(16)?; // bug
        //~^ E0277 `cannot do this` `Capture<'_>` `a stream under capture takes copies, fills and kernel launches only`
        s.copy(image, &mut copy) // bug
        s.copy(image, copy) // fix
    })?;
    Ok(())
}
