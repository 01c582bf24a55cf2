//! Lets several streams read one buffer at once.
//!
//! ```text
//! producer   | write |
//! stream 0             | read |
//! stream 1             | read     |
//! stream 2             | read  |
//! producer                      | write again, after every reader
//! ```
//!
//! The alternatives are a copy for each stream, or one stream for all readers. [`Shared`] needs
//! neither. Each reading waits for the producer on the device, and the stream that takes the buffer
//! back waits for each reading.

use crate::any_stream::{Scoped, StreamPool};
use crate::error::Result;
use crate::event::Event;
use crate::resource::Resource;
use crate::shared::Shared;
use crate::stream::Stream;

/// Runs `f` once for each of `readers`, on the next stream of `pool`. All of them read the same
/// memory.
///
/// This only enqueues: the host does not wait, except for a stream that another thread uses. If a
/// reader fails, its result is an `Err`, and the others go on. When this returns, no handle of a
/// reading is left. So [`Stream::unshare`] can take the resource back at once, and its stream waits
/// on the device for all readers.
///
/// ```
/// use thalweg::{Device, StreamPool, overlap::shared_read, stream_tags};
///
/// stream_tags!(Upload);
/// let gpu = Device::best()?;
/// let (up, pool) = (gpu.stream::<Upload>()?, StreamPool::new(gpu, 3)?);
/// let shared = up.share(up.upload_blocking(&[7u32; 300])?)?;
/// let thirds = shared_read(&pool, &shared, [0..100, 100..200, 200..300], |s, all, third| {
///     let mut part = s.bind(gpu.pinned(100)?)?;
///     s.copy_to_host(all.slice(third)?, &mut part)?;
///     Ok(s.record(part)?)
/// });
/// let mut all = up.unshare(shared)?;
/// up.zero(&mut all)?; // after the three copies
/// for third in thirds {
///     assert_eq!(*third?.synchronize()?, [7; 100]);
/// }
/// # Ok::<(), thalweg::Error>(())
/// ```
pub fn shared_read<R: Resource, T, O: Resource>(
    pool: &StreamPool,
    shared: &Shared<R>,
    readers: impl IntoIterator<Item = T>,
    mut f: impl for<'l> FnMut(&Stream<Scoped<'l>>, &R::On<Scoped<'l>>, T) -> Result<Event<O>>,
) -> Vec<Result<Event<O>>> {
    readers.into_iter().map(|reader| pool.with_stream(|s| f(s, &*s.reading(shared)?, reader))).collect()
}
