//! A device buffer used after it moved into an event.
use thalweg::{Device, stream_tags};

stream_tags!(Compute);

fn main() -> thalweg::Result<()> {
    let compute = Device::cpu()?.stream::<Compute>()?;
    let mut image = compute.alloc::<u8>(16)?;
    let ready = compute.record(image)?;
    image = compute.wait(ready)?; // fix
    compute.zero(&mut image)?;
    //~^ E0382 `image` `On<Compute, DeviceBuffer<u8>>`
    Ok(())
}
