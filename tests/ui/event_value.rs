//! The resource behind an event.
use thalweg::{Device, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let event = up.record(up.bind(gpu.pinned::<u8>(16)?)?)?;
    let host = event.value(); // bug
    //~^ E0624 `value`
    let host = event.synchronize()?; // fix
    println!("{}", host[0]);
    Ok(())
}
