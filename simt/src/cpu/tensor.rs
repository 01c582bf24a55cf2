//! Asynchronous copies and matrix operations on the host.

use super::copies::Pending;
use super::monitor::{Access, Monitor};
use super::thread::CpuThread;
use super::warp::At;
use crate::{Cooperative, Element, SharedMemory, TensorCore};

/// Returns a window of `U` whose first element is at the place of element `i` of `s`. If that is
/// past the end of the address space, so is the result, and an access reports it.
fn window<T, U>(s: SharedMemory<T>, i: u32) -> SharedMemory<U> {
    let start = s.start.saturating_add(i.saturating_mul(size_of::<T>() as u32));
    SharedMemory { start, element: std::marker::PhantomData }
}

impl<M: Monitor> CpuThread<'_, M> {
    /// Notes a copy of `bytes` bytes, which [`copy_async_wait`](TensorCore::copy_async_wait) makes.
    fn start(self, to: SharedMemory<u8>, from: *const u8, bytes: usize, copy: bool) {
        assert!(matches!(bytes, 4 | 8 | 16), "an asynchronous copy has 4, 8 or 16 bytes, not {bytes}");
        let from = copy.then(|| from.expose_provenance());
        self.fiber().lane.copies.borrow_mut().start(Pending { to, from, bytes });
    }

    /// Makes a copy.
    ///
    /// # Safety
    /// What [`TensorCore::copy_async_or_zero`] requires.
    #[track_caller]
    unsafe fn copy(self, Pending { to, from, bytes }: Pending) {
        let words = bytes / 4;
        let mut copied = [0u32; 4];
        if let Some(from) = from {
            let from = std::ptr::with_exposed_provenance::<u32>(from);
            let from = self.global_access(from, words, bytes, Access::Read);
            for (i, word) in copied[..words].iter_mut().enumerate() {
                // SAFETY: The thread that started the copy promised that so many bytes are there,
                // aligned, and that nobody writes them, so an ordinary read does not race.
                *word = unsafe { from.add(i).read() };
            }
        }
        let to = self.shared_access(window::<_, u32>(to, 0), 0, words as u32, bytes, Access::Write);
        for (i, word) in copied[..words].iter().enumerate() {
            // SAFETY: `shared_access` checked that the words are inside the buffer and aligned.
            // Only this OS thread uses the buffer.
            unsafe { to.add(i).write(*word) };
        }
    }

    /// Loads the row that this lane names, and exchanges rows with the other lanes.
    ///
    /// # Safety
    /// What [`TensorCore::load_matrices`] requires.
    #[track_caller]
    unsafe fn matrices<T: Element, const N: usize>(self, at: At, s: SharedMemory<T>, i: u32) -> [u32; N] {
        const { assert!(matches!(N, 1 | 2 | 4), "one, two or four matrices are loaded at once") };
        let mut row = [0; 4];
        if (self.lane() as usize) < 8 * N {
            // SAFETY: The caller promises that the row is inside the window and 16-byte aligned.
            row = unsafe { self.shared_get4(window(s, i), 0) };
        }
        let words = self.meet_wide(at, &row);
        std::array::from_fn(|j| words[j])
    }

    /// Multiplies the matrices whose fragments the lanes hold.
    #[track_caller]
    fn multiply(self, at: At, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        let c = c.map(f32::to_bits);
        self.meet_wide(at, &[a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]]).map(f32::from_bits)
    }
}

impl<M: Monitor> TensorCore for CpuThread<'_, M> {
    #[inline]
    #[track_caller]
    unsafe fn copy_async<T: Element, const BYTES: usize>(self, to: SharedMemory<T>, i: u32, from: *const T) {
        self.start(window(to, i), from.cast(), BYTES, true);
    }
    #[inline]
    #[track_caller]
    unsafe fn copy_async_or_zero<T: Element, const BYTES: usize>(
        self,
        to: SharedMemory<T>,
        i: u32,
        from: *const T,
        copy: bool,
    ) {
        self.start(window(to, i), from.cast(), BYTES, copy);
    }
    #[inline]
    #[track_caller]
    fn copy_async_commit(self) {
        self.fiber().lane.copies.borrow_mut().commit();
    }
    #[inline]
    #[track_caller]
    fn copy_async_wait<const PENDING: u32>(self) {
        // The list is not borrowed during a copy, because a violation unwinds out of it.
        let done = self.fiber().lane.copies.borrow_mut().take(PENDING);
        for copy in done {
            // SAFETY: The thread that started the copy promised what this requires, up to now.
            unsafe { self.copy(copy) };
        }
    }

    #[inline]
    #[track_caller]
    unsafe fn load_matrices<T: Element, const N: usize>(self, s: SharedMemory<T>, i: u32) -> [u32; N] {
        // SAFETY: The caller promises what this requires.
        unsafe { self.matrices(At::LoadMatrices, s, i) }
    }
    #[inline]
    #[track_caller]
    unsafe fn load_matrices_transposed<T: Element, const N: usize>(self, s: SharedMemory<T>, i: u32) -> [u32; N] {
        // SAFETY: The caller promises what this requires.
        unsafe { self.matrices(At::LoadMatricesTransposed, s, i) }
    }

    #[inline]
    #[track_caller]
    fn mma_f16(self, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        self.multiply(At::MmaF16, a, b, c)
    }
    #[inline]
    #[track_caller]
    fn mma_bf16(self, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        self.multiply(At::MmaBf16, a, b, c)
    }
    #[inline]
    #[track_caller]
    fn mma_tf32(self, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        self.multiply(At::MmaTf32, a, b, c)
    }
}
