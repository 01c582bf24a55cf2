//! The half of a vision-language model that writes text, with a key-value cache.

use std::ops::Range;

use thalweg::{Brand, DeviceBuffer, DeviceSlice, Graph, GraphCache, GraphWork, LiveBrand, Resource, Stream};
use thalweg_kernels::train::argmax;

use super::VisionLanguageConfig;
use crate::batch::upload;
use crate::error::{Error, Result};
use crate::layers::{
    ForwardPass, Sequences, TextEmbedding, Transformer, TransformerActivations, TransformerActivationsOn, Weights,
    WeightsOn, WeightsRef,
};
use crate::layout::ParameterLayout;
use crate::matmul_backend::{Matmul, MatmulBackend, MatmulOn};
use crate::precision::Precision;
use crate::tensors::Tensors;

/// The places of the decoder's weights.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    pub(super) embedding: TextEmbedding,
    pub(super) blocks: Transformer,
}

impl Decoder {
    /// Adds the tensors to a layout.
    pub(crate) fn new(layout: &mut ParameterLayout, config: VisionLanguageConfig) -> Result<Self> {
        let VisionLanguageConfig { vocab_size, max_tokens, text_embed_dim: width, .. } = config;
        let embedding = TextEmbedding::new(layout, "decoder.", vocab_size, max_tokens, width)?;
        let blocks = Transformer::new(layout, "decoder.", config.decoder())?;
        Ok(Self { embedding, blocks })
    }
}

/// The buffers that the decoder needs for one text. The queries, keys and values of each block have
/// room for all rows of image and text: they are the cache.
#[derive(Debug, Resource)]
struct Decoding<E: Precision> {
    matmul: Matmul,
    activations: TransformerActivations<E>,
    /// The rows of the image, and the ids of the prompt and of the text.
    image: DeviceBuffer<f32>,
    prompt: DeviceBuffer<i32>,
    ids: DeviceBuffer<i32>,
    /// 0 and `n` for each number of rows `n`: where a sequence of `n` rows begins and ends.
    ends: DeviceBuffer<i32>,
    rows: DeviceBuffer<E>,
    logits: DeviceBuffer<f32>,
    /// The most image rows there is room for.
    #[resource(plain)]
    room: usize,
}

/// The second half of a vision-language model on one stream: rows of an image and a prompt to text.
/// It computes forward only, with a key-value cache: each new token costs one row.
///
/// The decoder's sequence is the image rows, then the text. An image row sees all image rows, and a
/// text row sees the image rows and the text up to itself.
///
/// The first image, and later each that has more rows than all before, allocates device memory. All
/// others allocate none. When an image has as many rows, and its prompt and text as many tokens, as
/// those of an earlier request, the work is captured, and later requests of this shape are one
/// call. The texts are the same.
pub struct TextDecoder<S: LiveBrand, E: Precision> {
    stream: Stream<S>,
    config: VisionLanguageConfig,
    model: Decoder,
    /// It is empty after a failure of the device that lost the memory.
    weights: Option<WeightsOn<S, E>>,
    decoding: Option<DecodingOn<S, E>>,
    graphs: GraphCache<Part, Graph<Whole<E>>>,
}

/// All memory of a text.
type Whole<E> = (Weights<E>, Decoding<E>);

/// A part of a text: what the host says about it.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    /// The rows of the image, and the tokens of the prompt.
    rows: usize,
    prompt: usize,
    /// The range of tokens that are written. With the first one, the image and the prompt go
    /// through the blocks before it.
    which: Range<usize>,
}

/// The work on a part of a text, whose image and prompt are in their buffers.
struct Write<'a> {
    model: &'a Decoder,
    config: &'a VisionLanguageConfig,
    part: &'a Part,
}

impl<E: Precision> GraphWork<Whole<E>> for Write<'_> {
    fn enqueue<S: Brand>(
        &self,
        s: &Stream<S>,
        (parameters, decoding): &mut <Whole<E> as Resource>::On<S>,
    ) -> thalweg::Result<()> {
        let &Self { model, config, part } = self;
        let w = parameters.view();
        if part.which.start == 0 {
            model.begin(s, w, config, [part.rows, part.prompt], decoding)?;
        }
        model.extend(s, w, config, part, decoding)
    }
}

