//! Sends items through any number of stages, each on a stream of its own.
//!
//! ```text
//! first    | a 0 | a 1 | a 2 | a 3       |     a 2 waits for the slot of item 0
//! second         | b 0 | b 1 | b 2 | b 3 |
//! third                | c 0 | c 1 | c 2 | c 3 |
//! ```
//!
//! An item travels in a slot: a composite of all buffers that it needs on its way. A stage gets the
//! slot under the brand of its own stream, and an event carries the slot to the next stage. So two
//! stages can never touch one slot at the same time. What a stage keeps from item to item, such as
//! weights, its closure holds.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use crate::any_stream::{AnyStream, Scoped};
use crate::brand::LiveBrand;
use crate::error::Error;
use crate::event::Event;
use crate::resource::Resource;
use crate::ring::Ring;
use crate::stream::Stream;
use crate::timeline::{Activity, Timeline};

/// A chain of stages, to which [`step`](Stages::step) and [`host`](Stages::host) add one.
/// [`stages`](fn@stages) makes it.
#[must_use = "stages do nothing until they run"]
pub struct Stages<'a, R: Resource, X, C> {
    slots: &'a mut Ring<R>,
    chain: C,
    error: std::marker::PhantomData<fn() -> X>,
}

impl<R: Resource, X, C> fmt::Debug for Stages<'_, R, X, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stages").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

/// Stages that a slot goes through, one after another.
pub trait Chain<R: Resource, X> {
    /// Sends the slot of item `item` through the stages.
    ///
    /// # Errors
    /// A stage returned an error, or the device has failed. The slot's memory is then freed, after
    /// its work.
    fn send(&mut self, item: usize, slot: Event<R>, timeline: &Timeline) -> Result<Event<R>, X>;
}

/// A chain without stages.
#[derive(Clone, Copy, Debug)]
pub struct Start(());

impl<R: Resource, X> Chain<R, X> for Start {
    fn send(&mut self, _: usize, slot: Event<R>, _: &Timeline) -> Result<Event<R>, X> {
        Ok(slot)
    }
}

impl<R: Resource, X> Chain<R, X> for Box<dyn Chain<R, X> + '_> {
    fn send(&mut self, item: usize, slot: Event<R>, timeline: &Timeline) -> Result<Event<R>, X> {
        (**self).send(item, slot, timeline)
    }
}

/// A chain with one more stage.
pub struct Then<C, P, F> {
    before: C,
    place: P,
    activity: Activity,
    run: F,
}

impl<C, P, F> fmt::Debug for Then<C, P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Then").finish_non_exhaustive()
    }
}

/// The host, as the place of a stage.
#[derive(Clone, Copy, Debug)]
pub struct OnHost(());

impl<R: Resource, X: From<Error>, C: Chain<R, X>, S: LiveBrand, F> Chain<R, X> for Then<C, Stream<S>, F>
where
    F: FnMut(&Stream<S>, usize, &mut R::On<S>) -> Result<(), X>,
{
    fn send(&mut self, item: usize, slot: Event<R>, timeline: &Timeline) -> Result<Event<R>, X> {
        let slot = self.before.send(item, slot, timeline)?;
        enqueue(&self.place, self.activity, item, slot, timeline, &mut self.run)
    }
}

impl<R: Resource, X: From<Error>, C: Chain<R, X>, F> Chain<R, X> for Then<C, &AnyStream, F>
where
    F: for<'l> FnMut(&Stream<Scoped<'l>>, usize, &mut R::On<Scoped<'l>>) -> Result<(), X>,
{
    fn send(&mut self, item: usize, slot: Event<R>, timeline: &Timeline) -> Result<Event<R>, X> {
        let slot = self.before.send(item, slot, timeline)?;
        let Self { place, activity, run, .. } = self;
        let activity = *activity;
        place.enter(|s| enqueue(s, activity, item, slot, timeline, |s, item, slot| run(s, item, slot)))
    }
}

