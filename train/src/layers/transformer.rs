//! The blocks of a transformer, forward and backward.
//!
//! ```text
//! mid = x + attn(norm1(x));   next x = mid + mlp(norm2(mid))
//! ```

use std::fmt;

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, Resource, Stream};

use super::attention::check_heads;
use super::{
    AttentionBuffers, AttentionScratch, BackwardPass, ForwardPass, Gelu, LayerNorm, Mlp, MlpBuffers, SelfAttention,
    Sequences,
};
use crate::error::{Error, Result};
use crate::layout::ParameterLayout;
use crate::precision::Precision;

/// The shape of a [`Transformer`].
#[derive(Clone, Copy, Debug, PartialEq, thalweg::__Setters)]
#[non_exhaustive]
pub struct TransformerConfig {
    /// The numbers of a row.
    pub width: usize,
    /// The heads of the attention. They divide the width into heads of 1 to 32, or 64 numbers.
    pub heads: usize,
    /// The number of blocks.
    pub depth: usize,
    /// The number that is added to the variance in a norm.
    pub eps: f32,
    /// The form of GELU.
    pub gelu: Gelu,
}

impl Default for TransformerConfig {
    /// 64 numbers a row, 4 heads and 2 blocks.
    fn default() -> Self {
        Self { width: 64, heads: 4, depth: 2, eps: 1e-5, gelu: Gelu::Tanh }
    }
}

impl TransformerConfig {
    pub(crate) fn check(self) -> Result<Self> {
        let Self { width, heads, depth, eps, .. } = self;
        check_heads(width, heads)?;
        if depth > 1000 || !eps.is_finite() || eps < 0.0 {
            return Err(Error::Config(format!("{depth} blocks with eps {eps}")));
        }
        Ok(self)
    }
}

/// One block.
#[derive(Clone, Debug)]
struct Block {
    norm1: LayerNorm,
    attn: SelfAttention,
    norm2: LayerNorm,
    mlp: Mlp,
}

/// Blocks of a transformer, and the norm behind them:
///
/// ```text
/// in each block:  x = x + attn(norm1(x));  x = x + mlp(norm2(x))
/// features = norm(x)
/// ```
///
/// The MLP is four times as wide as a row.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::{
///     BackwardPass, BackwardScratchOn, ForwardPass, WeightsOn, Sequences, Transformer, TransformerActivationsOn,
///     TransformerConfig, TransformerScratchOn,
/// };
/// use thalweg_train::{MatmulBackend, MatmulOn, ParameterLayout};
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let config = TransformerConfig::default().with_width(4).with_heads(2).with_depth(1);
/// let mut layout = ParameterLayout::default();
/// let transformer = Transformer::new(&mut layout, "", config)?;
/// let parameters = WeightsOn::<_, f32>::new(&s, &layout.init(7)?)?;
/// let mut matmul = MatmulOn::new(&s, MatmulBackend::default())?;
///
/// let (rows, ends) = (3, s.upload_blocking(&[0, 2, 3])?); // two sequences
/// let batch = Sequences::new(rows, &ends);
/// let mut kept = TransformerActivationsOn::new(&s, config, rows, true)?;
/// s.copy(&s.upload_blocking(&[0.5; 12])?, kept.input(rows)?)?;
/// transformer.forward(&mut ForwardPass::new(&s, parameters.view(), &mut matmul), &batch, &mut kept)?;
/// let features = s.read_blocking(kept.features(rows)?)?;
/// assert_eq!(features[..4], features[4..8]); // equal rows of one sequence
///
/// let mut gradient = s.alloc_zeroed::<f32>(layout.len())?;
/// let mut sums = BackwardScratchOn::new(&s, MatmulBackend::default(), &layout)?;
/// let mut scratch = TransformerScratchOn::new(&s, config, rows)?;
/// s.fill(scratch.features(rows)?, 1.0)?; // the gradient of the features
/// let mut backward = BackwardPass::new(&s, parameters.view(), &mut gradient, &mut sums);
/// transformer.backward(&mut backward, &batch, &mut kept, &mut scratch)?;
/// let bias = layout.slots().last().unwrap().range.clone(); // that of the last norm
/// assert_eq!(s.read_blocking(&gradient)?[bias], [3.0; 4]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Transformer {
    width: usize,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

