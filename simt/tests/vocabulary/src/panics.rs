//! Kernels that panic.

use thalweg_simt::kernel;

kernel! {
    /// Copies numbers, and panics at a 7.
    pub unsafe fn refuses_seven(cx: impl Simt, n: u32, x: In<u32>, y: Out<u32>)
    require { x.len() == n, y.len() == n }
    grid(2, n.div_ceil(64)) block(16, 2)
    {
        let i = (cx.block_idx().y * 2 + cx.block_idx().x) * 32 + cx.thread_idx().y * 16 + cx.thread_idx().x;
        if i < n {
            let v = x.get(cx, i);
            assert!(v != 7, "seven is refused");
            y.set(cx, i, v);
        }
    }
}
