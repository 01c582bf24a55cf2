//! Metrics of the times of a trace.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::activity::Activity;
use super::trace::{Span, Trace};

/// The utilization of one track.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TrackMetrics {
    /// The track's name.
    pub track: Arc<str>,
    /// Time during which at least one of its spans ran.
    pub busy: Duration,
    /// `busy` divided by the wall time: 0 to 1.
    pub utilization: f64,
}

/// Metrics of the times of a trace: how busy each track is, what overlaps, and how long the host
/// waits.
///
/// If the trace has what the device itself reported
/// ([`Timeline::with_all_work`](super::Timeline::with_all_work)), then `overlap`, `gpu_idle` and
/// the advice are of that. Otherwise they are of the spans, each of which counts as a whole.
///
/// Where spans of a track overlap, their time counts once, so nested spans change nothing. The
/// ratios of an empty trace are 0.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// The time from the first start to the last end.
    pub wall: Duration,
    /// The tracks of streams, then those of the host. Tracks that only wait are left out.
    pub tracks: Vec<TrackMetrics>,
    /// The time during which copies and kernels ran together, divided by the time of copies or that
    /// of kernels, whichever is smaller. It is 0 if they take turns, and 1 if the smaller one is
    /// hidden.
    pub overlap: f64,
    /// Time during which neither a copy nor a kernel ran.
    pub gpu_idle: Duration,
    /// Time during which at least one thread of the host waited. It counts once where several wait,
    /// so it is at most `wall`.
    pub host_wait: Duration,
    /// The average number of busy tracks, without waits: the sum of their busy times, divided by
    /// the wall time. It is 1 if exactly one track is always busy, and n if n tracks are always
    /// full. It is not a speed-up, because the same work may take longer when more of it runs at
    /// once. [`speedup_over`](Metrics::speedup_over) compares with a serial run.
    pub concurrency: f64,
    /// The time during which exactly so many streams had a copy or a kernel running, from none on:
    /// together they are `wall`.
    pub streams_busy: Vec<Duration>,
    /// One sentence about the limit of the speed.
    pub advice: String,
}

/// Time during which at least one of the spans runs.
pub(super) fn covered<'t>(spans: impl Iterator<Item = &'t Span>) -> Duration {
    length(&union(spans))
}

/// The start and the end.
pub(super) type Interval = (Duration, Duration);

pub(super) fn length(intervals: &[Interval]) -> Duration {
    intervals.iter().map(|(start, end)| *end - *start).sum()
}

/// The times that the spans cover, as disjoint intervals in order. The spans must come in order of
/// their starts.
pub(super) fn union<'t>(spans: impl Iterator<Item = &'t Span>) -> Vec<Interval> {
    let mut all: Vec<Interval> = Vec::new();
    for span in spans.filter(|span| span.end > span.start) {
        match all.last_mut() {
            Some((_, end)) if span.start <= *end => *end = span.end.max(*end),
            _ => all.push((span.start, span.end)),
        }
    }
    all
}

/// Returns the time in which intervals of both lists run together.
pub(super) fn common(mut a: &[Interval], mut b: &[Interval]) -> Duration {
    let mut both = Duration::ZERO;
    while let (Some(x), Some(y)) = (a.first(), b.first()) {
        both += x.1.min(y.1).saturating_sub(x.0.max(y.0));
        if x.1 < y.1 { a = &a[1..] } else { b = &b[1..] }
    }
    both
}

