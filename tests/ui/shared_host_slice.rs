//! A shared buffer taken back for writing while the host reads it.
use thalweg::{Device, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let shared = up.share(up.bind(gpu.pinned::<u8>(16)?)?)?;
    up.synchronize()?;
    let pixels = shared.host()?;
    println!("{pixels:?}"); // fix
    let host = up.unshare(shared)?;
    //~^ E0505 `shared`
    println!("{pixels:?}"); // bug
    drop(host);
    Ok(())
}
