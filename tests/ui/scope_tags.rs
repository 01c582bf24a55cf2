//! What one tag of a scope orders, used on the stream of another tag of the scope.
use thalweg::{Device, Result, stream_tags};

stream_tags!(Upload, Compute);

fn main() -> Result<()> {
    Device::cpu()?.scope(|rank| {
        let (up, compute) = (rank.stream::<Upload>()?, rank.stream::<Compute>()?);
        let mut x = up.alloc::<u8>(16)?;
        let mut x = up.hand_off(x, &compute)?; // fix
        compute.zero(&mut x)
        //~^ E0308 `Upload` `Compute`
    })
}
