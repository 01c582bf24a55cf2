//! The places of a pipeline: how slots come back to them, and who waits for one.
//!
//! A pipeline of depth n has n places, each for one slot. A slot is in one of three states. It is
//! free; or it is on loan, as a [`Frame`](crate::Frame) or as [`Tokens`](crate::Tokens); or it is
//! *returning*: its event was dropped while its work was pending. A slot that is given back keeps
//! its place until the device is past its work. Then it is free, with its memory and its graph. So
//! a pipeline never has more than n batches under way, but for those whose event `wait` or `unzip`
//! took over: they give their place back as soon as they are dropped, and their memory once their
//! work is done. `Tokens` that are dropped free their memory and their place.
//!
//! Threads and tasks that find no place stand in one queue, and get places in the order in which
//! they came. Only the first may take a place. **Invariant**: if there is room and a queue, the
//! first of the queue has been woken since it last looked. Whoever makes room or takes the first
//! out of the queue maintains this, with [`State::call`].
//!
//! Wakers are code of an executor, so none is woken, cloned or dropped under the lock.
//!
//! In a forked child, another thread of the parent may have held the lock, and then nobody ever
//! releases it. So nothing that runs there takes it, and slots leak.

mod slot;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Wake, Waker};

use thalweg::{Device, Error, Event, QueryResult, Result, Returned};

pub(crate) use slot::{Buffers, BuffersOn, Draft, Run, Slot, SlotOn, Work};

use crate::lock;
use crate::stages::StageTimings;

/// The places of a pipeline.
#[derive(Debug)]
pub(crate) struct Slots {
    device: Device,
    depth: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The slot that has been free the longest comes first.
    free: VecDeque<Draft>,
    /// Each has a number of its own.
    returning: Vec<(u64, Event<Slot>)>,
    /// The number of taken places. A free slot takes one, too.
    taken: usize,
    /// The callers that wait for a place, in the order in which they came.
    queue: VecDeque<Waiter>,
    /// The last number that was given.
    numbers: u64,
    stages: StageTimings,
}

/// A thread or task in the queue.
#[derive(Debug)]
struct Waiter {
    number: u64,
    /// `None` from when it is woken until it looks again.
    waker: Option<Waker>,
}

/// The result of [`Slots::claim`].
#[derive(Debug)]
pub(crate) enum Claim<T> {
    /// A free slot that suits.
    Free(Draft),
    /// A place for a new slot, and its plan. An old slot may have given way to it. Drop that one
    /// before making the new one.
    Place(Place, T, Option<Draft>),
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn has_room(&self, depth: usize) -> bool {
        !self.free.is_empty() || self.taken < depth
    }

    /// Takes out the waker of the first in the queue, if there is room and it was not woken yet.
    #[must_use = "wake it once the lock is released"]
    fn call(&mut self, depth: usize) -> Option<Waker> {
        if !self.has_room(depth) {
            return None;
        }
        self.queue.front_mut()?.waker.take()
    }

    /// Frees the returning slots whose work is done.
    fn sweep(&mut self) {
        for (number, slot) in std::mem::take(&mut self.returning) {
            match idle(slot) {
                Ok(slot) => self.free.push_back(slot.into()),
                Err(slot) => self.returning.push((number, slot)),
            }
        }
    }

    fn leave_queue(&mut self, number: u64) -> Option<Waiter> {
        let at = self.queue.iter().position(|waiter| waiter.number == number)?;
        self.queue.remove(at)
    }
}

impl Slots {
    pub(crate) fn new(device: Device, depth: usize) -> Arc<Self> {
        Arc::new(Self { device, depth, state: Mutex::default() })
    }

    /// Whether this process is a forked child.
    fn in_child(&self) -> bool {
        matches!(self.device.ensure_usable(), Err(Error::Forked))
    }

    pub(crate) fn stages(&self) -> StageTimings {
        lock(&self.state).stages
    }

    /// Takes a free slot that suits, or a place for a new one, if nobody else is first in the
    /// queue.
    ///
    /// Otherwise returns `None`. Then a caller that gives a `waker` stands in the queue from now
    /// on, under the number that this writes to `turn`, and is woken when it is its turn. It must
    /// [leave](Slots::leave) the queue if it gives up.
    ///
    /// `plan` runs before a free slot gives way to a new one, so that its error costs nothing.
    pub(crate) fn claim<T>(
        self: &Arc<Self>,
        suits: impl Fn(&Draft) -> bool,
        plan: impl FnOnce() -> Result<T>,
        turn: &mut Option<u64>,
        mut waker: Option<Waker>,
    ) -> Result<Option<Claim<T>>> {
        let mut state = lock(&self.state);
        state.sweep();
        let my_turn = state.queue.front().is_none_or(|first| Some(first.number) == *turn);
        let claim = self.take(&mut state, my_turn, suits, plan);
        let mut left = None;
        match (&claim, *turn) {
            (Ok(None), Some(number)) => {
                // From here on, `waker` is the old one, which is dropped once the lock is released.
                if let Some(waiter) = state.queue.iter_mut().find(|waiter| waiter.number == number) {
                    std::mem::swap(&mut waiter.waker, &mut waker);
                }
            }
            (Ok(None), None) => {
                if waker.is_some() {
                    let number = state.number();
                    state.queue.push_back(Waiter { number, waker: waker.take() });
                    *turn = Some(number);
                }
            }
            (_, Some(number)) => {
                left = state.leave_queue(number);
                *turn = None;
            }
            (_, None) => {}
        }
        let next = state.call(self.depth);
        drop(state);
        wake(next);
        discard((left, waker));
        claim
    }

