//! Answers batches of requests about photographs: while the server writes the texts about one
//! batch, the next ones are uploaded, prepared and encoded, each stage on a stream of its own.
//!
//! ```text
//! upload  | up 0 | up 1  | up 2     | up 3     |
//! prepare        | cut 0 | cut 1    | cut 2    |      crop, resize, normalize, cut into patches
//! encode                 | encode 0 | encode 1 | encode 2 |
//! write                             | texts 0  | texts 1  | texts 2  |
//! ```
//!
//! ```text
//! cargo run --release -p thalweg-train --features vision --example vlm_pipeline -- --timeline vlm_pipeline.svg
//! ```
//!
//! `--files` takes the JPEG files of a folder. On a GPU the encoder is as large as ViT-B, and the
//! decoder has four blocks. The weights are random. The texts of four streams are compared with
//! those of one before they are timed. The example `serve` says what the server gains by itself.

#[path = "support/answers.rs"]
mod answers;
mod support;

use std::ops::Range;
use std::time::Duration;

use answers::{Photographs, Work};
use thalweg::overlap::stages;
use thalweg::simt::bf16;
use thalweg::{Activity, LiveBrand, Ring, Stream, Timeline, stream_tags};
use thalweg_kernels::train::patches;
use thalweg_train::overlap::{Requests, vlm_pipeline};
use thalweg_train::{Error, Result, VisionEncoder};

stream_tags!(Upload, Prepare, Encode, Write);

type Texts = Vec<Vec<i32>>;

fn main() -> Result<()> {
    let options = [support::MEASURED, &[("--images N", "the photographs of a batch"), answers::FILES]].concat();
    let args = support::Arguments::parse(
        "Answers batches of requests: upload, preparation, encoder and server run at once.",
        &options,
    );
    let gpu = support::device()?;
    let work = Work::new(&args, gpu, [16, 256], [5, 7])?;
    let images = args.number("--images").unwrap_or(support::sized(gpu, 16, 2));
    let one = gpu.stream::<Encode>()?;
    let streams = (&gpu.stream::<Upload>()?, &gpu.stream::<Prepare>()?, &one, &gpu.stream::<Write>()?);
    let off = Timeline::disabled();
    let (serial, texts) = run(&args, &work, (&one, &one, &one, &one), [images, 1], None, &off)?;
    let timeline = args.timeline(gpu)?;
    let (overlapped, _) = run(&args, &work, streams, [images, args.slots(3)], Some(&texts), &timeline)?;
    let Work { size, count, requests, .. } = work;
    let rate = |time: Duration| requests as f64 / time.as_secs_f64();
    println!(
        "{requests} photographs, prepared as {size} x {size}, in batches of {images}, {count} tokens each: \
         one stream {:.1} requests/s, overlapped {:.1} requests/s{}; the texts are the same",
        rate(serial),
        rate(overlapped),
        support::gain(gpu, serial, overlapped)
    );
    args.finish(&timeline)
}

/// Answers all requests, compares the texts with those that are expected, and does it again.
/// Returns how long that took, and the texts.
fn run<U: LiveBrand, P: LiveBrand, A: LiveBrand, B: LiveBrand>(
    args: &support::Arguments,
    work: &Work,
    (upload, prepare, encode, write): (&Stream<U>, &Stream<P>, &Stream<A>, &Stream<B>),
    [images, slots]: [usize; 2],
    expected: Option<&Texts>,
    timeline: &Timeline,
) -> Result<(Duration, Texts)> {
    let photos = Photographs::read(upload, args.files())?;
    let (most, pixels, rows) = (photos.most(), work.pixels(), work.rows());
    let mut encoder = VisionEncoder::<_, bf16>::from_tensors(encode, &work.weights)?;
    // The texts of two batches at once: a batch joins while that before is being written.
    let mut server = work.server(write, 2 * images)?;
    let slots = (0..slots).map(|_| Requests::new(&encoder, images * most, images * pixels, images * rows));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let mut augmenter = work.crops().augmenter(prepare, work.size as u32, images)?;
    let places = prepare.upload_blocking(&work.places(images))?;
    let batch = |n: usize| n * images..work.requests.min((n + 1) * images);

    let mut go = |batches: Range<usize>, timeline: &Timeline| {
        let mut texts = vec![vec![]; work.requests];
        let before = stages::<_, Error>(&mut slots)
            .step(upload, Activity::Upload, |s, n, slot| {
                slot.requests.clear();
                for (start, request) in (0..).step_by(most).zip(batch(n)) {
                    let (photo, _) = photos.of(request);
                    s.copy_to_device(photo, slot.rgb.slice_mut(start..start + photo.len())?)?;
                    slot.requests.push(work.request(request));
                }
                Ok(())
            })
            .step(prepare, Activity::Compute, |s, n, slot| {
                let crops = (0..).step_by(most).zip(batch(n));
                let crops = crops.map(|(start, request)| work.crop(request, start, photos.of(request).1));
                augmenter.prepare(s, &crops.collect::<Result<Vec<_>>>()?)?;
                let of = slot.requests.len();
                let image = slot.pixels.slice_mut(..of * pixels)?;
                augmenter.launch(s, &slot.rgb, image)?;
                let extents = [of, 3, work.size, work.patch].map(|extent| extent as u32);
                patches(s, extents, image, slot.tokens.slice_mut(..of * pixels)?)?;
                Ok(s.copy(&places, &mut slot.position)?)
            });
        let seen = |n, place, text: Result<_>| {
            texts[n * images + place] = text?;
            Ok(())
        };
        vlm_pipeline(before, &mut encoder, &mut server, batches, seen, timeline)?;
        Ok(texts)
    };
    let batches = 0..work.requests.div_ceil(images);
    let texts = go(batches.clone(), &Timeline::disabled())?; // makes the memory, too
    if let Some(expected) = expected {
        assert!(texts == *expected, "the texts differ from those of one stream");
    }
    let (time, again) = args.timed(timeline, |timeline| go(batches.clone(), timeline))?;
    assert!(again == texts, "the texts differ from run to run");
    Ok((time, texts))
}
