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
/// a step that fails and loses its slot does not end the loop. A ring that is collected from events
/// of slots makes none. [`stages`](fn@crate::overlap::stages) sends the slots of a ring through
/// several streams.
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
    make: Option<Box<dyn FnMut() -> Result<R> + Send>>,
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
        Ok(Self { slots, depth, make: Some(Box::new(make)) })
    }

    /// The slot that came back the longest ago, or a new one if all are lost or lent.
    ///
    /// # Errors
    /// `make` failed, or there is no slot left and the ring makes none.
    pub fn acquire(&mut self) -> Result<Event<R>> {
        match (self.slots.pop_front(), &mut self.make) {
            (Some(slot), _) => Ok(slot),
            (None, Some(make)) => make().map(Event::ready),
            (None, None) => {
                Err(Error::Parameter { name: "slots", given: "none".into(), expected: "at least 1".into() })
            }
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

    /// Returns the number of slots in the ring.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether all slots are lost or lent.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Drops the slots that came back last, if there are more than `depth`.
    pub fn truncate(&mut self, depth: usize) {
        self.depth = self.depth.min(depth);
        self.slots.truncate(depth);
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

impl<R: Resource> Default for Ring<R> {
    /// A ring without slots, which makes none.
    fn default() -> Self {
        Self { slots: VecDeque::new(), depth: 0, make: None }
    }
}

impl<R: Resource> FromIterator<Event<R>> for Ring<R> {
    /// A ring of these slots, which makes no new ones.
    fn from_iter<I: IntoIterator<Item = Event<R>>>(slots: I) -> Self {
        let mut ring = Self::default();
        ring.extend(slots);
        ring
    }
}

impl<R: Resource> Extend<Event<R>> for Ring<R> {
    /// Adds slots. The ring holds that many more.
    fn extend<I: IntoIterator<Item = Event<R>>>(&mut self, slots: I) {
        self.slots.extend(slots);
        self.depth = self.depth.max(self.slots.len());
    }
}

impl<R: Resource> fmt::Debug for Ring<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("depth", &self.depth).field("free", &self.slots.len()).finish_non_exhaustive()
    }
}
