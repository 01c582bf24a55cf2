//! The launchers. They read all counts from the lengths of the slices.
//!
//! # Errors
//! Each returns what the launch fails with. That includes every argument that the declaration of
//! the kernel rules out, such as a slice of another length.

use thalweg_simt::host::{DeviceSlice, Launch};
use thalweg_simt::{Element, bf16, f16};

use super::VIEW_WORDS;
use super::kernels;

/// The pixels and tables that units are made from.
#[derive(Debug)]
pub struct Sources<'a, S, E> {
    /// The pixels of the images: interleaved RGB, a multiple of 4 bytes.
    pub rgb: &'a DeviceSlice<S, u8>,
    /// The views, [`VIEW_WORDS`] words each: at least one.
    pub views: &'a DeviceSlice<S, u32>,
    /// The weights of the axes.
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

/// The number of units in `out`, and of views, of words of pixels and of words of axes.
fn counts<S, E: Element>(sources: &Sources<'_, S, E>, order: Units, copies: u32, out: &DeviceSlice<S, E>) -> [u32; 4] {
    let unit = [3, copies, order.side, order.side].into_iter().try_fold(1u64, |n, k| n.checked_mul(k.into()));
    let units = items(out, unit.unwrap_or(0));
    [units, items(sources.views, VIEW_WORDS.into()), items(sources.rgb, 4), items(sources.axes, 1)]
}

macro_rules! elements {
    ($($t:ty: $bits:ty, $patches:ident $tiles:ident $pixels:ident;)*) => {$(
        impl sealed::Sealed for $t {}
        impl InputNumber for $t {
            fn launch<S, L: Launch<S> + ?Sized>(
                on: &L,
                sources: &Sources<'_, S, Self>,
                order: Units,
                interleaved: bool,
                out: &mut DeviceSlice<S, Self>,
            ) -> Result<(), L::Error> {
                let Units { side, merge, copies, window } = order;
                let [units, n, words, axes_] = counts(sources, order, if interleaved { 1 } else { copies }, out);
                let &Sources { rgb, views, axes, table } = sources;
                let (table, out) = (table.cast::<$bits>(), out.cast_mut::<$bits>());
                if interleaved {
                    return kernels::$pixels(
                        on, units, n, words, axes_, side, merge, window, rgb, views, axes, table, out,
                    );
                }
                if side > 16 {
                    return kernels::$tiles(
                        on, units, n, words, axes_, side, merge, copies, window, rgb, views, axes, table, out,
                    );
                }
                let group = if merge == 2 && units.is_multiple_of(4) { 4 } else { 1 };
                kernels::$patches(
                    on, units, n, words, axes_, side, merge, copies, group, window, rgb, views, axes, table, out,
                )
            }
        }
    )*};
}
elements! {
    f32: u32, patches_32 tiles_32 pixels_32;
    f16: u16, patches_16 tiles_16 pixels_16;
    bf16: u16, patches_16 tiles_16 pixels_16;
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
