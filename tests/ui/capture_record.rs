//! An event recorded inside a capture.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let bundle = (work.alloc::<u8>(16)?, Some(work.alloc::<u8>(16)?));
    let (mut graph, bundle) = work.capture(bundle, |s, (image, extra)| {
        s.fill(image, 1)?;
        let extra = extra.take().expect("it is there"); // bug
        drop(s.record(extra)?); // bug
        //~^ E0277 `cannot do this` `Capture<'_>` `a stream under capture takes copies, fills and kernel launches only`
        drop(extra.take()); // fix
        Ok(())
    })?;
    let bundle = work.replay(&mut graph, bundle)?;
    drop(work.record(bundle)?);
    Ok(())
}
