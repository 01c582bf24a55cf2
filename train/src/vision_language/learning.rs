//! The half of a vision-language model behind the encoder as it learns: rows of images and texts to
//! the logits of the answers, forward and backward.

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, Resource, Stream};
use thalweg_kernels::train::{answer_rows, answer_rows_backward, image_rows, join_ends};

use super::{Decoder, VisionLanguageConfig};
use crate::batch::{DeviceTextBatch, Extent, TextBatch, upload};
use crate::layers::{
    BackwardPass, ForwardPass, JoinedRows, Linear, Sequences, TransformerActivations, TransformerActivationsOn,
    TransformerScratchOn,
};

use crate::precision::Precision;

/// A half of a vision-language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The encoder up to its last norm, without the projector, and the gate in front of it.
    Encoder,
    /// The decoder, with the rows of ids and places.
    Decoder,
}

impl Half {
    pub(crate) const ALL: [Self; 2] = [Self::Encoder, Self::Decoder];

    /// The name in a checkpoint.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
        }
    }
}

/// The places of projector and decoder.
#[derive(Clone, Debug)]
pub(crate) struct TextHead {
    pub(crate) config: VisionLanguageConfig,
    pub(crate) projector: Linear,
    pub(crate) decoder: Decoder,
}

/// The memory that a batch needs beside the buffers of the encoder and those of the logits.
#[derive(Debug, Resource)]
pub(crate) struct TextPass<E: Precision> {
    ids: DeviceBuffer<i32>,
    text_ends: DeviceBuffer<i32>,
    question: DeviceBuffer<i32>,
    joined_ends: DeviceBuffer<i32>,
    /// The image rows of each sequence.
    images: DeviceBuffer<i32>,
    answer_ends: DeviceBuffer<i32>,
    next: DeviceBuffer<u32>,
    features: DeviceBuffer<E>,
    /// The rows of the images, and later their gradient.
    image: DeviceBuffer<f32>,
    image_operand: DeviceBuffer<E>,
    activations: TransformerActivations<E>,
}

/// A batch of which a head sees the rows.
pub(crate) struct Seen<'a, S: Brand> {
    pub(crate) extent: Extent,
    pub(crate) image_ends: &'a DeviceSlice<S, i32>,
}

impl<S: LiveBrand, E: Precision> TextPassOn<S, E> {
    pub(crate) fn new(s: &Stream<S>, config: &VisionLanguageConfig, extent: Extent) -> thalweg::Result<Self> {
        let Extent { rows, sequences, text, .. } = extent;
        let width = config.text_embed_dim;
        Ok(Self {
            ids: s.alloc(text)?,
            text_ends: s.alloc(sequences + 1)?,
            question: s.alloc(sequences)?,
            joined_ends: s.alloc(sequences + 1)?,
            images: s.alloc(sequences)?,
            answer_ends: s.alloc(sequences + 1)?,
            next: s.alloc(config.vocab_size + text)?,
            features: s.alloc(rows * config.embed_dim * E::ROOM)?,
            image: s.alloc(rows * width)?,
            image_operand: s.alloc(rows * width * E::ROOM)?,
            activations: TransformerActivationsOn::new(s, config.decoder(), rows + text, true)?,
        })
    }

    pub(crate) fn upload(&mut self, s: &Stream<S>, batch: &TextBatch<'_>) -> thalweg::Result<()> {
        upload(s, batch.ids, &mut self.ids)?;
        upload(s, batch.text_cu_seqlens, &mut self.text_ends)?;
        upload(s, batch.question, &mut self.question)
    }

    /// Copies texts on the device. An image of padding has none.
    pub(crate) fn take(
        &mut self,
        s: &Stream<S>,
        batch: &DeviceTextBatch<'_, S>,
        extent: Extent,
    ) -> thalweg::Result<()> {
        let (b, text) = (extent.labeled(), extent.text);
        s.copy(batch.ids, self.ids.slice_mut(..text)?)?;
        s.copy(batch.text_cu_seqlens, self.text_ends.slice_mut(..=b)?)?;
        s.copy(batch.question, self.question.slice_mut(..b)?)?;
        if extent.padded {
            s.fill(self.text_ends.slice_mut(b + 1..=b + 1)?, text as i32)?;
            s.fill(self.question.slice_mut(b..=b)?, 0)?;
        }
        Ok(())
    }
}

impl<S: Brand, E: Precision> TextPassOn<S, E> {
    /// Returns the rows of images and texts as those of the decoder.
    fn joined<'a>(&'a self, seen: &Seen<'a, S>) -> thalweg::Result<JoinedRows<'a, S>> {
        let Extent { rows, sequences, text, .. } = seen.extent;
        Ok(JoinedRows {
            images: rows,
            image_ends: seen.image_ends,
            text_ends: self.text_ends.slice(..=sequences)?,
            ids: self.ids.slice(..text)?,
        })
    }
}

impl TextHead {
    pub(crate) fn scratch<S: LiveBrand, E: Precision>(
        &self,
        s: &Stream<S>,
        extent: Extent,
    ) -> thalweg::Result<TransformerScratchOn<S, E>> {
        TransformerScratchOn::new(s, self.config.decoder(), extent.rows + extent.text)
    }

