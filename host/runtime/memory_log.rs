//! The device memory of a program by line and by stream, and over time.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::panic::Location;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::lock;

/// The most moments that a log keeps. Beyond them, of two neighbors the one with more memory stays.
const MOMENTS: usize = 1 << 14;

/// The log of a device's memory: how much each line of the program has on each stream, and how much
/// all have over time. It is a handle ([`Device::memory_log`](crate::Device::memory_log)), which is
/// free to copy.
///
/// It is off until [`enable`](MemoryLog::enable). While it is off, it costs one load for each
/// allocation and each free. It sees the buffers that are made while it is on. A line is that of
/// the call that allocates; if a crate on top allocates, it is a line of that crate.
///
/// ```
/// use thalweg::{Device, stream_tags};
///
/// stream_tags!(Work);
/// let cpu = Device::new_cpu()?;
/// let work = cpu.stream::<Work>()?;
/// cpu.memory_log().enable();
/// let kept = work.alloc::<u8>(1000)?;
/// for _ in 0..3 {
///     drop(work.alloc::<u8>(5000)?);
/// }
/// let report = cpu.memory_log().report();
/// let [temporary, kept_line] = report.lines() else { panic!("two lines") };
/// assert_eq!((temporary.in_use, temporary.peak, temporary.allocations), (0, 5000, 3));
/// assert_eq!((kept_line.in_use, kept_line.location.file()), (1000, file!()));
/// println!("{report}");
/// # drop(kept);
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MemoryLog(&'static Log);

/// The buffers that one line made on one stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemoryLine {
    /// The place in the program that made them.
    pub location: &'static Location<'static>,
    /// The number of the stream that allocated them
    /// ([`Stream::unique_id`](crate::Stream::unique_id)). `None` for memory that was adopted.
    pub stream: Option<u64>,
    /// The name of the stream's tag.
    pub tag: &'static str,
    /// The bytes that they have.
    pub in_use: u64,
    /// The most bytes that they had at once.
    pub peak: u64,
    /// The number of buffers that were made.
    pub allocations: u64,
}

/// The buffers that a [`MemoryLog`] saw. Prints as a table of the lines with the most memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryReport {
    lines: Vec<MemoryLine>,
    /// The bytes in use from a moment on, after the log was enabled.
    moments: Vec<(Duration, u64)>,
    /// The time from the start to the report.
    length: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    start: Option<Instant>,
    lines: Vec<MemoryLine>,
    places: HashMap<(&'static Location<'static>, Option<u64>), usize>,
    /// The line and the bytes of each allocation, by its number.
    allocations: HashMap<u64, (usize, u64)>,
    moments: Vec<(Duration, u64)>,
}

/// Who allocates: the stream's number and the name of its tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocator {
    pub(crate) stream: Option<u64>,
    pub(crate) tag: &'static str,
}

impl MemoryLog {
    pub(crate) fn of(log: &'static Log) -> Self {
        Self(log)
    }

    /// Forgets what was seen, and starts to look.
    pub fn enable(self) {
        *lock(&self.0.state) = State { start: Some(Instant::now()), ..State::default() };
        self.0.on.store(true, Ordering::Relaxed);
    }

    /// Stops to look. What was seen stays until the log is enabled again.
    pub fn disable(self) {
        self.0.on.store(false, Ordering::Relaxed);
    }

    /// Returns what was seen so far. The lines with the largest peak are first.
    pub fn report(self) -> MemoryReport {
        let state = lock(&self.0.state);
        let mut lines = state.lines.clone();
        lines.sort_by_key(|line| std::cmp::Reverse(line.peak));
        let length = state.start.map_or(Duration::ZERO, |start| start.elapsed());
        MemoryReport { lines, moments: state.moments.clone(), length }
    }
}

impl Log {
    #[inline]
    #[track_caller]
    pub(crate) fn made(&self, allocation: u64, bytes: u64, by: Allocator, in_use: &AtomicU64) {
        if self.on.load(Ordering::Relaxed) {
            self.note(allocation, bytes, by, in_use, Location::caller());
        }
    }

    #[cold]
    fn note(
        &self,
        allocation: u64,
        bytes: u64,
        by: Allocator,
        in_use: &AtomicU64,
        location: &'static Location<'static>,
    ) {
        let mut state = lock(&self.state);
        let State { lines, places, allocations, .. } = &mut *state;
        let at = *places.entry((location, by.stream)).or_insert_with(|| {
            let Allocator { stream, tag } = by;
            lines.push(MemoryLine { location, stream, tag, in_use: 0, peak: 0, allocations: 0 });
            lines.len() - 1
        });
        let line = &mut lines[at];
        line.in_use += bytes;
        line.peak = line.peak.max(line.in_use);
        line.allocations += 1;
        allocations.insert(allocation, (at, bytes));
        state.moment(in_use.load(Ordering::Relaxed)); // under the lock, so that the last one stays
    }

