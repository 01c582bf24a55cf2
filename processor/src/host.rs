//! Images to the input of a model, on the host.

use std::collections::HashMap;

use rayon::prelude::*;
use thalweg::simt::{bf16, f16};
use thalweg_kernels::processor::InputNumber;

use thalweg::Size;

use crate::coefficients::AxisCoefficients;
use crate::levels::Table;
use crate::memory::zeros;
use crate::plan::{ImagePlan, UnitOrder, View};
use crate::resize::Resize;
use crate::{Error, InputLayout, Processor, ResampleFilter, Resampler, Result};

/// A decoded image.
#[derive(Clone, Copy)]
pub struct RgbImage<'a> {
    /// The number of rows.
    pub height: u32,
    /// The number of columns.
    pub width: u32,
    /// The pixels, [height, width, 3].
    pub rgb: &'a [u8],
}

impl std::fmt::Debug for RgbImage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RgbImage").field("height", &self.height).field("width", &self.width).finish_non_exhaustive()
    }
}

impl RgbImage<'_> {
    fn admit(self) -> Result<()> {
        let Self { height, width, rgb } = self;
        crate::sizes::admit([height, width])?;
        match rgb.len() == 3 * height as usize * width as usize {
            true => Ok(()),
            false => Err(Error::ImageBytes { height, width, given: rgb.len() }),
        }
    }
}

/// An element of `pixel_values`: `f32`, [`f16`](struct@f16) or [`bf16`].
pub trait InputElement: InputNumber + thalweg::DeviceCopy + Default + PartialEq + sealed::Sealed {
    /// Rounds a number to the nearest element, ties to even.
    fn from_number(v: f32) -> Self;
    /// Returns the number, which is exact.
    fn to_number(self) -> f32;
    #[doc(hidden)]
    fn bits(self) -> u32;
}

mod sealed {
    use super::{ImagePlan, Processor, Table, Weights};

    /// A part of a batch: an image, and where its numbers go.
    #[derive(Debug)]
    pub struct Part<'a, E> {
        pub(super) processor: &'a Processor,
        pub(super) plan: &'a ImagePlan,
        pub(super) rgb: &'a [u8],
        pub(super) weights: &'a Weights,
        pub(super) table: &'a Table<E>,
        pub(super) to: &'a mut [E],
    }

    pub trait Sealed: Sized {
        /// Writes the numbers. The method of a type is compiled with this crate: those who depend
        /// on it may compile theirs without optimization.
        fn write(part: Part<'_, Self>);
    }
}

macro_rules! elements {
    ($($element:ty: $from:expr, $to:expr, $bits:expr;)*) => {$(
        impl sealed::Sealed for $element {
            fn write(part: sealed::Part<'_, Self>) {
                part.write();
            }
        }
        impl InputElement for $element {
            fn from_number(v: f32) -> Self {
                $from(v)
            }
            fn to_number(self) -> f32 {
                $to(self)
            }
            fn bits(self) -> u32 {
                $bits(self).into()
            }
        }
    )*};
}
elements! {
    f32: std::convert::identity, std::convert::identity, f32::to_bits;
    f16: f16::from_f32, f16::to_f32, f16::to_bits;
    bf16: bf16::from_f32, bf16::to_f32, bf16::to_bits;
}

/// The input of a model, on the host.
#[derive(Clone, Debug)]
pub struct HostInputs<E> {
    /// The numbers, in the shape that [`InputLayout::shape`] says.
    pub pixel_values: Vec<E>,
    /// The shape, and the tensors beside `pixel_values`.
    pub layout: InputLayout,
}

/// The weights of axes: samples, outputs.
type Weights = HashMap<[u32; 2], AxisCoefficients>;

