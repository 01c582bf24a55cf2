//! AdamW as PyTorch's, clipping, and learning rates that change with the step.

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, Resource, Stream};
use thalweg_kernels::train::{PARTS, SETTINGS, adamw, gradient_norm, settings};

/// The options of AdamW.
///
/// ```text
/// w = w (1 - lr wd);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
/// w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, thalweg::__Setters)]
#[non_exhaustive]
pub struct AdamW {
    /// The learning rate, which the schedule multiplies.
    pub lr: f64,
    /// The schedule of the learning rate.
    pub schedule: Schedule,
    /// The weight decay, of all weights.
    pub weight_decay: f64,
    /// The decay rates of the two moments, as `f32`.
    pub betas: [f32; 2],
    /// The number that is added to the root of the second moment.
    pub eps: f32,
    /// The largest norm of the gradient. A larger gradient is scaled down to it.
    pub max_grad_norm: Option<f32>,
}

impl Default for AdamW {
    fn default() -> Self {
        let schedule = Schedule::Constant;
        Self { lr: 1e-3, schedule, weight_decay: 0.05, betas: [0.9, 0.999], eps: 1e-8, max_grad_norm: None }
    }
}

/// A schedule of the learning rate over the steps.
///
/// ```
/// use thalweg_train::Schedule;
///
/// let schedule = Schedule::Cosine { warmup_steps: 10, steps: 110, end: 0.1 };
/// assert_eq!(schedule.factor(4), 0.5); // the fifth of ten steps of warm-up
/// assert_eq!(schedule.factor(9), 1.0);
/// assert!((schedule.factor(60) - 0.55).abs() < 0.02); // half way down
/// assert_eq!(schedule.factor(1000), 0.1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// It stays the same.
    #[default]
    Constant,
    /// It rises in equal steps, then falls along half a cosine, and then stays.
    Cosine {
        /// The steps of the rise. The last of them has the whole rate.
        warmup_steps: u64,
        /// The steps until the end of the fall.
        steps: u64,
        /// The factor at the end.
        end: f64,
    },
}

impl Schedule {
    /// Returns the factor of the learning rate at a step. The first step is 0.
    #[must_use]
    pub fn factor(self, step: u64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Cosine { warmup_steps: warm_up, .. } if step < warm_up => (step as f64 + 1.0) / warm_up as f64,
            Self::Cosine { warmup_steps: warm_up, steps, end } => {
                let part = (step - warm_up) as f64 / steps.saturating_sub(warm_up).max(1) as f64;
                end + (1.0 - end) * 0.5 * (1.0 + (std::f64::consts::PI * part.min(1.0)).cos())
            }
        }
    }
}

/// The state that the optimizer keeps on the device.
#[derive(Debug, Resource)]
pub(crate) struct Moments {
    pub(crate) first: DeviceBuffer<f32>,
    pub(crate) second: DeviceBuffer<f32>,
    pub(crate) gradient: DeviceBuffer<f32>,
    /// The numbers that differ from step to step.
    pub(crate) settings: DeviceBuffer<f32>,
    parts: DeviceBuffer<f32>,
    norm: DeviceBuffer<f32>,
    /// The loss of a step over several batches.
    pub(crate) loss: DeviceBuffer<f32>,
}

impl<S: LiveBrand> MomentsOn<S> {
    /// Makes the memory for `n` weights.
    pub(crate) fn new(s: &Stream<S>, n: usize) -> thalweg::Result<Self> {
        Ok(Self {
            first: s.alloc_zeroed(n)?,
            second: s.alloc_zeroed(n)?,
            gradient: s.alloc_zeroed(n)?,
            settings: s.alloc(SETTINGS)?,
            parts: s.alloc(PARTS)?,
            norm: s.alloc(1)?,
            loss: s.alloc(1)?,
        })
    }
}

impl AdamW {
    /// Writes the numbers of step `step`, which counts from 0, to the device.
    /// [`update`](Self::update) reads them there, so a captured update serves all steps.
    pub(crate) fn prepare<S: Brand>(&self, s: &Stream<S>, step: u64, m: &mut MomentsOn<S>) -> thalweg::Result<()> {
        let rate = self.lr * self.schedule.factor(step);
        let [b1, b2] = self.betas;
        let corrections = [b1, b2].map(|b| 1.0 - f64::from(b).powf(step as f64 + 1.0));
        let decay = 1.0 - rate * self.weight_decay;
        let (rate, root) = (rate / corrections[0], 1.0 / corrections[1].sqrt());
        settings(s, decay as f32, rate as f32, root as f32, b1, b2, self.eps, &mut m.settings)
    }

    /// Updates the weights by the gradient in `m`, with at most `max_grad_norm` as its norm. The
    /// weights change by the last launch only.
    pub(crate) fn update<S: Brand>(
        s: &Stream<S>,
        clip: Option<f32>,
        weights: &mut DeviceSlice<S, f32>,
        m: &mut MomentsOn<S>,
    ) -> thalweg::Result<()> {
        if let Some(most) = clip {
            gradient_norm(s, &m.gradient, most, &mut m.parts, &mut m.norm, &mut m.settings)?;
        }
        adamw(s, weights.len() as u32, &m.settings, &m.gradient, weights, &mut m.first, &mut m.second)
    }

    /// Limits the norm of a gradient to `most`, for [`update_part`](Self::update_part).
    #[cfg(feature = "collective")]
    pub(crate) fn limit<S: Brand>(
        s: &Stream<S>,
        most: f32,
        gradient: &DeviceSlice<S, f32>,
        m: &mut MomentsOn<S>,
    ) -> thalweg::Result<()> {
        gradient_norm(s, gradient, most, &mut m.parts, &mut m.norm, &mut m.settings)
    }

    /// Updates the weights of a range by their gradient.
    #[cfg(feature = "collective")]
    pub(crate) fn update_part<S: Brand>(
        s: &Stream<S>,
        range: std::ops::Range<usize>,
        gradient: &DeviceSlice<S, f32>,
        weights: &mut DeviceSlice<S, f32>,
        m: &mut MomentsOn<S>,
    ) -> thalweg::Result<()> {
        let weights = weights.slice_mut(range.clone())?;
        let (first, second) = (m.first.slice_mut(range.clone())?, m.second.slice_mut(range)?);
        adamw(s, weights.len() as u32, &m.settings, gradient, weights, first, second)
    }
}
