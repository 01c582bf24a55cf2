//! The small vision-language model: a token transformer or timm's vision transformer, which encodes
//! an image, and a decoder that writes text about it, with a key-value cache. `learning` is how it
//! learns to, and `server` writes many texts at once.

mod decoder;
mod learning;
mod server;

use thalweg::{DeviceBuffer, DeviceSlice, LiveBrand, On, Resource, Stream};

use crate::batch::upload;
use crate::encoder::EncoderConfig;
use crate::error::{Error, Result};
use crate::gate::{Gate, GateConfig};
use crate::layers::{
    ForwardPass, Gelu, Linear, PatchActivations, PatchActivationsOn, PatchEmbedding, Pooling, Sequences,
    TokenEmbedding, Transformer, TransformerActivations, TransformerActivationsOn, TransformerConfig, WeightsOn,
};
use crate::layout::ParameterLayout;
use crate::matmul_backend::{Matmul, MatmulBackend, MatmulOn};
use crate::metadata::{blocks, metadata, number};
use crate::precision::Precision;
use crate::tensors::Tensors;
pub(crate) use decoder::Decoder;
pub use decoder::TextDecoder;
pub use learning::Half;
pub(crate) use learning::{Seen, TextHead, TextPass, TextPassOn};
pub use server::{TextRequest, TextServer, TextServerOptions, TextTicket};

/// The number of tokens that [`VisionLanguage::generate`] enqueues before it looks for the end of
/// the text.
const PORTION: usize = 8;

/// The shape of a vision-language model.
#[derive(Clone, Copy, Debug, PartialEq, thalweg::__Setters)]
#[non_exhaustive]
pub struct VisionLanguageConfig {
    /// The numbers of an image token.
    pub input_dim: usize,
    /// The numbers of a row between the blocks of the encoder.
    pub embed_dim: usize,
    /// The heads of the encoder's attention.
    pub num_heads: usize,
    /// The blocks of the encoder.
    pub depth: usize,
    /// The numbers of a row between the blocks of the decoder.
    pub text_embed_dim: usize,
    /// The heads of the decoder's attention.
    pub text_num_heads: usize,
    /// The blocks of the decoder.
    pub text_depth: usize,
    /// The number of ids. Id 0 ends a text.
    pub vocab_size: usize,
    /// The most tokens of a text.
    pub max_tokens: usize,
    /// The number that is added to the variance in a norm.
    pub norm_eps: f32,
    /// The form of GELU.
    pub gelu: Gelu,
    /// The gate of the image tokens, by which relevance learns. There is none by default. A model
    /// that writes takes tokens that were multiplied ([`TokenTransformer::gated`]).
    ///
    /// [`TokenTransformer::gated`]: crate::TokenTransformer::gated
    pub gate: Option<GateConfig>,
    /// The encoder, if it is timm's vision transformer and not a token transformer, which is the
    /// default. The model has its `embed_dim`, `num_heads`, `depth`, `norm_eps` and `gelu` then,
    /// and its patches are the tokens. All its rows are rows of the image, also that of the class
    /// token. It has no head, and there is no gate.
    pub image_encoder: Option<EncoderConfig>,
}

impl Default for VisionLanguageConfig {
    /// 64 numbers a row, 4 heads and 2 blocks in the encoder and in the decoder, for tokens of 13
    /// numbers, and texts of at most 64 tokens of 256 ids.
    fn default() -> Self {
        Self {
            input_dim: 13,
            embed_dim: 64,
            num_heads: 4,
            depth: 2,
            text_embed_dim: 64,
            text_num_heads: 4,
            text_depth: 2,
            vocab_size: 256,
            max_tokens: 64,
            norm_eps: 1e-5,
            gelu: Gelu::Tanh,
            gate: None,
            image_encoder: None,
        }
    }
}

