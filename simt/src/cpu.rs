//! The context on the host: the blocks of a kernel, one after another, each on one OS thread.
//!
//! A block of independent threads is a loop around the inlined body. A block of cooperative threads
//! has a coroutine for each: it runs until it meets the others, at a barrier or in a warp operation,
//! leaves its operand in its lane and yields. One round of the scheduler resumes the 32 threads of
//! a warp; when all wait in the same warp operation it computes all 32 results and goes round again, so
//! that an operation costs one yield a thread; when all wait at the barrier it turns to the next warp.
//! Every other outcome can never be resolved, and is reported as a [`Fault::Diverged`].
//!
//! Every other phase between barriers runs in descending order of threads, so that a body that forgets
//! a barrier computes something visibly wrong rather than what one order happens to give.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::host::{Kernel, LaunchShape, counted};
use crate::{Cooperative, Dim3, Element, Shared, Simt, Word};

/// Threads of a warp.
const WARP: usize = 32;

/// Bytes of a coroutine's stack, below which a guard page lies. Pages that are never touched cost
/// address space only. What needs the most is the standard library's panic hook when it prints a
/// backtrace: 24 KiB were enough, 16 were not.
const STACK: usize = 128 << 10;

/// What shared memory holds before a block starts.
const POISON: u8 = 0xA5;

/// Coroutine stacks and shared memory, kept from block to block; one for each OS thread that runs
/// blocks.
///
/// It grows to what the largest block so far needed. A body that overflows its 128 KiB stack hits a guard
/// page, which ends the process as any stack overflow does.
#[derive(Default)]
pub struct Workspace {
    stacks: Vec<DefaultStack>,
    lanes: Vec<Lane>,
    shared: Vec<u128>,
}

impl Workspace {
    /// An empty workspace.
    pub const fn new() -> Self {
        Self { stacks: Vec::new(), lanes: Vec::new(), shared: Vec::new() }
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace")
            .field("stacks", &self.stacks.len())
            .field("shared", &size_of_val(&*self.shared))
            .finish()
    }
}

/// Runs one block of `kernel` on the calling thread.
///
/// # Errors
/// A thread of the block panicked, left its shared memory, or its threads diverged; or there was no
/// memory for the stacks. Part of the block may have run.
///
/// # Panics
/// The kernel has no CPU entry.
///
/// # Safety
/// The kernel is sound for these arguments and this shape, as
/// [`Launch::launch`](crate::host::Launch::launch) says; the addresses among `slots` are of memory that
/// was allocated with its provenance exposed, and that nothing but this launch accesses while it runs.
pub unsafe fn run_block(
    kernel: &Kernel,
    shape: LaunchShape,
    block_idx: [u32; 3],
    slots: &[u64],
    workspace: &mut Workspace,
) -> Result<(), BlockError> {
    let Some(entry) = kernel.cpu() else {
        panic!("kernel `{}` was declared without a body and cannot run on the CPU", kernel.name());
    };
    let Workspace { stacks, lanes, shared } = workspace;
    let words = (shape.shared as usize).div_ceil(size_of::<u128>());
    shared.clear();
    shared.resize(words, u128::from_ne_bytes([POISON; 16]));

    let block = CpuBlock {
        place: Place {
            idx: block_idx.into(),
            grid: shape.grid.into(),
            dim: shape.block.into(),
            shared: shared.as_mut_ptr().cast(),
            shared_len: shape.shared,
        },
        machine: RefCell::new(Machine { stacks, lanes }),
        thread: Cell::new(0),
        fault: Cell::new(None),
    };
    // What the body could leave in a broken state are buffers, whose contents a failed launch leaves
    // unspecified.
    // SAFETY: the caller's promise.
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| unsafe { entry(&block, slots) }));
    let fault = match outcome {
        Ok(()) => block.fault.take(),
        Err(payload) => Some(block.fault_of(payload, block.thread.get())),
    };
    match fault {
        None => Ok(()),
        Some(fault) => Err(BlockError { kernel: kernel.name(), block: block_idx, fault }),
    }
}

/// A block of a running kernel.
pub struct CpuBlock<'a> {
    place: Place,
    machine: RefCell<Machine<'a>>,
    /// Rank of the independent thread that panicked.
    thread: Cell<u32>,
    fault: Cell<Option<Fault>>,
}

/// What all threads of a block have in common.
#[derive(Clone, Copy, Debug)]
struct Place {
    idx: Dim3,
    grid: Dim3,
    dim: Dim3,
    shared: *mut u8,
    shared_len: u32,
}

