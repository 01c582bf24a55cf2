//! The filters, and the libraries whose arithmetic a resize has.

use thalweg::Size;

/// A filter of a resize, with Pillow's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResampleFilter {
    /// The mean of the samples that an output covers.
    Box,
    /// A triangle.
    Bilinear,
    /// A raised cosine.
    Hamming,
    /// Cubic polynomials with a = -0.5.
    Bicubic,
    /// A windowed sinc with three lobes.
    Lanczos,
}

impl ResampleFilter {
    /// Returns the distance at which the filter becomes zero, in samples of an enlargement.
    #[must_use]
    pub fn support(self) -> f64 {
        match self {
            Self::Box => 0.5,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// Returns the value of the filter at `x`.
    pub(crate) fn value(self, x: f64) -> f64 {
        match self {
            Self::Box => f64::from(u8::from(x > -0.5 && x <= 0.5)),
            Self::Bilinear => (1.0 - x.abs()).max(0.0),
            Self::Hamming => hamming(x.abs()),
            Self::Bicubic => bicubic(x.abs()),
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn bicubic(x: f64) -> f64 {
    if x < 1.0 {
        (1.5 * x - 2.5) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    } else {
        0.0
    }
}

fn hamming(x: f64) -> f64 {
    // Pillow states these two as floats.
    let (a, b) = (f64::from(0.54f32), f64::from(0.46f32));
    let angle = x * std::f64::consts::PI;
    match x {
        0.0 => 1.0,
        x if x >= 1.0 => 0.0,
        _ => angle.sin() / angle * (a + b * angle.cos()),
    }
}

fn sinc(x: f64) -> f64 {
    let angle = x * std::f64::consts::PI;
    if x == 0.0 { 1.0 } else { angle.sin() / angle }
}

/// The library and version whose resize is computed, bit for bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Resampler {
    /// Pillow to 12.1.
    Pil,
    /// Pillow 12.2 and 12.3, which resize some images first down and then across.
    Pil12_2,
    /// Pillow 13.0, which does so with other images.
    Pil13,
    /// The resize of 8-bit images by PyTorch and torchvision on the CPU.
    #[default]
    Aten,
}

impl Resampler {
    /// Says whether an image of size `from` is first resized down and then across to
    /// become one of `to`.
    #[must_use]
    pub fn vertical_first(self, from: Size, to: Size) -> bool {
        let [[h, w], [rows, columns]] = [from, to].map(|size| size.sides().map(i64::from));
        match self {
            Self::Pil | Self::Aten => false,
            Self::Pil12_2 => h > 100 * w && rows < h,
            Self::Pil13 => h > rows && h - rows > 2 * (w - columns),
        }
    }
}

/// The library whose rounding the step from levels to numbers has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Style {
    /// The slow processors of transformers 4, and those with the backend `pil` of transformers 5.
    Slow,
    /// The fast processors of transformers 4, and the backend `torchvision` of transformers 5.
    #[default]
    Fast,
    /// torchvision's `ToTensor` and `Normalize`, which InternVL's own code has.
    ToTensor,
}
