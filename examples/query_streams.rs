//! Turns photographs and a query into tokens on four streams: one for the uploads, one for the
//! textures, one for the three scores and their balance, and one for allocation and compression.
//!
//! ```text
//! upload    | up 0 | up 1       | up 2       | up 3       |
//! texture          | textures 0 | textures 1 | textures 2 |
//! score                         | scores 0   | scores 1   |
//! allocate                                   | tokens 0, down | tokens 1, down |
//! ```
//!
//! [`Pipeline::with_query`] computes the same with fewer bytes: it never stores the textures. This
//! example is for models that need them, and it shows what the stages cost.
//!
//! ```text
//! cargo run --release --example query_streams -- --timeline query_streams.svg
//! ```

#[path = "support/query.rs"]
mod query;
#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use query::{Results, Slot, query_streams};
use thalweg::{Event, LiveBrand, Result, Ring, Size, Stream, Timeline, stream_tags};
use thalweg_vision::{Error, Head, Image, Layer, Pipeline, Query, TokenParams};

stream_tags!(Upload, Texture, Score, Allocate);

/// The dimension of the query.
const DIMENSION: usize = 8;

/// Makes a head with a balancer, and a query, of arbitrary numbers.
fn head() -> Result<(Head, Query), Error> {
    let mut seed = 7u32;
    let mut numbers = |n: usize, scale: f32| -> Vec<f32> {
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            scale * ((seed >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        (0..n).map(|_| next()).collect()
    };
    let mut layer = |outputs: usize, inputs: usize| {
        (numbers(outputs * inputs, 1.5 / (inputs as f32).sqrt()), numbers(outputs, 0.3))
    };
    let layers = [(64, 13), (DIMENSION, 64), (128, 9 + DIMENSION), (128, 128), (3, 128)];
    let layers = layers.map(|(outputs, inputs)| layer(outputs, inputs));
    let [hidden, projection, a, b, c] = layers.each_ref().map(|(weight, bias)| Layer { weight, bias });
    Ok((Head::new(hidden, projection)?.with_balancer([a, b, c])?, Query::new(&numbers(DIMENSION, 1.0))?))
}

/// Writes image `n` of a run: a strip that depends on `n` makes each image different.
fn draw(image: &mut [u8], n: usize) {
    let strip = image.len() / 64;
    image[..strip].iter_mut().enumerate().for_each(|(i, v)| *v = (i * (n + 1)) as u8);
}

/// Runs the images three times through the slots. Returns their results and the least time.
/// `timeline` records the last run.
fn run<S: LiveBrand, A: LiveBrand, B: LiveBrand, C: LiveBrand>(
    streams: (&Stream<S>, &Stream<A>, &Stream<B>, &Stream<C>),
    slots: &mut Ring<Slot>,
    images: usize,
    timeline: &Timeline,
) -> Result<(Vec<Results>, Duration)> {
    let (mut results, mut least) = (Vec::new(), Duration::MAX);
    let off = Timeline::disabled();
    for timeline in [&off, &off, timeline] {
        results.clear();
        let start = Instant::now();
        query_streams(
            streams,
            slots,
            images,
            |n, slot| {
                draw(&mut slot.image, n);
                Ok(())
            },
            |_, slot| {
                results.push(slot.results());
                Ok(())
            },
            timeline,
        )?;
        least = least.min(start.elapsed());
    }
    Ok((results, least))
}

fn main() -> Result<(), Error> {
    let args = support::Arguments::parse("Runs textures, scores with a query, and allocation on streams of their own.");
    let gpu = args.device()?;
    let (images, size) = support::sized(gpu, (40, Size::new(2160, 3840)), (8, Size::new(192, 256)));
    let (up, texture) = (gpu.stream::<Upload>()?, gpu.stream::<Texture>()?);
    let (score, allocate) = (gpu.stream::<Score>()?, gpu.stream::<Allocate>()?);

    let ((head, query), params) = (head()?, TokenParams::default());
    let plain = support::images(gpu, 1, size.height, size.width)?;
    let slot = |_| {
        let mut slot = Slot::new(gpu, size, &params, &head, &query)?;
        slot.image.copy_from_slice(&plain);
        Ok::<_, Error>(Event::ready(slot))
    };
    let mut slots = (0..5).map(slot).collect::<Result<Ring<_>, _>>()?;

    let (want, on_one) = run((&up, &up, &up, &up), &mut slots, images, &Timeline::disabled())?;
    let timeline = args.timeline(gpu)?;
    let (got, on_four) = run((&up, &texture, &score, &allocate), &mut slots, images, &timeline)?;
    assert!(got == want && got[0] != got[1], "the results differ from those of one stream");

    // The pipeline sums in another order, so the last bits of its scores may differ.
    let pipeline = Pipeline::new(gpu, params)?.with_query(&head, &query)?;
    let mut worst = 0f32;
    for (n, got) in got.iter().enumerate().take(2) {
        let mut rgb = plain.to_vec();
        draw(&mut rgb, n);
        let set = pipeline.run(&[Image::new(size.height, size.width, rgb)?]).remove(0)?;
        let theirs = [set.entropy, set.salience, set.participatory.unwrap_or_default()];
        for (a, b) in got.maps.iter().zip(&theirs).flat_map(|(ours, theirs)| ours.iter().zip(theirs)) {
            worst = worst.max((a - b).abs());
        }
        for (a, b) in got.mix.iter().zip(set.mix.unwrap_or_default()) {
            worst = worst.max((a - b).abs());
        }
    }
    assert!(worst < 1e-3, "the scores differ from the pipeline's by {worst}");

    let rate = |time: Duration| images as f64 / time.as_secs_f64();
    println!(
        "weights of entropy, salience and query: {:.3?}; at most {worst:.1e} from the pipeline's scores",
        got[0].mix
    );
    println!(
        "{images} images of {} x {} with a query: {:.0} images/s on one stream, {:.0} on four{}",
        size.height,
        size.width,
        rate(on_one),
        rate(on_four),
        support::on_gpu(gpu, || format!(": {:.2} x", rate(on_four) / rate(on_one)))
    );
    Ok(args.finish(&timeline)?)
}
