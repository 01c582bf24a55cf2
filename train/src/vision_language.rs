//! The small vision-language model: a token transformer that encodes an image, and a decoder that
//! writes text about it, with a key-value cache.

use std::ops::Range;

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, On, Resource, Stream};
use thalweg_kernels::linear::{Epilogue, Matrix, MatrixMut};
use thalweg_kernels::train::{argmax, text};

use crate::blocks::{Activations, ActivationsOn, Blocks, Gelu, Sequences, Shape};
use crate::error::{Error, Result};
use crate::layers::{Embedding, ParametersOn, Weights};
use crate::layout::{Layout, Linear};
use crate::model::{Pool, metadata, upload};
use crate::precision::Precision;
use crate::products::Products;
use crate::tensors::Tensors;

/// How many tokens [`VisionLanguage::generate`] enqueues before it looks for the end of the text.
const PORTION: usize = 8;

/// The shape of a vision-language model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VisionLanguageConfig {
    /// The numbers of an image token.
    pub inputs: usize,
    /// The numbers of a row between the blocks of the encoder.
    pub width: usize,
    /// The heads of the encoder's attention.
    pub heads: usize,
    /// The blocks of the encoder.
    pub depth: usize,
    /// The numbers of a row between the blocks of the decoder.
    pub text_width: usize,
    /// The heads of the decoder's attention.
    pub text_heads: usize,
    /// The blocks of the decoder.
    pub text_depth: usize,
    /// The number of ids. Id 0 ends a text.
    pub vocabulary: usize,
    /// The most tokens of a text.
    pub places: usize,
    /// What is added to the variance in a norm.
    pub eps: f32,
    /// The form of GELU.
    pub gelu: Gelu,
}

impl VisionLanguageConfig {
    /// Reads the shape of a model from its file: from the shapes of its tensors, and from the metadata
    /// `heads`, `depth`, `decoder_heads`, `decoder_depth`, and if they are there `eps` and `gelu`.
    ///
    /// # Errors
    /// A tensor or a key is missing, or a value makes no sense.
    pub fn of(file: &Tensors) -> Result<Self> {
        let (heads, depth, eps, gelu, _) = metadata(file, 1e-5, Gelu::Tanh, Pool::Mean)?;
        let needed = |key| file.value(key)?.ok_or_else(|| file.wrong(format!("the metadata has no `{key}`")));
        let (text_heads, text_depth) = (needed("decoder_heads")?, needed("decoder_depth")?);
        let two = |name| match file.shape(name)? {
            &[a, b] => Ok([a, b]),
            _ => Err(file.wrong(format!("`{name}` has not two dimensions"))),
        };
        let [width, inputs] = two("encoder.embed.weight")?;
        let ([vocabulary, text_width], [places, _]) = (two("decoder.tok.weight")?, two("decoder.pos.weight")?);
        let config =
            Self { inputs, width, heads, depth, text_width, text_heads, text_depth, vocabulary, places, eps, gelu };
        config.check().map_err(|error| file.wrong(error.to_string()))
    }

    /// Draws weights at random, as the file of a model has them. The same seed gives the same weights.
    ///
    /// # Errors
    /// The configuration makes no sense.
    pub fn draw(self, seed: u64) -> Result<Tensors> {
        self.check()?;
        let mut file = Tensors::default();
        for (part, layout) in [Encoder::new(self).layout, Decoder::new(self).layout].iter().enumerate() {
            layout.unflatten(&layout.draw(seed.wrapping_add(part as u64 * 0x5851_f42d_4c95_7f2d)), "", &mut file);
        }
        let gelu = if self.gelu == Gelu::Tanh { "tanh" } else { "erf" };
        for (key, value) in [
            ("heads", self.heads.to_string()),
            ("depth", self.depth.to_string()),
            ("decoder_heads", self.text_heads.to_string()),
            ("decoder_depth", self.text_depth.to_string()),
            ("eps", self.eps.to_string()),
            ("gelu", gelu.into()),
        ] {
            file.metadata.insert(key.into(), value);
        }
        Ok(file)
    }

