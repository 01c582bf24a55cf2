//! A pinned buffer read while a copy from it is in flight.
use thalweg::{Device, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let host = up.bind(gpu.pinned_from(&[1u8; 16])?)?;
    let mut image = up.alloc::<u8>(16)?;
    up.copy_to_device(&host, &mut image)?;
    let host = up.record(host)?.synchronize()?; // fix
    assert_eq!(host[0], 1);
    //~^ E0608 `On<Upload, PinnedBuffer<u8>>`
    Ok(())
}
