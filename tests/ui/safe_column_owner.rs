//! Another element along a dimension that does not belong to `all`: another thread owns it.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, y: Out<f32>[3, n] by [all, x])
    grid(1) block(32)
    {
        if let Some(column) = y.column(t) {
            column.cell::<1>(0).set(0.0); // bug
            //~ E0080 `does not belong to`
            column.cell::<0>(0).set(0.0); // fix
        }
    }
}

fn main() {
    let on = thalweg::Device::cpu().unwrap().stream::<Work>().unwrap();
    k(&on, 1, &mut on.alloc::<f32>(3).unwrap()).unwrap();
}
thalweg::stream_tags!(Work);
