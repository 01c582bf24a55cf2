//! `ImageProcessor`: images to the input of a vision-language model.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use thalweg::simt::{bf16, f16};
use thalweg::{Device, DeviceSlice, LiveBrand, PinnedBuffer, Size, Stream};
use thalweg_dlpack::Memory;
use thalweg_processor::{
    DeviceImage, DeviceProcessor, InputElement, InputFormat, InputLayout, Processor, ProcessorParams, ResampleFilter,
    Resampler, RgbImage, Style,
};

use crate::decode::{Image, JpegFiles};
use crate::errors::{of_device, of_processor};
use crate::place::{Cell, Job, Place, dtype_of};
use crate::tensor::{Dtype, Tensor};
use crate::wait;

/// The image processor of a model, on the host and on a device.
#[pyclass(frozen, module = "thalweg._thalweg")]
#[derive(Debug)]
pub(crate) struct ImageProcessor {
    pub(crate) processor: Processor,
    pub(crate) dtype: Dtype,
    /// Processors that no call uses. They keep memory for later batches.
    free: Mutex<Vec<AnyProcessor>>,
}

/// A processor of a device, for each type of numbers.
#[derive(Debug)]
enum AnyProcessor {
    F32(DeviceProcessor<f32>),
    F16(DeviceProcessor<f16>),
    Bf16(DeviceProcessor<bf16>),
}

fn resampler(name: &str) -> PyResult<Resampler> {
    Ok(match name {
        "aten" => Resampler::Aten,
        "pil" => Resampler::Pil,
        "pil12.2" => Resampler::Pil12_2,
        "pil13" => Resampler::Pil13,
        _ => return Err(PyValueError::new_err(format!("resampler is {name:?}, expected aten, pil, pil12.2 or pil13"))),
    })
}

fn style(name: &str) -> PyResult<Style> {
    Ok(match name {
        "fast" => Style::Fast,
        "slow" => Style::Slow,
        "to_tensor" => Style::ToTensor,
        _ => return Err(PyValueError::new_err(format!("style is {name:?}, expected fast, slow or to_tensor"))),
    })
}

/// The number that Pillow has for a filter.
fn number(filter: ResampleFilter) -> u32 {
    match filter {
        ResampleFilter::Lanczos => 1,
        ResampleFilter::Bilinear => 2,
        ResampleFilter::Bicubic => 3,
        ResampleFilter::Box => 4,
        _ => 5,
    }
}

/// Returns `pixel_values` and the tensors beside it.
pub(crate) fn beside<'py>(py: Python<'py>, layout: &InputLayout) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let put = |name: &str, numbers: Vec<i64>, shape: Vec<usize>| {
        dict.set_item(name, Py::new(py, Tensor::host(Memory::new(numbers), shape, Dtype::I64))?)
    };
    if let Some(grids) = layout.image_grid_thw() {
        put("image_grid_thw", grids.concat(), vec![grids.len(), 3])?;
    }
    if let Some(mask) = layout.pixel_attention_mask() {
        let images = layout.len();
        let shape = vec![images, mask.len() / images.max(1)];
        let mask = Tensor::host(Memory::new(mask), shape, Dtype::I32);
        dict.set_item("pixel_attention_mask", Py::new(py, mask)?)?;
    }
    if let Some(shapes) = layout.spatial_shapes() {
        put("spatial_shapes", shapes.concat(), vec![shapes.len(), 2])?;
    }
    if let Some(counts) = layout.num_patches() {
        let shape = vec![counts.len()];
        put("num_patches", counts, shape)?;
    }
    if let Some(sizes) = layout.image_sizes() {
        put("image_sizes", sizes.concat(), vec![sizes.len(), 2])?;
        // Several images for one sample are for transformers: here each is a sample.
        put("batch_num_images", vec![1; sizes.len()], vec![sizes.len()])?;
    }
    Ok(dict)
}

