//! AdamW as PyTorch's, clipping, and learning rates that change with the step.

use std::ops::Range;

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, Resource, Stream};
use thalweg_kernels::train::{PARTS, SETTINGS, adamw, gradient_norm, settings};

use crate::layers::WeightsOn;
use crate::precision::Precision;

/// The options of AdamW, which is PyTorch's (`docs/training.md`, section "AdamW").
///
/// ```text
/// w = w (1 - lr wd);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
/// w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
/// ```
///
/// The options are `f64`, in which the host computes the numbers of a step. The device gets them,
/// the decay rates and `eps` as `f32`.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::WeightsOn;
/// use thalweg_train::{AdamW, AdamWStateOn};
///
/// stream_tags!(Train);
/// let s = Device::cpu()?.stream::<Train>()?;
/// let mut parameters = WeightsOn::<_, f32>::new(&s, &[1.0, 2.0])?;
/// let mut state = AdamWStateOn::new(&s, 2)?;
/// let gradient = s.upload_blocking(&[0.5, -3.0])?;
/// let options = AdamW::default().with_lr(0.1).with_weight_decay(0.0);
/// options.step(&s, 0, &gradient, &mut parameters, &mut state)?;
/// // The first step is the learning rate, against the sign of the gradient.
/// for (weight, expected) in s.read_blocking(parameters.values())?.iter().zip([0.9, 2.1]) {
///     assert!((weight - expected).abs() < 1e-6);
/// }
/// # Ok::<(), thalweg::Error>(())
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
    /// The decay rates of the two moments.
    pub betas: [f64; 2],
    /// The number that is added to the root of the second moment.
    pub eps: f64,
    /// The largest norm of the gradient. A larger gradient is scaled down to it.
    pub max_grad_norm: Option<f64>,
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

/// The state that AdamW keeps on the device: both moments, and the numbers of the step. On a stream
/// it has the form [`AdamWStateOn<S>`](AdamWStateOn).
#[derive(Debug, Resource)]
pub struct AdamWState {
    pub(crate) first: DeviceBuffer<f32>,
    pub(crate) second: DeviceBuffer<f32>,
    /// The numbers that differ from step to step.
    settings: DeviceBuffer<f32>,
    parts: DeviceBuffer<f32>,
    norm: DeviceBuffer<f32>,
}

impl<S: LiveBrand> AdamWStateOn<S> {
    /// Makes the state of `n` weights, with moments of zero.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn new(s: &Stream<S>, n: usize) -> thalweg::Result<Self> {
        Ok(Self {
            first: s.alloc_zeroed(n)?,
            second: s.alloc_zeroed(n)?,
            settings: s.alloc(SETTINGS)?,
            parts: s.alloc(PARTS)?,
            norm: s.alloc(1)?,
        })
    }
}

impl<S: Brand> AdamWStateOn<S> {
    /// Limits the norm of the gradients of this step to `most`: [`update`](Self::update) scales
    /// them. `gradient` is that of all weights.
    ///
    /// # Errors
    /// The device failed.
    pub fn clip(&mut self, s: &Stream<S>, most: f64, gradient: &DeviceSlice<S, f32>) -> thalweg::Result<()> {
        gradient_norm(s, gradient, most as f32, &mut self.parts, &mut self.norm, &mut self.settings)
    }

    /// Updates the weights of a range by their gradient. `weights` are all weights.
    ///
    /// # Errors
    /// The gradient has another length than the range, the range is not in the weights, or the
    /// device failed.
    pub fn update(
        &mut self,
        s: &Stream<S>,
        range: Range<usize>,
        gradient: &DeviceSlice<S, f32>,
        weights: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let weights = weights.slice_mut(range.clone())?;
        let (first, second) = (self.first.slice_mut(range.clone())?, self.second.slice_mut(range)?);
        adamw(s, weights.len() as u32, &self.settings, gradient, weights, first, second)
    }
}

