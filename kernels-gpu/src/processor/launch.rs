//! The launchers. They read all counts from the lengths of the slices.
//!
//! # Errors
//! Each returns what the launch fails with. That includes every argument that the declaration of
//! the kernel rules out, such as a slice of another length.

use thalweg_simt::host::{DeviceSlice, Launch};
use thalweg_simt::{Element, bf16, f16};

use super::strips::pitch;
use super::{AXIS_WORDS, FRAGMENT_WORDS, RECORD_WORDS, STEP, VIEW_WORDS, kernels, patches};

/// The pixels and tables that units are made from.
#[derive(Debug)]
pub struct Sources<'a, S, E> {
    /// The pixels of the images: interleaved RGB, a multiple of 4 bytes.
    pub rgb: &'a DeviceSlice<S, u8>,
    /// The views, [`VIEW_WORDS`] words each: at least one.
    pub views: &'a DeviceSlice<S, u32>,
    /// The weights of the axes, records of [`RECORD_WORDS`] words.
    pub axes: &'a DeviceSlice<S, u32>,
    /// The numbers of the levels [3, 256].
    pub table: &'a DeviceSlice<S, E>,
    /// The fragments of the weights, which [`fragments`] makes. If they are given, a warp makes
    /// each unit, which is faster and needs compute capability 8.0. Then no view is
    /// [`DOWN_FIRST`](super::DOWN_FIRST), `side` is even and at most 16, and `merge` and `copies`
    /// are 1 or 2.
    pub fragments: Option<&'a DeviceSlice<S, u32>>,
}

/// The order of the numbers of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// The pixels a side: 1 to 4096.
    pub side: u32,
    /// Units come in blocks of `merge` x `merge`: 1 to 16.
    pub merge: u32,
    /// Each channel of a unit is written so many times: 1 to 16.
    pub copies: u32,
    /// The words of shared memory of a block without fragments: 64 to 8192. A block whose rows
    /// between the passes do not fit takes them in parts.
    pub window: u32,
    /// The quads (four neighbors of a row, 12 bytes) of the shared memory of a block with
    /// fragments, up to [`QUADS`](super::QUADS), or 0. If there are any, then blocks make strips,
    /// which is faster. Then one step is enough for a unit in both passes, weights have 16 bits,
    /// the first sample of a unit across is taken as a multiple of 4, and a strip has
    /// [`strip_quads`](Units::strip_quads) at most.
    pub quads: u32,
}

