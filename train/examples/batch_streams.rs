//! Computes several batches of a step at once, each on a stream of its own: forward, loss and
//! backward. A reduction makes the update that of all rows together.
//!
//! ```text
//! stream 0 | forward 0 | loss | backward 0 |
//! stream 1 | forward 1 | loss | backward 1  |
//! stream 2 | forward 2 | loss | backward 2 |
//! train    |                                | sum of 3 gradients | update | next step
//! ```
//!
//! ```text
//! cargo run --release -p thalweg-train --example batch_streams -- --timeline batch_streams.svg
//! ```
//!
//! The loss of each batch is divided by the rows of all of them, each stream writes a gradient of
//! its own, and the sum is in the order of the batches. So the weights are those of one stream, bit
//! for bit, and those of one batch with all rows up to the rounding of sums. Without the sum, each
//! stream would update weights that the others are reading: the streams only share them, so this
//! does not compile.
//!
//! It gains if a batch is too small to fill the device. If the rows of all batches fit into one,
//! then one batch is better: its products are larger, and there is one gradient. See
//! `micro_batches` for batches that do not fit into memory together.

#[path = "support/mod.rs"]
mod support;

use thalweg::overlap::shared_read;
use thalweg::{
    Activity, Brand, DeviceBuffer, Event, LiveBrand, On, Resource, Stream, StreamPool, Timeline, stream_tags,
};
use thalweg_kernels::train::sum_rows;
use thalweg_train::layers::{
    BackwardPass, BackwardScratch, BackwardScratchOn, CrossEntropy, ForwardPass, Gelu, Linear, WeightsOn,
};
use thalweg_train::{AdamW, AdamWStateOn, Error, Matmul, MatmulBackend, MatmulOn, ParameterLayout, Result};

stream_tags!(Train);

const CLASSES: usize = 4;

/// The buffers that a batch in flight needs.
#[derive(Resource)]
pub(crate) struct Lane {
    x: DeviceBuffer<f32>,
    labels: DeviceBuffer<i32>,
    matmul: Matmul,
    /// The results of the first layer, GELU of them, and the gradient of those.
    hidden: [DeviceBuffer<f32>; 3],
    logits: [DeviceBuffer<f32>; 2],
    losses: DeviceBuffer<f32>,
    scratch: BackwardScratch,
    gradient: DeviceBuffer<f32>,
}

/// A classifier of two layers.
pub(crate) struct Model {
    layout: ParameterLayout,
    layers: [Linear; 2],
    width: usize,
}

impl Model {
    pub(crate) fn new(width: usize) -> Result<Self> {
        let mut layout = ParameterLayout::default();
        let first = Linear::new(&mut layout, "first", 2, width)?;
        let layers = [first, Linear::new(&mut layout, "second", width, CLASSES)?];
        Ok(Self { layout, layers, width })
    }

    /// Makes a lane with the rows of a batch, which stay on the device.
    pub(crate) fn lane<S: LiveBrand>(&self, s: &Stream<S>, points: &[f32]) -> Result<Event<Lane>> {
        let (rows, width) = (points.len() / 2, self.width);
        let label = |p: &[f32]| (4.0 * p[0].hypot(p[1])).min(3.0) as i32;
        let labels: Vec<i32> = points.chunks(2).map(label).collect();
        let products = MatmulBackend::default();
        Ok(s.record(LaneOn {
            x: s.upload_blocking(points)?,
            labels: s.upload_blocking(&labels)?,
            matmul: MatmulOn::new(s, products)?,
            hidden: [s.alloc(rows * width)?, s.alloc(rows * width)?, s.alloc(rows * width)?],
            logits: [s.alloc(rows * CLASSES)?, s.alloc(rows * CLASSES)?],
            losses: s.alloc(rows)?,
            scratch: BackwardScratchOn::new(s, products, &self.layout)?,
            gradient: s.alloc_zeroed(self.layout.len())?, // no layer writes what is between parameters
        })?)
    }

    /// Enqueues forward, loss and backward of a batch. The loss is divided by `of` rows.
    fn pass<S: Brand>(
        &self,
        s: &Stream<S>,
        of: usize,
        weights: &WeightsOn<S, f32>,
        lane: &mut LaneOn<S>,
    ) -> thalweg::Result<()> {
        let LaneOn { x, labels, matmul, hidden: [hidden, activated, dhidden], logits: [logits, dlogits], .. } = lane;
        let (rows, [first, second], gelu) = (labels.len(), &self.layers, Gelu::Tanh);
        let mut f = ForwardPass::new(s, weights.view(), matmul);
        first.forward(&mut f, rows, x, hidden)?;
        gelu.forward(s, hidden, activated)?;
        second.forward(&mut f, rows, activated, logits)?;
        CrossEntropy::new(CLASSES).forward(s, of, logits, labels, &mut lane.losses, dlogits)?;
        let mut b = BackwardPass::new(s, weights.view(), &mut lane.gradient, &mut lane.scratch);
        second.backward_weight(&mut b, rows, activated, dlogits)?;
        second.backward_input(&mut b, rows, dlogits, dhidden)?;
        gelu.backward(s, hidden, dhidden)?;
        first.backward_weight(&mut b, rows, x, dhidden)
    }
}

