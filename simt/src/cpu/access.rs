//! The only way of CPU kernels to memory. Each operation on global or shared memory first asks one
//! of these functions for the address that it may use. So the checked device sees every access.

use std::panic::Location;

use super::monitor::{Access, Monitor, Scope};
use super::thread::CpuThread;
use crate::{Element, SharedMemory};

impl<M: Monitor> CpuThread<'_, M> {
    /// Returns the address by which this thread may access `n` elements of global memory from `p`
    /// on, in one access that needs an alignment of `align` bytes.
    ///
    /// Use the result and not `p`: on the checked device they differ.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn global_access<T>(self, p: *const T, n: usize, align: usize, access: Access) -> *mut T {
        if M::CHECKED
            && let Some(checker) = self.place.checker
        {
            let location = Location::caller();
            let address = checker.global(self.rank, p.addr(), n * size_of::<T>(), align, access, location);
            return std::ptr::with_exposed_provenance_mut(address);
        }
        debug_assert!(p.addr().is_multiple_of(align), "an access at {p:?}, which is not {align}-byte aligned");
        p.cast_mut()
    }

    /// Returns the address of elements `i` to `i + n - 1` of a window of shared memory after
    /// checking that they are in the shared memory that the declaration asks for, and that the
    /// first one is aligned to `align` bytes.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn shared_access<T: Element>(
        self,
        s: SharedMemory<T>,
        i: u32,
        n: u32,
        align: usize,
        access: Access,
    ) -> *mut T {
        let p = self.place.shared_at(s, i, n, align);
        if M::CHECKED
            && let Some(checker) = self.place.checker
        {
            let (element, bytes) = ((s.start, i, size_of::<T>()), n as usize * size_of::<T>());
            checker.shared(self.rank, element, bytes, access, Location::caller());
        }
        p
    }

    /// Notes a fence, which orders this thread's accesses before it and after it for the threads of
    /// `scope`.
    #[inline(always)]
    pub(crate) fn ordered(self, scope: Scope) {
        if M::CHECKED
            && scope == Scope::Device
            && let Some(checker) = self.place.checker
        {
            checker.fence(self.rank);
        }
    }
}
