//! Attention within sequences.

use std::fmt;

use thalweg::{Brand, DeviceSlice};
use thalweg_kernels::train::{
    Attention, AttentionBackward, PagedAttention, attention, attention_backward, paged_attention,
};

use super::{BackwardPass, ForwardPass, Linear, Sequences};
use crate::error::{Error, Result};
use crate::layout::ParameterLayout;
use crate::precision::Precision;

/// Self-attention with several heads: `y = proj(softmax(Q K^T / sqrt(width / heads)) V) + residual`
/// within each sequence, where Q, K and V are the thirds of `qkv(x)`.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::{AttentionBuffers, ForwardPass, WeightsOn, SelfAttention, Sequences};
/// use thalweg_train::{MatmulBackend, MatmulOn, ParameterLayout};
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let (rows, width, heads) = (3, 4, 2);
/// let mut layout = ParameterLayout::default();
/// let attention = SelfAttention::new(&mut layout, "attn", width, heads)?;
/// let parameters = WeightsOn::<_, f32>::new(&s, &layout.init(7)?)?;
/// let mut matmul = MatmulOn::new(&s, MatmulBackend::default())?;
///
/// let (mut qkv, mut out) = (s.alloc(rows * 3 * width)?, s.alloc(rows * width)?);
/// let mut logs = s.alloc(heads * rows)?;
/// let mut kept = AttentionBuffers { qkv: &mut qkv, out: &mut out, logs: &mut logs };
/// let x = s.upload_blocking(&[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 1.0, 0.0])?;
/// let (ends, mut y) = (s.upload_blocking(&[0, 2, 3])?, s.alloc(rows * width)?); // two sequences
/// let mut forward = ForwardPass::new(&s, parameters.view(), &mut matmul);
/// attention.forward(&mut forward, &Sequences::new(rows, &ends), &x, &mut kept, None, &mut y)?;
/// let y = s.read_blocking(&y)?;
/// assert_eq!(y[..4], y[4..8]); // equal rows of one sequence
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SelfAttention {
    qkv: Linear,
    proj: Linear,
    heads: usize,
}

/// The buffers in which [`SelfAttention`] keeps what its gradient needs.
pub struct AttentionBuffers<'a, S, E> {
    /// Queries, keys and values side by side, [rows, 3, heads, size]. If the rows follow others
    /// ([`Sequences::behind`]), it has those of the rows before in front, and so is the cache.
    pub qkv: &'a mut DeviceSlice<S, E>,
    /// The mean values, [rows, heads, size].
    pub out: &'a mut DeviceSlice<S, E>,
    /// The logarithms of the sums of the softmax, [heads, rows].
    pub logs: &'a mut DeviceSlice<S, f32>,
}

/// The pages of a cache in which the blocks of a model keep keys and values, and the sequences
/// whose newest rows are computed: see `thalweg_kernels::train::append_rows`.
pub(crate) struct PagedRows<'a, S, E> {
    /// The sequences.
    pub(crate) rows: usize,
    pub(crate) progress: &'a DeviceSlice<S, i32>,
    pub(crate) table: &'a DeviceSlice<S, i32>,
    /// Which block this is, and how many there are.
    pub(crate) block: [usize; 2],
    pub(crate) keys: &'a DeviceSlice<S, E>,
    pub(crate) values: &'a DeviceSlice<S, E>,
}

/// Room for the gradients inside [`SelfAttention`].
pub struct AttentionScratch<'a, S, E> {
    /// Those of the mean values, [rows, heads, size].
    pub dout: &'a mut DeviceSlice<S, E>,
    /// Those of queries, keys and values, [rows, 3, heads, size].
    pub dqkv: &'a mut DeviceSlice<S, E>,
    /// Products of the mean values and their gradients, [heads, rows].
    pub deltas: &'a mut DeviceSlice<S, f32>,
}

impl<S, E> fmt::Debug for AttentionBuffers<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttentionBuffers({})", self.out.len())
    }
}

impl<S, E> fmt::Debug for AttentionScratch<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttentionScratch({})", self.dout.len())
    }
}

/// Checks that there are kernels for these heads.
pub(crate) fn check_heads(width: usize, heads: usize) -> Result<()> {
    let size = if heads > 0 && width.is_multiple_of(heads) { width / heads } else { 0 };
    if !(1..=32).contains(&size) && size != 64 {
        let what = format!("{heads} heads must divide a row of {width} numbers into 1 to 32, or 64 each");
        return Err(Error::Config(what));
    }
    Ok(())
}

