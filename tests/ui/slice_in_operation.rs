//! Ordinary memory given to an operation that goes on after the call.
use thalweg::{Device, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let host = [1u8; 16];
    let mut image = up.alloc::<u8>(16)?;
    up.copy_to_device(&host, &mut image)?; // bug
    //~^ E0308 `HostSlice<Upload,` `[u8; 16]`
    up.write_blocking(&host, &mut image)?; // fix
    Ok(())
}
