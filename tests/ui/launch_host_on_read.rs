//! Page-locked memory read while a host function of the stream may be writing it.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let work = gpu.stream::<Work>()?;
    let mut host = work.bind(gpu.pinned::<u8>(16)?)?;
    work.launch_host_on(&mut host, |x| x.fill(1))?;
    let host = work.record(host)?.synchronize()?; // fix
    assert_eq!(*host, [1; 16]);
    //~^ E0369 `HostSlice<Work, u8>`
    Ok(())
}
