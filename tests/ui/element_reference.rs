//! Elements that point elsewhere.
use thalweg::Device;

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    drop(gpu.pinned::<&'static str>(16)?); // bug
    //~^ E0277 `&'static str` `DeviceCopy`
    drop(gpu.pinned::<[u8; 16]>(16)?); // fix
    Ok(())
}
