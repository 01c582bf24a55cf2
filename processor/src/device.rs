//! Images on the device to the input of a model.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use thalweg::{Device, DeviceBuffer, DeviceSlice, Event, LiveBrand, On, Resource, Stream, Version};
use thalweg_kernels::processor::{
    self as kernels, DOWN_FIRST, FRAGMENT_WORDS, PATCH, QUADS, STEP, Sources, Units, VIEW_WORDS,
};

use crate::coefficients::AxisCoefficients;
use crate::error::parameter;
use crate::host::InputElement;
use crate::plan::{ImagePlan, View};
use crate::{Error, InputLayout, Processor, Resampler, Result};

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
/// The most rows or columns of an image that a warp needs for a unit.
const LONG: u32 = 8 * STEP;
/// The oldest GPU that multiplies matrices of bytes as the kernels of patches do.
const TENSOR_CORES: Version = Version { major: 8, minor: 0 };

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
/// A batch takes one copy to the device, of the weights of each axis, and two launches. A launch
/// has less than 2^32 elements and 2^32 bytes of pixels; a larger batch takes more of them. The
/// host waits for nothing. Weights and memory are kept for later batches. So a batch of as many
/// elements as one before it allocates nothing on the device if [`recycle`](Self::recycle) got that
/// one back.
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
    /// The device memory that only the kernels use: what a batch uploads, and fragments.
    work: [Option<Event<DeviceBuffer<u32>>>; 2],
    spare: Vec<Event<DeviceBuffer<E>>>,
}

/// The weights of an axis, as kernels take them.
#[derive(Debug)]
struct PackedAxis {
    records: Vec<[u32; 4]>,
    /// The records of an output, the shift from bit 16 on, and from bit 24 on the number that the
    /// 16-bit part of a weight counts, less 1.
    form: u32,
    /// The first sample of each output, and the end of its samples.
    bounds: Vec<[u32; 2]>,
}

impl PackedAxis {
    /// Packs the weights. An axis without any keeps its samples, by weights as `wide` as those of
    /// the other axis.
    fn new(weights: Option<&AxisCoefficients>, samples: u32, wide: bool) -> Self {
        let Some(weights) = weights else {
            let (one, unit) = if wide { (1 << 6, 255) } else { (1 << 14, 0) };
            return Self {
                records: (0..samples).map(|i| [one, 0, 0, i | 1 << 16]).collect(),
                form: 1 | 14 << 16 | unit << 24,
                bounds: (0..samples).map(|i| [i, i + 1]).collect(),
            };
        };
        let low = if wide { 8 } else { 0 };
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
        let form = groups as u32 | weights.shift() << 16 | ((1 << low) - 1) << 24;
        let bounds = (0..weights.outputs()).map(|i| weights.bounds(i)).map(|[first, count]| [first, first + count]);
        Self { records, form, bounds: bounds.collect() }
    }

    /// Returns the fragments of a step.
    fn planes(&self) -> u32 {
        if self.form >> 24 == 0 { 2 } else { 3 }
    }

    /// Returns the first sample and the end of the samples of each of `units` units of a side,
    /// where the resized image is `at` on the canvas.
    fn samples(&self, units: u32, side: u32, at: i32) -> impl Iterator<Item = [u32; 2]> {
        let last = self.bounds.len() as i64 - 1;
        let output = move |place: u32| self.bounds[(i64::from(place) - i64::from(at)).clamp(0, last) as usize];
        (0..units).map(move |i| [output(i * side)[0], output(i * side + side - 1)[1]])
    }

