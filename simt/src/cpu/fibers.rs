//! The threads of a cooperative block as coroutines, and their scheduler. The module [`cpu`](super)
//! describes how it works.

use std::panic::{self, AssertUnwindSafe};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::error::Fault;
use super::place::{Place, Turns};
use super::thread::Fiber;
use super::warp::{self, At, Lane, WARP};
use super::workspace::FiberSpace;

/// The size of a coroutine's stack in bytes. A guard page lies below it. Pages that are never
/// touched cost only address space. Even a small body needs more than 8 KiB: the standard library's
/// panic hook overflows so small a stack when it prints a backtrace.
const STACK: usize = 128 << 10;

/// A thread of a cooperative block.
type Thread<'a> = Coroutine<(), (), Result<(), Fault>, &'a mut DefaultStack>;

/// Runs every thread of a block to its end. `body` gets a thread's rank and what it waits with.
///
/// The body is behind a pointer, so that this is compiled once. As a generic function it was a
/// fourth of what a crate of kernels has to compile. A thread of a block is one call through it.
///
/// # Safety
/// While a thread waits, its body holds no value with a destructor and has lent no part of its
/// stack to others.
pub(super) unsafe fn run(
    place: &Place<'_>,
    space: &mut FiberSpace,
    body: &dyn Fn(u32, Fiber<'_>),
) -> Result<(), Fault> {
    let FiberSpace { stacks, lanes } = space;
    let threads = (place.dim.x * place.dim.y * place.dim.z) as usize;
    while stacks.len() < threads {
        let stack = DefaultStack::new(STACK).map_err(|e| Fault::Stacks { threads, reason: e.to_string() })?;
        stacks.push(stack);
    }
    // The lanes of the last block serve again: to make a thousand new ones takes longer than some
    // blocks.
    lanes.truncate(threads);
    lanes.iter().for_each(Lane::reset);
    lanes.resize_with(threads, Lane::default);
    let lanes = &lanes[..];

    let start = |(rank, stack)| {
        let lane = &lanes[rank];
        let rank = rank as u32;
        let main = move |yielder: &Yielder<(), ()>, ()| {
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| body(rank, Fiber { yielder, lane })));
            lane.at.set(At::Returned);
            outcome.map_err(|payload| Fault::of_panic(payload, place, rank))
        };
        // SAFETY: What `main` borrows must live until the coroutine is done or dropped. It borrows
        // `place`, `body` and `lanes`. All three live longer than `fibers`, which is declared
        // below, and dropping `fibers` ends every coroutine.
        unsafe { Coroutine::with_stack_unchecked(stack, main) }
    };
    let mut fibers = Fibers(stacks.iter_mut().take(threads).enumerate().map(start).collect());

    // A seed draws the orders of the checked device. It starts from that of the block's threads.
    let mut random = match place.turns {
        Turns::Drawn { start, step } => u64::from(start) << 32 | u64::from(step),
        Turns::Ascending | Turns::Descending => 0,
    };
    let mut descending = false;
    let mut turns = |n: usize, descending: bool| match (place.checker, descending) {
        (Some(_), _) => Turns::draw(n, &mut random),
        (None, true) => Turns::Descending,
        (None, false) => Turns::Ascending,
    };
    loop {
        run_phase(place, &mut fibers.0, lanes, |n| turns(n, descending))?;
        descending = !descending;
        if lanes.iter().all(|lane| lane.at.get() == At::Returned) {
            return Ok(());
        }
        let at = lanes[0].at.get();
        if !at.is_barrier() || lanes.iter().any(|lane| lane.at.get() != at) {
            return Err(Fault::Diverged { threads: warp::describe(lanes, 0) });
        }
        if let Some(checker) = place.checker {
            one_line(lanes, 0)?;
            checker.barrier();
        }
        warp::complete_barrier(lanes);
    }
}

/// Runs every thread up to the next barrier or to its end.
fn run_phase(
    place: &Place<'_>,
    threads: &mut [Thread<'_>],
    lanes: &[Lane],
    mut turns: impl FnMut(usize) -> Turns,
) -> Result<(), Fault> {
    let warps = lanes.len().div_ceil(WARP);
    let order = turns(warps);
    for turn in 0..warps {
        let first = WARP * order.at(turn, warps);
        let warp = &lanes[first..lanes.len().min(first + WARP)];
        loop {
            let order = turns(warp.len());
            for turn in 0..warp.len() {
                let lane = order.at(turn, warp.len());
                if warp[lane].at.get() == At::Running
                    && let CoroutineResult::Return(outcome) = threads[first + lane].resume(())
                {
                    outcome?;
                }
            }
            if warp::complete_among(warp, |lanes| {
                if let Some(checker) = place.checker {
                    checker.lanes_barrier((first / WARP) as u32, lanes);
                }
            }) {
                continue;
            }
            let at = warp[0].at.get();
            if warp.len() == WARP && at.is_warp_operation() && warp.iter().all(|lane| lane.at.get() == at) {
                if let Some(checker) = place.checker {
                    one_line(warp, first)?;
                    if at.orders_warp() {
                        checker.warp_barrier((first / WARP) as u32);
                    }
                }
                warp::complete(at, warp);
            } else if warp.iter().any(|lane| lane.at.get().is_warp_operation()) {
                return Err(Fault::Diverged { threads: warp::describe(warp, first) });
            } else {
                break;
            }
        }
    }
    Ok(())
}

/// Checks that all threads wait at one line. On a GPU, threads that wait at two copies of an
/// operation may wait for ever.
fn one_line(lanes: &[Lane], first: usize) -> Result<(), Fault> {
    let line = lanes[0].location.get();
    match lanes.iter().all(|lane| lane.location.get() == line) {
        true => Ok(()),
        false => Err(Fault::Diverged { threads: warp::describe(lanes, first) }),
    }
}

/// The threads of a block. Dropping it abandons those that have not returned.
struct Fibers<'a>(Vec<Thread<'a>>);

impl Drop for Fibers<'_> {
    fn drop(&mut self) {
        for fiber in &mut self.0 {
            // `force_reset` abandons the coroutine's stack without running destructors. Dropping a
            // suspended coroutine would abort the process, because corosensei is built without its
            // feature `unwind` here.
            // SAFETY: `force_reset` requires that no object on the stack needs its destructor. A
            // coroutine that has not started holds references only. A suspended coroutine is in
            // `CpuThread::meet`. Its other frames are `main`, `catch_unwind` and the closure of
            // `run_cooperative`, which hold references and no result yet, and the frames of the
            // kernel's body. The caller of
            // `run` promises that the body holds no value with a destructor there and lends nothing
            // of its stack. A function of `core` between the body and `meet`, such as `array::map`
            // around a shuffle, may hold a guard, but the guard only drops elements that are
            // `Copy`.
            unsafe { fiber.force_reset() };
        }
    }
}
