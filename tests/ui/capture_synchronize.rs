//! The host waiting, inside a capture, for what does not run there.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let (mut graph, image) = work.capture(work.alloc::<u8>(16)?, |s, image| {
        s.fill(image, 1)?;
        s.synchronize()?; // bug
        //~^ E0277 `cannot do this` `Capture<'_>` `a stream under capture takes copies, fills and kernel launches only`
        Ok(())
    })?;
    let image = work.replay(&mut graph, image)?;
    work.synchronize()?;
    drop(image);
    Ok(())
}
