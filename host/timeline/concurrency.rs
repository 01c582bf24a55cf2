//! Checks whether two streams run at once.

use std::fmt;
use std::time::Duration;

use super::activity::Activity;
use super::trace::Trace;
use super::{Timeline, metrics};
use crate::brand::LiveBrand;
use crate::error::{Error, Result};
use crate::memory::DeviceBuffer;
use crate::probe::probe;
use crate::resource::On;
use crate::runtime::sync_stats::HostWait;
use crate::stream::Stream;

/// The result of [`concurrency_check`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Concurrency {
    /// Device time of the work of both streams, one stream after the other.
    pub in_turn: Duration,
    /// Device time of the same work on both streams together.
    pub together: Duration,
    /// The fraction of the shorter work that is hidden: 0 if the streams take turns, 1 if they run
    /// at once.
    pub overlap: f64,
}

impl Concurrency {
    /// Computes the result from the times of the two works alone (`a`, `b`) and `together`, and
    /// from the time during which kernels of both were under way at once (`common`). Overlap needs
    /// both: streams that share a queue have no common time, and kernels that share multiprocessors
    /// by turns have common time but save nothing.
    fn new(a: Duration, b: Duration, together: Duration, common: Duration) -> Self {
        let saved = (a + b).saturating_sub(together).min(common).as_secs_f64();
        let overlap = (saved / a.min(b).as_secs_f64().max(1e-12)).clamp(0.0, 1.0);
        Self { in_turn: a + b, together, overlap }
    }

    /// Whether more than half of the shorter work is hidden.
    pub fn at_once(&self) -> bool {
        self.overlap > 0.5
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.at_once() { "run at once" } else { "take turns" };
        let Self { in_turn, together, overlap } = self;
        write!(
            f,
            "the streams {verdict}: {together:.1?} together, {in_turn:.1?} in turn, {:.0} % hidden",
            100.0 * overlap
        )
    }
}

/// Kernels of a measurement, each of one block.
const LAUNCHES: usize = 8;
/// Measurements, of which the best counts.
const ROUNDS: usize = 3;
/// Steps of a kernel, which take about 0.1 ms on a GPU.
const STEPS: u32 = 40_000;

/// Measures whether two streams of a device run kernels at once. It runs the same short kernels,
/// each of one block, on one stream after the other, and then on both together. Waits for both
/// streams, and takes some milliseconds.
///
/// Streams that could run at once take turns in three cases: the device has fewer hardware queues
/// than streams are in use (`CUDA_DEVICE_MAX_CONNECTIONS`), a debugger or a profiler serializes
/// kernels, or other work fills the device. So check on an idle device. Kernels that fill the
/// device by themselves take turns on any streams.
///
/// ```
/// use thalweg::{Device, concurrency_check, stream_tags};
///
/// stream_tags!(Left, Right);
/// let gpu = Device::best()?;
/// println!("{}", concurrency_check(&gpu.stream::<Left>()?, &gpu.stream::<Right>()?)?);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # Errors
/// The streams belong to different devices, or the device has failed.
#[track_caller]
pub fn concurrency_check<A: LiveBrand, B: LiveBrand>(a: &Stream<A>, b: &Stream<B>) -> Result<Concurrency> {
    if a.device() != b.device() {
        return Err(Error::DeviceMismatch { resource: a.device().to_string(), stream: b.device().to_string() });
    }
    let _wait = a.device().host_wait(HostWait::Synchronize);
    let (mut work_a, mut work_b) = (Work::new(*a)?, Work::new(*b)?);
    // The first launches load the kernel, so they are not measured.
    work_a.launch().and_then(|()| work_b.launch())?;
    let timeline = Timeline::new(a.device())?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let settle = || a.synchronize().and_then(|()| b.synchronize());
        settle()?;
        (0..LAUNCHES).try_for_each(|_| timeline.span(a, Activity::Compute, ALONE_A, || work_a.launch()))?;
        settle()?;
        (0..LAUNCHES).try_for_each(|_| timeline.span(b, Activity::Compute, ALONE_B, || work_b.launch()))?;
        settle()?;
        for _ in 0..LAUNCHES {
            timeline.span(a, Activity::Compute, TOGETHER_A, || work_a.launch())?;
            timeline.span(b, Activity::Compute, TOGETHER_B, || work_b.launch())?;
        }
        rounds.push(timeline.finish()?);
    }
    let least = |labels: &[&str]| {
        let time = |trace: &Trace| metrics::length(&running(trace, labels));
        rounds.iter().map(time).min().unwrap_or_default()
    };
    let both = |trace: &Trace| metrics::common(&running(trace, &[TOGETHER_A]), &running(trace, &[TOGETHER_B]));
    let common = rounds.iter().map(both).max().unwrap_or_default();
    Ok(Concurrency::new(least(&[ALONE_A]), least(&[ALONE_B]), least(&[TOGETHER_A, TOGETHER_B]), common))
}

