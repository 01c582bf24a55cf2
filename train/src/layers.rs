//! Linear layers and layer norms, forward and backward, as functions on a stream.

use std::ops::Range;

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, On, Resource, Stream};
use thalweg_kernels::linear::{Activation, Epilogue, Matrix, MatrixMut};
use thalweg_kernels::train::{norm_backward, norm_columns, sum_rows};

use crate::error::Result;
use crate::layout::{Linear, Norm, ParameterLayout};
use crate::matmul_backend::MatmulOn;
use crate::precision::Precision;

/// The memory of a model's flat weights, and of the operands that they are rounded to.
#[derive(Debug, Resource)]
pub(crate) struct Parameters<E: Precision> {
    pub(crate) wide: DeviceBuffer<f32>,
    rounded: DeviceBuffer<E>,
}

impl<S: LiveBrand, E: Precision> ParametersOn<S, E> {
    /// Makes the memory, and waits for the copy of the weights.
    pub(crate) fn new(s: &Stream<S>, weights: &[f32]) -> thalweg::Result<Self> {
        Ok(Self { wide: s.upload_blocking(weights)?, rounded: s.alloc(weights.len() * E::ROOM)? })
    }

    /// Uploads weights that never change, and rounds them once.
    pub(crate) fn fixed(s: &Stream<S>, weights: &[f32]) -> thalweg::Result<Self> {
        let mut parameters = Self::new(s, weights)?;
        parameters.round(s)?;
        Ok(parameters)
    }
}

impl<S: Brand, E: Precision> ParametersOn<S, E> {
    /// Rounds the weights to operands. After a change of the weights it comes before their next
    /// use.
    pub(crate) fn round(&mut self, s: &Stream<S>) -> thalweg::Result<()> {
        E::rounded(s, &self.wide, &mut self.rounded)?;
        Ok(())
    }

    /// Returns the weights as layers take them.
    pub(crate) fn weights(&self) -> Weights<'_, S, E> {
        Weights { wide: &self.wide, operands: E::operands(&self.wide, &self.rounded) }
    }
}

/// The flat weights of a model, as numbers and as operands of products.
pub(crate) struct Weights<'a, S, E> {
    pub(crate) wide: &'a DeviceSlice<S, f32>,
    pub(crate) operands: &'a DeviceSlice<S, E>,
}

impl<S, E> Clone for Weights<'_, S, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S, E> Copy for Weights<'_, S, E> {}

/// The place in which a backward pass stores the gradients of weights, by their places in the flat
/// buffer.
pub(crate) trait Target<S> {
    /// Returns the gradients of a place.
    fn at(&mut self, place: &Range<usize>) -> thalweg::Result<&mut DeviceSlice<S, f32>>;

    /// Returns the gradients of two places, of which the second lies behind the first.
    fn both(&mut self, first: &Range<usize>, second: &Range<usize>) -> thalweg::Result<[&mut DeviceSlice<S, f32>; 2]>;

    /// Learns that the pass has enqueued the last work on a place.
    fn done(&mut self, place: &Range<usize>) -> thalweg::Result<()> {
        let _ = place;
        Ok(())
    }
}

impl<S: Brand> Target<S> for On<S, DeviceBuffer<f32>> {
    fn at(&mut self, place: &Range<usize>) -> thalweg::Result<&mut DeviceSlice<S, f32>> {
        Ok(self.slice_mut(place.clone())?)
    }

    fn both(&mut self, first: &Range<usize>, second: &Range<usize>) -> thalweg::Result<[&mut DeviceSlice<S, f32>; 2]> {
        let (front, back) = self.split_at_mut(second.start)?;
        Ok([front.slice_mut(first.clone())?, back.slice_mut(..second.len())?])
    }
}

/// The gradients of a model, and room for partial sums.
pub(crate) struct Gradients<'a, S: Brand> {
    pub(crate) to: &'a mut dyn Target<S>,
    pub(crate) parts: &'a mut DeviceSlice<S, f32>,
    pub(crate) by: &'a mut MatmulOn<S>,
    /// Whether new gradients are added to the old ones.
    pub(crate) add: bool,
}

/// The places of what turns tokens into rows: a linear layer, and a linear function of the
/// position.
#[derive(Clone, Debug)]
pub(crate) struct Embedding {
    pub(crate) embed: Linear,
    pub(crate) position: Range<usize>,
}

impl Embedding {
    pub(crate) fn new(layout: &mut ParameterLayout, prefix: &str, width: usize, inputs: usize) -> Result<Self> {
        let embed = layout.linear(&format!("{prefix}embed"), width, inputs)?;
        Ok(Self { embed, position: layout.add(format!("{prefix}position.weight"), &[width, 2])? })
    }

    /// Computes rows `x` from tokens [rows, inputs] and their positions [rows, 2]. `operands` gets
    /// the tokens as operands.
    pub(crate) fn forward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        rows: usize,
        [tokens, position]: [&DeviceSlice<S, f32>; 2],
        operands: &mut DeviceSlice<S, E>,
        (x, by): (&mut DeviceSlice<S, f32>, &mut MatmulOn<S>),
    ) -> thalweg::Result<()> {
        let width = self.embed.outputs;
        let tokens = E::rounded(s, tokens, operands)?;
        self.embed.wide(s, w, rows, tokens, None, (x, by))?;
        let weight = Matrix::new(w.wide.slice(self.position.clone())?, width, 2).transposed();
        let epilogue = Epilogue { accumulate: true, ..Default::default() };
        by.matmul(s, Matrix::new(position, rows, 2), weight, &epilogue, MatrixMut::new(x, rows, width))
    }
}

