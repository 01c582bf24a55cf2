//! A launch on what another stream orders.
use thalweg::{Device, kernel, ptx, stream_tags};

ptx! {}

kernel! {
    unsafe fn double(cx: impl Simt, n: u32, x: In<f32>, y: Out<f32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x() as usize;
        if i < n as usize {
            y.set(cx, i, 2.0 * x.get(cx, i));
        }
    }
}

stream_tags!(Upload, Compute);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    let x = up.alloc_zeroed::<f32>(16)?;
    let x = up.hand_off(x, &compute)?; // fix
    let mut y = compute.alloc::<f32>(16)?;
    double(&compute, 16, &x, &mut y)?;
    //~^ E0308 `DeviceSlice<Compute,` `On<Upload, DeviceBuffer<`
    Ok(())
}