/// A model that learns from the same batches in each step.
pub(crate) struct Training<'a, S: Brand> {
    model: &'a Model,
    train: Stream<S>,
    lanes: Vec<Event<Lane>>,
    rows: usize,
    weights: Option<WeightsOn<S, f32>>,
    state: AdamWStateOn<S>,
    total: On<S, DeviceBuffer<f32>>,
    room: On<S, DeviceBuffer<f32>>,
    steps: u64,
}

impl<'a, S: LiveBrand> Training<'a, S> {
    pub(crate) fn new(model: &'a Model, train: &Stream<S>, batches: &[Vec<f32>]) -> Result<Self> {
        let len = model.layout.len();
        Ok(Self {
            model,
            train: *train,
            lanes: batches.iter().map(|points| model.lane(train, points)).collect::<Result<_>>()?,
            rows: batches.iter().map(|points| points.len() / 2).sum(),
            weights: Some(WeightsOn::new(train, &model.layout.init(7)?)?),
            state: AdamWStateOn::new(train, len)?,
            total: train.alloc(len)?,
            room: train.alloc(1)?,
            steps: 0,
        })
    }

    /// Enqueues a step. `pool` has the streams of the batches, which take turns if there are fewer.
    /// The sums and the update are on the stream of the training.
    pub(crate) fn step(&mut self, pool: &StreamPool, timeline: &Timeline) -> Result<()> {
        let Self { model, train, lanes, rows, state, total, room, .. } = self;
        let weights = self.weights.take().ok_or(Error::Lost)?;
        let shared = train.share(weights).map_err(|returned| returned.error)?;
        let done = shared_read(pool, &shared, lanes.drain(..).enumerate(), |s, weights, (k, lane)| {
            let mut lane = s.wait(lane).map_err(|returned| returned.error)?;
            let label = format!("batch {k}");
            timeline.span(s, Activity::Compute, &label, || model.pass(s, *rows, weights, &mut lane))?;
            Ok(s.record(lane)?)
        });
        // The update waits for every backward pass, on the device.
        let mut weights = train.unshare(shared).map_err(|returned| returned.error)?;
        let shape = [1, total.len() as u32];
        for (k, lane) in done.into_iter().enumerate() {
            let lane = train.wait(lane?).map_err(|returned| returned.error)?;
            timeline
                .span(train, Activity::Compute, "sum", || sum_rows(train, shape, k > 0, &lane.gradient, room, total))?;
            lanes.push(train.record(lane)?);
        }
        let optimizer = AdamW::default().with_lr(0.01);
        timeline.span(train, Activity::Compute, "update", || {
            optimizer.step(train, self.steps, total, &mut weights, state)
        })?;
        self.steps += 1;
        self.weights = Some(weights);
        Ok(())
    }

    /// Waits for the steps, and returns the weights.
    pub(crate) fn weights(&self) -> Result<Vec<f32>> {
        Ok(self.train.read_blocking(self.weights.as_ref().ok_or(Error::Lost)?.values())?)
    }
}

fn main() -> Result<()> {
    let options = &[support::TIMELINE, support::BATCH, support::STEPS, support::RUNS];
    let args = support::Arguments::parse("Forward, loss and backward of several batches at once.", options);
    let gpu = support::device()?;
    let train = gpu.stream::<Train>()?;
    let (batches, rows, width, steps) = support::sized(gpu, (4, 256, 1024, 200), (3, 32, 16, 20));
    let (rows, steps) = (args.batch(rows), args.steps(steps) as u64);
    let model = Model::new(width)?;
    let points: Vec<_> = (0..batches).map(|k| support::numbers(2 * rows, k)).collect();
    let run = |streams: usize, batches: &[Vec<f32>], timeline: &Timeline| {
        let pool = StreamPool::new(gpu, streams)?;
        args.timed(timeline, |timeline| {
            let mut training = Training::new(&model, &train, batches)?;
            (0..steps).try_for_each(|_| training.step(&pool, timeline))?;
            training.weights()
        })
    };
    run(1, &points, &Timeline::disabled())?; // loads the kernels
    let (alone, want) = run(1, &points, &Timeline::disabled())?;
    let (at_once, got) = run(batches as usize, &points, &Timeline::disabled())?;
    assert!(got == want, "the weights differ from those of one stream");
    let (large, whole) = run(1, &[points.concat()], &Timeline::disabled())?;
    let apart = whole.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-2, "the weights differ by {apart} from those of one batch with all rows");
    println!(
        "{batches} batches of {rows} rows, width {width}; weights as of one stream, and within {apart:.0e} of one batch"
    );
    let rate = |time: std::time::Duration| steps as f64 / time.as_secs_f64();
    println!(
        "one stream {:.0} steps/s, {batches} streams {:.0}{}; one batch with all rows {:.0}",
        rate(alone),
        rate(at_once),
        support::gain(gpu, alone, at_once),
        rate(large)
    );
    let timeline = args.timeline(gpu)?;
    let (mut training, pool) = (Training::new(&model, &train, &points)?, StreamPool::new(gpu, batches as usize)?);
    (0..10).try_for_each(|_| training.step(&pool, &timeline))?; // for the picture
    training.weights()?;
    args.finish(&timeline)
}
