//! The arguments that all layers of a pass share.

use std::fmt;
use std::ops::Range;

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, On, Resource, Stream};
use thalweg_kernels::train::GROUPS;

use super::weights::WeightsRef;
use crate::layout::ParameterLayout;
use crate::matmul_backend::{Matmul, MatmulBackend, MatmulOn};

/// A forward pass: the stream, the weights, and what multiplies matrices.
pub struct ForwardPass<'a, S: Brand, E> {
    pub(crate) stream: &'a Stream<S>,
    pub(crate) weights: WeightsRef<'a, S, E>,
    pub(crate) matmul: &'a mut MatmulOn<S>,
}

impl<'a, S: Brand, E> ForwardPass<'a, S, E> {
    /// Makes a pass.
    #[must_use]
    pub fn new(stream: &'a Stream<S>, weights: WeightsRef<'a, S, E>, matmul: &'a mut MatmulOn<S>) -> Self {
        Self { stream, weights, matmul }
    }
}

impl<S: Brand, E> fmt::Debug for ForwardPass<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardPass").field("weights", &self.weights).finish_non_exhaustive()
    }
}

/// A backward pass: the stream, the weights, where their gradients go, and the memory for sums.
pub struct BackwardPass<'a, S: Brand, E> {
    pub(crate) stream: &'a Stream<S>,
    pub(crate) weights: WeightsRef<'a, S, E>,
    pub(crate) gradients: &'a mut dyn GradientSink<S>,
    pub(crate) parts: &'a mut DeviceSlice<S, f32>,
    pub(crate) matmul: &'a mut MatmulOn<S>,
    pub(crate) add: bool,
}

impl<'a, S: Brand, E> BackwardPass<'a, S, E> {
    /// Makes a pass, which stores the gradients of weights in `gradients`: in a flat buffer of the
    /// same layout as the weights, or in another sink.
    #[must_use]
    pub fn new(
        stream: &'a Stream<S>,
        weights: WeightsRef<'a, S, E>,
        gradients: &'a mut dyn GradientSink<S>,
        scratch: &'a mut BackwardScratchOn<S>,
    ) -> Self {
        Self { stream, weights, gradients, parts: &mut scratch.parts, matmul: &mut scratch.matmul, add: false }
    }

    /// Sets whether the gradients of weights are added to those that the sink has. They are not at
    /// first.
    #[must_use]
    pub fn adding(self, add: bool) -> Self {
        Self { add, ..self }
    }
}

impl<S: Brand, E> fmt::Debug for BackwardPass<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights, add, .. } = self;
        f.debug_struct("BackwardPass").field("weights", weights).field("add", add).finish_non_exhaustive()
    }
}

/// The place in which a backward pass stores the gradients of weights, by their places in the flat
/// buffer. A flat buffer is one, and so is `overlap::BucketSink`, which hands each gradient to the
/// ranks as soon as the pass is done with it.
pub trait GradientSink<S> {
    /// Returns the gradients of a place.
    ///
    /// # Errors
    /// The place is not in the buffer.
    fn at(&mut self, place: &Range<usize>) -> thalweg::Result<&mut DeviceSlice<S, f32>>;

    /// Returns the gradients of two places, of which the second lies behind the first.
    ///
    /// # Errors
    /// A place is not in the buffer.
    fn both(&mut self, first: &Range<usize>, second: &Range<usize>) -> thalweg::Result<[&mut DeviceSlice<S, f32>; 2]>;

    /// Learns that the pass has enqueued the last work on a place.
    ///
    /// # Errors
    /// The device failed.
    fn done(&mut self, place: &Range<usize>) -> thalweg::Result<()> {
        let _ = place;
        Ok(())
    }
}

impl<S: Brand> GradientSink<S> for On<S, DeviceBuffer<f32>> {
    fn at(&mut self, place: &Range<usize>) -> thalweg::Result<&mut DeviceSlice<S, f32>> {
        Ok(self.slice_mut(place.clone())?)
    }

    fn both(&mut self, first: &Range<usize>, second: &Range<usize>) -> thalweg::Result<[&mut DeviceSlice<S, f32>; 2]> {
        let (front, back) = self.split_at_mut(second.start)?;
        Ok([front.slice_mut(first.clone())?, back.slice_mut(..second.len())?])
    }
}

/// The memory that every backward pass needs, whatever its rows: for partial sums, and for
/// products. On a stream it has the form [`BackwardScratchOn<S>`](BackwardScratchOn).
#[derive(Debug, Resource)]
pub struct BackwardScratch {
    pub(crate) parts: DeviceBuffer<f32>,
    matmul: Matmul,
}

impl<S: LiveBrand> BackwardScratchOn<S> {
    /// Makes the scratch memory for backward passes over the weights of `layout`: no activations
    /// and no gradients.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn new(s: &Stream<S>, backend: MatmulBackend, layout: &ParameterLayout) -> thalweg::Result<Self> {
        // The sums are gradients of biases and norms, and of the weights of positions: vectors and
        // pairs of columns. So each is as long as a tensor's first extent.
        let widest = layout.slots().iter().filter_map(|slot| slot.shape.first()).max();
        Ok(Self { parts: s.alloc(2 * GROUPS * widest.copied().unwrap_or(0))?, matmul: MatmulOn::new(s, backend)? })
    }
}
