//! Several ranks learn one model: each computes the gradients of a part of the batch.
//!
//! ```text
//! compute | forward | backward: head | block 2 | block 1 | embed |      | update bucket 0 | update 1 |
//! reduce                             | bucket 0 |  bucket 1  | bucket 2 |
//! ```
//!
//! The gradients lie in buckets ([`Gradients`]). A bucket goes to the communicator's stream as soon
//! as the backward pass has enqueued the last work on it. The types keep it from being used until
//! its sum is there.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::path::Path;

use thalweg::{DeviceBuffer, DeviceSlice, LiveBrand, On, Stream};
use thalweg_collective::{Backward, BucketGradient, BucketSizes, Comm, Gradients, Reduction, Sum};
use thalweg_kernels::train::sum_rows;

use super::trainable::Trainable;
use crate::batch::{Extent, HostBatch, StreamBatch};
use crate::error::{Error, Result};
use crate::layers::GradientSink;
use crate::layout::ParameterLayout;
use crate::model::PassOn;
use crate::precision::Precision;
use crate::transformer::{Loss, TokenTransformer};

/// The elements behind the gradients. The first is for the loss, the second for the number of
/// sequences.
const LOSS: usize = 8;

/// A [`TokenTransformer`] that several ranks train together. Each has the model on its own device,
/// with the same weights, and learns from its own part of each batch.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_collective::{BucketSizes, WorldOptions, ranks};
/// use thalweg_train::overlap::DataParallel;
/// use thalweg_train::{TokenBatch, TokenTransformerConfig, Result, TokenTransformer};
///
/// stream_tags!(Compute, Reduce);
/// let devices = [Device::new_cpu()?, Device::new_cpu()?]; // or GPUs, or a process for each
/// let losses = ranks(&devices, WorldOptions::default(), |rank, world| -> Result<Vec<f32>> {
///     let compute = rank.stream::<Compute>()?;
///     let comm = world.comm(rank.stream::<Reduce>()?)?;
///     let config = TokenTransformerConfig::default()
///         .with_input_dim(3)
///         .with_embed_dim(16)
///         .with_num_heads(2)
///         .with_depth(1)
///         .with_num_classes(2);
///     let model = TokenTransformer::<_, f32>::new(&compute, config, 7)?;
///     let mut parallel = DataParallel::new(comm, model, BucketSizes::default())?;
///     let (tokens, labels) = ([0.0, 0.5, 1.0, 1.0, 0.5, 0.0], [rank.index() as i32]);
///     let own = TokenBatch { tokens: &tokens, position: &[0.0, 0.0, 0.5, 0.5], cu_seqlens: &[0, 2], labels: &labels };
///     let mut losses = Vec::new();
///     for _ in 0..3 {
///         losses.push(parallel.step(&[own], 2)?.item()?); // of the 2 sequences of both ranks
///     }
///     parallel.verify()?;
///     Ok(losses)
/// });
/// let losses = losses.into_iter().collect::<Result<Vec<_>>>()?;
/// assert_eq!(losses[0], losses[1]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub struct DataParallel<C: LiveBrand, S: LiveBrand, E: Precision> {
    comm: Comm<C>,
    model: TokenTransformer<S, E>,
    /// It is empty after a failure that lost the memory.
    gradients: Option<Gradients<S, f32>>,
    /// The start of each gradient in the flat buffer.
    starts: Vec<usize>,
}

