//! The token transformer as functions on a stream: forward, loss and backward of one batch.

use thalweg::{Brand, DeviceBuffer, DeviceCopy, DeviceSlice, LiveBrand, Resource, Stream};
use thalweg_kernels::train::{argmax, sum_rows};

use crate::error::{Error, Result};
use crate::layers::{
    BackwardPass, BackwardScratch, BackwardScratchOn, CrossEntropy, ForwardPass, Gelu, GradientSink, Linear, Pooling,
    Sequences, TokenEmbedding, Transformer, TransformerActivations, TransformerActivationsOn, TransformerConfig,
    TransformerScratch, TransformerScratchOn, WeightsRef,
};
use crate::layout::ParameterLayout;
use crate::matmul_backend::{Matmul, MatmulBackend, MatmulOn};
use crate::precision::Precision;
use crate::tensors::Tensors;

/// The shape of a token transformer.
#[derive(Clone, Copy, Debug, PartialEq, thalweg::__Setters)]
#[non_exhaustive]
pub struct TokenTransformerConfig {
    /// The numbers of a token.
    pub input_dim: usize,
    /// The numbers of a row between the blocks.
    pub embed_dim: usize,
    /// The heads of the attention. They divide the width into heads of 1 to 32, or 64 numbers.
    pub num_heads: usize,
    /// The number of blocks.
    pub depth: usize,
    /// The number of classes.
    pub num_classes: usize,
    /// The number that is added to the variance in a norm.
    pub norm_eps: f32,
    /// The form of GELU.
    pub gelu: Gelu,
    /// The reduction of the rows of a sequence to one.
    pub pooling: Pooling,
}

impl Default for TokenTransformerConfig {
    /// 64 numbers a row, 4 heads, 2 blocks, 10 classes, for tokens of 13 numbers.
    fn default() -> Self {
        let (gelu, pool) = (Gelu::Tanh, Pooling::Mean);
        Self {
            input_dim: 13,
            embed_dim: 64,
            num_heads: 4,
            depth: 2,
            num_classes: 10,
            norm_eps: 1e-5,
            gelu,
            pooling: pool,
        }
    }
}

/// Reads the value `key` of the metadata, a number of blocks. A file has a tensor at least for
/// each.
pub(crate) fn blocks(file: &Tensors, key: &str, default: Option<usize>) -> Result<usize> {
    let depth = number(file, key, default)?;
    if depth > file.tensors.len() {
        return Err(file.format_error(format!("`{key}` is {depth}, and there are {} tensors", file.tensors.len())));
    }
    Ok(depth)
}

/// Reads the value `key` of the metadata, which the file must have if there is no default.
pub(crate) fn number(file: &Tensors, key: &str, default: Option<usize>) -> Result<usize> {
    let found = file.value(key)?.or(default);
    found.ok_or_else(|| file.format_error(format!("the metadata has no `{key}`")))
}

/// Reads what the metadata of a file of weights says: `heads`, `depth`, and if they are there
/// `eps`, `gelu` and `pool`. The first two may have defaults.
pub(crate) fn metadata(
    file: &Tensors,
    [heads, depth]: [Option<usize>; 2],
    (eps, gelu, pool): (f32, Gelu, Pooling),
) -> Result<(usize, usize, f32, Gelu, Pooling)> {
    let gelu = match file.metadata.get("gelu").map(String::as_str) {
        None => gelu,
        Some("tanh") => Gelu::Tanh,
        Some("erf") => Gelu::Erf,
        Some(other) => return Err(file.format_error(format!("`gelu` is `tanh` or `erf`, and not `{other}`"))),
    };
    let pool = match file.metadata.get("pool").map(String::as_str) {
        None => pool,
        Some("mean") => Pooling::Mean,
        Some("cls") => Pooling::Class,
        Some(other) => return Err(file.format_error(format!("`pool` is `mean` or `cls`, and not `{other}`"))),
    };
    let (heads, depth) = (number(file, "heads", heads)?, blocks(file, "depth", depth)?);
    Ok((heads, depth, file.value("eps")?.unwrap_or(eps), gelu, pool))
}

impl TokenTransformerConfig {
    /// Reads the shape of a model from its file: from the shapes of its tensors, and from the
    /// metadata `heads`, `depth`, and if they are there `eps`, `gelu` and `pool`.
    ///
    /// # Errors
    /// A tensor or a key is missing, a value makes no sense, or two tensors do not fit together.
    pub fn from_tensors(file: &Tensors) -> Result<Self> {
        let (heads, depth, eps, gelu, pool) = metadata(file, [None, None], (1e-5, Gelu::Tanh, Pooling::Mean))?;
        let [width, inputs] = file.matrix("embed.weight", None)?;
        let [classes, _] = file.matrix("head.weight", Some(width))?;
        let config = Self {
            input_dim: inputs,
            embed_dim: width,
            num_heads: heads,
            depth,
            num_classes: classes,
            norm_eps: eps,
            gelu,
            pooling: pool,
        };
        config.check().map_err(|error| file.format_error(error.to_string()))
    }

