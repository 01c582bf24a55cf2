//! A launch of a generic kernel with types that are none of its instances.
use thalweg::{Device, Error, kernel, ptx, stream_tags};

ptx! {}
stream_tags!(Work);

kernel! {
    unsafe fn double<T, const N: u32>(cx: impl Simt, n: u32, x: InOut<T>)
    instances { double_f32 = <f32, 1>, double_u32 = <u32, 4> }
    require { x.len() == n }
    grid(n.div_ceil(256 * N)) block(256)
    {
        let mut i = cx.global_x();
        while i < n {
            x.set(cx, i, x.get(cx, i) + x.get(cx, i));
            i += cx.grid_dim().x * 256;
        }
    }
}

fn main() -> Result<(), Error> {
    let work = Device::cpu()?.stream::<Work>()?;
    let mut x = work.alloc_zeroed::<u32>(16)?;
    double::<f32, 1, _, _>(&work, 16, &mut x)?; // bug
    //~^ E0308 `DeviceSlice<Work, f32>` `On<Work, DeviceBuffer<u32>>`
    double::<u32, 1, _, _>(&work, 16, &mut x)?; // bug
    //~^ E0277 `has no instance for these types and constants` `double_f32 = <f32, 1>, double_u32 = <u32, 4>`
    double::<u32, 4, _, _>(&work, 16, &mut x)?; // fix
    double_u32(&work, 16, &mut x)?; // fix
    Ok(())
}
