//! Overlaps upload, kernel and download of successive chunks. Each step has its own stream.
//!
//! ```text
//! first     | up 0 | up 1     | up 2     | up 3     | up 4     | ...
//! between          | kernel 0 | kernel 1 | kernel 2 | kernel 3 | ...
//! last                        | down 0   | down 1   | down 2   | ...
//! ```
//!
//! The stage's work is set so that a kernel takes as long as an upload, unless the device is too
//! slow for that. A download moves as many bytes as an upload. Overlap gains most in this case.
//!
//! ```text
//! cargo run --release --example interleaved -- --timeline interleaved.svg
//! ```

#[path = "support/mod.rs"]
mod support;

use thalweg::overlap::{interleaved, serial};
use thalweg::{AnyStream, Error, Timeline};

/// One stream for uploads, one for kernels, one for downloads.
const STREAMS: usize = 3;

fn main() -> Result<(), Error> {
    let args = support::Arguments::parse("Overlaps uploads, kernels and downloads of successive chunks.");
    let gpu = args.device()?;
    let (frames, [height, width]) = support::sized(gpu, (40, [2160, 3840]), (16, [192, 256]));
    let streams = (0..STREAMS).map(|_| AnyStream::new(gpu)).collect::<Result<Vec<_>, _>>()?;
    let mut edges = support::edges::Edges::new(gpu, height, width, 1)?;
    let chunks = edges.chunks(frames);

    let input = support::images(gpu, frames, height, width)?;
    let (times, input) = edges.balance(&streams[0], input, chunks)?;
    println!("{frames} chunks of one {height} x {width} image; alone: {times}");

    let (one_by_one, input, want) = support::timed(input, &Timeline::disabled(), |input, timeline| {
        serial(&streams[0], input, chunks, |s, x, y| edges.run(s, x, y), timeline)
    })?;
    let timeline = args.timeline(gpu)?;
    let (time, _, output) = support::timed(input, &timeline, |input, timeline| {
        interleaved(&streams, input, chunks, |s, x, y| edges.run(s, x, y), timeline)
    })?;
    assert!(*output == *want, "the results differ from those of `serial`");

    let longest = times.longest() * frames as u32;
    let fill_and_drain = times.sum() - times.longest();
    let ratios = support::on_gpu(gpu, || {
        format!(
            ": {:.3} x max(H2D, kernel, D2H), {:.3} x with one chunk's fill and drain, {:.2} x faster than serial",
            time.as_secs_f64() / longest.as_secs_f64(),
            time.as_secs_f64() / (longest + fill_and_drain).as_secs_f64(),
            one_by_one.as_secs_f64() / time.as_secs_f64()
        )
    });
    println!("serial {one_by_one:.2?}; interleaved {time:.2?}{ratios}");
    args.finish(&timeline)
}
