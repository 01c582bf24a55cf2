//! Two buffers on a stream swapped through what they dereference to.
use thalweg::{Device, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let mut a = up.bind(gpu.pinned::<u8>(16)?)?;
    let mut b = up.bind(gpu.pinned::<u8>(16)?)?;
    std::mem::swap(&mut *a, &mut *b); // bug
    //~^ E0277 `HostSlice<Upload, u8>` `Sized`
    std::mem::swap(&mut a, &mut b); // fix
    Ok(())
}
