//! Computes the three scores of the patches of an image at once, each on a stream of its own, and
//! combines what the three streams have made: each writes a buffer of its own, and a fourth stream
//! sums them.
//!
//! ```text
//! prepare | textures, features |               | sum |
//! first                        | entropy       |
//! second                       | salience |
//! third                        | participatory   |
//! ```
//!
//! ```text
//! cargo run --release --example three_scores -- --timeline three_scores.svg
//! ```
//!
//! The same is measured on one stream, as a graph with three branches, and with the fused kernels,
//! which compute several scores from one read of the image. Streams gain where no score alone fills
//! the device: then its kernels run side by side. Where one does, and entropy reads the whole image
//! while the other two read a number of features for each patch, the others only fill its gaps.
//! Then the fused kernels win, because they read less.

#[path = "support/mod.rs"]
mod support;

use thalweg::{
    Activity, Brand, Device, DeviceBuffer, DeviceSlice, Error, LiveBrand, On, Resource, Result, Stream, Timeline,
    stream_tags,
};
use thalweg_kernels::train::sum_rows;
use thalweg_vision::kernels::{self, BatchTable, ParticipatoryMut, Pixels, RelevanceMut, Salience, Scores, projection};
use thalweg_vision::{PLANES, layout};

stream_tags!(Prepare, First, Second, Third);

const PATCH: u32 = 16;

/// The buffers that the three scores read. The streams share them.
#[derive(Resource)]
struct Input {
    rgb: DeviceBuffer<u8>,
    features: DeviceBuffer<f32>,
    /// The entropy that scores without it get.
    zeros: DeviceBuffer<f32>,
    table: DeviceBuffer<u32>,
    coupling: DeviceBuffer<f32>,
}

/// A score of each patch, with room for what its kernel writes beside it.
#[derive(Resource)]
struct Score {
    map: DeviceBuffer<f32>,
    beside: [DeviceBuffer<f32>; 2],
}

/// The side of a square image, and the number of its patches.
#[derive(Clone, Copy, Debug)]
struct Shape {
    side: u32,
    patches: u32,
}

impl Shape {
    fn batch<S>(self, table: &DeviceSlice<S, u32>) -> BatchTable<'_, S> {
        BatchTable { images: 1, patches: self.patches, largest: self.patches, table }
    }
}

/// The salience of the fused kernels and of `relevance`.
const HOW: Salience = Salience { edge: kernels::EDGE, least_peak: 0.0, foveal_bias: 0.25 };

fn entropy<S: Brand>(
    s: &Stream<S>,
    shape: Shape,
    rgb: &DeviceSlice<S, u8>,
    score: &mut DeviceSlice<S, f32>,
) -> Result<()> {
    kernels::entropy(s, shape.side, shape.side, PATCH, rgb, score)
}

/// The buffers that salience and participatory score read.
struct Read<'a, S> {
    features: &'a DeviceSlice<S, f32>,
    zeros: &'a DeviceSlice<S, f32>,
    table: &'a DeviceSlice<S, u32>,
}

fn salience<S: Brand>(
    s: &Stream<S>,
    shape: Shape,
    Read { features, zeros, table }: Read<'_, S>,
    [salience, relevance]: [&mut DeviceSlice<S, f32>; 2],
) -> Result<()> {
    let out = RelevanceMut { salience, relevance };
    kernels::relevance(s, &shape.batch(table), HOW.foveal_bias, [0.0, 1.0], features, zeros, out)
}

fn participatory<S: Brand>(
    s: &Stream<S>,
    shape: Shape,
    Read { features, zeros, table }: Read<'_, S>,
    coupling: &DeviceSlice<S, f32>,
    [participatory, salience, summaries]: [&mut DeviceSlice<S, f32>; 3],
) -> Result<()> {
    let out = ParticipatoryMut { participatory, salience, summaries };
    kernels::participatory(s, &shape.batch(table), HOW, features, zeros, coupling, out)
}

/// Adds up the scores.
fn sum<S: Brand>(
    s: &Stream<S>,
    maps: [&DeviceSlice<S, f32>; 3],
    total: &mut DeviceSlice<S, f32>,
    room: &mut DeviceSlice<S, f32>,
) -> Result<()> {
    let shape = [1, total.len() as u32];
    maps.into_iter().enumerate().try_for_each(|(k, map)| sum_rows(s, shape, k > 0, map, room, total))
}

/// Everything on the stream that prepares and sums.
pub(crate) struct Work<S: Brand> {
    shape: Shape,
    input: InputOn<S>,
    scores: [ScoreOn<S>; 3],
    total: On<S, DeviceBuffer<f32>>,
    room: On<S, DeviceBuffer<f32>>,
}

