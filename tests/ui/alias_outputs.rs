//! Parts that overlap, both to be written.
use thalweg::{Device, stream_tags};

stream_tags!(Compute);

fn main() -> thalweg::Result<()> {
    let compute = Device::cpu()?.stream::<Compute>()?;
    let mut image = compute.alloc_zeroed::<u8>(16)?;
    let (left, right) = (image.slice_mut(..9)?, image.slice_mut(7..)?); // bug
    //~^ E0499 `image`
    let (left, right) = image.split_at_mut(8)?; // fix
    compute.copy(left, right)
}
