//! A type that nobody declared to name a stream.
use thalweg::{Device, stream_tags};

enum Upload {} // bug
stream_tags!(Upload); // fix

fn main() -> thalweg::Result<()> {
    Device::cpu()?.stream::<Upload>()?;
    //~^ E0277 `Upload` `is not a stream tag`
    Ok(())
}