impl Processor {
    /// Computes the input of a model on the host. Each image is the work of one thread of the
    /// current pool of rayon.
    ///
    /// # Errors
    /// The batch has more than 2^31 - 1 rows. An image that is refused is in
    /// [`InputLayout::errors`], and the batch has the others.
    pub fn process<E: InputElement>(&self, images: &[RgbImage<'_>]) -> Result<HostInputs<E>> {
        let layout = self.layout_of(images.iter().map(|image| {
            image.admit()?;
            self.plan([image.height, image.width])
        }))?;
        let mut pixel_values = zeros(layout.elements());
        self.process_into(&layout, images, &mut pixel_values)?;
        Ok(HostInputs { pixel_values, layout })
    }

    /// Does the same as [`process`](Self::process) in memory of the caller, for a layout that
    /// [`layout`](Self::layout) computed from the sizes of all `images`.
    ///
    /// # Errors
    /// `to` has another length than [`InputLayout::elements`], or an image has another size than
    /// the layout says.
    pub fn process_into<E: InputElement>(
        &self,
        layout: &InputLayout,
        images: &[RgbImage<'_>],
        to: &mut [E],
    ) -> Result<()> {
        if to.len() != layout.elements() {
            let (given, room) = (layout.elements() as u64, to.len() as u64);
            return Err(Error::Capacity { what: "elements", given, room });
        }
        let processor = layout.processor();
        let table = processor.levels().map(|numbers| numbers.map(E::from_number));
        let weights = processor.weights(layout)?;
        layout.parts(to).into_par_iter().try_for_each(|((i, plan), to)| {
            let image = images.get(*i).copied().filter(|image| [image.height, image.width] == plan.size);
            let wrong = || crate::error::parameter("images", format!("another image {i}"), "those of the layout");
            let image = image.ok_or_else(wrong)?;
            image.admit()?;
            E::write(sealed::Part { processor, plan, rgb: image.rgb, weights: &weights, table: &table, to });
            Ok(())
        })
    }

    /// Computes the weights of each axis that the images have.
    fn weights(&self, layout: &InputLayout) -> Result<Weights> {
        let mut weights = Weights::new();
        let params = self.params();
        for (_, plan) in &layout.plans {
            for (view, axis) in plan.views.iter().flat_map(|view| [(view, 0), (view, 1)]) {
                let key = [plan.size[axis], view.resized[axis]];
                if key[0] != key[1] && !weights.contains_key(&key) {
                    let [samples, outputs] = key;
                    weights.insert(key, AxisCoefficients::new(samples, outputs, params.filter, params.resampler)?);
                }
            }
        }
        Ok(weights)
    }
}

impl<E: InputElement> sealed::Part<'_, E> {
    /// Writes the units of the image.
    fn write(self) {
        let Self { processor, plan, rgb, weights, table, to } = self;
        let (order, size) = (processor.order(), plan.size);
        for view in &plan.views {
            let columns = order.grid(view.canvas)[1];
            let sink = Sink { order, table, view: *view, columns, levels: Vec::new(), written: 0 };
            let to = &mut to[view.first as usize * order.len()..];
            let down = weights.get(&[size[0], view.resized[0]]);
            let across = weights.get(&[size[1], view.resized[1]]);
            let vertical_first = processor.params().resampler.vertical_first(size.into(), view.resized.into());
            let resize = Resize { rgb, size, to: view.resized, across, down, vertical_first };
            sink.write(resize, to);
        }
        let used = plan.units as usize * order.len();
        to[used..].fill(E::default());
    }
}

impl InputLayout {
    /// Cuts the memory of `pixel_values` into the parts of the images.
    fn parts<'a, E>(&'a self, mut to: &'a mut [E]) -> Vec<(&'a (usize, ImagePlan), &'a mut [E])> {
        let len = self.processor().order().len();
        let mut parts = Vec::with_capacity(self.len());
        for (plan, range) in self.plans.iter().zip(self.units.starts.windows(2)) {
            let (own, rest) = to.split_at_mut((range[1] - range[0]) * len);
            parts.push((plan, own));
            to = rest;
        }
        parts
    }
}

/// The rows of pixels that are written at once, unless a unit has more: a unit of so many rows is
/// then written from its first to its last number, and not a piece of each row at a time.
const BAND: u32 = 32;

/// Writes the pixels of a view into its units, row after row.
struct Sink<'a, E> {
    order: UnitOrder,
    table: &'a Table<E>,
    view: View,
    /// The units of a row.
    columns: u32,
    /// The levels that are not written yet: whole rows of the canvas.
    levels: Vec<u8>,
    /// The rows that were written.
    written: u32,
}

