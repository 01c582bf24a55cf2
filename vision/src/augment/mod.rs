//! Augmentation for training: random crop, resize, flip, color and blur of a batch of images, on
//! the device.
//!
//! The images of a batch may have any sizes; two launches make them one batch of `S` x `S` images
//! ([`kernels`] says how). What happens to an image depends on the seed, the epoch and the index of
//! the image, and on nothing else: not on the batch, the rank, the thread or the stream. The host
//! computes it in f64 ([`Augmentation::parameters`]), so any program can compute the same.
//!
//! ```
//! use thalweg::{Device, stream_tags};
//! use thalweg_vision::augment::{Augmentation, AugmentInput};
//!
//! stream_tags!(Work);
//! let gpu = Device::best()?;
//! let work = gpu.stream::<Work>()?;
//!
//! // Two images, one after the other, as a loader or a decoder leaves them on the device.
//! let sizes = [[40, 70], [9, 30]]; // height, width
//! let rgb = work.upload_blocking(&vec![90u8; 3 * (40 * 70 + 9 * 30)])?;
//!
//! let augmentation = Augmentation::default();
//! let (seed, epoch) = (7, 0);
//! let mut samples = Vec::new();
//! let mut start = 0;
//! for (index, [height, width]) in (0..).zip(sizes) {
//!     let parameters = augmentation.parameters(seed, epoch, index, width, height)?;
//!     samples.push(AugmentInput { start, height, width, parameters });
//!     start += 3 * (height * width) as usize;
//! }
//! let mut augmenter = augmentation.augmenter(&work, 32, 2)?;   // 32 x 32 pixels, up to two images
//! let mut batch = work.alloc::<f32>(2 * 3 * 32 * 32)?;
//! augmenter.prepare(&work, &samples)?;
//! augmenter.launch(&work, &rgb, &mut batch)?;                  // a model goes on from here, on the device
//! assert!(work.read_blocking(&batch)?.iter().all(|v| v.is_finite()));
//! # Ok::<(), thalweg::Error>(())
//! ```

mod augmenter;
mod philox;

use std::ops::RangeInclusive;

use thalweg::{Error, Result};

pub use augmenter::{AugmentInput, Augmenter, AugmenterOn, Output};
pub use philox::philox;
/// The typed launchers of the kernels.
pub use thalweg_kernels::augment as kernels;

use crate::MAX_EXTENT;
use philox::draw;

/// The random changes to images. The default is what many training recipes use.
///
/// The order is: crop and resize, flip, brightness, contrast, saturation, gray, blur,
/// normalization. Brightness multiplies the image. Contrast and saturation blend it with its mean
/// luma and with its luma.
/// Each step can be switched off. For a step with a probability or a strength, 0 does that.
#[derive(Clone, Debug, PartialEq, thalweg::__Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct Augmentation {
    /// The random crop. `None` takes the whole image.
    pub crop: Option<RandomCrop>,
    /// The probability of a flip from left to right. Default 0.5.
    pub flip: f64,
    /// The strength of a change of brightness, from 0 to 1: the factor is uniform between
    /// 1 - strength and 1 + strength. Default 0.4.
    pub brightness: f64,
    /// The strength of a change of contrast, as for brightness. Default 0.4.
    pub contrast: f64,
    /// The strength of a change of saturation, as for brightness. Default 0.4.
    pub saturation: f64,
    /// The probability that an image becomes gray. Default 0.1.
    pub grayscale: f64,
    /// The blur. `None` blurs no image.
    pub blur: Option<RandomBlur>,
    /// The weights of red, green and blue in luma. Default 0.299, 0.587, 0.114.
    pub luma: [f64; 3],
    /// The normalization of the channels at the end. `None` leaves them from 0 to 1.
    pub normalize: Option<Normalization>,
}

/// A crop of random size, shape and place.
#[derive(Clone, Debug, PartialEq, thalweg::__Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct RandomCrop {
    /// The share of the image's area. Default 0.08 to 1.
    pub area: RangeInclusive<f64>,
    /// Width by height. Its logarithm is uniform. Default 3/4 to 4/3.
    pub ratio: RangeInclusive<f64>,
    /// The number of crops that are tried before the central one is taken. Default 10.
    pub attempts: u32,
    /// Height and width in pixels, for crops of a fixed size at a random place; a side that the
    /// image does not have is as long as the image. The other options then do not count. Default:
    /// none, so crops are of random size.
    pub size: Option<[u32; 2]>,
}

