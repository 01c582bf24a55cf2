//! The stream of a capture, used after it.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let mut kept = None;
    work.capture((), |s, ()| {
        kept = Some(*s); // bug
        //~^ E0521 `kept` `escapes outside of closure` `Stream<Capture<'_>>`
        kept = Some(s.unique_id()); // fix
        Ok(())
    })?;
    drop(kept);
    Ok(())
}
