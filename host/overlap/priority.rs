//! Small urgent work beside a stream that fills the device.
//!
//! ```text
//! background   | block | block | block | block | block | ...     every multiprocessor busy, more in the queue
//! urgent                 ? | kernel |                            how long until it is done?
//! ```
//!
//! A stream's priority decides whose *blocks start next*. It does not interrupt a running block, so an urgent kernel waits
//! for the first block to end, and the background's block duration is the latency that remains; it does not order copies
//! at all. [`priority`](fn@priority) measures what it is worth for given work.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::event::Event;
use crate::lane::{AnyStream, Lane};
use crate::resource::Resource;
use crate::runtime::device::Device;
use crate::runtime::stream::StreamOptions;
use crate::stream::Stream;

/// Streams of background work: with a second one, the device does not run dry between two pieces of the first.
const STREAMS: usize = 2;
/// Pieces enqueued on each of them: enough to outlast the pause before a sample.
const DEPTH: usize = 3;

/// Latencies of many samples. Each is the smallest that so many per cent of the samples do not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// 50 %.
    pub p50: Duration,
    /// 99 %.
    pub p99: Duration,
    /// 99.9 %; of fewer than 1000 samples, the longest.
    pub p999: Duration,
}

impl Latency {
    /// Of samples in any order; zero where there are none.
    pub fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let of = |per_mille: usize| {
            let rank = (samples.len() * per_mille).div_ceil(1000).max(1);
            samples.get(rank - 1).copied().unwrap_or_default()
        };
        Self { p50: of(500), p99: of(990), p999: of(999) }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, p999] = [self.p50, self.p99, self.p999].map(|d| d.as_secs_f64() * 1e6);
        write!(f, "{p50:9.1} {p99:9.1} {p999:9.1}")
    }
}

/// What [`priority`](fn@priority) found: host time from the start of enqueueing urgent work until the host knows that it is done.
#[derive(Clone, Copy, Debug)]
pub struct PriorityGain {
    /// One piece of background work by itself, from enqueueing to its end.
    pub background: Duration,
    /// Nothing else on the device.
    pub alone: Latency,
    /// Beside the background, at its priority.
    pub without: Latency,
    /// Beside the background, at the most urgent priority; `None` where the device has only one.
    pub with: Option<Latency>,
}

/// Microseconds, a line for each case.
impl fmt::Display for PriorityGain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "us                       p50       p99     p99.9")?;
        writeln!(f, "alone              {}", self.alone)?;
        writeln!(f, "without priority   {}", self.without)?;
        match self.with {
            Some(with) => write!(f, "with priority      {with}"),
            None => write!(f, "with priority      the device has one priority only"),
        }
    }
}

/// Measures the latency of `urgent` work beside `background` work that fills the device, without and with
/// priority, `samples` times each.
///
/// Both enqueue a piece of work on the stream they are given and return its event. Two background streams are kept
/// three pieces ahead. Before each sample the host pauses for a pseudo-random part of the time one
/// piece takes, so that samples fall anywhere in it. The calling thread does everything, and waits.
///
/// ```
/// use thalweg::{Device, overlap::priority};
///
/// let found = priority(
///     Device::best()?,
///     20,
///     |s| {
///         let mut large = s.alloc::<u32>(1 << 16)?;
///         s.fill(&mut large, 1)?;
///         Ok(s.record(large)?)
///     },
///     |s| {
///         let mut small = s.alloc::<u32>(16)?;
///         s.fill(&mut small, 1)?;
///         Ok(s.record(small)?)
///     },
/// )?;
/// println!("{found}");
/// assert!(found.without.p50 <= found.without.p999);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # Errors
/// `samples` is 0, or the first error of either kind of work.
pub fn priority<B: Resource, U: Resource>(
    device: Device,
    samples: usize,
    mut background: impl for<'l> FnMut(&Stream<Lane<'l>>) -> Result<Event<B>>,
    mut urgent: impl for<'l> FnMut(&Stream<Lane<'l>>) -> Result<Event<U>>,
) -> Result<PriorityGain> {
    if samples == 0 {
        return Err(Error::Parameter { name: "samples", given: "0".into(), expected: "at least 1".into() });
    }
    let busy: Vec<_> = (0..STREAMS).map(|_| AnyStream::new(device)).collect::<Result<_>>()?;
    let equal = AnyStream::new(device)?;
    let first = *device.priorities().start();
    let ahead = match first {
        0 => None,
        _ => Some(AnyStream::with(device, StreamOptions::default().priority(first))?),
    };

    let mut sample = |stream: &AnyStream| {
        let start = Instant::now();
        stream.enter(&mut urgent)?.synchronize()?;
        Ok::<_, Error>(start.elapsed())
    };
    for stream in [&equal].into_iter().chain(&ahead) {
        sample(stream)?; // loads what loads at first use
    }
    let alone = Latency::of((0..samples).map(|_| sample(&equal)).collect::<Result<_>>()?);
    busy[0].enter(&mut background)?.synchronize()?;
    let start = Instant::now();
    busy[0].enter(&mut background)?.synchronize()?;
    let piece = start.elapsed();

    let mut beside = |urgent: &AnyStream| {
        let mut queues = [(); STREAMS].map(|()| VecDeque::new());
        let mut taken = Vec::with_capacity(samples);
        for phase in phases().take(samples) {
            for (stream, queue) in busy.iter().zip(&mut queues) {
                while queue.front().map_or(Ok(false), Event::is_ready)? {
                    queue.pop_front();
                }
                while queue.len() < DEPTH {
                    queue.push_back(stream.enter(&mut background)?);
                }
            }
            let paused = Instant::now();
            while paused.elapsed() < piece.mul_f64(phase) {
                std::hint::spin_loop();
            }
            taken.push(sample(urgent)?);
        }
        queues.into_iter().flatten().try_for_each(|event| event.synchronize().map(drop))?;
        Ok::<_, Error>(Latency::of(taken))
    };
    let without = beside(&equal)?;
    let with = ahead.as_ref().map(&mut beside).transpose()?;
    Ok(PriorityGain { background: piece, alone, without, with })
}

/// Numbers from [0, 1) without a period that work could fall in step with: the golden ratio's multiples.
fn phases() -> impl Iterator<Item = f64> {
    (1..).map(|i| (f64::from(i) * 0.618_033_988_749_894_9).fract())
}
