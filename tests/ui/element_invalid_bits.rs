//! Elements that not every bit pattern is a value of.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    drop(work.alloc::<bool>(16)?); // bug
    //~^ E0277 `bool` `DeviceCopy`
    drop(work.alloc::<u8>(16)?); // fix
    Ok(())
}
