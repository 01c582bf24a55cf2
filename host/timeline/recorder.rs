//! The spans of a timeline while it records, and the thread that asks the device for their times.
//!
//! A span is pending until the device has finished it. Then it is done: its times are known, and
//! its events are free for other spans.

use std::collections::VecDeque;
use std::panic::Location;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::activity::Activity;
use super::clock::{Base, Clock, Times, Untyped};
use super::names::{self, Labels, Tracks};
use super::trace::{Span, Trace};
use crate::cupti;
use crate::driver::beside_captures;
use crate::driver::work_log::{self, WorkKind};
use crate::error::{Error, Result};
use crate::lock;
use crate::runtime::device::{Device, DeviceKind};
use crate::runtime::event::EventCell;

/// Timed events that are made in advance. A span takes two, until the first ones are free again.
const EVENTS: usize = 1024;

/// The number of spans that are resolved at once. Each time so many more are pending, the thread is
/// woken.
const BATCH: usize = 64;

/// From this number of pending spans on, a new span that finds no free events resolves old spans
/// itself. So a thread that falls behind costs time and not memory.
const BEHIND: usize = 8192;

/// The time for which device times are measured from one base. Up to 4096 ms, a 32-bit float
/// resolves 0.25 us.
const REBASE: Duration = Duration::from_secs(4);

/// Records spans on streams of one device and on the host.
pub(super) struct Recorder {
    clock: Clock,
    /// The greatest age of a base when a span begins. Beyond that, the span brings a new one.
    rebase: Duration,
    state: Mutex<State>,
    /// Held while spans are neither pending nor done.
    resolving: Mutex<()>,
    /// Wakes the thread that resolves spans. A thread of its own does this, because asking a GPU
    /// for two times takes longer than everything else in a span.
    wake: Option<SyncSender<()>>,
    /// Whether the timeline also has the work that nobody wrapped.
    all_work: bool,
}

#[derive(Default)]
struct State {
    events: Vec<EventCell>,
    tracks: Tracks,
    labels: Labels,
    /// The bases that device times are measured from. The first one is the origin.
    bases: Vec<Arc<Base>>,
    /// Spans that the device may not have finished, in the order in which they were enqueued.
    pending: VecDeque<Pending>,
    done: Vec<Done>,
}

/// A span that has begun, before its times are known.
pub(super) struct Started {
    track: u32,
    base: u32,
    label: Arc<str>,
    line: &'static Location<'static>,
    start: EventCell,
    end: EventCell,
}

struct Pending {
    activity: Activity,
    span: Started,
}

/// A span whose times are known, in nanoseconds after the origin.
struct Done {
    track: u32,
    activity: Activity,
    /// Whether a device clock that differs from the host's clock measured the times.
    device_clock: bool,
    label: Arc<str>,
    line: Option<&'static Location<'static>>,
    start: i64,
    end: i64,
}

const _: () = assert!(size_of::<Done>() == 48, "the documentation of `Timeline` states this size");

impl Recorder {
    pub(super) fn new(device: Device, all_work: bool) -> Result<Arc<Self>> {
        Self::with(device, REBASE, all_work)
    }

    fn with(device: Device, rebase: Duration, all_work: bool) -> Result<Arc<Self>> {
        let (clock, origin) = Clock::start(device)?;
        let events = (0..EVENTS).map(|_| clock.event()).collect::<Result<_>>()?;
        let state = Mutex::new(State { events, bases: vec![Arc::new(origin)], ..State::default() });
        let resolving = Mutex::new(());
        Ok(Arc::new_cyclic(|this| Self { clock, rebase, state, resolving, wake: resolver(this.clone()), all_work }))
    }

    pub(super) fn device(&self) -> Device {
        self.clock.device()
    }

    /// Host time on the axis, in nanoseconds.
    pub(super) fn now(&self) -> i64 {
        self.clock.now()
    }

