//! The record of a timeline.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::activity::Activity;

/// A piece of work and the time it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The track of a stream or of the host.
    pub track: Arc<str>,
    /// A description of the work.
    pub label: Arc<str>,
    /// The kind of work.
    pub activity: Activity,
    /// The time at which it began, from the timeline's origin.
    pub start: Duration,
    /// The time at which it ended, from the timeline's origin.
    pub end: Duration,
    /// The line of the program that opened it; of a pattern of this crate, a line of that. `None`
    /// for a span that no call opened.
    pub line: Option<&'static Location<'static>>,
}

impl Span {
    /// Returns the duration of the span.
    pub fn duration(&self) -> Duration {
        self.end.saturating_sub(self.start)
    }
}

/// Spans on one axis. [`Timeline::finish`](super::Timeline::finish) returns a trace, and an
/// iterator of spans collects into one.
///
/// ```
/// use std::time::Duration;
/// use thalweg::{Activity, Span, Trace};
///
/// let span = |track: &str, activity, start, end| Span {
///     track: track.into(),
///     label: "chunk".into(),
///     activity,
///     start: Duration::from_millis(start),
///     end: Duration::from_millis(end),
///     line: None,
/// };
/// let trace: Trace = [
///     span("up", Activity::Upload, 0, 10),
///     span("up", Activity::Upload, 10, 20),
///     span("compute", Activity::Compute, 10, 20),
/// ]
/// .into_iter()
/// .collect();
/// assert_eq!(trace.metrics().overlap, 1.0); // the kernel runs under a copy
/// assert_eq!(trace.metrics().advice, "upload-bound: copies to the device fill 100 % of the time");
/// assert!(trace.to_svg().starts_with("<svg"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// In order of their starts. Of spans that start together, the longer one is first.
    spans: Vec<Span>,
    device: String,
    alignment: Duration,
}

/// The spans of a track. Each is in a row in which it overlaps no earlier span.
pub(super) struct Track<'t> {
    pub(super) name: &'t str,
    /// Whether the track has no work of a stream.
    pub(super) host: bool,
    pub(super) spans: Vec<(usize, &'t Span)>,
    pub(super) rows: usize,
}

impl FromIterator<Span> for Trace {
    fn from_iter<I: IntoIterator<Item = Span>>(spans: I) -> Self {
        Self::new(spans.into_iter().collect(), String::new(), Duration::ZERO)
    }
}

impl Trace {
    pub(super) fn new(mut spans: Vec<Span>, device: String, alignment: Duration) -> Self {
        // Callers can make any span. From here on, none ends before it starts.
        spans.iter_mut().for_each(|span| span.end = span.end.max(span.start));
        spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
        Self { spans, device, alignment }
    }

    /// The spans, in order of their starts. Of spans that start together, the longer one is first.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns by how much host times and device times of the trace may be shifted against each
    /// other at most. Zero if both use one clock.
    pub fn clock_uncertainty(&self) -> Duration {
        self.alignment
    }

    /// The device and its name. Empty for a trace that no timeline made.
    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// The earliest start and the latest end. Both are zero if there are no spans.
    pub(super) fn extent(&self) -> (Duration, Duration) {
        let start = self.spans.first().map_or(Duration::ZERO, |span| span.start);
        (start, self.spans.iter().map(|span| span.end).max().unwrap_or(start))
    }

    /// The tracks of the host, then those of streams, both in order of their first spans.
    pub(super) fn tracks(&self) -> Vec<Track<'_>> {
        let mut tracks: Vec<(Track<'_>, Vec<Duration>)> = Vec::new();
        for span in &self.spans {
            let at = tracks.iter().position(|(track, _)| *track.name == *span.track).unwrap_or_else(|| {
                tracks.push((Track { name: &span.track, host: true, spans: Vec::new(), rows: 0 }, Vec::new()));
                tracks.len() - 1
            });
            let (track, ends) = &mut tracks[at];
            let row = ends.iter().position(|&end| end <= span.start).unwrap_or_else(|| {
                ends.push(Duration::ZERO);
                ends.len() - 1
            });
            ends[row] = span.end;
            track.rows = ends.len();
            track.host &= matches!(span.activity, Activity::Host | Activity::Wait);
            track.spans.push((row, span));
        }
        tracks.sort_by_key(|(track, _)| !track.host);
        tracks.into_iter().map(|(track, _)| track).collect()
    }
}