/// Processes images that lie in memory of the host.
pub(crate) fn on_host(processor: &Processor, images: &[RgbImage<'_>], dtype: Dtype) -> PyResult<(Memory, InputLayout)> {
    fn typed<E: InputElement + Cell>(
        processor: &Processor,
        images: &[RgbImage<'_>],
    ) -> PyResult<(Memory, InputLayout)> {
        let inputs = wait::with_threads(|| processor.process::<E>(images))?.map_err(of_processor)?;
        Ok((Memory::new(E::host(inputs.pixel_values)), inputs.layout))
    }
    match dtype {
        Dtype::F16 => typed::<f16>(processor, images),
        Dtype::Bf16 => typed::<bf16>(processor, images),
        _ => typed::<f32>(processor, images),
    }
}

/// Pixels on the device: images of these sizes in a buffer, which is a part of the job.
pub(crate) trait Pixels: Send {
    /// Lends the pixels to a stream for `work`.
    fn with<S: LiveBrand, T>(
        self,
        stream: &Stream<S>,
        work: impl FnOnce(&DeviceSlice<S, u8>) -> PyResult<T>,
    ) -> PyResult<T>;
}

/// Pixels of the host, which are copied to the device first.
pub(crate) struct Upload(pub(crate) PinnedBuffer<u8>);

impl Pixels for Upload {
    fn with<S: LiveBrand, T>(
        self,
        stream: &Stream<S>,
        work: impl FnOnce(&DeviceSlice<S, u8>) -> PyResult<T>,
    ) -> PyResult<T> {
        let copy = || {
            let host = stream.bind(self.0).map_err(|returned| returned.error)?;
            let mut rgb = stream.alloc::<u8>(host.len())?;
            stream.copy_to_device(&host, &mut rgb)?;
            Ok::<_, thalweg::Error>(rgb)
        };
        work(&copy().map_err(of_device)?)
    }
}

/// A batch for [`DeviceProcessor`].
struct Batch<'p, P> {
    processor: &'p ImageProcessor,
    layout: InputLayout,
    images: Vec<DeviceImage>,
    pixels: P,
}

macro_rules! jobs {
    ($($element:ty, $variant:ident;)*) => {$(
        impl<P: Pixels> Job<$element> for Batch<'_, P> {
            type Output = ();
            fn enqueue<S: LiveBrand>(self, stream: &Stream<S>, to: &mut DeviceSlice<S, $element>) -> PyResult<()> {
                let Self { processor: ours, layout, images, pixels } = self;
                let found = {
                    let mut free = ours.free.lock().unwrap_or_else(PoisonError::into_inner);
                    let suits = |p: &AnyProcessor| matches!(p, AnyProcessor::$variant(_));
                    free.iter().position(suits).map(|i| free.swap_remove(i))
                };
                let mut processor = match found {
                    Some(AnyProcessor::$variant(processor)) => processor,
                    _ => DeviceProcessor::new(ours.processor.clone()),
                };
                pixels.with(stream, |rgb| {
                    processor.process_into(stream, &layout, rgb, &images, to).map_err(of_processor)
                })?;
                ours.free.lock().unwrap_or_else(PoisonError::into_inner).push(AnyProcessor::$variant(processor));
                Ok(())
            }
        }
    )*};
}
jobs! {
    f32, F32;
    f16, F16;
    bf16, Bf16;
}

impl ImageProcessor {
    /// Refuses a batch with an image that the processor refuses, as transformers does.
    fn admit(layout: &InputLayout) -> PyResult<()> {
        match layout.errors().first() {
            Some(refused) => Err(PyValueError::new_err(format!("image {}: {}", refused.index, refused.error))),
            None => Ok(()),
        }
    }

    /// Enqueues a batch whose pixels are on the device, or go there.
    pub(crate) fn run(
        &self,
        py: Python<'_>,
        place: &Place,
        stream: Option<usize>,
        images: Vec<DeviceImage>,
        pixels: impl Pixels,
    ) -> PyResult<(Py<PyAny>, InputLayout)> {
        let sizes: Vec<_> = images.iter().map(|image| Size::new(image.height, image.width)).collect();
        let layout = self.layout(&sizes)?;
        Self::admit(&layout)?;
        Ok((self.run_layout(py, place, stream, &layout, images, pixels)?, layout))
    }

    /// Returns the layout of images of these sizes. It says which of them are refused.
    pub(crate) fn layout(&self, sizes: &[Size]) -> PyResult<InputLayout> {
        self.processor.layout(sizes).map_err(of_processor)
    }

