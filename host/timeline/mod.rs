//! A timeline: what ran when, on streams and on the host, on one axis.
//!
//! A span on a stream is two timed events around what a closure enqueues, so the device itself says when the work ran; a span on the
//! host is two readings of its clock. An origin, recorded and waited for when the timeline is made, ties the two.

mod concurrency;
mod metrics;
mod svg;
mod trace;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

pub use concurrency::{Concurrency, concurrency_check};
pub use metrics::{LaneMetrics, Metrics};
pub use trace::{Span, Trace};

use crate::brand::StreamTag;
use crate::driver::nvtx;
use crate::error::{Error, Result};
use crate::lock;
use crate::runtime::device::Device;
use crate::runtime::event::EventCell;
use crate::runtime::stream::StreamOptions;
use crate::runtime::tally::Stall;
use crate::stream::Stream;

/// What a span's time is spent on; its colour in a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activity {
    /// A copy from the host to the device.
    Upload,
    /// A copy from the device to the host.
    Download,
    /// A copy within the device, or between devices.
    Copy,
    /// Kernels.
    Compute,
    /// Work of the host.
    Host,
    /// The host waits.
    Wait,
}

impl Activity {
    pub(crate) const ALL: [Self; 6] = [Self::Upload, Self::Compute, Self::Download, Self::Copy, Self::Host, Self::Wait];

    /// The activity in one lower-case word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Copy => "copy",
            Self::Compute => "compute",
            Self::Host => "host",
            Self::Wait => "wait",
        }
    }
}

/// Records labelled spans on streams and on the host, and aligns them on one axis. A handle; clones record the same timeline.
///
/// Recording waits for nothing. A span on a stream costs two event records and two short locks of host time (`benches/timeline.rs` says how
/// much); a thread of the timeline's own asks the device for the times. Until [`finish`](Timeline::finish), it keeps 40 bytes a span (80 while its list grows), its label once, and two events for each span that the device has
/// not finished; those events are used again.
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
/// let mut x = up.hand(x, &compute)?;
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
/// From when the stream reaches the first mark to when it reaches the second: the work between them, and any wait for another stream, or for a
/// copy engine that another stream uses. So enqueue waits ([`hand`](Stream::hand), [`wait`](Stream::wait)) outside of spans. Where the stream was idle, the span
/// begins when the mark arrives, some microseconds before the work does.
///
/// # Precision
///
/// Device times have the resolution of its timed events, about 0.5 us; they stay as precise over long runs, because every four seconds of
/// recording start from a mark of their own (the driver gives differences as 32-bit floating point milliseconds). Host and device are aligned to
/// [`Trace::alignment`], a few us; on the CPU device both are one clock.
#[derive(Clone)]
pub struct Timeline(Option<Arc<Inner>>);

/// A stream whose tag does not matter here.
type Untyped = Stream<()>;

struct Inner {
    device: Device,
    /// For origins alone.
    marks: Untyped,
    /// After how long a span brings a new base.
    rebase: Duration,
    /// Zero of the axis.
    origin: Instant,
    state: Mutex<State>,
    /// Held by whoever has spans in hand that are neither pending nor done.
    resolving: Mutex<()>,
    /// Wakes the thread that resolves spans aside: asking a GPU for two times takes longer than the rest of a span.
    wake: Option<SyncSender<()>>,
}

/// Timed events made in advance: two a span, until the first ones can be used again.
const EVENTS: usize = 1024;

/// Spans that are resolved at once, and after so many another batch is asked for.
const BATCH: usize = 64;

/// Pending spans from which on a new one resolves old ones itself, so that a thread that falls behind costs time and not memory.
const BEHIND: usize = 8192;

/// How long device times are taken from one base: up to 4096 ms, a 32-bit float resolves 0.25 us.
const REBASE: Duration = Duration::from_secs(4);

/// From this on, what the clocks of host and device differ by is drift; below, it is noise.
const LONG: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    events: Vec<EventCell>,
    lanes: Vec<Arc<str>>,
    streams: HashMap<u64, u32>,
    hosts: HashMap<Arc<str>, u32>,
    labels: HashSet<Arc<str>>,
    /// Marks that device times are differences to; the first is the origin.
    bases: Vec<Arc<Base>>,
    /// Spans that the device may not have finished, in the order in which they were enqueued.
    pending: VecDeque<Pending>,
    done: Vec<Done>,
    /// How far host and device may be off.
    alignment: Duration,
}

struct Base {
    mark: EventCell,
    /// Nanoseconds of device time after the origin, once that is known.
    at: OnceLock<i64>,
    enqueued: Instant,
}