    /// Begins a span: finds its track, base, label and events.
    #[track_caller]
    pub(super) fn begin(&self, stream: Untyped, tag: fn() -> &'static str, label: &str) -> Result<Started> {
        let device = self.device();
        if stream.device() != device {
            let resource = format!("a timeline of {device}");
            return Err(Error::DeviceMismatch { resource, stream: stream.device().to_string() });
        }
        let mut state = lock(&self.state);
        if state.events.len() < 2 && (self.wake.is_none() || state.pending.len() >= BEHIND) {
            self.resolve(&mut state, 2)?;
        }
        let track = state.tracks.stream(stream.unique_id(), || names::of_stream(tag(), stream.unique_id()));
        self.log_of(&mut state, stream, track);
        let label = state.labels.get(label);
        let pair = state.events.pop().zip(state.events.pop());
        let mut base = state.bases.len() as u32 - 1; // the origin is always there
        let old = state.bases[base as usize].age() > self.rebase;
        drop(state);
        // Make events and the base without the lock, because spans of other threads need it.
        let (start, end) = match pair {
            Some(pair) => pair,
            None => (self.clock.event()?, self.clock.event()?),
        };
        if old {
            let mark = self.clock.base(stream)?;
            let mut state = lock(&self.state);
            base = state.bases.len() as u32;
            state.bases.push(Arc::new(mark));
        }
        Ok(Started { track, base, label, line: Location::caller(), start, end })
    }

    /// Records the start of a span.
    pub(super) fn start(&self, stream: Untyped, span: &Started) -> Result<()> {
        self.clock.record(stream, &span.start)
    }

    /// Records the end of a span, which is pending from now on.
    pub(super) fn end(&self, stream: Untyped, activity: Activity, span: Started) -> Result<()> {
        self.clock.record(stream, &span.end)?;
        let mut state = lock(&self.state);
        state.pending.push_back(Pending { activity, span });
        let enough = state.pending.len().is_multiple_of(BATCH);
        drop(state);
        if let Some(wake) = self.wake.as_ref().filter(|_| enough) {
            let _ = wake.try_send(()); // if the channel is full, the thread has been woken already
        }
        Ok(())
    }

    /// Forgets a span whose work failed, and frees its events.
    pub(super) fn cancel(&self, span: Started) {
        lock(&self.state).events.extend([span.start, span.end]);
    }

    /// Adds a span of the host.
    #[track_caller]
    pub(super) fn host(&self, track: &str, activity: Activity, label: &str, start: i64, end: i64) {
        let mut state = lock(&self.state);
        let track = state.tracks.host(track);
        let label = state.labels.get(label);
        let line = Some(Location::caller());
        state.done.push(Done { track, activity, device_clock: false, label, line, start, end });
    }

    /// Names the track of a stream, also for its work without a span.
    pub(super) fn name(&self, stream: Untyped, name: &str) {
        let mut state = lock(&self.state);
        let track = state.tracks.rename(stream.unique_id(), name);
        self.log_of(&mut state, stream, track);
    }

    /// Takes the times of spans that the device has finished, until fewer than a batch are pending.
    /// It asks the device without the lock, because new spans need it.
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
            // An error ends this pass. Whoever waits for the span meets it again.
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

    /// The times of a span. `None` while the device has not finished.
    fn times(&self, span: &Started, bases: &[Arc<Base>]) -> Result<Option<Times>> {
        self.clock.times(&span.start, &span.end, span.base as usize, bases)
    }

    /// Waits on the host until every pending span is complete, and takes all spans.
    pub(super) fn finish(&self) -> Result<Trace> {
        // Before the lock: its holder may wait for the host function that this call is made in.
        self.device().ensure_usable()?;
        let _resolving = lock(&self.resolving);
        let (pending, bases) = {
            let mut state = lock(&self.state);
            (std::mem::take(&mut state.pending), state.bases.clone())
        };
        let waited = (bases.iter().try_for_each(|base| base.synchronize(&self.clock)))
            .and_then(|()| pending.iter().try_for_each(|p| self.clock.synchronize(&p.span.end)))
            .and_then(|()| self.clock.rate(&bases));

        // The spans go back before an error is returned, so that a later call finds them.
        let mut state = lock(&self.state);
        let all = pending.len();
        let newer = std::mem::replace(&mut state.pending, pending);
        let resolved = waited.and_then(|rate| self.resolve(&mut state, all).map(|()| rate));
        state.pending.extend(newer);
        let rate = resolved?;
        if self.all_work {
            self.take_work(&mut state)?;
        }
        state.labels.clear();
        let done = std::mem::take(&mut state.done);
        let spans = done.into_iter().map(|span| {
            let on_axis = |at: i64| {
                let at = if span.device_clock { (at as f64 * rate) as i64 } else { at };
                Duration::from_nanos(at.max(0) as u64)
            };
            Span {
                track: state.tracks.name(span.track),
                label: span.label,
                activity: span.activity,
                start: on_axis(span.start),
                end: on_axis(span.end.max(span.start)),
                line: span.line,
            }
        });
        let device = self.device();
        Ok(Trace::new(spans.collect(), format!("{device}: {}", device.name()), self.clock.alignment()))
    }
}

