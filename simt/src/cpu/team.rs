//! The team on the CPU device: the code of a block runs once, and a step is a loop over the
//! threads.
//!
//! No thread is a coroutine, so a barrier costs nothing. The loop runs upwards up to the first
//! barrier, then downwards, and so on by turns. So a result that depends on the order of the
//! threads, which only atomic operations can give, is likely to show.

use std::cell::Cell;
use std::marker::PhantomData;

use super::block::{CpuBlock, OnUnwind};
use super::matrices;
use super::monitor::Monitor;
use super::thread::CpuThread;
use super::warp::{self, At, WARP};
use crate::safe::{Exchange, Team};

impl<M: Monitor> CpuBlock<'_, M> {
    fn thread_of(&self, rank: u32) -> CpuThread<'_, M> {
        CpuThread { place: &self.place, idx: self.place.thread(rank), rank, fiber: None, monitor: PhantomData }
    }

    fn threads(&self) -> u32 {
        self.place.dim.x * self.place.dim.y * self.place.dim.z
    }
}

impl<M> crate::safe::Sealed for &CpuBlock<'_, M> {}
impl<'b, M: Monitor> Team for &'b CpuBlock<'_, M> {
    type Cx = CpuThread<'b, M>;
    type Values<T: Copy> = Box<[Cell<T>]>;

    fn first(self) -> CpuThread<'b, M> {
        self.thread_of(0)
    }
    fn shared_bytes(self) -> u32 {
        self.place.shared_len
    }
    #[inline(always)]
    fn each<T: Copy>(self, descending: bool, f: impl Fn(CpuThread<'b, M>) -> T) -> Box<[Cell<T>]> {
        let step = |rank| {
            let guard = OnUnwind(&self.thread, rank);
            let value = f(self.thread_of(rank));
            std::mem::forget(guard);
            Cell::new(value)
        };
        if M::CHECKED {
            // A block meets in the same places for each thread, so one order serves all its steps.
            let threads = self.threads() as usize;
            let mut values = Vec::new();
            for turn in 0..threads {
                let rank = self.place.turns.at(turn, threads);
                let value = step(rank as u32).get();
                // Each thread's place holds the first value until its own turn.
                if values.is_empty() {
                    values.resize(threads, Cell::new(value));
                }
                values[rank].set(value);
            }
            values.into_boxed_slice()
        } else {
            // One call of `step`, which is compiled where it stands.
            let threads = self.threads();
            let mut values = Vec::with_capacity(threads as usize);
            for turn in 0..threads {
                values.push(step(if descending { threads - 1 - turn } else { turn }));
            }
            if descending {
                values.reverse();
            }
            values.into_boxed_slice()
        }
    }
    #[inline(always)]
    fn value<'v, T: Copy>(values: &'v Box<[Cell<T>]>, cx: CpuThread<'b, M>) -> &'v Cell<T> {
        &values[cx.rank as usize]
    }
    unsafe fn meet(self) {
        if let Some(checker) = self.place.checker {
            checker.barrier();
        }
    }
    unsafe fn any(self, values: &Box<[Cell<bool>]>) -> bool {
        // SAFETY: The caller promises that all threads of the block reach this call.
        unsafe { self.meet() };
        values.iter().any(Cell::get)
    }
    unsafe fn exchange(self, op: Exchange, values: &Box<[Cell<u32>]>, argument: u32) -> Box<[Cell<u32>]> {
        let at = match op {
            Exchange::Xor => At::ShuffleXor,
            Exchange::Up => At::ShuffleUp,
            Exchange::Down => At::ShuffleDown,
            Exchange::Ballot => At::Ballot,
            Exchange::SumF32 => At::WarpSum,
            Exchange::MaxF32 => At::WarpMax,
            Exchange::MinF32 => At::WarpMin,
            Exchange::SumU32 => At::WarpSumU32,
        };
        let results = values.clone();
        // A cooperative block has a multiple of 32 threads.
        for warp in results.as_chunks::<WARP>().0 {
            let mut values = std::array::from_fn(|lane| warp[lane].get());
            warp::combine(at, &mut values, |_| argument);
            warp.iter().zip(values).for_each(|(result, value)| result.set(value));
        }
        results
    }
    unsafe fn multiply_bytes<const N: usize>(
        self,
        signed: bool,
        a: &Box<[Cell<[u32; 4]>]>,
        b: &Box<[Cell<[[u32; 2]; N]>]>,
        c: &Box<[Cell<[[i32; 4]; N]>]>,
    ) -> Box<[Cell<[[i32; 4]; N]>]> {
        let results = c.clone();
        let warps = a.as_chunks::<WARP>().0.iter().zip(b.as_chunks::<WARP>().0).zip(results.as_chunks::<WARP>().0);
        for ((a, b), sums) in warps {
            let a = matrices::bytes_16(signed, |lane| a[lane].get());
            for i in 0..N {
                let b = matrices::columns_8(|lane| b[lane].get()[i]);
                for (lane, sums) in sums.iter().enumerate() {
                    let mut all = sums.get();
                    all[i] = matrices::products(&a, &b, lane, all[i]);
                    sums.set(all);
                }
            }
        }
        results
    }
}