impl<S: LiveBrand, E: Precision> std::fmt::Debug for TextDecoder<S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextDecoder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<S: LiveBrand, E: Precision> TextDecoder<S, E> {
    /// Makes the decoder with the weights of a file (see [`VisionLanguageConfig::from_tensors`]).
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or there is no memory.
    pub fn from_tensors(stream: &Stream<S>, file: &Tensors) -> Result<Self> {
        let config = VisionLanguageConfig::from_tensors(file)?;
        let mut layout = ParameterLayout::default();
        let model = Decoder::new(&mut layout, config)?;
        let weights = Some(WeightsOn::new(stream, &layout.flatten(file, "")?)?);
        Ok(Self { stream: *stream, config, model, weights, decoding: None, graphs: GraphCache::default() })
    }

    /// Sets whether texts whose shape repeats become graphs. They do at first. The texts are the
    /// same.
    pub fn set_graphs(&mut self, graphs: bool) {
        self.graphs = GraphCache::default().with_graphs(graphs);
    }

    /// Returns the number of shapes of texts, or of parts of them, that are graphs. The eight that
    /// were used last are kept.
    #[must_use]
    pub fn graphs(&self) -> usize {
        self.graphs.len()
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

    /// Writes `ids.len()` tokens of text about an image, `image` [R, `text_embed_dim`], after the
    /// prompt. Each is the id with the largest logit, the lowest one among equals. It returns at
    /// once; the stream computes the tokens, and each one takes the one before from device memory.
    ///
    /// A text ends at the first id 0. What stands behind it means nothing: it is computed so that
    /// the host need not wait for each token.
    ///
    /// # Errors
    /// The prompt is empty, has an id that is none, or is too long with the tokens to write; a
    /// length does not fit; there is no memory; or the device failed.
    pub fn generate(
        &mut self,
        image: &DeviceSlice<S, f32>,
        prompt: &[i32],
        ids: &mut DeviceSlice<S, i32>,
    ) -> Result<()> {
        self.check(image, prompt, ids.len())?;
        let rows = self.load(image, prompt)?;
        self.write_part(rows, prompt.len(), 0..ids.len())?;
        let decoding = self.decoding.as_ref().ok_or(Error::Lost)?;
        Ok(self.stream.copy(decoding.ids.slice(..ids.len())?, ids)?)
    }

    /// Computes the logits after each token of a prompt about an image, `image` [R,
    /// `text_embed_dim`], and waits for them. Returns [`prompt.len()`, `vocab_size`], row by row.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    pub fn logits(&mut self, image: &DeviceSlice<S, f32>, prompt: &[i32]) -> Result<Vec<f32>> {
        self.check(image, prompt, 1)?;
        let rows = self.load(image, prompt)?;
        let Self { stream: s, config, model, weights: Some(weights), decoding: Some(decoding), .. } = self else {
            return Err(Error::Lost);
        };
        model.begin(s, weights.view(), config, [rows, prompt.len()], decoding)?;
        model.predict(s, weights.view(), config, rows..rows + prompt.len(), decoding)?;
        Ok(s.read_blocking(decoding.logits.slice(..prompt.len() * config.vocab_size)?)?)
    }

    pub(super) fn check(&self, image: &DeviceSlice<S, f32>, prompt: &[i32], count: usize) -> Result<()> {
        let text_width = self.config.text_embed_dim;
        if image.is_empty() || !image.len().is_multiple_of(text_width) {
            let what = format!("`image` has {} numbers, and not rows of {text_width}", image.len());
            return Err(Error::Batch(what));
        }
        self.config.check_text(prompt, count)
    }

    /// Copies the image and the prompt to where the blocks find them, and returns the number of
    /// image rows.
    pub(super) fn load(&mut self, image: &DeviceSlice<S, f32>, prompt: &[i32]) -> Result<usize> {
        let VisionLanguageConfig { text_embed_dim: width, vocab_size: vocabulary, max_tokens: places, .. } =
            self.config;
        let (s, rows) = (&self.stream, image.len() / width);
        let decoding = match self.decoding.take() {
            Some(decoding) if decoding.room >= rows => decoding,
            old => {
                drop(old); // its memory is free before the new one is allocated
                self.graphs.clear();
                let all = rows + places;
                let mut ends = s.alloc(2 * (all + 1))?;
                upload(s, &(0..=all as i32).flat_map(|end| [0, end]).collect::<Vec<_>>(), &mut ends)?;
                DecodingOn {
                    matmul: MatmulOn::new(s, MatmulBackend::default())?,
                    activations: TransformerActivationsOn::cached(s, self.config.decoder(), all, all)?,
                    image: s.alloc(rows * width)?,
                    prompt: s.alloc(places)?,
                    ids: s.alloc(places + 1)?,
                    ends,
                    rows: s.alloc(places * width * E::ROOM)?,
                    logits: s.alloc(places * vocabulary)?,
                    room: rows,
                }
            }
        };
        let decoding = self.decoding.insert(decoding);
        upload(s, prompt, &mut decoding.prompt)?;
        s.copy(image, decoding.image.slice_mut(..image.len())?)?;
        Ok(rows)
    }

