//! Messages of Rust in Python's `logging`.
//!
//! A thread of the loader must not wait for the interpreter, so messages go through a bounded list
//! to a thread, and are dropped if that does not keep up.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

/// The most messages that wait for the interpreter.
const WAITING: usize = 1024;

struct Message {
    level: Level,
    target: String,
    text: String,
}

struct ToPython(SyncSender<Message>);

impl Log for ToPython {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("thalweg")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // `thalweg_loader::queue` is `thalweg.loader.queue`.
            let target = record.target().replace("::", ".").replacen("thalweg_", "thalweg.", 1);
            let message = Message { level: record.level(), target, text: record.args().to_string() };
            _ = self.0.try_send(message);
        }
    }

    fn flush(&self) {}
}

/// Starts to pass messages of a level and above on.
pub(crate) fn start(level: LevelFilter) {
    let (send, receive) = sync_channel(WAITING);
    if level == LevelFilter::Off || log::set_boxed_logger(Box::new(ToPython(send))).is_err() {
        return;
    }
    log::set_max_level(level);
    _ = std::thread::Builder::new().name("thalweg log".into()).spawn(move || pass_on(&receive));
}

fn pass_on(messages: &Receiver<Message>) {
    while let Ok(message) = messages.recv() {
        // At the end of the interpreter nobody listens any more.
        let told = Python::try_attach(|py| {
            if let Err(error) = tell(py, &message) {
                error.write_unraisable(py, None);
            }
        });
        if told.is_none() {
            return;
        }
    }
}

fn tell(py: Python<'_>, Message { level, target, text }: &Message) -> PyResult<()> {
    let number = match level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info => 20,
        Level::Debug => 10,
        Level::Trace => 5,
    };
    let logger = py.import("logging")?.call_method1("getLogger", (target,))?;
    logger.call_method1("log", (number, "%s", text)).map(drop)
}
