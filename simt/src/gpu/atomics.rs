//! Atomic operations and fences on `nvptx64`.

use core::arch::asm;
use core::sync::atomic::Ordering;

use super::Gpu;
use crate::SharedMemory;
use crate::atomics::{
    AtomicBits, Atomics, FenceOrder, LoadOrder, Location, Operation, Order, Reach, Scope, StoreOrder,
};

// Inline assembly needs the instruction as a literal, so each macro below writes out all of them.
// The compiler keeps one: order, scope and size are constants of the type, and the rest is known
// after inlining.

/// Calls a macro with the order and the scope of the types `$o` and `$s` as PTX writes them.
macro_rules! in_mode {
    (load $o:ident $s:ident, $emit:ident!($($args:tt)*)) => {
        match ($o::ORDER, $s::SCOPE) {
            (Ordering::Relaxed, Reach::Block) => $emit!(".relaxed.cta" $($args)*),
            (Ordering::Relaxed, Reach::Device) => $emit!(".relaxed.gpu" $($args)*),
            (Ordering::Relaxed, Reach::System) => $emit!(".relaxed.sys" $($args)*),
            (_, Reach::Block) => $emit!(".acquire.cta" $($args)*),
            (_, Reach::Device) => $emit!(".acquire.gpu" $($args)*),
            (_, Reach::System) => $emit!(".acquire.sys" $($args)*),
        }
    };
    (store $o:ident $s:ident, $emit:ident!($($args:tt)*)) => {
        match ($o::ORDER, $s::SCOPE) {
            (Ordering::Relaxed, Reach::Block) => $emit!(".relaxed.cta" $($args)*),
            (Ordering::Relaxed, Reach::Device) => $emit!(".relaxed.gpu" $($args)*),
            (Ordering::Relaxed, Reach::System) => $emit!(".relaxed.sys" $($args)*),
            (_, Reach::Block) => $emit!(".release.cta" $($args)*),
            (_, Reach::Device) => $emit!(".release.gpu" $($args)*),
            (_, Reach::System) => $emit!(".release.sys" $($args)*),
        }
    };
    // The short form of a relaxed operation on shared memory has the scope of the device. That is
    // right for each scope, because no other block sees the memory.
    (update $o:ident $s:ident $at:ident, $emit:ident!($($args:tt)*)) => {
        match ($o::ORDER, $s::SCOPE, $at) {
            (Ordering::Relaxed, _, Location::Shared(s, i)) => $emit!("" ".shared" address(s, i), reg32, $($args)*),
            (Ordering::Relaxed, Reach::Block, Location::Device(p)) => $emit!(".relaxed.cta" ".global" p, reg64, $($args)*),
            (Ordering::Relaxed, Reach::Device, Location::Device(p)) => $emit!("" ".global" p, reg64, $($args)*),
            (Ordering::Relaxed, Reach::System, Location::Device(p)) => $emit!(".relaxed.sys" ".global" p, reg64, $($args)*),
            (Ordering::Acquire, reach, at) => in_mode!(@ ".acquire" reach at, $emit!($($args)*)),
            (Ordering::Release, reach, at) => in_mode!(@ ".release" reach at, $emit!($($args)*)),
            (_, reach, at) => in_mode!(@ ".acq_rel" reach at, $emit!($($args)*)),
        }
    };
    (@ $order:literal $reach:ident $at:ident, $emit:ident!($($args:tt)*)) => {
        match ($reach, $at) {
            (Reach::Block, Location::Device(p)) => $emit!($order ".cta.global" p, reg64, $($args)*),
            (Reach::Device, Location::Device(p)) => $emit!($order ".gpu.global" p, reg64, $($args)*),
            (Reach::System, Location::Device(p)) => $emit!($order ".sys.global" p, reg64, $($args)*),
            (Reach::Block, Location::Shared(s, i)) => $emit!($order ".cta.shared" address(s, i), reg32, $($args)*),
            (Reach::Device, Location::Shared(s, i)) => $emit!($order ".gpu.shared" address(s, i), reg32, $($args)*),
            (Reach::System, Location::Shared(s, i)) => $emit!($order ".sys.shared" address(s, i), reg32, $($args)*),
        }
    };
}