impl<S: LiveBrand> Work<S> {
    /// Uploads an image and computes its features.
    pub(crate) fn new(s: &Stream<S>, side: u32) -> Result<Self> {
        let grid = side.div_ceil(PATCH);
        let (n, shape) = ((grid * grid) as usize, Shape { side, patches: grid * grid });
        let rgb: Vec<u8> = (0..3 * side * side).map(|i| (i * 31 % 251 + i / 977 % 5) as u8).collect();
        let number = |i: usize| (i * 37 % 101) as f32 / 101.0 - 0.5;
        let numbers = |len: usize| (0..len).map(number).collect::<Vec<f32>>();
        let exact = |len: usize| (0..len).map(|i| f64::from(number(i))).collect::<Vec<f64>>();
        let coupling = projection(&numbers(64 * PLANES), &numbers(64), &exact(65 * 65), &exact(65));
        let table = layout(&[[side, side].into()], PATCH)?;
        let score = || {
            let beside = [s.alloc_zeroed(n)?, s.alloc_zeroed(12 * (n / 64 + 1))?];
            Ok::<_, Error>(ScoreOn { map: s.alloc_zeroed(n)?, beside })
        };
        let mut input = InputOn {
            rgb: s.upload_blocking(&rgb)?,
            features: s.alloc(PLANES * n)?,
            zeros: s.alloc_zeroed(n)?,
            table: s.upload_blocking(table.table())?,
            coupling: s.upload_blocking(&coupling)?,
        };
        let mut planes = s.alloc(PLANES * (side * side) as usize)?;
        kernels::textures(s, side, side, 0.5, 0.5, &input.rgb, &mut planes)?;
        kernels::features(s, side, side, PATCH, &planes, &mut input.features)?;
        let scores = [score()?, score()?, score()?];
        Ok(Self { shape, input, scores, total: s.alloc_zeroed(n)?, room: s.alloc(1)? })
    }

    /// Enqueues the scores, each on its stream, and their sum on `s`. All streams may be the same.
    pub(crate) fn on_streams<A: LiveBrand, B: LiveBrand, C: LiveBrand>(
        self,
        s: &Stream<S>,
        (first, second, third): (&Stream<A>, &Stream<B>, &Stream<C>),
        timeline: &Timeline,
    ) -> Result<Self> {
        let Self { shape, input, scores: [a, b, c], mut total, mut room } = self;
        let shared = s.share(input).map_err(|returned| returned.error)?;
        let (mut a, mut b, mut c) = (s.hand_off(a, first)?, s.hand_off(b, second)?, s.hand_off(c, third)?);
        {
            let (of_a, of_b, of_c) = (first.reading(&shared)?, second.reading(&shared)?, third.reading(&shared)?);
            timeline.span(first, Activity::Compute, "entropy", || entropy(first, shape, &of_a.rgb, &mut a.map))?;
            timeline.span(second, Activity::Compute, "salience", || {
                let ScoreOn { map, beside: [relevance, _] } = &mut b;
                salience(
                    second,
                    shape,
                    Read { features: &of_b.features, zeros: &of_b.zeros, table: &of_b.table },
                    [map, relevance],
                )
            })?;
            timeline.span(third, Activity::Compute, "participatory", || {
                let ScoreOn { map, beside: [salience, summaries] } = &mut c;
                let read = Read { features: &of_c.features, zeros: &of_c.zeros, table: &of_c.table };
                participatory(third, shape, read, &of_c.coupling, [map, salience, summaries])
            })?;
        }
        let scores = [first.hand_off(a, s)?, second.hand_off(b, s)?, third.hand_off(c, s)?];
        timeline.span(s, Activity::Compute, "sum", || {
            sum(s, scores.each_ref().map(|score| &*score.map), &mut total, &mut room)
        })?;
        let input = s.unshare(shared).map_err(|returned| returned.error)?;
        Ok(Self { shape, input, scores, total, room })
    }

    /// The sum, and the three scores.
    pub(crate) fn results(&self, s: &Stream<S>) -> Result<[Vec<f32>; 4]> {
        let [a, b, c] = &self.scores;
        Ok([
            s.read_blocking(&self.total)?,
            s.read_blocking(&a.map)?,
            s.read_blocking(&b.map)?,
            s.read_blocking(&c.map)?,
        ])
    }
}

/// The fused form: entropy and features from one read of the image, salience and participatory
/// score from one of the features.
fn fused<S: LiveBrand>(s: &Stream<S>, work: &mut Work<S>, mix: &On<S, DeviceBuffer<f32>>) -> Result<()> {
    let Work { shape, input, scores: [a, b, c], total, room } = work;
    let batch = shape.batch(&input.table);
    let pixels = Pixels { rgb: &input.rgb, bytes: 3 * shape.side * shape.side, patch: PATCH, fixation: [0.5, 0.5] };
    kernels::analyze(s, &batch, &pixels, &mut input.features, &mut a.map)?;
    let ([relevance, _], [_, summaries]) = (&mut b.beside, &mut c.beside);
    let out = ParticipatoryMut { participatory: &mut c.map, salience: &mut b.map, summaries: &mut *summaries };
    kernels::participatory(s, &batch, HOW, &input.features, &a.map, &input.coupling, out)?;
    let read = Scores { entropy: &a.map, participatory: &c.map, summaries: &*summaries, mix };
    kernels::relevance_with_query(s, &batch, &read, RelevanceMut { salience: &mut b.map, relevance })?;
    sum(s, [&a.map, &b.map, &c.map], total, room)
}

