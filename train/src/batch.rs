//! The batches from which models learn, on the host and on the device.

mod patches;

use thalweg::{DeviceCopy, DeviceSlice, LiveBrand, Stream};

use crate::error::{Error, Result};
pub(crate) use patches::FEATURES;
pub use patches::{DevicePatches, Gated, Patches};

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

    /// Checks that the parts fit each other and a model with so many numbers of a token and
    /// classes.
    pub(crate) fn check(&self, [inputs, classes]: [usize; 2], learns: bool) -> Result<()> {
        let (rows, sequences) = (self.rows(), self.sequences());
        let wrong = |what: String| Err(Error::Batch(what));
        if sequences == 0 || self.cu_seqlens[0] != 0 || self.cu_seqlens.windows(2).any(|w| w[0] >= w[1]) {
            return wrong("`cu_seqlens` begins with 0 and rises, with a sequence at least".into());
        }
        for (name, len, of) in [("tokens", self.tokens.len(), inputs), ("position", self.position.len(), 2)] {
            if len != rows * of {
                return wrong(format!("`{name}` has {len} numbers, and not {rows} x {of}"));
            }
        }
        if (learns || !self.labels.is_empty()) && self.labels.len() != sequences {
            return wrong(format!("there are {} labels for {sequences} sequences", self.labels.len()));
        }
        if let Some(label) = self.labels.iter().find(|&&label| label < 0 || label as usize >= classes) {
            return wrong(format!("a label is {label}, and there are {} classes", classes));
        }
        Ok(())
    }
}

/// A batch of images with a question and an answer for each, on the host. The model learns to write
/// the answer.
///
/// A model with an [image encoder](crate::VisionLanguageConfig::image_encoder) has pixels as
/// `tokens`, [B, 3, `image_size`, `image_size`], and `position` and `cu_seqlens` are empty.
#[derive(Clone, Copy, Debug)]
pub struct TextBatch<'a> {
    /// The tokens of the images, [T, `input_dim`].
    pub tokens: &'a [f32],
    /// The position of each token, [T, 2].
    pub position: &'a [f32],
    /// The starts and the end of the images, [B + 1]: image `b` has the tokens
    /// `cu[b] .. cu[b + 1]`.
    pub cu_seqlens: &'a [i32],
    /// The ids of the texts: of each, those of the question, then those of the answer.
    pub ids: &'a [i32],
    /// The starts and the end of the texts, [B + 1].
    pub text_cu_seqlens: &'a [i32],
    /// The number of ids of each question, 1 at least. What follows in its text is the answer.
    pub question: &'a [i32],
}

impl<'a> TextBatch<'a> {
    /// Returns the images as sequences without a class.
    pub(crate) fn images(&self) -> TokenBatch<'a> {
        let &Self { tokens, position, cu_seqlens, .. } = self;
        TokenBatch { tokens, position, cu_seqlens, labels: &[] }
    }

    /// Returns the number of ids of all answers.
    #[must_use]
    pub fn answers(&self) -> usize {
        let asked: i64 = self.question.iter().map(|&n| i64::from(n)).sum();
        self.ids.len().saturating_sub(usize::try_from(asked).unwrap_or(0))
    }

    /// Checks that the texts fit so many images and a model with so many ids and places of a text.
    pub(crate) fn check(&self, images: usize, [vocabulary, places]: [usize; 2]) -> Result<()> {
        let &Self { ids, text_cu_seqlens: ends, question, .. } = self;
        let wrong = |what: String| Err(Error::Batch(what));
        if ends.len() != images + 1 || question.len() != images {
            let texts = ends.len().saturating_sub(1);
            return wrong(format!("{images} images with {texts} texts, and {} questions", question.len()));
        }
        if ends[0] != 0 || ends[images] as usize != ids.len() {
            return wrong(format!("`text_cu_seqlens` is from {} to {} of {} ids", ends[0], ends[images], ids.len()));
        }
        for (end, &asked) in ends.windows(2).zip(question) {
            let len = i64::from(end[1]) - i64::from(end[0]);
            if asked < 1 || i64::from(asked) >= len || len > places as i64 {
                return wrong(format!(
                    "a text of {len} ids, and {asked} of them ask; an id at least asks and one answers, in {places} places"
                ));
            }
        }
        if let Some(id) = ids.iter().find(|&&id| id < 0 || id as usize >= vocabulary) {
            return wrong(format!("an id is {id}, and there are {vocabulary}"));
        }
        Ok(())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::TokenBatch<'_> {}
    impl Sealed for super::TextBatch<'_> {}
}

