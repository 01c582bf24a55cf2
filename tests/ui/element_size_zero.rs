//! Device memory for elements of size 0, whose number says nothing about its bytes.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    drop(work.alloc::<[u8; 0]>(16)?); // bug
    //~ E0080 `element type must have a size` `[u8; 0]`
    drop(work.alloc::<[u8; 1]>(16)?); // fix
    Ok(())
}