impl VisionLanguageConfig {
    /// Reads the shape of a model from its file: from the shapes of its tensors, and from the
    /// metadata `heads`, `depth`, `decoder_heads`, `decoder_depth`, and if they are there `eps` and
    /// `gelu`. If the file has `encoder.patch_embed.proj.weight`, the encoder is timm's vision
    /// transformer, and the metadata of the encoder may be missing (see
    /// [`EncoderConfig::from_tensors`]).
    ///
    /// # Errors
    /// A tensor or a key is missing, a value makes no sense, or two tensors do not fit together.
    pub fn from_tensors(file: &Tensors) -> Result<Self> {
        let encoder = match file.tensors.contains_key("encoder.patch_embed.proj.weight") {
            true => Self { image_encoder: Some(EncoderConfig::of(file, "encoder.")?), ..Self::default() },
            false => {
                let (heads, depth, eps, gelu, _) = metadata(file, [None, None], (1e-5, Gelu::Tanh, Pooling::Mean))?;
                let [width, inputs] = file.matrix("encoder.embed.weight", None)?;
                let (input_dim, embed_dim, num_heads, norm_eps) = (inputs, width, heads, eps);
                Self { input_dim, embed_dim, num_heads, depth, norm_eps, gelu, ..Self::default() }
            }
        };
        let text_heads = number(file, "decoder_heads", None)?;
        let text_depth = blocks(file, "decoder_depth", None)?;
        let [vocabulary, text_width] = file.matrix("decoder.tok.weight", None)?;
        let [places, _] = file.matrix("decoder.pos.weight", Some(text_width))?;
        let config = Self {
            text_embed_dim: text_width,
            text_num_heads: text_heads,
            text_depth,
            vocab_size: vocabulary,
            max_tokens: places,
            gate: GateConfig::from_tensors(file)?,
            ..encoder
        };
        config.check().map_err(|error| file.format_error(error.to_string()))
    }

    /// Draws weights at random, as the file of a model has them. The same seed gives the same
    /// weights.
    ///
    /// # Errors
    /// The configuration makes no sense, or there is no memory.
    pub fn init(self, seed: u64) -> Result<Tensors> {
        let config = self.check()?;
        let mut file = Tensors::default();
        let [mut encoder, mut decoder] = [ParameterLayout::default(), ParameterLayout::default()];
        Encoder::new(&mut encoder, config)?;
        Decoder::new(&mut decoder, config)?;
        let mut gate = ParameterLayout::default();
        config.gate.map(|config| Gate::new(&mut gate, config)).transpose()?;
        for (part, layout) in [encoder, decoder, gate].iter().enumerate() {
            layout.unflatten(&layout.init(seed.wrapping_add(part as u64 * 0x5851_f42d_4c95_7f2d))?, "", &mut file);
        }
        config.describe(&mut file);
        Ok(file)
    }

    /// Writes what [`from_tensors`](Self::from_tensors) reads from the metadata.
    pub(crate) fn describe(&self, file: &mut Tensors) {
        let gelu = if self.gelu == Gelu::Tanh { "tanh" } else { "erf" };
        for (key, value) in [
            ("heads", self.num_heads.to_string()),
            ("depth", self.depth.to_string()),
            ("decoder_heads", self.text_num_heads.to_string()),
            ("decoder_depth", self.text_depth.to_string()),
            ("eps", self.norm_eps.to_string()),
            ("gelu", gelu.into()),
        ] {
            file.metadata.insert(key.into(), value);
        }
        GateConfig::describe(self.gate, file);
    }

    /// Checks the shape, and returns it with what the image encoder says if there is one.
    pub(crate) fn check(mut self) -> Result<Self> {
        if let Some(encoder) = &mut self.image_encoder {
            encoder.check()?;
            if self.gate.is_some() {
                return Err(Error::Config("a gate multiplies tokens, and an image encoder has pixels".into()));
            }
            // Two models whose heads differ are one, because the head is left out.
            let pooling = if encoder.class_token { Pooling::Class } else { Pooling::Mean };
            (encoder.num_classes, encoder.pooling) = (0, pooling);
            let EncoderConfig { patch_size, embed_dim, num_heads, depth, norm_eps, gelu, .. } = *encoder;
            let input_dim = 3 * patch_size * patch_size;
            self = Self { input_dim, embed_dim, num_heads, depth, norm_eps, gelu, ..self };
        }
        self.encoder().check()?;
        self.decoder().check()?;
        GateConfig::check(self.gate)?;
        let Self { input_dim: inputs, vocab_size: vocabulary, max_tokens: places, .. } = self;
        if inputs == 0 || vocabulary == 0 || places == 0 {
            let what = format!("tokens of {inputs} numbers, {vocabulary} ids and {places} places of text");
            return Err(Error::Config(what));
        }
        Ok(self)
    }