/// A Gaussian blur of random width.
#[derive(Clone, Debug, PartialEq, thalweg::__Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct RandomBlur {
    /// The probability of a blur. Default 0.5.
    pub probability: f64,
    /// The standard deviation in pixels of the result. Default 0.1 to 2.
    pub sigma: RangeInclusive<f64>,
    /// The number of taps: 1, 3, 5 or 7. Default 7.
    pub taps: u32,
}

/// The mean and the standard deviation of red, green and blue, which are from 0 to 1.
#[derive(Clone, Debug, PartialEq, thalweg::__Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct Normalization {
    /// The number that is subtracted. Default 0.485, 0.456, 0.406.
    pub mean: [f64; 3],
    /// The number that divides the difference. Default 0.229, 0.224, 0.225.
    pub std: [f64; 3],
}

impl Default for Augmentation {
    fn default() -> Self {
        Self {
            crop: Some(RandomCrop::default()),
            flip: 0.5,
            brightness: 0.4,
            contrast: 0.4,
            saturation: 0.4,
            grayscale: 0.1,
            blur: Some(RandomBlur::default()),
            luma: [0.299, 0.587, 0.114],
            normalize: Some(Normalization::default()),
        }
    }
}

impl Default for RandomCrop {
    fn default() -> Self {
        Self { area: 0.08..=1.0, ratio: 3.0 / 4.0..=4.0 / 3.0, attempts: 10, size: None }
    }
}

impl Default for RandomBlur {
    fn default() -> Self {
        Self { probability: 0.5, sigma: 0.1..=2.0, taps: 7 }
    }
}

impl Default for Normalization {
    fn default() -> Self {
        Self { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] }
    }
}

/// A rectangle of an image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crop {
    /// The first row.
    pub top: u32,
    /// The first column.
    pub left: u32,
    /// The number of rows.
    pub height: u32,
    /// The number of columns.
    pub width: u32,
}

/// The changes to one image. [`Augmentation::parameters`] draws it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// The part of the image that is resized.
    pub crop: Crop,
    /// Whether it is flipped from left to right.
    pub flip: bool,
    /// The factor of brightness.
    pub brightness: f64,
    /// The factor of contrast.
    pub contrast: f64,
    /// The factor of saturation.
    pub saturation: f64,
    /// Whether it becomes gray.
    pub grayscale: bool,
    /// The standard deviation of the blur in pixels, or 0 for no blur.
    pub sigma: f64,
}

impl Parameters {
    /// Returns the parameters that only resize an image.
    #[must_use]
    pub fn identity(width: u32, height: u32) -> Self {
        let crop = Crop { top: 0, left: 0, height, width };
        Self { crop, flip: false, brightness: 1.0, contrast: 1.0, saturation: 1.0, grayscale: false, sigma: 0.0 }
    }
}

fn refuse<T>(name: &'static str, given: impl ToString, expected: impl ToString) -> Result<T> {
    Err(Error::Parameter { name, given: given.to_string(), expected: expected.to_string() })
}

fn lerp(range: &RangeInclusive<f64>, u: f64) -> f64 {
    range.start() + (range.end() - range.start()) * u
}

impl Augmentation {
    /// Returns the augmentation that only resizes and normalizes.
    #[must_use]
    pub fn none() -> Self {
        let default = Self::default();
        Self {
            crop: None,
            flip: 0.0,
            brightness: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            grayscale: 0.0,
            blur: None,
            ..default
        }
    }

    /// Checks every option.
    ///
    /// # Errors
    /// [`Error::Parameter`] for the first option that is out of its range.
    pub fn validate(&self) -> Result<()> {
        let bounded = |name, v: f64, most: f64| match (0.0..=most).contains(&v) {
            true => Ok(()),
            false => refuse(name, v, format!("a number from 0 to {most}")),
        };
        let ordered = |name, range: &RangeInclusive<f64>, most: f64| {
            let (lo, hi) = (*range.start(), *range.end());
            match lo > 0.0 && lo <= hi && hi <= most {
                true => Ok(()),
                false => {
                    refuse(name, format!("{lo} to {hi}"), format!("two numbers in order, above 0 and up to {most}"))
                }
            }
        };
        bounded("flip", self.flip, 1.0)?;
        for (name, v) in [("brightness", self.brightness), ("contrast", self.contrast), ("saturation", self.saturation)]
        {
            bounded(name, v, 1.0)?;
        }
        bounded("grayscale", self.grayscale, 1.0)?;
        if let Some(RandomCrop { area, ratio, attempts, size }) = &self.crop {
            if size.iter().flatten().any(|side| !(1..=MAX_EXTENT).contains(side)) {
                return refuse("crop size", format!("{size:?}"), format!("1 to {MAX_EXTENT} pixels a side"));
            }
            ordered("crop area", area, 1.0)?;
            ordered("crop ratio", ratio, f64::from(MAX_EXTENT))?;
            if *attempts > 1 << 16 {
                return refuse("crop attempts", attempts, format!("at most {}", 1 << 16));
            }
        }
        if let Some(RandomBlur { probability, sigma, taps }) = &self.blur {
            bounded("blur probability", *probability, 1.0)?;
            ordered("blur sigma", sigma, 1e3)?;
            if ![1, 3, 5, 7].contains(taps) {
                return refuse("blur taps", taps, "1, 3, 5 or 7");
            }
        }
        let finite = |values: &[f64]| values.iter().all(|v| v.is_finite());
        if !(finite(&self.luma) && self.luma.iter().all(|v| *v >= 0.0)) {
            return refuse("luma", format!("{:?}", self.luma), "three numbers, none negative");
        }
        if let Some(Normalization { mean, std }) = &self.normalize
            && !(finite(mean) && finite(std) && std.iter().all(|v| *v > 0.0))
        {
            return refuse(
                "normalize",
                format!("{mean:?}, {std:?}"),
                "finite numbers, and standard deviations above 0",
            );
        }
        Ok(())
    }

