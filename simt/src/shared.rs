//! Windows of a block's shared memory.

use core::marker::PhantomData;

/// A window of a block's shared memory, as elements of `T`.
#[derive(Debug)]
pub struct SharedMemory<T> {
    /// The first byte of the window. It is an offset on the CPU device and an address in shared
    /// space on a GPU.
    pub(crate) start: u32,
    pub(crate) element: PhantomData<T>,
}

impl<T> SharedMemory<T> {
    /// Returns the address of element 0 in the block's shared memory, in bytes
    /// (`__cvta_generic_to_shared`). [`Cooperative::shared_at`](crate::Cooperative::shared_at)
    /// makes a window of such an address.
    #[must_use]
    #[inline(always)]
    pub fn address(self) -> u32 {
        self.start
    }

    /// Returns the same memory as words.
    #[inline(always)]
    pub(crate) fn words(self) -> SharedMemory<u32> {
        SharedMemory { start: self.start, element: PhantomData }
    }
}

impl<T> Clone for SharedMemory<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedMemory<T> {}