    /// Returns the rows of an image whose tokens have so many numbers of positions.
    fn rows(&self, position: usize) -> usize {
        self.image_encoder.map_or(position / 2, |encoder| encoder.rows())
    }

    /// Returns how many numbers of tokens, or pixels, and of positions images of so many rows have,
    /// or `usize::MAX` if there are more.
    pub(crate) fn image_numbers(&self, rows: usize) -> [usize; 2] {
        let of_pixels = |encoder: EncoderConfig| [(rows / encoder.rows().max(1)).saturating_mul(encoder.pixels()), 0];
        self.image_encoder.map_or([self.input_dim, 2].map(|numbers| rows.saturating_mul(numbers)), of_pixels)
    }

    /// Checks a prompt, behind which `count` tokens are to be written.
    fn check_text(&self, prompt: &[i32], count: usize) -> Result<()> {
        let &Self { vocab_size: vocabulary, max_tokens: places, .. } = self;
        let wrong = |what: String| Err(Error::Batch(what));
        if prompt.is_empty() {
            return wrong("a prompt has a token at least".into());
        }
        if let Some(id) = prompt.iter().find(|&&id| id < 0 || id as usize >= vocabulary) {
            return wrong(format!("the prompt has the id {id}, and there are {vocabulary}"));
        }
        // The last token that is written is never read; all of the prompt is.
        if prompt.len().checked_add(count.max(1)).is_none_or(|all| all > places + 1) {
            return wrong(format!("a prompt of {} and {count} tokens more need over {places} places", prompt.len()));
        }
        Ok(())
    }

    fn encoder(&self) -> TransformerConfig {
        let &Self { embed_dim: width, num_heads: heads, depth, norm_eps: eps, gelu, .. } = self;
        TransformerConfig { width, heads, depth, eps, gelu }
    }

    fn decoder(&self) -> TransformerConfig {
        let &Self { text_embed_dim: width, text_num_heads: heads, text_depth: depth, norm_eps: eps, gelu, .. } = self;
        TransformerConfig { width, heads, depth, eps, gelu }
    }
}

/// The layer whose rows enter the blocks of an encoder.
#[derive(Clone, Debug)]
pub(crate) enum Embedding {
    Tokens(TokenEmbedding),
    Patches(PatchEmbedding),
}

impl Embedding {
    /// Makes the memory for so many images, if they have pixels.
    pub(crate) fn images<S: LiveBrand, E: Precision>(
        &self,
        s: &Stream<S>,
        images: usize,
        learns: bool,
    ) -> thalweg::Result<Option<PatchActivationsOn<S, E>>> {
        match self {
            Self::Tokens(_) => Ok(None),
            Self::Patches(embedding) => PatchActivationsOn::new(s, embedding, images, learns).map(Some),
        }
    }
}

/// The places of the encoder's weights and of the projector's.
#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    pub(crate) embedding: Embedding,
    pub(crate) blocks: Transformer,
    pub(crate) projector: Linear,
}

impl Encoder {
    /// Adds the tensors to a layout.
    pub(crate) fn new(layout: &mut ParameterLayout, config: VisionLanguageConfig) -> Result<Self> {
        let embedding = match config.image_encoder {
            None => Embedding::Tokens(TokenEmbedding::new(layout, "encoder.", config.input_dim, config.embed_dim)?),
            Some(EncoderConfig { image_size, patch_size, class_token, embed_dim, .. }) => Embedding::Patches(
                PatchEmbedding::new(layout, "encoder.", image_size, patch_size, class_token, embed_dim)?,
            ),
        };
        let blocks = Transformer::new(layout, "encoder.", config.encoder())?;
        let projector = Linear::new(layout, "projector", config.embed_dim, config.text_embed_dim)?;
        Ok(Self { embedding, blocks, projector })
    }
}