    /// Draws what happens to image number `index` of a data set in an epoch.
    ///
    /// # Errors
    /// [`Error::Parameter`] if a side of the image is not within 1 to 16384, if an option is out of
    /// its range, or if the crop has no area because the ratio of its sides is too far from that of
    /// the image.
    pub fn parameters(&self, seed: u64, epoch: u32, index: u64, width: u32, height: u32) -> Result<Parameters> {
        self.validate()?;
        if [height, width].iter().any(|side| !(1..=MAX_EXTENT).contains(side)) {
            return refuse("image size", format!("{height} x {width}"), format!("1 to {MAX_EXTENT} pixels a side"));
        }
        let crop = match &self.crop {
            Some(crop) => crop.draw(seed, epoch, index, width, height),
            None => Crop { top: 0, left: 0, height, width },
        };
        if crop.height == 0 || crop.width == 0 {
            return refuse(
                "crop ratio",
                format!("a crop of no area from {height} x {width} pixels"),
                "at least one pixel",
            );
        }
        let [flip, brightness, contrast, saturation] = draw(seed, epoch, index, 0);
        let [gray, blurs, sigma, _] = draw(seed, epoch, index, 1);
        let factor = |strength: f64, u: f64| 1.0 + strength * (2.0 * u - 1.0);
        Ok(Parameters {
            crop,
            flip: flip < self.flip,
            brightness: factor(self.brightness, brightness),
            contrast: factor(self.contrast, contrast),
            saturation: factor(self.saturation, saturation),
            grayscale: gray < self.grayscale,
            sigma: match &self.blur {
                Some(blur) if blurs < blur.probability => lerp(&blur.sigma, sigma),
                _ => 0.0,
            },
        })
    }
}

impl RandomCrop {
    fn draw(&self, seed: u64, epoch: u32, index: u64, width: u32, height: u32) -> Crop {
        let (w, h) = (f64::from(width), f64::from(height));
        let place = |u: f64, all: f64, own: f64| (u * (all - own + 1.0)).floor() as u32;
        if let Some([down, across]) = self.size {
            let [_, _, top, left] = draw(seed, epoch, index, 2);
            let (down, across) = (down.min(height), across.min(width));
            let (top, left) = (place(top, h, f64::from(down)), place(left, w, f64::from(across)));
            return Crop { top, left, height: down, width: across };
        }
        let logarithms = self.ratio.start().ln()..=self.ratio.end().ln();
        for attempt in 0..self.attempts {
            let [area, ratio, top, left] = draw(seed, epoch, index, 2 + attempt);
            let (area, ratio) = (h * w * lerp(&self.area, area), lerp(&logarithms, ratio).exp());
            let [across, down] = [area * ratio, area / ratio].map(|square| (square.sqrt() + 0.5).floor());
            if across > 0.0 && across <= w && down > 0.0 && down <= h {
                let (top, left) = (place(top, h, down), place(left, w, across));
                return Crop { top, left, height: down as u32, width: across as u32 };
            }
        }
        // The largest central part whose ratio is allowed.
        let (least, most) = (*self.ratio.start(), *self.ratio.end());
        let (across, down) = if w / h < least {
            (width, height.min((w / least + 0.5).floor() as u32))
        } else if w / h > most {
            (width.min((h * most + 0.5).floor() as u32), height)
        } else {
            (width, height)
        };
        Crop { top: (height - down) / 2, left: (width - across) / 2, height: down, width: across }
    }
}
