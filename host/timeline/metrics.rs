//! What a trace's times say.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Activity, Span, Trace};

/// How full one lane is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LaneMetrics {
    /// The lane.
    pub lane: Arc<str>,
    /// Time during which at least one of its spans ran.
    pub busy: Duration,
    /// That over the wall time: 0 to 1.
    pub utilisation: f64,
}

/// What a trace's times say: how full each stream is, what overlaps, who waits.
///
/// Overlapping spans of a lane count once, so nesting changes nothing. Ratios of an empty trace are 0.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// From the first start to the last end.
    pub wall: Duration,
    /// Streams, then lanes of the host without those that only wait.
    pub lanes: Vec<LaneMetrics>,
    /// Time during which a copy and a kernel ran, over the time of copies or that of kernels, whichever is smaller: 0 where they take turns, 1
    /// where the smaller one is hidden.
    pub overlap: f64,
    /// Time without any span of copies or kernels.
    pub gpu_idle: Duration,
    /// Time in which the host waited, added up over its lanes.
    pub host_wait: Duration,
    /// How many lanes are busy on average, without waits: their busy times added up, over the wall
    /// time. 1 where everything takes turns, n where n lanes are always full. It is no speed-up:
    /// the same work may take longer where more of it runs at once;
    /// [`speedup_over`](Metrics::speedup_over) compares with a serial run.
    pub concurrency: f64,
    /// What binds, in one sentence.
    pub advice: String,
}

/// Time during which at least one of the spans runs.
pub(super) fn covered<'t>(spans: impl Iterator<Item = &'t Span>) -> Duration {
    length(&union(spans))
}

/// Start and end.
pub(super) type Interval = (Duration, Duration);

pub(super) fn length(intervals: &[Interval]) -> Duration {
    intervals.iter().map(|(start, end)| *end - *start).sum()
}

/// Disjoint intervals, in order, of the spans in order of their starts.
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

/// How long both run.
pub(super) fn common(mut a: &[Interval], mut b: &[Interval]) -> Duration {
    let mut both = Duration::ZERO;
    while let (Some(x), Some(y)) = (a.first(), b.first()) {
        both += x.1.min(y.1).saturating_sub(x.0.max(y.0));
        if x.1 < y.1 { a = &a[1..] } else { b = &b[1..] }
    }
    both
}

fn ratio(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

pub(super) fn of(trace: &Trace) -> Metrics {
    use Activity::{Compute, Copy, Download, Host, Upload, Wait};

    let (start, end) = trace.extent();
    let wall = end - start;
    let all_of = |which: &[Activity]| union(trace.spans().iter().filter(|span| which.contains(&span.activity)));
    let (copies, kernels) = (all_of(&[Upload, Download, Copy]), all_of(&[Compute]));
    let gpu_idle = wall - length(&all_of(&[Upload, Download, Copy, Compute]));
    let smaller = length(&copies).min(length(&kernels));
    let overlap = ratio(common(&copies, &kernels), smaller);

    let (mut lanes, mut host_wait, mut work) = (Vec::new(), Duration::ZERO, Duration::ZERO);
    let (host, streams): (Vec<_>, Vec<_>) = trace.lanes().into_iter().partition(|lane| lane.host);
    for lane in streams.into_iter().chain(host) {
        let spans = || lane.spans.iter().map(|(_, span)| *span);
        host_wait += covered(spans().filter(|span| span.activity == Wait));
        if spans().any(|span| span.activity != Wait) {
            let busy = covered(spans().filter(|span| span.activity != Wait));
            work += busy;
            lanes.push(LaneMetrics { lane: lane.name.into(), busy, utilisation: ratio(busy, wall) });
        }
    }

    let stages = [Upload, Compute, Download, Copy, Host].map(|stage| (stage, ratio(length(&all_of(&[stage])), wall)));
    let exposed = ratio(smaller, wall) * (1.0 - overlap);
    let advice = advise(stages, ratio(gpu_idle, wall), ratio(host_wait, wall), overlap, exposed);
    Metrics { wall, lanes, overlap, gpu_idle, host_wait, concurrency: ratio(work, wall), advice }
}

/// What binds: a stage that is nearly always busy, or else what keeps all of them from being so. `exposed` is the share of the time
/// that more overlap of copies and kernels could save.
fn advise(stages: [(Activity, f64); 5], idle: f64, wait: f64, overlap: f64, exposed: f64) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let (stage, share) = stages.into_iter().fold((Activity::Host, 0.0), |a, b| if b.1 > a.1 { b } else { a });
    if share == 0.0 {
        return "nothing to advise on: no work was recorded".into();
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
            "copies and kernels take turns, only {hidden} of the shorter is hidden: put them on streams of their own and enqueue ahead"
        )
    } else if wait >= 0.25 && idle >= 0.1 {
        let (wait, idle) = (percent(wait), percent(idle));
        format!("the host waits {wait} of the time and the device idles {idle}: hand over by events, or wait later")
    } else if idle >= 0.25 {
        format!("the device idles {} of the time: the host enqueues too late or too little", percent(idle))
    } else {
        format!("no stage is always busy; the fullest is next to improve: {what} {full} of the time")
    }
}

impl Metrics {
    /// How many times as fast this was as the same work done serially, which took `serial` by the
    /// caller's measurement; 0 of an empty trace.
    ///
    /// ```
    /// use std::time::Duration;
    /// use thalweg::{Activity, Span, Trace};
    ///
    /// let span = |lane: &str, activity, start, end| Span {
    ///     lane: lane.into(),
    ///     label: "".into(),
    ///     activity,
    ///     start: Duration::from_millis(start),
    ///     end: Duration::from_millis(end),
    /// };
    /// let trace: Trace = [span("up", Activity::Upload, 0, 8), span("gpu", Activity::Compute, 2, 10)].into_iter().collect();
    /// let metrics = trace.metrics();
    /// assert_eq!(metrics.concurrency, 1.6); // both lanes were busy, mostly at once
    /// assert_eq!(metrics.speedup_over(Duration::from_millis(12)), 1.2); // but alone, each copy and kernel was faster
    /// ```
    pub fn speedup_over(&self, serial: Duration) -> f64 {
        ratio(serial, self.wall)
    }

    /// The same, with advice that says how near uploads came to their limit: `bytes` were uploaded in all, over a link that carries
    /// `limit` bytes a second at best.
    pub fn against_upload_limit(mut self, bytes: u64, limit: f64) -> Self {
        if self.wall.is_zero() || limit <= 0.0 {
            return self;
        }
        let rate = bytes as f64 / self.wall.as_secs_f64();
        let share =
            format!("{:.0} % of the H2D limit, {:.1} of {:.1} GB/s", 100.0 * rate / limit, rate / 1e9, limit / 1e9);
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
        for lane in &self.lanes {
            writeln!(f, "{:24} busy {:3.0} %", lane.lane, 100.0 * lane.utilisation)?;
        }
        writeln!(f, "{:24} {:8.0} %", "copies hidden by kernels", 100.0 * self.overlap)?;
        writeln!(f, "{:24} {:8.0} %", "device idle", percent(self.gpu_idle))?;
        writeln!(f, "{:24} {:8.0} %", "host waits", percent(self.host_wait))?;
        writeln!(f, "{:24} {:8.2}", "lanes busy on average", self.concurrency)?;
        write!(f, "{}", self.advice)
    }
}
