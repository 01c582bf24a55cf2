//! Images on the device to the input of a model.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use thalweg::{DeviceBuffer, DeviceSlice, Event, LiveBrand, On, Resource, Stream};
use thalweg_kernels::processor::{self as kernels, DOWN_FIRST, STRIP_WINDOW, Sources, Units, VIEW_WORDS};

use crate::coefficients::AxisCoefficients;
use crate::error::parameter;
use crate::host::InputElement;
use crate::plan::{ImagePlan, View};
use crate::{Error, InputLayout, Processor, Result};

/// The buffers of `pixel_values` that a processor keeps for later batches.
const SPARE: usize = 4;
/// The most words of weights that a processor keeps for later batches.
const KEPT_WORDS: usize = 1 << 22;
/// The shared memory of a block, in words: what blocks of most resizes need, and no more than lets
/// eight of them share a multiprocessor.
const WINDOW: Range<u32> = 64..4096;
/// The side of a block of the kernel that takes units of any size.
const TILE: f64 = 32.0;
/// The parts of an upload begin at multiples of so many words.
const ALIGNED: usize = 4;

/// An image on the device: interleaved RGB, [height, width, 3].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceImage {
    /// The first byte of the image in the buffer of pixels.
    pub start: usize,
    /// The number of rows.
    pub height: u32,
    /// The number of columns.
    pub width: u32,
}

impl DeviceImage {
    fn end(self) -> usize {
        self.start.saturating_add(3 * self.height as usize * self.width as usize)
    }
}

/// The input of a model, on the device. [`DeviceProcessor::process`] makes it.
///
/// On a stream it has the form [`ModelInputsOn<S, E>`](ModelInputsOn).
#[derive(Debug, Resource)]
#[resource(unzip)]
pub struct ModelInputs<E: InputElement> {
    /// The numbers, in the shape that [`InputLayout::shape`] says. Nothing is behind them.
    pub pixel_values: DeviceBuffer<E>,
    /// The shape, and the tensors beside `pixel_values`.
    #[resource(plain)]
    pub layout: InputLayout,
}

/// Makes the input of a model from images on the device, batch after batch, equal to that of
/// [`Processor::process`] in every bit.
///
/// A batch takes one copy to the device, of the weights of each axis, and one launch. A launch has
/// less than 2^32 elements and 2^32 bytes of pixels; a larger batch takes more of them. The host
/// waits for nothing. Weights and memory are kept for later batches. So a batch of as many elements
/// as one before it allocates nothing on the device if [`recycle`](Self::recycle) got that one back.
///
/// ```
/// use thalweg::{Device, Event, stream_tags};
/// use thalweg_processor::{DeviceImage, DeviceProcessor, Processor};
///
/// stream_tags!(Process);
/// # fn main() -> thalweg_processor::Result<()> {
/// let process = Device::cpu()?.stream::<Process>()?;
/// let rgb = process.upload_blocking(&vec![128; 3 * 60 * 90])?;
/// let mut processor = DeviceProcessor::<f32>::new(Processor::qwen2_5_vl());
/// let image = DeviceImage { start: 0, height: 60, width: 90 };
/// let inputs = processor.process(&process, &rgb, &[image])?;
/// // The stream works; here the host waits. Another stream would `wait` for the event instead.
/// let inputs = inputs.synchronize()?;
/// assert_eq!(inputs.layout.shape(), [4 * 6, 1176]);
/// processor.recycle(Event::ready(inputs));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct DeviceProcessor<E: InputElement> {
    processor: Processor,
    table: Vec<E>,
    /// The weights of axes: samples, outputs.
    axes: HashMap<[u32; 2], Arc<PackedAxis>>,
    kept: usize,
    /// The device memory that only the kernels use.
    work: Option<Event<DeviceBuffer<u32>>>,
    spare: Vec<Event<DeviceBuffer<E>>>,
}

/// The weights of an axis, as kernels take them.
#[derive(Debug)]
struct PackedAxis {
    records: Vec<[u32; 4]>,
    /// The records of an output, the shift from bit 16 on, and from bit 24 on the number that the
    /// 16-bit part of a weight counts, less 1.
    form: u32,
}

