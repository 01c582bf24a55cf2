//! A pinned buffer handed to a stream while the host still has its slice.
use thalweg::{Device, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let mut host = gpu.pinned::<u8>(16)?;
    let pixels = &mut host[..8];
    pixels.fill(1); // fix
    let host = up.bind(host)?;
    //~^ E0505 `host`
    pixels.fill(1); // bug
    drop(host);
    Ok(())
}
