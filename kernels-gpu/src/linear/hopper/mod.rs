//! The product on GPUs of compute capability 9.0: its kernels, and when they are launched.
//!
//! Their PTX has version 8.0, which every driver takes that thalweg supports (CUDA 12.0). The CPU
//! device never launches them, because it has no copy engine for tiles. So their host side is
//! declared without a body, and `product`, which is the body, is compiled for `sm_90a` only.

use thalweg_simt::{bf16, f16, kernel};

#[cfg(target_arch = "nvptx64")]
mod product;

/// The rows and the columns of a tile of C.
const TILE: u32 = 128;
/// The threads of a block: one warpgroup copies, and two multiply.
const THREADS: u32 = 384;
/// The bytes of the ring of stages.
const RING_BYTES: u32 = 192 << 10;
/// The bytes of the elements that wait to be stored: 16 rows of 64 columns for each of 8 warps.
const STAGING_BYTES: u32 = 8 * 16 * 64 * 2;
/// The bytes of the bias of a tile's columns, for each of 8 warps.
const BIAS_BYTES: u32 = 8 * TILE * 4;
/// The bytes of the barriers: two for each stage, and two for the turns.
#[cfg(not(target_arch = "nvptx64"))]
const BARRIER_BYTES: u32 = 128;
/// The dynamic shared memory of a block, with what the alignment to 1024 bytes may take.
#[cfg(not(target_arch = "nvptx64"))]
const SHARED_BYTES: u32 = RING_BYTES + STAGING_BYTES + BIAS_BYTES + BARRIER_BYTES + 1008;

/// The words of scratch memory for the counts of split tiles, one for each warp of a tile. Fewer
/// tiles than blocks are split. [`clear_counts`] sets them to 0 before each product that splits:
/// values that a caller left there could make two warps finish a tile, or none.
const COUNTS: u32 = 4096;
/// The most blocks that share tiles.
#[cfg(not(target_arch = "nvptx64"))]
const MOST_SHARING: u32 = COUNTS / 4;

/// Returns the words of scratch memory that split tiles need: their counts, and the sums of two
/// parts of a tile for each block.
#[cfg(not(target_arch = "nvptx64"))]
const fn words(blocks: u32) -> usize {
    (COUNTS + blocks * 2 * TILE * TILE) as usize
}

kernel! {
    /// Sets the counts of split tiles to 0. Launch: 16 blocks of 256 threads, one word each.
    unsafe fn clear_counts(cx: impl Simt, scratch: Out<u32>)
    require { scratch.len() >= COUNTS }
    grid(COUNTS / 256) block(256)
    {
        scratch.set(cx, cx.global_x() as usize, 0);
    }
}

