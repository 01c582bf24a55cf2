//! A block of a running kernel, as its CPU entry sees it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::thread;

use super::error::Fault;
use super::fibers;
use super::monitor::{Monitor, Unchecked};
use super::place::Place;
use super::thread::{CpuThread, Fiber};
use super::workspace::FiberSpace;
use crate::Dim3;

/// A block of a running kernel. `M` says whether its accesses are checked.
pub struct CpuBlock<'a, M = Unchecked> {
    pub(super) place: Place<'a>,
    fibers: RefCell<&'a mut FiberSpace>,
    /// The rank of the independent thread that panicked.
    pub(super) thread: Cell<u32>,
    fault: Cell<Option<Fault>>,
    monitor: PhantomData<M>,
}

impl<M> fmt::Debug for CpuBlock<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuBlock").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Records which thread panicked. It costs nothing if no thread panics.
pub(super) struct OnUnwind<'a>(pub(super) &'a Cell<u32>, pub(super) u32);

impl Drop for OnUnwind<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

impl<'a, M: Monitor> CpuBlock<'a, M> {
    pub(super) fn new(place: Place<'a>, fibers: &'a mut FiberSpace) -> Self {
        Self { place, fibers: RefCell::new(fibers), thread: Cell::new(0), fault: Cell::new(None), monitor: PhantomData }
    }

    /// Runs the threads one after another. The entries of bodies over [`Simt`](crate::Simt) call
    /// it.
    #[inline(always)]
    pub fn run_independent(&self, body: impl Fn(CpuThread<'_, M>)) {
        // This is a copy that no store of the body can change, so it can stay in registers.
        let place = self.place;
        if M::CHECKED {
            let threads = (place.dim.x * place.dim.y * place.dim.z) as usize;
            for turn in 0..threads {
                let rank = place.turns.at(turn, threads) as u32;
                let guard = OnUnwind(&self.thread, rank);
                body(CpuThread { place: &place, idx: place.thread(rank), rank, fiber: None, monitor: PhantomData });
                std::mem::forget(guard);
            }
            return;
        }
        let mut rank = 0;
        for z in 0..place.dim.z {
            for y in 0..place.dim.y {
                for x in 0..place.dim.x {
                    let guard = OnUnwind(&self.thread, rank);
                    body(CpuThread { place: &place, idx: Dim3 { x, y, z }, rank, fiber: None, monitor: PhantomData });
                    std::mem::forget(guard);
                    rank += 1;
                }
            }
        }
    }

    /// Runs `body` once, with the context of the first thread. The entries of bodies that do the
    /// work of a whole block call it.
    #[inline(always)]
    pub fn run_whole(&self, body: impl FnOnce(CpuThread<'_, M>)) {
        let idx = Dim3 { x: 0, y: 0, z: 0 };
        body(CpuThread { place: &self.place, idx, rank: 0, fiber: None, monitor: PhantomData });
    }

    /// Runs the threads as coroutines that wait for each other. The entries of bodies over
    /// [`Cooperative`](crate::Cooperative) call it.
    ///
    /// If the threads diverge, this abandons those that wait: it does not unwind their stacks.
    ///
    /// # Safety
    /// While a thread waits, its body holds no value with a destructor and has lent no part of its
    /// stack to others.
    pub unsafe fn run_cooperative(&self, body: impl Fn(CpuThread<'_, M>)) {
        let place = &self.place;
        let start = |rank, fiber: Fiber<'_>| {
            body(CpuThread { place, idx: place.thread(rank), rank, fiber: Some(fiber), monitor: PhantomData });
        };
        // SAFETY: The caller promises what `fibers::run` requires of the body, and `start` only
        // calls it.
        let outcome = unsafe { fibers::run(place, &mut self.fibers.borrow_mut(), &start) };
        self.fault.set(outcome.err());
    }

    /// Returns what went wrong in a block whose entry returned or unwound with `outcome`.
    pub(super) fn fault(&self, outcome: thread::Result<()>) -> Option<Fault> {
        match outcome {
            Ok(()) => self.fault.take(),
            Err(payload) => Some(Fault::of_panic(payload, &self.place, self.thread.get())),
        }
    }
}
