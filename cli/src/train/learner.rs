//! The model of a run, on this rank.

use thalweg::{Activity, LiveBrand, Timeline};
use thalweg_collective::{BucketSizes, Comm};
use thalweg_train::overlap::DataParallel;
use thalweg_train::{Loss, Precision, TextBatch, TokenBatch, TokenTransformer};

use super::TESTED;
use super::data::{Packed, Tokens};
use super::ranks::{Result, Team, sum};

/// A model that one rank trains, or several together.
pub(super) enum Learner<C: LiveBrand, S: LiveBrand, E: Precision> {
    /// Its steps are graphs.
    Alone(TokenTransformer<S, E>, Comm<C>),
    Together(DataParallel<C, S, E>),
}

impl<C: LiveBrand, S: LiveBrand, E: Precision> Learner<C, S, E> {
    /// Every rank gets the weights of rank 0.
    pub(super) fn new(team: Team<C>, model: TokenTransformer<S, E>) -> Result<Self> {
        Ok(match team.size() {
            1 => Self::Alone(model, team.comm),
            _ => Self::Together(DataParallel::new(team.comm, model, BucketSizes::default())?),
        })
    }

    pub(super) fn model(&mut self) -> &mut TokenTransformer<S, E> {
        match self {
            Self::Alone(model, _) => model,
            Self::Together(model) => model.model_mut(),
        }
    }

    fn comm(&mut self) -> &mut Comm<C> {
        match self {
            Self::Alone(_, comm) => comm,
            Self::Together(model) => model.comm_mut(),
        }
    }

    /// Enqueues a step on the images of a batch, of which each rank takes every `size`-th. The loss
    /// is that of all of them.
    pub(super) fn step(
        &mut self,
        set: &Tokens,
        images: &[usize],
        packed: &mut Packed,
        timeline: &Timeline,
    ) -> Result<Loss> {
        let (rank, size) = (self.comm().rank(), self.comm().size());
        let own: Vec<usize> = images.iter().copied().skip(rank).step_by(size).collect();
        timeline.host("main", "read tokens", || set.pack(&own, packed))?;
        let (train, mut loss) = (self.model().stream(), None);
        let losses = set.losses(images);
        timeline.span(&train, Activity::Compute, "train", || {
            loss = Some(match (self, packed.texts()) {
                (Self::Alone(model, _), None) => model.step(&packed.batch()),
                (Self::Alone(model, _), Some(texts)) => model.step(&texts),
                // The last batch may have fewer images than there are ranks.
                (Self::Together(model), _) if own.is_empty() => model.step(&[] as &[TokenBatch<'_>], losses),
                (Self::Together(model), None) => model.step(&[packed.batch()], losses),
                (Self::Together(model), Some(texts)) => model.step(&[texts], losses),
            });
            Ok(())
        })?;
        Ok(loss.unwrap_or(Err(thalweg_train::Error::Lost))?)
    }

    /// Returns the mean loss over images, and which part of them the model gets right, or of which
    /// part it writes the whole answer: the same bits on every rank, for any number of ranks that
    /// have the same weights.
    pub(super) fn test(&mut self, images: &Tokens, packed: &mut Packed) -> Result<(f64, f64)> {
        let (rank, size) = (self.comm().rank(), self.comm().size());
        let places: Vec<usize> = (0..images.len()).collect();
        // The loss and the images that are right, of each batch. Every size-th is tested by this
        // rank.
        let mut found = vec![0.0; 2 * places.len().div_ceil(TESTED)];
        for (places, found) in places.chunks(TESTED).zip(found.chunks_mut(2)).skip(rank).step_by(size) {
            images.pack(places, packed)?;
            let (said, right) = match packed.texts() {
                Some(batch) => {
                    let said = self.model().evaluate(&batch)?;
                    let right = answered(&batch, &said.predictions);
                    (said, right)
                }
                None => {
                    let batch = packed.batch();
                    let said = self.model().evaluate(&batch)?;
                    let right = said.predictions.iter().zip(batch.labels).filter(|(a, b)| a == b).count();
                    (said, right)
                }
            };
            // The mean loss of a batch of answers is one over their ids.
            found[0] = f64::from(said.loss.unwrap_or(f32::NAN)) * images.losses(places) as f64;
            found[1] = right as f64;
        }
        sum(self.comm(), &mut found)?;
        let all = |k: usize| found.iter().skip(k).step_by(2).sum::<f64>();
        Ok((all(0) / images.losses(&places) as f64, all(1) / images.len() as f64))
    }

    /// Makes sure that all ranks have the same weights.
    pub(super) fn verify(&mut self) -> Result<()> {
        match self {
            Self::Alone(..) => Ok(()),
            Self::Together(model) => Ok(model.verify()?),
        }
    }
}

/// Returns the number of answers that the model writes. It writes an answer if each id is the
/// likeliest one behind those before.
fn answered(batch: &TextBatch<'_>, mut likeliest: &[i32]) -> usize {
    let texts = batch.text_cu_seqlens.windows(2).zip(batch.question);
    let right = texts.filter(|(ends, asked)| {
        let answer = &batch.ids[(ends[0] + **asked) as usize..ends[1] as usize];
        let (own, rest) = likeliest.split_at(answer.len());
        likeliest = rest;
        own == answer
    });
    right.count()
}
