//! Memory of outputs.

use thalweg::DeviceCopy;

/// Returns zeros, which Linux backs with pages of 2 MB where it can. With pages of 4 KB it takes
/// about as long to give the memory of an output as to compute what is in it.
#[allow(unsafe_code, reason = "the advice is a function of C")]
pub(crate) fn zeros<E: DeviceCopy>(len: usize) -> Vec<E> {
    let zeros = bytemuck::zeroed_vec::<E>(len);
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 2 << 20;
        let start = zeros.as_ptr();
        let before = start.addr().next_multiple_of(PAGE) - start.addr();
        let bytes = size_of_val(&*zeros).saturating_sub(before) / PAGE * PAGE;
        if bytes > 0 {
            // SAFETY: These bytes are within the vector, and the advice changes no byte. If the
            // system refuses the advice, the memory keeps its small pages.
            unsafe { libc::madvise(start.wrapping_byte_add(before).cast_mut().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
    }
    zeros
}