impl AdamW {
    /// Enqueues a step: updates all weights by their gradient, and rounds them to operands. Steps
    /// are counted from 0.
    ///
    /// It is [`prepare`](Self::prepare), [`AdamWStateOn::clip`] if the norm of the gradient has a
    /// limit, [`AdamWStateOn::update`] and [`WeightsOn::round`], which are for updates in parts
    /// and for graphs.
    ///
    /// # Errors
    /// The gradient or the state is not that of as many weights, or the device failed.
    pub fn step<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        step: u64,
        gradient: &DeviceSlice<S, f32>,
        parameters: &mut WeightsOn<S, E>,
        state: &mut AdamWStateOn<S>,
    ) -> thalweg::Result<()> {
        self.prepare(s, step, state)?;
        let all = 0..parameters.values.len();
        Self::update_all(s, self.max_grad_norm, all, gradient, parameters.values_mut(), state)?;
        parameters.round(s)
    }

    /// Writes the numbers of step `step`, which counts from 0, to the device.
    /// [`AdamWStateOn::update`] reads them there, so a captured update serves all steps.
    ///
    /// # Errors
    /// The device failed.
    pub fn prepare<S: Brand>(&self, s: &Stream<S>, step: u64, state: &mut AdamWStateOn<S>) -> thalweg::Result<()> {
        let rate = self.lr * self.schedule.factor(step);
        // The corrections are those of the rates that the device multiplies by.
        let [b1, b2] = self.betas.map(|b| b as f32);
        let corrections = [b1, b2].map(|b| 1.0 - f64::from(b).powf(step as f64 + 1.0));
        let decay = 1.0 - rate * self.weight_decay;
        let (rate, root) = (rate / corrections[0], 1.0 / corrections[1].sqrt());
        settings(s, decay as f32, rate as f32, root as f32, b1, b2, self.eps as f32, &mut state.settings)
    }

    /// Updates the weights of a range by their gradient, with at most `clip` as its norm. The
    /// weights change by the last launch only.
    pub(crate) fn update_all<S: Brand>(
        s: &Stream<S>,
        clip: Option<f64>,
        range: Range<usize>,
        gradient: &DeviceSlice<S, f32>,
        weights: &mut DeviceSlice<S, f32>,
        state: &mut AdamWStateOn<S>,
    ) -> thalweg::Result<()> {
        let gradient = gradient.slice(range.clone())?;
        if let Some(most) = clip {
            state.clip(s, most, gradient)?;
        }
        state.update(s, range, gradient, weights)
    }
}

#[cfg(test)]
mod tests {
    use thalweg::{Device, stream_tags};

    use super::{AdamW, AdamWStateOn, Schedule, WeightsOn};

    /// The first step is the learning rate, against the sign of the gradient, and the decay.
    #[test]
    fn a_step_changes_every_weight() {
        stream_tags!(Train);
        let s = Device::cpu().unwrap().stream::<Train>().unwrap();
        let options = AdamW::default().with_lr(0.1).with_weight_decay(0.5);
        for clip in [None, Some(1e-3)] {
            let mut parameters = WeightsOn::<_, f32>::new(&s, &[1.0, 2.0, 4.0]).unwrap();
            let mut state = AdamWStateOn::new(&s, 3).unwrap();
            let gradient = s.upload_blocking(&[0.5, -3.0, 0.25]).unwrap();
            let options = AdamW { max_grad_norm: clip, ..options };
            options.step(&s, 0, &gradient, &mut parameters, &mut state).unwrap();
            let weights = s.read_blocking(parameters.values()).unwrap();
            for (weight, expected) in weights.iter().zip([0.85, 2.0, 3.7]) {
                assert!((weight - expected).abs() < 1e-4, "{clip:?}: {weights:?}");
            }
        }
    }

    #[test]
    fn a_schedule_warms_up_in_a_line_and_falls_as_a_cosine() {
        let schedule = Schedule::Cosine { warmup_steps: 4, steps: 12, end: 0.2 };
        let half = 0.5 * (1.0 + std::f64::consts::FRAC_PI_4.cos());
        let expected = [(0, 0.25), (3, 1.0), (4, 1.0), (6, 0.2 + 0.8 * half), (8, 0.6), (12, 0.2), (100, 0.2)];
        for (step, factor) in expected {
            assert!((schedule.factor(step) - factor).abs() < 1e-12, "{step}: {}", schedule.factor(step));
        }
        assert_eq!([0, 100].map(|step| Schedule::Constant.factor(step)), [1.0, 1.0]);
        // The fall has one step, or none.
        for (steps, expected) in [(5, [1.0, 0.2]), (4, [1.0, 0.2]), (0, [1.0, 0.2])] {
            let schedule = Schedule::Cosine { warmup_steps: 4, steps, end: 0.2 };
            assert_eq!([4, 5].map(|step| schedule.factor(step)), expected, "{steps}");
        }
    }
}