/// The buffers that the encoder needs for a batch.
#[derive(Debug, Resource)]
struct Encoding<E: Precision> {
    operands: DeviceBuffer<E>,
    patches: Option<PatchActivations<E>>,
    cu_seqlens: DeviceBuffer<i32>,
    matmul: Matmul,
    activations: TransformerActivations<E>,
    features: DeviceBuffer<E>,
    /// The most rows there is room for.
    #[resource(plain)]
    room: usize,
}

/// The first half of a vision-language model on one stream: tokens or pixels of an image to rows
/// that the decoder sees. It computes forward only.
///
/// The first image, and later each batch that has more tokens or images than all before, allocates
/// device memory. All others allocate none.
pub struct VisionEncoder<S: LiveBrand, E: Precision> {
    stream: Stream<S>,
    config: VisionLanguageConfig,
    model: Encoder,
    weights: WeightsOn<S, E>,
    encoding: Option<EncodingOn<S, E>>,
}

impl<S: LiveBrand, E: Precision> std::fmt::Debug for VisionEncoder<S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VisionEncoder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<S: LiveBrand, E: Precision> VisionEncoder<S, E> {
    /// Makes the encoder with the weights of a file (see [`VisionLanguageConfig::from_tensors`]).
    /// If the model has a gate, its tokens are those of
    /// [`TokenTransformer::gated`](crate::TokenTransformer::gated).
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or there is no memory.
    pub fn from_tensors(stream: &Stream<S>, file: &Tensors) -> Result<Self> {
        let config = VisionLanguageConfig::from_tensors(file)?;
        let mut layout = ParameterLayout::default();
        let model = Encoder::new(&mut layout, config)?;
        let weights = WeightsOn::new(stream, &layout.flatten(file, "")?)?;
        Ok(Self { stream: *stream, config, model, weights, encoding: None })
    }

    /// Returns the shape of the model.
    #[must_use]
    pub fn config(&self) -> &VisionLanguageConfig {
        &self.config
    }

    /// Returns the stream that orders the encoder.
    #[must_use]
    pub fn stream(&self) -> Stream<S> {
        self.stream
    }

    /// Encodes the tokens of one image, [R, `input_dim`], which lie at `position`, [R, 2], to the
    /// rows that the decoder sees, `image` [R, `text_embed_dim`]. It returns at once; the stream
    /// computes them. An [image encoder](VisionLanguageConfig::image_encoder) has the pixels [3,
    /// `image_size`, `image_size`] as `tokens`, no positions, and
    /// [`EncoderConfig::rows`] rows.
    ///
    /// # Errors
    /// A length does not fit, there is no memory, or the device failed.
    pub fn encode(
        &mut self,
        tokens: &DeviceSlice<S, f32>,
        position: &DeviceSlice<S, f32>,
        image: &mut DeviceSlice<S, f32>,
    ) -> Result<()> {
        self.encode_batch(&[self.config.rows(position.len())], tokens, position, image)
    }