/// One load.
macro_rules! load {
    ($mode:literal $space:literal $type:literal $class:ident $value:ty, $at:expr, $address:ident) => {{
        let v: $value;
        asm!(concat!("ld", $mode, $space, $type, " {0}, [{1}];"), out($class) v, in($address) $at, options(nostack));
        v
    }};
}

/// One store.
macro_rules! store {
    ($mode:literal $space:literal $type:literal $class:ident $v:expr, $at:expr, $address:ident) => {
        asm!(concat!("st", $mode, $space, $type, " [{0}], {1};"), in($address) $at, in($class) $v, options(nostack))
    };
}

/// One operation that reads and writes.
macro_rules! update {
    ($mode:literal $space:literal $at:expr, $address:ident, $operation:literal $class:ident $value:ty, $v:expr) => {{
        let old: $value;
        // If `old` is unused, ptxas drops the result and emits a reduction.
        asm!(
            concat!("atom", $mode, $space, $operation, " {0}, [{1}], {2};"),
            out($class) old, in($address) $at, in($class) $v, options(nostack)
        );
        old
    }};
}

/// One compare-exchange.
macro_rules! compare_exchange {
    (
        $mode:literal $space:literal $at:expr, $address:ident, $type:literal $class:ident $value:ty,
        $current:expr, $new:expr
    ) => {{
        let old: $value;
        asm!(
            concat!("atom", $mode, $space, ".cas", $type, " {0}, [{1}], {2}, {3};"),
            out($class) old, in($address) $at, in($class) $current, in($class) $new, options(nostack)
        );
        old
    }};
}

/// Returns the address of element `i` of a window of shared memory.
#[inline(always)]
fn address<B: AtomicBits>(s: SharedMemory<B>, i: u32) -> u32 {
    s.start + i * size_of::<B>() as u32
}

impl Atomics for Gpu {
    #[inline(always)]
    unsafe fn atomic_load<B: AtomicBits, O: LoadOrder, S: Scope>(self, at: Location<B>) -> B {
        // SAFETY: The caller promises that `at` is aligned and inside device memory or the block's
        // shared memory. Each arm loads as many bytes as `B` has.
        let wide = unsafe {
            match (at, size_of::<B>()) {
                (Location::Device(p), 4) => u64::from(in_mode!(load O S, load!(".global" ".u32" reg32 u32, p, reg64))),
                (Location::Device(p), _) => in_mode!(load O S, load!(".global" ".u64" reg64 u64, p, reg64)),
                (Location::Shared(s, i), 4) => {
                    u64::from(in_mode!(load O S, load!(".shared" ".u32" reg32 u32, address(s, i), reg32)))
                }
                (Location::Shared(s, i), _) => {
                    in_mode!(load O S, load!(".shared" ".u64" reg64 u64, address(s, i), reg32))
                }
            }
        };
        B::narrow(wide)
    }

