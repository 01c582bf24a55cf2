//! The blocks of a transformer, forward and backward.
//!
//! ```text
//! mid = x + proj(attention(qkv(norm1(x))));   next x = mid + fc2(gelu(fc1(norm2(mid))))
//! ```

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, Resource, Stream};
use thalweg_kernels::linear::Activation;
use thalweg_kernels::train::{
    Attention, AttentionBackward, GROUPS, attention, attention_backward, gelu, gelu_backward,
};

use crate::layers::{Gradients, Target, Weights};
use crate::layout::{Linear, Norm, ParameterLayout};
use crate::matmul_backend::{Matmul, MatmulBackend, MatmulOn};
use crate::precision::Precision;

/// The form of GELU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gelu {
    /// By the hyperbolic tangent.
    #[default]
    Tanh,
    /// By the error function.
    Erf,
}

impl Gelu {
    fn activation(self) -> Activation {
        match self {
            Self::Tanh => Activation::GeluTanh,
            Self::Erf => Activation::GeluErf,
        }
    }
}

/// The shape of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    /// The elements of a row.
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) depth: usize,
    pub(crate) eps: f32,
    pub(crate) gelu: Gelu,
}

/// The places of one block's weights.
#[derive(Clone, Debug)]
struct Block {
    norm1: Norm,
    qkv: Linear,
    proj: Linear,
    norm2: Norm,
    fc1: Linear,
    fc2: Linear,
}

/// Blocks, and the norm behind them.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) shape: Shape,
    blocks: Vec<Block>,
    norm: Norm,
}

/// The activations of one batch that the gradient of the blocks needs. Every buffer has room for as
/// many rows as the largest batch so far. If no gradient is needed, all blocks use the same few
/// buffers in turn.
#[derive(Debug, Resource)]
pub(crate) struct Activations<E: Precision> {
    /// The residual stream before each block and behind the last one, and in the middle of each
    /// block.
    x: Vec<DeviceBuffer<f32>>,
    mid: Vec<DeviceBuffer<f32>>,
    /// Mean and 1 / root of each row: two for each block, and one behind.
    stats: Vec<DeviceBuffer<f32>>,
    logs: Vec<DeviceBuffer<f32>>,
    normed1: Vec<DeviceBuffer<E>>,
    qkv: Vec<DeviceBuffer<E>>,
    attended: Vec<DeviceBuffer<E>>,
    normed2: Vec<DeviceBuffer<E>>,
    /// The inputs of GELU. It is there only if a gradient is needed.
    hidden: Vec<DeviceBuffer<E>>,
    activated: Vec<DeviceBuffer<E>>,
    /// The norm of the last residual stream.
    features: DeviceBuffer<f32>,
    by: Matmul,
}

/// Room for the gradients of activations.
#[derive(Debug, Resource)]
pub(crate) struct Scratch<E: Precision> {
    /// The gradient of the residual stream, as a number and as an operand.
    pub(crate) dx: DeviceBuffer<f32>,
    pub(crate) operand: DeviceBuffer<E>,
    dn: DeviceBuffer<f32>,
    hidden: DeviceBuffer<E>,
    dqkv: DeviceBuffer<E>,
    attended: DeviceBuffer<E>,
    deltas: DeviceBuffer<f32>,
    pub(crate) parts: DeviceBuffer<f32>,
    pub(crate) by: Matmul,
}

impl<S: LiveBrand, E: Precision> ActivationsOn<S, E> {
    /// Makes room for `rows` rows. `learns` says whether a gradient is needed.
    pub(crate) fn new(
        s: &Stream<S>,
        products: MatmulBackend,
        shape: Shape,
        rows: usize,
        learns: bool,
    ) -> thalweg::Result<Self> {
        let Shape { width, heads, .. } = shape;
        let depth = if learns { shape.depth } else { shape.depth.min(1) };
        macro_rules! each {
            ($count:expr, $columns:expr) => {
                (0..$count).map(|_| s.alloc(rows * $columns)).collect::<Result<_, _>>()?
            };
        }
        Ok(Self {
            x: each!(depth + 1, width),
            mid: each!(depth, width),
            stats: each!(2 * depth + 1, 2),
            logs: each!(depth, heads),
            normed1: each!(depth, width),
            qkv: each!(depth, 3 * width),
            attended: each!(depth, width),
            normed2: each!(depth, width),
            hidden: each!(if learns { depth } else { 0 }, 4 * width),
            activated: each!(depth, 4 * width),
            features: s.alloc(rows * width)?,
            by: MatmulOn::new(s, products)?,
        })
    }

