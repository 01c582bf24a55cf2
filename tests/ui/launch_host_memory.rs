//! Page-locked memory given to a kernel.
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
    let gpu = Device::cpu()?;
    let compute = gpu.stream::<Compute>()?;
    let x = compute.bind(gpu.pinned::<f32>(16)?)?; // bug
    let x = compute.alloc_zeroed::<f32>(16)?; // fix
    let mut y = compute.alloc::<f32>(16)?;
    double(&compute, 16, &x, &mut y)
    //~^ E0308 `DeviceSlice<Compute,` `On<Compute, PinnedBuffer<`
}
