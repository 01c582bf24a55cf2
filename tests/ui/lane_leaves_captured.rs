//! A buffer that leaves its lane through a variable outside.
use thalweg::{Device, StreamPool};

fn main() -> thalweg::Result<()> {
    let pool = StreamPool::new(Device::cpu()?, 2)?;
    let mut kept = None;
    pool.with_stream(|s| {
        kept = s.alloc::<u8>(16).ok(); // bug
        //~^ E0521 `Scoped<` `DeviceBuffer<u8>`
        kept = s.alloc::<u8>(16).ok().and_then(|x| s.record(x).ok()); // fix
    });
    drop(kept);
    Ok(())
}