pub(super) fn ratio(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

impl Trace {
    /// Computes what the times say about overlap, idle time and waiting.
    pub fn metrics(&self) -> Metrics {
        of(self)
    }
}

fn of(trace: &Trace) -> Metrics {
    use Activity::{Compute, Copy, Download, Host, Upload, Wait};

    let (start, end) = trace.extent();
    let wall = end - start;
    // A span around a copy and a kernel is one of both, so what the device reports counts instead.
    let of_device = |span: &Span| !matches!(span.activity, Host | Wait);
    let reported = trace.spans().iter().any(|span| span.line.is_none() && of_device(span));
    let counts = |span: &&Span| !reported || span.line.is_none() || !of_device(span);
    let all_of =
        |which: &[Activity]| union(trace.spans().iter().filter(|span| which.contains(&span.activity)).filter(counts));
    let (copies, kernels) = (all_of(&[Upload, Download, Copy]), all_of(&[Compute]));
    let gpu_idle = wall - length(&all_of(&[Upload, Download, Copy, Compute]));
    let smaller = length(&copies).min(length(&kernels));
    let overlap = ratio(common(&copies, &kernels), smaller);

    let host_wait = length(&all_of(&[Wait]));

    let (mut tracks, mut work, mut edges) = (Vec::new(), Duration::ZERO, Vec::new());
    let (host, streams): (Vec<_>, Vec<_>) = trace.tracks().into_iter().partition(|track| track.host);
    for track in streams.into_iter().chain(host) {
        let spans = || track.spans.iter().map(|(_, span)| *span);
        if spans().any(|span| span.activity != Wait) {
            let busy = covered(spans().filter(|span| span.activity != Wait));
            work = work.saturating_add(busy);
            let on_device = union(spans().filter(|span| !matches!(span.activity, Host | Wait)));
            edges.extend(on_device.into_iter().flat_map(|(start, end)| [(start, true), (end, false)]));
            tracks.push(TrackMetrics { track: track.name.into(), busy, utilization: ratio(busy, wall) });
        }
    }

    let stages = [Upload, Compute, Download, Copy, Host].map(|stage| (stage, ratio(length(&all_of(&[stage])), wall)));
    let exposed = ratio(smaller, wall) * (1.0 - overlap);
    let advice = advise(stages, ratio(gpu_idle, wall), ratio(host_wait, wall), overlap, exposed);
    let (concurrency, streams_busy) = (ratio(work, wall), at_once(edges, (start, end)));
    Metrics { wall, tracks, overlap, gpu_idle, host_wait, concurrency, streams_busy, advice }
}

/// Returns how long exactly so many intervals ran at once, from their edges: where each starts
/// (`true`) and ends.
fn at_once(mut edges: Vec<(Duration, bool)>, (start, end): Interval) -> Vec<Duration> {
    edges.sort_unstable(); // of one time, what ends comes before what starts
    let (mut times, mut busy, mut at) = (vec![Duration::ZERO], 0, start);
    for (time, starts) in edges {
        times[busy] += time - at;
        (busy, at) = (if starts { busy + 1 } else { busy - 1 }, time);
        times.resize(times.len().max(busy + 1), Duration::ZERO);
    }
    times[0] += end - at;
    times
}

/// Says what limits the speed: a stage that is nearly always busy, or the reason why no stage is.
/// `exposed` is the share of the time that more overlap of copies and kernels could save.
fn advise(stages: [(Activity, f64); 5], idle: f64, wait: f64, overlap: f64, exposed: f64) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let (stage, share) = stages.into_iter().fold((Activity::Host, 0.0), |a, b| if b.1 > a.1 { b } else { a });
    if share == 0.0 {
        return "nothing to improve: no work was recorded".into();
    }
    let (bound, what) = match stage {
        Activity::Upload => ("upload-bound", "copies to the device fill"),
        Activity::Download => ("download-bound", "copies to the host fill"),
        Activity::Copy => ("copy-bound", "copies on the device fill"),
        Activity::Compute => ("compute-bound", "kernels fill"),
        Activity::Host | Activity::Wait => ("host-bound", "the host's own work fills"),
    };
    let full = percent(share);
    if share >= 0.9 {
        format!("{bound}: {what} {full} of the time")
    } else if exposed >= 0.1 && overlap < 0.5 {
        let hidden = percent(overlap);
        format!(
            "copies and kernels take turns, and only {hidden} of the shorter work is hidden: give each a stream of its own and enqueue ahead"
        )
    } else if wait >= 0.25 && idle >= 0.1 {
        let (wait, idle) = (percent(wait), percent(idle));
        format!("the host waits {wait} of the time and the device idles {idle}: hand over by events, or wait later")
    } else if idle >= 0.25 {
        format!("the device idles {} of the time: the host enqueues too late or too little", percent(idle))
    } else {
        format!("no stage is always busy; improve the fullest one next: {what} {full} of the time")
    }
}

impl Metrics {
    /// Computes how many times as fast this run was as a serial run of the same work. The caller
    /// measured that the serial run took `serial`. The result is 0 for an empty trace.
    ///
    /// ```
    /// use std::time::Duration;
    /// use thalweg::{Activity, Span, Trace};
    ///
    /// let span = |track: &str, activity, start, end| Span {
    ///     track: track.into(),
    ///     label: "".into(),
    ///     activity,
    ///     start: Duration::from_millis(start),
    ///     end: Duration::from_millis(end),
    ///     line: None,
    /// };
    /// let trace: Trace = [span("up", Activity::Upload, 0, 8), span("gpu", Activity::Compute, 2, 10)].into_iter().collect();
    /// let metrics = trace.metrics();
    /// assert_eq!(metrics.concurrency, 1.6); // both tracks were busy, mostly at once
    /// assert_eq!(metrics.speedup_over(Duration::from_millis(12)), 1.2); // but alone, each copy and kernel was faster
    /// ```
    pub fn speedup_over(&self, serial: Duration) -> f64 {
        ratio(serial, self.wall)
    }

    /// Adds to the advice how near uploads came to their limit: `bytes` were uploaded during the
    /// whole trace, over a link that carries at most `limit` bytes per second. From 90 % of the
    /// limit on, this replaces the advice (`upload-bound`). Changes nothing if the trace is empty
    /// or `limit` is not positive.
    pub fn with_upload_limit(mut self, bytes: u64, limit: f64) -> Self {
        if self.wall.is_zero() || limit <= 0.0 {
            return self;
        }
        let rate = bytes as f64 / self.wall.as_secs_f64();
        let share =
            format!("{:.0} % of the upload limit, {:.1} of {:.1} GB/s", 100.0 * rate / limit, rate / 1e9, limit / 1e9);
        if rate >= 0.9 * limit {
            self.advice = format!("upload-bound: {share}");
        } else {
            self.advice += &format!("; uploads are at {share}");
        }
        self
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: Duration| 100.0 * ratio(part, self.wall);
        for track in &self.tracks {
            writeln!(f, "{:24} busy {:3.0} %", track.track, 100.0 * track.utilization)?;
        }
        writeln!(f, "{:24} {:8.0} %", "copies hidden by kernels", 100.0 * self.overlap)?;
        writeln!(f, "{:24} {:8.0} %", "device idle", percent(self.gpu_idle))?;
        writeln!(f, "{:24} {:8.0} %", "host waits", percent(self.host_wait))?;
        writeln!(f, "{:24} {:8.2}", "tracks busy on average", self.concurrency)?;
        let shares = self.streams_busy.iter().enumerate();
        let shares: Vec<_> = shares.map(|(streams, time)| format!("{streams}: {:.0} %", percent(*time))).collect();
        writeln!(f, "{:24} {:>8}", "streams busy at once", shares.join(", "))?;
        write!(f, "{}", self.advice)
    }
}
