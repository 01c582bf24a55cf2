//! What bodies compute.

use thalweg_simt::kernel;

use super::here::{Here, slice, slice_mut};

kernel! {
    unsafe fn vectors(cx: impl Simt, x: In<f32>, y: Out<f32>)
    require { x.is_aligned(16), y.is_aligned(16), x.len() == y.len(), x.len().is_multiple_of(4) }
    grid(x.len() / 4) block(1)
    {
        let i = 4 * cx.block_idx().x as usize;
        let v = cx.load4(x.as_ptr().add(i));
        cx.store4(y.as_ptr().add(i), v.map(|v| cx.recip_approx(cx.sqrt(cx.exp2_approx(cx.log2_approx(v))))));
    }
}

#[test]
fn vectors_and_functions() {
    #[repr(align(16))]
    struct Aligned([f32; 8]);
    let mut x = Aligned([0.25, 0.5, 1.0, 2.0, 4.0, 9.0, 16.0, 100.0]);
    let mut y = Aligned([0.0; 8]);
    vectors(&Here::default(), slice(&mut x.0), slice_mut(&mut y.0)).unwrap();
    for (y, x) in y.0.iter().zip(x.0) {
        assert!((y * x.sqrt() - 1.0).abs() < 1e-6, "{x}: {y}");
    }
}
