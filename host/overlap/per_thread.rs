//! Runs work on host threads, each with its own stream.
//!
//! ```text
//! thread 0   host work | item 0 | host work | item 3 | ...
//! thread 1   host work     | item 1 | host work | item 4 | ...
//! thread 2   host work  | item 2 | host work  | item 5 | ...
//! ```
//!
//! Use this for work that alternates between host and device: decoding, post-processing, blocking
//! copies. While one thread is busy or waits, the streams of the others run. Nothing needs a lock,
//! because a thread's stream cannot leave its thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::any_stream::PerThread;
use crate::driver::beside_captures;
use crate::error::{Error, Result};
use crate::runtime::device::Device;
use crate::stream::Stream;

/// Runs `f` for each item on one of `threads` new threads, with that thread's stream. Waits for all
/// threads, and returns the results in the order of the items.
///
/// A free thread takes the next item. If an item fails, its result is an `Err`, and the others go
/// on.
///
/// ```
/// use thalweg::{Device, overlap::per_thread};
///
/// let sums = per_thread(Device::best()?, 3, &[1u32, 2, 3, 4, 5], |s, &item| {
///     let mut x = s.alloc::<u32>(10)?;
///     s.fill(&mut x, item)?;
///     Ok(s.read_blocking(&x)?.iter().sum::<u32>()) // this thread waits, the others do not
/// })?;
/// assert_eq!(sums.into_iter().collect::<Result<Vec<_>, _>>()?, [10, 20, 30, 40, 50]);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # Errors
/// `threads` is 0, or a thread or its stream cannot be created.
///
/// # Panics
/// If `f` panics, its thread ends, the others finish the items, and then the panic continues in the
/// caller.
pub fn per_thread<T: Sync, O: Send>(
    device: Device,
    threads: usize,
    items: &[T],
    f: impl for<'l> Fn(&Stream<PerThread<'l>>, &T) -> Result<O> + Sync,
) -> Result<Vec<Result<O>>> {
    if threads == 0 {
        return Err(Error::Parameter { name: "threads", given: "0".into(), expected: "at least 1".into() });
    }
    let next = AtomicUsize::new(0);
    // Each thread keeps its results to itself until it ends.
    let work = || {
        device.per_thread(|s| {
            let taken = std::iter::from_fn(|| {
                let i = next.fetch_add(1, Ordering::Relaxed);
                items.get(i).map(|item| (i, f(s, item)))
            });
            taken.collect::<Vec<_>>()
        })
    };
    let each = thread::scope(|scope| {
        let run = move || beside_captures(work);
        let spawn = |_| thread::Builder::new().name("thalweg per-thread".into()).spawn_scoped(scope, run);
        let started: Vec<_> = (0..threads.min(items.len())).map(spawn).collect();
        let ended = started.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => Err(Error::Thread { reason: error.to_string() }),
        });
        // Collect first, so that every thread is joined even if one failed.
        ended.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>>>()
    })?;
    let mut done: Vec<_> = each.into_iter().flatten().collect();
    done.sort_unstable_by_key(|(i, _)| *i);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}
