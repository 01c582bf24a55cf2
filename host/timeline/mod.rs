//! A timeline: what ran when, on streams and on the host, on one axis.
//!
//! A span on a stream is two timed events around the work that a closure enqueues, so the device
//! itself reports when the work ran. A span on the host is two readings of the host's clock. The
//! two clocks are tied together by an origin: the timeline records it and waits for it when it is
//! made.
//!
//! | file | what it holds |
//! |---|---|
//! | `activity` | the kinds of work |
//! | `trace` | finished spans on one axis |
//! | `metrics`, `labels`, `svg`, `export` | what a trace says, shows and writes |
//! | `clock` | the axis: times of the host and of the device |
//! | `names` | names of tracks, and labels |
//! | `recorder` | spans while they are recorded, and the thread that takes their times |
//! | `concurrency` | a check that two streams run at once |

mod activity;
mod clock;
mod concurrency;
mod export;
mod labels;
mod metrics;
mod names;
mod recorder;
mod svg;
mod trace;

use std::fmt;
use std::sync::Arc;

pub use activity::Activity;
pub use concurrency::{Concurrency, concurrency_check};
pub use labels::{ByLabel, LabelMetrics};
pub use metrics::{Metrics, TrackMetrics};
pub use trace::{Span, Trace};

use self::clock::Untyped;
use self::recorder::{AllWork, Recorder};
use crate::brand::LiveBrand;
use crate::driver::nvtx;
use crate::error::Result;
use crate::runtime::device::Device;
use crate::runtime::sync_stats::HostWait;
use crate::stream::Stream;

/// Records labeled spans on streams and on the host, and places them on one axis. It is a handle:
/// its clones record the same timeline.
///
/// Recording waits for nothing. A span on a stream costs the host two event records and two short
/// locks (`benches/timeline.rs` measures how much). A thread that belongs to the timeline asks the
/// device for the times. Until [`finish`](Timeline::finish), the timeline keeps 48 bytes for each
/// span (96 while its list grows), one copy of each label, and two events for each span that the
/// device has not finished. It uses those events again.
///
/// ```
/// use thalweg::{Activity, Device, Timeline, stream_tags};
///
/// stream_tags!(Upload, Compute);
/// let gpu = Device::best()?;
/// let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
/// let timeline = Timeline::new(gpu)?;
///
/// let host = timeline.host("main", "fill", || gpu.pinned_from(&[1u8; 4096]))?;
/// let host = up.bind(host)?;
/// let mut x = up.alloc::<u8>(4096)?;
/// timeline.span(&up, Activity::Upload, "image", || up.copy_to_device(&host, &mut x))?;
/// let mut x = up.hand_off(x, &compute)?;
/// timeline.span(&compute, Activity::Compute, "zero", || compute.zero(&mut x))?;
///
/// let trace = timeline.finish()?; // the host waits here
/// assert_eq!(trace.spans().len(), 3);
/// println!("{}\n{}", trace.to_text(), trace.metrics());
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # What a span covers
///
/// A span lasts from the moment at which the stream reaches the first event to the moment at which
/// it reaches the second. So it covers the work between them. It also covers any wait between them
/// for another stream, or for a copy engine that another stream uses: enqueue waits
/// ([`hand_off`](Stream::hand_off), [`wait`](Stream::wait)) outside of spans. If the stream was
/// idle, the span begins when the first event arrives, some microseconds before the work does.
///
/// # Precision
///
/// Device times have the resolution of the device's timed events, about 0.5 us. They stay as
/// precise in long runs. The driver gives differences as 32-bit floating point milliseconds, so
/// every four seconds of recording are measured from an event of their own. Host and device are
/// aligned to [`Trace::clock_uncertainty`], a few us. The CPU device uses the host's clock.
#[derive(Clone)]
pub struct Timeline(Kind);

#[derive(Clone)]
enum Kind {
    Off,
    /// Labels go to NVTX, and nothing is recorded.
    Labels,
    On(Arc<Recorder>, #[expect(dead_code, reason = "the last handle ends the log")] Option<Arc<AllWork>>),
}

impl Timeline {
    /// Makes a timeline of `device` and of the host. The axis begins now. Waits for the device to
    /// pass some events, and makes the timeline's events, which takes about a millisecond.
    ///
    /// The first call of a process reads `NVTX_INJECTION64_PATH`, which a profiler sets, and loads
    /// the library that it names. Spans are then ranges of NVTX, too.
    ///
    /// # Errors
    /// The device has failed.
    pub fn new(device: Device) -> Result<Self> {
        nvtx::load();
        Ok(Self(Kind::On(Recorder::new(device, false)?, None)))
    }

