//! The spans of a trace, added up by label.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::activity::Activity;
use super::metrics::ratio;
use super::trace::{Span, Trace};

/// The rows that are printed.
const SHOWN: usize = 10;

/// The totals of the spans of one activity and label.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LabelMetrics {
    /// The activity of the spans.
    pub activity: Activity,
    /// Their label, without a number at its end: `copy 0` and `copy 1` are `copy`.
    pub label: Arc<str>,
    /// The number of spans.
    pub calls: usize,
    /// Their lengths added up. Spans that run at once count in full.
    pub total: Duration,
    /// The length of the longest one.
    pub longest: Duration,
    /// `total`, divided by the time from the first start to the last end of the trace. It is above
    /// 1 if several of the spans run at once for most of the time.
    pub share: f64,
}

impl LabelMetrics {
    /// The mean length of a span.
    pub fn mean(&self) -> Duration {
        self.total.checked_div(self.calls.try_into().unwrap_or(u32::MAX)).unwrap_or_default()
    }
}

/// The spans of a trace added up by label, the largest total first. Prints as a table of the first
/// ten rows, and with `{:#}` of all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByLabel(Vec<LabelMetrics>);

impl ByLabel {
    /// The rows, the largest total first.
    pub fn rows(&self) -> &[LabelMetrics] {
        &self.0
    }
}

impl Trace {
    /// Adds up the spans by activity and label. A number behind a space at the end of a label does
    /// not count, so `chunk 0` and `chunk 1` are one row.
    ///
    /// ```
    /// use std::time::Duration;
    /// use thalweg::{Activity, Span, Trace};
    ///
    /// let ms = Duration::from_millis;
    /// let span = |label: &str, start, end| Span {
    ///     track: "up".into(),
    ///     label: label.into(),
    ///     activity: Activity::Upload,
    ///     start: ms(start),
    ///     end: ms(end),
    ///     line: None,
    /// };
    /// let trace: Trace = [span("copy 0", 0, 2), span("copy 1", 4, 8)].into_iter().collect();
    /// let table = trace.by_label();
    /// let copies = &table.rows()[0];
    /// assert_eq!((&*copies.label, copies.calls, copies.total, copies.mean()), ("copy", 2, ms(6), ms(3)));
    /// assert_eq!(copies.share, 0.75);
    /// println!("{table}");
    /// ```
    pub fn by_label(&self) -> ByLabel {
        let (start, end) = self.extent();
        let mut places: HashMap<(Activity, &str), usize> = HashMap::new();
        let mut rows: Vec<LabelMetrics> = Vec::new();
        for span in self.spans() {
            let label = without_number(&span.label);
            let at = *places.entry((span.activity, label)).or_insert_with(|| {
                let (activity, label) = (span.activity, label.into());
                let (total, longest) = (Duration::ZERO, Duration::ZERO);
                rows.push(LabelMetrics { activity, label, calls: 0, total, longest, share: 0.0 });
                rows.len() - 1
            });
            rows[at].add(span);
        }
        rows.iter_mut().for_each(|row| row.share = ratio(row.total, end - start));
        rows.sort_by_key(|row| std::cmp::Reverse(row.total));
        ByLabel(rows)
    }
}

impl LabelMetrics {
    fn add(&mut self, span: &Span) {
        self.calls += 1;
        self.total = self.total.saturating_add(span.duration());
        self.longest = self.longest.max(span.duration());
    }
}

/// The label without a number at its end, which follows a space; all of it, if there is none. The
/// digits of a name, such as that of the kernel `finish_f32`, stay.
fn without_number(label: &str) -> &str {
    let rest = label.trim_end_matches(|c: char| c.is_ascii_digit());
    let name = rest.trim_end();
    if name.is_empty() || name.len() == rest.len() { label } else { name }
}

impl fmt::Display for ByLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        write!(
            f,
            "{:8} {:24} {:>7} {:>12} {:>10} {:>10} {:>7}",
            "what", "label", "calls", "total us", "mean us", "longest", "share"
        )?;
        let shown = if f.alternate() { self.0.len() } else { self.0.len().min(SHOWN) };
        for row in &self.0[..shown] {
            write!(
                f,
                "\n{:8} {:24} {:>7} {:>12.1} {:>10.1} {:>10.1} {:>5.1} %",
                row.activity.name(),
                row.label,
                row.calls,
                us(row.total),
                us(row.mean()),
                us(row.longest),
                100.0 * row.share
            )?;
        }
        match self.0.len() - shown {
            0 if shown > 0 => Ok(()),
            0 => write!(f, "\nno span was recorded"),
            more => write!(f, "\nand {more} more; {{:#}} prints all"),
        }
    }
}
