//! Atomic operations and fences on the CPU device.

use std::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};

use super::monitor::{self, Access, Kind, Monitor};
use super::thread::CpuThread;
use crate::atomics::{
    AtomicBits, Atomics, FenceOrder, LoadOrder, Location, Operation, Order, Reach, Scope, StoreOrder,
};

/// Computes what an atomic operation stores. It is the operation's definition, and the reference
/// for the instructions of GPUs.
#[inline(always)]
fn result<B: AtomicBits>(operation: Operation, old: B, v: B) -> B {
    let (a, b) = (old.wide(), v.wide());
    // The shift puts the sign of a 32-bit number where that of a 64-bit number is.
    let signed = |v: u64| (v << (64 - 8 * size_of::<B>())) as i64;
    B::narrow(match operation {
        Operation::Add => a.wrapping_add(b),
        Operation::AddFloat if size_of::<B>() == 4 => {
            (f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits().into()
        }
        Operation::AddFloat => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        Operation::Min => a.min(b),
        Operation::Max => a.max(b),
        Operation::MinSigned => {
            if signed(a) < signed(b) {
                a
            } else {
                b
            }
        }
        Operation::MaxSigned => {
            if signed(a) > signed(b) {
                a
            } else {
                b
            }
        }
        Operation::And => a & b,
        Operation::Or => a | b,
        Operation::Xor => a ^ b,
        Operation::Exchange => b,
    })
}

/// Returns the order of the load in an update that stores nothing.
const fn of_load(order: Ordering) -> Ordering {
    match order {
        Ordering::Acquire | Ordering::AcqRel => Ordering::Acquire,
        _ => Ordering::Relaxed,
    }
}

/// Returns what the checked device is told of an operation.
fn access<S: Scope>(kind: Kind, order: Ordering) -> Access {
    let order = match order {
        Ordering::Relaxed => monitor::Order::Relaxed,
        Ordering::Acquire => monitor::Order::Acquire,
        Ordering::Release => monitor::Order::Release,
        _ => monitor::Order::AcquireRelease,
    };
    Access::Atomic { kind, order, scope: reach::<S>() }
}

/// Returns for whom an operation or a fence is, as the checked device knows it. It checks one
/// device, so it takes all devices for this one.
fn reach<S: Scope>() -> monitor::Scope {
    match S::SCOPE {
        Reach::Block => monitor::Scope::Block,
        Reach::Device | Reach::System => monitor::Scope::Device,
    }
}

impl<M: Monitor> CpuThread<'_, M> {
    /// Replaces an atomic by what `new` computes from it, if that is something. Returns the old
    /// bits.
    ///
    /// # Safety
    /// `at` is aligned, and in device memory or in the shared memory of the thread's block.
    #[inline(always)]
    #[track_caller]
    unsafe fn update<B: AtomicBits, S: Scope>(
        self,
        at: Location<B>,
        order: Ordering,
        new: impl Fn(B) -> Option<B>,
    ) -> B {
        let access = access::<S>(Kind::Update, order);
        match at {
            Location::Device(p) => {
                let p = self.global_access(p, 1, size_of::<B>(), access);
                // SAFETY: The caller promises that the address is aligned and in device memory,
                // which is valid for reads and writes. Ordinary accesses of kernels are atomic too,
                // so none of them conflicts.
                let (Ok(old) | Err(old)) = unsafe {
                    match size_of::<B>() {
                        4 => AtomicU32::from_ptr(p.cast())
                            .fetch_update(order, of_load(order), |old| {
                                new(B::narrow(old.into())).map(|new| new.wide() as u32)
                            })
                            .map(u64::from)
                            .map_err(u64::from),
                        _ => AtomicU64::from_ptr(p.cast())
                            .fetch_update(order, of_load(order), |old| new(B::narrow(old)).map(B::wide)),
                    }
                };
                B::narrow(old)
            }
            Location::Shared(s, i) => {
                let p = self.shared_access(s, i, 1, size_of::<B>(), access);
                // The threads of a block take turns on one OS thread.
                // SAFETY: `shared_access` checked that the element is inside the buffer, which
                // `run_block` initialized, and `Place::window` that it is aligned. Only this OS
                // thread uses the buffer.
                unsafe {
                    let old = p.read();
                    if let Some(new) = new(old) {
                        p.write(new);
                    }
                    old
                }
            }
        }
    }
}

impl<M: Monitor> Atomics for CpuThread<'_, M> {
    #[inline(always)]
    #[track_caller]
    unsafe fn atomic_load<B: AtomicBits, O: LoadOrder, S: Scope>(self, at: Location<B>) -> B {
        let access = access::<S>(Kind::Load, O::ORDER);
        match at {
            Location::Device(p) => {
                let p = self.global_access(p, 1, size_of::<B>(), access);
                // SAFETY: The caller promises that the address is aligned and in device memory,
                // which is valid for reads and writes. Ordinary accesses of kernels are atomic too,
                // so none of them conflicts.
                B::narrow(unsafe {
                    match size_of::<B>() {
                        4 => AtomicU32::from_ptr(p.cast()).load(O::ORDER).into(),
                        _ => AtomicU64::from_ptr(p.cast()).load(O::ORDER),
                    }
                })
            }
            // SAFETY: `shared_access` checked that the element is inside the buffer, which
            // `run_block` initialized, and `Place::window` that it is aligned. Only this OS thread
            // uses the buffer.
            Location::Shared(s, i) => unsafe { self.shared_access(s, i, 1, size_of::<B>(), access).read() },
        }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn atomic_store<B: AtomicBits, O: StoreOrder, S: Scope>(self, at: Location<B>, v: B) {
        let access = access::<S>(Kind::Store, O::ORDER);
        match at {
            Location::Device(p) => {
                let p = self.global_access(p, 1, size_of::<B>(), access);
                // SAFETY: The caller promises that the address is aligned and in device memory,
                // which is valid for reads and writes. Ordinary accesses of kernels are atomic too,
                // so none of them conflicts.
                unsafe {
                    match size_of::<B>() {
                        4 => AtomicU32::from_ptr(p.cast()).store(v.wide() as u32, O::ORDER),
                        _ => AtomicU64::from_ptr(p.cast()).store(v.wide(), O::ORDER),
                    }
                }
            }
            // SAFETY: `shared_access` checked that the element is inside the buffer, and
            // `Place::window` that it is aligned. Only this OS thread uses the buffer.
            Location::Shared(s, i) => unsafe { self.shared_access(s, i, 1, size_of::<B>(), access).write(v) },
        }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn atomic_update<B: AtomicBits, O: Order, S: Scope>(self, at: Location<B>, operation: Operation, v: B) -> B {
        // SAFETY: The caller promises what `update` requires of `at`.
        unsafe { self.update::<B, S>(at, O::ORDER, |old| Some(result(operation, old, v))) }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn atomic_compare_exchange<B: AtomicBits, O: Order, S: Scope>(
        self,
        at: Location<B>,
        current: B,
        new: B,
    ) -> B {
        // SAFETY: The caller promises what `update` requires of `at`.
        unsafe { self.update::<B, S>(at, O::ORDER, |old| (old == current).then_some(new)) }
    }

    #[inline(always)]
    fn fence<O: FenceOrder, S: Scope>(self, _: O, _: S) {
        self.ordered(reach::<S>());
        atomic::fence(O::ORDER);
    }
}