/// The log of what a device does. The handles of a timeline have it, and the thread that resolves
/// spans does not, so it ends with the last handle.
pub(super) struct AllWork(Device);

impl AllWork {
    pub(super) fn start(device: Device) -> Result<Self> {
        if !work_log::start(device.number_in_log()) {
            return Err(Error::Parameter {
                name: "timelines with all work",
                given: "more than one at a time".into(),
                expected: "one in a process".into(),
            });
        }
        if device.kind() == DeviceKind::Cuda {
            cupti::start().inspect_err(|_| work_log::stop())?;
        }
        Ok(Self(device))
    }
}

impl Drop for AllWork {
    fn drop(&mut self) {
        if self.0.kind() == DeviceKind::Cuda {
            cupti::stop();
        }
        work_log::stop();
    }
}

fn number_in_log(stream: Untyped) -> Option<u64> {
    stream.handle().queue_in_log().or_else(|| cupti::stream(stream.raw()?))
}

impl Recorder {
    /// Puts the work of a stream that nobody wraps on its track.
    fn log_of(&self, state: &mut State, stream: Untyped, track: u32) {
        if self.all_work
            && stream.device() == self.device()
            && let Some(number) = number_in_log(stream)
        {
            state.tracks.logged(number, track);
        }
    }

    /// Takes the work that the device has done, with and without spans.
    fn take_work(&self, state: &mut State) -> Result<()> {
        if self.device().kind() == DeviceKind::Cuda {
            cupti::flush()?;
        }
        for work in work_log::take() {
            let Some((start, end)) = self.clock.at(work.start).zip(self.clock.at(work.end)) else { continue };
            let activity = match work.kind {
                WorkKind::Kernel | WorkKind::Fill => Activity::Compute,
                WorkKind::Upload => Activity::Upload,
                WorkKind::Download => Activity::Download,
                WorkKind::Copy => Activity::Copy,
            };
            let (track, label) = (state.tracks.of_log(work.stream), state.labels.get(&work.label));
            state.done.push(Done { track, activity, device_clock: false, label, line: None, start, end });
        }
        Ok(())
    }
}

impl State {
    /// Keeps the known times of a span, and frees its events.
    fn settle(&mut self, activity: Activity, span: Started, Times { device_clock, start, end }: Times) {
        let Started { track, label, line, start: first, end: last, .. } = span;
        self.events.extend([first, last]);
        self.done.push(Done { track, activity, device_clock, label, line: Some(line), start, end });
    }
}

/// Starts a thread that resolves spans when it is woken, until the timeline is gone. If no thread
/// can be started, new spans resolve old ones.
fn resolver(timeline: Weak<Recorder>) -> Option<SyncSender<()>> {
    let (wake, woken) = sync_channel(1);
    let resolve = move || {
        while woken.recv().is_ok() {
            let Some(recorder) = timeline.upgrade() else { break };
            recorder.resolve_aside();
        }
    };
    std::thread::Builder::new().name("thalweg timeline".into()).spawn(|| beside_captures(resolve)).ok().map(|_| wake)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::stream::StreamOptions;

    #[test]
    fn spans_keep_their_order_over_many_bases() {
        for device in Device::all() {
            let recorder = Recorder::with(device, Duration::ZERO, false).unwrap();
            let stream = Untyped::of(device.take_stream(StreamOptions::default()).unwrap());
            const SPANS: usize = 100;
            for _ in 0..SPANS {
                let span = recorder.begin(stream, || "tag", "span").unwrap();
                recorder.start(stream, &span).unwrap();
                recorder.end(stream, Activity::Compute, span).unwrap();
            }
            assert_eq!(lock(&recorder.state).bases.len(), 1 + SPANS, "each span brings a base");
            let trace = recorder.finish().unwrap();
            assert_eq!(trace.spans().len(), SPANS);
            assert!(trace.spans().windows(2).all(|w| w[0].end <= w[1].start + Duration::from_micros(2)));
            device.recycle_stream(stream.inner());
        }
    }
}
