//! A pinned buffer overwritten while a copy to it is in flight.
use thalweg::{Device, stream_tags};

stream_tags!(Download);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let down = gpu.stream::<Download>()?;
    let image = down.alloc_zeroed::<u8>(16)?;
    let mut host = down.bind(gpu.pinned::<u8>(16)?)?;
    down.copy_to_host(&image, &mut host)?;
    let mut host = down.record(host)?.synchronize()?; // fix
    host.fill(1);
    //~^ E0599 `fill` `On<Download, PinnedBuffer<u8>>`
    Ok(())
}