impl<C: LiveBrand, S: LiveBrand, E: Precision> DataParallel<C, S, E> {
    /// Makes the ranks' models equal: all get weights, moments and the number of steps of rank 0.
    /// The options of the optimizer must be the same already.
    ///
    /// # Errors
    /// [`RanksDiffer`](thalweg_collective::Error::RanksDiffer) if the models have different shapes;
    /// there is no memory; or the ranks or the device have failed.
    pub fn new(mut comm: Comm<C>, mut model: TokenTransformer<S, E>, sizes: BucketSizes) -> Result<Self> {
        let s = model.stream;
        let layout = &model.model.layout;
        // Heads, eps and the like are part of it: with others the ranks compute other gradients.
        let shape = (&model.model.config, model.vision_language(), model.model.frozen(), layout.slots());
        let shape = format!("{shape:?}");
        comm.verify_equal("the shape of the model", hash(shape.bytes().map(u64::from)))?;
        let starts = starts(layout).collect();
        let mut lens = layout.lens();
        lens.push(LOSS);
        let gradients = Gradients::new(&s, &lens, sizes)?;
        let (parameters, moments) = model.state.as_mut().ok_or(Error::Lost)?;
        for x in [&mut parameters.values, &mut moments.adamw.first, &mut moments.adamw.second] {
            let there = s.hand_off(mem::replace(x, s.alloc(0)?), &comm.stream())?;
            *x = comm.stream().hand_off(broadcast(&mut comm, there)?, &s)?;
        }
        let c = comm.stream();
        let steps = broadcast(&mut comm, c.upload_blocking(&[model.steps])?)?;
        model.steps = c.read_blocking(&steps).map_err(|error| comm.failure_or(error))?[0];
        Ok(Self { comm, model, gradients: Some(gradients), starts })
    }

    /// Enqueues a step on this rank's part of a batch, and returns at once. `batches` are this
    /// rank's sequences. If there are several, their gradients are added first and then reduced
    /// once. If there are none, the rank takes part with gradients of zero, as it must if the ranks
    /// do not have equally many batches. `sequences` is the number of sequences of all ranks
    /// together, or of a model that answers the number of ids of all answers
    /// ([`TextBatch::answers`](crate::TextBatch::answers)), the same on every rank.
    ///
    /// The loss is the mean over all of them, the same on every rank. The update is that of one
    /// rank with all sequences, up to the rounding of sums, and has the same bits on every rank.
    ///
    /// # Errors
    /// A batch does not fit the model, the model is another one than at the start, there is no
    /// memory, or the ranks or the device have failed. After a failure of the ranks, go on from a
    /// checkpoint. If `sequences` is not the number of sequences of all ranks, [`Loss::item`] says
    /// so.
    pub fn step(&mut self, batches: &[impl HostBatch], sequences: usize) -> Result<Loss> {
        let extents = batches.iter().map(|batch| self.model.model.check(batch, true)).collect::<Result<Vec<_>>>()?;
        self.learn(&extents, sequences, |s, k, pass| Ok(pass.upload(s, &batches[k], extents[k])?))
    }

    /// Does the same as [`step`](Self::step), with a batch that is on the device. The batch is
    /// copied, so its buffers are free as soon as the stream has passed the copies. What they hold
    /// is not checked, as in [`TokenTransformer::step_on`].
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn step_on(&mut self, batch: &impl StreamBatch<S>, sequences: usize) -> Result<Loss> {
        let parts = batch.parts();
        let extent = self.model.model.extent(&parts)?;
        self.learn(&[extent], sequences, |s, _, pass| Ok(pass.take(s, &parts, extent)?))
    }