    fn check(self) -> Result<Self> {
        self.encoder().check()?;
        self.decoder().check()?;
        let Self { inputs, vocabulary, places, .. } = self;
        if inputs == 0 || vocabulary == 0 || places == 0 {
            let what = format!("tokens of {inputs} numbers, {vocabulary} ids and {places} places of text");
            return Err(Error::Config(what));
        }
        Ok(self)
    }

    fn encoder(&self) -> Shape {
        let &Self { width, heads, depth, eps, gelu, .. } = self;
        Shape { width, heads, depth, eps, gelu }
    }

    fn decoder(&self) -> Shape {
        let &Self { text_width: width, text_heads: heads, text_depth: depth, eps, gelu, .. } = self;
        Shape { width, heads, depth, eps, gelu }
    }
}

/// The places of the encoder's weights and of the projector's.
#[derive(Clone, Debug)]
struct Encoder {
    layout: Layout,
    embedding: Embedding,
    blocks: Blocks,
    projector: Linear,
}

impl Encoder {
    fn new(config: VisionLanguageConfig) -> Self {
        let mut layout = Layout::default();
        let embedding = Embedding::new(&mut layout, "encoder.", config.width, config.inputs);
        let blocks = Blocks::new(&mut layout, config.encoder(), "encoder.");
        let projector = layout.linear("projector", config.text_width, config.width);
        Self { layout, embedding, blocks, projector }
    }
}

/// The places of the decoder's weights.
#[derive(Clone, Debug)]
struct Decoder {
    layout: Layout,
    token: Range<usize>,
    position: Range<usize>,
    blocks: Blocks,
}

impl Decoder {
    fn new(config: VisionLanguageConfig) -> Self {
        let mut layout = Layout::default();
        let token = layout.add("decoder.tok.weight", &[config.vocabulary, config.text_width]);
        let position = layout.add("decoder.pos.weight", &[config.places, config.text_width]);
        let blocks = Blocks::new(&mut layout, config.decoder(), "decoder.");
        Self { layout, token, position, blocks }
    }
}

/// What the encoder needs for one image.
#[derive(Debug, Resource)]
struct Encoding<E: Precision> {
    operands: DeviceBuffer<E>,
    cu_seqlens: DeviceBuffer<i32>,
    activations: Activations<E>,
    features: DeviceBuffer<E>,
    /// The most rows there is room for.
    #[resource(plain)]
    room: usize,
}

/// The first half of a vision-language model on one stream: tokens of an image to rows that the
/// decoder sees. It computes forward only.
///
/// The first image, and later each that has more tokens than all before, allocates device memory. All
/// others allocate none.
pub struct VisionEncoder<S: LiveBrand, E: Precision> {
    stream: Stream<S>,
    config: VisionLanguageConfig,
    model: Encoder,
    weights: ParametersOn<S, E>,
    encoding: Option<EncodingOn<S, E>>,
}