impl<R: Resource, X: From<Error>, C: Chain<R, X>, F> Chain<R, X> for Then<C, OnHost, F>
where
    F: FnMut(usize, &mut R) -> Result<(), X>,
{
    fn send(&mut self, item: usize, slot: Event<R>, timeline: &Timeline) -> Result<Event<R>, X> {
        let slot = self.before.send(item, slot, timeline)?;
        let label = timeline.label("item", item);
        let mut slot = timeline.wait("host", &label, || slot.synchronize()).map_err(Error::from)?;
        timeline.host("host", &label, || (self.run)(item, &mut slot))?;
        Ok(Event::ready(slot))
    }
}

/// Enqueues one stage of an item.
fn enqueue<R: Resource, X: From<Error>, S: LiveBrand>(
    stream: &Stream<S>,
    activity: Activity,
    item: usize,
    slot: Event<R>,
    timeline: &Timeline,
    mut run: impl FnMut(&Stream<S>, usize, &mut R::On<S>) -> Result<(), X>,
) -> Result<Event<R>, X> {
    let mut slot = stream.wait(slot).map_err(Error::from)?;
    timeline.span(stream, activity, &timeline.label("item", item), || Ok(run(stream, item, &mut slot)))??;
    Ok(stream.record(slot).map_err(Error::from)?)
}

/// Makes a chain of stages over these slots, which has no stages yet.
///
/// Add the stages in order, then call [`run`](Stages::run). With `n` slots, up to `n` items are on
/// their way at once, and the streams wait for free slots. Two slots for each two stages that
/// should overlap are enough if all items take the same time. `X` is the error of the closures.
///
/// ```
/// use thalweg::overlap::stages;
/// use thalweg::{Activity, Device, Error, Ring, Timeline, stream_tags};
///
/// stream_tags!(Make, Change, Use);
/// let gpu = Device::best()?;
/// let (make, change, consume) = (gpu.stream::<Make>()?, gpu.stream::<Change>()?, gpu.stream::<Use>()?);
/// let slot = move || Ok((make.alloc::<u32>(9)?.synchronize()?, make.alloc::<u32>(9)?.synchronize()?));
/// let mut slots = Ring::new(3, slot)?;
/// let mut results = consume.bind((0..7).map(|_| gpu.pinned::<u32>(9)).collect::<Result<Vec<_>, _>>()?)?;
/// stages::<_, Error>(&mut slots)
///     .step(&make, Activity::Compute, |s, n, slot| s.fill(&mut slot.0, n as u32))
///     .step(&change, Activity::Compute, |s, _, slot| s.copy(&slot.0, &mut slot.1))
///     .step(&consume, Activity::Download, |s, n, slot| s.copy_to_host(&slot.1, &mut results[n]))
///     .run(0..7, &Timeline::disabled())?; // returns at once
/// let results = consume.record(results)?.synchronize()?;
/// assert!(results.iter().zip(0..).all(|(result, n)| result[..] == [n; 9]));
/// # Ok::<(), Error>(())
/// ```
pub fn stages<R: Resource, X: From<Error>>(slots: &mut Ring<R>) -> Stages<'_, R, X, Start> {
    Stages { slots, chain: Start(()), error: std::marker::PhantomData }
}

