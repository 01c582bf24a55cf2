//! A reader that passes what it reads on as its own.
use thalweg::{Device, stream_tags};

stream_tags!(Upload, Compute);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    let shared = up.share(up.alloc::<u8>(16)?)?;
    let image = compute.reading(&shared)?; // bug
    let image = compute.unshare(shared)?; // fix
    compute.record(image)?.synchronize()?;
    //~^ E0277 `Reading<Compute, DeviceBuffer<u8>>` `is not ordered by stream` `Compute`
    Ok(())
}
