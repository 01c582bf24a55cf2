//! A case: it draws buffers and numbers, launches, and notes which kernels were launched.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use testkit::oracle::SplitMix;
use thalweg::{DeviceBuffer, DeviceCopy, DeviceSlice, On, PerThread, Result, Stream};
use thalweg_simt::Element;
use thalweg_simt::host::{Kernel, Launch, LaunchShape, MatrixView, TensorMap};

/// How often each kernel was launched.
pub(crate) type Launched = RefCell<BTreeMap<&'static str, u64>>;

pub(crate) struct Trial<'s, 'l> {
    stream: &'s Stream<PerThread<'l>>,
    random: RefCell<SplitMix>,
    launched: &'s Launched,
    /// The number of the case.
    pub(crate) number: u32,
}

// SAFETY: Everything goes to the stream as it is.
unsafe impl<'l> Launch<PerThread<'l>> for Trial<'_, 'l> {
    type Error = thalweg::Error;

    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<()> {
        if !shape.grid.contains(&0) {
            *self.launched.borrow_mut().entry(kernel.name()).or_default() += 1;
        }
        // SAFETY: The caller promises what the stream asks for.
        unsafe { self.stream.launch(kernel, shape, slots) }
    }

    fn multiprocessors(&self) -> u32 {
        self.stream.multiprocessors()
    }

    fn tensor_map(&self, tiles: &MatrixView) -> Result<Option<TensorMap>> {
        self.stream.tensor_map(tiles)
    }
}

/// A buffer from some element on.
pub(crate) struct Piece<'l, T: DeviceCopy> {
    buffer: On<PerThread<'l>, DeviceBuffer<T>>,
    start: usize,
}

impl<'l, T: DeviceCopy> Deref for Piece<'l, T> {
    type Target = DeviceSlice<PerThread<'l>, T>;
    fn deref(&self) -> &Self::Target {
        self.buffer.slice(self.start..).expect("the start is in the buffer")
    }
}
impl<T: DeviceCopy> DerefMut for Piece<'_, T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.buffer.slice_mut(self.start..).expect("the start is in the buffer")
    }
}

impl<'s, 'l> Trial<'s, 'l> {
    pub(crate) fn new(stream: &'s Stream<PerThread<'l>>, launched: &'s Launched, seed: u64, number: u32) -> Self {
        Self { stream, random: RefCell::new(SplitMix(seed)), launched, number }
    }

    pub(crate) fn next(&self) -> u64 {
        self.random.borrow_mut().next()
    }
    pub(crate) fn below(&self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32
    }
    pub(crate) fn within(&self, least: u32, most: u32) -> u32 {
        least + self.below(most - least + 1)
    }
    /// Whether something happens that happens once in `n` times.
    pub(crate) fn once_in(&self, n: u32) -> bool {
        self.below(n) == 0
    }
    pub(crate) fn flip(&self) -> bool {
        self.once_in(2)
    }
    pub(crate) fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    /// A number that hurts as an index: small ones, powers of two and what is beside them, and what
    /// is near 2^32.
    pub(crate) fn word(&self) -> u32 {
        match self.below(5) {
            0 => self.below(4),
            1 => self.below(200),
            2 => (1u32 << self.below(32)).wrapping_add(self.below(3)).wrapping_sub(1),
            3 => u32::MAX - self.below(300),
            _ => self.next() as u32,
        }
    }