fn main() -> Result<(), Error> {
    let args = support::Arguments::parse("Computes three scores on one stream, on three, in a graph, and fused.");
    let gpu = args.device()?;
    let timeline = args.timeline(gpu)?;
    for side in support::sized(gpu, [256, 1024, 4096], [64, 96, 128]) {
        compare(gpu, side)?;
    }
    if timeline.is_enabled() {
        let (s, first) = (gpu.stream::<Prepare>()?, gpu.stream::<First>()?);
        let (second, third) = (gpu.stream::<Second>()?, gpu.stream::<Third>()?);
        let mut work = Work::new(&s, support::sized(gpu, 1024, 96))?;
        for _ in 0..3 {
            work = work.on_streams(&s, (&first, &second, &third), &timeline)?;
        }
    }
    args.finish(&timeline)
}

/// Measures the four forms, and compares their results.
fn compare(gpu: Device, side: u32) -> Result<()> {
    const TIMES: usize = 20;
    let (s, off) = (gpu.stream::<Prepare>()?, Timeline::disabled());
    let (first, second, third) = (gpu.stream::<First>()?, gpu.stream::<Second>()?, gpu.stream::<Third>()?);
    let mut work = Some(Work::new(&s, side)?);
    let mut form = |run: &mut dyn FnMut(Work<Prepare>) -> Result<Work<Prepare>>| {
        let time = support::least(3, || {
            for _ in 0..TIMES {
                let Some(before) = work.take() else { unreachable!("each run gives it back") };
                work = Some(run(before)?);
            }
            s.synchronize()
        })?;
        let results = work.as_ref().map_or(Ok(Default::default()), |work| work.results(&s))?;
        Ok::<_, Error>((1e6 * time.as_secs_f64() / TIMES as f64, results))
    };
    let (alone, want) = form(&mut |work| work.on_streams(&s, (&s, &s, &s), &off))?;
    let (at_once, got) = form(&mut |work| work.on_streams(&s, (&first, &second, &third), &off))?;
    assert!(got == want, "three streams give other scores than one");

    // The same as a graph, whose branches a device may run at once. One launch replays it.
    let mut graph = None;
    let (replayed, got) = form(&mut |Work { shape, input, scores, total, room }| {
        let bundle = (input, scores, total, room);
        let (replay, bundle) = match graph.take() {
            Some(mut graph) => {
                let bundle = s.replay(&mut graph, bundle).map_err(|returned| returned.error)?;
                (graph, bundle)
            }
            None => s
                .capture(bundle, |s, (input, [a, b, c], total, room)| {
                    let InputOn { rgb, features, zeros, table, coupling } = input;
                    let ([relevance, _], [apart, summaries]) = (&mut b.beside, &mut c.beside);
                    s.fork(
                        (&*rgb, &mut a.map),
                        (
                            &*features,
                            &*zeros,
                            &*table,
                            &*coupling,
                            (&mut b.map, relevance),
                            (&mut c.map, apart, summaries),
                        ),
                        |s, (rgb, map)| entropy(s, shape, rgb, map),
                        |s, (features, zeros, table, coupling, b, c)| {
                            let (features, zeros, table, coupling) = (&**features, &**zeros, &**table, &**coupling);
                            s.fork(
                                (features, zeros, table, (&mut b.0, &mut b.1)),
                                (features, zeros, table, coupling, (&mut c.0, &mut c.1, &mut c.2)),
                                |s, (features, zeros, table, out)| {
                                    let read = Read { features, zeros, table };
                                    salience(s, shape, read, [&mut *out.0, &mut *out.1])
                                },
                                |s, (features, zeros, table, coupling, out)| {
                                    let read = Read { features, zeros, table };
                                    participatory(s, shape, read, coupling, [&mut *out.0, &mut *out.1, &mut *out.2])
                                },
                            )
                        },
                    )?;
                    sum(s, [&a.map, &b.map, &c.map], total, room)
                })
                .map_err(|returned| returned.error)?,
        };
        graph = Some(replay);
        let (input, scores, total, room) = bundle;
        Ok(Work { shape, input, scores, total, room })
    })?;
    assert!(got == want, "the branches of a graph give other scores than one stream");

    let mix = s.upload_blocking(&[1.0 / 3.0; 3])?;
    let (together, got) = form(&mut |mut work| fused(&s, &mut work, &mix).map(|()| work))?;
    let apart = got.iter().flatten().zip(want.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-3, "the fused scores differ by {apart}");
    println!(
        "{side:4} x {side:4}: one stream {alone:7.1} us, three {at_once:7.1}{}, a graph {replayed:7.1}; fused, with the features {together:7.1}",
        support::on_gpu(gpu, || format!(" ({:.2} x)", alone / at_once))
    );
    Ok(())
}
