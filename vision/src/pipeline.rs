//! The pipeline: batch after batch, each on a stream of its own.
//!
//! ```text
//! slot 0 | up 0 | analyze, score, allocate, compress 0 | down 0 |        | up 3 | ...
//! slot 1        | up 1 | analyze, ... 1 | down 1 |
//! slot 2               | up 2 | ...
//! ```
//!
//! A slot has a stream and all the memory that a batch takes, both page-locked and on the device.
//! So the copies of one batch run beside the kernels of others, and in the steady state nothing is
//! allocated. From its second batch on, a slot replays one [`Graph`](thalweg::Graph). Nothing waits
//! for the host between upload and result: the number of tokens is known only with the tokens, so
//! the budget decides the size of their memory.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use log::debug;
use thalweg::{
    AnyStream, Device, DeviceBuffer, DeviceSlice, Error, Event, GraphCache, LiveBrand, PinnedBuffer, Result, Returned,
    Size, Stream,
};

use crate::block_on::block_on;
use crate::frame::Frame;
use crate::kernels::BatchLayout;
use crate::lock;
use crate::params::layout;
use crate::slots::{Buffers, BuffersOn, Claim, Draft, Run, SlotOn, Slots, Work};
use crate::stages::StageTimings;
use crate::tokens::{KeptTokensEvents, Sent};
use crate::workspace::{Coupling, Mix, Plan, ResultLayout, WorkspaceOn};
use crate::{Head, Image, KeptTokens, PLANES, PipelineOptions, Query, TokenParams, TokenSet, Tokens, kernels};

/// The target of the messages of this crate.
const TARGET: &str = "thalweg_vision::pipeline";

/// Images to tokens.
///
/// [`run`](Pipeline::run) takes images and returns their tokens. For a stream of images, take a
/// [`Frame`], write into its page-locked memory, [`submit`](Pipeline::submit) it, and give the
/// [`Tokens`] back after use. The memory of a frame, or of a batch under way, that is dropped comes
/// back by itself, as soon as its work is done:
///
/// ```
/// use thalweg::{Device, Event, Size};
/// use thalweg_vision::{TokenParams, Pipeline, Tokens};
/// use std::collections::VecDeque;
///
/// let pipeline = Pipeline::new(Device::best()?, TokenParams::default().with_budget(500))?;
/// let mut under_way: VecDeque<Event<Tokens>> = VecDeque::new();
/// let mut total = 0;
/// let mut used = |tokens: Event<Tokens>| {
///     let tokens = tokens.synchronize()?;
///     total += tokens.len();
///     pipeline.recycle(tokens);
///     Ok::<(), thalweg::Error>(())
/// };
/// for shade in 0..20 {
///     if under_way.len() == pipeline.depth() {
///         used(under_way.pop_front().expect("there are some"))?;
///     }
///     let mut frame = pipeline.frame(&[Size::new(40, 70), Size::new(33, 32)])?; // two images a batch
///     frame.image_mut(0).fill(shade);
///     frame.image_mut(1).fill(255 - shade);
///     under_way.push_back(pipeline.submit(frame)?);
/// }
/// under_way.into_iter().try_for_each(&mut used)?;
/// assert!(total > 0 && total <= 20 * 2 * 500);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// A pipeline for each of several devices takes a line, with
/// [`for_each_device`](thalweg::for_each_device):
///
/// ```
/// use thalweg::{Device, Result, for_each_device};
/// use thalweg_vision::{Image, TokenParams, Pipeline, TokenSet};
///
/// // On a machine with GPUs: `(0..).map_while(|i| Device::cuda(i).ok()).collect::<Vec<_>>()`.
/// let gpus = [Device::cpu()?, Device::new_cpu()?];
/// let images = [10, 90, 170, 250].map(|shade| Image::new(64, 64, vec![shade; 3 * 64 * 64]));
/// let images = images.into_iter().collect::<Result<Vec<_>>>()?;
/// let params = TokenParams::default().with_budget(500);
///
/// let shares: Vec<&[Image]> = images.chunks(images.len().div_ceil(gpus.len())).collect();
/// let sets: Vec<Vec<Result<TokenSet>>> =
///     for_each_device(&gpus, |rank| Ok(Pipeline::new(rank.device(), params.clone())?.run(shares[rank.index()])))
///         .into_iter()
///         .collect::<Result<_>>()?;
///
/// let alone = Pipeline::new(gpus[0], params)?.run(&images); // the same tokens, by one device
/// for (one, other) in alone.iter().zip(sets.iter().flatten()) {
///     assert_eq!(one.as_ref().unwrap().cu_seqlens, other.as_ref().unwrap().cu_seqlens);
/// }
/// assert_eq!(sets.iter().flatten().count(), 4);
/// # Ok::<(), thalweg::Error>(())
/// ```
pub struct Pipeline {
    device: Device,
    params: TokenParams,
    options: PipelineOptions,
    gains: Vec<u32>,
    coupling: Option<Coupling>,
    slots: Arc<Slots>,
}

