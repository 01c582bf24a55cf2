//! Waits that Ctrl-C ends, and the threads that work for a call.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::Duration;

use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The time after which a wait asks the interpreter for signals again.
const TURN: Duration = Duration::from_millis(50);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future, on a thread that is detached from the interpreter. A signal whose handler
/// raises, as Ctrl-C does, drops the future and is the error.
pub(crate) fn wait<F: Future>(future: F) -> PyResult<F::Output> {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Ok(output);
        }
        std::thread::park_timeout(TURN);
        Python::attach(|py| py.check_signals())?;
    }
}

/// Waits for an event, as [`wait`] does.
pub(crate) fn for_event<R: thalweg::Resource>(event: thalweg::Event<R>) -> PyResult<R> {
    wait(event.into_future())?.map_err(crate::errors::of_device)
}

/// The threads of this process, and how many the caller wants.
struct Pool {
    /// The number, and the process that wants it.
    wanted: Option<(u32, usize)>,
    made: Option<(u32, Arc<ThreadPool>)>,
    /// The process that imported the module.
    parent: u32,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);

/// Remembers the process, so that a forked child is known as one.
pub(crate) fn start() {
    let parent = std::process::id();
    POOL.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(Pool { wanted: None, made: None, parent });
}

/// Sets how many threads decode and process on the host.
pub(crate) fn set_threads(threads: usize) {
    if let Some(pool) = &mut *POOL.lock().unwrap_or_else(PoisonError::into_inner) {
        pool.wanted = Some((std::process::id(), threads));
        // Those of a parent are forgotten, because nobody can wait for them in this process.
        if let Some((maker, threads)) = pool.made.take()
            && maker != std::process::id()
        {
            std::mem::forget(threads);
        }
    }
}

/// Runs work of the host on the threads of this process. A forked child has none of the threads of
/// its parent, so it makes its own: one, as frameworks do in a worker, unless more are wanted.
pub(crate) fn with_threads<T: Send>(work: impl FnOnce() -> T + Send) -> PyResult<T> {
    Ok(threads()?.install(work))
}

fn threads() -> PyResult<Arc<ThreadPool>> {
    let process = std::process::id();
    let mut guard = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = guard.get_or_insert(Pool { wanted: None, made: None, parent: process });
    if let Some((maker, threads)) = &pool.made {
        if *maker == process {
            return Ok(threads.clone());
        }
        std::mem::forget(threads.clone()); // nobody can wait for threads that are not in this process
    }
    let wanted = pool.wanted.filter(|(by, _)| *by == process).map(|(_, threads)| threads);
    let number = wanted.unwrap_or(if process == pool.parent { 0 } else { 1 });
    let threads = ThreadPoolBuilder::new().num_threads(number).thread_name(|n| format!("thalweg {n}")).build();
    match threads {
        Ok(threads) => {
            let threads = Arc::new(threads);
            pool.made = Some((process, threads.clone()));
            Ok(threads)
        }
        Err(error) => {
            drop(guard); // an exception needs the interpreter, which may wait for this lock
            Err(crate::errors::of_class("ThalwegError", format!("no threads: {error}")))
        }
    }
}
