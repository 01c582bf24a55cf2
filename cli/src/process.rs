//! The subcommand `thalweg process`.
//!
//! A photograph is processed as soon as it is decoded, and its numbers come to the host. If `--out`
//! is a folder, they are written at once. A batch is the numbers of its photographs one after
//! another, so it is put together at the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rayon::prelude::*;
use serde_json::json;
use thalweg::simt::{bf16, f16};
use thalweg::{Device, DeviceKind, Event, Size, Stream, stream_tags};
use thalweg_loader::PhotoOptions;
use thalweg_processor::grids::WindowIndex;
use thalweg_processor::{
    DeviceImage, DeviceProcessor, InputElement, InputFormat, InputLayout, Processor, ProcessorParams, RgbImage,
};
use thalweg_vision::Image;

use crate::args::{DecodeArg, Model, PIXEL_LIMIT, Precision, ProcessArgs};
use crate::inputs;
use crate::output::Data::{F32, Half, I32, I64};
use crate::output::{self, Data, Tensor, say};
use crate::photos::{Photos, Pixels};
use crate::report::{self, Failure};

stream_tags!(Work);

/// The pixels a side of the windows of Qwen2.5-VL.
const WINDOW: u32 = 112;

/// Runs the subcommand.
pub(crate) fn run(args: &ProcessArgs) -> Result<ExitCode, String> {
    let processor = Processor::new(params(args)?).map_err(|e| e.to_string())?;
    match args.precision {
        Precision::F32 => Run::<f32>::of(args, processor),
        Precision::F16 => Run::<f16>::of(args, processor),
        Precision::Bf16 => Run::<bf16>::of(args, processor),
    }
}

/// Returns the parameters: those of the model or of its file, and then those of the options.
fn params(args: &ProcessArgs) -> Result<ProcessorParams, String> {
    let params = match (&args.config, args.model) {
        (Some(path), _) => {
            let wrong = |what: String| format!("--config {}: {what}", path.display());
            let text = fs::read_to_string(path).map_err(|e| wrong(format!("cannot read it: {e}")))?;
            ProcessorParams::from_config(&text).map_err(|e| wrong(e.to_string()))?
        }
        (None, Some(Model::Qwen2Vl | Model::Qwen25Vl)) => ProcessorParams::qwen2_vl(),
        (None, Some(Model::Qwen3Vl)) => ProcessorParams::qwen3_vl(),
        (None, Some(Model::Siglip2Naflex)) => ProcessorParams::siglip2_naflex(256),
        (None, Some(Model::InternVl)) => ProcessorParams::internvl(),
        (None, Some(Model::LlavaOnevision)) => ProcessorParams::llava_onevision(),
        (None, Some(Model::Clip)) => ProcessorParams::clip(224),
        (None, Some(Model::Siglip)) => ProcessorParams::siglip(384),
        (None, None) => return Err("expected --model or --config".into()), // clap has asked for one
    };
    let format = format(args, params.format.clone())?;
    let statistics = args.mean.unwrap_or(params.statistics);
    Ok(params.with_format(format).with_resampler(args.resampler).with_style(args.style).with_statistics(statistics))
}