    /// Makes a timeline that also has each kernel, copy and fill of the device, wrapped in a span
    /// or not, with the times at which the device itself ran it. They are on the track of their
    /// stream, or on one of their own if the stream has no span. It is for looking closely, since
    /// a launch costs more with it.
    ///
    /// On a GPU this is the work of CUPTI (`libcupti.so`), which the first call of a process loads.
    /// `THALWEG_CUPTI` names its file. No other profiler of the process may use CUPTI meanwhile.
    /// What a GPU has not finished at [`finish`](Self::finish) is in no trace, so wait for its
    /// streams first. The CPU device asks its own queues; with a seed, it runs a copy in parts, and
    /// each is a piece of work.
    ///
    /// Each piece of work takes some 100 bytes of memory until `finish`.
    ///
    /// ```
    /// use thalweg::{Device, Timeline, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let cpu = Device::new_cpu()?;
    /// let work = cpu.stream::<Work>()?;
    /// let timeline = Timeline::with_all_work(cpu)?;
    /// let mut x = work.alloc::<u8>(1000)?;
    /// work.fill(&mut x, 7)?; // nobody wraps this
    /// work.synchronize()?;
    /// let trace = timeline.finish()?;
    /// assert_eq!((trace.spans().len(), &*trace.spans()[0].label), (1, "fill"));
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Library`](crate::Error::Library): CUPTI is missing, refuses, or has a version
    ///   whose records are not known.
    /// - [`Error::Parameter`](crate::Error::Parameter): another such timeline of the process is
    ///   alive.
    /// - The device has failed.
    pub fn with_all_work(device: Device) -> Result<Self> {
        nvtx::load();
        let log = AllWork::start(device)?;
        Ok(Self(Kind::On(Recorder::new(device, true)?, Some(Arc::new(log)))))
    }

    /// Makes a timeline that records nothing: every method just runs `f`.
    pub fn disabled() -> Self {
        Self(Kind::Off)
    }

    /// Makes a timeline that records nothing, and whose spans are ranges of NVTX: labels for a
    /// profiler, without the events of a timeline. It needs no device.
    ///
    /// The first call of a process reads `NVTX_INJECTION64_PATH`, as that of [`new`](Self::new)
    /// does. Without a profiler, a span costs a load more than one of a
    /// [disabled](Self::disabled) timeline.
    pub fn labels_only() -> Self {
        nvtx::load();
        Self(Kind::Labels)
    }

    fn recorder(&self) -> Option<&Arc<Recorder>> {
        if let Kind::On(recorder, _) = &self.0 { Some(recorder) } else { None }
    }

    /// Runs `f` where nothing is recorded.
    #[inline]
    fn unrecorded<T>(&self, label: &str, f: impl FnOnce() -> T) -> T {
        let _range = matches!(self.0, Kind::Labels).then(|| nvtx::range(label));
        f()
    }

    /// Returns whether this timeline records.
    pub fn is_enabled(&self) -> bool {
        self.recorder().is_some()
    }

    /// Returns the label of the `n`-th of a row of equal spans, or an empty text, which takes no
    /// memory, if nobody sees it.
    pub(crate) fn label(&self, what: &str, n: usize) -> String {
        if matches!(self.0, Kind::Off) { String::new() } else { format!("{what} {n}") }
    }

    /// Runs `f`, which enqueues on `stream`, and records what it enqueues as one span on the
    /// stream's track. Waits for nothing.
    ///
    /// If `f` fails, nothing is recorded.
    ///
    /// # Errors
    /// `f` fails, the stream belongs to another device than the timeline, or the device has failed.
    #[track_caller]
    pub fn span<S: LiveBrand, T>(
        &self,
        stream: &Stream<S>,
        activity: Activity,
        label: &str,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(recorder) = self.recorder() else { return self.unrecorded(label, f) };
        let untyped = Untyped::of(stream.inner());
        let span = recorder.begin(untyped, std::any::type_name::<S>, label)?;
        let value = {
            let _range = nvtx::range(label);
            recorder.start(untyped, &span)?;
            f()
        };
        match value {
            Ok(value) => {
                recorder.end(untyped, activity, span)?;
                Ok(value)
            }
            Err(error) => {
                recorder.cancel(span);
                Err(error)
            }
        }
    }

    /// Runs `f` on the host, and records it as a span on the track that `track` names.
    #[track_caller]
    pub fn host<T>(&self, track: &str, label: &str, f: impl FnOnce() -> T) -> T {
        self.on_host(track, Activity::Host, label, f)
    }

    /// Runs `f`, which makes the host wait, and records it as a span of waiting on the track that
    /// `track` names.
    #[track_caller]
    pub fn wait<T>(&self, track: &str, label: &str, f: impl FnOnce() -> T) -> T {
        self.on_host(track, Activity::Wait, label, f)
    }

    #[track_caller]
    fn on_host<T>(&self, track: &str, activity: Activity, label: &str, f: impl FnOnce() -> T) -> T {
        let Some(recorder) = self.recorder() else { return self.unrecorded(label, f) };
        let start = recorder.now();
        let value = {
            let _range = nvtx::range(label);
            f()
        };
        let end = recorder.now();
        recorder.host(track, activity, label, start, end);
        value
    }

    /// Names the track of a stream. Without a name, a track is called after the last segment of the
    /// stream's tag, or `stream 7` if the stream has no tag.
    ///
    /// If another track already has the name, the stream's number is added. With all work, the name
    /// also counts for a stream without a span.
    pub fn name<S: LiveBrand>(&self, stream: &Stream<S>, name: &str) {
        let Some(recorder) = self.recorder() else { return };
        recorder.name(Untyped::of(stream.inner()), name);
    }

    /// Waits on the host until every span is complete, and returns the spans recorded since the
    /// last call. The axis goes on.
    ///
    /// Spans that other threads are still enqueueing belong to the next call.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn finish(&self) -> Result<Trace> {
        let Some(recorder) = self.recorder() else { return Ok(Trace::default()) };
        let _wait = recorder.device().host_wait(HostWait::Synchronize);
        recorder.finish()
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Off => f.write_str("Timeline(off)"),
            Kind::Labels => f.write_str("Timeline(labels only)"),
            Kind::On(recorder, _) => f.debug_tuple("Timeline").field(&recorder.device()).finish(),
        }
    }
}
