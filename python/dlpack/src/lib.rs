//! DLPack 1.3, as far as a producer needs it: memory of the host that frameworks take without a
//! copy, with its deleter.
//!
//! A [`Memory`] is shared by everything that was exported of it. It is freed when the last of them
//! is gone, on whatever thread that is. A deleter takes no lock, calls no interpreter and does not
//! panic.
//!
//! ```
//! use thalweg_dlpack::{Export, Kind, Memory};
//!
//! let memory = Memory::new(vec![1.0f32, 2.0, 3.0, 4.0]);
//! let export = Export { memory, offset: 0, shape: vec![2, 2], strides: vec![2, 1], kind: Kind::Float, bits: 32 };
//! let tensor = export.versioned();
//! // A framework takes it, uses it, and calls its deleter. Here nobody took it:
//! // SAFETY: `versioned` made it, and it is released once.
//! unsafe { thalweg_dlpack::release_versioned(tensor) };
//! ```

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// The number of `kDLCPU` in `DLDeviceType`.
pub const CPU: i32 = 1;
/// The number of `kDLCUDA` in `DLDeviceType`.
pub const CUDA: i32 = 2;

/// Plain numbers, of which memory can consist.
///
/// # Safety
/// The type has no destructor, and each of its bytes is initialized.
pub unsafe trait Number: Copy + Send + 'static {}
// SAFETY: These are plain numbers.
unsafe impl Number for u8 {}
// SAFETY: As above.
unsafe impl Number for u16 {}
// SAFETY: As above.
unsafe impl Number for u32 {}
// SAFETY: As above.
unsafe impl Number for i32 {}
// SAFETY: As above.
unsafe impl Number for i64 {}
// SAFETY: As above.
unsafe impl Number for f32 {}

/// Memory of the host that Rust reads and writes no more, once it is made. Clones are the same
/// memory.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Block>);

#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    bytes: usize,
    len: usize,
    free: unsafe fn(NonNull<u8>, usize),
}

// SAFETY: The block owns its memory, which this crate touches only to free it. Who else may access
// it, and when, is between the frameworks that have its address.
unsafe impl Send for Block {}
// SAFETY: As above: `&Block` gives an address and a length.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `Memory::new` made both from the same vector, and this is the only free.
        unsafe { (self.free)(self.start, self.len) };
    }
}

impl Memory {
    /// Takes the memory of a vector.
    #[must_use]
    pub fn new<T: Number>(numbers: Vec<T>) -> Self {
        /// # Safety
        /// `start` and `len` are those of a leaked boxed slice of `T`.
        unsafe fn free<T>(start: NonNull<u8>, len: usize) {
            let slice = std::ptr::slice_from_raw_parts_mut(start.cast::<T>().as_ptr(), len);
            // SAFETY: `Memory::new` leaked this box.
            drop(unsafe { Box::from_raw(slice) });
        }
        let (len, bytes) = (numbers.len(), size_of_val(&numbers[..]));
        let start = NonNull::from(Box::leak(numbers.into_boxed_slice())).cast::<u8>();
        Self(Arc::new(Block { start, bytes, len, free: free::<T> }))
    }

    /// The number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The address of the first byte, for whoever keeps the memory and agrees with its other users.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.start.as_ptr().expose_provenance()
    }

    /// Returns how many values share the memory: clones, and tensors that were exported and not
    /// released.
    #[must_use]
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// The kind of an element, as `DLDataTypeCode` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A signed integer.
    Int = 0,
    /// An unsigned integer.
    UInt = 1,
    /// An IEEE float.
    Float = 2,
    /// A bfloat16 number.
    Bfloat = 4,
}

/// A tensor to export: a view of memory, with strides in elements.
#[derive(Clone, Debug)]
pub struct Export {
    /// The memory, which lives until the consumer releases the tensor.
    pub memory: Memory,
    /// The first byte.
    pub offset: usize,
    /// The extents.
    pub shape: Vec<i64>,
    /// The elements from one to the next in each dimension.
    pub strides: Vec<i64>,
    /// The kind of an element.
    pub kind: Kind,
    /// The bits of an element.
    pub bits: u8,
}

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, and behind it what the deleter frees.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    export: Export,
}

/// `DLManagedTensorVersioned`, and behind it what the deleter frees.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
    export: Export,
}