    /// Encodes several images at once: one of each of so many `rows`, behind one another in the
    /// other arguments, as for [`encode`](Self::encode). The images of an
    /// [image encoder](VisionLanguageConfig::image_encoder) all have its rows.
    ///
    /// The bits of an image may depend on the rows that are encoded with it: other kernels multiply
    /// at most 128 rows, and GPUs of compute capability 9.0 split long sums over few rows.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_batch(
        &mut self,
        rows: &[usize],
        tokens: &DeviceSlice<S, f32>,
        position: &DeviceSlice<S, f32>,
        image: &mut DeviceSlice<S, f32>,
    ) -> Result<()> {
        let VisionLanguageConfig { embed_dim: width, text_embed_dim: text_width, image_encoder, .. } = self.config;
        let (images, of_images) = (rows.len(), rows);
        let wrong = |&rows: &usize| rows == 0 || image_encoder.is_some_and(|encoder| rows != encoder.rows());
        let all = of_images.iter().try_fold(0, |all: usize, &rows| all.checked_add(rows));
        let fits = |&all: &usize| all > 0 && i32::try_from(all).is_ok() && !of_images.iter().any(wrong);
        let Some(rows) = all.filter(fits) else {
            return Err(Error::Batch(format!("there are images of {of_images:?} rows")));
        };
        let [of_tokens, of_positions] = self.config.image_numbers(rows);
        for (name, len, wanted) in [
            ("position", position.len(), of_positions),
            ("tokens", tokens.len(), of_tokens),
            ("image", image.len(), rows * text_width),
        ] {
            if len != wanted {
                return Err(Error::Batch(format!("`{name}` has {len} numbers, and not {wanted} for {rows} rows")));
            }
        }
        let s = &self.stream;
        let encoding = match self.encoding.take() {
            Some(encoding) if encoding.room >= rows && encoding.cu_seqlens.len() > images => encoding,
            old => {
                let room = old.as_ref().map_or(rows, |old| old.room.max(rows));
                let most = old.as_ref().map_or(images, |old| (old.cu_seqlens.len() - 1).max(images));
                drop(old); // its memory is free before the new one is allocated
                EncodingOn {
                    operands: s.alloc(room * self.config.input_dim * E::ROOM)?,
                    patches: self.model.embedding.images(s, most, false)?,
                    cu_seqlens: s.alloc(most + 1)?,
                    matmul: MatmulOn::new(s, MatmulBackend::default())?,
                    activations: TransformerActivationsOn::new(s, self.config.encoder(), room, false)?,
                    features: s.alloc(room * width * E::ROOM)?,
                    room,
                }
            }
        };
        let (encoding, w) = (self.encoding.insert(encoding), self.weights.view());
        let ends = of_images.iter().scan(0, |end, rows| {
            *end += rows;
            Some(*end as i32)
        });
        let ends: Vec<_> = std::iter::once(0).chain(ends).collect();
        let cu_seqlens = encoding.cu_seqlens.slice_mut(..=images).map_err(thalweg::Error::from)?;
        upload(s, &ends, cu_seqlens)?;
        let mut f = ForwardPass::new(s, w, &mut encoding.matmul);
        let x = encoding.activations.input(rows)?;
        match (&self.model.embedding, &mut encoding.patches) {
            (Embedding::Patches(embedding), Some(patches)) => {
                embedding.cut(s, images, tokens, patches)?;
                embedding.forward(&mut f, images, patches, x)?;
            }
            (Embedding::Tokens(embedding), _) => {
                let tokens = E::rounded(s, tokens, &mut encoding.operands)?;
                embedding.forward(&mut f, rows, tokens, position, x)?;
            }
            (Embedding::Patches(_), None) => unreachable!("the memory of an image encoder has that of patches"),
        }
        let batch = Sequences::new(rows, cu_seqlens);
        self.model.blocks.forward(&mut f, &batch, &mut encoding.activations)?;
        let features = E::rounded(s, encoding.activations.features(rows)?, &mut encoding.features)?;
        Ok(self.model.projector.forward_f32(&mut f, rows, features, None, image)?)
    }
}

/// A vision-language model on one stream: tokens of an image and a prompt to text.
///
/// [`VisionEncoder`] and [`TextDecoder`] are its halves, which may be on streams of their own.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::{VisionLanguage, VisionLanguageConfig};
///
/// stream_tags!(Work);
/// let work = Device::cpu()?.stream::<Work>()?;
/// let config = VisionLanguageConfig::default()
///     .with_input_dim(3)
///     .with_embed_dim(16)
///     .with_num_heads(2)
///     .with_depth(1)
///     .with_text_embed_dim(32)
///     .with_vocab_size(20)
///     .with_max_tokens(12);
/// let mut model = VisionLanguage::<_, f32>::from_tensors(&work, &config.init(7)?)?;
///
/// // An image of two tokens, and a prompt of two.
/// let (tokens, position, prompt) = ([0.0, 0.5, 1.0, 1.0, 0.5, 0.0], [0.0, 0.0, 0.5, 0.5], [3, 1]);
/// let text = model.generate(&tokens, &position, &prompt, 5)?;
/// assert!(text.len() <= 5 && text.iter().all(|&id| id < 20));
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub struct VisionLanguage<S: LiveBrand, E: Precision> {
    encoder: VisionEncoder<S, E>,
    decoder: TextDecoder<S, E>,
    /// Room for what comes from the host, and for what the halves give each other.
    tokens: On<S, DeviceBuffer<f32>>,
    position: On<S, DeviceBuffer<f32>>,
    image: On<S, DeviceBuffer<f32>>,
}

