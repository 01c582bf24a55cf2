//! A fill with elements of 8 bytes, which the driver cannot do.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let mut x = work.alloc::<u64>(16)?; // bug
    //~ E0080 `fill takes elements of 1, 2 or 4 bytes` `fill::<u64>`
    let mut x = work.alloc::<u32>(16)?; // fix
    work.fill(&mut x, 7)
}
