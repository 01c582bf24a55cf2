//! Columns of an output without a dimension that belongs to `all`.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, y: Out<f32>[n] by [x])
    grid(1) block(32)
    {
        let _ = y.column(t).is_some(); // bug
        //~ E0080 `has no columns`
        let _ = y.cell(t).is_some(); // fix
    }
}

fn main() {
    let on = thalweg::Device::cpu().unwrap().stream::<Work>().unwrap();
    k(&on, 1, &mut on.alloc::<f32>(1).unwrap()).unwrap();
}
thalweg::stream_tags!(Work);
