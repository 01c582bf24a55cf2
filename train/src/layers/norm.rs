//! Layer norms.

use std::ops::Range;

use thalweg::{Brand, DeviceSlice};
use thalweg_kernels::train::{norm, norm_backward, norm_columns};

use super::{BackwardPass, ForwardPass};
use crate::error::Result;
use crate::layout::ParameterLayout;
use crate::precision::Precision;

/// A layer norm of rows: `y = (x - mean) / sqrt(variance + eps) weight + bias`, with the population
/// variance. Weight and bias are \[columns\].
///
/// Rows and statistics are `f32`, and so are gradients; the result has any precision.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::{ForwardPass, LayerNorm, WeightsOn};
/// use thalweg_train::{MatmulBackend, MatmulOn, ParameterLayout};
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let mut layout = ParameterLayout::default();
/// let norm = LayerNorm::new(&mut layout, "norm", 2, 0.0)?;
/// let parameters = WeightsOn::<_, f32>::new(&s, &layout.init(7)?)?; // weights 1, biases 0
/// let mut matmul = MatmulOn::new(&s, MatmulBackend::default())?;
///
/// let x = s.upload_blocking(&[1.0, 3.0, -5.0, 5.0])?; // two rows
/// let (mut stats, mut y) = (s.alloc(4)?, s.alloc::<f32>(4)?);
/// norm.forward(&mut ForwardPass::new(&s, parameters.view(), &mut matmul), 2, &x, &mut stats, &mut y)?;
/// assert_eq!(s.read_blocking(&y)?, [-1.0, 1.0, -1.0, 1.0]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Range<usize>,
    bias: Range<usize>,
    eps: f32,
}

impl LayerNorm {
    /// Adds the tensors `{name}.weight` and `{name}.bias` to a layout.
    /// [`ParameterLayout::init`] draws a weight of ones if `norm` is in the name.
    ///
    /// # Errors
    /// The layout would have too many elements.
    pub fn new(layout: &mut ParameterLayout, name: &str, columns: usize, eps: f32) -> Result<Self> {
        let weight = layout.add(format!("{name}.weight"), &[columns])?;
        Ok(Self { weight, bias: layout.add(format!("{name}.bias"), &[columns])?, eps })
    }

    fn shape(&self, rows: usize) -> [u32; 2] {
        [rows as u32, self.weight.len() as u32]
    }

    /// Computes `y` from `x`, both [rows, columns]. `stats` [rows, 2] gets mean and 1 / root of
    /// each row, which the gradients need.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn forward<S: Brand, E: Precision, Y: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, f32>,
        stats: &mut DeviceSlice<S, f32>,
        y: &mut DeviceSlice<S, Y>,
    ) -> thalweg::Result<()> {
        let w = pass.weights.values;
        let affine = [w.slice(self.weight.clone())?, w.slice(self.bias.clone())?];
        norm(pass.stream, self.shape(rows), self.eps, x, affine, stats, y)
    }

    /// Computes the gradients of weight and bias from that of the result, `dy`, and the rows `x`
    /// and `stats` of the forward pass.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn backward_weight<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, f32>,
        stats: &DeviceSlice<S, f32>,
        dy: &DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let BackwardPass { stream: s, gradients, parts, add, .. } = pass;
        let affine = gradients.both(&self.weight, &self.bias)?;
        norm_columns(*s, self.shape(rows), *add, dy, x, stats, parts, affine)?;
        gradients.done(&self.bias)?;
        gradients.done(&self.weight)
    }

    /// Computes the gradient `dx` [rows, columns] of the rows from that of the result, `dy`.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn backward_input<S: Brand, E: Precision>(
        &self,
        pass: &BackwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, f32>,
        stats: &DeviceSlice<S, f32>,
        dy: &DeviceSlice<S, f32>,
        dx: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let ([r, c], weight) = (self.shape(rows), pass.weights.values.slice(self.weight.clone())?);
        norm_backward(pass.stream, r, c, false, dy, x, stats, weight, dx)
    }

    /// Does the same as [`backward_input`](Self::backward_input), and adds the gradient to `dx`, as
    /// the norm of a residual branch needs it.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn add_backward_input<S: Brand, E: Precision>(
        &self,
        pass: &BackwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, f32>,
        stats: &DeviceSlice<S, f32>,
        dy: &DeviceSlice<S, f32>,
        dx: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let ([r, c], weight) = (self.shape(rows), pass.weights.values.slice(self.weight.clone())?);
        norm_backward(pass.stream, r, c, true, dy, x, stats, weight, dx)
    }
}
