//! Measures what a priority gains for small urgent work beside streams that fill the device.
//!
//! ```text
//! background   | block | block | block | block | block | ...     every multiprocessor busy, more in the queue
//! urgent                 ? | kernel |                            how long until it is done?
//! ```
//!
//! A stream's priority decides whose *blocks start next*. It does not interrupt a running block, so
//! an urgent kernel waits until the first block ends: the duration of a background block is the
//! latency that remains. A priority does not order copies at all. [`measure_priority`] measures
//! what it gains for given work.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use crate::any_stream::{AnyStream, Scoped};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::resource::Resource;
use crate::runtime::device::Device;
use crate::runtime::stream::StreamOptions;
use crate::stream::Stream;

/// Streams of background work. A second one keeps the device busy between two pieces of the first.
const STREAMS: usize = 2;
/// Pieces enqueued on each of them, which is enough to outlast the pause before a sample.
const DEPTH: usize = 3;

/// Percentiles of the latencies of many samples. A percentile is the smallest latency that so many
/// per cent of the samples do not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// The median, 50 %.
    pub p50: Duration,
    /// 99 %.
    pub p99: Duration,
    /// 99.9 %. With fewer than 1000 samples, this is the longest latency.
    pub p999: Duration,
}

impl Latency {
    /// Computes the percentiles of samples in any order. All are zero if there are no samples.
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

/// The result of [`measure_priority`]. A latency is the host time from the start of enqueueing
/// urgent work until the host knows that the work is done.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PriorityGain {
    /// The time of one piece of background work alone, from enqueueing to its end.
    pub background: Duration,
    /// The latency with nothing else on the device.
    pub alone: Latency,
    /// The latency beside the background, at the same priority.
    pub without_priority: Latency,
    /// The latency beside the background, at the most urgent priority. `None` if the device has
    /// only one priority.
    pub with_priority: Option<Latency>,
}

/// Writes microseconds, with a line for each case.
impl fmt::Display for PriorityGain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "us                       p50       p99     p99.9")?;
        writeln!(f, "alone              {}", self.alone)?;
        writeln!(f, "without priority   {}", self.without_priority)?;
        match self.with_priority {
            Some(with) => write!(f, "with priority      {with}"),
            None => write!(f, "with priority      the device has one priority only"),
        }
    }
}

/// Measures the latency of `urgent` work beside `background` work that fills the device, without
/// and with priority. Takes `samples` samples of each.
///
/// Both closures enqueue a piece of work on the stream that they receive, and return its event.
/// Before each sample, both background streams get work until three pieces are pending on each.
/// Then the host pauses for a pseudo-random part of the time of one piece, so that samples begin
/// anywhere in a piece. The calling thread does everything, and waits.
///
/// ```
/// use thalweg::{Device, overlap::measure_priority};
///
/// let found = measure_priority(
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
/// assert!(found.without_priority.p50 <= found.without_priority.p999);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # Errors
/// `samples` is 0, one of the closures fails, or the device has failed.
pub fn measure_priority<B: Resource, U: Resource>(
    device: Device,
    samples: usize,
    mut background: impl for<'l> FnMut(&Stream<Scoped<'l>>) -> Result<Event<B>>,
    mut urgent: impl for<'l> FnMut(&Stream<Scoped<'l>>) -> Result<Event<U>>,
) -> Result<PriorityGain> {
    if samples == 0 {
        return Err(Error::Parameter { name: "samples", given: "0".into(), expected: "at least 1".into() });
    }
    let busy: Vec<_> = (0..STREAMS).map(|_| AnyStream::new(device)).collect::<Result<_>>()?;
    let equal = AnyStream::new(device)?;
    let first = *device.priorities().start();
    let ahead = match first {
        0 => None,
        _ => Some(AnyStream::with(device, StreamOptions::default().with_priority(first))?),
    };

    let mut sample = |stream: &AnyStream| {
        let start = Instant::now();
        stream.enter(&mut urgent)?.synchronize()?;
        Ok::<_, Error>(start.elapsed())
    };
    for stream in [&equal].into_iter().chain(&ahead) {
        sample(stream)?; // the first use loads kernels
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
                while queue.front().map_or(Ok(false), Event::is_complete)? {
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
    let without_priority = beside(&equal)?;
    let with_priority = ahead.as_ref().map(&mut beside).transpose()?;
    Ok(PriorityGain { background: piece, alone, without_priority, with_priority })
}

/// Multiples of the golden ratio, modulo 1. They have no period, so work cannot fall into step with
/// them.
fn phases() -> impl Iterator<Item = f64> {
    (1..).map(|i| (f64::from(i) * 0.618_033_988_749_894_9).fract())
}