/// What a span is before its times are known.
struct Started {
    lane: u32,
    base: u32,
    label: Arc<str>,
    start: EventCell,
    end: EventCell,
}

struct Pending {
    activity: Activity,
    span: Started,
}

/// A span whose times are known, in nanoseconds after the origin.
struct Done {
    lane: u32,
    activity: Activity,
    /// Whose clock: that of the device, if it is another than the host's.
    device_clock: bool,
    label: Arc<str>,
    start: i64,
    end: i64,
}

const _: () = assert!(size_of::<Done>() == 40, "what the documentation says a span takes");

impl Timeline {
    /// A timeline of `device` and of the host; the axis begins now. Waits for the device to pass some marks and makes its events: about a
    /// millisecond.
    ///
    /// # Errors
    /// The device has failed.
    pub fn new(device: Device) -> Result<Self> {
        Self::with(device, REBASE)
    }

    fn with(device: Device, rebase: Duration) -> Result<Self> {
        let marks = Untyped::of(device.take_stream(StreamOptions::default())?);
        let (origin, state) = (Instant::now(), Mutex::default());
        let mut inner = Inner { device, marks, rebase, origin, state, resolving: Mutex::new(()), wake: None };
        let origin = inner.mark()?;
        let events = (0..EVENTS).map(|_| EventCell::new(device, true)).collect::<Result<_>>()?;
        inner.origin = origin.at;
        inner.state = Mutex::new(State {
            events,
            bases: vec![Arc::new(Base { mark: origin.cell, at: OnceLock::from(0), enqueued: origin.at })],
            alignment: origin.error,
            ..State::default()
        });
        Ok(Self(Some(Arc::new_cyclic(|this| {
            inner.wake = resolver(this.clone());
            inner
        }))))
    }

    /// A timeline that records nothing: every method just runs `f`.
    pub fn off() -> Self {
        Self(None)
    }

    /// Whether it records.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Runs `f`, which enqueues on `stream`: what it enqueued is one span on the stream's lane. Waits for nothing.
    ///
    /// Where `f` fails, nothing is recorded.
    ///
    /// # Errors
    /// Those of `f`; the stream is of another device than the timeline; the device has failed.
    pub fn span<S: StreamTag, T>(
        &self,
        stream: &Stream<S>,
        activity: Activity,
        label: &str,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(inner) = &self.0 else { return f() };
        let untyped = Untyped::of(stream.inner());
        let span = inner.begin(untyped, std::any::type_name::<S>, label)?;
        let value = {
            let _range = nvtx::range(label);
            inner.record(untyped, &span.start)?;
            f()
        };
        match value {
            Ok(value) => {
                inner.record(untyped, &span.end)?;
                let mut state = lock(&inner.state);
                state.pending.push_back(Pending { activity, span });
                let enough = state.pending.len().is_multiple_of(BATCH);
                drop(state);
                if let Some(wake) = inner.wake.as_ref().filter(|_| enough) {
                    let _ = wake.try_send(()); // full: it is awake
                }
                Ok(value)
            }
            Err(error) => {
                lock(&inner.state).events.extend([span.start, span.end]);
                Err(error)
            }
        }
    }

    /// Runs `f` on the host: a span on lane `lane`.
    pub fn host<T>(&self, lane: &str, label: &str, f: impl FnOnce() -> T) -> T {
        self.on_host(lane, Activity::Host, label, f)
    }

    /// Runs `f`, which makes the host wait: a span of waiting on lane `lane`.
    pub fn wait<T>(&self, lane: &str, label: &str, f: impl FnOnce() -> T) -> T {
        self.on_host(lane, Activity::Wait, label, f)
    }

    fn on_host<T>(&self, lane: &str, activity: Activity, label: &str, f: impl FnOnce() -> T) -> T {
        let Some(inner) = &self.0 else { return f() };
        let start = inner.now();
        let value = {
            let _range = nvtx::range(label);
            f()
        };
        let end = inner.now();
        let mut state = lock(&inner.state);
        let lane = state.host_lane(lane);
        let label = state.label(label);
        state.done.push(Done { lane, activity, device_clock: false, label, start, end });
        value
    }

    /// Names the lane of a stream. Without, it is the last segment of the tag's name, or `stream 7` for streams without a tag.
    ///
    /// Where another lane has the name already, the stream's number is added.
    pub fn name<S: StreamTag>(&self, stream: &Stream<S>, name: &str) {
        let Some(inner) = &self.0 else { return };
        lock(&inner.state).rename(stream.serial(), name);
    }

