//! `Augment`: random crops, flips, colors and blurs, for training.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use thalweg::simt::bf16;
use thalweg::{DeviceSlice, Event, LiveBrand, Size, Stream};
use thalweg_vision::augment::{
    AugmentInput, Augmentation, Augmenter, Normalization, Output, RandomBlur, RandomCrop, RandomErasing, RandomMixup,
};

use crate::decode::JpegFiles;
use crate::errors::of_device;
use crate::place::{Cell, Job, Place, dtype_of};
use crate::processor::{Pixels, Upload, upload};
use crate::tensor::Dtype;

/// Random changes to a batch of images.
#[pyclass(frozen, module = "thalweg._thalweg")]
#[derive(Debug)]
pub(crate) struct Augment {
    augmentation: Augmentation,
    size: u32,
    seed: u64,
    dtype: Dtype,
    /// Memory that no call uses, with the images that it has room for.
    free: Mutex<Vec<(thalweg::Device, usize, Event<Augmenter>)>>,
}

/// A batch to augment.
struct Batch<'a, P> {
    augment: &'a Augment,
    inputs: Vec<AugmentInput>,
    pixels: P,
}

impl<T: Cell + Output, P: Pixels> Job<T> for Batch<'_, P> {
    type Output = ();

    fn enqueue<S: LiveBrand>(self, stream: &Stream<S>, to: &mut DeviceSlice<S, T>) -> PyResult<()> {
        let Self { augment, inputs, pixels } = self;
        let (device, images) = (stream.device(), inputs.len());
        let found = {
            let mut free = augment.free.lock().unwrap_or_else(PoisonError::into_inner);
            let suits = |(of, most, _): &(_, usize, _)| *of == device && *most >= images;
            free.iter().position(suits).map(|i| free.swap_remove(i))
        };
        let work = |rgb: &DeviceSlice<S, u8>| {
            let enqueue = || {
                let (most, mut augmenter) = match found {
                    Some((_, most, event)) => (most, stream.wait(event).map_err(|returned| returned.error)?),
                    None => (images, augment.augmentation.augmenter(stream, augment.size, images)?),
                };
                augmenter.prepare(stream, &inputs)?;
                augmenter.launch(stream, rgb, to)?;
                Ok((most, stream.record(augmenter).map_err(|returned| returned.error)?))
            };
            enqueue().map_err(of_device)
        };
        let (most, event) = pixels.with(stream, work)?;
        augment.free.lock().unwrap_or_else(PoisonError::into_inner).push((device, most, event));
        Ok(())
    }
}

impl Augment {
    /// Augments images whose pixels are on the device, or go there.
    pub(crate) fn run(
        &self,
        py: Python<'_>,
        place: &Place,
        stream: Option<usize>,
        places: &[(usize, Size)],
        (epoch, indices): (u32, &[u64]),
        pixels: impl Pixels,
    ) -> PyResult<Py<PyAny>> {
        let mut inputs = Vec::with_capacity(places.len());
        for (&(start, Size { height, width }), &index) in places.iter().zip(indices) {
            let parameters = self.augmentation.parameters(self.seed, epoch, index, width, height).map_err(of_device)?;
            inputs.push(AugmentInput { start, height, width, parameters });
        }
        let size = self.size as usize;
        let shape = [places.len(), 3, size, size];
        let batch = Batch { augment: self, inputs, pixels };
        let (tensor, ()) = match self.dtype {
            Dtype::Bf16 => place.run::<bf16, _>(py, stream, &shape, self.dtype, batch)?,
            _ => place.run::<f32, _>(py, stream, &shape, self.dtype, batch)?,
        };
        Ok(tensor)
    }
}

#[pymethods]
impl Augment {
    #[new]
    #[pyo3(signature = (size, *, seed, scale, ratio, crop, flip, brightness, contrast, saturation, grayscale, blur, blur_p, flip_vertical, rotation, hue, erase, erase_p, mixup, mean, std, dtype))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python class")]
    fn new(
        size: u32,
        seed: u64,
        scale: Option<(f64, f64)>,
        ratio: (f64, f64),
        crop: Option<(u32, u32)>,
        flip: f64,
        brightness: f64,
        contrast: f64,
        saturation: f64,
        grayscale: f64,
        blur: Option<(f64, f64)>,
        blur_p: f64,
        flip_vertical: f64,
        rotation: f64,
        hue: f64,
        erase: Option<(f64, f64)>,
        erase_p: f64,
        mixup: Option<f64>,
        mean: [f64; 3],
        std: [f64; 3],
        dtype: &str,
    ) -> PyResult<Self> {
        let crop = match crop {
            Some((height, width)) => Some(RandomCrop::default().with_size(Some([height, width]))),
            None => scale.map(|(lo, hi)| RandomCrop::default().with_area(lo..=hi).with_ratio(ratio.0..=ratio.1)),
        };
        let blur = blur.map(|(lo, hi)| RandomBlur::default().with_probability(blur_p).with_sigma(lo..=hi));
        let erasing = erase.map(|(lo, hi)| RandomErasing::default().with_probability(erase_p).with_area(lo..=hi));
        let augmentation = Augmentation::default()
            .with_crop(crop)
            .with_flip(flip)
            .with_brightness(brightness)
            .with_contrast(contrast)
            .with_saturation(saturation)
            .with_grayscale(grayscale)
            .with_blur(blur)
            .with_flip_vertical(flip_vertical)
            .with_rotation(rotation)
            .with_hue(hue)
            .with_erasing(erasing)
            .with_mixup(mixup.map(|alpha| RandomMixup::default().with_alpha(alpha)))
            .with_normalize(Some(Normalization::default().with_mean(mean).with_std(std)));
        augmentation.validate().map_err(of_device)?;
        let dtype = dtype_of(dtype, &[Dtype::F32, Dtype::Bf16])?;
        if !(1..=16384).contains(&size) {
            return Err(PyValueError::new_err(format!("size is {size}, expected 1 to 16384 pixels")));
        }
        Ok(Self { augmentation, size, seed, dtype, free: Mutex::default() })
    }

    /// Returns the weight of each image in its mixture with the next one of the batch.
    fn mix_weights(&self, epoch: u32, indices: Vec<u64>) -> PyResult<Vec<f64>> {
        let mixup = Augmentation::none().with_mixup(self.augmentation.mixup.clone());
        let weight = |index| Ok(mixup.parameters(self.seed, epoch, index, 1, 1).map_err(of_device)?.mix);
        indices.into_iter().map(weight).collect()
    }

    #[pyo3(signature = (images, place, epoch, indices, stream=None))]
    fn augment(
        &self,
        py: Python<'_>,
        images: Vec<Bound<'_, PyAny>>,
        place: &Place,
        epoch: u32,
        indices: Vec<u64>,
        stream: Option<usize>,
    ) -> PyResult<Py<PyAny>> {
        if images.len() != indices.len() || images.is_empty() {
            let text =
                format!("{} images and {} indices, expected as many, and one at least", images.len(), indices.len());
            return Err(PyValueError::new_err(text));
        }
        let images = match JpegFiles::of(crate::decode::images(&images)?) {
            Ok(files) if place.device.kind() == thalweg::DeviceKind::Cuda => {
                let places = files.places().to_vec();
                return self.run(py, place, stream, &places, (epoch, &indices), files);
            }
            Ok(files) => files.into_images(),
            Err(images) => images,
        };
        let images = crate::decode::decode_files(py, images)?;
        let (host, places) = upload(py, place.device, &images)?;
        self.run(py, place, stream, &places, (epoch, &indices), Upload(host))
    }
}