    fn check(self) -> Result<Self> {
        self.blocks().check()?;
        let Self { input_dim: inputs, num_classes: classes, .. } = self;
        if inputs == 0 || classes == 0 {
            return Err(Error::Config(format!("tokens of {inputs} numbers and {classes} classes")));
        }
        Ok(self)
    }

    /// Writes what [`from_tensors`](Self::from_tensors) reads from the metadata.
    pub(crate) fn describe(&self, file: &mut Tensors) {
        let gelu = if self.gelu == Gelu::Tanh { "tanh" } else { "erf" };
        let pool = if self.pooling == Pooling::Mean { "mean" } else { "cls" };
        for (key, value) in [
            ("heads", self.num_heads.to_string()),
            ("depth", self.depth.to_string()),
            ("eps", self.norm_eps.to_string()),
            ("gelu", gelu.into()),
            ("pool", pool.into()),
        ] {
            file.metadata.insert(key.into(), value);
        }
    }

    pub(crate) fn blocks(&self) -> TransformerConfig {
        let &Self { embed_dim: width, num_heads: heads, depth, norm_eps: eps, gelu, .. } = self;
        TransformerConfig { width, heads, depth, eps, gelu }
    }
}

/// A batch on the host: the tokens of all sequences one after another.
#[derive(Clone, Copy, Debug)]
pub struct TokenBatch<'a> {
    /// The tokens, [T, `input_dim`].
    pub tokens: &'a [f32],
    /// The position of each token, [T, 2].
    pub position: &'a [f32],
    /// The starts and the end of the sequences, [B + 1]: sequence `b` has the tokens
    /// `cu[b] .. cu[b + 1]`.
    pub cu_seqlens: &'a [i32],
    /// The class of each sequence. It may be empty if nothing is learned from the batch.
    pub labels: &'a [i32],
}

impl TokenBatch<'_> {
    /// Returns the number of sequences.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.cu_seqlens.len().saturating_sub(1)
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.cu_seqlens.last().map_or(0, |&last| last.max(0) as usize)
    }

    /// Checks that the parts fit each other and the model.
    pub(crate) fn check(&self, config: &TokenTransformerConfig, learns: bool) -> Result<()> {
        let (rows, sequences) = (self.rows(), self.sequences());
        let wrong = |what: String| Err(Error::Batch(what));
        if sequences == 0 || self.cu_seqlens[0] != 0 || self.cu_seqlens.windows(2).any(|w| w[0] >= w[1]) {
            return wrong("`cu_seqlens` begins with 0 and rises, with a sequence at least".into());
        }
        for (name, len, of) in [("tokens", self.tokens.len(), config.input_dim), ("position", self.position.len(), 2)] {
            if len != rows * of {
                return wrong(format!("`{name}` has {len} numbers, and not {rows} x {of}"));
            }
        }
        if (learns || !self.labels.is_empty()) && self.labels.len() != sequences {
            return wrong(format!("there are {} labels for {sequences} sequences", self.labels.len()));
        }
        if let Some(label) = self.labels.iter().find(|&&label| label < 0 || label as usize >= config.num_classes) {
            return wrong(format!("a label is {label}, and there are {} classes", config.num_classes));
        }
        Ok(())
    }
}

/// The places of a model's weights.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) config: TokenTransformerConfig,
    pub(crate) layout: ParameterLayout,
    embedding: TokenEmbedding,
    blocks: Transformer,
    head: Linear,
}

/// A batch on the device, with what is computed from it: all that one batch in flight needs. Its
/// buffers have room for the largest batch so far.
#[derive(Debug, Resource)]
pub(crate) struct Pass<E: Precision> {
    tokens: DeviceBuffer<f32>,
    operands: DeviceBuffer<E>,
    position: DeviceBuffer<f32>,
    cu_seqlens: DeviceBuffer<i32>,
    labels: DeviceBuffer<i32>,
    matmul: Matmul,
    activations: TransformerActivations<E>,
    pooled: DeviceBuffer<f32>,
    pooled_operand: DeviceBuffer<E>,
    pub(crate) logits: DeviceBuffer<f32>,
    dlogits: DeviceBuffer<f32>,
    dlogits_operand: DeviceBuffer<E>,
    dpooled: DeviceBuffer<f32>,
    losses: DeviceBuffer<f32>,
    parts: DeviceBuffer<f32>,
    /// The loss of the batch.
    pub(crate) loss: DeviceBuffer<f32>,
    /// The class with the largest logit of each sequence.
    pub(crate) best: DeviceBuffer<i32>,
    /// The most rows and sequences there is room for.
    #[resource(plain)]
    room: Extent,
    #[resource(plain)]
    pub(crate) extent: Extent,
}

