//! Runs two streams: one makes textures, the other uses them, and events carry the buffers back and
//! forth.
//!
//! ```text
//! producer  | make 0 | make 1 | make 2      | make 3      |     make 2 waits for the event of use 0
//! consumer           | use 0       | use 1       | use 2       ...
//! host      | enqueue everything ...     | wait                 |
//! ```
//!
//! ```text
//! cargo run --release --example producer_consumer -- --timeline producer_consumer.svg
//! ```

#[path = "support/mod.rs"]
mod support;

use std::time::Instant;

use thalweg::overlap::{Chunks, serial, stages};
use thalweg::{Activity, AnyStream, Event, LiveBrand, Resource, Result, Ring, Stream, Timeline, stream_tags};
use thalweg_vision::{PLANES, kernels};

stream_tags!(Producer, Consumer);

const PATCH: u32 = 32;
const SLOTS: usize = 3;

/// The pattern: makes `items` items on the stream `producer` and uses each on the stream
/// `consumer`, in slots that go back and forth. With `n` slots the producer is up to `n` items
/// ahead. The host only enqueues: the streams wait for items and for free slots.
pub fn producer_consumer<A: LiveBrand, B: LiveBrand, R: Resource>(
    (producer, consumer): (&Stream<A>, &Stream<B>),
    slots: &mut Ring<R>,
    items: usize,
    produce: impl FnMut(&Stream<A>, usize, &mut R::On<A>) -> Result<()>,
    consume: impl FnMut(&Stream<B>, usize, &mut R::On<B>) -> Result<()>,
    timeline: &Timeline,
) -> Result<()> {
    stages(slots)
        .step(producer, Activity::Compute, produce)
        .step(consumer, Activity::Compute, consume)
        .run(0..items, timeline)
}

fn main() -> Result<()> {
    let args = support::Arguments::parse("Producer and consumer streams: only events go between them.");
    let gpu = args.device()?;
    let (items, [height, width]) = support::sized(gpu, (200, [540, 960]), (24, [96, 128u32]));
    let [pixels, patches] = [height * width, height.div_ceil(PATCH) * width.div_ceil(PATCH)].map(|n| n as usize);
    let (producer, consumer) = (gpu.stream::<Producer>()?, gpu.stream::<Consumer>()?);
    let images = support::images(gpu, items, height, width)?;

    // The baseline: upload, both kernels and download on one stream, image after image.
    let chunks = Chunks::of_items(items, 3 * pixels, PLANES * patches);
    let lane = AnyStream::new(gpu)?;
    let (one_by_one, images, want) = support::timed(images, &Timeline::disabled(), |images, timeline| {
        serial(
            &lane,
            images,
            chunks,
            |s, rgb, features| {
                let mut planes = s.alloc(PLANES * pixels)?;
                kernels::textures(s, height, width, 0.5, 0.5, rgb, &mut planes)?;
                kernels::features(s, height, width, PATCH, &planes, features)
            },
            timeline,
        )
    })?;

    // These stay on one stream: the images with the producer, the results with the consumer.
    let images = producer.bind(images)?;
    let mut rgb = producer.alloc(3 * pixels)?;
    let mut features = consumer.alloc(PLANES * patches)?;
    let mut results = consumer.bind(gpu.pinned(want.len())?)?;
    let slot = |_| Ok(Event::ready(producer.alloc::<f32>(PLANES * pixels)?.synchronize()?));
    let mut slots = (0..SLOTS).map(slot).collect::<Result<Ring<_>>>()?;

    // The same without work measures the time that handing over costs the host.
    let (off, start) = (Timeline::disabled(), Instant::now());
    producer_consumer((&producer, &consumer), &mut slots, 1000, |_, _, _| Ok(()), |_, _, _| Ok(()), &off)?;
    let handoff = start.elapsed() / 2000;

    let timeline = args.timeline(gpu)?;
    let start = Instant::now();
    producer_consumer(
        (&producer, &consumer),
        &mut slots,
        items,
        |s, n, planes| {
            s.copy_to_device(images.slice(3 * n * pixels..3 * (n + 1) * pixels)?, &mut rgb)?;
            kernels::textures(s, height, width, 0.5, 0.5, &rgb, planes)
        },
        |s, n, planes| {
            kernels::features(s, height, width, PATCH, planes, &mut features)?;
            s.copy_to_host(&features, results.slice_mut(PLANES * n * patches..PLANES * (n + 1) * patches)?)
        },
        &timeline,
    )?;
    let results = consumer.record(results)?.synchronize()?;
    let time = start.elapsed();
    assert!(*results == *want, "the results differ from those of `serial`");

    println!("{items} items of {height} x {width} in {SLOTS} slots: {handoff:.2?} of host time for each hand-over");
    let gain = one_by_one.as_secs_f64() / time.as_secs_f64();
    let gain = support::on_gpu(gpu, || format!(": {gain:.2} x faster"));
    println!("serial {one_by_one:.2?}, producer and consumer {time:.2?}{gain}");
    args.finish(&timeline)
}
