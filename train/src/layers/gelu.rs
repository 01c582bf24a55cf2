//! GELU.

use thalweg::{Brand, DeviceSlice, Stream};
use thalweg_kernels::linear::Activation;
use thalweg_kernels::train::{gelu, gelu_backward};

use crate::precision::Precision;

/// GELU, in one of its two forms.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::Gelu;
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let (x, mut y) = (s.upload_blocking(&[-10.0, 0.0, 10.0])?, s.alloc(3)?);
/// Gelu::Erf.forward(&s, &x, &mut y)?;
/// let y = s.read_blocking(&y)?;
/// assert!(y[0].abs() < 1e-6 && y[1] == 0.0 && y[2] == 10.0);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gelu {
    /// By the hyperbolic tangent: `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    #[default]
    Tanh,
    /// By the error function: `x / 2 (1 + erf(x / sqrt(2)))`.
    Erf,
}

impl Gelu {
    /// Returns the activation that a product applies
    /// ([`Linear::forward_activated`](super::Linear::forward_activated)).
    #[must_use]
    pub fn activation(self) -> Activation {
        match self {
            Self::Tanh => Activation::GeluTanh,
            Self::Erf => Activation::GeluErf,
        }
    }

    /// Computes `y`, GELU of each element of `x`.
    ///
    /// # Errors
    /// The lengths differ, or the device failed.
    pub fn forward<S: Brand, E: Precision>(
        self,
        s: &Stream<S>,
        x: &DeviceSlice<S, E>,
        y: &mut DeviceSlice<S, E>,
    ) -> thalweg::Result<()> {
        gelu(s, self == Self::Erf, x, y)
    }

    /// Makes the gradients `d` of the results those of `x`: multiplies them by the derivative.
    ///
    /// # Errors
    /// The lengths differ, or the device failed.
    pub fn backward<S: Brand, E: Precision>(
        self,
        s: &Stream<S>,
        x: &DeviceSlice<S, E>,
        d: &mut DeviceSlice<S, E>,
    ) -> thalweg::Result<()> {
        gelu_backward(s, self == Self::Erf, x, d)
    }
}
