//! A shared buffer as an output.
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

stream_tags!(Compute);

fn main() -> thalweg::Result<()> {
    let compute = Device::cpu()?.stream::<Compute>()?;
    let x = compute.alloc_zeroed::<f32>(16)?;
    let y = compute.share(compute.alloc::<f32>(16)?)?;
    let mut y = compute.reading(&y)?; // bug
    let mut y = compute.unshare(y)?; // fix
    double(&compute, 16, &x, &mut y)
    //~^ E0596 `SharedRead<Compute, DeviceBuffer<f32>>`
}
