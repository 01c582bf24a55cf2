//! The token transformer as functions on a stream: forward, loss and backward of one batch.
//!
//! Its head is a classifier, or it is the encoder of a vision-language model, whose projector and
//! decoder are the head then (`vision_language::learning`). Such an encoder may have patches of
//! pixels instead of tokens.

use std::ops::Range;

use thalweg::{Brand, DeviceBuffer, LiveBrand, Resource, Stream};
use thalweg_kernels::train::{argmax, sum_rows};

use crate::batch::{Extent, HostBatch, MicroBatch, Parts, upload};
use crate::encoder::EncoderConfig;
use crate::error::{Error, Result};
use crate::gate::{Gate, GateConfig, GatePass, GatePassOn};
use crate::layers::{
    BackwardPass, BackwardScratch, BackwardScratchOn, CrossEntropy, ForwardPass, Gelu, GradientSink, Linear,
    PatchActivations, Pooling, Sequences, TokenEmbedding, Transformer, TransformerActivations,
    TransformerActivationsOn, TransformerConfig, TransformerScratch, TransformerScratchOn, WeightsRef,
};
use crate::layout::ParameterLayout;
use crate::matmul_backend::{Matmul, MatmulBackend, MatmulOn};
use crate::metadata::metadata;
use crate::precision::Precision;
use crate::tensors::Tensors;
use crate::vision_language::{
    Decoder, Embedding, Encoder, Half, Seen, TextHead, TextPass, TextPassOn, VisionLanguageConfig,
};

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
    /// The gate of the tokens, by which relevance learns. There is none by default.
    pub gate: Option<GateConfig>,
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
            gate: None,
        }
    }
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
            gate: GateConfig::from_tensors(file)?,
        };
        config.check().map_err(|error| file.format_error(error.to_string()))
    }

    fn check(self) -> Result<Self> {
        self.blocks().check()?;
        GateConfig::check(self.gate)?;
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
        GateConfig::describe(self.gate, file);
    }

    pub(crate) fn blocks(&self) -> TransformerConfig {
        let &Self { embed_dim: width, num_heads: heads, depth, norm_eps: eps, gelu, .. } = self;
        TransformerConfig { width, heads, depth, eps, gelu }
    }
}

/// The places of a model's weights.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) config: TokenTransformerConfig,
    pub(crate) layout: ParameterLayout,
    gate: Option<Gate>,
    embedding: Embedding,
    blocks: Transformer,
    head: Head,
    /// The half that does not learn.
    frozen: Option<Half>,
}

const NO_PATCHES: &str = "the memory of a model with an image encoder has that of patches";

/// The part that makes logits of the features.
#[derive(Clone, Debug)]
enum Head {
    Classes(Linear),
    Text(Box<TextHead>),
}

/// A batch on the device, with what is computed from it: all that one batch in flight needs. Its
/// buffers have room for the largest batch so far.
#[derive(Debug, Resource)]
pub(crate) struct Pass<E: Precision> {
    tokens: DeviceBuffer<f32>,
    operands: DeviceBuffer<E>,
    patches: Option<PatchActivations<E>>,
    position: DeviceBuffer<f32>,
    cu_seqlens: DeviceBuffer<i32>,
    labels: DeviceBuffer<i32>,
    pub(crate) gate: Option<GatePass>,
    matmul: Matmul,
    activations: TransformerActivations<E>,
    pooled: DeviceBuffer<f32>,
    pooled_operand: DeviceBuffer<E>,
    text: Option<TextPass<E>>,
    pub(crate) logits: DeviceBuffer<f32>,
    dlogits: DeviceBuffer<f32>,
    dlogits_operand: DeviceBuffer<E>,
    dpooled: DeviceBuffer<f32>,
    losses: DeviceBuffer<f32>,
    parts: DeviceBuffer<f32>,
    /// The loss of the batch.
    pub(crate) loss: DeviceBuffer<f32>,
    /// The class or the id with the largest logit of each row of them.
    pub(crate) best: DeviceBuffer<i32>,
    /// The largest extent of a batch for which there is room.
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
    decoder: Option<TransformerScratch<E>>,
}