impl Place {
    /// The position of the thread of this rank.
    fn thread(&self, rank: u32) -> Dim3 {
        let Dim3 { x, y, .. } = self.dim;
        Dim3 { x: rank % x, y: rank / x % y, z: rank / (x * y) }
    }
}

struct Machine<'a> {
    stacks: &'a mut Vec<DefaultStack>,
    lanes: &'a mut Vec<Lane>,
}

impl fmt::Debug for CpuBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuBlock").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Notes which thread panicked, at no cost to those that do not.
struct OnUnwind<'a>(&'a Cell<u32>, u32);

impl Drop for OnUnwind<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

impl CpuBlock<'_> {
    /// Runs the threads one after another; for bodies over [`Simt`].
    #[inline(always)]
    pub fn run_independent(&self, body: impl Fn(CpuThread<'_>)) {
        // A copy, which no store of the body can change, so that it stays in registers.
        let place = self.place;
        let mut rank = 0;
        for z in 0..place.dim.z {
            for y in 0..place.dim.y {
                for x in 0..place.dim.x {
                    let guard = OnUnwind(&self.thread, rank);
                    body(CpuThread { place: &place, idx: Dim3 { x, y, z }, rank, fiber: None });
                    std::mem::forget(guard);
                    rank += 1;
                }
            }
        }
    }

    /// Runs the threads as coroutines that meet; for bodies over [`Cooperative`].
    ///
    /// Where they diverge, those that wait are abandoned as they stand, without unwinding.
    ///
    /// # Safety
    /// While it waits, a body holds no value with a destructor and lends nothing of its stack to others.
    pub unsafe fn run_cooperative(&self, body: impl Fn(CpuThread<'_>)) {
        self.fault.set(self.cooperate(body).err());
    }

    fn cooperate(&self, body: impl Fn(CpuThread<'_>)) -> Result<(), Fault> {
        let mut machine = self.machine.borrow_mut();
        let Machine { stacks, lanes } = &mut *machine;
        let place = &self.place;
        let threads = (place.dim.x * place.dim.y * place.dim.z) as usize;
        while stacks.len() < threads {
            let stack = DefaultStack::new(STACK).map_err(|e| Fault::Stacks { threads, reason: e.to_string() })?;
            stacks.push(stack);
        }
        lanes.clear();
        lanes.resize_with(threads, Lane::default);
        let lanes = &lanes[..];

        let start = |(rank, stack)| {
            let (body, lane) = (&body, &lanes[rank]);
            let rank = rank as u32;
            let main = move |yielder: &Yielder<(), ()>, ()| {
                let cx = CpuThread { place, idx: place.thread(rank), rank, fiber: Some(Fiber { yielder, lane }) };
                let outcome = panic::catch_unwind(AssertUnwindSafe(|| body(cx)));
                lane.at.set(At::Returned);
                outcome.map_err(|payload| self.fault_of(payload, rank))
            };
            // SAFETY: `main` borrows the body, the lanes and the block, which outlive `fibers`,
            // declared after them; and `Fibers` ends every coroutine before it is dropped.
            unsafe { Coroutine::with_stack_unchecked(stack, main) }
        };
        let mut fibers = Fibers(stacks.iter_mut().take(threads).enumerate().map(start).collect());

        let mut descending = false;
        loop {
            run_phase(&mut fibers.0, lanes, descending)?;
            descending = !descending;
            if lanes.iter().all(|lane| lane.at.get() == At::Returned) {
                return Ok(());
            }
            if !lanes.iter().all(|lane| lane.at.get() == At::Barrier) {
                return Err(Fault::Diverged { threads: describe(lanes, 0) });
            }
            lanes.iter().for_each(|lane| lane.at.set(At::Running));
        }
    }

    #[cold]
    fn fault_of(&self, payload: Box<dyn Any + Send>, rank: u32) -> Fault {
        let Dim3 { x, y, z } = self.place.thread(rank);
        let thread = [x, y, z];
        let payload = match payload.downcast::<Violation>() {
            Ok(violation) => {
                return Fault::SharedMemory { thread, access: violation.0, shared: self.place.shared_len };
            }
            Err(payload) => payload,
        };
        let message = match payload.downcast::<String>() {
            Ok(message) => *message,
            Err(payload) => {
                let message = payload.downcast_ref::<&str>().map_or_else(|| "(no message)".into(), |s| (*s).into());
                // The drop of a payload of any other type could panic again.
                std::mem::forget(payload);
                message
            }
        };
        Fault::Panicked { thread, message }
    }
}

/// A thread of a cooperative block.
type Thread<'a> = Coroutine<(), (), Result<(), Fault>, &'a mut DefaultStack>;

/// Runs every thread up to the next barrier or its end.
fn run_phase(threads: &mut [Thread<'_>], lanes: &[Lane], descending: bool) -> Result<(), Fault> {
    let warps = lanes.len().div_ceil(WARP);
    for turn in 0..warps {
        let first = WARP * if descending { warps - 1 - turn } else { turn };
        let warp = &lanes[first..lanes.len().min(first + WARP)];
        loop {
            for turn in 0..warp.len() {
                let lane = if descending { warp.len() - 1 - turn } else { turn };
                if warp[lane].at.get() == At::Running
                    && let CoroutineResult::Return(outcome) = threads[first + lane].resume(())
                {
                    outcome?;
                }
            }
            let at = warp[0].at.get();
            if warp.len() == WARP && at.is_warp_operation() && warp.iter().all(|lane| lane.at.get() == at) {
                complete(at, warp);
            } else if warp.iter().any(|lane| lane.at.get().is_warp_operation()) {
                return Err(Fault::Diverged { threads: describe(warp, first) });
            } else {
                break;
            }
        }
    }
    Ok(())
}

/// The threads of a block.
struct Fibers<'a>(Vec<Thread<'a>>);

impl Drop for Fibers<'_> {
    fn drop(&mut self) {
        for fiber in &mut self.0 {
            // Dropping a suspended coroutine would unwind it, which corosensei turns into an abort
            // where it cannot.
            // SAFETY: `force_reset` abandons the coroutine's stack: no destructor on it runs. Nothing
            // outside the stack depends on one. A coroutine that has not started holds references only.
            // One that is suspended is in `CpuThread::meet`. The frames below it are `main` and
            // `catch_unwind`, which hold references and a result that is not yet made, and those of the
            // kernel's body. `kernel!` has the author promise that the body holds nothing there whose
            // destructor must run. The guards of core's own functions, such as that of `array::map`
            // around a shuffle, only drop elements, which are `Copy`.
            unsafe { fiber.force_reset() };
        }
    }
}

/// Where a thread of a cooperative block is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// Not started, or free to run on.
    #[default]
    Running,
    Returned,
    Barrier,
    ShuffleXor,
    ShuffleUp,
    ShuffleDown,
    Shuffle,
    Ballot,
    WarpSum,
    WarpMax,
    WarpMin,
    WarpSumU32,
}