    /// Returns the most samples of a unit, whose first one is taken as a multiple of `aligned`.
    fn reach(&self, units: u32, side: u32, at: i32, aligned: u32) -> u32 {
        let reach = |[first, end]: [u32; 2]| end.saturating_sub(first / aligned * aligned);
        self.samples(units, side, at).map(reach).max().unwrap_or(0).max(1)
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
    /// The list of axes, if patches make all units, and the number of fragments of all of them.
    pieces: Range<usize>,
    fragments: u32,
    /// The quads of a block, if strips make all units.
    quads: u32,
}

impl<E: InputElement> DeviceProcessor<E> {
    /// Makes a processor, which has no memory yet.
    #[must_use]
    pub fn new(processor: Processor) -> Self {
        let table = processor.levels().as_flattened().iter().map(|v| E::from_number(*v)).collect();
        Self { processor, table, axes: HashMap::new(), kept: 0, work: [None, None], spare: Vec::new() }
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
    /// The errors of [`process`](Self::process). `to` does not begin at an address that is a multiple of four
    /// elements, where units are patches. It has another length than
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
        let (tables, views) = self.tables(layout, images, parts, self.patches(stream.device()))?;
        let host = stream.bind(stream.device().pinned_from(&tables.words)?)?;
        let mut work = self.workspace(0, stream, tables.words.len())?;
        let words = tables.words.len();
        stream.copy_to_device(&host, work.slice_mut(..words)?)?;
        let len = tables.fragments as usize * FRAGMENT_WORDS as usize;
        let mut fragments = match len {
            0 => None,
            _ => Some(self.workspace(1, stream, len)?),
        };
        if let Some(fragments) = &mut fragments {
            let (axes, pieces) = (work.slice(tables.axes.clone())?, work.slice(tables.pieces.clone())?);
            kernels::fragments(stream, axes, pieces, fragments.slice_mut(..len)?)?;
        }
        for part in views {
            let sources = Sources {
                rgb: rgb.slice(part.bytes)?,
                views: work.slice(part.views)?,
                axes: work.slice(tables.axes.clone())?,
                table: work.slice(tables.table.clone())?.cast::<E>().slice(..self.table.len())?,
                fragments: fragments.as_ref().map(|fragments| fragments.slice(..len)).transpose()?,
            };
            let order = self.processor.order();
            let to = to.slice_mut(part.units.start * order.len()..part.units.end * order.len())?;
            let units = Units {
                side: order.side,
                merge: order.merge,
                copies: order.copies,
                window: tables.window,
                quads: tables.quads,
            };
            match order.channels_last {
                true => kernels::interleaved_inputs(stream, &sources, units, to)?,
                false => kernels::inputs(stream, &sources, units, to)?,
            }
        }
        self.work[0] = Some(stream.record(work)?);
        if let Some(fragments) = fragments {
            self.work[1] = Some(stream.record(fragments)?);
        }
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
    fn workspace<S: LiveBrand>(
        &mut self,
        which: usize,
        stream: &Stream<S>,
        len: usize,
    ) -> Result<On<S, DeviceBuffer<u32>>> {
        match self.work[which].take().filter(|work| work.len() >= len && work.device() == stream.device()) {
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
        patches: bool,
    ) -> Result<(Tables, Vec<Part>)> {
        let order = self.processor.order();
        let mut tables = Tables { window: WINDOW.start, ..Tables::default() };
        let all = || layout.plans.iter().flat_map(|(_, plan)| plan.views.iter().map(|view| (plan.size, *view)));
        let views = all().count();
        let quads = if patches { self.quads(all())? } else { None };
        tables.quads = quads.unwrap_or(0);
        let patches = quads.is_some();
        // Strips begin at multiples of four samples.
        let aligned = if tables.quads > 0 { 4 } else { 1 };
        let (mut axes, mut pieces) = (Vec::new(), Vec::new());
        let (mut places, mut places_of_pieces) = (HashMap::new(), HashMap::new());
        tables.words.reserve(views * VIEW_WORDS as usize);
        for part in &mut parts {
            let first = tables.words.len();
            for ((i, plan), start) in
                layout.plans[part.plans.clone()].iter().zip(&layout.units.starts[part.plans.start..])
            {
                for view in &plan.views {
                    let keys = [0, 1].map(|axis| [plan.size[axis], view.resized[axis]]);
                    let mut at = [[0; 2]; 2];
                    let mut fragments = [[0; 2]; 2];
                    for (i, key) in keys.into_iter().enumerate() {
                        let axis = self.axis(key)?;
                        let place = *places.entry(key).or_insert_with(|| {
                            let place = axes.len() as u32;
                            axes.extend_from_slice(&axis.records);
                            place
                        });
                        at[i] = [place, axis.form];
                        if patches {
                            let units = order.grid(view.canvas)[i];
                            let make = || {
                                let (first, down) = (tables.fragments, i == 0);
                                let aligned = if down { 1 } else { aligned };
                                let reach = axis.reach(units, order.side, view.at[i], aligned);
                                let steps = reach.div_ceil(STEP);
                                let [start, form] = at[i];
                                let (place, sides) = (view.at[i].cast_unsigned(), order.side | steps << 16);
                                pieces.extend([first, start, form, key[1], place, sides, down.into(), aligned - 1]);
                                // There are fewer than 2^16 units, of at most 8 steps.
                                tables.fragments = tables.fragments.saturating_add(units * steps * axis.planes());
                                [first, reach]
                            };
                            let piece = (key, view.at[i], units, i);
                            fragments[i] = *places_of_pieces.entry(piece).or_insert_with(make);
                        }
                    }
                    let unit = start - part.units.start + view.first as usize;
                    let byte = images[*i].start - part.bytes.start;
                    tables.words.extend(self.record(plan, *view, [unit as u32, byte as u32], at, fragments));
                    tables.window = tables.window.max(self.window(plan.size, *view)).min(WINDOW.end);
                }
            }
            part.views = first..tables.words.len();
        }
        tables.axes = append(&mut tables.words, axes.into_iter().flatten());
        tables.pieces = append(&mut tables.words, pieces.into_iter());
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
        let axis = Arc::new(PackedAxis::new(weights.as_ref(), samples, params.resampler != Resampler::Aten));
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
        [[down_fragments, reach], [across_fragments, samples]]: [[u32; 2]; 2],
    ) -> [u32; VIEW_WORDS as usize] {
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
            across_fragments,
            down_fragments,
            samples.div_ceil(STEP) | reach << 16,
        ]
    }

    /// Returns the quads of a block, or 0 if strips cannot make all units. Returns nothing if
    /// patches cannot, or if each takes so long that tiles are faster.
    fn quads(&mut self, views: impl Iterator<Item = ([u32; 2], View)>) -> Result<Option<u32>> {
        let order = self.processor.order();
        let (mut known, mut quads, mut strips) = (HashSet::new(), 0, true);
        for (size, view) in views {
            if !known.insert((size, view.resized, view.canvas, view.at)) {
                continue;
            }
            let [down, across] = [0, 1].map(|i| self.axis([size[i], view.resized[i]]));
            let (down, across) = (down?, across?);
            let [rows, columns] = order.grid(view.canvas);
            let reach = across.reach(columns, order.side, view.at[1], 4);
            let tall = down.reach(rows, order.side, view.at[0], 1);
            // A block has 32 units.
            let most = if order.merge == 2 { 16 } else { 32 };
            let firsts: Vec<_> =
                across.samples(columns, order.side, view.at[1]).map(|[first, _]| first / 4 * 4).collect();
            let wide = |strip: &[u32]| strip.last().unwrap_or(&0).saturating_sub(*strip.first().unwrap_or(&0));
            let samples = firsts.windows(firsts.len().clamp(1, most)).map(wide).max().unwrap_or(0);
            quads = quads.max(Units::strip_quads(samples, tall));
            if self.down_first(size, view) || reach.max(tall) > LONG {
                return Ok(None);
            }
            strips &= reach.max(tall) <= STEP && quads <= QUADS && down.planes().max(across.planes()) == 2;
        }
        Ok(Some(if strips { quads } else { 0 }))
    }

    /// Returns true if a warp can make each unit: with fragments.
    fn patches(&self, device: Device) -> bool {
        let order = self.processor.order();
        order.side <= PATCH
            && order.side.is_multiple_of(2)
            && order.merge <= 2
            && (order.copies <= 2 || order.channels_last)
            && device.compute_capability().is_none_or(|capability| capability >= TENSOR_CORES)
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