    /// Enqueues a step on batches of these extents, with which `fill` fills the pass.
    fn learn(
        &mut self,
        extents: &[Extent],
        sequences: usize,
        mut fill: impl FnMut(&Stream<S>, usize, &mut PassOn<S, E>) -> Result<()>,
    ) -> Result<Loss> {
        let own: usize = extents.iter().map(|extent| extent.losses()).sum();
        if sequences == 0 || sequences < own {
            return Err(Error::Batch(format!("{own} losses of {sequences} in {} batches", extents.len())));
        }
        if !starts(&self.model.model.layout).eq(self.starts.iter().copied()) {
            return Err(Error::Config("the model is another one than at the start".into()));
        }
        let s = self.model.stream;
        let mut loss = s.bind(s.device().pinned::<f32>(2)?)?;
        let most = extents.iter().copied().reduce(|a, b| a.or(b));
        self.model.make_room(most.unwrap_or_default(), true)?;
        let Self { comm, model, gradients, .. } = self;
        let TokenTransformer { model: net, optimizer, steps, state, pass, scratch, .. } = model;
        let (Some((parameters, moments)), Some(pass), Some((_, scratch))) = (state, pass, scratch) else {
            return Err(Error::Lost);
        };
        optimizer.prepare(&s, *steps, &mut moments.adamw)?;
        parameters.round(&s)?;
        let (mut backward, grads) = comm.backward(Sum, gradients.take().ok_or(Error::Lost)?)?;
        let mut sink = BucketSink::new(&net.layout, &mut backward, grads);
        let n = net.layout.len();
        let mut ran = Ok(());
        for k in 0..extents.len() {
            sink.hands_in = k + 1 == extents.len();
            ran = fill(&s, k, pass).and_then(|()| {
                net.forward(&s, parameters.view(), pass)?;
                net.loss(&s, sequences, pass)?;
                s.fill(sink.at(&(n..n + 2))?.slice_mut(1..)?, own as f32)?;
                let at = n..n + 1;
                sum_rows(&s, [1, 1], k > 0, &pass.loss, &mut scratch.sums.parts, sink.at(&at)?)?;
                sink.done(&at)?;
                Ok(net.backward(&s, parameters.view(), pass, scratch, &mut sink, k > 0)?)
            });
            if ran.is_err() {
                break;
            }
        }
        if extents.is_empty() {
            ran = sink.nothing(&s);
        }
        sink.finish()?;
        ran?;
        let (clip, learned) = (optimizer.max_grad_norm, net.learned());
        let whole = backward.finish(|elements, sums| {
            // The loss lies behind the last gradient.
            let range = elements.start.max(learned.start)..elements.end.min(learned.end);
            if clip.is_none() && !range.is_empty() {
                let sums = sums.slice(range.start - elements.start..range.end - elements.start)?;
                moments.adamw.update(&s, range, sums, &mut parameters.values)?;
            }
            Ok::<_, Error>(())
        })?;
        if let Some(most) = clip {
            // The norm is that of all gradients.
            let sums = whole.slice(learned.clone())?;
            moments.adamw.clip(&s, most, sums)?;
            moments.adamw.update(&s, learned, sums, &mut parameters.values)?;
        }
        s.copy_to_host(whole.slice(n..n + 2)?, &mut loss)?;
        *gradients = Some(whole);
        *steps += 1;
        Ok(Loss::of_ranks(s.record(loss)?, sequences))
    }

    /// Compares the weights of all ranks by a checksum, and waits for the answer. They have the
    /// same bits unless a device computed something wrong or the program changed one of the models,
    /// so call it now and then.
    ///
    /// # Errors
    /// [`RanksDiffer`](thalweg_collective::Error::RanksDiffer) on every rank if they differ; or the
    /// ranks or the device have failed.
    pub fn verify(&mut self) -> Result<()> {
        let (parameters, _) = self.model.state.as_ref().ok_or(Error::Lost)?;
        let weights =
            self.model.stream.read_blocking(&parameters.values).map_err(|error| self.comm.failure_or(error))?;
        let hash = hash(weights.iter().map(|v| u64::from(v.to_bits())));
        Ok(self.comm.verify_equal("the weights", hash)?)
    }

    /// Writes a checkpoint on rank 0, as [`TokenTransformer::checkpoint`] does, after all ranks
    /// have confirmed that they have the same weights. So it is not made of partial sums.
    ///
    /// # Errors
    /// The errors of [`verify`](Self::verify), or the file cannot be written.
    pub fn checkpoint(&mut self, path: impl AsRef<Path>, progress: &BTreeMap<String, String>) -> Result<()> {
        self.verify()?;
        if self.comm.rank() == 0 { self.model.checkpoint(path, progress) } else { Ok(()) }
    }

    /// Returns the model. Its own steps would make it differ from those of the other ranks.
    #[must_use]
    pub fn model(&self) -> &TokenTransformer<S, E> {
        &self.model
    }