/// Room for the gradients of a batch.
#[derive(Debug, Resource)]
pub(crate) struct Scratch<E: Precision> {
    pub(crate) sums: BackwardScratch,
    blocks: TransformerScratch<E>,
}

/// The size of the batch in a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) rows: usize,
    pub(crate) sequences: usize,
    /// Whether the last sequence is padding. It has no label and adds nothing to loss and
    /// gradients.
    pub(crate) padded: bool,
}

impl Extent {
    pub(crate) fn of(batch: &TokenBatch<'_>) -> Self {
        Self { rows: batch.rows(), sequences: batch.sequences(), padded: false }
    }

    /// Returns whether a batch of this extent has room in that of another one.
    pub(crate) fn fits(self, room: Self) -> bool {
        self.rows <= room.rows && self.sequences <= room.sequences
    }

    /// Returns the extent that has room for a batch of either.
    pub(crate) fn or(self, other: Self) -> Self {
        let (rows, sequences) = (self.rows.max(other.rows), self.sequences.max(other.sequences));
        Self { rows, sequences, ..self }
    }

    /// Returns the number of sequences with a label.
    pub(crate) fn labeled(self) -> usize {
        self.sequences - usize::from(self.padded)
    }
}

/// A batch on the device, ordered by stream `S`. The host need not know how many tokens it has.
#[derive(Debug)]
pub struct DeviceBatch<'a, S> {
    /// The tokens, [R, `input_dim`], one sequence after another.
    pub tokens: &'a DeviceSlice<S, f32>,
    /// The position of each token, [R, 2].
    pub position: &'a DeviceSlice<S, f32>,
    /// The starts and the end of the sequences, [B + 1], from 0 on and rising.
    pub cu_seqlens: &'a DeviceSlice<S, i32>,
    /// The class of each sequence, B numbers.
    pub labels: &'a DeviceSlice<S, i32>,
    /// Whether rows may follow those of the last sequence. They must hold finite numbers, and
    /// change neither the loss nor the gradients.
    pub padded: bool,
}

/// A micro-batch on the device, which the stage before the forward pass fills.
#[derive(Debug)]
pub struct MicroBatch<'a, S> {
    /// The tokens, [T, `input_dim`], one sequence after another.
    pub tokens: &'a mut DeviceSlice<S, f32>,
    /// The position of each token, [T, 2].
    pub position: &'a mut DeviceSlice<S, f32>,
    /// The starts and the end of the sequences, [B + 1], from 0 on and rising.
    pub cu_seqlens: &'a mut DeviceSlice<S, i32>,
    /// The class of each sequence, B numbers.
    pub labels: &'a mut DeviceSlice<S, i32>,
}

impl<S> DeviceBatch<'_, S> {
    /// Checks that the lengths fit each other and the model. The pass has a sequence more for
    /// padding, which is never empty.
    pub(crate) fn extent(&self, config: &TokenTransformerConfig) -> Result<Extent> {
        let wrong = |what: String| Err(Error::Batch(what));
        let (rows, b) = (self.position.len() / 2, self.labels.len());
        if b == 0 || self.cu_seqlens.len() != b + 1 {
            return wrong(format!("{b} labels with {} ends of sequences", self.cu_seqlens.len()));
        }
        if rows == 0 || self.position.len() != 2 * rows || self.tokens.len() != rows * config.input_dim {
            let (tokens, position) = (self.tokens.len(), self.position.len());
            return wrong(format!("{tokens} numbers of tokens of {} each, and {position} of places", config.input_dim));
        }
        Ok(match self.padded {
            // Rows at multiples of 8 are fast to multiply in each form of a product.
            true => Extent { rows: (rows + 1).next_multiple_of(8), sequences: b + 1, padded: true },
            false => Extent { rows, sequences: b, padded: false },
        })
    }
}