impl<S: LiveBrand, E: Precision> std::fmt::Debug for VisionEncoder<S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VisionEncoder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<S: LiveBrand, E: Precision> VisionEncoder<S, E> {
    /// Makes the encoder with the weights of a file (see [`VisionLanguageConfig::of`]).
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or there is no memory.
    pub fn from_tensors(stream: &Stream<S>, file: &Tensors) -> Result<Self> {
        let config = VisionLanguageConfig::of(file)?;
        let model = Encoder::new(config);
        let weights = ParametersOn::fixed(stream, &model.layout.flatten(file, "")?)?;
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

    /// Encodes the tokens of one image, [R, inputs], which lie at `position`, [R, 2], to the rows that the
    /// decoder sees, `image` [R, text width]. It returns at once; the stream computes them.
    ///
    /// # Errors
    /// A length does not fit, there is no memory, or the device failed.
    pub fn encode(
        &mut self,
        tokens: &DeviceSlice<S, f32>,
        position: &DeviceSlice<S, f32>,
        image: &mut DeviceSlice<S, f32>,
    ) -> Result<()> {
        let VisionLanguageConfig { inputs, width, text_width, .. } = self.config;
        let rows = position.len() / 2;
        for (name, len, of) in
            [("position", position.len(), 2), ("tokens", tokens.len(), inputs), ("image", image.len(), text_width)]
        {
            if rows == 0 || len != rows * of {
                return Err(Error::Batch(format!("`{name}` has {len} numbers, and not {rows} x {of}")));
            }
        }
        let s = &self.stream;
        let encoding = match self.encoding.take() {
            Some(encoding) if encoding.room >= rows => encoding,
            old => {
                drop(old); // its memory is free before the new one is allocated
                EncodingOn {
                    operands: s.alloc(rows * inputs * E::ROOM)?,
                    cu_seqlens: s.alloc(2)?,
                    activations: ActivationsOn::cached(s, Products::default(), self.config.encoder(), rows, rows)?,
                    features: s.alloc(rows * width * E::ROOM)?,
                    room: rows,
                }
            }
        };
        let (encoding, w) = (self.encoding.insert(encoding), self.weights.weights());
        upload(s, &[0, rows as i32], &mut encoding.cu_seqlens)?;
        let x = encoding.activations.input_by(rows * width)?;
        self.model.embedding.forward(s, w, rows, [tokens, position], &mut encoding.operands, x)?;
        let batch = Sequences { rows, prefix: u32::MAX, cu_seqlens: &encoding.cu_seqlens };
        self.model.blocks.forward(s, w, &batch, &mut encoding.activations)?;
        let (features, by) = encoding.activations.features_by(rows * width)?;
        let features = E::rounded(s, features, &mut encoding.features)?;
        Ok(self.model.projector.wide(s, w, rows, features, None, (image, by))?)
    }
}

/// What the decoder needs for one text. The queries, keys and values of each block have room for all
/// rows of image and text: they are the cache.
#[derive(Debug, Resource)]
struct Decoding<E: Precision> {
    activations: Activations<E>,
    prompt: DeviceBuffer<i32>,
    /// 0 and `n` for each number of rows `n`: where a sequence of `n` rows begins and ends.
    ends: DeviceBuffer<i32>,
    rows: DeviceBuffer<E>,
    logits: DeviceBuffer<f32>,
    /// The most image rows there is room for.
    #[resource(plain)]
    room: usize,
}

/// The second half of a vision-language model on one stream: rows of an image and a prompt to text. It
/// computes forward only, with a key-value cache: each new token costs one row.
///
/// The decoder's sequence is the image rows, then the text. An image row sees all image rows, and a text
/// row sees the image rows and the text up to itself.
///
/// The first image, and later each that has more rows than all before, allocates device memory. All others
/// allocate none.
pub struct TextDecoder<S: LiveBrand, E: Precision> {
    stream: Stream<S>,
    config: VisionLanguageConfig,
    model: Decoder,
    weights: ParametersOn<S, E>,
    decoding: Option<DecodingOn<S, E>>,
}

impl<S: LiveBrand, E: Precision> std::fmt::Debug for TextDecoder<S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextDecoder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<S: LiveBrand, E: Precision> TextDecoder<S, E> {
    /// Makes the decoder with the weights of a file (see [`VisionLanguageConfig::of`]).
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or there is no memory.
    pub fn from_tensors(stream: &Stream<S>, file: &Tensors) -> Result<Self> {
        let config = VisionLanguageConfig::of(file)?;
        let model = Decoder::new(config);
        let weights = ParametersOn::fixed(stream, &model.layout.flatten(file, "")?)?;
        Ok(Self { stream: *stream, config, model, weights, decoding: None })
    }