/// Changes the numbers that the options name. An option that the format does not have is an error.
fn format(args: &ProcessArgs, mut format: InputFormat) -> Result<InputFormat, String> {
    let small = |value: Option<u32>| value.map(u64::from);
    let options = [
        ("--patch", small(args.patch)),
        ("--merge", small(args.merge)),
        ("--min-pixels", args.min_pixels),
        ("--max-pixels", args.max_pixels),
        ("--max-patches", small(args.max_patches)),
        ("--tile", small(args.tile)),
        ("--min-tiles", small(args.min_tiles)),
        ("--max-tiles", small(args.max_tiles)),
        ("--size", small(args.size)),
        ("--crop", small(args.crop)),
    ];
    for (name, value) in options.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        let number = u32::try_from(value).unwrap_or(u32::MAX);
        match (&mut format, name) {
            (InputFormat::Qwen { patch, .. } | InputFormat::NaFlex { patch, .. }, "--patch") => *patch = number,
            (InputFormat::Qwen { merge, .. }, "--merge") => *merge = number,
            (InputFormat::Qwen { min_pixels, .. }, "--min-pixels") => *min_pixels = value,
            (InputFormat::Qwen { max_pixels, .. }, "--max-pixels") => *max_pixels = value,
            (InputFormat::NaFlex { max_patches, .. }, "--max-patches") => *max_patches = number,
            (InputFormat::Tiles { tile, .. }, "--tile") => *tile = number,
            (InputFormat::Tiles { min_tiles, .. }, "--min-tiles") => *min_tiles = number,
            (InputFormat::Tiles { max_tiles, .. }, "--max-tiles") => *max_tiles = number,
            (InputFormat::Square { size }, "--size") => *size = number,
            // CLIP's files cut out as much as they resize to, unless --crop says otherwise.
            (InputFormat::Crop { edge, crop }, "--size") => (*edge, *crop) = (number, number),
            (InputFormat::Crop { crop, .. }, "--crop") => *crop = number,
            _ => return Err(format!("{name}: this model has no such number")),
        }
    }
    Ok(format)
}

/// The numbers of an element, as a file has them.
trait Stored: InputElement {
    fn data(precision: Precision, values: &[Self]) -> Data<'_>;
}

impl Stored for f32 {
    fn data(_: Precision, values: &[Self]) -> Data<'_> {
        F32(values)
    }
}

macro_rules! halves {
    ($($t:ty)*) => {$(
        impl Stored for $t {
            fn data(precision: Precision, values: &[Self]) -> Data<'_> {
                Half(precision.dtype(), bytemuck::cast_slice(values))
            }
        }
    )*};
}
halves!(f16 bf16);

/// A photograph that is done.
struct Done<E> {
    index: usize,
    size: Size,
    /// Empty once they are written.
    pixel_values: Vec<E>,
}

/// Processes a photograph on the host.
fn on_host<E: InputElement>(processor: &Processor, image: &Image) -> thalweg_processor::Result<Vec<E>> {
    let Size { height, width } = image.size();
    let inputs = processor.process(&[RgbImage { height, width, rgb: image.rgb() }])?;
    match inputs.layout.errors().first() {
        Some(refused) => Err(refused.error.clone()),
        None => Ok(inputs.pixel_values),
    }
}

struct Run<'a, E: Stored> {
    args: &'a ProcessArgs,
    device: Device,
    stream: Stream<Work>,
    /// The reason why the device is the CPU, if nobody asked for that.
    note: Option<String>,
    processor: DeviceProcessor<E>,
    done: Vec<Done<E>>,
    failures: Vec<Failure>,
    written: Vec<PathBuf>,
}

impl<'a, E: Stored> Run<'a, E> {
    fn of(args: &'a ProcessArgs, processor: Processor) -> Result<ExitCode, String> {
        let single = args.out.extension().is_some_and(|ending| ending == "safetensors");
        let (device, note) = args.device.open()?;
        if let Some(note) = &note {
            say(format_args!("thalweg: {note}"));
        }
        output::finish_writing_on_interrupt()?;
        if single {
            output::can_write(&args.out)?;
        } else {
            let wrong = |e| format!("--out {}: cannot make this folder: {e}", args.out.display());
            fs::create_dir_all(&args.out).map_err(wrong)?;
        }
        let stream = device.stream::<Work>().map_err(|e| e.to_string())?;
        let processor = DeviceProcessor::new(processor);
        let (done, failures, written) = (Vec::new(), Vec::new(), Vec::new());
        let mut run = Self { args, device, stream, note, processor, done, failures, written };
        run.read(single)?;
        if single {
            run.write_batch()?;
        }
        run.report()
    }