/// Declares the kernels. `maps` are the maps of A and B, and the other parameters are as in
/// [`kernels`](super::kernels).
macro_rules! products {
    ($($name:ident <$e:ident> $f16:literal, $a_transposed:literal, $b_transposed:literal, $adds:literal;)*) => {$(
        #[cfg(target_arch = "nvptx64")]
        kernel! {
            unsafe fn $name(
                cx: impl Cooperative, maps: [u64; 32], blocks: u32, m: u32, n: u32, k: u32, batch: u32, ldc: u32, ldr: u32,
                flags: u32, sc: u64, sr: u64, bias: In<$e>, residual: In<$e>, c: InOut<$e>,
                split: u32, scratch: InOut<u32>
            )
            grid(blocks) block(THREADS) bounds(THREADS, 1) shared(SHARED_BYTES)
            {
                use thalweg_simt::hopper::TensorMap;

                let maps: u64;
                // The address of the parameter. Rust code that took it would get the address of a
                // copy.
                core::arch::asm!(
                    "{{ .reg .b64 p; mov.b64 p, {entry}_param_0; cvta.param.u64 {0}, p; }}",
                    out(reg64) maps, entry = sym $name, options(pure, nomem, nostack)
                );
                let (a, b) = (TensorMap::new(maps), TensorMap::new(maps + 128));
                let (bias, residual, c) = (bias.as_ptr().cast(), residual.as_ptr().cast(), c.as_ptr().cast());
                let job = product::Job { a, b, m, n, k, batch, ldc, ldr, flags, sc, sr, bias, residual, c, split, scratch: scratch.as_ptr() };
                product::product::<$f16, $a_transposed, $b_transposed, $adds>(cx, job);
            }
        }

        // It is private, because it cannot check the maps. `launch` makes them.
        #[cfg(not(target_arch = "nvptx64"))]
        kernel! {
            unsafe fn $name(
                maps: [u64; 32], blocks: u32, m: u32, n: u32, k: u32, batch: u32, ldc: u32, ldr: u32,
                flags: u32, sc: u64, sr: u64, bias: In<$e>, residual: In<$e>, c: InOut<$e>,
                split: u32, scratch: InOut<u32>
            )
            require {
                m > 0 && n > 0 && k > 0 && batch > 0 && n % 8 == 0,
                (flags & u128::from(RESIDUAL | ACCUMULATE) != 0) == $adds,
                flags & u128::from(RESIDUAL | ACCUMULATE) != u128::from(RESIDUAL | ACCUMULATE),
                flags & u128::from(ALIGNED) != 0 && aligned(c, width(flags, 2), 2, ldc, sc),
                holds(c.len() / width(flags, 2), m, n, ldc, batch, sc),
                distinct(m, n, ldc, batch, sc),
                flags & u128::from(BIAS) == 0 || bias.is_aligned(16) && bias.len() / width(flags, 2) >= n,
                flags & u128::from(RESIDUAL) == 0
                    || aligned(residual, width(flags, 2), 2, ldr, sr)
                        && holds(residual.len() / width(flags, 2), m, n, ldr, batch, sr),
                split == 0
                    || scratch.is_aligned(16) && split <= blocks && blocks <= u128::from(MOST_SHARING)
                        && split * k.div_ceil(64) >= blocks
                        && scratch.len() >= u128::from(COUNTS) + blocks * 2 * u128::from(TILE * TILE),
                (split * k.div_ceil(64) + 1) * blocks <= u128::from(u32::MAX)
            }
            grid(blocks) block(THREADS) bounds(THREADS, 1) shared(SHARED_BYTES)
        }
    )*};
}
products! {
    nt_f16_wgmma <f16> true, false, false, false;
    nt_f16_wgmma_adding <f16> true, false, false, true;
    nn_f16_wgmma <f16> true, false, true, false;
    nn_f16_wgmma_adding <f16> true, false, true, true;
    tn_f16_wgmma <f16> true, true, true, false;
    tn_f16_wgmma_adding <f16> true, true, true, true;
    nt_bf16_wgmma <bf16> false, false, false, false;
    nt_bf16_wgmma_adding <bf16> false, false, false, true;
    nn_bf16_wgmma <bf16> false, false, true, false;
    nn_bf16_wgmma_adding <bf16> false, false, true, true;
    tn_bf16_wgmma <bf16> false, true, true, false;
    tn_bf16_wgmma_adding <bf16> false, true, true, true;
}

#[cfg(not(target_arch = "nvptx64"))]
pub(super) use launch::Hopper;
#[cfg(not(target_arch = "nvptx64"))]
pub use launch::scratch_len;
#[cfg(not(target_arch = "nvptx64"))]
use {
    super::epilogue::{ACCUMULATE, ALIGNED, BIAS, RESIDUAL},
    super::kernels::{aligned, distinct, holds, width},
};

#[cfg(not(target_arch = "nvptx64"))]
mod launch {
    use thalweg_simt::host::{DeviceSlice, Launch, MatrixView, TensorMap};
    use thalweg_simt::{Element, bf16, f16};

    use super::{MOST_SHARING, TILE, words};
    use crate::linear::arguments::{Arguments, Form};
    use crate::linear::epilogue::{ACCUMULATE, ALIGNED, BIAS, RESIDUAL};

    /// An operand element type that the Hopper kernels support.
    pub(crate) trait Hopper: Element {
        /// Launches the product and returns true. Returns false, and launches nothing, if the
        /// device has no copy engine for tiles, if that cannot read the operands, or if rows of C
        /// are not in aligned pieces of 8 elements.
        ///
        /// # Errors
        /// What the launch fails with.
        fn launch<S, L: Launch<S> + ?Sized>(on: &L, arguments: &mut Arguments<'_, S, Self>) -> Result<bool, L::Error>;
    }

    /// Returns how many elements of scratch memory
    /// [`matmul_with_scratch`](crate::linear::matmul_with_scratch) can use on a device: 17 MB on an
    /// H200. It is 0 where no kernel uses any.
    ///
    /// # Errors
    /// The device failed.
    pub fn scratch_len<S, L: Launch<S> + ?Sized>(on: &L) -> Result<usize, L::Error> {
        // SAFETY: Nothing accesses the elements.
        let any = unsafe { DeviceSlice::<S, u16>::from_raw(4096, 64) };
        let tiles = MatrixView::new(any, [1, 8, 8], 0, 8).expect("the elements are there");
        Ok(if on.tensor_map(&tiles)?.is_some() { words(on.multiprocessors()) } else { 0 })
    }

