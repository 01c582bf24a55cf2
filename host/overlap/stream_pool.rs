//! Runs many small pieces of work on a pool of streams.
//!
//! ```text
//! stream 0   | item 0 | item 3     | item 6 | ...
//! stream 1   | item 1     | item 4 | ...
//! stream 2   | item 2 | item 5   | ...
//! host     enqueue 0..6 | wait 0, enqueue 6 | wait 1, enqueue 7 | ...
//! ```
//!
//! One image is often too little for a GPU: its upload, kernels and download leave most of the
//! machine idle. Items on different streams fill the device, and no code has to say which stage
//! overlaps which.

use std::collections::VecDeque;

use crate::any_stream::{Scoped, StreamPool};
use crate::error::Result;
use crate::event::Event;
use crate::resource::Resource;
use crate::stream::Stream;

/// Items under way on each stream. With two, a stream still has work while the host waits for its
/// oldest item and enqueues the next one.
const DEPTH: usize = 2;

/// Runs `f` for each item on the next stream of `pool`. The results come in the order of the items.
///
/// `f` enqueues work and returns an event. It runs on the calling thread, when the caller asks the
/// iterator for a result. Two items are under way for each stream, and each call of `next` waits
/// for the oldest item, so the memory in use is bounded for any number of items. If other threads
/// use all streams of the pool, this waits and does not fail. If `f` or the event of an item fails,
/// the result of that item is an `Err`, and the others go on. Dropping the iterator drops the items
/// under way without waiting for them.
///
/// ```
/// use thalweg::{Device, StreamPool, overlap::stream_pool};
///
/// let gpu = Device::best()?;
/// let pool = StreamPool::new(gpu, 4)?;
/// let doubled = stream_pool(&pool, 0..100u32, |s, item| {
///     let mut x = s.alloc::<u32>(10)?;
///     s.fill(&mut x, 2 * item)?;
///     let mut host = s.bind(gpu.pinned(10)?)?;
///     s.copy_to_host(&x, &mut host)?;
///     Ok(s.record(host)?)
/// });
/// for (item, result) in doubled.enumerate() {
///     assert_eq!(*result?, [2 * item as u32; 10]);
/// }
/// # Ok::<(), thalweg::Error>(())
/// ```
pub fn stream_pool<T, R: Resource>(
    pool: &StreamPool,
    items: impl IntoIterator<Item = T>,
    mut f: impl for<'l> FnMut(&Stream<Scoped<'l>>, T) -> Result<Event<R>>,
) -> impl Iterator<Item = Result<R>> {
    let mut items = items.into_iter().fuse();
    let mut under_way = VecDeque::new();
    std::iter::from_fn(move || {
        while under_way.len() < DEPTH * pool.streams()
            && let Some(item) = items.next()
        {
            under_way.push_back(pool.with_stream(|s| f(s, item)));
        }
        under_way.pop_front().map(|enqueued| Ok(enqueued?.synchronize()?))
    })
}