    /// Returns the model to evaluate it, or to change the options of the optimizer on all ranks
    /// alike.
    pub fn model_mut(&mut self) -> &mut TokenTransformer<S, E> {
        &mut self.model
    }

    /// Returns the communicator, for operations between steps.
    pub fn comm_mut(&mut self) -> &mut Comm<C> {
        &mut self.comm
    }

    /// Returns communicator and model, for example to go on with other buckets.
    #[must_use]
    pub fn into_parts(self) -> (Comm<C>, TokenTransformer<S, E>) {
        (self.comm, self.model)
    }

    /// Returns the elements of each bucket of gradients, in the order in which they are reduced.
    #[must_use]
    pub fn buckets(&self) -> Vec<Range<usize>> {
        self.gradients.as_ref().map(Gradients::buckets).unwrap_or_default()
    }
}

impl<C: LiveBrand, S: LiveBrand, E: Precision> std::fmt::Debug for DataParallel<C, S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { comm, model, gradients, .. } = self;
        let mut f = f.debug_struct("DataParallel");
        f.field("comm", comm).field("model", model).field("gradients", gradients).finish_non_exhaustive()
    }
}

/// A number that differs, in all likelihood, if the words do (FNV-1a).
fn hash(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the start of each gradient in the flat buffer, and the end of the last one.
fn starts(layout: &ParameterLayout) -> impl Iterator<Item = usize> {
    layout.slots().iter().map(|place| place.range.start).chain([layout.len()])
}

impl<C: LiveBrand, S: LiveBrand, E: Precision> Trainable<S> for DataParallel<C, S, E> {
    fn stream(&self) -> Stream<S> {
        self.model().stream()
    }

    fn learn(&mut self, batch: &impl StreamBatch<S>, losses: Option<usize>) -> Result<Loss> {
        let own = self.model.model.extent(&batch.parts())?.losses();
        let all = losses.unwrap_or(self.comm_mut().size() * own);
        self.step_on(batch, all)
    }
}

/// Gives all ranks what rank 0 has.
fn broadcast<C: LiveBrand, T: thalweg_collective::CollectiveElement>(
    comm: &mut Comm<C>,
    mut x: On<C, DeviceBuffer<T>>,
) -> Result<On<C, DeviceBuffer<T>>> {
    comm.broadcast(0, &mut x)?;
    Ok(x)
}

/// A [`GradientSink`] whose gradients the ranks reduce: it hands each one in to [`Backward`] as
/// soon as the pass is done with it. So a bucket is reduced beside the rest of the pass.
///
/// The gradients are those of [`Gradients::new`] with the lengths of [`ParameterLayout::lens`].
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_collective::overlap::data_parallel;
/// use thalweg_collective::{BucketSizes, Gradients, Mean, World};
/// use thalweg_train::layers::{BackwardPass, BackwardScratchOn, Linear, WeightsOn};
/// use thalweg_train::overlap::BucketSink;
/// use thalweg_train::{AdamW, AdamWStateOn, MatmulBackend, ParameterLayout, Result};
///
/// stream_tags!(Compute, Reduce);
/// let device = Device::cpu()?;
/// let (s, mut comm) = (device.stream::<Compute>()?, World::single().comm(device.stream::<Reduce>()?)?);
/// let mut layout = ParameterLayout::default();
/// let layer = Linear::new(&mut layout, "layer", 1, 1)?;
/// let mut parameters = WeightsOn::<_, f32>::new(&s, &layout.init(7)?)?;
/// let mut state = AdamWStateOn::new(&s, layout.len())?;
/// let mut scratch = BackwardScratchOn::new(&s, MatmulBackend::default(), &layout)?;
/// let gradients = Gradients::new(&s, &layout.lens(), BucketSizes::default())?;
/// let (x, dy) = (s.upload_blocking(&[3.0])?, s.upload_blocking(&[2.0])?);
///
/// AdamW::default().prepare(&s, 0, &mut state)?;
/// let gradients = data_parallel(
///     &mut comm,
///     Mean,
///     gradients,
///     &mut parameters,
///     |parameters, pass, grads| -> Result<()> {
///         let mut sink = BucketSink::new(&layout, pass, grads);
///         let mut backward = BackwardPass::new(&s, parameters.view(), &mut sink, &mut scratch);
///         layer.backward_weight(&mut backward, 1, &x, &dy)?;
///         Ok(sink.finish()?)
///     },
///     |parameters, range, means| Ok(state.update(&s, range, means, parameters.values_mut())?),
/// )?;
/// assert_eq!(s.read_blocking(&gradients)?[0], 6.0);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub struct BucketSink<'p, 'c, C: LiveBrand, S: LiveBrand, R> {
    starts: Vec<usize>,
    grads: Vec<Option<BucketGradient<S, f32>>>,
    backward: &'p mut Backward<'c, C, S, f32, R>,
    /// Whether gradients that are done are handed in. They are not as long as others are added.
    hands_in: bool,
    /// The first error of a sink.
    failed: Option<thalweg_collective::Error>,
}