    /// Computes the rows before the ids of the answers, `y`, and these ids, `labels`, from the
    /// features of the images.
    pub(crate) fn forward<S: Brand, E: Precision>(
        &self,
        f: &mut ForwardPass<'_, S, E>,
        seen: &Seen<'_, S>,
        features: &DeviceSlice<S, f32>,
        pass: &mut TextPassOn<S, E>,
        labels: &mut DeviceSlice<S, i32>,
        y: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let (s, Extent { rows, sequences, text, answers, .. }) = (f.stream, seen.extent);
        let (width, all) = (self.config.text_embed_dim, rows + text);
        let features = E::rounded(s, features, &mut pass.features)?;
        self.projector.forward_f32(f, rows, features, None, pass.image.slice_mut(..rows * width)?)?;
        join_ends(
            s,
            sequences as u32,
            seen.image_ends,
            pass.text_ends.slice(..=sequences)?,
            pass.question.slice(..sequences)?,
            pass.joined_ends.slice_mut(..=sequences)?,
            pass.images.slice_mut(..sequences)?,
            pass.answer_ends.slice_mut(..=sequences)?,
        )?;
        let TextPassOn { ids, text_ends, image, activations, .. } = &mut *pass;
        let joined = JoinedRows {
            images: rows,
            image_ends: seen.image_ends,
            text_ends: text_ends.slice(..=sequences)?,
            ids: ids.slice(..text)?,
        };
        let embedding = &self.decoder.embedding;
        embedding.join(f, &joined, image.slice(..rows * width)?, activations.input(all)?)?;
        let ends = pass.joined_ends.slice(..=sequences)?;
        let batch = Sequences::new(all, ends).with_prefixes(pass.images.slice(..sequences)?);
        self.decoder.blocks.forward(f, &batch, &mut pass.activations)?;
        let [n, u, a, c, b] = [all, text, answers, width, sequences].map(|extent| extent as u32);
        let (ends, question) = (pass.answer_ends.slice(..=sequences)?, pass.question.slice(..sequences)?);
        let JoinedRows { image_ends, text_ends, ids, .. } = pass.joined(seen)?;
        let x = pass.activations.features(all)?;
        answer_rows(s, n, u, a, c, b, image_ends, text_ends, ends, question, ids, x, labels, y)
    }

    /// Computes the logits of these rows.
    pub(crate) fn logits<S: Brand, E: Precision>(
        &self,
        f: &mut ForwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        logits: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        self.decoder.embedding.logits(f, rows, x, logits)
    }

    /// Computes the gradients of projector and decoder from that of the logits, and with
    /// `dfeatures` also that of the features. `x` are the rows of the logits, and `dx` is room for
    /// their gradient.
    #[expect(clippy::too_many_arguments, reason = "each is an array of its own")]
    pub(crate) fn backward<S: Brand, E: Precision>(
        &self,
        b: &mut BackwardPass<'_, S, E>,
        seen: &Seen<'_, S>,
        x: &DeviceSlice<S, E>,
        dlogits: &DeviceSlice<S, E>,
        dx: &mut DeviceSlice<S, f32>,
        pass: &mut TextPassOn<S, E>,
        scratch: &mut TransformerScratchOn<S, E>,
        features: &DeviceSlice<S, f32>,
        dfeatures: Option<&mut DeviceSlice<S, f32>>,
    ) -> thalweg::Result<()> {
        let (s, Extent { rows, sequences, text, answers, .. }) = (b.stream, seen.extent);
        let (width, all, embedding) = (self.config.text_embed_dim, rows + text, &self.decoder.embedding);
        embedding.backward_logits(b, answers, x, dlogits, dx)?;
        let [n, r, u, a, c, count] = [all, rows, text, answers, width, sequences].map(|extent| extent as u32);
        let (ends, question) = (pass.answer_ends.slice(..=sequences)?, pass.question.slice(..sequences)?);
        let JoinedRows { image_ends, text_ends, .. } = pass.joined(seen)?;
        let to = scratch.features(all)?;
        answer_rows_backward(s, n, a, c, count, image_ends, text_ends, ends, question, dx, to)?;
        let ends = pass.joined_ends.slice(..=sequences)?;
        let batch = Sequences::new(all, ends).with_prefixes(pass.images.slice(..sequences)?);
        self.decoder.blocks.backward(b, &batch, &mut pass.activations, scratch)?;
        let dx = scratch.rows(all)?;
        let TextPassOn { ids, text_ends, next, features: operands, image, image_operand, .. } = pass;
        let image_ends = seen.image_ends;
        let (text_ends, ids) = (text_ends.slice(..=sequences)?, ids.slice(..text)?);
        let joined = JoinedRows { images: rows, image_ends, text_ends, ids };
        let next = next.slice_mut(..self.config.vocab_size + text)?;
        embedding.backward(b, &joined, dx, next)?;
        let image = image.slice_mut(..rows * width)?;
        image_rows(s, r, u, c, count, image_ends, text_ends, dx, image)?;
        let image = E::rounded(s, image, image_operand)?;
        self.projector.backward_weight(b, rows, E::operands(features, operands), image)?;
        dfeatures.map_or(Ok(()), |to| self.projector.backward_input_f32(b, rows, image, to))
    }
}