/// The activations of one batch that the gradient of a [`Transformer`] needs, with the rows that
/// enter it and its result. If no gradient is needed, all blocks use the same few buffers in turn.
/// On a stream it has the form [`TransformerActivationsOn<S, E>`](TransformerActivationsOn).
#[derive(Debug, Resource)]
pub struct TransformerActivations<E: Precision> {
    /// The residual stream before each block and behind the last one, and in the middle of each
    /// block.
    x: Vec<DeviceBuffer<f32>>,
    mid: Vec<DeviceBuffer<f32>>,
    /// Mean and 1 / root of each row: two for each block, and one behind.
    stats: Vec<DeviceBuffer<f32>>,
    logs: Vec<DeviceBuffer<f32>>,
    normed1: Vec<DeviceBuffer<E>>,
    /// Queries, keys and values of each block, one block behind another.
    qkv: DeviceBuffer<E>,
    attended: Vec<DeviceBuffer<E>>,
    normed2: Vec<DeviceBuffer<E>>,
    /// The inputs of GELU. It is there only if a gradient is needed.
    hidden: Vec<DeviceBuffer<E>>,
    activated: Vec<DeviceBuffer<E>>,
    /// The norm of the last residual stream.
    features: DeviceBuffer<f32>,
    #[resource(plain)]
    config: TransformerConfig,
    /// The blocks that have a part of `qkv`.
    #[resource(plain)]
    parts: usize,
}

/// Room for the gradients of activations. On a stream it has the form
/// [`TransformerScratchOn<S, E>`](TransformerScratchOn).
#[derive(Debug, Resource)]
pub struct TransformerScratch<E: Precision> {
    /// The gradient of the residual stream, as a number and as an operand.
    dx: DeviceBuffer<f32>,
    operand: DeviceBuffer<E>,
    dn: DeviceBuffer<f32>,
    hidden: DeviceBuffer<E>,
    dqkv: DeviceBuffer<E>,
    attended: DeviceBuffer<E>,
    deltas: DeviceBuffer<f32>,
    #[resource(plain)]
    width: usize,
}

/// The gradient of the rows that entered a [`Transformer`], [rows, width].
pub struct InputGradient<'a, S, E> {
    /// The gradient in `f32`.
    pub dx: &'a DeviceSlice<S, f32>,
    /// The same numbers as operands.
    pub operands: &'a DeviceSlice<S, E>,
}

impl<S, E> fmt::Debug for InputGradient<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InputGradient({})", self.dx.len())
    }
}

impl<S: LiveBrand, E: Precision> TransformerActivationsOn<S, E> {
    /// Makes room for `rows` rows. `learns` says whether a gradient is needed.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn new(s: &Stream<S>, config: TransformerConfig, rows: usize, learns: bool) -> thalweg::Result<Self> {
        let TransformerConfig { width, heads, .. } = config;
        let depth = if learns { config.depth } else { config.depth.min(1) };
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
            qkv: s.alloc(depth * 3 * rows * width)?,
            attended: each!(depth, width),
            normed2: each!(depth, width),
            hidden: each!(if learns { depth } else { 0 }, 4 * width),
            activated: each!(depth, 4 * width),
            features: s.alloc(rows * width)?,
            config,
            parts: depth,
        })
    }

    /// Makes room for `rows` new rows, of which no gradient is needed: the blocks use the same
    /// buffers in turn. Each block keeps queries, keys and values of `all` rows, which are those
    /// that the new ones see ([`Sequences::behind`]) and themselves.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn cached(s: &Stream<S>, config: TransformerConfig, rows: usize, all: usize) -> thalweg::Result<Self> {
        let mut room = Self::new(s, config, rows, false)?;
        room.qkv = s.alloc(config.depth * 3 * all * config.width)?;
        room.parts = config.depth;
        Ok(room)
    }
}

impl<S: Brand, E: Precision> TransformerActivationsOn<S, E> {
    /// Returns where the rows that enter the blocks go, [rows, width].
    ///
    /// # Errors
    /// There is no room for as many rows.
    pub fn input(&mut self, rows: usize) -> thalweg::Result<&mut DeviceSlice<S, f32>> {
        Ok(self.x[0].slice_mut(..rows * self.config.width)?)
    }

    /// Returns queries, keys and values of [`cached`](Self::cached) rows, [blocks, rows of each, 3,
    /// width], and how many blocks and rows those are.
    pub(crate) fn qkv(&self) -> (&DeviceSlice<S, E>, [usize; 2]) {
        let room = self.qkv.len() / (3 * self.config.width * self.parts).max(1);
        (&self.qkv, [self.parts, room])
    }

    /// Returns the rows behind the last norm, [rows, width].
    ///
    /// # Errors
    /// There is no room for as many rows.
    pub fn features(&self, rows: usize) -> thalweg::Result<&DeviceSlice<S, f32>> {
        Ok(self.features.slice(..rows * self.config.width)?)
    }
}

impl<S: LiveBrand, E: Precision> TransformerScratchOn<S, E> {
    /// Makes room for `rows` rows.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn new(s: &Stream<S>, config: TransformerConfig, rows: usize) -> thalweg::Result<Self> {
        let TransformerConfig { width, heads, .. } = config;
        Ok(Self {
            dx: s.alloc(rows * width)?,
            operand: s.alloc(rows * width * E::ROOM)?,
            dn: s.alloc(rows * width)?,
            hidden: s.alloc(4 * rows * width)?,
            dqkv: s.alloc(3 * rows * width)?,
            attended: s.alloc(rows * width)?,
            deltas: s.alloc(rows * heads)?,
            width,
        })
    }
}

