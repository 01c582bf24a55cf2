//! A device in twenty lines: buffers are host memory, a launch runs its blocks in order, here and
//! now.

use std::cell::RefCell;
use std::fmt::Debug;

use thalweg_simt::Element;
use thalweg_simt::cpu::{BlockError, BlockWorkspace, run_block};
use thalweg_simt::host::{DeviceSlice, Kernel, Launch, LaunchError, LaunchShape};

#[derive(Default)]
pub(crate) struct Cpu(RefCell<BlockWorkspace>);

#[derive(Debug)]
pub(crate) enum Error {
    Launch(LaunchError),
    #[expect(dead_code, reason = "shown where a test unwraps")]
    Block(BlockError),
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Self::Launch(error)
    }
}

// SAFETY: It has no maps.
unsafe impl Launch<()> for Cpu {
    type Error = Error;

    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), Error> {
        let [x, y, z] = shape.grid;
        for block in (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| [x, y, z]))) {
            // SAFETY: the caller's promise; `Buffer` exposes its provenance.
            unsafe { run_block(kernel, shape, block, slots, &mut self.0.borrow_mut()) }.map_err(Error::Block)?;
        }
        Ok(())
    }
}

/// Elements between two rows of canaries, starting `shift` elements past a 64-byte boundary.
pub(crate) struct Buffer<T> {
    data: Vec<T>,
    start: usize,
    len: usize,
    canary: T,
}

impl<T: Element + PartialEq + Debug> Buffer<T> {
    pub(crate) fn new(elements: &[T], shift: usize, canary: T) -> Self {
        let align = 64 / size_of::<T>();
        let mut data = vec![canary; elements.len() + 4 * align];
        let start = (data.as_ptr().align_offset(64) + align) / align * align + shift;
        data[start..start + elements.len()].copy_from_slice(elements);
        Self { data, start, len: elements.len(), canary }
    }

    pub(crate) fn filled(len: usize, canary: T) -> Self {
        Self::new(&vec![canary; len], 0, canary)
    }

    pub(crate) fn slice(&self) -> &DeviceSlice<(), T> {
        let addr = self.data[self.start..].as_ptr().expose_provenance() as u64;
        // SAFETY: `len` elements are there while the buffer is borrowed.
        unsafe { DeviceSlice::from_raw(addr, self.len) }
    }

    pub(crate) fn slice_mut(&mut self) -> &mut DeviceSlice<(), T> {
        let addr = self.data[self.start..].as_mut_ptr().expose_provenance() as u64;
        // SAFETY: as above, exclusively.
        unsafe { DeviceSlice::from_raw_mut(addr, self.len) }
    }

    /// The elements, after a look at the canaries.
    pub(crate) fn read(&self) -> &[T] {
        let (before, rest) = self.data.split_at(self.start);
        let (elements, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|v| *v == self.canary), "a kernel wrote outside its buffer");
        elements
    }
}

impl Buffer<f32> {
    /// Room for a kernel to write.
    pub(crate) fn floats(len: usize) -> Self {
        Self::filled(len, -777.0)
    }
}
