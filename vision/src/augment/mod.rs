//! Augmentation for training: random crop, resize, flip, color and blur of a batch of images, on
//! the device.
//!
//! The images of a batch may have any sizes; two launches make them one batch of `S` x `S` images
//! ([`kernels`] says how, and which steps take a third one). What happens to an image depends on
//! the seed, the epoch and the index of the image, and on nothing else: not on the batch, the rank,
//! the thread or the stream. (A mixture needs a second image, which is that of the next sample of
//! the batch.) The host computes it in f64 ([`Augmentation::parameters`]), so any program can
//! compute the same.
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
/// The order is: crop and resize, flip, brightness, contrast, saturation, gray, blur, a kernel of
/// one's own ([`launch_with`](AugmenterOn::launch_with)), vertical flip, rotation, hue, erasing,
/// mixup, normalization. Brightness multiplies the image. Contrast and saturation blend it with its
/// mean luma and with its luma.
/// Each step can be switched off. For a step with a probability or a strength, 0 does that. The
/// steps from the vertical flip to mixup are off by default: with one of them, a batch takes a
/// launch more, and memory for its images as f32.
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
    /// The probability of a flip from top to bottom. Default 0.
    pub flip_vertical: f64,
    /// The most degrees of a rotation around the center, to either side, up to 180. The angle is
    /// uniform. Default 0.
    pub rotation: f64,
    /// The most turns by which the hue is shifted, to either side, up to 0.5. The shift is uniform.
    /// Default 0.
    pub hue: f64,
    /// The rectangle that is erased. Default: none.
    pub erasing: Option<RandomErasing>,
    /// The mixture with another image of the batch. Default: none.
    pub mixup: Option<RandomMixup>,
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

/// A rectangle of random size, shape and place that gets one color.
#[derive(Clone, Debug, PartialEq, thalweg::__Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct RandomErasing {
    /// The probability that something is erased. Default 0.5.
    pub probability: f64,
    /// The share of the image's area. Default 0.02 to 0.33.
    pub area: RangeInclusive<f64>,
    /// Width by height, of the square image. Its logarithm is uniform. Default 0.3 to 3.3.
    pub ratio: RangeInclusive<f64>,
    /// The number of rectangles that are tried before nothing is erased. Default 10.
    pub attempts: u32,
    /// The color that erased pixels get, from 0 to 1. Default 0.485, 0.456, 0.406, which the
    /// default normalization makes 0.
    pub fill: [f64; 3],
}

/// A mixture of two images of a batch: each image is mixed with the sample after it, and the last
/// one with the first.
///
/// [`Parameters::mix`] is the weight of the image itself, with which a program mixes the labels,
/// too.
#[derive(Clone, Debug, PartialEq, thalweg::__Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct RandomMixup {
    /// The probability of a mixture. Default 1.
    pub probability: f64,
    /// Both parameters of the beta distribution of the weight, from 0.05 to 1; 1 is the uniform
    /// distribution. Default 0.2.
    pub alpha: f64,
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
            flip_vertical: 0.0,
            rotation: 0.0,
            hue: 0.0,
            erasing: None,
            mixup: None,
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

impl Default for RandomErasing {
    fn default() -> Self {
        let Normalization { mean, .. } = Normalization::default();
        Self { probability: 0.5, area: 0.02..=0.33, ratio: 0.3..=3.3, attempts: 10, fill: mean }
    }
}

