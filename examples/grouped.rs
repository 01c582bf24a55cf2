//! Enqueues all uploads, then all kernels, then all downloads, and compares this order with the
//! interleaved one.
//!
//! ```text
//! first     | up 0 | up 1 | up 2 |
//! between          | kernel 0 | kernel 1 | kernel 2 |
//! last                           | down 0 |  | down 1 |  | down 2 |
//! ```
//!
//! ```text
//! cargo run --release --example grouped -- --timeline grouped.svg
//! ```

#[path = "support/mod.rs"]
mod support;

use thalweg::overlap::{choose, grouped, interleaved, serial};
use thalweg::{AnyStream, Error, Timeline};

/// One stream for uploads, one for kernels, one for downloads.
const STREAMS: usize = 3;

fn main() -> Result<(), Error> {
    let args = support::Arguments::parse(
        "Enqueues all uploads, then all kernels, then all downloads; or is interleaving better?",
    );
    let gpu = args.device()?;
    let (frames, [height, width]) = support::sized(gpu, (24, [2160, 3840]), (16, [192, 256]));
    let streams = (0..STREAMS).map(|_| AnyStream::new(gpu)).collect::<Result<Vec<_>, _>>()?;
    let mut edges = support::edges::Edges::new(gpu, height, width, 1)?;
    let chunks = edges.chunks(frames);

    let input = support::images(gpu, frames, height, width)?;
    let (times, input) = edges.balance(&streams[0], input, chunks)?;
    let choice = choose(gpu, frames, streams.len(), times);
    println!("{choice}");

    let (input, want) = serial(&streams[0], input, chunks, |s, x, y| edges.run(s, x, y), &Timeline::disabled())?;
    let timeline = args.timeline(gpu)?;
    let (in_groups, input, output) = support::timed(input, &timeline, |input, timeline| {
        grouped(&streams, input, chunks, |s, x, y| edges.run(s, x, y), timeline)
    })?;
    assert!(*output == *want, "the results differ from those of `serial`");
    drop(output);
    let (in_turn, _, output) = support::timed(input, &Timeline::disabled(), |input, timeline| {
        interleaved(&streams, input, chunks, |s, x, y| edges.run(s, x, y), timeline)
    })?;
    assert!(*output == *want, "the results differ from those of `serial`");

    let longest = (times.longest() * frames as u32).as_secs_f64();
    for (name, time, predicted) in
        [("grouped", in_groups, choice.grouped), ("interleaved", in_turn, choice.interleaved)]
    {
        let ratio = time.as_secs_f64() / longest;
        let beside = || format!(" (predicted {predicted:.2?}), {ratio:.3} x max(H2D, kernel, D2H)");
        println!("{name}: {time:.2?}{}", support::on_gpu(gpu, beside));
    }
    args.finish(&timeline)
}