    /// Makes the maps of A and B, or `None` if that is not possible.
    fn maps<S, L: Launch<S> + ?Sized, T: Element>(
        on: &L,
        arguments: &Arguments<'_, S, T>,
    ) -> Result<Option<[TensorMap; 2]>, L::Error> {
        let &Arguments { form, m, n, k, batch, lda, ldb, sa, sb, a, b, .. } = arguments;
        let ([ar, ac], [br, bc]) = match form {
            Form::Nt => ([m, k], [n, k]),
            Form::Nn => ([m, k], [k, n]),
            Form::Tn => ([k, m], [k, n]),
            Form::Tt => return Ok(None),
        };
        let tiles = |slice: &DeviceSlice<S, T>, [rows, columns]: [u32; 2], matrix, row: u32| {
            MatrixView::new(slice, [batch, rows, columns].map(u64::from), matrix, u64::from(row))
        };
        let (Some(a), Some(b)) = (tiles(a, [ar, ac], sa, lda), tiles(b, [br, bc], sb, ldb)) else { return Ok(None) };
        let (Some(a), Some(b)) = (on.tensor_map(&a)?, on.tensor_map(&b)?) else { return Ok(None) };
        Ok(Some([a, b]))
    }

    /// The least number of steps of 64 that sharing has to save: a step takes 0.36 us on an H200,
    /// and storing and adding partial sums took 7 to 26 us there.
    const LEAST: u64 = 64;

    /// Returns how many of the tiles share their steps evenly between the blocks, for `depth` steps
    /// of a tile.
    ///
    /// The last tiles of the blocks leave some of them without work. If they share the steps, they
    /// store sums and read those of others, and they read other columns of A and B at the same time
    /// than their neighbors, so that less is found in L2. So they share only if that saves many
    /// steps, and a third of all.
    fn split(tiles: u32, depth: u32, blocks: u32) -> u32 {
        let [t, d, g] = [tiles, depth, blocks].map(u64::from);
        let rest = t % g;
        // Each block has a step, so the parts of a tile are those of neighboring blocks. And steps
        // are counted in 32 bits.
        if rest * d < g || (rest * d + 1) * g > u64::from(u32::MAX) {
            return 0;
        }
        let whole = t.div_ceil(g) * d;
        let saved = d - (rest * d).div_ceil(g);
        if saved >= LEAST && saved * 3 >= whole { rest as u32 } else { 0 }
    }

    #[cfg(test)]
    mod tests {
        use std::cell::Cell;

        use thalweg_simt::bf16;
        use thalweg_simt::host::{DeviceSlice, Kernel, Launch, LaunchError, LaunchShape, MatrixView, TensorMap};

        use super::{TILE, split};
        use crate::linear::{Epilogue, Matrix, MatrixMut, matmul_with_scratch, scratch_len};

        /// A device like an H200 that notes the kernels it is asked to launch: how many, and the
        /// blocks of the last one.
        #[derive(Default)]
        struct Notes {
            launches: Cell<u32>,
            blocks: Cell<u32>,
        }

        // SAFETY: No kernel runs.
        unsafe impl Launch<()> for Notes {
            type Error = LaunchError;

            unsafe fn launch(&self, _: &'static Kernel, shape: LaunchShape, _: &[u64]) -> Result<(), LaunchError> {
                self.launches.set(self.launches.get() + 1);
                self.blocks.set(shape.grid.iter().product());
                Ok(())
            }

            fn multiprocessors(&self) -> u32 {
                132
            }

            fn tensor_map(&self, _: &MatrixView) -> Result<Option<TensorMap>, LaunchError> {
                Ok(Some([0; 16]))
            }
        }

        #[test]
        fn counts_are_cleared_before_each_product_that_splits_sums() {
            let on = Notes::default();
            let len = scratch_len::<(), _>(&on).unwrap();
            let launched = |[m, n, k]: [usize; 3], len| {
                // SAFETY: Nothing accesses the elements, and the addresses are aligned.
                let (x, c, scratch) = unsafe {
                    let x = DeviceSlice::<(), bf16>::from_raw(4096, m.max(n) * k);
                    (x, DeviceSlice::<(), f32>::from_raw_mut(4096, m * n), DeviceSlice::from_raw_mut(4096, len))
                };
                let (a, b, c) = (Matrix::new(x, k, m).transposed(), Matrix::new(x, k, n), MatrixMut::new(c, m, n));
                on.launches.set(0);
                matmul_with_scratch(&on, scratch, 1, a, b, &Epilogue::default(), c).unwrap();
                (on.launches.get(), on.blocks.get())
            };
            // 144 short tiles, and one.
            assert_eq!(launched([768, 3072, 768], len), (1, 132));
            assert_eq!(launched([8, 8, 8], len), (1, 1));
            // One tile of 132 steps is for all blocks, if there is memory for their sums.
            for (len, expected) in [(0, (1, 1)), (len - 1, (1, 1)), (len, (2, 132))] {
                assert_eq!(launched([8, 8, 132 * 64], len), expected, "{len} words");
            }
        }

