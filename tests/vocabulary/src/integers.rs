//! Operations on integers.

use thalweg_simt::kernel;

kernel! {
    /// Computes `c` plus the dot product of the bytes of `a` and `b`, element by element.
    pub unsafe fn dots(cx: impl Simt, n: u32, a: In<u32>, b: In<u32>, c: In<u32>, sums: Out<u32>)
    require { a.len() == n, b.len() == n, c.len() == n, sums.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            sums.set(cx, i, cx.dot4(a.get(cx, i), b.get(cx, i), c.get(cx, i)));
        }
    }
}