impl<'a, R: Resource, X: From<Error>, C: Chain<R, X>> Stages<'a, R, X, C> {
    fn then<P, F>(self, place: P, activity: Activity, run: F) -> Stages<'a, R, X, Then<C, P, F>> {
        let Self { slots, chain, error } = self;
        Stages { slots, chain: Then { before: chain, place, activity, run }, error }
    }

    /// Adds a stage: `run` enqueues, on `stream`, what happens to the slot of an item. `activity`
    /// is what a [`Timeline`] shows.
    pub fn step<S: LiveBrand, F>(
        self,
        stream: &Stream<S>,
        activity: Activity,
        run: F,
    ) -> Stages<'a, R, X, Then<C, Stream<S>, F>>
    where
        F: FnMut(&Stream<S>, usize, &mut R::On<S>) -> Result<(), X>,
    {
        self.then(*stream, activity, run)
    }

    /// Adds a stage on a stream that is known only at run time. Pass a function that is generic
    /// over streams as `|s, n, slot| f(s, n, slot)`.
    ///
    /// ```
    /// use thalweg::overlap::stages;
    /// use thalweg::{Activity, AnyStream, Device, Error, Event, Ring, Timeline};
    ///
    /// let gpu = Device::best()?;
    /// let streams = [AnyStream::new(gpu)?, AnyStream::new(gpu)?, AnyStream::new(gpu)?];
    /// let slot = || streams[0].enter(|s| s.alloc_zeroed::<u8>(8)?.synchronize()).map(Event::ready);
    /// let mut slots = (0..2).map(|_| slot()).collect::<Result<Ring<_>, Error>>()?;
    /// let mut stages = stages::<_, Error>(&mut slots).boxed();
    /// for (k, stream) in streams.iter().enumerate() {
    ///     stages = stages.step_on_any(stream, Activity::Compute, move |s, _, slot| s.fill(slot.slice_mut(k..=k)?, 1)).boxed();
    /// }
    /// stages.run(0..5, &Timeline::disabled())?;
    /// drop(stages); // it borrows the slots
    /// let slot = slots.acquire()?; // both are back
    /// assert_eq!(streams[0].enter(|s| s.read_blocking(&s.wait(slot)?))?, [1, 1, 1, 0, 0, 0, 0, 0]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn step_on_any<F>(
        self,
        stream: &AnyStream,
        activity: Activity,
        run: F,
    ) -> Stages<'a, R, X, Then<C, &AnyStream, F>>
    where
        F: for<'l> FnMut(&Stream<Scoped<'l>>, usize, &mut R::On<Scoped<'l>>) -> Result<(), X>,
    {
        self.then(stream, activity, run)
    }

    /// Adds a stage on the host: it waits until the work on the slot so far is done, and `run`
    /// reads and writes the slot. As the first stage it fills page-locked memory. The host then
    /// waits for the item that had the slot before.
    pub fn host<F>(self, run: F) -> Stages<'a, R, X, Then<C, OnHost, F>>
    where
        F: FnMut(usize, &mut R) -> Result<(), X>,
    {
        self.then(OnHost(()), Activity::Host, run)
    }

    /// Makes the type of the chain independent of its stages, so that a loop can add them.
    pub fn boxed(self) -> Stages<'a, R, X, Box<dyn Chain<R, X> + 'a>>
    where
        C: 'a,
    {
        Stages { slots: self.slots, chain: Box::new(self.chain), error: self.error }
    }

    /// Sends items through the stages, and returns when all work is enqueued. The host waits only
    /// in stages on the [`host`](Self::host). The slots are back in their ring, as events.
    ///
    /// # Errors
    /// There are no slots, a slot belongs to another device, the device has failed, or a stage
    /// returned an error. Items before the one that failed go on. The slot of that item is lost:
    /// its memory is freed after its work.
    pub fn run(&mut self, items: Range<usize>, timeline: &Timeline) -> Result<(), X> {
        for item in items {
            let slot = self.send(item, timeline)?;
            self.recycle(slot);
        }
        Ok(())
    }

    /// Sends one item through the stages, and returns its slot when all work is enqueued, for a
    /// loop that decides when the next item begins. Give the slot back by
    /// [`recycle`](Self::recycle).
    ///
    /// ```
    /// use std::collections::VecDeque;
    ///
    /// use thalweg::overlap::stages;
    /// use thalweg::{Activity, Device, Error, Ring, Timeline, stream_tags};
    ///
    /// stream_tags!(Make, Use);
    /// let gpu = Device::best()?;
    /// let (make, consume) = (gpu.stream::<Make>()?, gpu.stream::<Use>()?);
    /// let mut slots = Ring::new(2, move || make.alloc::<u32>(9)?.synchronize())?;
    /// let mut stages = stages::<_, Error>(&mut slots).step(&make, Activity::Compute, |s, n, slot| s.fill(slot, n as u32));
    /// let (mut items, mut made, mut seen) = (0..5, VecDeque::new(), Vec::new());
    /// while seen.len() < 5 {
    ///     while stages.free() > 0 && let Some(n) = items.next() {
    ///         made.push_back(stages.send(n, &Timeline::disabled())?); // the next ones, while there are slots
    ///     }
    ///     let Some(oldest) = made.pop_front() else { break };
    ///     let slot = consume.wait(oldest)?;
    ///     seen.push(consume.read_blocking(&slot)?[0]); // the host waits, and the next item is made meanwhile
    ///     stages.recycle(consume.record(slot)?);
    /// }
    /// assert_eq!(seen, [0, 1, 2, 3, 4]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn send(&mut self, item: usize, timeline: &Timeline) -> Result<Event<R>, X> {
        let slot = self.slots.acquire()?;
        self.chain.send(item, slot, timeline)
    }

    /// Gives the slot of an item back.
    pub fn recycle(&mut self, slot: Event<R>) {
        self.slots.recycle(slot);
    }

    /// Returns the number of slots that are there and that no item has. A ring that makes its slots
    /// when they are needed may have room for more.
    pub fn free(&self) -> usize {
        self.slots.len()
    }

    /// Sends items through the stages as [`run`](Self::run) does, and `take` sees the slot of each
    /// item on the host when its work is done. The host waits for an item only when its slot is
    /// needed for a later one, and at the end for all.
    ///
    /// ```
    /// use thalweg::overlap::stages;
    /// use thalweg::{Activity, Device, Error, Ring, Timeline, stream_tags};
    ///
    /// stream_tags!(Upload, Download);
    /// let gpu = Device::best()?;
    /// let (up, down) = (gpu.stream::<Upload>()?, gpu.stream::<Download>()?);
    /// let mut slots = Ring::new(2, move || Ok((gpu.pinned::<u32>(9)?, up.alloc::<u32>(9)?.synchronize()?)))?;
    /// let mut seen = Vec::new();
    /// stages::<_, Error>(&mut slots)
    ///     .host(|n, slot| Ok(slot.0.fill(n as u32)))
    ///     .step(&up, Activity::Upload, |s, _, slot| s.copy_to_device(&slot.0, &mut slot.1))
    ///     .step(&down, Activity::Download, |s, _, slot| s.copy_to_host(&slot.1, &mut slot.0))
    ///     .run_and_take(0..5, |_, slot| Ok(seen.push(slot.0[8])), &Timeline::disabled())?;
    /// assert_eq!(seen, [0, 1, 2, 3, 4]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As of [`run`](Self::run), or `take` returned an error. After an error of a stage, `take` still
    /// sees the items before the one that failed.
    pub fn run_and_take(
        &mut self,
        items: Range<usize>,
        mut take: impl FnMut(usize, &mut R) -> Result<(), X>,
        timeline: &Timeline,
    ) -> Result<(), X> {
        let mut finish = |(item, slot): (usize, Event<R>)| {
            let label = timeline.label("item", item);
            let mut slot = timeline.wait("host", &label, || slot.synchronize()).map_err(Error::from)?;
            timeline.host("host", &timeline.label("take", item), || take(item, &mut slot))?;
            Ok::<_, X>(Event::ready(slot))
        };
        let (mut under_way, mut ran) = (VecDeque::new(), Ok(()));
        for item in items {
            let oldest = if self.slots.is_empty() { under_way.pop_front() } else { None };
            let slot = oldest.map_or_else(|| Ok(self.slots.acquire()?), &mut finish)?;
            match self.chain.send(item, slot, timeline) {
                Ok(slot) => under_way.push_back((item, slot)),
                Err(error) => {
                    ran = Err(error);
                    break;
                }
            }
        }
        for item in under_way {
            self.slots.recycle(finish(item)?);
        }
        ran
    }
}
