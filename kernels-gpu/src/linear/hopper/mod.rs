//! The product on GPUs of compute capability 9.0: its kernels, and when they are launched.
//!
//! Their PTX has version 8.0, which every driver takes that thalweg supports (CUDA 12.0). The CPU device
//! never launches them, because it has no copy engine for tiles. So their host side is
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
/// The bytes of the barriers: two for each stage, and two for the turns.
#[cfg(not(target_arch = "nvptx64"))]
const BARRIER_BYTES: u32 = 128;
/// The dynamic shared memory of a block, with what the alignment to 1024 bytes may take.
#[cfg(not(target_arch = "nvptx64"))]
const SHARED_BYTES: u32 = RING_BYTES + STAGING_BYTES + BARRIER_BYTES + 1008;

/// Declares the kernels. `maps` are the maps of A and B, and the other parameters are as in
/// [`kernels`](super::kernels).
macro_rules! products {
    ($($name:ident <$e:ident> $f16:literal, $a_transposed:literal, $b_transposed:literal;)*) => {$(
        #[cfg(target_arch = "nvptx64")]
        kernel! {
            unsafe fn $name(
                cx: impl Cooperative, maps: [u64; 32], blocks: u32, m: u32, n: u32, k: u32, batch: u32, ldc: u32, ldr: u32,
                flags: u32, sc: u64, sr: u64, bias: In<$e>, residual: In<$e>, c: InOut<$e>
            )
            grid(blocks) block(THREADS) bounds(THREADS, 1) shared(SHARED_BYTES)
            {
                use thalweg_simt::hopper::TileMap;

                let maps: u64;
                // The address of the parameter. Rust code that took it would get the address of a copy.
                core::arch::asm!(
                    "{{ .reg .b64 p; mov.b64 p, {entry}_param_0; cvta.param.u64 {0}, p; }}",
                    out(reg64) maps, entry = sym $name, options(pure, nomem, nostack)
                );
                let (a, b) = (TileMap::new(maps), TileMap::new(maps + 128));
                let (bias, residual, c) = (bias.as_ptr().cast(), residual.as_ptr().cast(), c.as_ptr().cast());
                let job = product::Job { a, b, m, n, k, batch, ldc, ldr, flags, sc, sr, bias, residual, c };
                product::product::<$f16, $a_transposed, $b_transposed>(cx, job);
            }
        }

        // It is private, because it cannot check the maps. `launch` makes them.
        #[cfg(not(target_arch = "nvptx64"))]
        kernel! {
            unsafe fn $name(
                maps: [u64; 32], blocks: u32, m: u32, n: u32, k: u32, batch: u32, ldc: u32, ldr: u32,
                flags: u32, sc: u64, sr: u64, bias: In<$e>, residual: In<$e>, c: InOut<$e>
            )
            require {
                m > 0 && n > 0 && k > 0 && batch > 0 && n % 8 == 0,
                flags & u128::from(ALIGNED) != 0 && aligned(c, width(flags, 2), 2, ldc, sc),
                holds(c.len() / width(flags, 2), m, n, ldc, batch, sc),
                distinct(m, n, ldc, batch, sc),
                flags & u128::from(BIAS) == 0 || bias.is_aligned(16) && bias.len() / width(flags, 2) >= n,
                flags & u128::from(RESIDUAL) == 0
                    || aligned(residual, width(flags, 2), 2, ldr, sr)
                        && holds(residual.len() / width(flags, 2), m, n, ldr, batch, sr)
            }
            grid(blocks) block(THREADS) bounds(THREADS, 1) shared(SHARED_BYTES)
        }
    )*};
}
products! {
    nt_f16_wgmma <f16> true, false, false;
    nn_f16_wgmma <f16> true, false, true;
    tn_f16_wgmma <f16> true, true, true;
    nt_bf16_wgmma <bf16> false, false, false;
    nn_bf16_wgmma <bf16> false, false, true;
    tn_bf16_wgmma <bf16> false, true, true;
}

#[cfg(not(target_arch = "nvptx64"))]
pub(super) use launch::Hopper;
#[cfg(not(target_arch = "nvptx64"))]
use {
    super::epilogue::{ALIGNED, BIAS, RESIDUAL},
    super::kernels::{aligned, distinct, holds, width},
};

#[cfg(not(target_arch = "nvptx64"))]
mod launch {
    use thalweg_simt::host::{DeviceSlice, Launch, TileMap, Tiles};
    use thalweg_simt::{Element, bf16, f16};

    use super::TILE;
    use crate::linear::arguments::{Arguments, Form};
    use crate::linear::epilogue::{ALIGNED, BIAS, RESIDUAL};

    /// An element of operands that these kernels multiply.
    pub(crate) trait Hopper: Element {
        /// Launches the product and returns true. Returns false, and launches nothing, if the device has
        /// no copy engine for tiles, if that cannot read the operands, or if rows of C are not in
        /// aligned pieces of 8 elements.
        ///
        /// # Errors
        /// What the launch fails with.
        fn launch<S, L: Launch<S> + ?Sized>(on: &L, arguments: &mut Arguments<'_, S, Self>) -> Result<bool, L::Error>;
    }

    /// Makes the maps of A and B, or `None` if that is not possible.
    fn maps<S, L: Launch<S> + ?Sized, T: Element>(
        on: &L,
        arguments: &Arguments<'_, S, T>,
    ) -> Result<Option<[TileMap; 2]>, L::Error> {
        let &Arguments { form, m, n, k, batch, lda, ldb, sa, sb, a, b, .. } = arguments;
        let ([ar, ac], [br, bc]) = match form {
            Form::Nt => ([m, k], [n, k]),
            Form::Nn => ([m, k], [k, n]),
            Form::Tn => ([k, m], [k, n]),
            Form::Tt => return Ok(None),
        };
        let tiles = |slice: &DeviceSlice<S, T>, [rows, columns]: [u32; 2], matrix, row: u32| {
            Tiles::new(slice, [batch, rows, columns].map(u64::from), matrix, u64::from(row))
        };
        let (Some(a), Some(b)) = (tiles(a, [ar, ac], sa, lda), tiles(b, [br, bc], sb, ldb)) else { return Ok(None) };
        let (Some(a), Some(b)) = (on.tile_map(&a)?, on.tile_map(&b)?) else { return Ok(None) };
        Ok(Some([a, b]))
    }

    macro_rules! elements {
        ($($t:ident $nt:ident $nn:ident $tn:ident;)*) => {$(
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
                    let blocks = (tiles as u32).min(on.multiprocessors());
                    let launch = match form {
                        Form::Nt => super::$nt,
                        Form::Nn => super::$nn,
                        Form::Tn | Form::Tt => super::$tn,
                    };
                    let c = &mut *arguments.c;
                    launch(on, maps, blocks, m, n, k, batch, ldc, ldr, flags, sc, sr, bias, residual, c)?;
                    Ok(true)
                }
            }
        )*};
    }
    elements! {
        f16 nt_f16_wgmma nn_f16_wgmma tn_f16_wgmma;
        bf16 nt_bf16_wgmma nn_bf16_wgmma tn_bf16_wgmma;
    }
}
