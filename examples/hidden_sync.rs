//! Finding a hidden synchronisation with the device's tally, and removing it.
//!
//! ```text
//! before   up       | copy 0 |               | copy 1 |               | ...
//!          compute           | kernel 0 |             | kernel 1 |
//!          host     | waits for the result . | waits for the result . | ...
//!
//! after    up       | copy 0 | copy 1 | copy 2 | ...
//!          compute           | kernel 0 | kernel 1 | ...
//!          host                                          | waits once |
//! ```
//!
//! ```text
//! cargo run --release --example hidden_sync -- --timeline hidden_sync.svg
//! ```
//!
//! Both ways run under the tally, which says what made the host wait, how long and in which line.

#[path = "support/mod.rs"]
mod support;

use std::time::Instant;

use support::{Arguments, images, sized};
use thalweg::vision::kernels::entropy;
use thalweg::{Activity, Device, DeviceBuffer, Error, Event, On, PinnedBuffer, Result, Stream, Timeline, stream_tags};

stream_tags!(Upload, Compute);

/// Images, idle again, and their results.
type Results = (Vec<PinnedBuffer<u8>>, Vec<Vec<f32>>);

const PATCH: u32 = 32;
const COUNT: usize = 24;

/// Two streams and what runs on them.
struct Program<'a> {
    gpu: Device,
    up: Stream<Upload>,
    compute: Stream<Compute>,
    side: u32,
    timeline: &'a Timeline,
}

impl Program<'_> {
    fn patches(&self) -> usize {
        self.side.div_ceil(PATCH).pow(2) as usize
    }

    /// Uploads an image and enqueues its kernel; the image comes back as an event.
    #[expect(clippy::type_complexity, reason = "an image in flight and what is computed of it")]
    fn enqueue(&self, image: PinnedBuffer<u8>) -> Result<(Event<PinnedBuffer<u8>>, On<Compute, DeviceBuffer<f32>>)> {
        let image = self.up.bind(image)?;
        let mut rgb = self.up.alloc::<u8>(image.len())?;
        let copy = || self.up.copy_to_device(&image, &mut rgb);
        self.timeline.span(&self.up, Activity::Upload, "image", copy)?;
        let image = self.up.record(image)?;

        let rgb = self.up.hand(rgb, &self.compute)?;
        let mut out = self.compute.alloc::<f32>(self.patches())?;
        let kernel = || entropy(&self.compute, self.side, self.side, PATCH, &rgb, &mut out);
        self.timeline.span(&self.compute, Activity::Compute, "entropy", kernel)?;
        Ok((image, out))
    }

    /// The way that looks harmless: read each result when it is there.
    fn before(&self, images: Vec<PinnedBuffer<u8>>) -> Result<Results> {
        let (mut done, mut results) = (Vec::new(), Vec::new());
        for image in images {
            let (image, out) = self.enqueue(image)?;
            results.push(self.timeline.wait("host", "read", || self.compute.read_blocking(&out))?);
            done.push(image.synchronize()?);
        }
        Ok((done, results))
    }

    /// Without the wait: results go to page-locked memory behind their kernels, and the host waits at the end.
    fn after(&self, images: Vec<PinnedBuffer<u8>>) -> Result<Results> {
        let mut pending = Vec::new();
        for image in images {
            let (image, out) = self.enqueue(image)?;
            let mut result = self.compute.bind(self.gpu.pinned::<f32>(out.len())?)?;
            self.compute.copy_to_host(&out, &mut result)?;
            pending.push((image, self.compute.record(result)?));
        }
        let gather = || {
            let both =
                pending.into_iter().map(|(image, result)| Ok((image.synchronize()?, result.synchronize()?.to_vec())));
            both.collect::<Result<_>>()
        };
        self.timeline.wait("host", "gather", gather)
    }
}

fn main() -> Result<(), Error> {
    let args = Arguments::parse("Finds a hidden synchronisation with the device's tally, and removes it.");
    let gpu = args.device()?;
    let timeline = args.timeline(gpu)?;
    let side = sized(gpu, 2048, 512);
    let quiet = Timeline::off();
    let (up, compute) = (gpu.stream()?, gpu.stream()?);
    let program = |timeline| Program { gpu, up, compute, side, timeline };

    // Once unobserved: kernels are loaded, pools are filled.
    let (images, _) = program(&quiet).after(images(gpu, COUNT, side, side)?.split(COUNT))?;

    gpu.tally().enable();
    let start = Instant::now();
    let (images, expected) = program(&timeline).before(images)?;
    let before = start.elapsed();
    gpu.tally().disable();
    println!("before: {before:.2?}\n{}\n", gpu.tally().report());

    gpu.tally().enable();
    let start = Instant::now();
    let (_, results) = program(&timeline).after(images)?;
    let after = start.elapsed();
    gpu.tally().disable();
    println!("after: {after:.2?}\n{}\n", gpu.tally().report());

    assert_eq!(results, expected);
    println!(
        "{COUNT} images of {side} x {side}, the same results, {:.2} x as fast",
        before.as_secs_f64() / after.as_secs_f64()
    );
    args.finish(&timeline)
}