    /// Makes room for `rows` new rows, of which no gradient is needed: the blocks use the same
    /// buffers in turn. Each block keeps queries, keys and values of `all` rows, which are those
    /// that the new ones see and themselves.
    pub(crate) fn cached(
        s: &Stream<S>,
        products: MatmulBackend,
        shape: Shape,
        rows: usize,
        all: usize,
    ) -> thalweg::Result<Self> {
        let depth = shape.depth;
        let mut room = Self::new(s, products, shape, rows, false)?;
        room.qkv = (0..depth).map(|_| s.alloc(3 * all * shape.width)).collect::<Result<_, _>>()?;
        Ok(room)
    }
}

impl<S: Brand, E: Precision> ActivationsOn<S, E> {
    /// Returns what multiplies on the way forward.
    pub(crate) fn by(&mut self) -> &mut MatmulOn<S> {
        &mut self.by
    }

    /// Returns where the rows that enter the blocks go, and what multiplies.
    pub(crate) fn input_by(
        &mut self,
        elements: usize,
    ) -> thalweg::Result<(&mut DeviceSlice<S, f32>, &mut MatmulOn<S>)> {
        Ok((self.x[0].slice_mut(..elements)?, &mut self.by))
    }

    /// Returns the rows behind the last norm, and what multiplies.
    pub(crate) fn features_by(&mut self, elements: usize) -> thalweg::Result<(&DeviceSlice<S, f32>, &mut MatmulOn<S>)> {
        Ok((self.features.slice(..elements)?, &mut self.by))
    }

    /// Returns where the rows that enter the blocks go.
    pub(crate) fn input(&mut self, elements: usize) -> thalweg::Result<&mut DeviceSlice<S, f32>> {
        Ok(self.x[0].slice_mut(..elements)?)
    }

    /// Returns the rows behind the last norm.
    pub(crate) fn features(&self, elements: usize) -> thalweg::Result<&DeviceSlice<S, f32>> {
        Ok(self.features.slice(..elements)?)
    }
}

impl<S: LiveBrand, E: Precision> ScratchOn<S, E> {
    /// Makes room for `rows` rows. The widest matrix whose columns are summed has `widest` columns.
    pub(crate) fn new(
        s: &Stream<S>,
        products: MatmulBackend,
        shape: Shape,
        rows: usize,
        widest: usize,
    ) -> thalweg::Result<Self> {
        let Shape { width, heads, .. } = shape;
        Ok(Self {
            dx: s.alloc(rows * width)?,
            operand: s.alloc(rows * width * E::ROOM)?,
            dn: s.alloc(rows * width)?,
            hidden: s.alloc(4 * rows * width)?,
            dqkv: s.alloc(3 * rows * width)?,
            attended: s.alloc(rows * width)?,
            deltas: s.alloc(rows * heads)?,
            parts: s.alloc(2 * GROUPS * widest.max(4 * width))?,
            by: MatmulOn::new(s, products)?,
        })
    }
}

/// The sequences of a batch.
pub(crate) struct Sequences<'a, S> {
    pub(crate) rows: usize,
    /// The number of rows of its sequence that each row sees (see [`Attention::prefix`]).
    pub(crate) prefix: u32,
    pub(crate) cu_seqlens: &'a DeviceSlice<S, i32>,
}

