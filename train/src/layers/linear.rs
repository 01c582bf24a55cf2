//! Linear layers.

use std::ops::Range;

use thalweg::{Brand, DeviceSlice};
use thalweg_kernels::linear::{Activation, Epilogue, Matrix, MatrixMut};
use thalweg_kernels::train::sum_rows;

use super::{BackwardPass, ForwardPass, WeightsRef};
use crate::error::Result;
use crate::layout::ParameterLayout;
use crate::precision::Precision;

/// A linear layer `y = x W^T + b`, with W [outputs, inputs] and b \[outputs\].
///
/// The result is an operand, of type `E`, or `f32`. With `f32` as `E` both are the same. Gradients
/// of rows have the type of the rows.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::{ForwardPass, Linear, WeightsOn};
/// use thalweg_train::{MatmulBackend, MatmulOn, ParameterLayout};
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let mut layout = ParameterLayout::default();
/// let layer = Linear::new(&mut layout, "layer", 2, 1)?;
/// let mut weights = vec![0.0; layout.len()];
/// for (slot, numbers) in layout.slots().iter().zip([&[1.0, 10.0][..], &[0.5]]) {
///     weights[slot.range.clone()].copy_from_slice(numbers);
/// }
/// let parameters = WeightsOn::<_, f32>::new(&s, &weights)?;
/// let mut matmul = MatmulOn::new(&s, MatmulBackend::default())?;
///
/// let (x, mut y) = (s.upload_blocking(&[1.0, 2.0, 3.0, 4.0])?, s.alloc(2)?); // two rows
/// layer.forward(&mut ForwardPass::new(&s, parameters.view(), &mut matmul), 2, &x, &mut y)?;
/// assert_eq!(s.read_blocking(&y)?, [21.5, 43.5]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Range<usize>,
    bias: Range<usize>,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// Adds the tensors `{name}.weight` and `{name}.bias` to a layout.
    ///
    /// # Errors
    /// The layout would have too many elements.
    pub fn new(layout: &mut ParameterLayout, name: &str, inputs: usize, outputs: usize) -> Result<Self> {
        Self::with_shape(layout, name, &[outputs, inputs])
    }

    /// Adds the tensors, of which the weight has a shape of more extents: [outputs, inputs ...].
    pub(crate) fn with_shape(layout: &mut ParameterLayout, name: &str, shape: &[usize]) -> Result<Self> {
        let (outputs, inputs) = (shape[0], shape[1..].iter().product());
        let weight = layout.add(format!("{name}.weight"), shape)?;
        Ok(Self { weight, bias: layout.add(format!("{name}.bias"), &[outputs])?, inputs, outputs })
    }

    /// Returns the number of inputs.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the number of outputs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    fn weight<'a, S, E>(&self, w: WeightsRef<'a, S, E>) -> thalweg::Result<Matrix<'a, S, E>> {
        Ok(Matrix::new(w.operands.slice(self.weight.clone())?, self.outputs, self.inputs))
    }

    /// Computes `y = x W^T + b`, with `x` [rows, inputs] and `y` [rows, outputs].
    ///
    /// # Errors
    /// A buffer is too short, or the device failed.
    pub fn forward<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        y: &mut DeviceSlice<S, E>,
    ) -> thalweg::Result<()> {
        self.forward_activated(pass, rows, x, Activation::None, y)
    }

    /// Computes `y = f(x W^T + b)`. The product applies the activation `f` to its sums before it
    /// rounds them, so this is for models that do not learn.
    ///
    /// # Errors
    /// A buffer is too short, or the device failed.
    pub fn forward_activated<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        activation: Activation,
        y: &mut DeviceSlice<S, E>,
    ) -> thalweg::Result<()> {
        let &mut ForwardPass { stream: s, weights: w, ref mut matmul } = pass;
        let bias = Some(w.operands.slice(self.bias.clone())?);
        let epilogue = Epilogue { bias, activation, ..Default::default() };
        let x = Matrix::new(x, rows, self.inputs);
        matmul.matmul(s, x, self.weight(w)?.transposed(), &epilogue, MatrixMut::new(y, rows, self.outputs))
    }

    /// Computes `y = x W^T + b` in `f32`, and adds the rows `residual` [rows, outputs] if there are
    /// any.
    ///
    /// # Errors
    /// A buffer is too short, or the device failed.
    pub fn forward_f32<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        residual: Option<&DeviceSlice<S, f32>>,
        y: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let &mut ForwardPass { stream: s, weights: w, ref mut matmul } = pass;
        let epilogue = Epilogue {
            bias: Some(w.values.slice(self.bias.clone())?),
            residual: residual.map(|r| Matrix::new(r, rows, self.outputs)),
            ..Default::default()
        };
        let x = Matrix::new(x, rows, self.inputs);
        E::wide(s, matmul, x, self.weight(w)?.transposed(), &epilogue, MatrixMut::new(y, rows, self.outputs))
    }

    /// Computes the gradients of W and b from that of the result, `dy` [rows, outputs], and the
    /// rows `x` of the forward pass.
    ///
    /// # Errors
    /// A buffer is too short, or the device failed.
    pub fn backward_weight<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        dy: &DeviceSlice<S, E>,
    ) -> thalweg::Result<()> {
        let BackwardPass { stream: s, gradients, parts, matmul, add, .. } = pass;
        let dw = MatrixMut::new(gradients.at(&self.weight)?, self.outputs, self.inputs);
        let epilogue = Epilogue { accumulate: *add, ..Default::default() };
        let (dy_t, x) = (Matrix::new(dy, rows, self.outputs).transposed(), Matrix::new(x, rows, self.inputs));
        E::wide(s, matmul, dy_t, x, &epilogue, dw)?;
        sum_rows(*s, [rows as u32, self.outputs as u32], *add, dy, parts, gradients.at(&self.bias)?)?;
        gradients.done(&self.bias)?;
        gradients.done(&self.weight)
    }

    /// Computes the gradient `dx` [rows, inputs] of the rows from that of the result, `dy`.
    ///
    /// # Errors
    /// A buffer is too short, or the device failed.
    pub fn backward_input<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        rows: usize,
        dy: &DeviceSlice<S, E>,
        dx: &mut DeviceSlice<S, E>,
    ) -> thalweg::Result<()> {
        let (dy, dx) = (Matrix::new(dy, rows, self.outputs), MatrixMut::new(dx, rows, self.inputs));
        pass.matmul.matmul(pass.stream, dy, self.weight(pass.weights)?, &Epilogue::default(), dx)
    }

    /// Computes the gradient `dx` [rows, inputs] of the rows in `f32`.
    ///
    /// # Errors
    /// A buffer is too short, or the device failed.
    pub fn backward_input_f32<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        rows: usize,
        dy: &DeviceSlice<S, E>,
        dx: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let (dy, dx) = (Matrix::new(dy, rows, self.outputs), MatrixMut::new(dx, rows, self.inputs));
        E::wide(pass.stream, pass.matmul, dy, self.weight(pass.weights)?, &Epilogue::default(), dx)
    }
}
