//! A part of a buffer used after the buffer has gone to another stream.
use thalweg::{Device, stream_tags};

stream_tags!(Upload, Compute);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    let mut image = up.alloc::<u8>(16)?;
    let half = image.slice_mut(..8)?;
    up.zero(half)?; // fix
    up.hand_off(image, &compute)?;
    //~^ E0505 `image`
    up.zero(half)?; // bug
    Ok(())
}