    fn take<T>(
        self: &Arc<Self>,
        state: &mut State,
        my_turn: bool,
        suits: impl Fn(&Draft) -> bool,
        plan: impl FnOnce() -> Result<T>,
    ) -> Result<Option<Claim<T>>> {
        if my_turn && let Some(draft) = state.free.iter().position(suits).and_then(|at| state.free.remove(at)) {
            return Ok(Some(Claim::Free(draft)));
        }
        let plan = plan()?;
        if !my_turn || !state.has_room(self.depth) {
            return Ok(None);
        }
        let replaced = if state.taken < self.depth { None } else { state.free.pop_front() };
        state.taken += 1;
        Ok(Some(Claim::Place(Place(Arc::downgrade(self)), plan, replaced)))
    }

    /// Leaves the queue. The turn passes to the next.
    pub(crate) fn leave(&self, number: u64) {
        if self.in_child() {
            return;
        }
        let mut state = lock(&self.state);
        let left = state.leave_queue(number);
        let next = state.call(self.depth);
        drop(state);
        wake(next);
        discard(left);
    }

    /// Takes the free slots out, so that the caller can free their memory.
    pub(crate) fn take_free(&self) -> VecDeque<Draft> {
        std::mem::take(&mut lock(&self.state).free)
    }

    /// Takes back a slot that nobody uses, and adds the times of its batch, if it was measured.
    pub(crate) fn recycle(&self, draft: Draft, times: Option<StageTimings>) {
        if self.in_child() {
            return forget(draft);
        }
        let mut state = lock(&self.state);
        state.stages.add(times.unwrap_or_default());
        state.free.push_back(draft);
        let next = state.call(self.depth);
        drop(state);
        wake(next);
    }

    /// Takes a slot back. It is free once the event is complete. Waits for nothing.
    ///
    /// `done` is the slot's event over nothing. It is asked without the lock, because a question to
    /// a device with a seeded schedule runs what the device holds, host functions among it.
    pub(crate) fn give_back(self: Arc<Self>, slot: Event<Slot>, done: Event<()>) {
        if self.in_child() {
            return forget((slot, done));
        }
        let mut state = lock(&self.state);
        let number = state.number();
        state.returning.push((number, slot));
        drop(state);
        let waker = Waker::from(Arc::new(Return { slots: Arc::downgrade(&self), number }));
        if done.poll_ready(&mut Context::from_waker(&waker)).is_ready() {
            self.settle(number);
        }
    }

    /// Frees a returning slot whose work is done. If its device has failed, so that nobody can know
    /// whether it is done, drops the slot.
    fn settle(&self, number: u64) {
        let mut state = lock(&self.state);
        let Some(at) = state.returning.iter().position(|(n, _)| *n == number) else {
            return; // swept already
        };
        let (_, slot) = state.returning.swap_remove(at);
        let mut lost = None;
        match idle(slot) {
            Ok(slot) => state.free.push_back(slot.into()),
            Err(slot) => lost = Some(slot),
        }
        let next = state.call(self.depth);
        drop(state);
        wake(next);
        // The memory may leak, but the place comes free. So whoever waits gets the error of the
        // device instead of waiting forever.
        drop(lost);
    }
}

/// The slot, if its work is certainly done. Runs nothing, so it may be called under the lock.
fn idle(slot: Event<Slot>) -> Result<Slot, Event<Slot>> {
    if !slot.is_known_complete() {
        return Err(slot);
    }
    match slot.query() {
        Ok(QueryResult::Ready(slot)) => Ok(slot),
        Ok(QueryResult::Pending(slot)) | Err(Returned { value: slot, .. }) => Err(slot),
    }
}

/// Wakes a task. A waker and its destructor are code of the executor. This catches their panics,
/// because destructors call it.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        forget(catch_unwind(AssertUnwindSafe(|| waker.wake())).err());
    }
}

/// Drops what may hold a waker, and catches a panic of its destructor.
fn discard<T>(value: T) {
    forget(catch_unwind(AssertUnwindSafe(|| drop(value))).err());
}

/// Settles a returning slot when it is woken.
struct Return {
    slots: Weak<Slots>,
    number: u64,
}

impl Wake for Return {
    fn wake(self: Arc<Self>) {
        if let Some(slots) = self.slots.upgrade() {
            slots.settle(self.number);
        }
    }
}

/// The place of a slot. There are as many as the pipeline is deep. Free slots, which `Slots` owns,
/// have one too, so it refers to `Slots` weakly.
#[derive(Debug)]
pub(crate) struct Place(Weak<Slots>);

impl Place {
    pub(crate) fn is_of(&self, slots: &Arc<Slots>) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(slots))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(slots) = self.0.upgrade()
            && !slots.in_child()
        {
            let mut state = lock(&slots.state);
            state.taken -= 1;
            let next = state.call(slots.depth);
            drop(state);
            wake(next);
        }
    }
}