    /// Decodes and processes all photographs, and writes each unless they are for a `single` file.
    fn read(&mut self, single: bool) -> Result<(), String> {
        let photo = PhotoOptions::default()
            .with_orientation(self.args.orient)
            .with_alpha(self.args.alpha)
            .with_depth(self.args.depth);
        let decode = DecodeArg { place: self.args.decode, max_pixels: PIXEL_LIMIT, photo };
        let mut photos = Photos::open(self.device, &self.args.images, &decode)?;
        let bar = output::bar(self.args.images.len(), output::IMAGES, false);
        while let Some(chunk) = photos.next_chunk(3)? {
            bar.inc(chunk.failures.len() as u64);
            chunk.failures.into_iter().for_each(|(index, error)| self.fail(index, error));
            let sizes = chunk.pixels.sizes();
            let made: Vec<_> = match chunk.pixels {
                // The kernels give the same bits, but on the CPU device they take several times as
                // long.
                Pixels::Host(images) if self.device.kind() == DeviceKind::Cpu => {
                    let processor = self.processor.processor();
                    images.par_iter().map(|image| on_host(processor, image)).collect()
                }
                Pixels::Host(images) => images
                    .iter()
                    .map(|image| {
                        let rgb = self.upload(image.rgb())?;
                        self.process(image.size(), rgb)
                    })
                    .collect(),
                Pixels::Device(images) => images.into_iter().map(|(size, rgb)| self.process(size, rgb)).collect(),
            };
            for ((index, size), made) in chunk.inputs.into_iter().zip(sizes).zip(made) {
                match made {
                    Ok(pixel_values) if single => self.done.push(Done { index, size, pixel_values }),
                    Ok(pixel_values) => self.write_alone(Done { index, size, pixel_values })?,
                    Err(error) => self.fail(index, error.to_string()),
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        self.done.sort_by_key(|done| done.index);
        self.failures.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(())
    }

    fn fail(&mut self, index: usize, error: String) {
        self.failures.push(Failure { path: self.name(index), error });
    }

    fn name(&self, index: usize) -> PathBuf {
        inputs::name(&self.args.images[index]).to_owned()
    }

    /// Uploads pixels, up to the next multiple of 4 bytes.
    fn upload(&self, rgb: &[u8]) -> thalweg_processor::Result<Event<thalweg::DeviceBuffer<u8>>> {
        let mut rgb = rgb.to_vec();
        rgb.resize(rgb.len().next_multiple_of(4), 0);
        Ok(self.stream.record(self.stream.upload_blocking(&rgb)?)?)
    }

    fn process(
        &mut self,
        Size { height, width }: Size,
        rgb: Event<thalweg::DeviceBuffer<u8>>,
    ) -> thalweg_processor::Result<Vec<E>> {
        let rgb = self.stream.wait(rgb).map_err(|returned| returned.error)?;
        let image = DeviceImage { start: 0, height, width };
        let inputs = self.processor.process(&self.stream, &rgb, &[image])?;
        let inputs = self.stream.wait(inputs).map_err(|returned| returned.error)?;
        if let Some(refused) = inputs.layout.errors().first() {
            return Err(refused.error.clone());
        }
        let pixel_values = self.stream.read_blocking(&inputs.pixel_values)?;
        self.processor.recycle(self.stream.record(inputs)?);
        Ok(pixel_values)
    }

    /// Writes all photographs as one batch.
    fn write_batch(&mut self) -> Result<(), String> {
        if self.done.is_empty() {
            return Ok(());
        }
        let sizes: Vec<_> = self.done.iter().map(|done| done.size).collect();
        let layout = self.processor.processor().layout(&sizes).map_err(|e| e.to_string())?;
        // Each image of LLaVA-OneVision has room for the most tiles of one.
        let room = if layout.image_sizes().is_some() { layout.elements() / layout.len() } else { 0 };
        let mut pixel_values = Vec::with_capacity(layout.elements());
        for done in &mut self.done {
            let end = pixel_values.len() + done.pixel_values.len().max(room);
            pixel_values.extend_from_slice(&std::mem::take(&mut done.pixel_values));
            pixel_values.resize(end, E::default());
        }
        let indices: Vec<_> = self.done.iter().map(|done| done.index).collect();
        self.write(&self.args.out, &layout, &pixel_values, &indices)?;
        self.written.push(self.args.out.clone());
        Ok(())
    }

    /// Writes the file of a photograph.
    fn write_alone(&mut self, Done { index, size, pixel_values }: Done<E>) -> Result<(), String> {
        let name = self.name(index);
        let mut stem = name.file_stem().unwrap_or(name.as_os_str()).to_owned();
        stem.push(".safetensors");
        let path = self.args.out.join(stem);
        if self.written.contains(&path) {
            let error = format!("another photograph has the same stem and was written to {}", path.display());
            self.fail(index, error);
            return Ok(());
        }
        let layout = self.processor.processor().layout(&[size]).map_err(|e| e.to_string())?;
        self.write(&path, &layout, &pixel_values, &[index])?;
        self.written.push(path);
        self.done.push(Done { index, size, pixel_values: Vec::new() });
        Ok(())
    }

    fn write(&self, path: &Path, layout: &InputLayout, pixel_values: &[E], indices: &[usize]) -> Result<(), String> {
        let n = layout.len();
        let flat = |rows: Vec<[i64; 2]>| rows.into_flattened();
        let grid = layout.image_grid_thw().map(|grid| grid.into_flattened());
        let (ends, ids) = (layout.cu_seqlens(), layout.vision_position_ids().map(flat));
        let windows = layout.window_index(WINDOW);
        let (mask, shapes) = (layout.pixel_attention_mask(), layout.spatial_shapes().map(flat));
        let (tiles, sizes) = (layout.num_patches(), layout.image_sizes().map(flat));
        let mut tensors: Vec<Tensor<'_>> =
            vec![("pixel_values", E::data(self.args.precision, pixel_values), layout.shape())];
        let longs = [
            ("image_grid_thw", &grid, 3),
            ("vision_position_ids", &ids, 2),
            ("spatial_shapes", &shapes, 2),
            ("num_patches", &tiles, 0), // one number an image
            ("image_sizes", &sizes, 2),
        ];
        for (name, values, columns) in longs {
            let Some(values) = values else { continue };
            let shape = match values.len().checked_div(columns) {
                Some(rows) => vec![rows, columns],
                None => vec![values.len()],
            };
            tensors.push((name, I64(values), shape));
        }
        if let Some(ends) = &ends {
            tensors.push(("cu_seqlens", I32(ends), vec![ends.len()]));
        }
        if let Some(mask) = &mask {
            tensors.push(("pixel_attention_mask", I32(mask), vec![n, mask.len() / n]));
        }
        if let Some(WindowIndex { order, cu_seqlens }) = &windows {
            tensors.push(("window_index", I64(order), vec![order.len()]));
            tensors.push(("cu_window_seqlens", I32(cu_seqlens), vec![cu_seqlens.len()]));
        }
        let sources: Vec<_> = indices.iter().map(|index| self.name(*index).display().to_string()).collect();
        let params = self.processor.processor().params();
        let about = [
            ("format", "thalweg-process".to_owned()),
            ("thalweg", env!("CARGO_PKG_VERSION").to_owned()),
            ("device", format!("{} ({})", self.device, self.device.name())),
            ("parameters", format!("{params:?}")),
            ("sources", json!(sources).to_string()),
        ];
        let metadata: BTreeMap<_, _> = about.map(|(key, value)| (key.to_owned(), value)).into();
        output::write((path, &tensors, &metadata), None)
    }

    /// Prints what was done, and what failed.
    fn report(&self) -> Result<ExitCode, String> {
        if self.args.json {
            let grid = |done: &Done<E>| self.processor.processor().patch_grid(done.size).ok().map(Size::sides);
            let image = |done: &Done<E>| {
                let path = self.name(done.index).display().to_string();
                json!({"source": path, "height": done.size.height, "width": done.size.width, "grid": grid(done)})
            };
            let report = json!({
                "device": report::device(self.device, self.note.as_deref()),
                "outputs": self.written.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
                "images": self.done.iter().map(image).collect::<Vec<_>>(),
                "failed": self.failures.iter().map(|f| report::failure(&f.path, &f.error)).collect::<Vec<_>>(),
            });
            output::print(&format!("{report:#}\n"))?;
        } else {
            self.written.iter().try_for_each(|path| output::print(&format!("{}\n", path.display())))?;
        }
        Ok(report::say_failures(&self.failures, self.done.len() + self.failures.len(), "image"))
    }
}
