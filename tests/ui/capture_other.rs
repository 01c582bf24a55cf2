//! A buffer of one capture on the stream of another.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let (outer, inner) = (work.alloc::<u8>(16)?, work.alloc::<u8>(16)?);
    work.capture(outer, |outer, image| {
        work.capture(inner, |s, _| {
            s.fill(image, 1)?; // bug
            //~^ E0521 `Capture<'` `escapes outside of closure`
            outer.fill(image, 1)?; // fix
            Ok(())
        })?;
        Ok(())
    })?;
    Ok(())
}
