//! What a timeline recorded, and its exports.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Activity, Metrics, metrics, svg};
use crate::error::{Error, Result};

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The stream's or the host's lane.
    pub lane: Arc<str>,
    /// What it was.
    pub label: Arc<str>,
    /// What kind of work.
    pub activity: Activity,
    /// When it began, from the timeline's origin.
    pub start: Duration,
    /// When it ended, from the timeline's origin.
    pub end: Duration,
}

impl Span {
    /// How long it took.
    pub fn length(&self) -> Duration {
        self.end.saturating_sub(self.start)
    }
}

/// Spans on one axis, as [`Timeline::finish`](super::Timeline::finish) returns them or collected from an iterator.
///
/// ```
/// use std::time::Duration;
/// use thalweg::{Activity, Span, Trace};
///
/// let span = |lane: &str, activity, start, end| Span {
///     lane: lane.into(),
///     label: "chunk".into(),
///     activity,
///     start: Duration::from_millis(start),
///     end: Duration::from_millis(end),
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
    /// In order of their starts; of equal ones, the longer first.
    spans: Vec<Span>,
    device: String,
    alignment: Duration,
}

/// A lane's spans, each in a row where it overlaps none before it.
pub(super) struct Lane<'t> {
    pub(super) name: &'t str,
    /// No work of a stream.
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
        // A span may be made by anybody; here none ends before it starts.
        spans.iter_mut().for_each(|span| span.end = span.end.max(span.start));
        spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
        Self { spans, device, alignment }
    }

    /// The spans in order of their starts; of equal ones, the longer first.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// How far the clocks of host and device may be off; zero where there is one clock.
    pub fn alignment(&self) -> Duration {
        self.alignment
    }

    /// What the times say about overlap, idle time and waiting.
    pub fn metrics(&self) -> Metrics {
        metrics::of(self)
    }

    /// The device's name; empty for a trace that no timeline made.
    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// The earliest start and the latest end; two zeros where there are no spans.
    pub(super) fn extent(&self) -> (Duration, Duration) {
        let start = self.spans.first().map_or(Duration::ZERO, |span| span.start);
        (start, self.spans.iter().map(|span| span.end).max().unwrap_or(start))
    }

    /// The lanes: those of the host first, each kind in order of its first span.
    pub(super) fn lanes(&self) -> Vec<Lane<'_>> {
        let mut lanes: Vec<(Lane<'_>, Vec<Duration>)> = Vec::new();
        for span in &self.spans {
            let at = lanes.iter().position(|(lane, _)| *lane.name == *span.lane).unwrap_or_else(|| {
                lanes.push((Lane { name: &span.lane, host: true, spans: Vec::new(), rows: 0 }, Vec::new()));
                lanes.len() - 1
            });
            let (lane, ends) = &mut lanes[at];
            let row = ends.iter().position(|&end| end <= span.start).unwrap_or_else(|| {
                ends.push(Duration::ZERO);
                ends.len() - 1
            });
            ends[row] = span.end;
            lane.rows = ends.len();
            lane.host &= matches!(span.activity, Activity::Host | Activity::Wait);
            lane.spans.push((row, span));
        }
        lanes.sort_by_key(|(lane, _)| !lane.host);
        lanes.into_iter().map(|(lane, _)| lane).collect()
    }

    /// A picture: a lane for each stream and each thread that was named, time to the right.
    pub fn to_svg(&self) -> String {
        svg::draw(self)
    }

    /// Chrome's trace format, which [Perfetto](https://ui.perfetto.dev) and `chrome://tracing` open.
    pub fn to_chrome_json(&self) -> String {
        let lanes = self.lanes();
        let mut events = Vec::new();
        let device = if self.device.is_empty() { "device" } else { &self.device };
        for (process, name) in [(1, "host"), (2, device)] {
            events.push(format!(
                r#"{{"ph":"M","pid":{process},"name":"process_name","args":{{"name":{}}}}}"#,
                quoted(name)
            ));
        }
        for (lane, thread) in lanes.iter().zip(1..) {
            let process = if lane.host { 1 } else { 2 };
            let name = quoted(lane.name);
            events.push(format!(
                r#"{{"ph":"M","pid":{process},"tid":{thread},"name":"thread_name","args":{{"name":{name}}}}}"#
            ));
            events.push(format!(
                r#"{{"ph":"M","pid":{process},"tid":{thread},"name":"thread_sort_index","args":{{"sort_index":{thread}}}}}"#
            ));
            for (_, span) in &lane.spans {
                events.push(format!(
                    r#"{{"ph":"X","pid":{process},"tid":{thread},"name":{},"cat":"{}","ts":{:.3},"dur":{:.3}}}"#,
                    quoted(&span.label),
                    span.activity.name(),
                    microseconds(span.start),
                    microseconds(span.length()),
                ));
            }
        }
        format!("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n", events.join(",\n"))
    }

    /// Lines for a terminal, 100 columns wide: each lane's activity over time by letter.
    pub fn to_text(&self) -> String {
        const NAME: usize = 16;
        const COLUMNS: usize = 76;
        let (start, end) = self.extent();
        let wall = (end - start).as_secs_f64();
        let mut text = String::new();
        for lane in self.lanes() {
            let mut time = vec![[0.0; Activity::ALL.len()]; COLUMNS];
            for (_, span) in &lane.spans {
                // In columns.
                let at = |t: Duration| (t - start).as_secs_f64() / wall.max(1e-12) * COLUMNS as f64;
                let (from, to) = (at(span.start), at(span.end));
                let which = Activity::ALL.iter().position(|a| *a == span.activity).unwrap_or(0);
                let last = (to.ceil() as usize).min(COLUMNS);
                for (column, time) in time.iter_mut().enumerate().take(last).skip(from as usize) {
                    time[which] += to.min((column + 1) as f64) - from.max(column as f64);
                }
            }
            let bar: String = time
                .iter()
                .map(|column| {
                    let most = (0..column.len()).max_by(|&a, &b| column[a].total_cmp(&column[b])).unwrap_or(0);
                    let letter = letter(Activity::ALL[most]);
                    match column[most] {
                        0.0 => '.',
                        full if full < 0.5 => letter.to_ascii_lowercase(),
                        _ => letter,
                    }
                })
                .collect();
            let mut name: String = lane.name.chars().take(NAME).collect();
            if lane.name.chars().count() > NAME {
                name.pop();
                name.push('~');
            }
            let busy = metrics::covered(lane.spans.iter().map(|(_, span)| *span)).as_secs_f64();
            let _ = writeln!(text, "{name:NAME$} |{bar}| {:3.0} %", 100.0 * busy / wall.max(1e-12));
        }
        let total = format!("{:.3?}", end - start);
        let _ = writeln!(text, "{:NAME$} 0{total:>width$}", "", width = COLUMNS + 1);
        let used = |a: &&Activity| self.spans.iter().any(|span| span.activity == **a);
        let legend: Vec<String> =
            Activity::ALL.iter().filter(used).map(|a| format!("{} {}", letter(*a), a.name())).collect();
        let _ = writeln!(text, "{:NAME$} {} (small: under half of the column)", "", legend.join(", "));
        text
    }

    /// Writes the trace to a file, in the format that its extension says: `.svg`, `.json` (Chrome's) or `.txt`.
    ///
    /// # Errors
    /// Another extension, or the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let failed = |reason: String| Error::File { path: path.to_owned(), reason };
        let text = match path.extension().and_then(|e| e.to_str()) {
            Some("svg") => self.to_svg(),
            Some("json") => self.to_chrome_json(),
            Some("txt") => self.to_text(),
            _ => return Err(failed("a timeline is saved as .svg, .json or .txt".into())),
        };
        std::fs::write(path, text).map_err(|e| failed(e.to_string()))
    }
}

fn letter(activity: Activity) -> char {
    match activity {
        Activity::Upload => 'U',
        Activity::Download => 'D',
        Activity::Copy => 'P',
        Activity::Compute => 'C',
        Activity::Host => 'H',
        Activity::Wait => 'W',
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
