//! Reading, inside a capture, what is not there yet.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let (mut graph, image) = work.capture(work.alloc::<u8>(16)?, |s, image| {
        s.fill(image, 1)?;
        println!("{:?}", s.read_blocking(image)?); // bug
        //~^ E0277 `cannot do this` `Capture<'_>` `a stream under capture takes copies, fills and kernel launches only`
        Ok(())
    })?;
    let image = work.replay(&mut graph, image)?;
    println!("{:?}", work.read_blocking(&image)?);
    Ok(())
}
