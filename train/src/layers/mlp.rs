//! The MLP of a block.

use std::fmt;

use thalweg::{Brand, DeviceSlice};

use super::{BackwardPass, ForwardPass, Gelu, Linear};
use crate::error::Result;
use crate::layout::ParameterLayout;
use crate::precision::Precision;

/// Two linear layers with GELU between them: `y = fc2(gelu(fc1(x))) + residual`.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::{BackwardPass, BackwardScratchOn, ForwardPass, Gelu, Mlp, MlpBuffers, WeightsOn};
/// use thalweg_train::{MatmulBackend, MatmulOn, ParameterLayout};
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let mut layout = ParameterLayout::default();
/// let mlp = Mlp::new(&mut layout, "mlp", 2, 8, Gelu::Tanh)?; // rows of 2 numbers, 8 between them
/// let parameters = WeightsOn::<_, f32>::new(&s, &layout.init(7)?)?;
/// let mut matmul = MatmulOn::new(&s, MatmulBackend::default())?;
///
/// let (x, mut y) = (s.upload_blocking(&[0.5, -1.0, 2.0, 0.0])?, s.alloc(4)?); // two rows
/// let (mut hidden, mut activated) = (s.alloc(16)?, s.alloc(16)?);
/// let mut kept = MlpBuffers { hidden: &mut hidden, activated: &mut activated };
/// mlp.forward(&mut ForwardPass::new(&s, parameters.view(), &mut matmul), 2, &x, &mut kept, None, &mut y)?;
///
/// let mut scratch = BackwardScratchOn::new(&s, MatmulBackend::default(), &layout)?;
/// let mut gradient = s.alloc_zeroed::<f32>(layout.len())?;
/// let (dy, mut dhidden, mut dx) = (s.upload_blocking(&[1.0; 4])?, s.alloc(16)?, s.alloc(4)?);
/// let mut backward = BackwardPass::new(&s, parameters.view(), &mut gradient, &mut scratch);
/// mlp.backward(&mut backward, 2, &x, &kept, &dy, &mut dhidden, &mut dx)?;
/// // The gradient of the last bias is the sum of the rows of `dy`.
/// let bias = layout.slots().last().unwrap().range.clone();
/// assert_eq!(s.read_blocking(&gradient)?[bias], [2.0, 2.0]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mlp {
    fc1: Linear,
    fc2: Linear,
    gelu: Gelu,
}

/// The buffers in which an [`Mlp`] keeps what its gradient needs, both [rows, hidden].
pub struct MlpBuffers<'a, S, E> {
    /// The results of the first layer.
    pub hidden: &'a mut DeviceSlice<S, E>,
    /// GELU of them.
    pub activated: &'a mut DeviceSlice<S, E>,
}

impl<S, E> fmt::Debug for MlpBuffers<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MlpBuffers({})", self.hidden.len())
    }
}

impl Mlp {
    /// Adds the tensors of `{name}.fc1`, [hidden, width], and `{name}.fc2`, [width, hidden], to a
    /// layout.
    ///
    /// # Errors
    /// The layout would have too many elements.
    pub fn new(layout: &mut ParameterLayout, name: &str, width: usize, hidden: usize, gelu: Gelu) -> Result<Self> {
        let fc1 = Linear::new(layout, &format!("{name}.fc1"), width, hidden)?;
        Ok(Self { fc1, fc2: Linear::new(layout, &format!("{name}.fc2"), hidden, width)?, gelu })
    }

    /// Computes `y` [rows, width] from `x` [rows, width], and adds the rows `residual` if there are
    /// any.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn forward<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        kept: &mut MlpBuffers<'_, S, E>,
        residual: Option<&DeviceSlice<S, f32>>,
        y: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        self.fc1.forward(pass, rows, x, kept.hidden)?;
        self.gelu.forward(pass.stream, kept.hidden, kept.activated)?;
        self.fc2.forward_f32(pass, rows, kept.activated, residual, y)
    }

    /// Does the same as [`forward`](Self::forward) for a model that does not learn: the first
    /// product applies GELU to its sums, and only `activated` [rows, hidden] is needed.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn infer<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        activated: &mut DeviceSlice<S, E>,
        residual: Option<&DeviceSlice<S, f32>>,
        y: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        self.fc1.forward_activated(pass, rows, x, self.gelu.activation(), activated)?;
        self.fc2.forward_f32(pass, rows, activated, residual, y)
    }

    /// Computes the gradients of all weights, and that of `x` in `dx` [rows, width], from that of
    /// the result, `dy`. `dhidden` is room for [rows, hidden]. `dx` is without that of the
    /// residual.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    #[expect(clippy::too_many_arguments, reason = "each is an array of its own")]
    pub fn backward<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        kept: &MlpBuffers<'_, S, E>,
        dy: &DeviceSlice<S, E>,
        dhidden: &mut DeviceSlice<S, E>,
        dx: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        self.fc2.backward_weight(pass, rows, kept.activated, dy)?;
        self.fc2.backward_input(pass, rows, dy, dhidden)?;
        self.gelu.backward(pass.stream, kept.hidden, dhidden)?;
        self.fc1.backward_weight(pass, rows, x, dhidden)?;
        self.fc1.backward_input_f32(pass, rows, dhidden, dx)
    }
}