impl<'p, 'c, C: LiveBrand, S: LiveBrand, R: Reduction<f32> + Copy> BucketSink<'p, 'c, C, S, R> {
    /// Makes the sink of a pass over the layers of `layout`.
    #[must_use]
    pub fn new(
        layout: &ParameterLayout,
        backward: &'p mut Backward<'c, C, S, f32, R>,
        grads: Vec<BucketGradient<S, f32>>,
    ) -> Self {
        let grads = grads.into_iter().map(Some).collect();
        Self { starts: starts(layout).collect(), grads, backward, hands_in: true, failed: None }
    }

    /// Ends the pass.
    ///
    /// # Errors
    /// The ranks or the device have failed while a gradient was handed in.
    pub fn finish(self) -> thalweg_collective::Result<()> {
        self.failed.map_or(Ok(()), Err)
    }

    fn index(&self, place: &Range<usize>) -> usize {
        self.starts.binary_search(&place.start).expect("a layer has its places from the layout")
    }

    /// Hands all gradients in as zeros.
    fn nothing(&mut self, s: &Stream<S>) -> Result<()> {
        for grad in self.grads.iter_mut().rev() {
            if let Some(mut grad) = grad.take() {
                s.zero(&mut grad)?;
                self.backward.mark_ready(grad)?;
            }
        }
        Ok(())
    }
}

impl<C: LiveBrand, S: LiveBrand, R> std::fmt::Debug for BucketSink<'_, '_, C, S, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BucketSink").field("backward", &self.backward).finish_non_exhaustive()
    }
}

const WRITTEN: &str = "the pass writes a gradient only before it is done with it";

impl<C: LiveBrand, S: LiveBrand, R: Reduction<f32> + Copy> GradientSink<S> for BucketSink<'_, '_, C, S, R> {
    fn at(&mut self, place: &Range<usize>) -> thalweg::Result<&mut DeviceSlice<S, f32>> {
        let index = self.index(place);
        Ok(self.grads[index].as_mut().expect(WRITTEN).slice_mut(..place.len())?)
    }

    fn both(&mut self, first: &Range<usize>, second: &Range<usize>) -> thalweg::Result<[&mut DeviceSlice<S, f32>; 2]> {
        let [a, b] = [first, second].map(|place| self.index(place));
        let [a, b] = self.grads.get_disjoint_mut([a, b]).expect("two places");
        let (a, b) = (a.as_mut().expect(WRITTEN), b.as_mut().expect(WRITTEN));
        Ok([a.slice_mut(..first.len())?, b.slice_mut(..second.len())?])
    }

    fn done(&mut self, place: &Range<usize>) -> thalweg::Result<()> {
        let index = self.index(place);
        if self.hands_in
            && let Some(grad) = self.grads[index].take()
            && let Err(why) = self.backward.mark_ready(grad)
        {
            self.failed.get_or_insert(why);
        }
        Ok(())
    }
}
