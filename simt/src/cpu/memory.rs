//! Vector accesses, cache hints and clocks on the CPU device. It has no hints.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use super::monitor::{Access, Monitor};
use super::thread::CpuThread;
use crate::Element;
use crate::memory::{Cache, LoadHint, Memory, StoreHint, check_vector};

impl<M: Monitor> Memory for CpuThread<'_, M> {
    #[inline(always)]
    #[track_caller]
    unsafe fn load_vector<T: Element, const N: usize, H: LoadHint>(self, p: *const T) -> [T; N] {
        const { check_vector::<T, N>() };
        let p = self.global_access(p, N, size_of::<[T; N]>(), Access::Read);
        // SAFETY: The caller promises that `p` is aligned and points to `N` elements of device
        // memory, and `i` is below `N`.
        std::array::from_fn(|i| unsafe { T::load_relaxed(p.add(i)) })
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn store_vector<T: Element, const N: usize, H: StoreHint>(self, p: *mut T, v: [T; N]) {
        const { check_vector::<T, N>() };
        let p = self.global_access(p, N, size_of::<[T; N]>(), Access::Write);
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: The caller promises that `p` is aligned and points to `N` elements of device
            // memory, and `i` is below `N`.
            unsafe { T::store_relaxed(p.add(i), v) };
        }
    }

    #[inline(always)]
    unsafe fn prefetch<T: Element>(self, _: *const T, _: Cache) {}

    #[inline]
    fn clock(self) -> u64 {
        self.timer()
    }
    #[inline]
    fn timer(self) -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
    #[inline]
    fn nanosleep(self, nanoseconds: u32) {
        thread::sleep(Duration::from_nanos(nanoseconds.into()));
    }
}