impl SelfAttention {
    /// Adds the tensors of `{name}.qkv`, [3 width, width], and `{name}.proj`, [width, width], to a
    /// layout.
    ///
    /// # Errors
    /// The heads do not divide the width into 1 to 32, or 64 numbers each, or the layout would have
    /// too many elements.
    pub fn new(layout: &mut ParameterLayout, name: &str, width: usize, heads: usize) -> Result<Self> {
        check_heads(width, heads)?;
        // What does not fit `usize` is too large for the layout in any case.
        let qkv = Linear::new(layout, &format!("{name}.qkv"), width, width.saturating_mul(3))?;
        Ok(Self { qkv, proj: Linear::new(layout, &format!("{name}.proj"), width, width)?, heads })
    }

    fn heads(&self) -> [u32; 2] {
        [self.heads as u32, (self.proj.outputs() / self.heads) as u32]
    }

    /// Computes `y` [rows, width] from `x` [rows, width], and adds the rows `residual` if there are
    /// any.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn forward<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        batch: &Sequences<'_, S>,
        x: &DeviceSlice<S, E>,
        kept: &mut AttentionBuffers<'_, S, E>,
        residual: Option<&DeviceSlice<S, f32>>,
        y: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let &Sequences { rows, prefix, prefixes, cu_seqlens: cu_q, before, cu_all: cu_k } = batch;
        let (width, all) = (self.proj.outputs(), before + rows);
        self.qkv.forward(pass, rows, x, kept.qkv.slice_mut(3 * before * width..)?)?;
        let qkv = &*kept.qkv;
        attention(
            pass.stream,
            Attention {
                rows: [rows as u32, all as u32],
                heads: self.heads(),
                prefix,
                prefixes,
                cu_q,
                cu_k,
                q: qkv.slice(3 * before * width..)?,
                k: qkv.slice(width.min(3 * all * width)..)?,
                v: qkv.slice((2 * width).min(3 * all * width)..)?,
                strides: [3 * width as u32; 2],
                out: kept.out,
                logs: kept.logs,
            },
        )?;
        self.proj.forward_f32(pass, rows, kept.out, residual, y)
    }

    /// Computes `y` [rows, width] from the newest row `x` of each sequence, and adds `residual`.
    /// The keys and values of all rows before are in their pages, and those of the newest ones stay
    /// in `kept`.
    pub(crate) fn forward_paged<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        pages: PagedRows<'_, S, E>,
        x: &DeviceSlice<S, E>,
        kept: &mut AttentionBuffers<'_, S, E>,
        residual: &DeviceSlice<S, f32>,
        y: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let PagedRows { rows, progress, table, block, keys, values } = pages;
        self.qkv.forward(pass, rows, x, kept.qkv)?;
        let (sequences, block, heads) = (rows as u32, block.map(|n| n as u32), self.heads());
        let (qkv, out) = (&*kept.qkv, &mut *kept.out);
        let attention = PagedAttention { sequences, block, heads, progress, table, qkv, keys, values, out };
        paged_attention(pass.stream, attention)?;
        self.proj.forward_f32(pass, rows, kept.out, Some(residual), y)
    }

    /// Computes the gradients of all weights, and that of `x` in `dx` [rows, width], from that of
    /// the result, `dy`. `dx` is without that of the residual. The rows follow no others.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    #[expect(clippy::too_many_arguments, reason = "each is an array of its own")]
    pub fn backward<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        batch: &Sequences<'_, S>,
        x: &DeviceSlice<S, E>,
        kept: &AttentionBuffers<'_, S, E>,
        dy: &DeviceSlice<S, E>,
        scratch: &mut AttentionScratch<'_, S, E>,
        dx: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let &Sequences { rows, prefix, prefixes, cu_seqlens, .. } = batch;
        self.proj.backward_weight(pass, rows, kept.out, dy)?;
        self.proj.backward_input(pass, rows, dy, scratch.dout)?;
        attention_backward(
            pass.stream,
            AttentionBackward {
                rows: rows as u32,
                heads: self.heads(),
                prefix,
                prefixes,
                cu_seqlens,
                qkv: kept.qkv,
                out: kept.out,
                dout: scratch.dout,
                logs: kept.logs,
                deltas: scratch.deltas,
                dqkv: scratch.dqkv,
            },
        )?;
        self.qkv.backward_weight(pass, rows, x, scratch.dqkv)?;
        self.qkv.backward_input_f32(pass, rows, scratch.dqkv, dx)
    }
}
