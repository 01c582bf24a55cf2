//! A trace as text: for other programs, for a terminal, and in a file.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use super::activity::Activity;
use super::metrics;
use super::trace::Trace;
use crate::error::{Error, Result};

impl Trace {
    /// The trace in Chrome's trace format, which [Perfetto](https://ui.perfetto.dev) and
    /// `chrome://tracing` open.
    pub fn to_chrome_json(&self) -> String {
        let tracks = self.tracks();
        let mut events = Vec::new();
        let device = if self.device().is_empty() { "device" } else { self.device() };
        for (process, name) in [(1, "host"), (2, device)] {
            events.push(format!(
                r#"{{"ph":"M","pid":{process},"name":"process_name","args":{{"name":{}}}}}"#,
                quoted(name)
            ));
        }
        for (track, thread) in tracks.iter().zip(1..) {
            let process = if track.host { 1 } else { 2 };
            let name = quoted(track.name);
            events.push(format!(
                r#"{{"ph":"M","pid":{process},"tid":{thread},"name":"thread_name","args":{{"name":{name}}}}}"#
            ));
            events.push(format!(
                r#"{{"ph":"M","pid":{process},"tid":{thread},"name":"thread_sort_index","args":{{"sort_index":{thread}}}}}"#
            ));
            for (_, span) in &track.spans {
                let line = span.line.map(|line| format!(r#","args":{{"line":{}}}"#, quoted(&line.to_string())));
                events.push(format!(
                    r#"{{"ph":"X","pid":{process},"tid":{thread},"name":{},"cat":"{}","ts":{:.3},"dur":{:.3}{}}}"#,
                    quoted(&span.label),
                    span.activity.name(),
                    microseconds(span.start),
                    microseconds(span.duration()),
                    line.unwrap_or_default(),
                ));
            }
        }
        format!("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n", events.join(",\n"))
    }

    /// The trace as lines for a terminal, 100 columns wide. A letter for each column shows what a
    /// track does.
    pub fn to_text(&self) -> String {
        const NAME: usize = 16;
        const COLUMNS: usize = 76;
        let (start, end) = self.extent();
        let wall = (end - start).as_secs_f64();
        let mut text = String::new();
        for track in self.tracks() {
            let mut time = vec![[0.0; Activity::ALL.len()]; COLUMNS];
            for (_, span) in &track.spans {
                // Times in columns.
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
            let mut name: String = track.name.chars().take(NAME).collect();
            if track.name.chars().count() > NAME {
                name.pop();
                name.push('~');
            }
            let busy = metrics::covered(track.spans.iter().map(|(_, span)| *span)).as_secs_f64();
            let _ = writeln!(text, "{name:NAME$} |{bar}| {:3.0} %", 100.0 * busy / wall.max(1e-12));
        }
        let total = format!("{:.3?}", end - start);
        let _ = writeln!(text, "{:NAME$} 0{total:>width$}", "", width = COLUMNS + 1);
        let used = |a: &&Activity| self.spans().iter().any(|span| span.activity == **a);
        let legend: Vec<String> =
            Activity::ALL.iter().filter(used).map(|a| format!("{} {}", letter(*a), a.name())).collect();
        let _ = writeln!(text, "{:NAME$} {} (small: under half of the column)", "", legend.join(", "));
        text
    }

    /// Writes the trace to a file. The extension chooses the format: `.svg`, `.json` (Chrome's) or
    /// `.txt`.
    ///
    /// # Errors
    /// The file has another extension, or it cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let text = match path.extension().and_then(|e| e.to_str()) {
            Some("svg") => self.to_svg(),
            Some("json") => self.to_chrome_json(),
            Some("txt") => self.to_text(),
            _ => {
                let (name, given) = ("the file name of a timeline", path.display().to_string());
                return Err(Error::Parameter { name, given, expected: "one that ends in .svg, .json or .txt".into() });
            }
        };
        std::fs::write(path, text).map_err(|e| Error::File { path: path.to_owned(), source: e.into() })
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