impl<S: Brand, E: Precision> TransformerScratchOn<S, E> {
    /// Returns where the gradient of the features goes before [`Transformer::backward`], [rows,
    /// width].
    ///
    /// # Errors
    /// There is no room for as many rows.
    pub fn features(&mut self, rows: usize) -> thalweg::Result<&mut DeviceSlice<S, f32>> {
        Ok(self.dn.slice_mut(..rows * self.width)?)
    }

    /// Returns the gradient of the rows that entered the blocks after [`Transformer::backward`].
    pub(crate) fn rows(&self, rows: usize) -> thalweg::Result<&DeviceSlice<S, f32>> {
        Ok(self.dx.slice(..rows * self.width)?)
    }

    /// Returns the gradient of the rows that entered the blocks after [`Transformer::backward`],
    /// and enqueues its rounding to operands.
    ///
    /// # Errors
    /// There is no room for as many rows, or the device failed.
    pub fn input(&mut self, s: &Stream<S>, rows: usize) -> thalweg::Result<InputGradient<'_, S, E>> {
        let dx = self.dx.slice(..rows * self.width)?;
        Ok(InputGradient { dx, operands: E::rounded(s, dx, &mut self.operand)? })
    }
}

/// Returns one of equal parts of a buffer.
fn part_of<S, E>(buffer: &mut DeviceSlice<S, E>, part: usize, parts: usize) -> thalweg::Result<&mut DeviceSlice<S, E>> {
    let len = buffer.len() / parts;
    Ok(buffer.slice_mut(part * len..(part + 1) * len)?)
}

impl Transformer {
    /// Adds the tensors of the blocks, `{prefix}blocks.{k}.` and then `norm1`, `attn.qkv`,
    /// `attn.proj`, `norm2`, `mlp.fc1` and `mlp.fc2`, and of `{prefix}norm` to a layout. The names
    /// are timm's.
    ///
    /// # Errors
    /// The configuration makes no sense, or the layout would have too many elements.
    pub fn new(layout: &mut ParameterLayout, prefix: &str, config: TransformerConfig) -> Result<Self> {
        let TransformerConfig { width, heads, depth, eps, gelu } = config.check()?;
        let block = |k| {
            let name = |part| format!("{prefix}blocks.{k}.{part}");
            Ok(Block {
                norm1: LayerNorm::new(layout, &name("norm1"), width, eps)?,
                attn: SelfAttention::new(layout, &name("attn"), width, heads)?,
                norm2: LayerNorm::new(layout, &name("norm2"), width, eps)?,
                // What does not fit `usize` is too large for the layout in any case.
                mlp: Mlp::new(layout, &name("mlp"), width, width.saturating_mul(4), gelu)?,
            })
        };
        let blocks = (0..depth).map(block).collect::<Result<_>>()?;
        Ok(Self { width, blocks, norm: LayerNorm::new(layout, &format!("{prefix}norm"), width, eps)? })
    }