impl PackedAxis {
    /// Packs the weights. An axis without any keeps its samples.
    fn new(weights: Option<&AxisCoefficients>, samples: u32) -> Self {
        let Some(weights) = weights else {
            return Self { records: (0..samples).map(|i| [1 << 14, 0, 0, i | 1 << 16]).collect(), form: 1 | 14 << 16 };
        };
        let all = || (0..weights.outputs()).flat_map(|i| weights.weights(i));
        // The weights of Pillow have 24 bits, those of torch 16.
        let low = if all().all(|w| i16::try_from(*w).is_ok()) { 0 } else { 8 };
        let groups = weights.taps().div_ceil(4).max(1);
        let mut records = Vec::with_capacity(groups * weights.outputs());
        for i in 0..weights.outputs() {
            let ([first, count], weights) = (weights.bounds(i), weights.weights(i));
            records.extend((0..groups).map(|group| {
                let weight = |k: usize| weights.get(4 * group + k).copied().unwrap_or(0);
                let half = |k: usize| {
                    let half = weight(k) >> low;
                    debug_assert!(i16::try_from(half).is_ok(), "a weight is below 2");
                    u32::from(half as u16)
                };
                let byte = |k: usize| (weight(k) & ((1 << low) - 1)) as u8;
                let pair = |k| half(k) | half(k + 1) << 16;
                [pair(0), pair(2), u32::from_le_bytes([0, 1, 2, 3].map(byte)), first | count << 16]
            }));
        }
        Self { records, form: groups as u32 | weights.shift() << 16 | ((1 << low) - 1) << 24 }
    }
}

/// Images of a batch that one launch processes.
#[derive(Debug)]
struct Part {
    plans: Range<usize>,
    /// The bytes of pixels, and the units.
    bytes: Range<usize>,
    units: Range<usize>,
    /// The words of the views.
    views: Range<usize>,
}

/// The words that a batch uploads.
#[derive(Debug, Default)]
struct Tables {
    words: Vec<u32>,
    axes: Range<usize>,
    table: Range<usize>,
    window: u32,
    /// True if strips make all units.
    strips: bool,
}

impl<E: InputElement> DeviceProcessor<E> {
    /// Makes a processor, which has no memory yet.
    #[must_use]
    pub fn new(processor: Processor) -> Self {
        let table = processor.levels().as_flattened().iter().map(|v| E::from_number(*v)).collect();
        Self { processor, table, axes: HashMap::new(), kept: 0, work: None, spare: Vec::new() }
    }

    /// Returns the processor, which has the parameters.
    #[must_use]
    pub fn processor(&self) -> &Processor {
        &self.processor
    }

    /// Enqueues the work that makes the input of a model from `images` in `rgb`. Returns at once.
    ///
    /// # Errors
    /// The batch has more than 2^31 - 1 rows, an image is not inside `rgb`, `rgb` does not reach
    /// to the next multiple of 4 bytes, there is no memory, or the device failed. An image that is
    /// refused is in [`InputLayout::errors`], and the batch has the others.
    pub fn process<S: LiveBrand>(
        &mut self,
        stream: &Stream<S>,
        rgb: &DeviceSlice<S, u8>,
        images: &[DeviceImage],
    ) -> Result<Event<ModelInputs<E>>> {
        let plans = images.iter().map(|image| self.processor.plan([image.height, image.width]));
        let layout = self.processor.layout_of(plans)?;
        let len = layout.elements();
        let fits = |event: &Event<DeviceBuffer<E>>| event.len() == len && event.device() == stream.device();
        let mut pixel_values = match self.spare.iter().position(fits) {
            Some(i) => stream.wait(self.spare.remove(i)).map_err(|r| r.error)?,
            None => stream.alloc(len)?,
        };
        self.process_into(stream, &layout, rgb, images, &mut pixel_values)?;
        Ok(stream.record(ModelInputsOn { pixel_values, layout })?)
    }

