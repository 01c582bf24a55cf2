//! The launchers. They read all counts from the lengths of the slices.
//!
//! # Errors
//! Each returns what the launch fails with. That includes every argument that the declaration of
//! the kernel rules out, such as a slice of another length.

use thalweg_simt::host::{DeviceSlice, Launch};
use thalweg_simt::{Element, bf16, f16};

use super::kernels;
use super::{RECORD_WORDS, VIEW_WORDS};

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
    /// The words of shared memory of a block: 64 to 8192. A block whose rows between the passes do
    /// not fit takes them in parts.
    pub window: u32,
    /// True if strips make the units, which is faster. Then no view is [`DOWN_FIRST`](super::DOWN_FIRST),
    /// `side` is even and at most 16, `merge` and `copies` are 1 or 2, and the samples of the rows
    /// that a view makes at once fit into [`STRIP_WINDOW`](super::STRIP_WINDOW).
    pub strips: bool,
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

/// The threads of a block of strips: along the pairs of pixels of a unit, and along units. Two
/// turns of the first ones make a unit. All are a multiple of 32, and as few as let four blocks of
/// a multiprocessor have the registers that they need.
fn threads(side: u32) -> [u32; 2] {
    let across = (side.saturating_mul(side) / 4).clamp(1, 64).next_multiple_of(8);
    let deep = (1..=224 / across).rev().find(|deep| (across * deep).is_multiple_of(32));
    [across, deep.unwrap_or(1)]
}

impl Units {
    /// Returns the most units of a strip.
    #[must_use]
    pub fn strip(side: u32) -> u32 {
        4 * threads(side)[1]
    }
}

macro_rules! elements {
    ($($t:ty: $bits:ty, $strips:ident $tiles:ident $strip_pixels:ident $pixels:ident;)*) => {$(
        impl sealed::Sealed for $t {}
        impl InputNumber for $t {
            fn launch<S, L: Launch<S> + ?Sized>(
                on: &L,
                sources: &Sources<'_, S, Self>,
                order: Units,
                interleaved: bool,
                out: &mut DeviceSlice<S, Self>,
            ) -> Result<(), L::Error> {
                let Units { side, merge, copies, window, strips } = order;
                let [units, n, words, records] = counts(sources, order, if interleaved { 1 } else { copies }, out);
                let &Sources { rgb, views, axes, table } = sources;
                let (table, out) = (table.cast::<$bits>(), out.cast_mut::<$bits>());
                let [across, deep] = threads(side);
                match (strips, interleaved) {
                    (true, true) => kernels::$strip_pixels(
                        on, units, n, words, records, side, merge, across, deep, rgb, views, axes, table, out,
                    ),
                    (true, false) => kernels::$strips(
                        on, units, n, words, records, side, merge, copies, across, deep, rgb, views, axes, table, out,
                    ),
                    (false, true) => kernels::$pixels(
                        on, units, n, words, records, side, merge, window, rgb, views, axes, table, out,
                    ),
                    (false, false) => kernels::$tiles(
                        on, units, n, words, records, side, merge, copies, window, rgb, views, axes, table, out,
                    ),
                }
            }
        }
    )*};
}
elements! {
    f32: u32, strips_32 tiles_32 strip_pixels_32 pixels_32;
    f16: u16, strips_16 tiles_16 strip_pixels_16 pixels_16;
    bf16: u16, strips_16 tiles_16 strip_pixels_16 pixels_16;
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
