//! The log of calls: each call that orders work or touches memory is a row. The log goes to a file,
//! or to a checker that stops the program at two accesses that nothing orders.
//!
//! The rows of one stream are in the order in which the stream got the calls. On the CPU device the
//! queue writes the row under its own lock ([`flush`]); on a GPU a lock of the stream is held
//! around call and row. No lock of another stream is held meanwhile. A row of a free comes before
//! the call, and that of an allocation after it, because freed memory may be reused at once.
//!
//! While there is no log, a call costs a load and a branch.

mod checker;
mod clock;
mod memory;
mod race;
mod ranges;
mod row;
mod streams;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{BufRead, Write};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::{env, fmt, io, process, thread};

use checker::Checker;
pub use checker::Summary;
use race::Race;
pub(crate) use row::{Access, At, Kind, Row};
pub(crate) use streams::{Key, named, opened, stream};

use crate::error::{Error, Result};
use crate::lock;

/// The environment variable that says where the log goes.
const TRACE: &str = "THALWEG_TRACE";

/// The first row of each log: the version of the format.
const HEADER: &str = "thalweg trace 1";

static ON: AtomicBool = AtomicBool::new(false);

enum Sink {
    File(Mutex<File>),
    Check(Box<Mutex<Checker>>),
}

static SINK: OnceLock<Sink> = OnceLock::new();

thread_local! {
    /// The line of the program that called this crate, if that is known.
    static PLACE: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
    /// The row of the call that this thread is making.
    static PENDING: RefCell<Option<Row>> = const { RefCell::new(None) };
    /// The race that the checker found under a lock.
    static FOUND: RefCell<Option<Box<Race>>> = const { RefCell::new(None) };
}

/// Returns true if there is a log.
#[inline]
pub(crate) fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Starts the log if `THALWEG_TRACE` asks for one. What opens a device calls this before.
pub(crate) fn start() -> Result<()> {
    static STARTED: OnceLock<Result<()>> = OnceLock::new();
    STARTED
        .get_or_init(|| {
            let Some(to) = env::var_os(TRACE).filter(|to| !to.is_empty()) else { return Ok(()) };
            let sink = if to == "check" {
                Sink::Check(Box::default())
            } else {
                let path = to.to_string_lossy().replace("%p", &process::id().to_string());
                let file = File::create(&path).and_then(|mut file| writeln!(file, "{HEADER}").map(|()| file));
                let file = file.map_err(|error| Error::Parameter {
                    name: TRACE,
                    given: path,
                    expected: format!("`check`, or a file that can be written ({error})"),
                })?;
                Sink::File(Mutex::new(file))
            };
            _ = SINK.set(sink);
            ON.store(true, Ordering::Relaxed);
            Ok(())
        })
        .clone()
}

/// Writes a row that belongs to no stream, or that no other call of its stream can overtake.
///
/// # Panics
/// The row is rejected.
pub(crate) fn put(row: &Row) {
    if let Err(race) = write(row) {
        stop(&race);
    }
}

fn write(row: &Row) -> Result<(), Box<Race>> {
    match SINK.get().filter(|_| on()) {
        None => Ok(()),
        Some(Sink::Check(checker)) => lock(checker).add(row),
        Some(Sink::File(file)) => {
            // One call of the system for a row, so a process that ends at once leaves whole rows.
            let text = format!("{row}\n");
            if let Err(error) = lock(file).write_all(text.as_bytes()) {
                ON.store(false, Ordering::Relaxed);
                say(format_args!("thalweg: the log of {TRACE} ends here: {error}"));
            }
            Ok(())
        }
    }
}

fn say(line: fmt::Arguments<'_>) {
    _ = io::stderr().write_fmt(format_args!("{line}\n"));
}

/// Ends the check, and with it the call that the checker rejected.
#[cold]
fn stop(race: &Race) -> ! {
    // Later reports would only follow from this mistake.
    ON.store(false, Ordering::Relaxed);
    // A second panic, or one on a thread of this crate, would say less than this.
    if thread::panicking() || thread::current().name().is_some_and(|name| name.starts_with("thalweg ")) {
        say(format_args!("{TRACE}=check: {race}"));
        process::abort();
    }
    panic!("{TRACE}=check: {race}")
}

/// Keeps the caller's line for the rows of this thread, until it is dropped. The outermost line
/// stays, which is that of the program.
pub(crate) struct Here(());

