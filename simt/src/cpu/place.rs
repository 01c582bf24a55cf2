//! What the threads of a block have in common: the block's position and its shared memory.

use std::panic;

use crate::{Dim3, Element, Shared, Word};

/// The position, the extents and the shared memory of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) idx: Dim3,
    pub(super) grid: Dim3,
    pub(super) dim: Dim3,
    /// The start of the block's shared memory, 16-byte aligned.
    pub(super) shared: *mut u8,
    pub(super) shared_len: u32,
}

impl Place {
    /// Returns the position of the thread with this rank.
    pub(super) fn thread(&self, rank: u32) -> Dim3 {
        let Dim3 { x, y, .. } = self.dim;
        Dim3 { x: rank % x, y: rank / x % y, z: rank / (x * y) }
    }

    /// Makes a window of shared memory after checking its alignment.
    #[inline]
    pub(super) fn window<T: Element>(byte_offset: u32) -> Shared<T> {
        if !(byte_offset as usize).is_multiple_of(size_of::<T>()) {
            violation(format!(
                "a window of `{}` at byte {byte_offset}, which is not a multiple of {}",
                std::any::type_name::<T>(),
                size_of::<T>()
            ));
        }
        Shared { start: byte_offset, element: std::marker::PhantomData }
    }

    /// Returns the address of element `i` of a window of shared memory after checking it.
    #[inline]
    pub(super) fn shared_at<T: Element>(&self, s: Shared<T>, i: u32) -> *mut T {
        let end = u64::from(s.start) + (u64::from(i) + 1) * size_of::<T>() as u64;
        if end > u64::from(self.shared_len) {
            violation(format!(
                "element {i} of a window of `{}` that starts at byte {}",
                std::any::type_name::<T>(),
                s.start
            ));
        }
        // SAFETY: `run_block` made the buffer with at least `shared_len` bytes, and the check above
        // says that the element ends there or before.
        unsafe { self.shared.add(s.start as usize + i as usize * size_of::<T>()).cast() }
    }

    /// Returns the address of elements `i` to `i + 3` of a window of shared memory after checking
    /// them.
    #[inline]
    pub(super) fn shared_at4<T: Word>(&self, s: Shared<T>, i: u32) -> *mut [T; 4] {
        if !(u64::from(s.start) + u64::from(i) * 4).is_multiple_of(16) {
            violation(format!("four words at once from word {i} of a window that starts at byte {}", s.start));
        }
        let last = self.shared_at(s, i.saturating_add(3));
        // SAFETY: `shared_at` returned the address of element `i + 3` of the window. So element `i`
        // is three elements before it, in the same buffer.
        unsafe { last.sub(3).cast() }
    }
}

/// The panic payload of an access outside shared memory.
pub(super) struct Violation(pub(super) String);

/// Unwinds out of the body. It prints nothing to standard error, because the launch reports the
/// fault.
#[cold]
fn violation(access: String) -> ! {
    panic::resume_unwind(Box::new(Violation(access)))
}