    #[inline(always)]
    unsafe fn atomic_store<B: AtomicBits, O: StoreOrder, S: Scope>(self, at: Location<B>, v: B) {
        let v = v.wide();
        // SAFETY: The caller promises that `at` is aligned and inside device memory or the block's
        // shared memory. Each arm stores as many bytes as `B` has.
        unsafe {
            match (at, size_of::<B>()) {
                (Location::Device(p), 4) => in_mode!(store O S, store!(".global" ".u32" reg32 v as u32, p, reg64)),
                (Location::Device(p), _) => in_mode!(store O S, store!(".global" ".u64" reg64 v, p, reg64)),
                (Location::Shared(s, i), 4) => {
                    in_mode!(store O S, store!(".shared" ".u32" reg32 v as u32, address(s, i), reg32));
                }
                (Location::Shared(s, i), _) => {
                    in_mode!(store O S, store!(".shared" ".u64" reg64 v, address(s, i), reg32))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn atomic_update<B: AtomicBits, O: Order, S: Scope>(self, at: Location<B>, operation: Operation, v: B) -> B {
        let v = v.wide();
        // SAFETY: The caller promises that `at` is aligned and inside device memory or the block's
        // shared memory. Each arm accesses as many bytes as `B` has.
        unsafe {
            if size_of::<B>() == 4 {
                let v = v as u32;
                let old = match operation {
                    Operation::Add => in_mode!(update O S at, update!(".add.u32" reg32 u32, v)),
                    Operation::AddFloat => in_mode!(update O S at, update!(".add.f32" reg32 u32, v)),
                    Operation::Min => in_mode!(update O S at, update!(".min.u32" reg32 u32, v)),
                    Operation::Max => in_mode!(update O S at, update!(".max.u32" reg32 u32, v)),
                    Operation::MinSigned => in_mode!(update O S at, update!(".min.s32" reg32 u32, v)),
                    Operation::MaxSigned => in_mode!(update O S at, update!(".max.s32" reg32 u32, v)),
                    Operation::And => in_mode!(update O S at, update!(".and.b32" reg32 u32, v)),
                    Operation::Or => in_mode!(update O S at, update!(".or.b32" reg32 u32, v)),
                    Operation::Xor => in_mode!(update O S at, update!(".xor.b32" reg32 u32, v)),
                    Operation::Exchange => in_mode!(update O S at, update!(".exch.b32" reg32 u32, v)),
                };
                B::narrow(u64::from(old))
            } else {
                let old = match operation {
                    Operation::Add => in_mode!(update O S at, update!(".add.u64" reg64 u64, v)),
                    Operation::AddFloat => in_mode!(update O S at, update!(".add.f64" reg64 u64, v)),
                    Operation::Min => in_mode!(update O S at, update!(".min.u64" reg64 u64, v)),
                    Operation::Max => in_mode!(update O S at, update!(".max.u64" reg64 u64, v)),
                    Operation::MinSigned => in_mode!(update O S at, update!(".min.s64" reg64 u64, v)),
                    Operation::MaxSigned => in_mode!(update O S at, update!(".max.s64" reg64 u64, v)),
                    Operation::And => in_mode!(update O S at, update!(".and.b64" reg64 u64, v)),
                    Operation::Or => in_mode!(update O S at, update!(".or.b64" reg64 u64, v)),
                    Operation::Xor => in_mode!(update O S at, update!(".xor.b64" reg64 u64, v)),
                    Operation::Exchange => in_mode!(update O S at, update!(".exch.b64" reg64 u64, v)),
                };
                B::narrow(old)
            }
        }
    }

    #[inline(always)]
    unsafe fn atomic_compare_exchange<B: AtomicBits, O: Order, S: Scope>(
        self,
        at: Location<B>,
        current: B,
        new: B,
    ) -> B {
        let (current, new) = (current.wide(), new.wide());
        // SAFETY: The caller promises that `at` is aligned and inside device memory or the block's
        // shared memory. Each arm accesses as many bytes as `B` has.
        unsafe {
            if size_of::<B>() == 4 {
                let (current, new) = (current as u32, new as u32);
                let old = in_mode!(update O S at, compare_exchange!(".b32" reg32 u32, current, new));
                B::narrow(u64::from(old))
            } else {
                B::narrow(in_mode!(update O S at, compare_exchange!(".b64" reg64 u64, current, new)))
            }
        }
    }

    #[inline(always)]
    fn fence<O: FenceOrder, S: Scope>(self, _: O, _: S) {
        // SAFETY: A fence accesses nothing.
        unsafe {
            match (O::ORDER, S::SCOPE) {
                (Ordering::SeqCst, Reach::Block) => asm!("fence.sc.cta;", options(nostack)),
                (Ordering::SeqCst, Reach::Device) => asm!("fence.sc.gpu;", options(nostack)),
                (Ordering::SeqCst, Reach::System) => asm!("fence.sc.sys;", options(nostack)),
                (_, Reach::Block) => asm!("fence.acq_rel.cta;", options(nostack)),
                (_, Reach::Device) => asm!("fence.acq_rel.gpu;", options(nostack)),
                (_, Reach::System) => asm!("fence.acq_rel.sys;", options(nostack)),
            }
        }
    }
}
