//! Page-locked memory for elements of size 0.
use thalweg::Device;

fn main() -> thalweg::Result<()> {
    drop(Device::cpu()?.pinned::<()>(16)?); // bug
    //~ E0080 `element type must have a size` `()`
    drop(Device::cpu()?.pinned::<u8>(16)?); // fix
    Ok(())
}