impl<S: LiveBrand, E: Precision> PassOn<S, E> {
    fn new(s: &Stream<S>, products: MatmulBackend, model: &Model, extent: Extent) -> thalweg::Result<Self> {
        let (Extent { rows, sequences, .. }, outputs) = (extent, extent.outputs());
        let (config, texts) = (&model.config, model.texts());
        let &TokenTransformerConfig { input_dim: inputs, num_classes: classes, .. } = config;
        // The numbers of a row that the head sees.
        let width = texts.map_or(config.embed_dim, |texts| texts.text_embed_dim);
        let mut cu_seqlens = s.alloc(sequences + 1)?;
        if let Some(encoder) = model.image_encoder() {
            // All images have as many rows, so a batch need not say it.
            upload(s, &encoder.ends(sequences), &mut cu_seqlens)?;
        }
        Ok(Self {
            tokens: s.alloc(rows * inputs)?,
            operands: s.alloc(rows * inputs * E::ROOM)?,
            patches: model.embedding.images(s, sequences, true)?,
            position: s.alloc(2 * rows)?,
            cu_seqlens,
            labels: s.alloc(outputs)?,
            gate: config.gate.map(|gate| GatePassOn::new(s, gate, inputs, extent)).transpose()?,
            matmul: MatmulOn::new(s, products)?,
            activations: TransformerActivationsOn::new(s, config.blocks(), rows, true)?,
            pooled: s.alloc(outputs * width)?,
            pooled_operand: s.alloc(outputs * width * E::ROOM)?,
            text: texts.map(|texts| TextPassOn::new(s, texts, extent)).transpose()?,
            logits: s.alloc(outputs * classes)?,
            dlogits: s.alloc(outputs * classes)?,
            dlogits_operand: s.alloc(outputs * classes * E::ROOM)?,
            dpooled: s.alloc(outputs * width)?,
            losses: s.alloc(outputs)?,
            parts: s.alloc(thalweg_kernels::train::GROUPS)?,
            loss: s.alloc(1)?,
            best: s.alloc(outputs)?,
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
    pub(crate) fn upload(&mut self, s: &Stream<S>, batch: &impl HostBatch, extent: Extent) -> thalweg::Result<()> {
        self.extent = extent;
        if let Some((texts, pass)) = batch.texts().zip(self.text.as_mut()) {
            pass.upload(s, texts)?;
        }
        if let Some((patches, gate)) = batch.patches().zip(self.gate.as_mut()) {
            gate.upload(s, patches)?;
        }
        let batch = batch.sequences();
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
    pub(crate) fn take(&mut self, s: &Stream<S>, batch: &Parts<'_, S>, extent: Extent) -> thalweg::Result<()> {
        self.extent = extent;
        let (given, rows, b) = (batch.position.len() / 2, extent.rows, extent.labeled());
        if self.patches.is_some() {
            s.copy(batch.tokens, self.tokens.slice_mut(..batch.tokens.len())?)?;
        } else {
            let inputs = batch.tokens.len() / given;
            let (tokens, more) = self.tokens.slice_mut(..rows * inputs)?.split_at_mut(given * inputs)?;
            s.copy(batch.tokens, tokens)?;
            s.zero(more)?;
            let (position, more) = self.position.slice_mut(..2 * rows)?.split_at_mut(2 * given)?;
            s.copy(batch.position, position)?;
            s.zero(more)?;
            s.copy(batch.cu_seqlens, self.cu_seqlens.slice_mut(..=b)?)?;
        }
        if extent.padded {
            s.fill(self.cu_seqlens.slice_mut(b + 1..=b + 1)?, rows as i32)?;
        }
        if let Some((texts, pass)) = batch.texts.zip(self.text.as_mut()) {
            pass.take(s, texts, extent)?;
        }
        if let Some((patches, pass)) = batch.patches.zip(self.gate.as_mut()) {
            pass.take(s, patches, extent)?;
        }
        batch.labels.map_or(Ok(()), |labels| s.copy(labels, self.labels.slice_mut(..b)?))
    }
}

impl Model {
    pub(crate) fn new(config: TokenTransformerConfig) -> Result<Self> {
        let TokenTransformerConfig { input_dim: inputs, embed_dim: width, num_classes: classes, .. } =
            config.check()?;
        let mut layout = ParameterLayout::default();
        let gate = config.gate.map(|gate| Gate::new(&mut layout, gate)).transpose()?;
        let embedding = Embedding::Tokens(TokenEmbedding::new(&mut layout, "", inputs, width)?);
        let blocks = Transformer::new(&mut layout, "", config.blocks())?;
        let head = Head::Classes(Linear::new(&mut layout, "head", width, classes)?);
        Ok(Self { config, layout, gate, embedding, blocks, head, frozen: None })
    }

    /// Makes the model that answers questions about images.
    pub(crate) fn answering(config: VisionLanguageConfig) -> Result<Self> {
        let (mut layout, config) = (ParameterLayout::default(), config.check()?);
        let gate = config.gate.map(|gate| Gate::new(&mut layout, gate)).transpose()?;
        let Encoder { embedding, blocks, projector } = Encoder::new(&mut layout, config)?;
        let decoder = Decoder::new(&mut layout, config)?;
        let head = Head::Text(Box::new(TextHead { config, projector, decoder }));
        let VisionLanguageConfig { input_dim, embed_dim, num_heads, depth, vocab_size, norm_eps, .. } = config;
        let config = TokenTransformerConfig {
            input_dim,
            embed_dim,
            num_heads,
            depth,
            num_classes: vocab_size,
            norm_eps,
            gelu: config.gelu,
            pooling: Pooling::Mean,
            gate: config.gate,
        };
        Ok(Self { config, layout, gate, embedding, blocks, head, frozen: None })
    }

    /// Makes the model of a file.
    pub(crate) fn of(file: &Tensors) -> Result<Self> {
        match file.tensors.contains_key("decoder.tok.weight") {
            true => Self::answering(VisionLanguageConfig::from_tensors(file)?),
            false => Self::new(TokenTransformerConfig::from_tensors(file)?),
        }
    }

    /// Writes the shape to the metadata of a file.
    pub(crate) fn describe(&self, file: &mut Tensors) {
        match self.texts() {
            Some(config) => config.describe(file),
            None => self.config.describe(file),
        }
    }

    /// Returns the shape of the vision-language model, if it is one.
    pub(crate) fn texts(&self) -> Option<&VisionLanguageConfig> {
        if let Head::Text(head) = &self.head { Some(&head.config) } else { None }
    }

    /// Returns the shape of the image encoder, if the model has one.
    fn image_encoder(&self) -> Option<&EncoderConfig> {
        self.texts().and_then(|config| config.image_encoder.as_ref())
    }

    /// Freezes a half of a vision-language model.
    pub(crate) fn freeze(&mut self, half: Option<Half>) -> Result<()> {
        if half.is_some() && self.texts().is_none() {
            return Err(Error::Config("a classifier of tokens has no halves".into()));
        }
        self.frozen = half;
        Ok(())
    }

    /// Returns the half that does not learn.
    pub(crate) fn frozen(&self) -> Option<Half> {
        self.frozen
    }

    /// Returns the weights that learn.
    pub(crate) fn learned(&self) -> Range<usize> {
        let start = |name: &str| {
            let slot = self.layout.slots().iter().find(|slot| slot.name.starts_with(name));
            slot.map_or(self.layout.len(), |slot| slot.range.start)
        };
        match self.frozen {
            None => 0..self.layout.len(),
            Some(Half::Encoder) => start("projector")..self.layout.len(),
            Some(Half::Decoder) => 0..start("decoder"),
        }
    }

    /// Checks a batch, and returns its extent.
    pub(crate) fn check(&self, batch: &impl HostBatch, learns: bool) -> Result<Extent> {
        let shape = [self.config.input_dim, self.config.num_classes];
        self.check_parts(batch.texts().is_some(), batch.patches().is_some())?;
        let mut extent = Extent::of(batch);
        match (self.texts(), batch.texts()) {
            (Some(config), Some(texts)) => {
                match self.images([texts.tokens.len(), texts.position.len(), texts.cu_seqlens.len()])? {
                    Some(images) => (extent.rows, extent.sequences) = (images.rows, images.sequences),
                    None => texts.images().check(shape, false)?,
                }
                texts.check(extent.sequences, [config.vocab_size, config.max_tokens])?;
            }
            _ => batch.sequences().check(shape, learns)?,
        }
        if let Some(patches) = batch.patches() {
            patches.check(batch.sequences().cu_seqlens, self.query_dim())?;
        }
        Ok(extent)
    }

    /// Checks a batch on the device, and returns its extent.
    pub(crate) fn extent<S>(&self, batch: &Parts<'_, S>) -> Result<Extent> {
        self.check_parts(batch.texts.is_some(), batch.patches.is_some())?;
        let images = self.images([batch.tokens.len(), batch.position.len(), batch.cu_seqlens.len()])?;
        batch.extent(self.config.input_dim, images, self.query_dim())
    }

    /// Returns the extent of images with so many pixels, positions and ends of sequences, if the
    /// model has an image encoder.
    fn images(&self, lens: [usize; 3]) -> Result<Option<Extent>> {
        let Some(encoder) = self.image_encoder() else { return Ok(None) };
        let sequences = encoder.images_of(lens)?;
        Ok(Some(Extent { rows: sequences * encoder.rows(), sequences, ..Extent::default() }))
    }

    /// Returns the pixels of so many images.
    fn pixels(&self, images: usize) -> usize {
        self.image_encoder().map_or(0, |encoder| images * encoder.pixels())
    }

    /// Returns the numbers of a query of the gate.
    fn query_dim(&self) -> usize {
        self.config.gate.map_or(0, |gate| gate.query_dim)
    }

    /// Checks that a batch has texts if the model answers, and patches if it has a gate.
    pub(crate) fn check_parts(&self, texts: bool, patches: bool) -> Result<()> {
        let what = match ((self.texts().is_some(), texts), (self.gate.is_some(), patches)) {
            ((true, false), _) => "the model answers questions, and there are none",
            ((false, true), _) => "the model knows classes, and no texts",
            (_, (true, false)) => "the model has a gate, and the batch no patches",
            (_, (false, true)) => "the batch has patches, and the model no gate",
            _ => return Ok(()),
        };
        Err(Error::Batch(what.into()))
    }

    /// Makes room for a batch.
    pub(crate) fn pass<S: LiveBrand, E: Precision>(
        &self,
        s: &Stream<S>,
        products: MatmulBackend,
        extent: Extent,
    ) -> thalweg::Result<PassOn<S, E>> {
        PassOn::new(s, products, self, extent)
    }

    /// Makes room for the gradients of a batch.
    pub(crate) fn scratch<S: LiveBrand, E: Precision>(
        &self,
        s: &Stream<S>,
        products: MatmulBackend,
        extent: Extent,
    ) -> thalweg::Result<ScratchOn<S, E>> {
        let sums = BackwardScratchOn::new(s, products, &self.layout)?;
        let blocks = TransformerScratchOn::new(s, self.config.blocks(), extent.rows)?;
        let decoder = if let Head::Text(head) = &self.head { Some(head.scratch(s, extent)?) } else { None };
        Ok(ScratchOn { sums, blocks, decoder })
    }

    /// Computes the logits.
    pub(crate) fn forward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        pass: &mut PassOn<S, E>,
    ) -> thalweg::Result<()> {
        let TokenTransformerConfig { input_dim: inputs, embed_dim: width, num_classes: classes, .. } = self.config;
        let (extent @ Extent { rows, sequences, .. }, outputs) = (pass.extent, pass.extent.outputs());
        let mut f = ForwardPass::new(s, w, &mut pass.matmul);
        let x = pass.activations.input(rows)?;
        match (&self.embedding, &mut pass.patches) {
            (Embedding::Patches(embedding), Some(patches)) => {
                embedding.cut(s, sequences, pass.tokens.slice(..self.pixels(sequences))?, patches)?;
                embedding.forward(&mut f, sequences, patches, x)?;
            }
            (Embedding::Tokens(embedding), _) => {
                let mut tokens = pass.tokens.slice(..rows * inputs)?;
                if let Some((gate, pass)) = self.gate.as_ref().zip(pass.gate.as_mut()) {
                    gate.forward(&mut f, extent, tokens, pass)?;
                    tokens = pass.tokens(rows * inputs)?;
                }
                let tokens = E::rounded(s, tokens, &mut pass.operands)?;
                embedding.forward(&mut f, rows, tokens, pass.position.slice(..2 * rows)?, x)?;
            }
            (Embedding::Patches(_), None) => unreachable!("{NO_PATCHES}"),
        }

        let batch = Sequences::new(rows, pass.cu_seqlens.slice(..=sequences)?);
        self.blocks.forward(&mut f, &batch, &mut pass.activations)?;
        let (features, logits) = (pass.activations.features(rows)?, pass.logits.slice_mut(..outputs * classes)?);
        match (&self.head, &mut pass.text) {
            (Head::Text(head), Some(text)) => {
                let seen = Seen { extent: pass.extent, image_ends: pass.cu_seqlens.slice(..=sequences)? };
                let labels = pass.labels.slice_mut(..outputs)?;
                let pooled = pass.pooled.slice_mut(..outputs * head.config.text_embed_dim)?;
                head.forward(&mut f, &seen, features, text, labels, pooled)?;
                let pooled = E::rounded(s, pooled, &mut pass.pooled_operand)?;
                head.logits(&mut f, outputs, pooled, logits)
            }
            (Head::Classes(head), _) => {
                let pooled = pass.pooled.slice_mut(..sequences * width)?;
                self.config.pooling.forward(s, &batch, width, features, pooled)?;
                let pooled = E::rounded(s, pooled, &mut pass.pooled_operand)?;
                head.forward_f32(&mut f, sequences, pooled, None, logits)
            }
            (Head::Text(_), None) => unreachable!("the pass of a model that answers has texts"),
        }
    }

    /// Computes the loss, the gradient of the logits and the largest logits. The sum of the losses
    /// is divided by `of`, the number of those of all batches.
    pub(crate) fn loss<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        of: usize,
        pass: &mut PassOn<S, E>,
    ) -> thalweg::Result<()> {
        let classes = self.config.num_classes;
        let b = pass.extent.losses();
        let n = b * classes;
        // The padding has a row of logits, unless these are those of texts.
        if pass.extent.padded && pass.extent.text == 0 {
            s.zero(pass.dlogits.slice_mut(n..n + classes)?)?;
        }
        let (logits, labels) = (pass.logits.slice(..n)?, pass.labels.slice(..b)?);
        let (losses, dlogits) = (pass.losses.slice_mut(..b)?, pass.dlogits.slice_mut(..n)?);
        CrossEntropy::new(classes).forward(s, of, logits, labels, losses, dlogits)?;
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
        let (Extent { rows, sequences, .. }, outputs) = (pass.extent, pass.extent.outputs());
        let dlogits = pass.dlogits.slice(..outputs * classes)?;
        let dlogits = E::rounded(s, dlogits, &mut pass.dlogits_operand)?;
        let mut b = BackwardPass::new(s, w, to, &mut scratch.sums).adding(add);
        let batch = Sequences::new(rows, pass.cu_seqlens.slice(..=sequences)?);
        match (&self.head, &mut pass.text, &mut scratch.decoder) {
            (Head::Text(head), Some(text), Some(decoder)) => {
                let n = outputs * head.config.text_embed_dim;
                let pooled = E::operands(pass.pooled.slice(..n)?, &pass.pooled_operand);
                let (seen, dpooled) =
                    (Seen { extent: pass.extent, image_ends: batch.ends() }, pass.dpooled.slice_mut(..n)?);
                let features = pass.activations.features(rows)?;
                let learns = self.frozen != Some(Half::Encoder);
                let dfeatures = if learns { Some(scratch.blocks.features(rows)?) } else { None };
                head.backward(&mut b, &seen, pooled, dlogits, dpooled, text, decoder, features, dfeatures)?;
                if !learns {
                    return self.zero(s, 0..self.learned().start, to);
                }
            }
            (Head::Classes(head), ..) => {
                let pooled = E::operands(pass.pooled.slice(..sequences * width)?, &pass.pooled_operand);
                head.backward_weight(&mut b, sequences, pooled, dlogits)?;
                let dpooled = pass.dpooled.slice_mut(..sequences * width)?;
                head.backward_input_f32(&mut b, sequences, dlogits, dpooled)?;
                self.config.pooling.backward(s, &batch, width, dpooled, scratch.blocks.features(rows)?)?;
            }
            (Head::Text(_), ..) => unreachable!("the memory of a model that answers has that of texts"),
        }
        self.blocks.backward(&mut b, &batch, &mut pass.activations, &mut scratch.blocks)?;

        let embedding = match (&self.embedding, &mut pass.patches) {
            (Embedding::Tokens(embedding), _) => embedding,
            (Embedding::Patches(embedding), Some(patches)) => {
                return embedding.backward(&mut b, sequences, scratch.blocks.rows(rows)?, patches);
            }
            (Embedding::Patches(_), None) => unreachable!("{NO_PATCHES}"),
        };
        let gradient = scratch.blocks.input(s, rows)?;
        let (position, tokens) = (pass.position.slice(..2 * rows)?, pass.tokens.slice(..rows * inputs)?);
        let seen = match &pass.gate {
            Some(gate) => gate.tokens(rows * inputs)?,
            None => tokens,
        };
        let seen = E::operands(seen, &pass.operands);
        embedding.backward(&mut b, rows, seen, position, gradient.dx, gradient.operands)?;
        let Some((gate, of_gate)) = self.gate.as_ref().zip(pass.gate.as_mut()) else { return Ok(()) };
        embedding.backward_input(&mut b, rows, gradient.operands, of_gate.gradient(rows * inputs)?)?;
        gate.backward(&mut b, pass.extent, tokens, of_gate)
    }

    /// Makes the gradients of a range of the layout zero.
    fn zero<S: Brand>(&self, s: &Stream<S>, range: Range<usize>, to: &mut dyn GradientSink<S>) -> thalweg::Result<()> {
        for slot in self.layout.slots().iter().filter(|slot| range.contains(&slot.range.start)) {
            s.zero(to.at(&slot.range)?)?;
            to.done(&slot.range)?;
        }
        Ok(())
    }
}
