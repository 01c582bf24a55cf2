//! A pinned buffer read while a copy to it is in flight.
use thalweg::{Device, stream_tags};

stream_tags!(Download);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let down = gpu.stream::<Download>()?;
    let image = down.alloc_zeroed::<u8>(16)?;
    let mut host = down.bind(gpu.pinned::<u8>(16)?)?;
    down.copy_to_host(&image, &mut host)?;
    let host = down.record(host)?.synchronize()?; // fix
    assert_eq!(*host, [0; 16]);
    //~^ E0369 `HostSlice<Download, u8>`
    Ok(())
}