    /// Computes [`features`](TransformerActivationsOn::features) from
    /// [`input`](TransformerActivationsOn::input).
    ///
    /// # Errors
    /// There is no room for as many rows, a length does not fit, or the device failed.
    pub fn forward<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        batch: &Sequences<'_, S>,
        a: &mut TransformerActivationsOn<S, E>,
    ) -> thalweg::Result<()> {
        self.forward_by(pass, [batch.rows, batch.before], a, |pass, _, attn, x, kept, residual, y| {
            attn.forward(pass, batch, x, kept, Some(residual), y)
        })
    }

    /// Does the same with another attention: `attend` computes that of a block, whose number it
    /// gets, from the normed rows, and adds the residual.
    pub(crate) fn forward_by<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        [rows, before]: [usize; 2],
        a: &mut TransformerActivationsOn<S, E>,
        mut attend: impl FnMut(
            &mut ForwardPass<'_, S, E>,
            usize,
            &SelfAttention,
            &DeviceSlice<S, E>,
            &mut AttentionBuffers<'_, S, E>,
            &DeviceSlice<S, f32>,
            &mut DeviceSlice<S, f32>,
        ) -> thalweg::Result<()>,
    ) -> thalweg::Result<()> {
        let (n, all) = (rows * self.width, (before + rows) * self.width);
        let (kept, depth, learns) = (a.mid.len(), self.blocks.len(), !a.hidden.is_empty());
        for (place, block) in self.blocks.iter().enumerate() {
            let k = place % kept;
            let (first, second) = a.x.split_at_mut(k + 1);
            let (x, next) = (&mut first[k], &mut second[0]);
            // With buffers for one block only, the two of the residual stream change roles.
            let (x, next) = if kept < depth && place % 2 == 1 { (next, x) } else { (x, next) };
            let (x, next) = (x.slice(..n)?, next.slice_mut(..n)?);
            let (normed, mid) = (a.normed1[k].slice_mut(..n)?, a.mid[k].slice_mut(..n)?);
            block.norm1.forward(pass, rows, x, a.stats[2 * k].slice_mut(..2 * rows)?, normed)?;
            let mut attended = AttentionBuffers {
                qkv: part_of(&mut a.qkv, place % a.parts, a.parts)?.slice_mut(..3 * all)?,
                out: a.attended[k].slice_mut(..n)?,
                logs: a.logs[k].slice_mut(..rows * a.config.heads)?,
            };
            attend(pass, place, &block.attn, normed, &mut attended, x, mid)?;
            let normed = a.normed2[k].slice_mut(..n)?;
            block.norm2.forward(pass, rows, mid, a.stats[2 * k + 1].slice_mut(..2 * rows)?, normed)?;
            let activated = a.activated[k].slice_mut(..4 * n)?;
            if learns {
                let mut kept = MlpBuffers { hidden: a.hidden[k].slice_mut(..4 * n)?, activated };
                block.mlp.forward(pass, rows, normed, &mut kept, Some(mid), next)?;
            } else {
                block.mlp.infer(pass, rows, normed, activated, Some(mid), next)?;
            }
        }
        let last = if kept < depth { depth % 2 } else { depth };
        let stats = a.stats[2 * kept].slice_mut(..2 * rows)?;
        self.norm.forward(pass, rows, a.x[last].slice(..n)?, stats, a.features.slice_mut(..n)?)
    }

    /// Computes the gradients of all weights, and that of the input
    /// ([`TransformerScratchOn::input`]), from the gradient of the features
    /// ([`TransformerScratchOn::features`]), which it overwrites. The activations are those of a
    /// batch whose gradient is needed.
    ///
    /// # Errors
    /// There is no room for as many rows, a length does not fit, or the device failed.
    pub fn backward<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        batch: &Sequences<'_, S>,
        a: &mut TransformerActivationsOn<S, E>,
        scratch: &mut TransformerScratchOn<S, E>,
    ) -> thalweg::Result<()> {
        let (rows, s) = (batch.rows, pass.stream);
        let (n, depth) = (rows * self.width, self.blocks.len());
        let (dx, dn) = (scratch.dx.slice_mut(..n)?, scratch.dn.slice_mut(..n)?);
        let (x, stats) = (a.x[depth].slice(..n)?, a.stats[2 * depth].slice(..2 * rows)?);
        self.norm.backward_weight(pass, rows, x, stats, dn)?;
        self.norm.backward_input(pass, rows, x, stats, dn, dx)?;
        for (k, block) in self.blocks.iter().enumerate().rev() {
            let stats = |k: usize| a.stats[k].slice(..2 * rows);
            let dy = E::rounded(s, dx, &mut scratch.operand)?;
            let kept =
                MlpBuffers { hidden: a.hidden[k].slice_mut(..4 * n)?, activated: a.activated[k].slice_mut(..4 * n)? };
            let hidden = scratch.hidden.slice_mut(..4 * n)?;
            block.mlp.backward(pass, rows, a.normed2[k].slice(..n)?, &kept, dy, hidden, dn)?;
            let (mid, norm2) = (a.mid[k].slice(..n)?, stats(2 * k + 1)?);
            block.norm2.backward_weight(pass, rows, mid, norm2, dn)?;
            block.norm2.add_backward_input(pass, rows, mid, norm2, dn, dx)?;

            let dy = E::rounded(s, dx, &mut scratch.operand)?;
            let kept = AttentionBuffers {
                qkv: part_of(&mut a.qkv, k, a.parts)?.slice_mut(..3 * n)?,
                out: a.attended[k].slice_mut(..n)?,
                logs: a.logs[k].slice_mut(..rows * a.config.heads)?,
            };
            let mut room = AttentionScratch {
                dout: scratch.attended.slice_mut(..n)?,
                dqkv: scratch.dqkv.slice_mut(..3 * n)?,
                deltas: scratch.deltas.slice_mut(..rows * a.config.heads)?,
            };
            block.attn.backward(pass, batch, a.normed1[k].slice(..n)?, &kept, dy, &mut room, dn)?;
            let (x, norm1) = (a.x[k].slice(..n)?, stats(2 * k)?);
            block.norm1.backward_weight(pass, rows, x, norm1, dn)?;
            block.norm1.add_backward_input(pass, rows, x, norm1, dn, dx)?;
        }
        Ok(())
    }
}