    #[inline]
    pub(crate) fn freed(&self, allocation: u64, in_use: &AtomicU64) {
        if self.on.load(Ordering::Relaxed) {
            let mut state = lock(&self.state);
            if let Some((at, bytes)) = state.allocations.remove(&allocation) {
                state.lines[at].in_use -= bytes;
            }
            state.moment(in_use.load(Ordering::Relaxed));
        }
    }
}

impl State {
    fn moment(&mut self, in_use: u64) {
        let Some(start) = self.start else { return };
        if self.moments.len() == MOMENTS {
            let pairs = self.moments.chunks(2).filter_map(|pair| pair.iter().copied().max_by_key(|moment| moment.1));
            self.moments = pairs.collect();
        }
        self.moments.push((start.elapsed(), in_use));
    }
}

impl MemoryReport {
    /// Returns the buffers by line and stream, the largest peak first.
    pub fn lines(&self) -> &[MemoryLine] {
        &self.lines
    }

    /// Returns the bytes of all buffers of the device from a moment on, by the time since the log
    /// was enabled. Of a long run, it has the larger ones of neighboring moments.
    pub fn over_time(&self) -> &[(Duration, u64)] {
        &self.moments
    }

    /// Returns the name of each stream's tag, the stream's number, and the bytes that its buffers
    /// have, most bytes first.
    pub fn by_stream(&self) -> Vec<(&'static str, Option<u64>, u64)> {
        let mut streams: Vec<(&'static str, Option<u64>, u64)> = Vec::new();
        for line in &self.lines {
            match streams.iter_mut().find(|stream| stream.1 == line.stream) {
                Some(stream) => stream.2 += line.in_use,
                None => streams.push((line.tag, line.stream, line.in_use)),
            }
        }
        streams.sort_by_key(|stream| std::cmp::Reverse(stream.2));
        streams
    }

    /// Draws the memory in use over time.
    pub fn to_svg(&self) -> String {
        const SIZE: [f64; 2] = [1000.0, 260.0];
        const LEFT: f64 = 90.0;
        const TOP: f64 = 40.0;
        const BOTTOM: f64 = 230.0;
        let most = self.moments.iter().map(|moment| moment.1).max().unwrap_or(0);
        let end = self.length.as_secs_f64().max(1e-9);
        let place = |(at, bytes): (Duration, u64)| {
            let x = LEFT + (SIZE[0] - LEFT - 20.0) * (at.as_secs_f64() / end).min(1.0);
            (x, BOTTOM - (BOTTOM - TOP) * bytes as f64 / most.max(1) as f64)
        };
        let mut path = format!("M{LEFT} {BOTTOM}");
        for &moment in &self.moments {
            let (x, y) = place(moment);
            let _ = write!(path, "H{x:.1}V{y:.1}");
        }
        let _ = write!(path, "H{:.1}V{BOTTOM}Z", SIZE[0] - 20.0);
        let [width, height] = SIZE;
        let mut svg = format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="11" fill="#1f2933">
<rect width="{width}" height="{height}" fill="#ffffff"/>
<text x="12" y="20" font-size="13" font-weight="600">device memory in use</text>
<path d="{path}" fill="#9ec5e8" stroke="#2b6cb0"/>
"##
        );
        for part in 0..=4 {
            let (_, y) = place((Duration::ZERO, most / 4 * part));
            let label = mib(most / 4 * part);
            let _ = writeln!(
                svg,
                r##"<path d="M{LEFT} {y:.1}H{}" stroke="#d5dbe1" fill="none"/><text x="{}" y="{:.1}" text-anchor="end">{label:.1} MiB</text>"##,
                width - 20.0,
                LEFT - 6.0,
                y + 4.0
            );
        }
        let _ = writeln!(svg, r#"<text x="{}" y="250" text-anchor="end">{:.3?}</text>"#, width - 20.0, self.length);
        svg.push_str("</svg>\n");
        svg
    }

    /// Writes the picture of [`to_svg`](Self::to_svg) to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_svg()).map_err(|e| Error::File { path: path.to_owned(), source: e.into() })
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12} {:>12} {:>8}  {:24}  where", "in use MiB", "peak MiB", "buffers", "stream")?;
        for line in self.lines.iter().take(20) {
            let MemoryLine { location, stream, tag, in_use, peak, allocations } = line;
            let number = stream.map(|number| format!(" ({number})")).unwrap_or_default();
            let stream = format!("{}{number}", tag.rsplit("::").next().unwrap_or(tag));
            let (in_use, peak) = (mib(*in_use), mib(*peak));
            write!(f, "\n{in_use:>12.3} {peak:>12.3} {allocations:>8}  {stream:24}  {location}")?;
        }
        if self.lines.len() > 20 {
            write!(f, "\nand {} lines with less", self.lines.len() - 20)?;
        }
        if self.lines.is_empty() {
            f.write_str("\n           0  no buffer was made while the log was enabled")?;
        }
        Ok(())
    }
}
