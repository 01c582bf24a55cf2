//! Turns photographs into tokens on four streams: one for the uploads, and one for each of three
//! stages (textures, relevance, allocation) that work on successive images.
//!
//! ```text
//! upload      | up 0 | up 1      | up 2      | up 3      |
//! texture            | textures 0 | textures 1 | textures 2 |
//! relevance                       | relevance 0 | relevance 1 |
//! allocation                                    | tokens 0, down | tokens 1, down |
//! ```
//!
//! ```text
//! cargo run --release --example three_stream -- --timeline three_stream.svg
//! ```

#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::tokens::{Slot, allocation, relevance, texture, upload};
use thalweg::overlap::stages;
use thalweg::{Activity, Event, LiveBrand, Resource, Result, Ring, Size, Stream, Timeline, stream_tags};

stream_tags!(Upload, Texture, Relevance, Allocation);

/// The pattern: sends `images` images through slots that are used in turn. It takes four streams:
/// one for the uploads, and one for each of the three stages. On the stream of the first stage,
/// each upload would wait behind the kernels of the previous image, and the copy engine would be
/// idle.
///
/// `load` fills a slot on the host, and `take` sees it when all steps are done. The third stage
/// also downloads the results. Five slots keep the four steps and the host busy. Fewer are enough
/// if the upload takes longest. The same stream may stand in all four places. The results are then
/// the same, but one step runs at a time.
pub fn three_stream<S: LiveBrand, A: LiveBrand, B: LiveBrand, C: LiveBrand, R: Resource>(
    (up, first, second, third): (&Stream<S>, &Stream<A>, &Stream<B>, &Stream<C>),
    slots: &mut Ring<R>,
    images: usize,
    load: impl FnMut(usize, &mut R) -> Result<()>,
    (mut upload, mut a, mut b, mut c): (
        impl FnMut(&Stream<S>, &mut R::On<S>) -> Result<()>,
        impl FnMut(&Stream<A>, &mut R::On<A>) -> Result<()>,
        impl FnMut(&Stream<B>, &mut R::On<B>) -> Result<()>,
        impl FnMut(&Stream<C>, &mut R::On<C>) -> Result<()>,
    ),
    take: impl FnMut(usize, &mut R) -> Result<()>,
    timeline: &Timeline,
) -> Result<()> {
    stages(slots)
        .host(load)
        .step(up, Activity::Upload, |s, _, slot| upload(s, slot))
        .step(first, Activity::Compute, |s, _, slot| a(s, slot))
        .step(second, Activity::Compute, |s, _, slot| b(s, slot))
        .step(third, Activity::Compute, |s, _, slot| c(s, slot))
        .run_and_take(0..images, take, timeline)
}

/// Runs the images three times through `slots` slots. Returns their tokens and the least time.
/// `timeline` records the last run.
fn run<S: LiveBrand, A: LiveBrand, B: LiveBrand, C: LiveBrand>(
    streams: (&Stream<S>, &Stream<A>, &Stream<B>, &Stream<C>),
    (images, size, slots): (usize, Size, usize),
    timeline: &Timeline,
) -> Result<(Vec<Vec<f32>>, Duration)> {
    let gpu = streams.0.device();
    let image = support::images(gpu, 1, size.height, size.width)?;
    let slots = (0..slots).map(|_| Slot::new(gpu, &image, size).map(Event::ready));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let (mut tokens, mut least) = (Vec::new(), Duration::MAX);
    let off = Timeline::disabled();
    for timeline in [&off, &off, timeline] {
        tokens.clear();
        let start = Instant::now();
        three_stream(
            streams,
            &mut slots,
            images,
            // Images arrive in page-locked memory. A strip that depends on the number makes each
            // image different.
            |n, slot: &mut Slot| {
                let strip = slot.host.len() / 64;
                slot.host[..strip].iter_mut().enumerate().for_each(|(i, v)| *v = (i * (n + 1)) as u8);
                Ok(())
            },
            (upload, texture, relevance, allocation),
            |_, slot| {
                tokens.push(slot.tokens().to_vec());
                Ok(())
            },
            timeline,
        )?;
        least = least.min(start.elapsed());
    }
    Ok((tokens, least))
}

fn main() -> Result<()> {
    let args =
        support::Arguments::parse("Runs three stages of successive images and their uploads at once, on four streams.");
    let gpu = args.device()?;
    let (images, size) = support::sized(gpu, (60, Size::new(2160, 3840)), (12, Size::new(192, 256)));
    let (up, texture) = (gpu.stream::<Upload>()?, gpu.stream::<Texture>()?);
    let (relevance, allocation) = (gpu.stream::<Relevance>()?, gpu.stream::<Allocation>()?);
    let streams = (&up, &texture, &relevance, &allocation);
    let bytes = 3 * size.area() as usize;
    let limit = support::upload_limit(gpu, bytes)?;

    // Run one image at a time, to compare the stages.
    let alone = Timeline::new(gpu)?;
    run(streams, (8, size, 1), &alone)?;
    let trace = alone.finish()?;
    let least = |stage: &str| trace.spans().iter().filter(|s| *s.track == *stage).map(|s| s.duration()).min();
    let stages =
        ["Upload", "Texture", "Relevance", "Allocation"].map(|stage| (stage, least(stage).unwrap_or_default()));
    let longest = stages.iter().map(|(_, time)| *time).max().unwrap_or_default();
    for (stage, time) in stages {
        let share = 100.0 * time.as_secs_f64() / longest.as_secs_f64();
        let share = support::on_gpu(gpu, || format!(", {share:3.0} % of the longest"));
        println!("{stage:10} alone {time:9.2?}{share}");
    }

    let (want, on_one) = run((&up, &up, &up, &up), (images, size, 5), &Timeline::disabled())?;
    let timeline = args.timeline(gpu)?;
    let (got, on_four) = run(streams, (images, size, 5), &timeline)?;
    assert!(got == want && got[0] != got[1], "the tokens differ from those of one stream");

    let rate = |time: Duration| images as f64 / time.as_secs_f64();
    println!(
        "{images} images of {} x {}: {:.0} images/s on one stream, {:.0} on four{}",
        size.height,
        size.width,
        rate(on_one),
        rate(on_four),
        support::on_gpu(gpu, || {
            let (gain, share) = (rate(on_four) / rate(on_one), 100.0 * rate(on_four) * bytes as f64 / limit);
            format!(": {gain:.2} x, {share:.1} % of the upload limit ({:.1} GB/s)", limit / 1e9)
        })
    );
    args.finish(&timeline)
}
