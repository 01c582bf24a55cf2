//! Buffers for kernels, between fences.

use std::fmt::Debug;
use std::ops::Range;

use thalweg::{DeviceBuffer, DeviceCopy, DeviceSlice, LiveBrand, On, Stream};
use thalweg_simt::{bf16, f16};

/// The number of elements on either side. It is a multiple of every alignment that a kernel checks.
const WIDTH: usize = 64;

/// The value that fills fences, and buffers before anything is written to them.
pub trait Fence: DeviceCopy + Debug {
    const FENCE: Self;
}
impl Fence for u8 {
    const FENCE: Self = 0xcd;
}
impl Fence for u16 {
    const FENCE: Self = 0xabcd;
}
impl Fence for u32 {
    const FENCE: Self = 0xdead_beef;
}
impl Fence for i32 {
    const FENCE: Self = -0x5eed_5eed;
}
/// A NaN, so a result that depends on it shows. Its bits are unusual, so no computed NaN equals it.
impl Fence for f32 {
    const FENCE: Self = f32::from_bits(0x7fed_cba9);
}

impl Fence for f16 {
    const FENCE: Self = f16::from_bits(0x7eda);
}
impl Fence for bf16 {
    const FENCE: Self = bf16::from_bits(0x7fda);
}

/// Tells whether two elements have the same bits.
pub fn same<T: DeviceCopy>(a: &T, b: &T) -> bool {
    bytemuck::bytes_of(a) == bytemuck::bytes_of(b)
}

/// Elements in device memory inside a larger allocation. Each read checks the rest of the
/// allocation.
pub struct Fenced<S: LiveBrand, T: DeviceCopy> {
    stream: Stream<S>,
    whole: On<S, DeviceBuffer<T>>,
    inside: Range<usize>,
}

impl<S: LiveBrand, T: Fence> Fenced<S, T> {
    /// Uploads `elements` to a place `shift` elements past an aligned address.
    pub fn new(stream: &Stream<S>, elements: &[T], shift: usize) -> Self {
        let inside = WIDTH + shift..WIDTH + shift + elements.len();
        let mut all = vec![T::FENCE; inside.end + WIDTH];
        all[inside.clone()].copy_from_slice(elements);
        Self { stream: *stream, whole: stream.upload_blocking(&all).unwrap(), inside }
    }

    /// Makes room for `len` elements, which hold the fence value until they are written.
    pub fn room(stream: &Stream<S>, len: usize, shift: usize) -> Self {
        Self::new(stream, &vec![T::FENCE; len], shift)
    }

    pub fn slice(&self) -> &DeviceSlice<S, T> {
        self.whole.slice(self.inside.clone()).unwrap()
    }

    pub fn slice_mut(&mut self) -> &mut DeviceSlice<S, T> {
        self.whole.slice_mut(self.inside.clone()).unwrap()
    }

    /// Reads the elements.
    ///
    /// # Panics
    /// Panics if a fence was overwritten.
    #[track_caller]
    pub fn read(&self) -> Vec<T> {
        let mut all = self.stream.read_blocking(&self.whole).unwrap();
        for (i, v) in all.iter().enumerate().filter(|(i, _)| !self.inside.contains(i)) {
            let at = i as isize - self.inside.start as isize;
            assert!(same(v, &T::FENCE), "{v:?} was written at {at} of {} elements", self.inside.len());
        }
        all.drain(self.inside.end..);
        all.drain(..self.inside.start);
        all
    }
}