    /// Enqueues a batch of this layout, which leaves out the images that are refused.
    pub(crate) fn run_layout(
        &self,
        py: Python<'_>,
        place: &Place,
        stream: Option<usize>,
        layout: &InputLayout,
        images: Vec<DeviceImage>,
        pixels: impl Pixels,
    ) -> PyResult<Py<PyAny>> {
        let (shape, batch) = (layout.shape(), Batch { processor: self, layout: layout.clone(), images, pixels });
        let (tensor, ()) = match self.dtype {
            Dtype::F16 => place.run::<f16, _>(py, stream, &shape, self.dtype, batch)?,
            Dtype::Bf16 => place.run::<bf16, _>(py, stream, &shape, self.dtype, batch)?,
            _ => place.run::<f32, _>(py, stream, &shape, self.dtype, batch)?,
        };
        Ok(tensor)
    }
}

#[pymethods]
impl ImageProcessor {
    /// Makes a processor from the text of a configuration, or from the name of a constructor.
    #[new]
    #[pyo3(signature = (config=None, named=None, size=None, resampler="aten", style="fast", dtype="float32"))]
    fn new(
        config: Option<&str>,
        named: Option<&str>,
        size: Option<u32>,
        resampler: &str,
        style: &str,
        dtype: &str,
    ) -> PyResult<Self> {
        let params = match (config, named, size) {
            (Some(text), _, _) => ProcessorParams::from_config(text).map_err(of_processor)?,
            (_, Some("qwen2_vl" | "qwen2_5_vl"), _) => ProcessorParams::qwen2_vl(),
            (_, Some("qwen3_vl"), _) => ProcessorParams::qwen3_vl(),
            (_, Some("internvl"), _) => ProcessorParams::internvl(),
            (_, Some("llava_onevision"), _) => ProcessorParams::llava_onevision(),
            (_, Some("siglip2_naflex"), size) => ProcessorParams::siglip2_naflex(size.unwrap_or(256)),
            (_, Some("clip"), size) => ProcessorParams::clip(size.unwrap_or(224)),
            (_, Some("siglip"), size) => ProcessorParams::siglip(size.unwrap_or(224)),
            (_, named, _) => return Err(PyValueError::new_err(format!("there is no image processor {named:?}"))),
        };
        let params = params.with_resampler(self::resampler(resampler)?).with_style(self::style(style)?);
        let dtype = dtype_of(dtype, &[Dtype::F32, Dtype::F16, Dtype::Bf16])?;
        Ok(Self { processor: Processor::new(params).map_err(of_processor)?, dtype, free: Mutex::default() })
    }

