//! The runner of the steps of a block: a GPU, where the code runs in each thread, or the CPU
//! device, where the code of the block runs once and a step is a loop over the threads.

use core::cell::Cell;

use crate::{Cooperative, Element, SharedMemory, Simt};

mod sealed {
    pub trait Sealed {}
}
pub(crate) use sealed::Sealed;

/// The access of a thread to the memory of its block. All functions are unsafe: bodies use the
/// phases of shared memory instead.
#[doc(hidden)]
pub trait Member: Simt {
    /// # Safety
    /// As for [`Cooperative::shared`].
    unsafe fn __window<T: Element>(self, byte_offset: u32) -> SharedMemory<T>;
    /// # Safety
    /// As for [`Cooperative::shared_get`].
    unsafe fn __get<T: Element>(self, s: SharedMemory<T>, i: u32) -> T;
    /// # Safety
    /// As for [`Cooperative::shared_set`].
    unsafe fn __set<T: Element>(self, s: SharedMemory<T>, i: u32, v: T);
    /// # Safety
    /// As for [`Cooperative::shared_add`].
    unsafe fn __add(self, s: SharedMemory<u32>, i: u32, v: u32) -> u32;
}

impl<C: Cooperative> Member for C {
    #[inline(always)]
    unsafe fn __window<T: Element>(self, byte_offset: u32) -> SharedMemory<T> {
        // SAFETY: The caller promises what the function requires.
        unsafe { self.shared(byte_offset) }
    }
    #[inline(always)]
    unsafe fn __get<T: Element>(self, s: SharedMemory<T>, i: u32) -> T {
        // SAFETY: The caller promises what the function requires.
        unsafe { self.shared_get(s, i) }
    }
    #[inline(always)]
    unsafe fn __set<T: Element>(self, s: SharedMemory<T>, i: u32, v: T) {
        // SAFETY: The caller promises what the function requires.
        unsafe { self.shared_set(s, i, v) };
    }
    #[inline(always)]
    unsafe fn __add(self, s: SharedMemory<u32>, i: u32, v: u32) -> u32 {
        // SAFETY: The caller promises what the function requires.
        unsafe { self.shared_add(s, i, v) }
    }
}

/// An operation of a warp on one word of each lane.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    Xor,
    Up,
    Down,
    Ballot,
    SumF32,
    MaxF32,
    MinF32,
    SumU32,
}

/// The threads of a block, as the code of the block has them. Bodies use [`Block`](super::Block).
#[doc(hidden)]
pub trait Team: Sealed + Copy {
    /// The context of one thread.
    type Cx: Member;
    /// A value of each thread for which the code runs.
    type Values<T: Copy>;

    /// The context of the first thread for which the code runs.
    fn first(self) -> Self::Cx;
    /// The bytes of dynamic shared memory of the block.
    fn shared_bytes(self) -> u32;
    /// Runs `f` for each thread. The order is `descending` if the threads run one after another.
    fn each<T: Copy>(self, descending: bool, f: impl Fn(Self::Cx) -> T) -> Self::Values<T>;
    /// The value of the thread `cx`.
    fn value<T: Copy>(values: &Self::Values<T>, cx: Self::Cx) -> &Cell<T>;
    /// Waits for all threads of the block.
    ///
    /// # Safety
    /// All threads of the block reach this call.
    unsafe fn meet(self);
    /// Returns, after a barrier, whether the value of any thread of the block is true.
    ///
    /// # Safety
    /// All threads of the block reach this call.
    unsafe fn any(self, values: &Self::Values<bool>) -> bool;
    /// Carries out an operation of each warp.
    ///
    /// # Safety
    /// All threads of the block reach this call, with the same `argument`.
    unsafe fn exchange(self, op: Exchange, values: &Self::Values<u32>, argument: u32) -> Self::Values<u32>;
    /// Computes `a * b + c` for the matrices of each warp, as
    /// [`Block::multiply_bytes`](super::Block::multiply_bytes) says.
    ///
    /// # Safety
    /// All threads of the block reach this call, with the same `signed`.
    unsafe fn multiply_bytes<const N: usize>(
        self,
        signed: bool,
        a: &Self::Values<[u32; 4]>,
        b: &Self::Values<[[u32; 2]; N]>,
        c: &Self::Values<[[i32; 4]; N]>,
    ) -> Self::Values<[[i32; 4]; N]>;
}
