//! A ring of slots that streams fill in turn.

use std::collections::VecDeque;
use std::fmt;

use crate::error::{Error, Result};
use crate::event::Event;
use crate::resource::Resource;

/// A ring of `depth` slots, for double buffering and deeper.
///
/// [`acquire`](Ring::acquire) gives the slot that came back the longest ago, as an [`Event`] to
/// wait for on a stream or on the host. If the ring has no slot left, `acquire` makes a new one. So
/// a step that fails and loses its slot does not end the loop.
///
/// ```
/// use thalweg::{Device, Ring, stream_tags};
///
/// stream_tags!(Upload);
/// let gpu = Device::best()?;
/// let up = gpu.stream::<Upload>()?;
/// let mut ring = Ring::new(2, move || Ok((gpu.pinned::<u32>(100)?, up.alloc::<u32>(100)?.synchronize()?)))?;
/// for frame in 0..10 {
///     let (mut host, device) = ring.acquire()?.synchronize()?; // waits once both slots are under way
///     host.fill(frame);
///     let (host, mut device) = up.bind((host, device))?;
///     up.copy_to_device(&host, &mut device)?;
///     ring.recycle(up.record((host, device))?);
/// }
/// # Ok::<(), thalweg::Error>(())
/// ```
pub struct Ring<R: Resource> {
    slots: VecDeque<Event<R>>,
    depth: usize,
    make: Box<dyn FnMut() -> Result<R> + Send>,
}

/// The most slots of a ring. A wrong number would otherwise use memory up, slot by slot.
const MOST_SLOTS: usize = 1 << 16;

impl<R: Resource> Ring<R> {
    /// Makes a ring of `depth` slots, each by a call of `make`.
    ///
    /// # Errors
    /// `depth` is more than 65536, or `make` failed.
    pub fn new(depth: usize, mut make: impl FnMut() -> Result<R> + Send + 'static) -> Result<Self> {
        if depth > MOST_SLOTS {
            let expected = format!("at most {MOST_SLOTS}");
            return Err(Error::Parameter { name: "depth", given: depth.to_string(), expected });
        }
        let slots = (0..depth).map(|_| make().map(Event::ready)).collect::<Result<_>>()?;
        Ok(Self { slots, depth, make: Box::new(make) })
    }

    /// The slot that came back the longest ago, or a new one if all are lost or lent.
    ///
    /// # Errors
    /// `make` failed.
    pub fn acquire(&mut self) -> Result<Event<R>> {
        match self.slots.pop_front() {
            Some(slot) => Ok(slot),
            None => (self.make)().map(Event::ready),
        }
    }

    /// Gives a slot back. If the ring already holds `depth` slots, it drops this one.
    pub fn recycle(&mut self, slot: Event<R>) {
        if self.slots.len() < self.depth {
            self.slots.push_back(slot);
        }
    }

    /// Returns the number of slots that the ring holds when none is lent.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Waits on the host for every slot in the ring.
    ///
    /// # Errors
    /// The device has failed. The slots stay in the ring.
    #[track_caller]
    pub fn synchronize(&mut self) -> Result<()> {
        for _ in 0..self.slots.len() {
            let Some(slot) = self.slots.pop_front() else { break };
            match slot.synchronize() {
                Ok(idle) => self.slots.push_back(Event::ready(idle)),
                Err(returned) => {
                    self.slots.push_front(returned.value);
                    return Err(returned.error);
                }
            }
        }
        Ok(())
    }
}

impl<R: Resource> fmt::Debug for Ring<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("depth", &self.depth).field("free", &self.slots.len()).finish_non_exhaustive()
    }
}
