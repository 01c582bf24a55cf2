//! Vector accesses, cache hints and clocks on `nvptx64`.

use core::arch::asm;
use core::mem::transmute_copy;

use super::Gpu;
use crate::Element;
use crate::memory::{Cache, Load, LoadHint, Memory, Store, StoreHint, check_vector};

/// Loads by the instruction `ld.global<hint><type>`, into as many registers as there are names.
macro_rules! load {
    ($hint:literal $type:literal $p:ident, $class:ident $register:ty: $($v:ident)*) => {{
        $(let $v: $register;)*
        // The assembly is not `pure`, because another thread may store there between two loads.
        asm!(
            concat!("ld.global", $hint, $type, " ", load!(@ $($v)*), ", [{p}];"),
            $($v = out($class) $v,)* p = in(reg64) $p, options(nostack, readonly, preserves_flags)
        );
        transmute_copy(&[$($v),*])
    }};
    (@ v0) => { "{v0}" };
    (@ v0 v1) => { "{{{v0}, {v1}}}" };
    (@ v0 v1 v2 v3) => { "{{{v0}, {v1}, {v2}, {v3}}}" };
}

/// Stores by the instruction `st.global<hint><type>`.
macro_rules! store {
    ($hint:literal $type:literal $p:ident $all:ident, $class:ident $register:ty: $($v:ident)*) => {{
        let [$($v),*]: [$register; [$(stringify!($v)),*].len()] = transmute_copy(&$all);
        asm!(
            concat!("st.global", $hint, $type, " [{p}], ", load!(@ $($v)*), ";"),
            $($v = in($class) $v,)* p = in(reg64) $p, options(nostack, preserves_flags)
        );
    }};
}

/// Calls `load!` or `store!` with the instruction for the vector's bytes. Elements of 8 bytes have
/// registers of their own, and smaller ones share registers of 4 bytes.
macro_rules! by_size {
    ($access:ident $hint:literal $size:expr, $element:expr, $($args:ident)*) => {
        match ($size, $element) {
            (16, 8) => $access!($hint ".v2.u64" $($args)*, reg64 u64: v0 v1),
            (16, _) => $access!($hint ".v4.u32" $($args)*, reg32 u32: v0 v1 v2 v3),
            (8, 8) => $access!($hint ".u64" $($args)*, reg64 u64: v0),
            (8, _) => $access!($hint ".v2.u32" $($args)*, reg32 u32: v0 v1),
            (4, _) => $access!($hint ".u32" $($args)*, reg32 u32: v0),
            (2, _) => $access!($hint ".u16" $($args)*, reg16 u16: v0),
            _ => $access!($hint ".u8" $($args)*, reg16 u16: v0),
        }
    };
}

impl Memory for Gpu {
    #[inline(always)]
    unsafe fn load_vector<T: Element, const N: usize, H: LoadHint>(self, p: *const T) -> [T; N] {
        const { check_vector::<T, N>() };
        // SAFETY: The caller promises that `p` is aligned and points to `N` elements of device
        // memory, which nobody writes if the hint is `ReadOnly`. `by_size` loads as many bytes, and
        // every bit pattern is a valid `Element`.
        unsafe {
            match H::LOAD {
                Load::Cached => by_size!(load "" size_of::<[T; N]>(), size_of::<T>(), p),
                Load::Global => by_size!(load ".cg" size_of::<[T; N]>(), size_of::<T>(), p),
                Load::Streaming => by_size!(load ".cs" size_of::<[T; N]>(), size_of::<T>(), p),
                Load::ReadOnly => by_size!(load ".nc" size_of::<[T; N]>(), size_of::<T>(), p),
                Load::Volatile => by_size!(load ".cv" size_of::<[T; N]>(), size_of::<T>(), p),
            }
        }
    }

    #[inline(always)]
    unsafe fn store_vector<T: Element, const N: usize, H: StoreHint>(self, p: *mut T, v: [T; N]) {
        const { check_vector::<T, N>() };
        // SAFETY: The caller promises that `p` is aligned and points to `N` elements of device
        // memory. `by_size` stores as many bytes.
        unsafe {
            // One byte takes half a register.
            if size_of::<[T; N]>() == 1 {
                let byte: u8 = transmute_copy(&v);
                let v = [u16::from(byte)];
                match H::STORE {
                    Store::Cached => by_size!(store "" 1, 1, p v),
                    Store::Global => by_size!(store ".cg" 1, 1, p v),
                    Store::Streaming => by_size!(store ".cs" 1, 1, p v),
                    Store::WriteThrough => by_size!(store ".wt" 1, 1, p v),
                }
                return;
            }
            match H::STORE {
                Store::Cached => by_size!(store "" size_of::<[T; N]>(), size_of::<T>(), p v),
                Store::Global => by_size!(store ".cg" size_of::<[T; N]>(), size_of::<T>(), p v),
                Store::Streaming => by_size!(store ".cs" size_of::<[T; N]>(), size_of::<T>(), p v),
                Store::WriteThrough => by_size!(store ".wt" size_of::<[T; N]>(), size_of::<T>(), p v),
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch<T: Element>(self, p: *const T, cache: Cache) {
        // SAFETY: The caller promises that `p` points into device memory. A prefetch changes no
        // memory.
        unsafe {
            match cache {
                Cache::L1 => asm!("prefetch.global.L1 [{0}];", in(reg64) p, options(nostack, preserves_flags)),
                Cache::L2 => asm!("prefetch.global.L2 [{0}];", in(reg64) p, options(nostack, preserves_flags)),
            }
        }
    }

    #[inline(always)]
    fn clock(self) -> u64 {
        let cycles;
        // SAFETY: The instruction only reads a special register. The assembly is not `pure`,
        // because each read gives another value, and it counts as an access to memory, so that it
        // stays where it is between loads and stores.
        unsafe { asm!("mov.u64 {0}, %clock64;", out(reg64) cycles, options(nostack, preserves_flags)) };
        cycles
    }
    #[inline(always)]
    fn timer(self) -> u64 {
        let nanoseconds;
        // SAFETY: As in `clock`, the instruction only reads a special register.
        unsafe { asm!("mov.u64 {0}, %globaltimer;", out(reg64) nanoseconds, options(nostack, preserves_flags)) };
        nanoseconds
    }
    #[inline(always)]
    fn nanosleep(self, nanoseconds: u32) {
        // SAFETY: The instruction only pauses the thread.
        unsafe { asm!("nanosleep.u32 {0};", in(reg32) nanoseconds, options(nostack, preserves_flags)) };
    }
}