/// A batch on the host from which a model learns: a [`TokenBatch`] of sequences with their classes,
/// or a [`TextBatch`] of images with questions and answers, and either [with the patches](crate::Gated)
/// of its tokens.
pub trait HostBatch: sealed::Sealed {
    #[doc(hidden)]
    fn sequences(&self) -> TokenBatch<'_>;
    #[doc(hidden)]
    fn texts(&self) -> Option<&TextBatch<'_>>;
    #[doc(hidden)]
    fn patches(&self) -> Option<&Patches<'_>> {
        None
    }
}

impl HostBatch for TokenBatch<'_> {
    fn sequences(&self) -> TokenBatch<'_> {
        *self
    }
    fn texts(&self) -> Option<&TextBatch<'_>> {
        None
    }
}

impl HostBatch for TextBatch<'_> {
    fn sequences(&self) -> TokenBatch<'_> {
        self.images()
    }
    fn texts(&self) -> Option<&TextBatch<'_>> {
        Some(self)
    }
}

/// The size of the batch in a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) rows: usize,
    pub(crate) sequences: usize,
    /// Whether the last sequence is padding. It has no label and adds nothing to loss and
    /// gradients.
    pub(crate) padded: bool,
    /// The ids of the texts, and those of them that answer.
    pub(crate) text: usize,
    pub(crate) answers: usize,
    /// The patches, of a model with a gate.
    pub(crate) patches: usize,
}

impl Extent {
    pub(crate) fn of(batch: &impl HostBatch) -> Self {
        let (sequences, texts) = (batch.sequences(), batch.texts());
        Self {
            rows: sequences.rows(),
            sequences: sequences.sequences(),
            padded: false,
            text: texts.map_or(0, |texts| texts.ids.len()),
            answers: texts.map_or(0, TextBatch::answers),
            patches: batch.patches().map_or(0, Patches::len),
        }
    }

    /// Returns whether a batch of this extent has room in that of another one.
    pub(crate) fn fits(self, room: Self) -> bool {
        let fits = |of: fn(Self) -> usize| of(self) <= of(room);
        fits(|e| e.rows) && fits(|e| e.sequences) && fits(|e| e.text) && fits(|e| e.answers) && fits(|e| e.patches)
    }

    /// Returns the extent that has room for a batch of either.
    pub(crate) fn or(self, other: Self) -> Self {
        let (rows, sequences) = (self.rows.max(other.rows), self.sequences.max(other.sequences));
        let (text, answers) = (self.text.max(other.text), self.answers.max(other.answers));
        Self { rows, sequences, text, answers, patches: self.patches.max(other.patches), ..self }
    }

    /// Returns the number of sequences with a label.
    pub(crate) fn labeled(self) -> usize {
        self.sequences - usize::from(self.padded)
    }

    /// Returns the number of rows of logits.
    pub(crate) fn outputs(self) -> usize {
        if self.text > 0 { self.answers } else { self.sequences }
    }

    /// Returns the number of losses: of sequences with a label, or of ids that answer.
    pub(crate) fn losses(self) -> usize {
        if self.text > 0 { self.answers } else { self.labeled() }
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

/// A batch of images with questions and answers on the device, ordered by stream `S`. The host
/// knows how many ids there are, and need not know how many tokens.
///
/// A model with an [image encoder](crate::VisionLanguageConfig::image_encoder) has pixels as
/// `tokens`, [B, 3, `image_size`, `image_size`], `position` and `cu_seqlens` are empty, and there
/// is no padding.
#[derive(Debug)]
pub struct DeviceTextBatch<'a, S> {
    /// The tokens of the images, [R, `input_dim`], one image after another.
    pub tokens: &'a DeviceSlice<S, f32>,
    /// The position of each token, [R, 2].
    pub position: &'a DeviceSlice<S, f32>,
    /// The starts and the end of the images, [B + 1], from 0 on and rising.
    pub cu_seqlens: &'a DeviceSlice<S, i32>,
    /// The ids of the texts, as in a [`TextBatch`], \[U\].
    pub ids: &'a DeviceSlice<S, i32>,
    /// The starts and the end of the texts, [B + 1].
    pub text_cu_seqlens: &'a DeviceSlice<S, i32>,
    /// The number of ids of each question, \[B\].
    pub question: &'a DeviceSlice<S, i32>,
    /// The number of ids of all answers: U without those of the questions.
    pub answers: usize,
    /// Whether rows may follow those of the last image, as in a [`DeviceBatch`].
    pub padded: bool,
}

/// A batch on the device from which a model learns: a [`DeviceBatch`] of sequences with their
/// classes, or a [`DeviceTextBatch`] of images with questions and answers, and either
/// [with the patches](crate::Gated) of its tokens.
pub trait StreamBatch<S>: sealed::Sealed {
    #[doc(hidden)]
    fn parts(&self) -> Parts<'_, S>;
}

/// The parts of a batch on the device.
#[doc(hidden)]
#[derive(Debug)]
pub struct Parts<'a, S> {
    pub(crate) tokens: &'a DeviceSlice<S, f32>,
    pub(crate) position: &'a DeviceSlice<S, f32>,
    pub(crate) cu_seqlens: &'a DeviceSlice<S, i32>,
    pub(crate) labels: Option<&'a DeviceSlice<S, i32>>,
    pub(crate) texts: Option<&'a DeviceTextBatch<'a, S>>,
    pub(crate) patches: Option<&'a DevicePatches<'a, S>>,
    pub(crate) padded: bool,
}