    /// The parameters that callers read, by the names of transformers.
    fn attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (dict, params) = (PyDict::new(py), self.processor.params());
        let set = |name: &str, numbers: &[(&str, u64)]| {
            dict.set_item(name, numbers.iter().copied().collect::<BTreeMap<_, _>>())
        };
        dict.set_item("image_mean", PyList::new(py, params.statistics[0])?)?;
        dict.set_item("image_std", PyList::new(py, params.statistics[1])?)?;
        dict.set_item("resample", number(params.filter))?;
        let names: (&str, &[&str]) = match &params.format {
            &InputFormat::Qwen { patch, merge, min_pixels, max_pixels } => {
                dict.set_item("patch_size", patch)?;
                dict.set_item("temporal_patch_size", 2)?;
                dict.set_item("merge_size", merge)?;
                dict.set_item("min_pixels", min_pixels)?;
                dict.set_item("max_pixels", max_pixels)?;
                set("size", &[("shortest_edge", min_pixels), ("longest_edge", max_pixels)])?;
                ("Qwen2VLImageProcessor", &["pixel_values", "image_grid_thw"])
            }
            &InputFormat::NaFlex { patch, max_patches, .. } => {
                dict.set_item("patch_size", patch)?;
                dict.set_item("max_num_patches", max_patches)?;
                ("Siglip2ImageProcessor", &["pixel_values", "pixel_attention_mask", "spatial_shapes"])
            }
            &InputFormat::Tiles { tile, min_tiles, max_tiles } => {
                set("size", &[("height", tile.into()), ("width", tile.into())])?;
                dict.set_item("min_patches", min_tiles)?;
                dict.set_item("max_patches", max_tiles)?;
                dict.set_item("crop_to_patches", true)?;
                ("GotOcr2ImageProcessor", &["pixel_values"])
            }
            InputFormat::AnyRes { tile, canvases } => {
                set("size", &[("height", (*tile).into()), ("width", (*tile).into())])?;
                let pairs = canvases.iter().map(|canvas| PyList::new(py, canvas.sides()));
                dict.set_item("image_grid_pinpoints", PyList::new(py, pairs.collect::<PyResult<Vec<_>>>()?)?)?;
                ("LlavaOnevisionImageProcessor", &["pixel_values", "image_sizes"])
            }
            &InputFormat::Crop { edge, crop } => {
                set("size", &[("shortest_edge", edge.into())])?;
                set("crop_size", &[("height", crop.into()), ("width", crop.into())])?;
                ("CLIPImageProcessor", &["pixel_values"])
            }
            &InputFormat::Square { size } => {
                set("size", &[("height", size.into()), ("width", size.into())])?;
                ("SiglipImageProcessor", &["pixel_values"])
            }
            _ => ("ImageProcessor", &["pixel_values"]),
        };
        dict.set_item("image_processor_type", names.0)?;
        dict.set_item("model_input_names", PyList::new(py, names.1)?)?;
        Ok(dict)
    }

    /// Returns the patches or tiles of an image of this size.
    fn patches(&self, height: u32, width: u32) -> PyResult<usize> {
        let layout = self.processor.layout(&[Size::new(height, width)]).map_err(of_processor)?;
        Self::admit(&layout)?;
        let shape = layout.shape();
        let product = |sides: [i64; 2]| (sides[0] * sides[1]) as usize;
        Ok(match (layout.spatial_shapes(), layout.image_sizes()) {
            (Some(shapes), _) => shapes.into_iter().map(product).sum(),
            (None, Some(_)) => shape[1], // tiles of the only image
            (None, None) => shape[0],
        })
    }

    /// Processes images. Each is an array of `uint8`, [height, width, 3], or `bytes` of a file.
    #[pyo3(signature = (images, place=None, stream=None))]
    fn process<'py>(
        &self,
        py: Python<'py>,
        images: Vec<Bound<'py, PyAny>>,
        place: Option<&Place>,
        stream: Option<usize>,
    ) -> PyResult<(Py<PyAny>, Bound<'py, PyDict>)> {
        let mut images = crate::decode::images(&images)?;
        if let Some(place) = place {
            images = match JpegFiles::of(images) {
                Ok(files) => {
                    let image = |&(start, Size { height, width }): &_| DeviceImage { start, height, width };
                    let list = files.places().iter().map(image).collect();
                    let (tensor, layout) = self.run(py, place, stream, list, files)?;
                    return Ok((tensor, beside(py, &layout)?));
                }
                Err(others) => others,
            };
        }
        let images = crate::decode::decode_files(py, images)?;
        let bytes = |size: Size| 3 * size.height as usize * size.width as usize;
        let Some(place) = place else {
            let mut pixels = Vec::with_capacity(images.len());
            for image in images {
                pixels.push(match image {
                    Image::Pixels(size, rgb) => (size, rgb),
                    image => {
                        let mut rgb = vec![0; bytes(image.size())];
                        image.copy_to(py, &mut rgb)?;
                        (image.size(), rgb)
                    }
                });
            }
            let views: Vec<_> =
                pixels.iter().map(|(size, rgb)| RgbImage { height: size.height, width: size.width, rgb }).collect();
            let (memory, layout) = py.detach(|| on_host(&self.processor, &views, self.dtype))?;
            Self::admit(&layout)?;
            let tensor = Tensor::host(memory, layout.shape(), self.dtype);
            return Ok((Py::new(py, tensor)?.into_any(), beside(py, &layout)?));
        };
        let (host, list) = upload(py, place.device, &images)?;
        let image = |(start, Size { height, width })| DeviceImage { start, height, width };
        let list = list.into_iter().map(image).collect();
        let (tensor, layout) = self.run(py, place, stream, list, Upload(host))?;
        Ok((tensor, beside(py, &layout)?))
    }
}

/// Copies images to page-locked memory, each from a multiple of 16 bytes on.
pub(crate) fn upload(
    py: Python<'_>,
    device: Device,
    images: &[Image],
) -> PyResult<(PinnedBuffer<u8>, Vec<(usize, Size)>)> {
    let (mut end, mut list) = (0, Vec::with_capacity(images.len()));
    let bytes = |size: Size| 3 * size.height as usize * size.width as usize;
    for image in images {
        list.push((end, image.size()));
        end = (end + bytes(image.size())).next_multiple_of(16);
    }
    let mut host = py.detach(|| thalweg::beside_captures(|| device.pinned::<u8>(end))).map_err(of_device)?;
    for (image, &(start, size)) in images.iter().zip(&list) {
        image.copy_to(py, &mut host[start..start + bytes(size)])?;
    }
    Ok((host, list))
}