    /// Does the same as [`process`](Self::process) in memory of the caller, for a layout that
    /// [`Processor::layout`] computed from the sizes of all `images`.
    ///
    /// # Errors
    /// The errors of [`process`](Self::process). `to` has another length than
    /// [`InputLayout::elements`], or the layout is of another processor or of images of other
    /// sizes.
    pub fn process_into<S: LiveBrand>(
        &mut self,
        stream: &Stream<S>,
        layout: &InputLayout,
        rgb: &DeviceSlice<S, u8>,
        images: &[DeviceImage],
        to: &mut DeviceSlice<S, E>,
    ) -> Result<()> {
        if layout.processor().params() != self.processor.params() {
            return Err(parameter("layout", "that of another processor", "that of this one"));
        }
        if to.len() != layout.elements() {
            let (given, room) = (layout.elements() as u64, to.len() as u64);
            return Err(Error::Capacity { what: "elements", given, room });
        }
        for (i, plan) in &layout.plans {
            let image = images.get(*i).filter(|image| [image.height, image.width] == plan.size);
            let wrong = || parameter("images", format!("another image {i}"), "those of the layout");
            let end = image.ok_or_else(wrong)?.end();
            if end.checked_next_multiple_of(4).is_none_or(|end| end > rgb.len()) {
                let expected = format!("{end} for image {i}, and up to 3 more, to a multiple of 4");
                return Err(parameter("rgb", format!("{} bytes", rgb.len()), expected));
            }
        }
        if layout.is_empty() {
            return Ok(());
        }
        let parts = parts(layout, images)?;
        let (tables, views) = self.tables(layout, images, parts)?;
        let host = stream.bind(stream.device().pinned_from(&tables.words)?)?;
        let mut work = self.workspace(stream, tables.words.len())?;
        let words = tables.words.len();
        stream.copy_to_device(&host, work.slice_mut(..words)?)?;
        for part in views {
            let sources = Sources {
                rgb: rgb.slice(part.bytes)?,
                views: work.slice(part.views)?,
                axes: work.slice(tables.axes.clone())?,
                table: work.slice(tables.table.clone())?.cast::<E>().slice(..self.table.len())?,
            };
            let order = self.processor.order();
            let to = to.slice_mut(part.units.start * order.len()..part.units.end * order.len())?;
            let units = Units {
                side: order.side,
                merge: order.merge,
                copies: order.copies,
                window: tables.window,
                strips: tables.strips,
            };
            match order.channels_last {
                true => kernels::interleaved_inputs(stream, &sources, units, to)?,
                false => kernels::inputs(stream, &sources, units, to)?,
            }
        }
        self.work = Some(stream.record(work)?);
        Ok(())
    }

    /// Takes inputs back. Their device memory serves a later batch of as many elements once the
    /// event is complete.
    pub fn recycle(&mut self, inputs: Event<ModelInputs<E>>) {
        let ModelInputsEvents { pixel_values, .. } = inputs.unzip();
        self.spare.push(pixel_values);
        if self.spare.len() > SPARE {
            drop(self.spare.remove(0));
        }
    }

    /// Returns memory of at least `len` words.
    fn workspace<S: LiveBrand>(&mut self, stream: &Stream<S>, len: usize) -> Result<On<S, DeviceBuffer<u32>>> {
        match self.work.take().filter(|work| work.len() >= len && work.device() == stream.device()) {
            Some(work) => Ok(stream.wait(work).map_err(|r| r.error)?),
            None => Ok(stream.alloc(len.next_power_of_two())?),
        }
    }

    /// Makes what a batch uploads: the views of each part, the weights of each axis, and the
    /// numbers of the levels.
    fn tables(
        &mut self,
        layout: &InputLayout,
        images: &[DeviceImage],
        mut parts: Vec<Part>,
    ) -> Result<(Tables, Vec<Part>)> {
        let mut tables = Tables { window: WINDOW.start, strips: true, ..Tables::default() };
        let views: usize = layout.plans.iter().map(|(_, plan)| plan.views.len()).sum();
        let mut axes = Vec::new();
        let mut places = HashMap::new();
        tables.words.reserve(views * VIEW_WORDS as usize);
        for part in &mut parts {
            let first = tables.words.len();
            for ((i, plan), start) in
                layout.plans[part.plans.clone()].iter().zip(&layout.units.starts[part.plans.start..])
            {
                for view in &plan.views {
                    let keys = [0, 1].map(|axis| [plan.size[axis], view.resized[axis]]);
                    let mut at = [[0; 2]; 2];
                    for (at, key) in at.iter_mut().zip(keys) {
                        let axis = self.axis(key)?;
                        let place = *places.entry(key).or_insert_with(|| {
                            let place = axes.len() as u32;
                            axes.extend_from_slice(&axis.records);
                            place
                        });
                        *at = [place, axis.form];
                    }
                    let unit = start - part.units.start + view.first as usize;
                    let byte = images[*i].start - part.bytes.start;
                    let band = self.band(plan.size, *view);
                    tables.words.extend(self.record(plan, *view, [unit as u32, byte as u32], at, band));
                    tables.strips &= band.is_some();
                    tables.window = tables.window.max(self.window(plan.size, *view)).min(WINDOW.end);
                }
            }
            part.views = first..tables.words.len();
        }
        tables.axes = append(&mut tables.words, axes.into_iter().flatten());
        // As many numbers in a word as fit, the first one in its low bits.
        let word = |numbers: &[E]| numbers.iter().rev().fold(0, |word, v| word << 16 | v.bits());
        tables.table = append(&mut tables.words, self.table.chunks(4 / size_of::<E>()).map(word));
        Ok((tables, parts))
    }

