//! Asynchronous copies, loads of matrices and products of small matrices.

use thalweg_simt::kernel;

/// The number of words that [`copies`] copies.
pub const COPIED: u32 = 32 * 7;
/// The number of words that [`matrices`] stores for each lane.
pub const LOADED: u32 = 14;

kernel! {
    /// Copies words through shared memory, in pieces of 4 bytes, of 8 and of 16. Where the bit of
    /// the lane in `keep` is 0, the pieces of the lane become 0.
    pub unsafe fn copies(cx: impl Cooperative, keep: u32, from: In<u32>, to: Out<u32>)
    require { from.len() == COPIED, to.len() == COPIED, from.is_aligned(16) }
    grid(1) block(32) shared(4 * COPIED)
    {
        let (lane, s) = (cx.lane(), cx.shared::<u32>(0));
        let (fours, eights, sixteens) = (lane, 32 + 2 * lane, 96 + 4 * lane);
        let address = |i: u32| from.as_ptr().add(i as usize);
        if keep == u32::MAX {
            cx.copy_async::<_, 4>(s, fours, address(fours));
            cx.copy_async::<_, 8>(s, eights, address(eights));
            cx.copy_async_commit();
            cx.copy_async::<_, 16>(s, sixteens, address(sixteens));
        } else {
            let copy = keep >> lane & 1 == 1;
            cx.copy_async_or_zero::<_, 4>(s, fours, address(fours), copy);
            cx.copy_async_or_zero::<_, 8>(s, eights, address(eights), copy);
            cx.copy_async_commit();
            cx.copy_async_or_zero::<_, 16>(s, sixteens, address(sixteens), copy);
        }
        cx.copy_async_commit();
        cx.copy_async_wait::<1>();
        cx.barrier();
        // The other end of the block made these copies.
        let other = 31 - cx.lane();
        to.set(cx, other, cx.shared_get(s, other));
        to.set(cx, 32 + 2 * other, cx.shared_get(s, 32 + 2 * other));
        to.set(cx, 33 + 2 * other, cx.shared_get(s, 33 + 2 * other));
        cx.copy_async_wait::<0>();
        cx.barrier();
        let at = 96 + 4 * (31 - cx.lane());
        let words = cx.shared_get4(s, at);
        let mut i = 0;
        while i < 4 {
            to.set(cx, at + i, words[i as usize]);
            i += 1;
        }
    }
}

kernel! {
    /// Loads the matrices in `rows`, 32 rows of 8 elements, in each way. Lane `l` stores words 14
    /// `l` and on.
    pub unsafe fn matrices(cx: impl Cooperative, rows: In<u16>, words: Out<u32>)
    require { rows.len() == 256, words.len() == 32 * LOADED }
    grid(1) block(32) shared(512)
    {
        let (lane, s) = (cx.lane(), cx.shared::<u16>(0));
        let mut i = 0;
        while i < 8 {
            cx.shared_set(s, 8 * lane + i, rows.get(cx, 8 * lane + i));
            i += 1;
        }
        cx.barrier();
        let row = 8 * cx.lane();
        // The lanes that name no row pass an index that is nowhere.
        let one = if cx.lane() < 8 { row } else { 1 << 20 };
        let two = if cx.lane() < 16 { row } else { 1 << 20 };
        let [a] = cx.load_matrices(s, one);
        let [b, c] = cx.load_matrices(s, two);
        let [d, e, f, g] = cx.load_matrices(s, row);
        let [h] = cx.load_matrices_transposed(s, one);
        let [i, j] = cx.load_matrices_transposed(s, two);
        let [k, l, m, n] = cx.load_matrices_transposed(s, row);
        for (at, word) in (LOADED * cx.lane()..).zip([a, b, c, d, e, f, g, h, i, j, k, l, m, n]) {
            words.set(cx, at, word);
        }
    }
}

macro_rules! products {
    ($($name:ident $operation:ident;)*) => {$(
        kernel! {
            /// Computes the sums of each lane from its fragments of A (four words), B (two) and C
            /// (four).
            pub unsafe fn $name(cx: impl Cooperative, a: In<u32>, b: In<u32>, c: In<f32>, d: Out<f32>)
            require { a.len() == 128, b.len() == 64, c.len() == 128, d.len() == 128 }
            grid(1) block(32)
            {
                let lane = cx.lane();
                let a = [0, 1, 2, 3].map(|i| a.get(cx, 4 * lane + i));
                let b = [0, 1].map(|i| b.get(cx, 2 * lane + i));
                let c = [0, 1, 2, 3].map(|i| c.get(cx, 4 * lane + i));
                let sums = cx.$operation(a, b, c);
                let mut i = 0;
                while i < 4 {
                    d.set(cx, 4 * cx.lane() + i, sums[i as usize]);
                    i += 1;
                }
            }
        }
    )*};
}
products! {
    product_f16 mma_f16;
    product_bf16 mma_bf16;
    product_tf32 mma_tf32;
}
