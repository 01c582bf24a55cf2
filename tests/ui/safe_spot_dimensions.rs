//! A place of an area whose first coordinates are not all given.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, x: In<f32>[4, n, n])
    grid(1) block(32)
    {
        for spot in x.area([0, 0], [n, n]).every(t, 0, 1) {
            let _ = spot.get([]); // bug
            //~ E0080 `all coordinates but the last two`
            let _ = spot.get([3]); // fix
        }
    }
}

fn main() {
    let on = thalweg::Device::cpu().unwrap().stream::<Work>().unwrap();
    k(&on, 1, &on.alloc::<f32>(4).unwrap()).unwrap();
}
thalweg::stream_tags!(Work);