impl<E: InputElement> Sink<'_, E> {
    fn write(mut self, resize: Resize<'_>, to: &mut [E]) {
        let View { canvas, resized, at, .. } = self.view;
        if canvas == resized {
            return resize.rows(|_, levels| self.row(levels, to));
        }
        let mut row = vec![0; 3 * canvas[1] as usize];
        let (left, cut) = (3 * at[1].max(0) as usize, 3 * (-at[1]).max(0) as usize);
        let bytes = (3 * resized[1] as usize - cut).min(row.len() - left);
        let empty = row.clone();
        (0..at[0]).for_each(|_| self.row(&empty, to));
        resize.rows(|y, levels| {
            if (0..canvas[0] as i32).contains(&(y as i32 + at[0])) {
                row[left..left + bytes].copy_from_slice(&levels[cut..cut + bytes]);
                self.row(&row, to);
            }
        });
        (at[0] + resized[0] as i32..canvas[0] as i32).for_each(|_| self.row(&empty, to));
    }

    /// Takes the next row of the canvas.
    fn row(&mut self, levels: &[u8], to: &mut [E]) {
        self.levels.extend_from_slice(levels);
        let side = self.order.side;
        let band = if side <= BAND { side } else { 1 };
        if self.levels.len() == band as usize * levels.len() {
            self.band(band, to);
            self.written += band;
            self.levels.clear();
        }
    }

    /// Writes rows of units.
    fn band(&self, band: u32, to: &mut [E]) {
        let UnitOrder { side, merge, .. } = self.order;
        let pixels = self.levels.as_chunks::<3>().0;
        let first = self.order.strides()[1] * (self.written % side) as usize;
        for x in (0..self.columns).step_by(merge as usize) {
            // Those of a block that are side by side follow each other.
            let unit = self.order.unit(self.columns, self.written / side, x);
            for i in 0..merge {
                let to = &mut to[(unit + i as usize) * self.order.len() + first..];
                let rows = pixels.chunks_exact((self.columns * side) as usize);
                let rows = rows.map(|row| &row[((x + i) * side) as usize..][..side as usize]);
                match self.order.channels_last {
                    true => self.interleaved(rows, to),
                    false => self.planes(rows, (band * side) as usize, to),
                }
            }
        }
    }

    fn interleaved<'p>(&self, rows: impl Iterator<Item = &'p [[u8; 3]]>, to: &mut [E]) {
        for (pixel, to) in rows.flatten().zip(to.as_chunks_mut::<3>().0) {
            *to = std::array::from_fn(|c| self.table[c][pixel[c] as usize]);
        }
    }

    /// Writes `len` numbers of each channel.
    fn planes<'p>(&self, rows: impl Iterator<Item = &'p [[u8; 3]]> + Clone, len: usize, to: &mut [E]) {
        let [plane, ..] = self.order.strides();
        for (c, table) in self.table.iter().enumerate() {
            let to = &mut to[c * plane..];
            for (pixels, to) in rows.clone().zip(to.chunks_exact_mut(self.order.side as usize)) {
                for (pixel, to) in pixels.iter().zip(to) {
                    *to = table[pixel[c] as usize];
                }
            }
            for copy in 1..self.order.copies as usize {
                to.copy_within(..len, copy * self.order.channel());
            }
        }
    }
}

/// Resizes an image to the size `to`, in two passes with levels between them.
///
/// ```
/// use thalweg::Size;
/// use thalweg_processor::{ResampleFilter, Resampler, RgbImage, resize};
///
/// let image = RgbImage { height: 1, width: 2, rgb: &[0, 0, 0, 200, 100, 50] };
/// assert_eq!(resize(image, Size::new(1, 1), ResampleFilter::Bilinear, Resampler::Pil)?, [100, 50, 25]);
/// # Ok::<(), thalweg_processor::Error>(())
/// ```
///
/// # Errors
/// A side is out of its range, the bytes are not as many as the size says, or the library has no
/// such filter.
pub fn resize(image: RgbImage<'_>, to: Size, filter: ResampleFilter, resampler: Resampler) -> Result<Vec<u8>> {
    image.admit()?;
    let vertical_first = resampler.vertical_first(Size::new(image.height, image.width), to);
    let (size, to) = ([image.height, image.width], to.sides());
    let axis = |i: usize| AxisCoefficients::new(size[i], to[i], filter, resampler);
    let (down, across) = (axis(0)?, axis(1)?);
    let (down, across) = ((size[0] != to[0]).then_some(&down), (size[1] != to[1]).then_some(&across));
    let mut rgb = Vec::with_capacity(3 * to[0] as usize * to[1] as usize);
    Resize { rgb: image.rgb, size, to, across, down, vertical_first }.rows(|_, row| rgb.extend_from_slice(row));
    Ok(rgb)
}
