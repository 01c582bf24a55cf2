//! The program that README.md shows, and the error that it promises. `.ci/pages.py` compares both.
use thalweg::{Device, stream_tags};
use thalweg_vision::{PLANES, kernels::textures};

stream_tags!(Upload, Compute);

fn main() -> thalweg::Result<()> {
    let (h, w, pixels) = (48, 64, vec![128; 3 * 48 * 64]);
    let gpu = Device::best()?;                              // the first GPU, or the CPU device
    let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);

    let host = up.bind(gpu.pinned_from(&pixels)?)?;         // page-locked memory, ordered by `Upload` now
    let mut image = up.alloc::<u8>(pixels.len())?;
    up.copy_to_device(&host, &mut image)?;                  // returns at once
    let image = up.hand_off(image, &compute)?;              // `Compute` waits for the copy, the host does not // fix
    let mut planes = compute.alloc::<f32>(PLANES * 48 * 64)?;
    textures(&compute, h, w, 0.5, 0.5, &image, &mut planes)?;
    //~^ E0308 `&DeviceSlice<Compute, u8>` `&On<Upload, DeviceBuffer<u8>>`
    let host = up.record(host)?.synchronize()?;             // only now `host` is a slice again
    assert_eq!(host[..], pixels);
    Ok(())
}
