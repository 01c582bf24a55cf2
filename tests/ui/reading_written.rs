//! A shared buffer written by a reader.
use thalweg::{Device, stream_tags};

stream_tags!(Upload, Compute);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    let shared = up.share(up.alloc::<u8>(16)?)?;
    let mut image = compute.reading(&shared)?; // bug
    let mut image = compute.unshare(shared)?; // fix
    compute.zero(&mut image)
    //~^ E0596 `SharedRead<Compute, DeviceBuffer<u8>>`
}