    /// Writes the tokens `which` of a text about the image and behind the prompt that were loaded.
    /// Those before are written.
    pub(super) fn write_part(&mut self, rows: usize, prompt: usize, which: Range<usize>) -> Result<()> {
        let (Some(weights), Some(decoding)) = (self.weights.take(), self.decoding.take()) else {
            return Err(Error::Lost);
        };
        let part = Part { rows, prompt, which };
        let work = Write { model: &self.model, config: &self.config, part: &part };
        let (whole, enqueued) = match self.graphs.enqueue(&self.stream, part.clone(), (weights, decoding), &work) {
            Ok(whole) => (whole, Ok(())),
            Err(returned) => (returned.value, Err(returned.error.into())),
        };
        (self.weights, self.decoding) = (Some(whole.0), Some(whole.1));
        enqueued
    }

    /// Waits for tokens that are written, and returns them.
    pub(super) fn read(&self, which: Range<usize>) -> Result<Vec<i32>> {
        let decoding = self.decoding.as_ref().ok_or(Error::Lost)?;
        Ok(self.stream.read_blocking(decoding.ids.slice(which)?)?)
    }
}

impl Decoder {
    /// Puts the image and the prompt through the blocks.
    fn begin<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        config: &VisionLanguageConfig,
        [rows, prompt]: [usize; 2],
        decoding: &mut DecodingOn<S, E>,
    ) -> thalweg::Result<()> {
        let (width, all) = (config.text_embed_dim, rows + prompt);
        let (of_image, of_text) = decoding.activations.input(all)?.split_at_mut(rows * width)?;
        s.copy(decoding.image.slice(..rows * width)?, of_image)?;
        let f = ForwardPass::new(s, w, &mut decoding.matmul);
        self.embedding.forward(&f, 0, decoding.prompt.slice(..prompt)?, of_text)?;
        self.forward(s, w, rows, 0..all, decoding)
    }

    /// Writes a part of a text. The tokens before, and the image and the prompt, are in the cache.
    fn extend<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        config: &VisionLanguageConfig,
        part: &Part,
        decoding: &mut DecodingOn<S, E>,
    ) -> thalweg::Result<()> {
        let vocabulary = config.vocab_size;
        for k in part.which.clone() {
            let all = part.rows + part.prompt + k;
            if k > 0 {
                let (f, id) = (ForwardPass::new(s, w, &mut decoding.matmul), decoding.ids.slice(k - 1..k)?);
                self.embedding.forward(&f, part.prompt + k - 1, id, decoding.activations.input(1)?)?;
                self.forward(s, w, part.rows, all - 1..all, decoding)?;
            }
            // The newest rows are those of image and prompt for the first token, and then one row.
            let last = if k > 0 { 0 } else { all - 1 };
            self.predict(s, w, config, last..last + 1, decoding)?;
            argmax(s, 1, vocabulary as u32, decoding.logits.slice(..vocabulary)?, decoding.ids.slice_mut(k..=k)?)?;
        }
        Ok(())
    }

    /// Computes the logits of some of the newest rows.
    fn predict<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        config: &VisionLanguageConfig,
        which: Range<usize>,
        decoding: &mut DecodingOn<S, E>,
    ) -> thalweg::Result<()> {
        let &VisionLanguageConfig { text_embed_dim: width, vocab_size: vocabulary, .. } = config;
        let count = which.len();
        let features = decoding.activations.features(which.end)?.slice(which.start * width..)?;
        let features = E::rounded(s, features, &mut decoding.rows)?;
        let logits = decoding.logits.slice_mut(..count * vocabulary)?;
        self.embedding.logits(&mut ForwardPass::new(s, w, &mut decoding.matmul), count, features, logits)
    }

    /// Puts the rows `new` through the blocks, whose cache has the rows before. The first `image`
    /// rows are those of the image.
    fn forward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        image: usize,
        new: Range<usize>,
        decoding: &mut DecodingOn<S, E>,
    ) -> thalweg::Result<()> {
        let sequence = |rows: usize| decoding.ends.slice(2 * rows..2 * rows + 2);
        let (cu_seqlens, all) = (sequence(new.len())?, sequence(new.end)?);
        let batch = Sequences::new(new.len(), cu_seqlens).with_prefix(image as u32).behind(new.start, all);
        self.blocks.forward(&mut ForwardPass::new(s, w, &mut decoding.matmul), &batch, &mut decoding.activations)
    }
}