impl At {
    fn is_warp_operation(self) -> bool {
        !matches!(self, Self::Running | Self::Returned | Self::Barrier)
    }

    /// Where that is, after "thread 7".
    fn describe(self) -> &'static str {
        match self {
            Self::Running => "not arrived",
            Self::Returned => "returned",
            Self::Barrier => "at `barrier`",
            Self::ShuffleXor => "in `shuffle_xor`",
            Self::ShuffleUp => "in `shuffle_up`",
            Self::ShuffleDown => "in `shuffle_down`",
            Self::Shuffle => "in `shuffle`",
            Self::Ballot => "in `ballot`",
            Self::WarpSum => "in `warp_sum`",
            Self::WarpMax => "in `warp_max`",
            Self::WarpMin => "in `warp_min`",
            Self::WarpSumU32 => "in `warp_sum_u32`",
        }
    }
}

/// Where a thread and the scheduler leave word for each other.
#[derive(Debug, Default)]
struct Lane {
    at: Cell<At>,
    /// Operand, then result.
    value: Cell<u32>,
    /// Mask, delta or source of a shuffle.
    argument: Cell<u32>,
}

/// Carries out a warp operation that all 32 lanes have reached, and lets them run on.
fn complete(at: At, warp: &[Lane]) {
    let mut values = [0; WARP];
    for (value, lane) in values.iter_mut().zip(warp) {
        *value = lane.value.get();
    }
    match at {
        At::ShuffleXor => shuffle(&mut values, warp, |lane, mask| lane ^ mask),
        At::ShuffleUp => shuffle(&mut values, warp, |lane, delta| lane.wrapping_sub(delta)),
        At::ShuffleDown => shuffle(&mut values, warp, |lane, delta| lane + delta),
        At::Shuffle => shuffle(&mut values, warp, |_, source| source),
        At::Ballot => {
            let ballot = (0..WARP).fold(0, |bits, lane| bits | values[lane] << lane);
            values = [ballot; WARP];
        }
        At::WarpSum => butterfly(&mut values, |a: f32, b| a + b),
        At::WarpMax => butterfly(&mut values, f32::max),
        At::WarpMin => butterfly(&mut values, f32::min),
        At::WarpSumU32 => butterfly(&mut values, u32::wrapping_add),
        At::Running | At::Returned | At::Barrier => unreachable!("not a warp operation"),
    }
    for (lane, value) in warp.iter().zip(values) {
        lane.value.set(value);
        lane.at.set(At::Running);
    }
}