/// Keeps the caller's line, if there is a log.
#[inline]
#[track_caller]
pub(crate) fn here() -> Option<Here> {
    if on() { Here::new(Location::caller()) } else { None }
}

impl Here {
    #[cold]
    fn new(place: &'static Location<'static>) -> Option<Self> {
        if PLACE.get().is_some() {
            return None;
        }
        PLACE.set(Some(place));
        Some(Self(()))
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        PLACE.set(None);
    }
}

/// The line of the program, if a function above has kept it, or else `caller`.
pub(crate) fn place(caller: Option<&'static Location<'static>>) -> Option<At> {
    PLACE.get().or(caller).map(At::Here)
}

/// A call on a stream that is being made. It has a row, which is dropped if the call fails.
#[must_use]
pub(crate) struct Calling {
    /// On a GPU, keeps other calls away from the stream.
    _order: Option<MutexGuard<'static, ()>>,
}

impl Calling {
    /// Keeps the row until [`flush`] writes it, or [`done`](Self::done).
    pub(crate) fn new(order: Option<&'static Mutex<()>>, row: Row) -> Self {
        let order = order.map(lock);
        // At the end of a thread its variables are gone. Then the row comes before the call.
        let mut row = Some(row);
        if PENDING.try_with(|pending| *pending.borrow_mut() = row.take()).is_err() {
            row.iter().for_each(put);
        }
        Self { _order: order }
    }

    /// Writes the row before the call.
    ///
    /// # Panics
    /// The row is rejected.
    pub(crate) fn now(&self) {
        write_pending();
        report();
    }

    /// Writes the row of a call that succeeded, unless that was done.
    ///
    /// # Panics
    /// The row is rejected.
    pub(crate) fn done(self) {
        write_pending();
        drop(self);
        report();
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        _ = PENDING.try_with(|pending| pending.borrow_mut().take());
    }
}

/// Writes the row of the call that this thread is making. The caller holds the lock that gives the
/// calls of its stream their order.
#[inline]
pub(crate) fn flush() {
    if on() {
        write_pending();
    }
}

#[cold]
fn write_pending() {
    let row = PENDING.try_with(|pending| pending.borrow_mut().take()).ok().flatten();
    if let Some(row) = row
        && let Err(race) = write(&row)
    {
        // A panic under the lock of a queue would stop the queue.
        _ = FOUND.try_with(|found| *found.borrow_mut() = Some(race));
    }
}

fn report() {
    if let Some(race) = FOUND.try_with(|found| found.borrow_mut().take()).ok().flatten() {
        stop(&race);
    }
}

/// Why a log is not accepted.
#[derive(Debug)]
#[non_exhaustive]
pub enum Rejected {
    /// The log cannot be read.
    Io(io::Error),
    /// It is no log, or a row of it is none.
    Malformed {
        /// The number of the line, from 1 on.
        line: u64,
        /// The line.
        text: String,
    },
    /// Two accesses are not ordered, or memory is used that is not there. The text names both calls
    /// and the bytes.
    Race(String),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the log cannot be read: {error}"),
            Self::Malformed { line: 1, .. } => {
                write!(f, "this is no log of THALWEG_TRACE: it does not begin with `{HEADER}`")
            }
            Self::Malformed { line, text } => write!(
                f,
                "line {line} is no row of a log: {text:?} (did two processes write this file? `%p` in the value of \
                 THALWEG_TRACE is the number of the process)"
            ),
            Self::Race(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Rejected {}

/// Reads a log that `THALWEG_TRACE=FILE` wrote, and checks that each access to memory comes after
/// those that it conflicts with.
///
/// # Errors
/// The log cannot be read, or it is rejected.
pub fn check_log(mut log: impl BufRead) -> std::result::Result<Summary, Rejected> {
    let (mut checker, mut text, mut line) = (Checker::default(), Vec::new(), 0);
    loop {
        text.clear();
        if log.read_until(b'\n', &mut text).map_err(Rejected::Io)? == 0 && line > 0 {
            return Ok(checker.summary());
        }
        line += 1;
        let row = String::from_utf8_lossy(&text);
        let row = row.trim_ascii_end();
        let malformed = || Rejected::Malformed { line, text: row.chars().take(200).collect() };
        if line == 1 {
            if row != HEADER {
                return Err(malformed());
            }
        } else {
            checker.add(&Row::parse(row).ok_or_else(malformed)?).map_err(|race| Rejected::Race(race.to_string()))?;
        }
    }
}