const ALONE_A: &str = "a alone";
const ALONE_B: &str = "b alone";
const TOGETHER_A: &str = "a";
const TOGETHER_B: &str = "b";

/// The times at which kernels with these labels ran.
fn running(trace: &Trace, labels: &[&str]) -> Vec<metrics::Interval> {
    metrics::union(trace.spans().iter().filter(|span| labels.contains(&&*span.label)))
}

/// A kernel of one block, its stream and its buffer.
struct Work<S: LiveBrand> {
    stream: Stream<S>,
    out: On<S, DeviceBuffer<u32>>,
}

impl<S: LiveBrand> Work<S> {
    fn new(stream: Stream<S>) -> Result<Self> {
        let work = Self { stream, out: stream.alloc(32)? };
        stream.synchronize()?;
        Ok(work)
    }

    fn launch(&mut self) -> Result<()> {
        probe(&self.stream, STEPS, &mut self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LaunchError;
    use crate::runtime::device::Device;

    #[test]
    fn overlap_is_what_together_saves() {
        let ms = Duration::from_millis;
        let of = |a, b, together| Concurrency::new(ms(a), ms(b), ms(together), ms(10));
        assert_eq!(of(4, 2, 6).overlap, 0.0);
        assert_eq!(of(4, 2, 4).overlap, 1.0);
        assert_eq!(of(4, 2, 5).overlap, 0.5);
        assert_eq!(of(4, 2, 7).overlap, 0.0);
        assert_eq!(of(0, 0, 0).overlap, 0.0);
        assert!(of(2, 2, 2).at_once() && !of(2, 2, 4).at_once());
        assert_eq!(Concurrency::new(ms(4), ms(4), ms(5), ms(1)).overlap, 0.25, "one queue, and times that differ");
        assert!(of(2, 2, 4).to_string().contains("take turns"));
    }

    /// The hash of a thread's number, in plain Rust.
    fn hash(mut h: u32, rounds: u32) -> u32 {
        for _ in 0..rounds {
            h = (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d);
        }
        h
    }

    #[test]
    fn each_thread_leaves_its_hash_and_no_other_buffer_is_taken() {
        let others = [Device::checked_cpu().unwrap(), Device::seeded_cpu(1).unwrap()];
        for device in Device::all().into_iter().chain(others) {
            let launched = device.per_thread(|s| {
                for rounds in [0, 1, 2, 1000] {
                    let mut out = s.alloc::<u32>(32)?;
                    probe(s, rounds, &mut out)?;
                    let expected: Vec<u32> = (0..32).map(|thread| hash(thread, rounds)).collect();
                    assert_eq!(s.read_blocking(&out)?, expected, "{rounds} rounds on {device}");
                }
                for len in [0, 31, 33] {
                    let refused = probe(s, 1, &mut s.alloc::<u32>(len)?);
                    assert!(
                        matches!(refused, Err(Error::Launch(LaunchError::Requirement { .. }))),
                        "{len}: {refused:?}"
                    );
                }
                Ok::<_, Error>(())
            });
            launched.unwrap().unwrap();
        }
    }

    /// The crate in `host/gpu` compiles this file for the GPU, under the name and the version of
    /// this one.
    #[test]
    fn the_entry_is_that_of_this_crate() {
        let origin = format!("// entry: probe__u32_wu32 thalweg {} thalweg::probe", env!("CARGO_PKG_VERSION"));
        assert!(include_str!("../thalweg.ptx").lines().any(|line| line == origin), "no `{origin}`");
    }
}
