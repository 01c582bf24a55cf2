//! Works on the host while an event is pending.
//!
//! ```text
//! stream   | copy, kernels, copy             |
//! host     enqueue | piece | piece | piece | ? ready: use the result
//! ```
//!
//! A host that synchronizes does nothing while it waits. [`query_poll`](fn@query_poll) checks after
//! each piece of work whether the event is complete. In asynchronous code, [`Event`] is a future:
//! `event.await` works on any executor.

use crate::error::Result;
use crate::event::{Event, QueryResult};
use crate::resource::Resource;

/// Calls `work` again and again until the event is complete. Returns the idle resource and the
/// number of calls. `work` returns whether there is more to do. When there is nothing more to do,
/// the host waits.
///
/// The shorter a piece of work is, the sooner the function notices a complete event. A check costs
/// about 1 us on a GPU.
///
/// ```
/// use thalweg::{Device, overlap::query_poll, stream_tags};
///
/// stream_tags!(Work);
/// let gpu = Device::best()?;
/// let work = gpu.stream::<Work>()?;
/// let mut host = work.bind(gpu.pinned::<u32>(1 << 20)?)?;
/// let mut x = work.alloc(1 << 20)?;
/// work.fill(&mut x, 5)?;
/// work.copy_to_host(&x, &mut host)?;
/// let mut counted = 0u64;
/// let (host, pieces) = query_poll(work.record(host)?, || {
///     counted += 1; // something useful
///     counted < 1000
/// })?;
/// assert_eq!((host[7], pieces), (5, counted));
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # Errors
/// The device has failed.
pub fn query_poll<R: Resource>(mut event: Event<R>, mut work: impl FnMut() -> bool) -> Result<(R, u64)> {
    let mut pieces = 0;
    loop {
        match event.query()? {
            QueryResult::Ready(value) => return Ok((value, pieces)),
            QueryResult::Pending(pending) => event = pending,
        }
        pieces += 1;
        if !work() {
            return Ok((event.synchronize()?, pieces));
        }
    }
}