    /// Returns the shape of the model.
    #[must_use]
    pub fn config(&self) -> &VisionLanguageConfig {
        &self.config
    }

    /// Returns the stream that orders the decoder.
    #[must_use]
    pub fn stream(&self) -> Stream<S> {
        self.stream
    }

    /// Writes `ids.len()` tokens of text about an image, `image` [R, text width], after the prompt. Each is
    /// the id with the largest logit, the lowest one among equals. It returns at once; the stream computes
    /// the tokens, and each one takes the one before from device memory.
    ///
    /// A text ends at the first id 0. What stands behind it means nothing: it is computed so that the host
    /// need not wait for each token.
    ///
    /// # Errors
    /// The prompt is empty, has an id that is none, or is too long with the tokens to write; a length does
    /// not fit; there is no memory; or the device failed.
    pub fn write(&mut self, image: &DeviceSlice<S, f32>, prompt: &[i32], ids: &mut DeviceSlice<S, i32>) -> Result<()> {
        self.check(image, prompt, ids.len())?;
        self.begin(image, prompt)?;
        self.extend(image.len() / self.config.text_width, prompt.len(), 0..ids.len(), ids)
    }

    /// Computes the logits of each token of a prompt, [prompt, vocabulary], and waits for them.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn logits(&mut self, image: &DeviceSlice<S, f32>, prompt: &[i32]) -> Result<Vec<f32>> {
        self.check(image, prompt, 1)?;
        self.begin(image, prompt)?;
        self.predict(image.len() / self.config.text_width, prompt.len())?;
        let decoding = self.decoding.as_ref().expect("`begin` has made it");
        Ok(self.stream.read_blocking(decoding.logits.slice(..prompt.len() * self.config.vocabulary)?)?)
    }

    fn check(&self, image: &DeviceSlice<S, f32>, prompt: &[i32], count: usize) -> Result<()> {
        let VisionLanguageConfig { text_width, vocabulary, places, .. } = self.config;
        let wrong = |what: String| Err(Error::Batch(what));
        if image.is_empty() || !image.len().is_multiple_of(text_width) {
            return wrong(format!("`image` has {} numbers, and not rows of {text_width}", image.len()));
        }
        if prompt.is_empty() {
            return wrong("a prompt has a token at least".into());
        }
        if let Some(id) = prompt.iter().find(|&&id| id < 0 || id as usize >= vocabulary) {
            return wrong(format!("the prompt has the id {id}, and there are {vocabulary}"));
        }
        // The last token that is written is never read.
        if prompt.len().checked_add(count).is_none_or(|all| all > places + 1) {
            return wrong(format!("a prompt of {} and {count} tokens more need over {places} places", prompt.len()));
        }
        Ok(())
    }

    /// Puts the image and the prompt through the blocks.
    fn begin(&mut self, image: &DeviceSlice<S, f32>, prompt: &[i32]) -> Result<()> {
        let VisionLanguageConfig { text_width: width, vocabulary, places, .. } = self.config;
        let (s, rows) = (&self.stream, image.len() / width);
        let decoding = match self.decoding.take() {
            Some(decoding) if decoding.room >= rows => decoding,
            old => {
                drop(old); // its memory is free before the new one is allocated
                let all = rows + places;
                let mut ends = s.alloc(2 * (all + 1))?;
                upload(s, &(0..=all as i32).flat_map(|end| [0, end]).collect::<Vec<_>>(), &mut ends)?;
                DecodingOn {
                    activations: ActivationsOn::cached(s, Products::default(), self.config.decoder(), all, all)?,
                    prompt: s.alloc(places)?,
                    ends,
                    rows: s.alloc(places * width * E::ROOM)?,
                    logits: s.alloc(places * vocabulary)?,
                    room: rows,
                }
            }
        };
        let decoding = self.decoding.insert(decoding);
        upload(s, prompt, &mut decoding.prompt)?;
        let all = rows + prompt.len();
        let x = decoding.activations.input(all * width)?;
        let (of_image, of_text) = x.split_at_mut(rows * width)?;
        s.copy(image, of_image)?;
        let w = self.weights.weights();
        self.model.text(s, w, &self.config, 0, decoding.prompt.slice(..prompt.len())?, of_text)?;
        self.model.forward(s, w, rows, 0..all, decoding)
    }

