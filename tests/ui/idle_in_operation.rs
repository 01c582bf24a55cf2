//! An idle buffer, which the host may touch, given to an operation.
use thalweg::{Device, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let host = gpu.pinned_from(&[1u8; 16])?;
    let host = up.bind(host)?; // fix
    let mut image = up.alloc::<u8>(16)?;
    up.copy_to_device(&host, &mut image)?;
    //~^ E0308 `HostSlice<Upload,` `PinnedBuffer<u8>`
    Ok(())
}
