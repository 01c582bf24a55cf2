//! The weights of one axis of a resize, as integers.

use crate::{Error, ResampleFilter, Resampler, Result};

/// The most samples, and the most outputs, of an axis.
const MAX_SIDE: u32 = 65535;

/// The weights of one axis.
///
/// Output `i` is `(2^(shift - 1) + sum of k[i][t] v[first + t]) >> shift`, clamped to 0 to 255,
/// over the `count` samples from `first` on.
///
/// ```
/// use thalweg_processor::{AxisCoefficients, ResampleFilter, Resampler};
///
/// let half = AxisCoefficients::new(2, 1, ResampleFilter::Box, Resampler::Pil)?;
/// assert_eq!((half.bounds(0), half.weights(0), half.shift()), ([0, 2], &[1 << 21; 2][..], 22));
/// # Ok::<(), thalweg_processor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisCoefficients {
    bounds: Vec<[u32; 2]>,
    weights: Vec<i32>,
    taps: usize,
    shift: u32,
}

impl AxisCoefficients {
    /// Computes the weights of the resize of `samples` samples to `outputs` outputs.
    ///
    /// # Errors
    /// A number is not from 1 to 65535, or torch has no such filter.
    pub fn new(samples: u32, outputs: u32, filter: ResampleFilter, resampler: Resampler) -> Result<Self> {
        for given in [samples, outputs] {
            if !(1..=MAX_SIDE).contains(&given) {
                return Err(crate::error::parameter("side", given, format!("1 to {MAX_SIDE}")));
            }
        }
        admit(filter, resampler)?;
        Ok(Self::of(Axis::new(samples, outputs, filter, resampler), outputs, resampler))
    }

    /// Computes the weights, for arguments that are in their ranges.
    fn of(axis: Axis, outputs: u32, resampler: Resampler) -> Self {
        let bounds: Vec<_> = (0..outputs).map(|i| axis.bounds(i)).collect();
        let taps = bounds.iter().map(|[_, count]| *count as usize).max().unwrap_or(0);
        let mut real = vec![0.0; taps * bounds.len()];
        for (i, weights) in (0..).zip(real.chunks_exact_mut(taps)) {
            axis.weights(i, weights);
        }
        let shift = if resampler == Resampler::Aten { shift(real.iter().copied().fold(0.0, f64::max)) } else { 22 };
        let weights = real.into_iter().map(|w| integer(w, shift)).collect();
        Self { bounds, weights, taps, shift }
    }

    /// Returns the number of outputs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.bounds.len()
    }

    /// Returns the first sample of an output and the number of its samples, which are inside.
    ///
    /// # Panics
    /// There is no such output.
    #[must_use]
    #[inline(always)]
    pub fn bounds(&self, output: usize) -> [u32; 2] {
        self.bounds[output]
    }

    /// Returns the weights of an output, in units of `2^-shift`.
    ///
    /// # Panics
    /// There is no such output.
    #[must_use]
    #[inline(always)]
    pub fn weights(&self, output: usize) -> &[i32] {
        &self.weights[output * self.taps..][..self.bounds[output][1] as usize]
    }

    /// Returns the most samples of an output.
    pub(crate) fn taps(&self) -> usize {
        self.taps
    }

    /// Returns the number of bits of a weight behind the point.
    #[must_use]
    #[inline(always)]
    pub fn shift(&self) -> u32 {
        self.shift
    }
}

/// Checks that the library has the filter.
pub(crate) fn admit(filter: ResampleFilter, resampler: Resampler) -> Result<()> {
    match (resampler, filter) {
        (Resampler::Aten, ResampleFilter::Box | ResampleFilter::Hamming) => Err(Error::Parameter {
            name: "filter",
            given: format!("{filter:?}"),
            expected: "bilinear, bicubic or Lanczos, which torch has for 8-bit images".into(),
        }),
        _ => Ok(()),
    }
}

/// Returns the most bits with which no weight of torch's resize leaves 16 bits.
fn shift(top: f64) -> u32 {
    let fits = |shift: &u32| ((0.5 + top * f64::from(1u32 << shift)) as i64) < 1 << 15;
    (1..=22).take_while(fits).last().unwrap_or(0)
}

/// Rounds a weight to an integer, ties away from zero.
fn integer(weight: f64, shift: u32) -> i32 {
    let scaled = weight * f64::from(1u32 << shift);
    (if weight < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
}

/// One axis, in doubles. The order of the operations is that of Pillow's and torch's loops.
#[derive(Clone, Copy)]
struct Axis {
    samples: u32,
    filter: ResampleFilter,
    scale: f64,
    support: f64,
    inverse: f64,
    torch: bool,
}

impl Axis {
    fn new(samples: u32, outputs: u32, filter: ResampleFilter, resampler: Resampler) -> Self {
        let scale = f64::from(samples) / f64::from(outputs);
        let stretch = scale.max(1.0);
        let (support, inverse) = (filter.support() * stretch, 1.0 / stretch);
        Self { samples, filter, scale, support, inverse, torch: resampler == Resampler::Aten }
    }

    fn center(self, i: u32) -> f64 {
        (f64::from(i) + 0.5) * self.scale
    }

    /// Returns the first sample with a weight for output `i`, and the number of them.
    fn bounds(self, i: u32) -> [u32; 2] {
        let center = self.center(i);
        // Conversions to integers are toward zero, and negative numbers become 0.
        let first = (center - self.support + 0.5) as u32;
        let end = ((center + self.support + 0.5) as u32).min(self.samples);
        [first, end - first]
    }

    /// Computes the weights of output `i`. What is behind them stays zero.
    fn weights(self, i: u32, to: &mut [f64]) {
        let [first, count] = self.bounds(i);
        let to = &mut to[..count as usize];
        for (k, weight) in (0..).zip(&mut *to) {
            *weight = self.weight(self.center(i), first, k);
        }
        let total = to.iter().fold(0.0, |sum, weight| sum + weight);
        if total != 0.0 {
            to.iter_mut().for_each(|weight| *weight /= total);
        }
    }

    fn weight(self, center: f64, first: u32, k: u32) -> f64 {
        let from_center = match self.torch {
            true => f64::from(k) + (f64::from(first) - center),
            false => f64::from(k + first) - center,
        };
        self.filter.value((from_center + 0.5) * self.inverse)
    }
}