/// Shows the settings, and neither weights nor memory.
impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("device", &self.device)
            .field("params", &self.params)
            .field("options", &self.options)
            .field("has_query", &self.coupling.is_some())
            .finish_non_exhaustive()
    }
}

/// Pixels that are on the device, or will be.
type Pixels = Event<DeviceBuffer<u8>>;

/// The parts of a new slot, which has no place yet.
type Made = (AnyStream, Arc<Plan>, PinnedBuffer<u8>, Event<Buffers>);

impl Pipeline {
    /// A pipeline with the default [`PipelineOptions`] and without a query.
    ///
    /// # Errors
    /// A parameter is out of its range.
    pub fn new(device: Device, params: TokenParams) -> Result<Self> {
        Self::with_options(device, params, PipelineOptions::default())
    }

    /// A pipeline without a query.
    ///
    /// # Errors
    /// A parameter or an option is out of its range.
    pub fn with_options(device: Device, params: TokenParams, options: PipelineOptions) -> Result<Self> {
        params.validate()?;
        options.validate()?;
        let (lo, hi) = params.side_bounds();
        debug!(target: TARGET, "a pipeline for {device}: {params:?}, {options:?}");
        Ok(Self {
            device,
            gains: kernels::gains(lo, hi, params.focus),
            params,
            coupling: None,
            slots: Slots::new(device, options.depth),
            options,
        })
    }

    /// Makes the participatory score of a query part of relevance. [`TokenParams::mix`] gives the
    /// weights of the scores. If it is absent, the balancer of the head does; without a balancer,
    /// the scores weigh the same.
    ///
    /// # Errors
    /// Head and query differ in dimension ([`Error::Tensor`](crate::Error::Tensor)).
    pub fn with_query(self, head: &Head, query: &Query) -> crate::Result<Self> {
        let mix = match (self.params.mix, head.balancer_weights(query)?) {
            (None, Some(predictor)) => Mix::Balancer { predictor, tensions: head.has_tensions() },
            (mix, _) => Mix::Fixed(mix.unwrap_or([1.0 / 3.0; 3])),
        };
        let coupling = Some(Coupling { weights: head.projection(query)?, mix });
        Ok(Self { coupling, slots: Slots::new(self.device, self.options.depth), ..self })
    }

