//! An idle buffer swapped with one that an event guards.
use thalweg::{Device, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let mut idle = gpu.pinned::<u8>(16)?;
    let mut busy = up.record(up.bind(gpu.pinned::<u8>(16)?)?)?;
    let mut busy = busy.synchronize()?; // fix
    std::mem::swap(&mut idle, &mut busy);
    //~^ E0308 `PinnedBuffer<` `Event<PinnedBuffer<`
    Ok(())
}
