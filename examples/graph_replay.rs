//! Runs a chain of small kernels, launched one by one and as a graph.
//!
//! ```text
//! stream   launch | k 0 | . | k 1 | . | k 2 | . | k 3 | ...   a call for each, a gap after each
//! graph    replay | k 0 | k 1 | k 2 | k 3 |                   one call for all
//! ```
//!
//! ```text
//! cargo run --release --example graph_replay -- --timeline graph_replay.svg
//! ```
//!
//! A cache has a graph for each slot of a ring. The first frame of all is launched, and then each
//! slot is captured at its next use.

#[path = "support/mod.rs"]
mod support;

use std::time::Instant;

use thalweg::{
    Activity, Brand, DeviceBuffer, Error, GraphCache, GraphWork, PinnedBuffer, Resource, Ring, Stream, Timeline,
    stream_tags,
};
use thalweg_vision::kernels;

stream_tags!(Work);

/// Columns and rows of an image, and of a patch. An image takes only a few blocks.
const SIDE: u32 = 32;
const PATCH: u32 = 8;
const PIXELS: usize = (SIDE * SIDE) as usize;
const MEANS: usize = 13 * (SIDE / PATCH * (SIDE / PATCH)) as usize;
/// Frames before the clock starts. They load the kernels and capture a graph for each slot, and the
/// timeline shows them.
const FIRST: usize = 6;

/// The image on the host, then the image, its planes and their means on the device, then the means
/// on the host.
type Slot = (PinnedBuffer<u8>, DeviceBuffer<u8>, DeviceBuffer<f32>, DeviceBuffer<f32>, PinnedBuffer<f32>);
type OnStream<S> = <Slot as Resource>::On<S>;

fn main() -> Result<(), Error> {
    let args = support::Arguments::parse("A chain of small kernels as a graph: us per kernel, stream against graph.");
    let device = args.device()?;
    let (timeline, off) = (args.timeline(device)?, Timeline::disabled());
    let work = device.stream::<Work>()?;
    let frames = support::sized(device, 400, 10);
    println!("us per kernel, with each frame's copies and hand-over");
    println!("                stream     graph");
    for length in [2, 8, 32, 128] {
        let timeline = if length == 8 { &timeline } else { &off };
        let chain = Chain { length };
        let (stream, want) = run(work, frames, "launches", timeline, |mut slot| {
            chain.enqueue(&work, &mut slot)?;
            Ok(slot)
        })?;
        let mut graphs = GraphCache::default();
        let (graph, got) =
            run(work, frames, "replay", timeline, |slot| Ok(graphs.enqueue(&work, length, slot, &chain)?))?;
        assert!(got == want, "the results of the graph differ from those of the stream");
        let [stream, graph] = [stream, graph].map(|seconds| 1e6 * seconds / f64::from(length));
        println!("{length:3} in a row  {stream:9.2} {graph:9.2}");
    }
    args.finish(&timeline)
}

/// The upload of an image, `length` kernels on it, and the download of the last means. The stream
/// runs them or captures them.
struct Chain {
    length: u32,
}

impl GraphWork<Slot> for Chain {
    fn enqueue<S: Brand>(&self, s: &Stream<S>, slot: &mut OnStream<S>) -> Result<(), Error> {
        let (image, rgb, planes, means, host) = slot;
        s.copy_to_device(image, rgb)?;
        for i in 0..self.length / 2 {
            kernels::textures(s, SIDE, SIDE, 0.5, 1.0 / (1 + i) as f32, rgb, planes)?;
            kernels::features(s, SIDE, SIDE, PATCH, planes, means)?;
        }
        s.copy_to_host(means, host)
    }
}

/// Sends frames through a ring of three slots. Returns the seconds for each frame, and the results.
fn run(
    work: Stream<Work>,
    frames: usize,
    label: &str,
    timeline: &Timeline,
    mut enqueue: impl FnMut(OnStream<Work>) -> Result<OnStream<Work>, Error>,
) -> Result<(f64, Vec<f32>), Error> {
    let device = work.device();
    let mut ring = Ring::new(3, move || {
        let room = (work.alloc(3 * PIXELS)?, work.alloc(13 * PIXELS)?, work.alloc(MEANS)?);
        let (rgb, planes, means) = work.record(room)?.synchronize()?;
        Ok((device.pinned(3 * PIXELS)?, rgb, planes, means, device.pinned(MEANS)?))
    })?;
    let (mut results, mut start) = (Vec::new(), Instant::now());
    for frame in 0..FIRST + frames {
        if frame == FIRST {
            ring.synchronize()?;
            start = Instant::now();
        }
        let mut slot = ring.acquire()?.synchronize()?;
        if frame >= ring.depth() {
            results.extend_from_slice(&slot.4);
        }
        slot.0.fill(frame as u8);
        let timeline = if frame < FIRST { timeline } else { &Timeline::disabled() };
        let slot = work.bind(slot)?;
        let slot = timeline.span(&work, Activity::Compute, label, || enqueue(slot))?;
        ring.recycle(work.record(slot)?);
    }
    ring.synchronize()?;
    Ok((start.elapsed().as_secs_f64() / frames as f64, results))
}