impl<S: LiveBrand, E: Precision> PassOn<S, E> {
    pub(crate) fn new(
        s: &Stream<S>,
        products: MatmulBackend,
        config: &TokenTransformerConfig,
        extent: Extent,
    ) -> thalweg::Result<Self> {
        let Extent { rows, sequences, .. } = extent;
        let &TokenTransformerConfig { input_dim: inputs, embed_dim: width, num_classes: classes, .. } = config;
        Ok(Self {
            tokens: s.alloc(rows * inputs)?,
            operands: s.alloc(rows * inputs * E::ROOM)?,
            position: s.alloc(2 * rows)?,
            cu_seqlens: s.alloc(sequences + 1)?,
            labels: s.alloc(sequences)?,
            matmul: MatmulOn::new(s, products)?,
            activations: TransformerActivationsOn::new(s, config.blocks(), rows, true)?,
            pooled: s.alloc(sequences * width)?,
            pooled_operand: s.alloc(sequences * width * E::ROOM)?,
            logits: s.alloc(sequences * classes)?,
            dlogits: s.alloc(sequences * classes)?,
            dlogits_operand: s.alloc(sequences * classes * E::ROOM)?,
            dpooled: s.alloc(sequences * width)?,
            losses: s.alloc(sequences)?,
            parts: s.alloc(thalweg_kernels::train::GROUPS)?,
            loss: s.alloc(1)?,
            best: s.alloc(sequences)?,
            room: extent,
            extent: Extent::default(),
        })
    }

    /// Returns the most rows and sequences there is room for.
    pub(crate) fn room(&self) -> Extent {
        self.room
    }

    /// Copies a batch to the device. The host copies it into page-locked memory and waits for
    /// nothing.
    pub(crate) fn upload(&mut self, s: &Stream<S>, batch: &TokenBatch<'_>) -> thalweg::Result<()> {
        self.extent = Extent::of(batch);
        upload(s, batch.tokens, &mut self.tokens)?;
        upload(s, batch.position, &mut self.position)?;
        upload(s, batch.cu_seqlens, &mut self.cu_seqlens)?;
        upload(s, batch.labels, &mut self.labels)
    }

    /// Returns the places of a batch of this extent, which the caller fills.
    pub(crate) fn input(&mut self, inputs: usize, extent: Extent) -> thalweg::Result<MicroBatch<'_, S>> {
        self.extent = extent;
        Ok(MicroBatch {
            tokens: self.tokens.slice_mut(..extent.rows * inputs)?,
            position: self.position.slice_mut(..2 * extent.rows)?,
            cu_seqlens: self.cu_seqlens.slice_mut(..=extent.sequences)?,
            labels: self.labels.slice_mut(..extent.sequences)?,
        })
    }

    /// Copies a batch on the device, and completes it with a sequence of padding if it has any.
    pub(crate) fn take(
        &mut self,
        s: &Stream<S>,
        config: &TokenTransformerConfig,
        batch: &DeviceBatch<'_, S>,
        extent: Extent,
    ) -> thalweg::Result<()> {
        self.extent = extent;
        let (given, rows, b) = (batch.position.len() / 2, extent.rows, extent.labeled());
        let (tokens, more) =
            self.tokens.slice_mut(..rows * config.input_dim)?.split_at_mut(given * config.input_dim)?;
        s.copy(batch.tokens, tokens)?;
        s.zero(more)?;
        let (position, more) = self.position.slice_mut(..2 * rows)?.split_at_mut(2 * given)?;
        s.copy(batch.position, position)?;
        s.zero(more)?;
        s.copy(batch.cu_seqlens, self.cu_seqlens.slice_mut(..=b)?)?;
        if extent.padded {
            s.fill(self.cu_seqlens.slice_mut(b + 1..=b + 1)?, rows as i32)?;
        }
        s.copy(batch.labels, self.labels.slice_mut(..b)?)
    }
}

/// Copies numbers to the start of a buffer.
pub(crate) fn upload<S: LiveBrand, T: DeviceCopy>(
    s: &Stream<S>,
    data: &[T],
    to: &mut DeviceSlice<S, T>,
) -> thalweg::Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    let host = s.bind(s.device().pinned_from(data)?)?;
    s.copy_to_device(&host, to.slice_mut(..data.len())?)
}

impl Model {
    pub(crate) fn new(config: TokenTransformerConfig) -> Result<Self> {
        let TokenTransformerConfig { input_dim: inputs, embed_dim: width, num_classes: classes, .. } =
            config.check()?;
        let mut layout = ParameterLayout::default();
        let embedding = TokenEmbedding::new(&mut layout, "", inputs, width)?;
        let blocks = Transformer::new(&mut layout, "", config.blocks())?;
        let head = Linear::new(&mut layout, "head", width, classes)?;
        Ok(Self { config, layout, embedding, blocks, head })
    }