impl Blocks {
    pub(crate) fn new(layout: &mut ParameterLayout, shape: Shape, prefix: &str) -> crate::Result<Self> {
        let Shape { width, depth, .. } = shape;
        // What does not fit `usize` is too large for the layout in any case.
        let [three, four] = [3, 4].map(|times| width.saturating_mul(times));
        let block = |k| {
            let name = |part| format!("{prefix}blocks.{k}.{part}");
            Ok(Block {
                norm1: layout.norm(&name("norm1"), width)?,
                qkv: layout.linear(&name("attn.qkv"), three, width)?,
                proj: layout.linear(&name("attn.proj"), width, width)?,
                norm2: layout.norm(&name("norm2"), width)?,
                fc1: layout.linear(&name("mlp.fc1"), four, width)?,
                fc2: layout.linear(&name("mlp.fc2"), width, four)?,
            })
        };
        let blocks = (0..depth).map(block).collect::<crate::Result<_>>()?;
        Ok(Self { shape, blocks, norm: layout.norm(&format!("{prefix}norm"), width)? })
    }

    /// Computes [`features`](ActivationsOn::features) from [`input`](ActivationsOn::input).
    pub(crate) fn forward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        batch: &Sequences<'_, S>,
        a: &mut ActivationsOn<S, E>,
    ) -> thalweg::Result<()> {
        self.extend(s, w, batch, (0, batch.cu_seqlens), a)
    }

    /// Does the same as [`forward`](Self::forward) for the last rows of the sequences. The
    /// activations have the queries, keys and values of `before` rows, which the new ones follow;
    /// `cu_k` says where the sequences of all rows begin and end. With rows before, there is one
    /// sequence.
    pub(crate) fn extend<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        batch: &Sequences<'_, S>,
        (before, cu_k): (usize, &DeviceSlice<S, i32>),
        a: &mut ActivationsOn<S, E>,
    ) -> thalweg::Result<()> {
        let &Shape { width, heads, eps, gelu: form, .. } = &self.shape;
        let &Sequences { rows, prefix, cu_seqlens } = batch;
        let (n, all) = (rows * width, (before + rows) * width);
        let (kept, depth) = (a.mid.len(), self.blocks.len());
        for (place, block) in self.blocks.iter().enumerate() {
            let k = place % kept;
            let (first, second) = a.x.split_at_mut(k + 1);
            let (x, next) = (&mut first[k], &mut second[0]);
            // With buffers for one block only, the two of the residual stream change roles.
            let (x, next) = if kept < depth && place % 2 == 1 { (next, x) } else { (x, next) };
            let (x, next) = (x.slice(..n)?, next.slice_mut(..n)?);
            let normed = a.normed1[k].slice_mut(..n)?;
            block.norm1.forward(s, w, (rows, eps), x, a.stats[2 * k].slice_mut(..2 * rows)?, normed)?;
            let kv = place % a.qkv.len();
            let qkv = a.qkv[kv].slice_mut(..3 * all)?;
            block.qkv.forward(s, w, rows, normed, Activation::None, (qkv.slice_mut(3 * (all - n)..)?, &mut a.by))?;
            let out = a.attended[k].slice_mut(..n)?;
            attention(
                s,
                Attention {
                    rows: [rows as u32, (before + rows) as u32],
                    heads: [heads as u32, (width / heads) as u32],
                    prefix,
                    cu_q: cu_seqlens,
                    cu_k,
                    q: qkv.slice(3 * (all - n)..)?,
                    k: qkv.slice(width.min(3 * all)..)?,
                    v: qkv.slice((2 * width).min(3 * all)..)?,
                    strides: [3 * width as u32; 2],
                    out,
                    logs: a.logs[k].slice_mut(..rows * heads)?,
                },
            )?;
            let mid = a.mid[k].slice_mut(..n)?;
            block.proj.wide(s, w, rows, out, Some(x), (mid, &mut a.by))?;
            let normed = a.normed2[k].slice_mut(..n)?;
            block.norm2.forward(s, w, (rows, eps), mid, a.stats[2 * k + 1].slice_mut(..2 * rows)?, normed)?;
            let activated = a.activated[k].slice_mut(..4 * n)?;
            match a.hidden.get_mut(k) {
                Some(hidden) => {
                    let hidden = hidden.slice_mut(..4 * n)?;
                    block.fc1.forward(s, w, rows, normed, Activation::None, (hidden, &mut a.by))?;
                    gelu(s, form == Gelu::Erf, hidden, activated)?;
                }
                // The product applies it to its sums.
                None => block.fc1.forward(s, w, rows, normed, form.activation(), (activated, &mut a.by))?,
            }
            block.fc2.wide(s, w, rows, activated, Some(mid), (next, &mut a.by))?;
        }
        let last = if kept < depth { depth % 2 } else { depth };
        let stats = a.stats[2 * kept].slice_mut(..2 * rows)?;
        self.norm.forward(s, w, (rows, eps), a.x[last].slice(..n)?, stats, a.features.slice_mut(..n)?)
    }

    /// Computes the gradients of all weights, and that of the input in `scratch.dx`, from the
    /// gradient of the features, which `scratch.dn` holds ([`ScratchOn::features`]).
    pub(crate) fn backward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        batch: &Sequences<'_, S>,
        a: &ActivationsOn<S, E>,
        scratch: &mut ScratchOn<S, E>,
        (to, add): (&mut dyn Target<S>, bool),
    ) -> thalweg::Result<()> {
        let &Shape { width, heads, depth, gelu: form, .. } = &self.shape;
        let &Sequences { rows, prefix, cu_seqlens } = batch;
        let n = rows * width;
        let mut g = Gradients { to, parts: &mut scratch.parts, by: &mut scratch.by, add };
        let (dx, dn) = (scratch.dx.slice_mut(..n)?, scratch.dn.slice_mut(..n)?);
        let stats = |k: usize| a.stats[k].slice(..2 * rows);
        self.norm.backward(s, w, rows, [dn, a.x[depth].slice(..n)?, stats(2 * depth)?], &mut g, (false, dx))?;
        for (k, block) in self.blocks.iter().enumerate().rev() {
            let dy = E::rounded(s, dx, &mut scratch.operand)?;
            block.fc2.weight_gradient(s, rows, a.activated[k].slice(..4 * n)?, dy, &mut g)?;
            let hidden = scratch.hidden.slice_mut(..4 * n)?;
            block.fc2.input_gradient(s, w, rows, dy, (hidden, &mut *g.by))?;
            gelu_backward(s, form == Gelu::Erf, a.hidden[k].slice(..4 * n)?, hidden)?;
            block.fc1.weight_gradient(s, rows, a.normed2[k].slice(..n)?, hidden, &mut g)?;
            block.fc1.wide_input_gradient(s, w, rows, hidden, (dn, &mut *g.by))?;
            block.norm2.backward(s, w, rows, [dn, a.mid[k].slice(..n)?, stats(2 * k + 1)?], &mut g, (true, dx))?;

            let dy = E::rounded(s, dx, &mut scratch.operand)?;
            let out = a.attended[k].slice(..n)?;
            block.proj.weight_gradient(s, rows, out, dy, &mut g)?;
            let dout = scratch.attended.slice_mut(..n)?;
            block.proj.input_gradient(s, w, rows, dy, (dout, &mut *g.by))?;
            let dqkv = scratch.dqkv.slice_mut(..3 * n)?;
            attention_backward(
                s,
                AttentionBackward {
                    rows: rows as u32,
                    heads: [heads as u32, (width / heads) as u32],
                    prefix,
                    cu_seqlens,
                    qkv: a.qkv[k].slice(..3 * n)?,
                    out,
                    dout,
                    logs: a.logs[k].slice(..rows * heads)?,
                    deltas: scratch.deltas.slice_mut(..rows * heads)?,
                    dqkv,
                },
            )?;
            block.qkv.weight_gradient(s, rows, a.normed1[k].slice(..n)?, dqkv, &mut g)?;
            block.qkv.wide_input_gradient(s, w, rows, dqkv, (dn, &mut *g.by))?;
            block.norm1.backward(s, w, rows, [dn, a.x[k].slice(..n)?, stats(2 * k)?], &mut g, (true, dx))?;
        }
        Ok(())
    }
}

impl<S: Brand, E: Precision> ScratchOn<S, E> {
    /// Returns where the gradient of the features goes before [`Blocks::backward`].
    pub(crate) fn features(&mut self, elements: usize) -> thalweg::Result<&mut DeviceSlice<S, f32>> {
        Ok(self.dn.slice_mut(..elements)?)
    }
}