    #[cfg(test)]
    pub(crate) fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }

    /// The device it runs on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The parameters.
    pub fn params(&self) -> &TokenParams {
        &self.params
    }

    /// The options.
    pub fn options(&self) -> &PipelineOptions {
        &self.options
    }

    /// Returns the most batches that may be under way or in use at once.
    pub fn depth(&self) -> usize {
        self.options.depth
    }

    /// The device time of the batches recycled so far, if it is
    /// [measured](PipelineOptions::stages).
    pub fn stages(&self) -> StageTimings {
        self.slots.stages()
    }

    /// Memory for a batch of images of these sizes. Write the images, then submit
    /// it.
    ///
    /// It waits while as many frames and tokens as the pipeline is [deep](Pipeline::depth) are in
    /// use, or were dropped and are not done yet. So a thread that holds them all waits forever. In
    /// asynchronous code, use [`frame_async`](Pipeline::frame_async).
    ///
    /// # Errors
    /// A size is not within 1 to 16384, one batch cannot hold the images, [`TokenParams::mix`] has
    /// a weight for a query but there is none, there is no memory, or the device has failed.
    pub fn frame(&self, sizes: &[Size]) -> Result<Frame> {
        match self.try_frame(sizes)? {
            Some(frame) => Ok(frame),
            None => block_on(self.frame_async(sizes)),
        }
    }

    /// Works like [`frame`](Pipeline::frame), for asynchronous code: the task waits, and no thread
    /// is blocked. It runs on every executor.
    ///
    /// Threads and tasks that wait get frames in the order in which they began to wait. Dropping
    /// the future gives its turn to the next one. So drop a future that is not polled any more,
    /// because those behind it wait for it.
    ///
    /// ```
    /// use thalweg::{Device, Size};
    /// use thalweg_vision::{PipelineOptions, TokenParams, Pipeline};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> thalweg::Result<()> {
    /// let params = TokenParams::default().with_budget(500);
    /// let options = PipelineOptions::default().with_depth(2);
    /// let pipeline = Pipeline::with_options(Device::best()?, params, options)?;
    /// let request = async |shade| {
    ///     let mut frame = pipeline.frame_async(&[Size::new(40, 70)]).await?; // at most two requests are past this line
    ///     frame.image_mut(0).fill(shade);
    ///     Ok::<usize, thalweg::Error>(pipeline.submit(frame)?.await?.len())
    /// };
    /// let (a, b, c) = tokio::join!(request(1), request(2), request(3));
    /// assert!(a? + b? + c? > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn frame_async<'p>(&'p self, sizes: &'p [Size]) -> FrameFuture<'p> {
        FrameFuture { pipeline: self, sizes, uploads: true, turn: None }
    }

    /// Works like [`frame`](Pipeline::frame), but never waits. `None` means that `frame` would
    /// wait, perhaps because others wait already.
    ///
    /// # Errors
    /// The errors of [`frame`](Pipeline::frame).
    pub fn try_frame(&self, sizes: &[Size]) -> Result<Option<Frame>> {
        self.frame_or_turn(sizes, true, &mut None, None)
    }

    /// A frame, if there is a place for it. Otherwise `None`; then a `waker` stands in the queue,
    /// under the number in `turn`. A frame that does not upload has no page-locked memory.
    fn frame_or_turn(
        &self,
        sizes: &[Size],
        uploads: bool,
        turn: &mut Option<u64>,
        waker: Option<Waker>,
    ) -> Result<Option<Frame>> {
        self.device.ensure_usable()?;
        let same = |draft: &Draft| {
            let layout = &draft.plan().layout;
            let same_sizes = layout.images() as usize == sizes.len()
                && (0..).zip(sizes).all(|(i, size)| Size::from(layout.size(i)) == *size);
            same_sizes && draft.run.uploads == uploads
        };
        let (place, layout) = match self.slots.claim(same, || self.layout(sizes), turn, waker)? {
            None => return Ok(None),
            Some(Claim::Free(draft)) => return Ok(Some(self.lend(draft))),
            Some(Claim::Place(place, layout, replaced)) => {
                drop(replaced);
                (place, layout)
            }
        };
        let made = match self.make(layout.clone(), uploads) {
            Err(Error::OutOfMemory { .. } | Error::PinnedBudget { .. }) => {
                drop(self.slots.take_free());
                self.make(layout, uploads)
            }
            made => made,
        };
        let (stream, plan, images, buffers) = made?;
        let list = || sizes.iter().map(Size::to_string).collect::<Vec<_>>().join(", ");
        debug!(target: TARGET, "a slot of {} got memory for images of {}", self.device, list());
        let work = if self.options.stages { Work::Measured(Vec::new()) } else { Work::Graphs(GraphCache::default()) };
        Ok(Some(self.lend(Draft {
            images,
            buffers,
            run: Arc::new(Run { stream, work: Mutex::new(work), plan, place, uploads }),
        })))
    }

    fn lend(&self, draft: Draft) -> Frame {
        Frame::new(draft, &self.slots)
    }

    /// Makes a stream and the memory for a batch. Waits for nothing.
    fn make(&self, layout: BatchLayout, uploads: bool) -> Result<Made> {
        let stream = AnyStream::new(self.device)?;
        let bytes = layout.bytes() as usize;
        let pixels = (0..layout.images() as usize).map(|i| layout.byte_range(i).len() / 3).sum::<usize>();
        let (plan, buffers) = stream.enter(|s| {
            let workspace = self.workspace_of(s, layout)?;
            let planes = match self.options.textures {
                true => Some((s.alloc(PLANES * pixels)?, s.bind(self.device.pinned(PLANES * pixels)?)?)),
                false => None,
            };
            let rgb = s.alloc(bytes)?;
            let plan = workspace.plan.clone();
            let results = s.bind(self.device.pinned(plan.words())?)?;
            Ok::<_, Error>((plan, s.record(BuffersOn { rgb, workspace, results, planes })?))
        })?;
        let images = if uploads { self.device.pinned(bytes)? } else { PinnedBuffer::empty(self.device) };
        Ok((stream, plan, images, buffers))
    }

    /// The layout of images of these sizes. An error if this pipeline cannot make tokens of them.
    fn layout(&self, sizes: &[Size]) -> Result<BatchLayout> {
        if let (None, Some([.., third])) = (&self.coupling, self.params.mix)
            && third != 0.0
        {
            return Err(Error::Parameter {
                name: "mix",
                given: format!("{third} for the participatory score"),
                expected: "0, since there is no query".into(),
            });
        }
        layout(sizes, self.params.patch)
    }

    fn workspace_of<S: LiveBrand>(&self, stream: &Stream<S>, layout: BatchLayout) -> Result<WorkspaceOn<S>> {
        WorkspaceOn::new(stream, &self.params, layout, self.options.precision, &self.gains, self.coupling.as_ref())
    }

    /// Device memory for batches of images of these sizes, with a query for each image
    /// ([`WorkspaceOn::set_queries`]). At first each is that of the pipeline.
    ///
    /// # Errors
    /// The errors of [`workspace`](Self::workspace), or the pipeline has no query.
    pub fn workspace_for_queries<S: LiveBrand>(&self, stream: &Stream<S>, sizes: &[Size]) -> Result<WorkspaceOn<S>> {
        let Some(Coupling { weights, mix }) = &self.coupling else {
            let expected = "a pipeline with a query".into();
            return Err(Error::Parameter { name: "query", given: "none".into(), expected });
        };
        let mix = match mix {
            Mix::Balancer { predictor, tensions } => {
                Mix::Balancer { predictor: predictor.repeat(sizes.len()), tensions: *tensions }
            }
            fixed => fixed.clone(),
        };
        let coupling = Coupling { weights: weights.repeat(sizes.len()), mix };
        let (layout, options) = (self.layout(sizes)?, &self.options);
        WorkspaceOn::new(stream, &self.params, layout, options.precision, &self.gains, Some(&coupling))
    }

    /// Device memory for batches of images of these sizes that are on the device
    /// already.
    ///
    /// ```
    /// use thalweg_vision::{TokenParams, Pipeline};
    /// use thalweg::{Device, Size, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let gpu = Device::best()?;
    /// let work = gpu.stream::<Work>()?;
    /// let pipeline = Pipeline::new(gpu, TokenParams::default().with_budget(500))?;
    ///
    /// let rgb = work.alloc_zeroed::<u8>(3 * 64 * 64)?; // from a decoder on the GPU, say
    /// let mut workspace = pipeline.workspace(&work, &[Size::new(64, 64)])?;
    /// workspace.enqueue(&work, &rgb)?;
    /// // A model would go on from here, on the device. Of `tokens`, this many count:
    /// let [tokens, patches] = work.read_blocking(workspace.counts())?[..] else { unreachable!() };
    /// assert!(tokens <= 500 && patches <= 4);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`frame`](Pipeline::frame).
    pub fn workspace<S: LiveBrand>(&self, stream: &Stream<S>, sizes: &[Size]) -> Result<WorkspaceOn<S>> {
        self.workspace_of(stream, self.layout(sizes)?)
    }

    /// Enqueues the work of a batch, and returns without waiting for it. The frame decides which
    /// pipeline does the work: a frame of another pipeline runs as if it were submitted there.
    ///
    /// # Errors
    /// The device has failed.
    pub fn submit(&self, frame: Frame) -> Result<Event<Tokens>> {
        Self::send(frame, &mut None)
    }

    /// Does the same as [`submit`](Self::submit), and leaves the tokens on the device: nothing is
    /// downloaded, and the stream of a model waits for the event.
    ///
    /// ```
    /// use thalweg::{Device, Size, stream_tags};
    /// use thalweg_vision::{TokenParams, Pipeline};
    ///
    /// stream_tags!(Model);
    /// let gpu = Device::best()?;
    /// let model = gpu.stream::<Model>()?;
    /// let pipeline = Pipeline::new(gpu, TokenParams::default().with_budget(500))?;
    /// for shade in [10, 200] {
    ///     let mut frame = pipeline.frame(&[Size::new(64, 64)])?;
    ///     frame.image_mut(0).fill(shade);
    ///     let kept = model.wait(pipeline.submit_kept(frame)?)?;   // the host waits for nothing
    ///     assert!(model.read_blocking(kept.workspace().counts())?[0] <= 500);
    ///     pipeline.recycle_kept(model.record(kept)?);             // its memory serves a later batch
    /// }
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device has failed.
    pub fn submit_kept(&self, frame: Frame) -> Result<Event<KeptTokens>> {
        Self::send(frame, &mut None)
    }

    /// Does the same as [`submit_pixels`](Self::submit_pixels), and leaves the tokens on the device,
    /// as [`submit_kept`](Self::submit_kept) does.
    ///
    /// # Errors
    /// The errors of [`submit_pixels`](Self::submit_pixels).
    pub fn submit_kept_pixels(
        &self,
        sizes: &[Size],
        pixels: Pixels,
    ) -> Result<(Event<KeptTokens>, Pixels), Returned<Pixels>> {
        match self.frame_for_pixels(sizes) {
            Ok(frame) => Self::send_pixels(frame, pixels),
            Err(error) => Err(Returned { error, value: pixels }),
        }
    }

    /// Does the same as [`submit_kept_pixels`](Self::submit_kept_pixels), and waits for a place as
    /// [`frame_async`](Self::frame_async) does. Dropping the future drops the pixels.
    ///
    /// # Errors
    /// The errors of [`submit_pixels`](Self::submit_pixels).
    pub async fn submit_kept_pixels_async(
        &self,
        sizes: &[Size],
        pixels: Pixels,
    ) -> Result<(Event<KeptTokens>, Pixels), Returned<Pixels>> {
        match (FrameFuture { pipeline: self, sizes, uploads: false, turn: None }).await {
            Ok(frame) => Self::send_pixels(frame, pixels),
            Err(error) => Err(Returned { error, value: pixels }),
        }
    }

    /// Takes the memory of a batch back that [`submit_kept`](Self::submit_kept) left on the device.
    /// It serves a later batch of the pipeline that made them once the event is complete.
    pub fn recycle_kept(&self, kept: Event<KeptTokens>) {
        let KeptTokensEvents { slot, done, home } = kept.unzip();
        if let Some(slots) = home.upgrade() {
            slots.give_back(slot, done);
        }
    }

    /// Returns where the results of images of these sizes lie in [`WorkspaceOn::results`].
    ///
    /// # Errors
    /// The errors of [`frame`](Pipeline::frame) that depend on the sizes.
    pub fn result_layout(&self, sizes: &[Size]) -> Result<ResultLayout> {
        Plan::result_layout(&self.params, self.layout(sizes)?, self.options.precision, self.coupling.as_ref())
    }

    fn frame_for_pixels(&self, sizes: &[Size]) -> Result<Frame> {
        match self.frame_or_turn(sizes, false, &mut None, None)? {
            Some(frame) => Ok(frame),
            None => block_on(FrameFuture { pipeline: self, sizes, uploads: false, turn: None }),
        }
    }

    /// Enqueues the work of a batch whose pixels are on the device already, and returns without
    /// waiting for it: for images of these sizes, which lie in `pixels` as
    /// [`WorkspaceOn::enqueue`] takes them. Each image begins at a multiple of 16 bytes, as in a
    /// batch of `thalweg-loader`. Nothing crosses the bus: the pixels are copied on the device, and
    /// the event that comes back says when.
    ///
    /// It waits for a place as [`frame`](Pipeline::frame) does.
    ///
    /// ```
    /// use thalweg::{Device, Size, stream_tags};
    /// use thalweg_vision::{TokenParams, Pipeline};
    ///
    /// stream_tags!(Decode);
    /// let gpu = Device::best()?;
    /// let decode = gpu.stream::<Decode>()?;
    /// let pipeline = Pipeline::new(gpu, TokenParams::default().with_budget(500))?;
    ///
    /// let pixels = decode.alloc_zeroed::<u8>(3 * 64 * 64)?; // from a decoder on the GPU, say
    /// let pixels = decode.record(pixels)?;
    /// let (tokens, pixels) = pipeline.submit_pixels(&[Size::new(64, 64)], pixels)?;
    /// assert!(tokens.synchronize()?.len() <= 500);
    /// let pixels = decode.wait(pixels)?; // for the next image
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`frame`](Pipeline::frame), or there are too few pixels, or they are on
    /// another device. The pixels come back with the error, but for a failed device, which may lose
    /// them: then the buffer is empty.
    pub fn submit_pixels(&self, sizes: &[Size], pixels: Pixels) -> Result<(Event<Tokens>, Pixels), Returned<Pixels>> {
        match self.frame_for_pixels(sizes) {
            Ok(frame) => Self::send_pixels(frame, pixels),
            Err(error) => Err(Returned { error, value: pixels }),
        }
    }

    fn send_pixels<T: Sent>(frame: Frame, pixels: Pixels) -> Result<(Event<T>, Pixels), Returned<Pixels>> {
        let mut pixels = Some(pixels);
        let sent = Self::send(frame, &mut pixels);
        match (sent, pixels) {
            (Ok(tokens), Some(pixels)) => Ok((tokens, pixels)),
            (Err(error), Some(value)) => Err(Returned { error, value }),
            (_, None) => unreachable!("`send` puts the pixels back"),
        }
    }

    /// Enqueues the work of a frame. `pixels` are those of a frame that does not upload. They come
    /// back with the event of their copy.
    fn send<T: Sent>(frame: Frame, pixels: &mut Option<Pixels>) -> Result<Event<T>> {
        let (Draft { images, buffers, run }, home) = frame.submit();
        let mut work = lock(&run.work);
        run.stream.enter(|stream| {
            let (images, mut buffers) = (stream.bind(images)?, stream.wait(buffers)?);
            let copied = match pixels.take() {
                Some(event) => copy_pixels(stream, event, &mut buffers.rgb, pixels),
                None => Ok(()),
            };
            let slot = SlotOn { images, buffers, run: run.clone() };
            let (slot, sent) = match copied {
                Ok(()) => match slot.send(stream, &mut work, T::DOWNLOADS) {
                    Ok(slot) => (slot, Ok(())),
                    Err(returned) => (returned.value, Err(returned.error)),
                },
                Err(error) => (slot, Err(error)),
            };
            // If the event is dropped, the slot keeps its place until its work is done. This also
            // holds if it is dropped here, because of an error, after a part of the work was
            // enqueued.
            let (tokens, done) = stream.record((T::on(slot, &home), ()))?.unzip();
            let tokens = tokens.on_drop(move |tokens| {
                if let Some(slots) = home.upgrade() {
                    slots.give_back(T::slot(tokens), done);
                }
            });
            sent?;
            Ok(tokens)
        })
    }

    /// Takes the memory of a batch back for a later one, and adds its times to the
    /// [measured](Pipeline::stages) ones. Tokens of another pipeline are dropped.
    pub fn recycle(&self, tokens: Tokens) {
        let draft = Draft::from(tokens.slot);
        if !draft.run.place.is_of(&self.slots) {
            return;
        }
        let times = match &*lock(&draft.run.work) {
            // The tokens are on the host, so the device is past the marks.
            Work::Measured(marks) => StageTimings::between(marks).ok().map(|mut times| {
                // Marks with nothing between them are some nanoseconds apart.
                if !draft.run.uploads {
                    times.upload = Duration::ZERO;
                }
                if !self.options.textures {
                    times.textures = Duration::ZERO;
                }
                times
            }),
            _ => None,
        };
        self.slots.recycle(draft, times);
    }

    /// Processes images of any sizes, a few at a time, and waits for all of them. Returns a result
    /// or an error for each image, in order. An image that fails does not stop the others.
    pub fn run(&self, images: &[Image]) -> Vec<Result<TokenSet>> {
        let images = images.iter().map(|image| (image.size(), image));
        let fill = |mut frame: Frame, image: &Image| {
            frame.image_mut(0).copy_from_slice(image.rgb());
            self.submit(frame).map(|tokens| (tokens, ())).map_err(|error| Returned { error, value: () })
        };
        self.run_each(images, true, |_| (), fill).into_iter().map(|set| set.map_err(Error::from)).collect()
    }

    /// Works like [`run`](Self::run) for images whose pixels are on the device already, each with
    /// its height and width. The pixels of an image that fails come back with the error.
    pub fn run_pixels(
        &self,
        images: impl IntoIterator<Item = (Size, Pixels)>,
    ) -> Vec<Result<TokenSet, Returned<Pixels>>> {
        self.run_each(images.into_iter(), false, |pixels| pixels, Self::send_pixels)
    }

    /// Processes images a few at a time. `send` submits one, and keeps something of it until its
    /// tokens are there. `refuse` makes that of an image that gets no frame. An error comes with
    /// it.
    fn run_each<I, K>(
        &self,
        images: impl Iterator<Item = (Size, I)>,
        uploads: bool,
        refuse: impl Fn(I) -> K,
        send: impl Fn(Frame, I) -> Result<(Event<Tokens>, K), Returned<K>>,
    ) -> Vec<Result<TokenSet, Returned<K>>> {
        let mut done = Vec::new();
        let mut under_way = VecDeque::new();
        for (size, image) in images {
            let sizes = [size];
            let frame = loop {
                match (self.frame_or_turn(&sizes, uploads, &mut None, None), under_way.is_empty()) {
                    (Ok(Some(frame)), _) => break Ok(frame),
                    (Ok(None), true) => {
                        break block_on(FrameFuture { pipeline: self, sizes: &sizes, uploads, turn: None });
                    }
                    // An image may have enough memory alone, though not beside the others.
                    (Ok(None) | Err(Error::OutOfMemory { .. } | Error::PinnedBudget { .. }), false) => {
                        done.extend(under_way.pop_front().map(|first| self.settle(first)));
                    }
                    (Err(error), _) => break Err(error),
                }
            };
            under_way.push_back(match frame {
                Ok(frame) => send(frame, image),
                Err(error) => Err(Returned { error, value: refuse(image) }),
            });
        }
        done.extend(under_way.into_iter().map(|submitted| self.settle(submitted)));
        done
    }

    fn settle<K>(&self, submitted: Result<(Event<Tokens>, K), Returned<K>>) -> Result<TokenSet, Returned<K>> {
        let (tokens, kept) = submitted?;
        match tokens.synchronize() {
            Ok(tokens) => {
                let set = tokens.set(0);
                self.recycle(tokens);
                Ok(set)
            }
            Err(returned) => Err(Returned { error: returned.error, value: kept }),
        }
    }
}