impl Linear {
    fn weight<'a, S, E>(&self, w: Weights<'a, S, E>) -> thalweg::Result<Matrix<'a, S, E>> {
        Ok(Matrix::new(w.operands.slice(self.weight.clone())?, self.outputs, self.inputs))
    }

    /// Computes `y = x W^T + b`, and adds `residual` if there is one. `y` is `f32`.
    pub(crate) fn wide<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        residual: Option<&DeviceSlice<S, f32>>,
        (y, by): (&mut DeviceSlice<S, f32>, &mut MatmulOn<S>),
    ) -> thalweg::Result<()> {
        let epilogue = Epilogue {
            bias: Some(w.wide.slice(self.bias.clone())?),
            residual: residual.map(|r| Matrix::new(r, rows, self.outputs)),
            ..Default::default()
        };
        let x = Matrix::new(x, rows, self.inputs);
        E::wide(s, by, x, self.weight(w)?.transposed(), &epilogue, MatrixMut::new(y, rows, self.outputs))
    }

    /// Computes `y = f(x W^T + b)`, where `y` is an operand and `f` the activation.
    pub(crate) fn forward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        activation: Activation,
        (y, by): (&mut DeviceSlice<S, E>, &mut MatmulOn<S>),
    ) -> thalweg::Result<()> {
        let bias = Some(w.operands.slice(self.bias.clone())?);
        let epilogue = Epilogue { bias, activation, ..Default::default() };
        let x = Matrix::new(x, rows, self.inputs);
        by.matmul(s, x, self.weight(w)?.transposed(), &epilogue, MatrixMut::new(y, rows, self.outputs))
    }

    /// Computes the gradients of W and b from that of the result, `dy`.
    pub(crate) fn weight_gradient<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        dy: &DeviceSlice<S, E>,
        g: &mut Gradients<'_, S>,
    ) -> thalweg::Result<()> {
        let dw = MatrixMut::new(g.to.at(&self.weight)?, self.outputs, self.inputs);
        let epilogue = Epilogue { accumulate: g.add, ..Default::default() };
        let (dy_t, x) = (Matrix::new(dy, rows, self.outputs).transposed(), Matrix::new(x, rows, self.inputs));
        E::wide(s, g.by, dy_t, x, &epilogue, dw)?;
        sum_rows(s, [rows as u32, self.outputs as u32], g.add, dy, g.parts, g.to.at(&self.bias)?)?;
        g.to.done(&self.bias)?;
        g.to.done(&self.weight)
    }

    /// Computes the gradient of `x` as an operand.
    pub(crate) fn input_gradient<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        rows: usize,
        dy: &DeviceSlice<S, E>,
        (dx, by): (&mut DeviceSlice<S, E>, &mut MatmulOn<S>),
    ) -> thalweg::Result<()> {
        let dy = Matrix::new(dy, rows, self.outputs);
        by.matmul(s, dy, self.weight(w)?, &Epilogue::default(), MatrixMut::new(dx, rows, self.inputs))
    }

    /// Computes the gradient of `x` in `f32`.
    pub(crate) fn wide_input_gradient<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        rows: usize,
        dy: &DeviceSlice<S, E>,
        (dx, by): (&mut DeviceSlice<S, f32>, &mut MatmulOn<S>),
    ) -> thalweg::Result<()> {
        let dy = Matrix::new(dy, rows, self.outputs);
        E::wide(s, by, dy, self.weight(w)?, &Epilogue::default(), MatrixMut::new(dx, rows, self.inputs))
    }
}

impl Norm {
    /// Normalizes rows.
    pub(crate) fn forward<S: Brand, E: Precision, F: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        (rows, eps): (usize, f32),
        x: &DeviceSlice<S, f32>,
        stats: &mut DeviceSlice<S, f32>,
        y: &mut DeviceSlice<S, F>,
    ) -> thalweg::Result<()> {
        let affine = [w.wide.slice(self.weight.clone())?, w.wide.slice(self.bias.clone())?];
        thalweg_kernels::train::norm(s, [rows as u32, self.weight.len() as u32], eps, x, affine, stats, y)
    }

    /// Computes the gradients of weight and bias, and that of the rows, which is added to `dx` or
    /// stored there.
    pub(crate) fn backward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        rows: usize,
        [dy, x, stats]: [&DeviceSlice<S, f32>; 3],
        g: &mut Gradients<'_, S>,
        (add, dx): (bool, &mut DeviceSlice<S, f32>),
    ) -> thalweg::Result<()> {
        let shape = [rows as u32, self.weight.len() as u32];
        let affine = g.to.both(&self.weight, &self.bias)?;
        norm_columns(s, shape, g.add, dy, x, stats, g.parts, affine)?;
        g.to.done(&self.bias)?;
        g.to.done(&self.weight)?;
        norm_backward(s, shape[0], shape[1], add, dy, x, stats, w.wide.slice(self.weight.clone())?, dx)
    }
}
