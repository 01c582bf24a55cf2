//! A pinned buffer overwritten while a copy from it is in flight.
use thalweg::{Device, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let mut host = up.bind(gpu.pinned_from(&[1u8; 16])?)?;
    let mut image = up.alloc::<u8>(16)?;
    up.copy_to_device(&host, &mut image)?;
    let mut host = up.record(host)?.synchronize()?; // fix
    host[0] = 2;
    //~^ E0608 `On<Upload, PinnedBuffer<u8>>`
    Ok(())
}