    /// Writes the tokens `which` of a text about `rows` image rows, behind a prompt. Those before are
    /// written.
    fn extend(&mut self, rows: usize, prompt: usize, which: Range<usize>, ids: &mut DeviceSlice<S, i32>) -> Result<()> {
        let VisionLanguageConfig { text_width: width, vocabulary, .. } = self.config;
        for k in which {
            let place = prompt + k;
            let (first, count) = if k > 0 { (0, 1) } else { (rows + place - 1, 1) };
            if k > 0 {
                let (s, w) = (&self.stream, self.weights.weights());
                let decoding = self.decoding.as_mut().expect("`begin` has made it");
                let x = decoding.activations.input(width)?;
                self.model.text(s, w, &self.config, place - 1, ids.slice(k - 1..k)?, x)?;
                self.model.forward(s, w, rows, rows + place - 1..rows + place, decoding)?;
            }
            self.predict(first, count)?;
            let decoding = self.decoding.as_ref().expect("`begin` has made it");
            let logits = decoding.logits.slice(..vocabulary)?;
            argmax(&self.stream, 1, vocabulary as u32, logits, ids.slice_mut(k..=k)?)?;
        }
        Ok(())
    }

    /// Computes the logits of `count` rows of the newest ones, from row `first` of them on.
    fn predict(&mut self, first: usize, count: usize) -> Result<()> {
        let VisionLanguageConfig { text_width: width, vocabulary, .. } = self.config;
        let (s, w) = (&self.stream, self.weights.weights());
        let decoding = self.decoding.as_mut().expect("`begin` has made it");
        let (features, by) = decoding.activations.features_by((first + count) * width)?;
        let features = features.slice(first * width..)?;
        let features = Matrix::new(E::rounded(s, features, &mut decoding.rows)?, count, width);
        let table = Matrix::new(w.operands.slice(self.model.token.clone())?, vocabulary, width).transposed();
        let logits = MatrixMut::new(decoding.logits.slice_mut(..count * vocabulary)?, count, vocabulary);
        Ok(E::wide(s, by, features, table, &Epilogue::default(), logits)?)
    }
}

impl Decoder {
    /// Computes the rows of text tokens from their ids and places.
    fn text<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        config: &VisionLanguageConfig,
        place: usize,
        ids: &DeviceSlice<S, i32>,
        x: &mut DeviceSlice<S, f32>,
    ) -> Result<()> {
        let (table, position) = (w.wide.slice(self.token.clone())?, w.wide.slice(self.position.clone())?);
        let [n, v, l, c, start] =
            [ids.len(), config.vocabulary, config.places, config.text_width, place].map(|extent| extent as u32);
        Ok(text(s, n, v, l, c, start, ids, table, position, x)?)
    }

    /// Puts the rows `new` through the blocks, whose cache has the rows before. The first `image` rows are
    /// those of the image.
    fn forward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: Weights<'_, S, E>,
        image: usize,
        new: Range<usize>,
        decoding: &mut DecodingOn<S, E>,
    ) -> Result<()> {
        let sequence = |rows: usize| decoding.ends.slice(2 * rows..2 * rows + 2);
        let (cu_seqlens, all) = (sequence(new.len())?, sequence(new.end)?);
        let batch = Sequences { rows: new.len(), prefix: image as u32, cu_seqlens };
        Ok(self.blocks.extend(s, w, &batch, (new.start, all), &mut decoding.activations)?)
    }
}