    /// Returns the weights of an axis.
    fn axis(&mut self, key: [u32; 2]) -> Result<Arc<PackedAxis>> {
        if let Some(axis) = self.axes.get(&key) {
            return Ok(axis.clone());
        }
        let ([samples, outputs], params) = (key, self.processor.params());
        let weights = match samples == outputs {
            true => None,
            false => Some(AxisCoefficients::new(samples, outputs, params.filter, params.resampler)?),
        };
        let axis = Arc::new(PackedAxis::new(weights.as_ref(), samples));
        if self.kept > KEPT_WORDS {
            self.axes.clear();
            self.kept = 0;
        }
        self.kept += 4 * axis.records.len();
        self.axes.insert(key, axis.clone());
        Ok(axis)
    }

    /// Returns true if the pass down is the first one.
    fn down_first(&self, size: [u32; 2], view: View) -> bool {
        self.processor.params().resampler.vertical_first(size.into(), view.resized.into())
    }

    fn record(
        &self,
        plan: &ImagePlan,
        view: View,
        [unit, byte]: [u32; 2],
        [down, across]: [[u32; 2]; 2],
        band: Option<u32>,
    ) -> [u32; 16] {
        let [rows, columns] = self.processor.order().grid(view.canvas);
        [
            unit,
            rows * columns,
            columns,
            byte,
            plan.size[0],
            plan.size[1],
            view.resized[0],
            view.resized[1],
            view.at[0].cast_unsigned(),
            view.at[1].cast_unsigned(),
            down[0],
            down[1],
            across[0],
            across[1],
            if self.down_first(plan.size, view) { DOWN_FIRST } else { 0 },
            band.unwrap_or(0),
        ]
    }

    /// Returns the rows of the canvas that a strip makes at once, if strips can make the units.
    fn band(&self, size: [u32; 2], view: View) -> Option<u32> {
        let (order, params) = (self.processor.order(), self.processor.params());
        if order.side > 16
            || order.side % 2 == 1
            || order.merge > 2
            || order.copies > 2 && !order.channels_last
            || self.down_first(size, view)
        {
            return None;
        }
        let columns = (Units::strip(order.side) / order.merge * order.side).min(view.resized[1]);
        let scale = f64::from(size[0]) / f64::from(view.resized[0]);
        // The samples of an output, and those that rounding adds.
        let taps = 2.0 * params.filter.support() * scale.max(1.0) + 2.0;
        // An index of the window becomes a row by a division that is right up to 255 rows.
        let quads = (STRIP_WINDOW / columns).min(255);
        let fits = |rows: &u32| f64::from(rows - 1) * scale + taps <= f64::from(4 * quads);
        (1..=order.side * order.merge).rev().find(fits)
    }

    /// Returns about how many words a block needs for the levels between the passes: the outputs of
    /// the first pass times the samples of the second. Any number gives the same results.
    fn window(&self, size: [u32; 2], view: View) -> u32 {
        let params = self.processor.params();
        let axis = usize::from(self.down_first(size, view));
        let scale = f64::from(size[axis]) / f64::from(view.resized[axis]);
        let samples = TILE * scale + 2.0 * params.filter.support() * scale.max(1.0) + 2.0;
        (samples * TILE).min(f64::from(WINDOW.end)) as u32
    }
}

/// Appends words at the next multiple of [`ALIGNED`], and returns where they are.
fn append(to: &mut Vec<u32>, words: impl Iterator<Item = u32>) -> Range<usize> {
    to.resize(to.len().next_multiple_of(ALIGNED), 0);
    let start = to.len();
    to.extend(words);
    start..to.len()
}

/// Cuts a batch into parts, each of which has less than 2^32 elements and bytes of pixels.
fn parts(layout: &InputLayout, images: &[DeviceImage]) -> Result<Vec<Part>> {
    let most = u32::MAX as usize;
    let len = layout.processor().order().len();
    let mut parts: Vec<Part> = Vec::new();
    for (n, (i, _)) in layout.plans.iter().enumerate() {
        let (own, image) = (layout.units.starts[n]..layout.units.starts[n + 1], images[*i]);
        let bytes = image.start / 4 * 4..image.end().next_multiple_of(4);
        if own.len() * len > most {
            return Err(Error::Capacity { what: "elements", given: (own.len() * len) as u64, room: most as u64 });
        }
        if let Some(part) = parts.last_mut() {
            let both = part.bytes.start.min(bytes.start)..part.bytes.end.max(bytes.end);
            if (own.end - part.units.start) * len <= most && both.len() <= most {
                (part.bytes, part.units.end, part.plans.end) = (both, own.end, n + 1);
                continue;
            }
        }
        parts.push(Part { plans: n..n + 1, bytes, units: own, views: 0..0 });
    }
    Ok(parts)
}
