//! The weights of a model on a stream.

use std::fmt;

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, Resource, Stream};

use crate::precision::Precision;

/// The memory of a model's flat weights, and of the operands that they are rounded to. On a stream
/// it has the form [`WeightsOn<S, E>`](WeightsOn).
#[derive(Debug, Resource)]
pub struct Weights<E: Precision> {
    pub(crate) values: DeviceBuffer<f32>,
    rounded: DeviceBuffer<E>,
}

impl<S: LiveBrand, E: Precision> WeightsOn<S, E> {
    /// Makes the memory, waits for the copy of the weights, which are as many as
    /// [`ParameterLayout::len`](crate::ParameterLayout::len), and rounds them to operands.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn new(s: &Stream<S>, weights: &[f32]) -> thalweg::Result<Self> {
        let mut memory = Self { values: s.upload_blocking(weights)?, rounded: s.alloc(weights.len() * E::ROOM)? };
        memory.round(s)?;
        Ok(memory)
    }
}

impl<S: Brand, E: Precision> WeightsOn<S, E> {
    /// Rounds the weights to operands. After a change of the weights it comes before their next
    /// use. With `f32` it does nothing.
    ///
    /// # Errors
    /// The device failed.
    pub fn round(&mut self, s: &Stream<S>) -> thalweg::Result<()> {
        E::rounded(s, &self.values, &mut self.rounded)?;
        Ok(())
    }

    /// Returns the weights as layers take them.
    #[must_use]
    pub fn view(&self) -> WeightsRef<'_, S, E> {
        WeightsRef { values: &self.values, operands: E::operands(&self.values, &self.rounded) }
    }

    /// Returns the flat weights.
    #[must_use]
    pub fn values(&self) -> &DeviceSlice<S, f32> {
        &self.values
    }

    /// Returns the flat weights to change them. [`round`](Self::round) comes behind a change.
    pub fn values_mut(&mut self) -> &mut DeviceSlice<S, f32> {
        &mut self.values
    }
}

/// The flat weights of a model, as `f32` and as operands of products.
pub struct WeightsRef<'a, S, E> {
    pub(crate) values: &'a DeviceSlice<S, f32>,
    pub(crate) operands: &'a DeviceSlice<S, E>,
}

impl<S, E> Clone for WeightsRef<'_, S, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S, E> Copy for WeightsRef<'_, S, E> {}

impl<S, E> fmt::Debug for WeightsRef<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightsRef({})", self.values.len())
    }
}