/// Copies pixels to the memory of a slot. They come back in `returned` with the event of the copy,
/// or as they were.
fn copy_pixels<S: LiveBrand>(
    stream: &Stream<S>,
    pixels: Pixels,
    rgb: &mut DeviceSlice<S, u8>,
    returned: &mut Option<Pixels>,
) -> Result<()> {
    if pixels.len() < rgb.len() {
        let given = format!("{} bytes", pixels.len());
        *returned = Some(pixels);
        return Err(Error::Parameter { name: "pixels", given, expected: format!("at least {} bytes", rgb.len()) });
    }
    let pixels = match stream.wait(pixels) {
        Ok(pixels) => pixels,
        Err(refused) => {
            *returned = Some(refused.value);
            return Err(refused.error);
        }
    };
    let copied = pixels.slice(..rgb.len()).map_err(Error::from).and_then(|from| stream.copy(from, rgb));
    match stream.record(pixels) {
        Ok(event) => *returned = Some(event),
        Err(refused) => {
            // The device has failed, and the pixels are lost with it.
            *returned = Some(Event::ready(DeviceBuffer::empty(stream.device())));
            return Err(refused.error);
        }
    }
    copied
}

/// The future of [`Pipeline::frame_async`]. It yields a frame, once there is a place for it and it
/// is the turn of this future.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct FrameFuture<'p> {
    pipeline: &'p Pipeline,
    sizes: &'p [Size],
    uploads: bool,
    /// The number of this future in the queue, while it stands there.
    turn: Option<u64>,
}

impl Future for FrameFuture<'_> {
    type Output = Result<Frame>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { pipeline, sizes, uploads, turn } = &mut *self;
        match pipeline.frame_or_turn(sizes, *uploads, turn, Some(cx.waker().clone())) {
            Ok(None) => Poll::Pending,
            Ok(Some(frame)) => Poll::Ready(Ok(frame)),
            Err(error) => {
                self.leave();
                Poll::Ready(Err(error))
            }
        }
    }
}

impl FrameFuture<'_> {
    fn leave(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.pipeline.slots.leave(turn);
        }
    }
}

impl Drop for FrameFuture<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