/// A vision-language model on one stream: tokens of an image and a prompt to text.
///
/// [`VisionEncoder`] and [`TextDecoder`] are its halves, which may be on streams of their own.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::{Gelu, VisionLanguage, VisionLanguageConfig};
///
/// stream_tags!(Work);
/// let work = Device::cpu()?.stream::<Work>()?;
/// let encoder = (3, 16, 2, 1);
/// let (inputs, width, heads, depth) = encoder;
/// let config = VisionLanguageConfig {
///     inputs,
///     width,
///     heads,
///     depth,
///     text_width: 32,
///     text_heads: 4,
///     text_depth: 2,
///     vocabulary: 20,
///     places: 12,
///     eps: 1e-5,
///     gelu: Gelu::Tanh,
/// };
/// let mut model = VisionLanguage::<_, f32>::from_tensors(&work, &config.draw(7)?)?;
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
    ids: On<S, DeviceBuffer<i32>>,
}

impl<S: LiveBrand, E: Precision> std::fmt::Debug for VisionLanguage<S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VisionLanguage").field("config", self.config()).finish_non_exhaustive()
    }
}

impl<S: LiveBrand, E: Precision> VisionLanguage<S, E> {
    /// Makes a model with the weights of a file (see [`VisionLanguageConfig::of`]).
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or there is no memory.
    pub fn from_tensors(stream: &Stream<S>, file: &Tensors) -> Result<Self> {
        let encoder = VisionEncoder::from_tensors(stream, file)?;
        let decoder = TextDecoder::from_tensors(stream, file)?;
        let ids = stream.alloc(encoder.config.places)?;
        let (tokens, position, image) = (stream.alloc(0)?, stream.alloc(0)?, stream.alloc(0)?);
        Ok(Self { encoder, decoder, tokens, position, image, ids })
    }

    /// Returns the shape of the model.
    #[must_use]
    pub fn config(&self) -> &VisionLanguageConfig {
        self.encoder.config()
    }

    /// Uploads the tokens of an image, encodes them, and returns the number of rows.
    fn encode(&mut self, tokens: &[f32], position: &[f32]) -> Result<usize> {
        let Self { encoder, tokens: on_device, position: places, image, .. } = self;
        let (s, rows) = (&encoder.stream, position.len() / 2);
        let elements = rows * encoder.config.text_width;
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

    /// Computes the logits of each token of a prompt about an image of `tokens` [R, inputs] at `position`
    /// [R, 2], and waits for them: [prompt, vocabulary].
    ///
    /// # Errors
    /// The image is empty; the prompt is empty, too long, or has an id that is none; a length does not fit;
    /// there is no memory; or the device failed.
    pub fn logits(&mut self, tokens: &[f32], position: &[f32], prompt: &[i32]) -> Result<Vec<f32>> {
        let rows = self.encode(tokens, position)?;
        self.decoder.logits(self.image.slice(..rows * self.decoder.config.text_width)?, prompt)
    }

    /// Writes text about an image until id 0, which is the last one then, or until `count` tokens, and waits
    /// for it. Each token is the id with the largest logit, the lowest one among equals.
    ///
    /// # Errors
    /// As for [`logits`](Self::logits), or the text would have more tokens than places.
    pub fn generate(&mut self, tokens: &[f32], position: &[f32], prompt: &[i32], count: usize) -> Result<Vec<i32>> {
        let rows = self.encode(tokens, position)?;
        let Self { decoder, image, ids, .. } = self;
        let image = image.slice(..rows * decoder.config.text_width)?;
        decoder.check(image, prompt, count)?;
        decoder.begin(image, prompt)?;
        let mut text = vec![];
        while text.len() < count {
            let portion = text.len()..count.min(text.len() + PORTION);
            decoder.extend(rows, prompt.len(), portion.clone(), ids)?;
            for id in decoder.stream.read_blocking(ids.slice(portion)?)? {
                text.push(id);
                if id == 0 {
                    return Ok(text);
                }
            }
        }
        Ok(text)
    }
}