    /// Makes room for the gradients of `rows` rows.
    pub(crate) fn scratch<S: LiveBrand, E: Precision>(
        &self,
        s: &Stream<S>,
        products: MatmulBackend,
        rows: usize,
    ) -> thalweg::Result<ScratchOn<S, E>> {
        let sums = BackwardScratchOn::new(s, products, &self.layout)?;
        Ok(ScratchOn { sums, blocks: TransformerScratchOn::new(s, self.config.blocks(), rows)? })
    }

    /// Computes the logits.
    pub(crate) fn forward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        pass: &mut PassOn<S, E>,
    ) -> thalweg::Result<()> {
        let TokenTransformerConfig { input_dim: inputs, embed_dim: width, num_classes: classes, .. } = self.config;
        let Extent { rows, sequences, .. } = pass.extent;
        let mut f = ForwardPass::new(s, w, &mut pass.matmul);
        let tokens = E::rounded(s, pass.tokens.slice(..rows * inputs)?, &mut pass.operands)?;
        let position = pass.position.slice(..2 * rows)?;
        self.embedding.forward(&mut f, rows, tokens, position, pass.activations.input(rows)?)?;

        let batch = Sequences::new(rows, pass.cu_seqlens.slice(..=sequences)?);
        self.blocks.forward(&mut f, &batch, &mut pass.activations)?;
        let pooled = pass.pooled.slice_mut(..sequences * width)?;
        self.config.pooling.forward(s, &batch, width, pass.activations.features(rows)?, pooled)?;
        let pooled = E::rounded(s, pooled, &mut pass.pooled_operand)?;
        self.head.forward_f32(&mut f, sequences, pooled, None, pass.logits.slice_mut(..sequences * classes)?)
    }

    /// Computes the loss, the gradient of the logits and the largest logits. The sum over sequences
    /// is divided by `sequences`, which may be those of several batches.
    pub(crate) fn loss<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        sequences: usize,
        pass: &mut PassOn<S, E>,
    ) -> thalweg::Result<()> {
        let classes = self.config.num_classes;
        let b = pass.extent.labeled();
        let n = b * classes;
        if pass.extent.padded {
            s.zero(pass.dlogits.slice_mut(n..n + classes)?)?;
        }
        let (logits, labels) = (pass.logits.slice(..n)?, pass.labels.slice(..b)?);
        let (losses, dlogits) = (pass.losses.slice_mut(..b)?, pass.dlogits.slice_mut(..n)?);
        CrossEntropy::new(classes).forward(s, sequences, logits, labels, losses, dlogits)?;
        sum_rows(s, [b as u32, 1], false, losses, &mut pass.parts, &mut pass.loss)?;
        argmax(s, b as u32, classes as u32, logits, pass.best.slice_mut(..b)?)
    }

    /// Computes the gradients of all weights, or adds them to the old ones.
    pub(crate) fn backward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        pass: &mut PassOn<S, E>,
        scratch: &mut ScratchOn<S, E>,
        to: &mut dyn GradientSink<S>,
        add: bool,
    ) -> thalweg::Result<()> {
        let TokenTransformerConfig { input_dim: inputs, embed_dim: width, num_classes: classes, .. } = self.config;
        let Extent { rows, sequences, .. } = pass.extent;
        let dlogits = pass.dlogits.slice(..sequences * classes)?;
        let dlogits = E::rounded(s, dlogits, &mut pass.dlogits_operand)?;
        let pooled = E::operands(pass.pooled.slice(..sequences * width)?, &pass.pooled_operand);
        let mut b = BackwardPass::new(s, w, to, &mut scratch.sums).adding(add);
        self.head.backward_weight(&mut b, sequences, pooled, dlogits)?;
        let dpooled = pass.dpooled.slice_mut(..sequences * width)?;
        self.head.backward_input_f32(&mut b, sequences, dlogits, dpooled)?;
        let batch = Sequences::new(rows, pass.cu_seqlens.slice(..=sequences)?);
        self.config.pooling.backward(s, &batch, width, dpooled, scratch.blocks.features(rows)?)?;
        self.blocks.backward(&mut b, &batch, &mut pass.activations, &mut scratch.blocks)?;

        let gradient = scratch.blocks.input(s, rows)?;
        let tokens = E::operands(pass.tokens.slice(..rows * inputs)?, &pass.operands);
        let position = pass.position.slice(..2 * rows)?;
        self.embedding.backward(&mut b, rows, tokens, position, gradient.dx, gradient.operands)
    }
}
