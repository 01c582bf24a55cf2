//! A launcher takes the numbers of a buffer of arrays, not the arrays.
use thalweg::{kernel, ptx};

ptx! {}

thalweg::stream_tags!(Work);

kernel! {
    fn k(t: impl Simt, n: u32, x: In<[f32; 4]>[n])
    grid(1) block(32)
    {
        let _ = x.extent(0);
    }
}

fn main() {
    let on = thalweg::Device::cpu().unwrap().stream::<Work>().unwrap();
    let x = on.alloc::<u32>(4).unwrap(); // bug
    let x = on.alloc::<f32>(4).unwrap(); // fix
    k(&on, 1, &x).unwrap();
    //~^ E0308 `DeviceSlice<Work, f32>`
}