impl Export {
    /// Says whether the view is inside of its memory.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        let item = usize::from(self.bits).div_ceil(8);
        if self.shape.len() != self.strides.len() || self.shape.iter().chain(&self.strides).any(|n| *n < 0) {
            return false;
        }
        if self.shape.contains(&0) {
            return self.offset <= self.memory.bytes();
        }
        let mut steps = self.shape.iter().zip(&self.strides);
        let last = steps.try_fold(0_usize, |at, (n, stride)| {
            usize::try_from(n - 1).ok()?.checked_mul(usize::try_from(*stride).ok()?)?.checked_add(at)
        });
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(item)?.checked_add(self.offset));
        end.is_some_and(|end| end <= self.memory.bytes())
    }

    /// # Panics
    /// The view is not inside of its memory.
    fn tensor(&self) -> Tensor {
        assert!(self.is_inside(), "a tensor outside of its memory: {self:?}");
        Tensor {
            // The offset is in the address, because some consumers ignore `byte_offset`.
            data: std::ptr::with_exposed_provenance_mut(self.memory.address() + self.offset),
            device: Device { kind: CPU, id: 0 },
            ndim: self.shape.len() as i32,
            dtype: DataType { code: self.kind as u8, bits: self.bits, lanes: 1 },
            shape: self.shape.as_ptr(),
            strides: self.strides.as_ptr(),
            byte_offset: 0,
        }
    }

    /// Makes a `DLManagedTensorVersioned`, for a capsule `dltensor_versioned`.
    ///
    /// # Panics
    /// The view is not inside of its memory.
    #[must_use]
    pub fn versioned(self) -> NonNull<c_void> {
        unsafe extern "C" fn delete(tensor: *mut Versioned) {
            if !tensor.is_null() {
                // SAFETY: The consumer calls the deleter once, with what `versioned` leaked.
                drop(unsafe { Box::from_raw(tensor) });
            }
        }
        let (tensor, context) = (self.tensor(), std::ptr::null_mut());
        // The vectors of `export` keep their addresses when the value moves into the box.
        let made = Versioned { version: [1, 3], context, deleter: Some(delete), flags: 0, tensor, export: self };
        NonNull::from(Box::leak(Box::new(made))).cast()
    }

    /// Makes a `DLManagedTensor`, for a capsule `dltensor`.
    ///
    /// # Panics
    /// The view is not inside of its memory.
    #[must_use]
    pub fn unversioned(self) -> NonNull<c_void> {
        unsafe extern "C" fn delete(tensor: *mut Managed) {
            if !tensor.is_null() {
                // SAFETY: The consumer calls the deleter once, with what `unversioned` leaked.
                drop(unsafe { Box::from_raw(tensor) });
            }
        }
        let (tensor, context) = (self.tensor(), std::ptr::null_mut());
        let made = Managed { tensor, context, deleter: Some(delete), export: self };
        NonNull::from(Box::leak(Box::new(made))).cast()
    }
}

/// Releases a tensor that no consumer took.
///
/// # Safety
/// [`Export::versioned`] made it, and nobody else released it or will.
pub unsafe fn release_versioned(tensor: NonNull<c_void>) {
    let tensor = tensor.cast::<Versioned>().as_ptr();
    // SAFETY: The caller passes what `versioned` made.
    if let Some(delete) = unsafe { (*tensor).deleter } {
        // SAFETY: As above, and this is the only release.
        unsafe { delete(tensor) };
    }
}

/// Releases a tensor that no consumer took.
///
/// # Safety
/// [`Export::unversioned`] made it, and nobody else released it or will.
pub unsafe fn release_unversioned(tensor: NonNull<c_void>) {
    let tensor = tensor.cast::<Managed>().as_ptr();
    // SAFETY: The caller passes what `unversioned` made.
    if let Some(delete) = unsafe { (*tensor).deleter } {
        // SAFETY: As above, and this is the only release.
        unsafe { delete(tensor) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(memory: &Memory) -> Export {
        let (shape, strides) = (vec![2, 3], vec![3, 1]);
        Export { memory: memory.clone(), offset: 4, shape, strides, kind: Kind::UInt, bits: 8 }
    }

    #[test]
    fn structs_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<Tensor>(), 48);
        assert_eq!(std::mem::offset_of!(Managed, export), 64);
        assert_eq!(std::mem::offset_of!(Versioned, export), 80);
        assert_eq!(std::mem::offset_of!(Versioned, tensor), 32);
    }

    #[test]
    fn each_export_keeps_the_memory_until_its_release() {
        let memory = Memory::new((0..10).collect::<Vec<u8>>());
        let (a, b) = (export(&memory).versioned(), export(&memory).unversioned());
        assert_eq!(memory.users(), 3);
        // SAFETY: `versioned` and `unversioned` made them, and nobody has released them.
        unsafe {
            let data = (*b.cast::<Managed>().as_ptr()).tensor.data.cast::<u8>();
            assert_eq!(*data, 4);
            release_versioned(a);
            assert_eq!((memory.users(), *data.add(5)), (2, 9));
            release_unversioned(b);
        }
        assert_eq!(memory.users(), 1);
    }

    #[test]
    fn a_view_is_inside_or_refused() {
        let memory = Memory::new(vec![0u8; 10]);
        let with = |offset, shape: [i64; 2], strides: [i64; 2]| {
            let (shape, strides) = (shape.to_vec(), strides.to_vec());
            Export { offset, shape, strides, ..export(&memory) }.is_inside()
        };
        assert!(with(4, [2, 3], [3, 1]) && with(0, [10, 1], [1, 1]) && with(10, [0, 3], [3, 1]));
        assert!(!with(5, [2, 3], [3, 1]) && !with(0, [11, 1], [1, 1]) && !with(11, [0, 3], [3, 1]));
        assert!(!with(0, [2, 3], [-3, 1]) && !with(0, [i64::MAX, 2], [i64::MAX, 1]));
    }
}