    /// Waits on the host until every span is complete, and returns those recorded since the last call; the axis goes on.
    ///
    /// Spans that other threads are still enqueueing belong to the next call.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn finish(&self) -> Result<Trace> {
        let Some(inner) = &self.0 else { return Ok(Trace::default()) };
        let _stall = inner.device.stall(Stall::Synchronize);
        inner.finish()
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("Timeline(off)"),
            Some(inner) => f.debug_tuple("Timeline").field(&inner.device).finish(),
        }
    }
}

/// A moment that both clocks know.
struct Mark {
    cell: EventCell,
    at: Instant,
    error: Duration,
}

impl Inner {
    /// Records a mark and waits for it: the device reached it between the two readings of the host's clock around that.
    fn mark(&self) -> Result<Mark> {
        let mut best: Option<Mark> = None;
        for _ in 0..8 {
            let cell = EventCell::new(self.device, true)?;
            let before = Instant::now();
            self.record(self.marks, &cell)?;
            self.device.seen(cell.handle().synchronize())?;
            let window = before.elapsed();
            let mark = match cell.handle().reached() {
                Some(at) => Mark { cell, at, error: Duration::ZERO },
                None => Mark { cell, at: before + window / 2, error: window / 2 },
            };
            if best.as_ref().is_none_or(|b| mark.error < b.error) {
                best = Some(mark);
            }
        }
        match best {
            Some(mark) => Ok(mark),
            None => unreachable!("eight attempts"),
        }
    }

    fn record(&self, stream: Untyped, cell: &EventCell) -> Result<()> {
        self.device.usable()?;
        self.device.seen(stream.handle().record(cell.handle()))
    }

    fn now(&self) -> i64 {
        nanoseconds(self.origin.elapsed())
    }

    /// What a span needs: its lane, base, label and events.
    fn begin(&self, stream: Untyped, tag: fn() -> &'static str, label: &str) -> Result<Started> {
        if stream.device() != self.device {
            let resource = format!("a timeline of {}", self.device);
            return Err(Error::DeviceMismatch { resource, stream: stream.device().to_string() });
        }
        let mut state = lock(&self.state);
        if state.events.len() < 2 && (self.wake.is_none() || state.pending.len() >= BEHIND) {
            self.resolve(&mut state, 2)?;
        }
        let lane = state.stream_lane(stream.serial(), || lane_name(tag(), stream.serial()));
        let label = state.label(label);
        let pair = state.events.pop().zip(state.events.pop());
        let mut base = state.bases.len() as u32 - 1; // the origin is always there
        let old = state.bases[base as usize].enqueued.elapsed() > self.rebase;
        drop(state);
        // Outside the lock, which other threads' spans want.
        let (start, end) = match pair {
            Some(pair) => pair,
            None => (EventCell::new(self.device, true)?, EventCell::new(self.device, true)?),
        };
        if old {
            let mark = EventCell::new(self.device, true)?;
            self.record(stream, &mark)?;
            let mut state = lock(&self.state);
            base = state.bases.len() as u32;
            state.bases.push(Arc::new(Base { mark, at: OnceLock::new(), enqueued: Instant::now() }));
        }
        Ok(Started { lane, base, label, start, end })
    }

    /// Takes the times of spans that the device has finished, outside the lock that new spans want, until few are left.
    fn resolve_aside(&self) {
        let _resolving = lock(&self.resolving);
        loop {
            let (mut batch, bases) = {
                let mut state = lock(&self.state);
                let all = state.pending.len();
                if all < BATCH {
                    return;
                }
                (state.pending.drain(..BATCH).collect::<VecDeque<_>>(), state.bases.clone())
            };
            let mut times = Vec::with_capacity(BATCH);
            // An error is met again by whoever waits for the span.
            while let Some(Ok(Some(known))) = batch.get(times.len()).map(|p| self.times(&p.span, &bases)) {
                times.push(known);
            }
            let mut state = lock(&self.state);
            let stuck = times.len() < batch.len();
            for (Pending { activity, span }, known) in batch.drain(..times.len()).zip(times) {
                state.settle(activity, span, known);
            }
            batch.into_iter().rev().for_each(|p| state.pending.push_front(p));
            if stuck {
                return;
            }
        }
    }

    /// Takes the times of up to `limit` spans that the device has finished. Does not wait.
    fn resolve(&self, state: &mut State, limit: usize) -> Result<()> {
        for _ in 0..limit {
            let Some(Pending { activity, span }) = state.pending.pop_front() else { break };
            match self.times(&span, &state.bases)? {
                Some(known) => state.settle(activity, span, known),
                None => {
                    state.pending.push_front(Pending { activity, span });
                    break;
                }
            }
        }
        Ok(())
    }