/// Each lane takes the value of the lane that `source` names, of its own number and argument; its own
/// where there is no such lane. As on the GPU, only the low 5 bits of the argument count.
fn shuffle(values: &mut [u32; WARP], warp: &[Lane], source: impl Fn(usize, usize) -> usize) {
    let before = *values;
    for (lane, value) in values.iter_mut().enumerate() {
        if let Some(&v) = before.get(source(lane, warp[lane].argument.get() as usize % WARP)) {
            *value = v;
        }
    }
}

/// The reduction of `shuffle_xor` by 16, 8, 4, 2 and 1, with each lane's own value on the left.
fn butterfly<T: Word>(values: &mut [u32; WARP], op: impl Fn(T, T) -> T) {
    for mask in [16, 8, 4, 2, 1] {
        let before = values.map(T::from_word);
        for (lane, value) in values.iter_mut().enumerate() {
            *value = op(before[lane], before[lane ^ mask]).to_word();
        }
    }
}

/// Which threads are where: "threads 0 to 31 at `barrier`, thread 32 returned".
#[cold]
fn describe(lanes: &[Lane], first: usize) -> String {
    let mut start = first;
    let runs = lanes.chunk_by(|a, b| a.at == b.at).map(|run| {
        let from = start;
        start += run.len();
        let place = run[0].at.get().describe();
        if run.len() == 1 {
            format!("thread {from} {place}")
        } else {
            format!("threads {from} to {} {place}", start - 1)
        }
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// What the panic of an access outside shared memory carries.
struct Violation(String);

/// One thread of a block on the host.
#[derive(Clone, Copy)]
pub struct CpuThread<'a> {
    place: &'a Place,
    idx: Dim3,
    rank: u32,
    fiber: Option<Fiber<'a>>,
}

impl fmt::Debug for CpuThread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuThread").field("block", &self.place.idx).field("idx", &self.idx).finish()
    }
}

/// The coroutine side of a cooperative thread.
#[derive(Clone, Copy)]
struct Fiber<'a> {
    yielder: &'a Yielder<(), ()>,
    lane: &'a Lane,
}

impl CpuThread<'_> {
    /// Waits for the others; returns this thread's result.
    #[inline]
    fn meet(self, at: At, value: u32, argument: u32) -> u32 {
        let Some(Fiber { yielder, lane }) = self.fiber else {
            panic!("a kernel over `Simt` cannot wait for other threads: declare it over `Cooperative`");
        };
        lane.value.set(value);
        lane.argument.set(argument);
        lane.at.set(at);
        yielder.suspend(());
        lane.value.get()
    }

    /// The address of element `i` of a window of shared memory, checked.
    #[inline]
    fn shared_at<T: Element>(self, s: Shared<T>, i: u32) -> *mut T {
        let end = u64::from(s.start) + (u64::from(i) + 1) * size_of::<T>() as u64;
        if end > u64::from(self.place.shared_len) {
            violation(format!(
                "element {i} of a window of `{}` that starts at byte {}",
                std::any::type_name::<T>(),
                s.start
            ));
        }
        // SAFETY: the buffer holds `shared_len` bytes, and the element ends there or before.
        unsafe { self.place.shared.add(s.start as usize + i as usize * size_of::<T>()).cast() }
    }

    /// The address of elements `i` to `i + 3` of a window of shared memory, checked.
    #[inline]
    fn shared_at4<T: Word>(self, s: Shared<T>, i: u32) -> *mut [T; 4] {
        if !(u64::from(s.start) + u64::from(i) * 4).is_multiple_of(16) {
            violation(format!("four words at once from word {i} of a window that starts at byte {}", s.start));
        }
        let last = self.shared_at(s, i.saturating_add(3));
        // SAFETY: the element three before it is in the window too.
        unsafe { last.sub(3).cast() }
    }
}

/// Unwinds out of the body without a word on stderr: the launch reports it.
#[cold]
fn violation(access: String) -> ! {
    panic::resume_unwind(Box::new(Violation(access)))
}

