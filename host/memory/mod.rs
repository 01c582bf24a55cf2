//! Buffers in device memory and in page-locked host memory.

mod buffer;
mod peer;
mod pinned;
mod pool;
mod split;

use std::ptr::NonNull;

pub use buffer::DeviceBuffer;
pub use peer::{PeerBuffer, PeerSlice};
pub use pinned::PinnedBuffer;
pub use pool::PinnedPool;

use crate::error::{Error, Result};

/// Plain data that a buffer can hold: every bit pattern is a value, and it contains no pointers.
///
/// It is implemented for every [`bytemuck::Pod`] type that threads may share. Buffers of a type of
/// size 0 do not compile.
#[diagnostic::on_unimplemented(
    message = "a buffer cannot hold elements of `{Self}`",
    label = "not plain data",
    note = "elements are `bytemuck::Pod`, such as numbers and arrays of them; for a struct of them derive `Pod`, for `bool` use `u8`"
)]
pub trait DeviceCopy: bytemuck::Pod + Send + Sync {}
impl<T: bytemuck::Pod + Send + Sync> DeviceCopy for T {}

/// Alignment of the memory of every buffer, in bytes.
pub(crate) const ALIGNMENT: usize = 256;

/// The address of buffers without elements.
pub(crate) const EMPTY: NonNull<u8> = NonNull::new(std::ptr::without_provenance_mut(ALIGNMENT)).expect("not null");

/// Refuses element types that no buffer can hold. Each public function that makes buffers calls it
/// in a constant of its own, because the compiler then points at the call of that function.
pub(crate) const fn element<T: DeviceCopy>() {
    assert!(size_of::<T>() > 0, "a buffer's element type must have a size");
    assert!(align_of::<T>() <= ALIGNMENT, "a buffer's element type is aligned to at most 256 bytes");
}

/// The number of bytes of `len` elements.
pub(crate) fn byte_len<T: DeviceCopy>(len: usize) -> Result<usize> {
    const { element::<T>() }
    len.checked_mul(size_of::<T>())
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .ok_or(Error::TooLarge { elements: len, size: size_of::<T>() })
}