impl Units {
    /// Returns the quads of a strip of so many samples across, from the first one of the first unit
    /// to the first one of the last, both taken as multiples of 4, and of so many rows.
    #[must_use]
    pub fn strip_quads(samples: u32, rows: u32) -> u32 {
        rows.min(STEP).saturating_mul(pitch(samples.saturating_add(STEP) / 4))
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type of elements of the input of a model: `f32`, [`f16`](struct@f16) or [`bf16`].
pub trait InputNumber: Element + sealed::Sealed {
    /// Makes units with the channels of a pixel side by side (`interleaved`), or one after another.
    #[doc(hidden)]
    fn launch<S, L: Launch<S> + ?Sized>(
        on: &L,
        sources: &Sources<'_, S, Self>,
        order: Units,
        interleaved: bool,
        out: &mut DeviceSlice<S, Self>,
    ) -> Result<(), L::Error>
    where
        Self: Sized;
}

/// The number of items of `size` elements in a slice. If a part of an item is left over, or if
/// there are too many, then the declaration refuses the slice.
fn items<S, T: Element>(slice: &DeviceSlice<S, T>, size: u64) -> u32 {
    (slice.len() as u64).checked_div(size).and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX)
}

/// The number of units in `out`, and of views, of words of pixels and of records of axes.
fn counts<S, E: Element>(sources: &Sources<'_, S, E>, order: Units, copies: u32, out: &DeviceSlice<S, E>) -> [u32; 4] {
    let unit = [3, copies, order.side, order.side].into_iter().try_fold(1u64, |n, k| n.checked_mul(k.into()));
    let units = items(out, unit.unwrap_or(0));
    [units, items(sources.views, VIEW_WORDS.into()), items(sources.rgb, 4), items(sources.axes, RECORD_WORDS.into())]
}

macro_rules! elements {
    ($($t:ty: $bits:ty, $strips:ident $patches:ident $tiles:ident $strip_pixels:ident $patch_pixels:ident $pixels:ident;)*) => {$(
        impl sealed::Sealed for $t {}
        impl InputNumber for $t {
            fn launch<S, L: Launch<S> + ?Sized>(
                on: &L,
                sources: &Sources<'_, S, Self>,
                order: Units,
                interleaved: bool,
                out: &mut DeviceSlice<S, Self>,
            ) -> Result<(), L::Error> {
                let Units { side, merge, copies, window, quads } = order;
                let [units, n, words, records] = counts(sources, order, if interleaved { 1 } else { copies }, out);
                let &Sources { rgb, views, axes, table, fragments } = sources;
                let pieces = fragments.map_or(0, |fragments| items(fragments, 4));
                let (table, out) = (table.cast::<$bits>(), out.cast_mut::<$bits>());
                match (fragments, interleaved) {
                    (Some(fragments), true) if quads > 0 => patches::$strip_pixels(
                        on, units, n, words, records, pieces, quads, side, merge, rgb, views, axes, fragments, table, out,
                    ),
                    (Some(fragments), true) => patches::$patch_pixels(
                        on, units, n, words, records, pieces, quads, side, merge, rgb, views, axes, fragments, table, out,
                    ),
                    (Some(fragments), false) if quads > 0 => patches::$strips(
                        on, units, n, words, records, pieces, quads, side, merge, copies, rgb, views, axes, fragments, table, out,
                    ),
                    (Some(fragments), false) => patches::$patches(
                        on, units, n, words, records, pieces, quads, side, merge, copies, rgb, views, axes, fragments, table, out,
                    ),
                    (None, true) => kernels::$pixels(
                        on, units, n, words, records, side, merge, window, rgb, views, axes, table, out,
                    ),
                    (None, false) => kernels::$tiles(
                        on, units, n, words, records, side, merge, copies, window, rgb, views, axes, table, out,
                    ),
                }
            }
        }
    )*};
}
elements! {
    f32: u32, strips_32 patches_32 tiles_32 strip_pixels_32 patch_pixels_32 pixels_32;
    f16: u16, strips_16 patches_16 tiles_16 strip_pixels_16 patch_pixels_16 pixels_16;
    bf16: u16, strips_16 patches_16 tiles_16 strip_pixels_16 patch_pixels_16 pixels_16;
}

/// Makes units of one channel after another: `out` [units, 3, copies, side, side].
///
/// # Errors
/// See the launchers of this module. `out` has fewer than 2^32 elements.
pub fn inputs<S, L: Launch<S> + ?Sized, E: InputNumber>(
    on: &L,
    sources: &Sources<'_, S, E>,
    order: Units,
    out: &mut DeviceSlice<S, E>,
) -> Result<(), L::Error> {
    E::launch(on, sources, order, false, out)
}

/// Makes units with the channels of a pixel side by side: `out` [units, side, side, 3]. `copies`
/// does not count.
///
/// # Errors
/// See the launchers of this module. `out` has fewer than 2^32 elements.
pub fn interleaved_inputs<S, L: Launch<S> + ?Sized, E: InputNumber>(
    on: &L,
    sources: &Sources<'_, S, E>,
    order: Units,
    out: &mut DeviceSlice<S, E>,
) -> Result<(), L::Error> {
    E::launch(on, sources, order, true, out)
}

/// Makes the fragments of the weights of all axes, [`FRAGMENT_WORDS`] words each. `table` has
/// [`AXIS_WORDS`] words for each axis.
///
/// # Errors
/// See the launchers of this module. There are fewer than 2^25 fragments.
pub fn fragments<S, L: Launch<S> + ?Sized>(
    on: &L,
    axes: &DeviceSlice<S, u32>,
    table: &DeviceSlice<S, u32>,
    out: &mut DeviceSlice<S, u32>,
) -> Result<(), L::Error> {
    let n = items(out, FRAGMENT_WORDS.into());
    let (parts, records) = (items(table, AXIS_WORDS.into()), items(axes, RECORD_WORDS.into()));
    patches::fragments(on, n, parts, records, axes, table, out)
}
