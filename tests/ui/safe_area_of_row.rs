//! An area of a buffer with one dimension.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, x: In<f32>[n]) // bug
    //~ E0080 `an area has the last two dimensions of a buffer`
    fn k(t: impl Simt, n: u32, x: In<f32>[1, n]) // fix
    grid(1) block(32)
    {
        let _ = x.area([0, 0], [0, 0]);
    }
}

fn main() {
    let on = thalweg::Device::cpu().unwrap().stream::<Work>().unwrap();
    k(&on, 1, &on.alloc::<f32>(1).unwrap()).unwrap();
}
thalweg::stream_tags!(Work);