impl<S: LiveBrand, E: Precision> std::fmt::Debug for VisionLanguage<S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VisionLanguage").field("config", self.config()).finish_non_exhaustive()
    }
}

impl<S: LiveBrand, E: Precision> VisionLanguage<S, E> {
    /// Makes a model with the weights of a file (see [`VisionLanguageConfig::from_tensors`]).
    /// If the model has a gate, its tokens are those of
    /// [`TokenTransformer::gated`](crate::TokenTransformer::gated).
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or there is no memory.
    pub fn from_tensors(stream: &Stream<S>, file: &Tensors) -> Result<Self> {
        let encoder = VisionEncoder::from_tensors(stream, file)?;
        let decoder = TextDecoder::from_tensors(stream, file)?;
        let (tokens, position, image) = (stream.alloc(0)?, stream.alloc(0)?, stream.alloc(0)?);
        Ok(Self { encoder, decoder, tokens, position, image })
    }

    /// Returns the shape of the model.
    #[must_use]
    pub fn config(&self) -> &VisionLanguageConfig {
        self.encoder.config()
    }

    /// Uploads the tokens of an image, encodes them, and returns the number of rows.
    fn encode(&mut self, tokens: &[f32], position: &[f32]) -> Result<usize> {
        let Self { encoder, tokens: on_device, position: places, image, .. } = self;
        let (s, rows) = (&encoder.stream, encoder.config.rows(position.len()));
        let elements = rows * encoder.config.text_embed_dim;
        for (buffer, len) in [(&mut *on_device, tokens.len()), (&mut *places, position.len()), (&mut *image, elements)]
        {
            if buffer.len() < len {
                *buffer = s.alloc(len)?;
            }
        }
        upload(s, tokens, on_device)?;
        upload(s, position, places)?;
        let (tokens, position) = (on_device.slice(..tokens.len())?, places.slice(..position.len())?);
        encoder.encode(tokens, position, image.slice_mut(..elements)?)?;
        Ok(rows)
    }

    /// Computes the logits after each token of a prompt about an image of `tokens` [R, `input_dim`]
    /// at `position` [R, 2], and waits for them: [`prompt.len()`, `vocab_size`]. An
    /// [image encoder](VisionLanguageConfig::image_encoder) has the pixels [3, `image_size`,
    /// `image_size`] as `tokens`, and no positions.
    ///
    /// # Errors
    /// The image is empty; the prompt is empty, too long, or has an id that is none; a length does
    /// not fit; there is no memory; or the device failed.
    pub fn logits(&mut self, tokens: &[f32], position: &[f32], prompt: &[i32]) -> Result<Vec<f32>> {
        let rows = self.encode(tokens, position)?;
        self.decoder.logits(self.image.slice(..rows * self.decoder.config().text_embed_dim)?, prompt)
    }

    /// Writes text about an image until id 0, which is the last one then, or until `count` tokens,
    /// and waits for it. Each token is the id with the largest logit, the lowest one among equals.
    ///
    /// # Errors
    /// As for [`logits`](Self::logits), or the prompt and the text would be longer than `max_tokens`.
    pub fn generate(&mut self, tokens: &[f32], position: &[f32], prompt: &[i32], count: usize) -> Result<Vec<i32>> {
        let rows = self.encode(tokens, position)?;
        let Self { decoder, image, .. } = self;
        let image = image.slice(..rows * decoder.config().text_embed_dim)?;
        decoder.check(image, prompt, count)?;
        decoder.load(image, prompt)?;
        let mut text = vec![];
        while text.len() < count {
            let portion = text.len()..count.min(text.len() + PORTION);
            decoder.write_part(rows, prompt.len(), portion.clone())?;
            for id in decoder.read(portion)? {
                text.push(id);
                if id == 0 {
                    return Ok(text);
                }
            }
        }
        Ok(text)
    }
}