impl Simt for CpuThread<'_> {
    #[inline(always)]
    fn thread_idx(self) -> Dim3 {
        self.idx
    }
    #[inline(always)]
    fn block_idx(self) -> Dim3 {
        self.place.idx
    }
    #[inline(always)]
    fn block_dim(self) -> Dim3 {
        self.place.dim
    }
    #[inline(always)]
    fn grid_dim(self) -> Dim3 {
        self.place.grid
    }

    #[inline(always)]
    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        // Without the instruction `mul_add` is a slow library call.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { a * b + c }
    }
    #[inline(always)]
    fn sqrt(self, x: f32) -> f32 {
        x.sqrt()
    }
    #[inline(always)]
    fn log2(self, x: f32) -> f32 {
        x.log2()
    }
    #[inline(always)]
    fn exp2(self, x: f32) -> f32 {
        x.exp2()
    }
    #[inline(always)]
    fn recip(self, x: f32) -> f32 {
        x.recip()
    }

    #[inline(always)]
    unsafe fn load<T: Element>(self, p: *const T) -> T {
        // SAFETY: the caller's promise.
        unsafe { T::load_relaxed(p) }
    }
    #[inline(always)]
    unsafe fn store<T: Element>(self, p: *mut T, v: T) {
        // SAFETY: the caller's promise.
        unsafe { T::store_relaxed(p, v) }
    }

    #[inline(always)]
    unsafe fn load4<T: Word>(self, p: *const T) -> [T; 4] {
        debug_assert!(p.addr().is_multiple_of(16), "load4 at {p:?}, which is not 16-byte aligned");
        // SAFETY: The caller promises an aligned address with 16 bytes to read, where no thread of the
        // grid writes. So an ordinary read does not race. An atomic one would need memory that can also
        // be written, and constants are loaded from here, too.
        unsafe { p.cast::<[T; 4]>().read() }
    }
    #[inline(always)]
    unsafe fn store4<T: Word>(self, p: *mut T, v: [T; 4]) {
        debug_assert!(p.addr().is_multiple_of(16), "store4 at {p:?}, which is not 16-byte aligned");
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: the caller's promise covers all four words.
            unsafe { T::store_relaxed(p.add(i), v) };
        }
    }
    #[inline(always)]
    unsafe fn store4_streaming<T: Word>(self, p: *mut T, v: [T; 4]) {
        // SAFETY: the caller's promise.
        unsafe { self.store4(p, v) };
    }

    #[inline(always)]
    unsafe fn atomic_add(self, p: *mut u32, v: u32) -> u32 {
        // SAFETY: aligned and valid by the caller's promise, and other threads use atomics too.
        unsafe { AtomicU32::from_ptr(p) }.fetch_add(v, Relaxed)
    }
    #[inline(always)]
    unsafe fn atomic_max(self, p: *mut u32, v: u32) -> u32 {
        // SAFETY: as for `atomic_add`.
        unsafe { AtomicU32::from_ptr(p) }.fetch_max(v, Relaxed)
    }
    #[inline(always)]
    unsafe fn atomic_min(self, p: *mut u32, v: u32) -> u32 {
        // SAFETY: as for `atomic_add`.
        unsafe { AtomicU32::from_ptr(p) }.fetch_min(v, Relaxed)
    }
}

