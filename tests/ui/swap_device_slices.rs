//! Two device buffers swapped through what they dereference to.
use thalweg::{Device, stream_tags};

stream_tags!(Compute);

fn main() -> thalweg::Result<()> {
    let compute = Device::cpu()?.stream::<Compute>()?;
    let (mut a, mut b) = (compute.alloc::<u8>(16)?, compute.alloc::<u8>(16)?);
    std::mem::swap(&mut *a, &mut *b); // bug
    //~^ E0277 `DeviceSlice<Compute, u8>` `Sized`
    std::mem::swap(&mut a, &mut b); // fix
    Ok(())
}