    /// Start and end, and whether they are of a clock other than the host's; `None` while the device has not finished.
    fn times(&self, span: &Started, bases: &[Arc<Base>]) -> Result<Option<(bool, i64, i64)>> {
        if let Some((start, end)) = span.start.handle().reached().zip(span.end.handle().reached()) {
            let since = |at: Instant| nanoseconds(at.saturating_duration_since(self.origin));
            return Ok(Some((false, since(start), since(end))));
        }
        let Some(base) = self.base_time(span.base as usize, bases)? else { return Ok(None) };
        let Some(start) = self.between(&bases[span.base as usize].mark, &span.start)? else { return Ok(None) };
        let length = self.between(&span.start, &span.end)?;
        Ok(length.map(|length| (true, base + start, base + start + length)))
    }

    /// Device time of a base, by way of those before it.
    fn base_time(&self, base: usize, bases: &[Arc<Base>]) -> Result<Option<i64>> {
        let known = bases[..=base].iter().rposition(|b| b.at.get().is_some()).unwrap_or(0);
        for i in known..base {
            let step = self.between(&bases[i].mark, &bases[i + 1].mark)?;
            let Some((at, step)) = bases[i].at.get().zip(step) else { return Ok(None) };
            bases[i + 1].at.get_or_init(|| at + step);
        }
        Ok(bases[base].at.get().copied())
    }

    /// Signed nanoseconds from one event to the other; `None` while one is not complete.
    fn between(&self, from: &EventCell, to: &EventCell) -> Result<Option<i64>> {
        let forth = self.device.seen(to.handle().since(from.handle()))?;
        if forth != Some(Duration::ZERO) {
            return Ok(forth.map(nanoseconds));
        }
        // Negative times come as zero.
        Ok(self.device.seen(from.handle().since(to.handle()))?.map(|back| -nanoseconds(back)))
    }

    fn finish(&self) -> Result<Trace> {
        let _resolving = lock(&self.resolving);
        let (pending, bases) = {
            let mut state = lock(&self.state);
            (std::mem::take(&mut state.pending), state.bases.clone())
        };
        let marks = bases.iter().map(|base| &base.mark);
        for event in marks.chain(pending.iter().map(|p| &p.span.end)) {
            self.device.usable()?;
            self.device.seen(event.handle().synchronize())?;
        }
        let rate = self.rate(&bases)?;

        let mut state = lock(&self.state);
        let all = pending.len();
        let newer = std::mem::replace(&mut state.pending, pending);
        self.resolve(&mut state, all)?;
        state.pending.extend(newer);
        state.labels.clear();
        let done = std::mem::take(&mut state.done);
        let spans = done.into_iter().map(|span| {
            let on_axis = |at: i64| {
                let at = if span.device_clock { (at as f64 * rate) as i64 } else { at };
                Duration::from_nanos(at.max(0) as u64)
            };
            Span {
                lane: state.lanes[span.lane as usize].clone(),
                label: span.label,
                activity: span.activity,
                start: on_axis(span.start),
                end: on_axis(span.end.max(span.start)),
            }
        });
        Ok(Trace::new(spans.collect(), format!("{}: {}", self.device, self.device.name()), state.alignment))
    }