impl Cooperative for CpuThread<'_> {
    #[inline]
    fn barrier(self) {
        self.meet(At::Barrier, 0, 0);
    }
    #[inline(always)]
    fn rank(self) -> u32 {
        self.rank
    }

    #[inline]
    fn shuffle_xor<T: Word>(self, v: T, mask: u32) -> T {
        T::from_word(self.meet(At::ShuffleXor, v.to_word(), mask))
    }
    #[inline]
    fn shuffle_up<T: Word>(self, v: T, delta: u32) -> T {
        T::from_word(self.meet(At::ShuffleUp, v.to_word(), delta))
    }
    #[inline]
    fn shuffle_down<T: Word>(self, v: T, delta: u32) -> T {
        T::from_word(self.meet(At::ShuffleDown, v.to_word(), delta))
    }
    #[inline]
    fn shuffle<T: Word>(self, v: T, source: u32) -> T {
        T::from_word(self.meet(At::Shuffle, v.to_word(), source))
    }
    #[inline]
    fn ballot(self, p: bool) -> u32 {
        self.meet(At::Ballot, u32::from(p), 0)
    }

    #[inline]
    fn warp_sum(self, v: f32) -> f32 {
        f32::from_bits(self.meet(At::WarpSum, v.to_bits(), 0))
    }
    #[inline]
    fn warp_max(self, v: f32) -> f32 {
        f32::from_bits(self.meet(At::WarpMax, v.to_bits(), 0))
    }
    #[inline]
    fn warp_min(self, v: f32) -> f32 {
        f32::from_bits(self.meet(At::WarpMin, v.to_bits(), 0))
    }
    #[inline]
    fn warp_sum_u32(self, v: u32) -> u32 {
        self.meet(At::WarpSumU32, v, 0)
    }

    #[inline]
    unsafe fn shared<T: Element>(self, byte_offset: u32) -> Shared<T> {
        if !(byte_offset as usize).is_multiple_of(size_of::<T>()) {
            violation(format!(
                "a window of `{}` at byte {byte_offset}, which is not a multiple of {}",
                std::any::type_name::<T>(),
                size_of::<T>()
            ));
        }
        Shared { start: byte_offset, element: std::marker::PhantomData }
    }
    #[inline]
    unsafe fn shared_get<T: Element>(self, s: Shared<T>, i: u32) -> T {
        // SAFETY: inside the buffer, initialised, aligned because the buffer and the window's start are;
        // only this OS thread uses the buffer, and any bit pattern is a `T`.
        unsafe { self.shared_at(s, i).read() }
    }
    #[inline]
    unsafe fn shared_set<T: Element>(self, s: Shared<T>, i: u32, v: T) {
        // SAFETY: as for `shared_get`.
        unsafe { self.shared_at(s, i).write(v) };
    }
    #[inline]
    unsafe fn shared_get4<T: Word>(self, s: Shared<T>, i: u32) -> [T; 4] {
        // SAFETY: as for `shared_get`; four words that start on 16 bytes.
        unsafe { self.shared_at4(s, i).read() }
    }
    #[inline]
    unsafe fn shared_set4<T: Word>(self, s: Shared<T>, i: u32, v: [T; 4]) {
        // SAFETY: as for `shared_get4`.
        unsafe { self.shared_at4(s, i).write(v) };
    }
    #[inline]
    unsafe fn shared_add(self, s: Shared<u32>, i: u32, v: u32) -> u32 {
        let p = self.shared_at(s, i);
        // SAFETY: as for `shared_get`; the threads of the block take turns, so no atomic is needed.
        unsafe {
            let old = p.read();
            p.write(old.wrapping_add(v));
            old
        }
    }
}

impl From<[u32; 3]> for Dim3 {
    fn from([x, y, z]: [u32; 3]) -> Self {
        Self { x, y, z }
    }
}

/// A block that could not be run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockError {
    /// The kernel's name.
    pub kernel: &'static str,
    /// The block's position in the grid.
    pub block: [u32; 3],
    /// What happened.
    pub fault: Fault,
}

/// What ended a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A thread panicked.
    Panicked {
        /// The thread's position in the block.
        thread: [u32; 3],
        /// The panic's message.
        message: String,
    },
    /// Threads wait that can never meet: for others that returned, or that wait somewhere else.
    Diverged {
        /// Which threads are where, by rank in the block, `x` fastest.
        threads: String,
    },
    /// A thread used shared memory outside the bytes of the declaration, or misaligned.
    SharedMemory {
        /// The thread's position in the block.
        thread: [u32; 3],
        /// What it accessed.
        access: String,
        /// Bytes of shared memory that the declaration asks for.
        shared: u32,
    },
    /// The operating system gave no memory for the stacks of the block's threads.
    Stacks {
        /// Threads of the block.
        threads: usize,
        /// What the operating system said.
        reason: String,
    },
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, block, fault } = self;
        write!(f, "kernel `{kernel}`, block {block:?}: ")?;
        match fault {
            Fault::Panicked { thread, message } => write!(f, "thread {thread:?} panicked: {message}"),
            Fault::Diverged { threads } => write!(
                f,
                "its threads diverged: {threads} (a barrier must be reached by every thread of the block, a warp \
                 operation by all 32 threads of the warp)"
            ),
            Fault::SharedMemory { thread, access, shared } => {
                let shared = counted(*shared, "byte");
                write!(f, "thread {thread:?} accessed {access}; the kernel declares {shared} of shared memory")
            }
            Fault::Stacks { threads, reason } => {
                let threads = counted(*threads, "cooperating thread");
                write!(f, "no memory for the stacks of {threads}: {reason}")
            }
        }
    }
}
impl std::error::Error for BlockError {}