impl<S> sealed::Sealed for DeviceBatch<'_, S> {}
impl<S> sealed::Sealed for DeviceTextBatch<'_, S> {}

impl<S> StreamBatch<S> for DeviceBatch<'_, S> {
    fn parts(&self) -> Parts<'_, S> {
        let &Self { tokens, position, cu_seqlens, labels, padded } = self;
        Parts { tokens, position, cu_seqlens, labels: Some(labels), texts: None, patches: None, padded }
    }
}

impl<S> StreamBatch<S> for DeviceTextBatch<'_, S> {
    fn parts(&self) -> Parts<'_, S> {
        let &Self { tokens, position, cu_seqlens, padded, .. } = self;
        Parts { tokens, position, cu_seqlens, labels: None, texts: Some(self), patches: None, padded }
    }
}

impl<S> Parts<'_, S> {
    /// Checks the lengths of tokens of so many numbers. The pass has a sequence more for padding,
    /// which is never empty.
    fn sequences(&self, inputs: usize) -> Result<Extent> {
        let wrong = |what: String| Err(Error::Batch(what));
        let (rows, ends) = (self.position.len() / 2, self.cu_seqlens.len());
        let b = self.labels.map_or(ends.saturating_sub(1), DeviceSlice::len);
        if b == 0 || ends != b + 1 {
            return wrong(format!("{b} labels with {ends} ends of sequences"));
        }
        if rows == 0 || self.position.len() != 2 * rows || self.tokens.len() != rows * inputs {
            let (tokens, position) = (self.tokens.len(), self.position.len());
            return wrong(format!("{tokens} numbers of tokens of {inputs} each, and {position} of places"));
        }
        Ok(match self.padded {
            // Rows at multiples of 8 are fast to multiply in each form of a product.
            true => {
                Extent { rows: (rows + 1).next_multiple_of(8), sequences: b + 1, padded: true, ..Extent::default() }
            }
            false => Extent { rows, sequences: b, ..Extent::default() },
        })
    }

    /// Checks that the lengths fit each other, tokens of so many numbers unless there are `images`
    /// of pixels, and queries of so many.
    pub(crate) fn extent(&self, inputs: usize, images: Option<Extent>, query_dim: usize) -> Result<Extent> {
        let wrong = |what: String| Err(Error::Batch(what));
        let mut extent = match images {
            None => self.sequences(inputs)?,
            Some(_) if self.padded => return wrong("a batch of pixels has no padding".into()),
            Some(images) => images,
        };
        let b = extent.labeled();
        if let Some(&DeviceTextBatch { ids, text_cu_seqlens, question, answers, .. }) = self.texts {
            if [text_cu_seqlens.len(), question.len()] != [b + 1, b] {
                let (texts, asked) = (text_cu_seqlens.len().saturating_sub(1), question.len());
                return wrong(format!("{b} images with {texts} texts, and {asked} questions"));
            }
            if answers < b || ids.len().saturating_sub(b) < answers {
                return wrong(format!("{} ids, of which {answers} answer {b} questions", ids.len()));
            }
            (extent.text, extent.answers) = (ids.len(), answers);
        }
        if let Some(patches) = self.patches {
            let n = patches.entropy.len();
            for (name, len, wanted) in [
                ("features", patches.features.len(), FEATURES * n),
                ("salience", patches.salience.len(), n),
                ("cu_patches", patches.cu_patches.len(), b + 1),
                ("cu_seqlens", patches.cu_seqlens.len(), patches.patch_id.len() + 1),
                ("query", patches.query.len(), query_dim * b),
            ] {
                if len != wanted {
                    return wrong(format!("`{name}` of the patches has {len} numbers, and not {wanted}"));
                }
            }
            if n < b || patches.patch_id.is_empty() {
                return wrong(format!("{n} patches of {b} images, and {} selected", patches.patch_id.len()));
            }
            extent.patches = n;
        }
        Ok(extent)
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