    /// A float that hurts: also infinite ones, what is not a number, and what overflows once it is
    /// added.
    pub(crate) fn float(&self) -> f32 {
        match self.below(12) {
            0 => self.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, -0.0]),
            1 => f32::from_bits(self.next() as u32),
            2 => self.word() as f32,
            _ => (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0,
        }
    }

    /// The length that a buffer gets: now and then another one than it should have.
    fn length(&self, len: usize) -> usize {
        if self.once_in(300) { (len + self.below(3) as usize).saturating_sub(1) } else { len }
    }

    /// How many elements a buffer begins after an aligned address.
    fn shift(&self) -> usize {
        if self.once_in(20) { self.within(1, 7) as usize } else { 0 }
    }

    /// A buffer of elements that `draw` gives.
    pub(crate) fn filled<T: DeviceCopy>(&self, len: usize, mut draw: impl FnMut() -> T) -> Result<Piece<'l, T>> {
        let (start, len) = (self.shift(), self.length(len));
        let elements: Vec<T> = (0..start + len).map(|_| draw()).collect();
        Ok(Piece { buffer: self.stream.upload_blocking(&elements)?, start })
    }

    /// A buffer of these elements.
    pub(crate) fn given<T: DeviceCopy>(&self, elements: &[T]) -> Result<Piece<'l, T>> {
        let mut all = (0..).map(|i| elements.get(i).copied().unwrap_or_else(T::zeroed));
        let (start, len) = (self.shift(), self.length(elements.len()));
        let elements: Vec<T> = std::iter::repeat_n(T::zeroed(), start).chain(all.by_ref().take(len)).collect();
        Ok(Piece { buffer: self.stream.upload_blocking(&elements)?, start })
    }

    /// A buffer that nobody has written.
    pub(crate) fn room<T: DeviceCopy>(&self, len: usize) -> Result<Piece<'l, T>> {
        let (start, len) = (self.shift(), self.length(len));
        Ok(Piece { buffer: self.stream.alloc(start + len)?, start })
    }

    /// A buffer that was written if `written` says so.
    pub(crate) fn old<T: Number>(&self, written: bool, len: usize) -> Result<Piece<'l, T>> {
        if written { self.numbers(len) } else { self.room(len) }
    }

    pub(crate) fn numbers<T: Number>(&self, len: usize) -> Result<Piece<'l, T>> {
        self.filled(len, || T::draw(self))
    }
    pub(crate) fn bytes(&self, len: usize) -> Result<Piece<'l, u8>> {
        self.filled(len, || self.next() as u8)
    }
    pub(crate) fn words(&self, len: usize) -> Result<Piece<'l, u32>> {
        self.filled(len, || self.word())
    }

    /// A table: as it is, or with some words changed, or with any numbers. A row has `row` words,
    /// and a word may become that of another row.
    fn changed(&self, mut words: Vec<u32>, row: usize) -> Vec<u32> {
        let len = words.len() as u32;
        match self.below(3) {
            _ if len == 0 => {}
            0 => {}
            1 => {
                for _ in 0..self.within(1, 4) {
                    let i = self.below(len) as usize;
                    words[i] = match self.below(4) {
                        0 => self.word(),
                        1 => words[(i + row * self.below(len) as usize) % words.len()],
                        2 => words[i].wrapping_add(self.below(40)),
                        _ => words[i].wrapping_sub(self.below(40)),
                    };
                }
            }
            _ => {
                let often = self.within(1, 6);
                words.iter_mut().filter(|_| self.once_in(often)).for_each(|word| *word = self.word());
            }
        }
        words
    }

    /// A table on the device, which may say anything.
    pub(crate) fn table(&self, words: Vec<u32>, row: usize) -> Result<Piece<'l, u32>> {
        self.given(&self.changed(words, row))
    }

    /// A table of numbers with signs.
    pub(crate) fn signed(&self, words: Vec<u32>) -> Result<Piece<'l, i32>> {
        self.given(&self.changed(words, 1).into_iter().map(u32::cast_signed).collect::<Vec<_>>())
    }

    /// Where `parts` parts of `len` begin and end.
    pub(crate) fn bounds(&self, parts: u32, len: u32) -> Result<Piece<'l, i32>> {
        let mut ends: Vec<u32> = (1..parts).map(|_| self.below(len + 1)).collect();
        ends.extend([0, len]);
        ends.sort_unstable();
        self.signed(ends)
    }
}

/// A type of elements of which any value may be drawn.
pub(crate) trait Number: DeviceCopy + Element {
    fn draw(t: &Trial<'_, '_>) -> Self;
}

macro_rules! numbers {
    ($($t:ty: $t_:ident => $draw:expr;)*) => {$(
        impl Number for $t {
            fn draw($t_: &Trial<'_, '_>) -> Self {
                $draw
            }
        }
    )*};
}
numbers! {
    f32: t => t.float();
    f64: t => f64::from(t.float());
    thalweg_simt::f16: t => Self::from_f32(t.float());
    thalweg_simt::bf16: t => Self::from_f32(t.float());
    i16: t => t.word() as i16;
    i32: t => t.word() as i32;
    u32: t => t.word();
    i64: t => t.next() as i64;
    u64: t => t.next();
    u8: t => t.next() as u8;
}