        /// The rule agrees with what was measured on an H200, which has 132 multiprocessors.
        #[test]
        fn blocks_share_where_that_is_faster() {
            let chosen = |[m, n, k]: [u32; 3]| split(m.div_ceil(TILE) * n.div_ceil(TILE), k.div_ceil(64), 132);
            for (shape, expected) in [([768, 3072, 6272], 12), ([3072, 768, 6272], 12), ([768, 768, 6272], 36)] {
                assert_eq!(chosen(shape), expected, "{shape:?}");
            }
            for rows in [1568, 6272, 25088] {
                for (n, k) in [(2304, 768), (768, 768), (3072, 768), (768, 3072), (768, 2304)] {
                    assert_eq!(chosen([rows, n, k]), 0, "{rows} x {n} x {k}");
                }
                assert_eq!(chosen([2304, 768, rows]), 0, "{rows}");
            }
            for (m, n) in [(768, 3072), (3072, 768), (768, 768)] {
                assert_eq!(chosen([m, n, 1568]), 0, "{m} x {n}");
            }
            for shape in [[4096; 3], [8192, 3072, 768], [8192, 768, 3072], [3152, 2304, 768]] {
                assert_eq!(chosen(shape), 0, "{shape:?}");
            }
        }

        #[test]
        fn blocks_share_only_if_each_gets_a_step_and_numbers_have_32_bits() {
            assert_eq!(split(1, 131, 132), 0);
            assert_eq!(split(1, 132, 132), 1);
            assert_eq!(split(132, 1000, 132), 0);
            assert_eq!(split(133, 1000, 132), 1);
            assert_eq!(split(100, u32::MAX / 64, 132), 0);
        }
    }

    macro_rules! elements {
        ($($t:ident $nt:ident $nn:ident $tn:ident $nt_adding:ident $nn_adding:ident $tn_adding:ident;)*) => {$(
            impl Hopper for $t {
                #[track_caller]
                fn launch<S, L: Launch<S> + ?Sized>(
                    on: &L,
                    arguments: &mut Arguments<'_, S, Self>,
                ) -> Result<bool, L::Error> {
                    let &mut Arguments { form, m, n, k, batch, ldc, ldr, flags, sc, sr, bias, residual, .. } = arguments;
                    let pieces = |slice: &DeviceSlice<S, $t>, row: u32, matrix: u64| {
                        slice.device_ptr().is_multiple_of(16) && row.is_multiple_of(8) && matrix.is_multiple_of(8)
                    };
                    if flags & ALIGNED == 0
                        || flags & (RESIDUAL | ACCUMULATE) == RESIDUAL | ACCUMULATE
                        || !n.is_multiple_of(8)
                        || (flags & BIAS != 0 && !pieces(bias, 0, 0))
                        || (flags & RESIDUAL != 0 && !pieces(residual, ldr, sr))
                    {
                        return Ok(false);
                    }
                    let Some(maps) = maps(on, arguments)? else { return Ok(false) };
                    let maps = std::array::from_fn(|i| maps[i / 16][i % 16]);
                    let tiles = u64::from(m.div_ceil(TILE)) * u64::from(n.div_ceil(TILE)) * u64::from(batch);
                    // Tiles are counted in 32 bits, with room for the last step of a block.
                    if tiles > u64::from(u32::MAX / 2) {
                        return Ok(false);
                    }
                    let most = on.multiprocessors();
                    let scratch = &mut *arguments.scratch;
                    let splits = most <= MOST_SHARING
                        && scratch.len() >= words(most)
                        && scratch.device_ptr().is_multiple_of(16);
                    let split = if splits { split(tiles as u32, k.div_ceil(64), most) } else { 0 };
                    let blocks = if split == 0 { (tiles as u32).min(most) } else { most };
                    if split != 0 {
                        super::clear_counts(on, scratch)?;
                    }
                    let launch = match (form, flags & (RESIDUAL | ACCUMULATE) != 0) {
                        (Form::Nt, false) => super::$nt,
                        (Form::Nn, false) => super::$nn,
                        (Form::Tn | Form::Tt, false) => super::$tn,
                        (Form::Nt, true) => super::$nt_adding,
                        (Form::Nn, true) => super::$nn_adding,
                        (Form::Tn | Form::Tt, true) => super::$tn_adding,
                    };
                    let c = &mut *arguments.c;
                    launch(
                        on, maps, blocks, m, n, k, batch, ldc, ldr, flags, sc, sr, bias, residual, c, split, scratch,
                    )?;
                    Ok(true)
                }
            }
        )*};
    }
    elements! {
        f16 nt_f16_wgmma nn_f16_wgmma tn_f16_wgmma nt_f16_wgmma_adding nn_f16_wgmma_adding tn_f16_wgmma_adding;
        bf16 nt_bf16_wgmma nn_bf16_wgmma tn_bf16_wgmma nt_bf16_wgmma_adding nn_bf16_wgmma_adding tn_bf16_wgmma_adding;
    }
}