impl Default for RandomMixup {
    fn default() -> Self {
        Self { probability: 1.0, alpha: 0.2 }
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

/// A rectangle of an augmented image, in shares of its side. A pixel is in it if its center is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Erased {
    /// The distance from the upper edge.
    pub top: f64,
    /// The distance from the left edge.
    pub left: f64,
    /// Its height.
    pub height: f64,
    /// Its width.
    pub width: f64,
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
    /// Whether it is flipped from top to bottom.
    pub flip_vertical: bool,
    /// The degrees by which it is rotated, counterclockwise.
    pub angle: f64,
    /// The turns by which its hue is shifted.
    pub hue: f64,
    /// The part of it that is erased.
    pub erased: Option<Erased>,
    /// Its weight in the mixture with the next sample of the batch, from 0 to 1. The next one's is
    /// 1 minus this.
    pub mix: f64,
}

impl Parameters {
    /// Returns the parameters that only resize an image.
    #[must_use]
    pub fn identity(width: u32, height: u32) -> Self {
        let crop = Crop { top: 0, left: 0, height, width };
        Self {
            crop,
            flip: false,
            brightness: 1.0,
            contrast: 1.0,
            saturation: 1.0,
            grayscale: false,
            sigma: 0.0,
            flip_vertical: false,
            angle: 0.0,
            hue: 0.0,
            erased: None,
            mix: 1.0,
        }
    }
}

/// The first draws of the steps from the vertical flip on: the others do not come so far.
const MORE: u32 = 1 << 31;
const ERASING: u32 = MORE + (1 << 20);
const MIX: u32 = MORE + (2 << 20);
/// The draws for the weight of a mixture.
const MIX_DRAWS: u32 = 32;
/// Half of the step between two random numbers, so that none is 0.
const HALF_STEP: f64 = 1.0 / (1 << 25) as f64;

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
        bounded("flip_vertical", self.flip_vertical, 1.0)?;
        bounded("rotation", self.rotation, 180.0)?;
        bounded("hue", self.hue, 0.5)?;
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
        if let Some(RandomErasing { probability, area, ratio, attempts, fill }) = &self.erasing {
            bounded("erasing probability", *probability, 1.0)?;
            ordered("erasing area", area, 1.0)?;
            ordered("erasing ratio", ratio, f64::from(MAX_EXTENT))?;
            if *attempts > 1 << 16 {
                return refuse("erasing attempts", attempts, format!("at most {}", 1 << 16));
            }
            for v in fill {
                bounded("erasing fill", *v, 1.0)?;
            }
        }
        if let Some(RandomMixup { probability, alpha }) = &self.mixup {
            bounded("mixup probability", *probability, 1.0)?;
            if !(0.05..=1.0).contains(alpha) {
                return refuse("mixup alpha", alpha, "a number from 0.05 to 1");
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
        let [vertical, angle, hue, _] = draw(seed, epoch, index, MORE);
        let [erases, mixes, ..] = draw(seed, epoch, index, MORE + 1);
        let both_ways = |most: f64, u: f64| most * (2.0 * u - 1.0);
        let factor = |strength: f64, u: f64| 1.0 + both_ways(strength, u);
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
            flip_vertical: vertical < self.flip_vertical,
            angle: both_ways(self.rotation, angle),
            hue: both_ways(self.hue, hue),
            erased: match &self.erasing {
                Some(erasing) if erases < erasing.probability => erasing.draw(seed, epoch, index),
                _ => None,
            },
            mix: match &self.mixup {
                Some(mixup) if mixes < mixup.probability => mixup.draw(seed, epoch, index),
                _ => 1.0,
            },
        })
    }

    /// Whether there are steps that need the kernel `finish`.
    fn finishes(&self) -> bool {
        let (erasing, mixup) = (self.erasing.as_ref(), self.mixup.as_ref());
        self.flip_vertical > 0.0
            || self.rotation > 0.0
            || self.hue > 0.0
            || erasing.is_some_and(|erasing| erasing.probability > 0.0)
            || mixup.is_some_and(|mixup| mixup.probability > 0.0)
    }
}

impl RandomErasing {
    fn draw(&self, seed: u64, epoch: u32, index: u64) -> Option<Erased> {
        let logarithms = self.ratio.start().ln()..=self.ratio.end().ln();
        (0..self.attempts).find_map(|attempt| {
            let [area, ratio, top, left] = draw(seed, epoch, index, ERASING + attempt);
            let (area, ratio) = (lerp(&self.area, area), lerp(&logarithms, ratio).exp());
            let [width, height] = [area * ratio, area / ratio].map(f64::sqrt);
            let fits = width <= 1.0 && height <= 1.0;
            fits.then_some(Erased { top: top * (1.0 - height), left: left * (1.0 - width), height, width })
        })
    }
}

impl RandomMixup {
    /// Draws a number of the beta distribution, by the method of Jöhnk (1964).
    fn draw(&self, seed: u64, epoch: u32, index: u64) -> f64 {
        let pairs = (0..MIX_DRAWS).flat_map(|k| {
            let [a, b, c, d] = draw(seed, epoch, index, MIX + k).map(|u| (u + HALF_STEP).powf(1.0 / self.alpha));
            [[a, b], [c, d]]
        });
        // A pair is refused with a probability of at most 1/2, so all of them with 2^-64.
        pairs.into_iter().find(|[x, y]| x + y <= 1.0).map_or(0.5, |[x, y]| x / (x + y))
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
