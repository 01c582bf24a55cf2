//! Works on the host while events are pending: with polling, and with `.await`.
//!
//! ```text
//! stream   | up | textures | features | down |
//! host     enqueue | piece | piece | piece | ? ready: use the result
//! ```
//!
//! ```text
//! cargo run --release --example query_poll -- --timeline query_poll.svg
//! ```
//!
//! An executor polls for you. A task that awaits an event sleeps until the event is complete, and
//! other tasks run meanwhile.

#[path = "support/mod.rs"]
mod support;

use std::time::Instant;

use support::features::features;
use thalweg::overlap::query_poll;
use thalweg::{Error, StreamPool, Timeline};

/// The bytes that one piece of host work sums.
const PIECE: usize = 16 << 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let args = support::Arguments::parse("Works on the host while events are pending, and reports how much.");
    let device = args.device()?;
    let timeline = args.timeline(device)?;
    let (side, count) = support::sized(device, (4096, 8), (256, 4));
    let pool = StreamPool::new(device, 2)?;
    let off = Timeline::disabled();
    let mut images = support::images(device, count, side, side)?.split_even(count)?;
    let work = images[0].repeat(support::sized(device, 4, 32)); // for the host

    // Serial: finish each image before the next one starts.
    let mut want = Vec::new();
    for image in std::mem::take(&mut images) {
        let (image, means) = pool.with_stream(|s| features(s, side, image, &off))?.synchronize()?;
        images.push(image);
        want.push(means);
    }

    // The host waits, and then works.
    let start = Instant::now();
    let (first, _) = pool.with_stream(|s| features(s, side, images.remove(0), &off))?.synchronize()?;
    let waited = start.elapsed();
    let total: u64 = work.chunks(PIECE).map(sum).sum();
    println!("synchronize: {waited:.1?} for the result, {:.1?} with the host's work", start.elapsed());

    // The host works while the event is pending.
    let start = Instant::now();
    let event = pool.with_stream(|s| features(s, side, first, &timeline))?;
    let (mut meanwhile, mut left) = (0, work.chunks(PIECE));
    let ((first, got), pieces) = query_poll(event, || {
        timeline.host("host", "piece", || meanwhile += left.next().map_or(0, sum));
        left.len() > 0
    })?;
    let waited = start.elapsed();
    meanwhile += left.map(sum).sum::<u64>();
    let done = work.len().min(pieces as usize * PIECE) as f64 / 1e6;
    println!("query:       {waited:.1?} for the result, {:.1?} with the host's work", start.elapsed());
    println!("             {done:.1} of {:.1} MB summed while the event was pending", work.len() as f64 / 1e6);
    assert!(got[..] == want[0][..] && meanwhile == total);

    // Each image is a task. This task works until all of them have their results.
    images.insert(0, first);
    let start = Instant::now();
    let pending = images.into_iter().map(|image| pool.with_stream(|s| features(s, side, image, &off)));
    let tasks: Vec<_> = pending.map(|event| tokio::spawn(async move { event?.await })).collect();
    let mut bytes = 0;
    for piece in work.chunks(PIECE).cycle().take_while(|_| !tasks.iter().all(|task| task.is_finished())) {
        std::hint::black_box(sum(piece));
        bytes += piece.len();
        tokio::task::yield_now().await;
    }
    println!("await:       {:.1?} for {count} results, {:.1} MB meanwhile", start.elapsed(), bytes as f64 / 1e6);
    for (task, want) in tasks.into_iter().zip(want) {
        let (_, got) = task.await.map_err(|e| Error::Thread { reason: e.to_string() })??;
        assert_eq!(got[..], want[..]);
    }
    args.finish(&timeline)
}

/// Work for the host.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&byte| u64::from(byte)).sum()
}