    /// Host time per device time: the clocks of a long run drift apart.
    fn rate(&self, bases: &[Arc<Base>]) -> Result<f64> {
        let last = bases.len() - 1;
        let mark = self.mark()?;
        let host = mark.at.saturating_duration_since(self.origin);
        if mark.error.is_zero() || host < LONG {
            return Ok(1.0);
        }
        let at = self.base_time(last, bases)?.zip(self.between(&bases[last].mark, &mark.cell)?);
        Ok(match at {
            Some((base, rest)) if base + rest > 0 => nanoseconds(host) as f64 / (base + rest) as f64,
            _ => 1.0,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.device.park(self.marks.inner());
    }
}

/// Starts a thread that resolves spans when woken, until the timeline is gone. Without it spans are resolved by new ones.
fn resolver(timeline: Weak<Inner>) -> Option<SyncSender<()>> {
    let (wake, woken) = sync_channel(1);
    let resolve = move || {
        while woken.recv().is_ok() {
            let Some(inner) = timeline.upgrade() else { break };
            inner.resolve_aside();
        }
    };
    std::thread::Builder::new().name("thalweg timeline".into()).spawn(resolve).ok().map(|_| wake)
}

impl State {
    /// The times of a span are known, and its events free.
    fn settle(&mut self, activity: Activity, span: Started, (device_clock, start, end): (bool, i64, i64)) {
        self.events.extend([span.start, span.end]);
        self.done.push(Done { lane: span.lane, activity, device_clock, label: span.label, start, end });
    }

    fn stream_lane(&mut self, serial: u64, name: impl FnOnce() -> String) -> u32 {
        if let Some(&lane) = self.streams.get(&serial) {
            return lane;
        }
        let name = self.unused(name(), serial);
        let lane = self.add(name);
        self.streams.insert(serial, lane);
        lane
    }

    fn host_lane(&mut self, name: &str) -> u32 {
        if let Some(&lane) = self.hosts.get(name) {
            return lane;
        }
        let unused = self.unused(name.to_owned(), "host");
        let lane = self.add(unused);
        self.hosts.insert(name.into(), lane);
        lane
    }

    fn rename(&mut self, serial: u64, name: &str) {
        let lane = self.stream_lane(serial, || name.to_owned()) as usize;
        if *self.lanes[lane] != *name {
            self.lanes[lane] = "".into(); // its own old name is in nobody's way
            self.lanes[lane] = self.unused(name.to_owned(), serial);
        }
    }

    /// The name, with a note where another lane has it.
    fn unused(&self, name: String, note: impl fmt::Display) -> Arc<str> {
        let taken = self.lanes.iter().any(|lane| **lane == *name);
        if taken { format!("{name} ({note})").into() } else { name.into() }
    }

    fn add(&mut self, name: Arc<str>) -> u32 {
        self.lanes.push(name);
        self.lanes.len() as u32 - 1
    }

    /// One copy of each label, however many spans have it.
    fn label(&mut self, label: &str) -> Arc<str> {
        if let Some(label) = self.labels.get(label) {
            return label.clone();
        }
        let label: Arc<str> = label.into();
        self.labels.insert(label.clone());
        label
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// What to call a stream of this tag: the last segments of the names in its type's path.
fn lane_name(tag: &str, serial: u64) -> String {
    if tag.starts_with(concat!(env!("CARGO_CRATE_NAME"), "::lane::")) {
        return format!("stream {serial}");
    }
    let paths = tag.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | ':' | '{' | '}' | '#')));
    let words = paths.filter_map(|path| path.rsplit("::").next()).filter(|word| !matches!(*word, "" | "Within"));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_same_by_way_of_any_bases() {
        for device in Device::all() {
            let timeline = Timeline::with(device, Duration::ZERO).unwrap();
            let Some(inner) = &timeline.0 else { unreachable!("it is on") };
            let stream = inner.marks;
            const SPANS: usize = 100;
            for _ in 0..SPANS {
                let span = inner.begin(stream, || "tag", "span").unwrap();
                inner.record(stream, &span.start).unwrap();
                inner.record(stream, &span.end).unwrap();
                lock(&inner.state).pending.push_back(Pending { activity: Activity::Compute, span });
            }
            inner.device.seen(stream.handle().synchronize()).unwrap();
            let state = lock(&inner.state);
            assert_eq!(state.bases.len(), 1 + SPANS, "each span brought a base");
            // Device time by way of all bases, and from the origin in one step, which a short run permits.
            for (i, Pending { span, .. }) in state.pending.iter().enumerate() {
                let base = inner.base_time(i + 1, &state.bases).unwrap().unwrap();
                let rest = inner.between(&state.bases[i + 1].mark, &span.start).unwrap().unwrap();
                let direct = inner.between(&state.bases[0].mark, &span.start).unwrap().unwrap();
                // Each step of a GPU's clock is rounded.
                assert!((base + rest - direct).abs() <= 1000 * (i as i64 + 2), "{device}: {base} + {rest}, {direct}");
                let back = inner.between(&span.start, &state.bases[0].mark).unwrap().unwrap();
                assert_eq!(back, -direct);
            }
            drop(state);
            let trace = timeline.finish().unwrap();
            assert_eq!(trace.spans().len(), SPANS);
            assert!(trace.spans().windows(2).all(|w| w[0].end <= w[1].start + Duration::from_micros(2)));
        }
    }

    #[test]
    fn lanes_are_called_as_their_tags() {
        assert_eq!(lane_name("demo::main::Upload", 3), "Upload");
        assert_eq!(lane_name("demo::main::{{closure}}::Upload", 3), "Upload");
        assert_eq!(lane_name("thalweg::brand::Within<demo::Left, demo::Upload>", 3), "Left Upload");
        assert_eq!(lane_name(std::any::type_name::<crate::Lane<'_>>(), 7), "stream 7");
        assert_eq!(lane_name(std::any::type_name::<crate::PerThread<'_>>(), 7), "stream 7");
    }
}
