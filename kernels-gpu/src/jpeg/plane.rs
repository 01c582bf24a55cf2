//! The samples of a component, enlarged as libjpeg does it.

use thalweg_simt::{In, Simt};

use super::record::{COMPONENT_WORDS, Record};

/// The plane of a component.
#[derive(Clone, Copy)]
pub(super) struct Plane {
    samples: *const u8,
    stride: u32,
    /// The samples of the image in this component, without padding.
    rows: u32,
    pub(super) columns: u32,
    /// By how much the component is enlarged, down and across.
    pub(super) by: [u32; 2],
}

/// The words of a [`Plane`] in shared memory.
pub(super) const PLANE_WORDS: u32 = 8;
/// Divides by a factor of enlargement, and rounds up. It is 1 or 2 in nearly every image.
#[inline(always)]
fn shrunk(length: u32, by: u32) -> u32 {
    match by {
        1 => length,
        2 => length.div_ceil(2),
        _ => length.div_ceil(by),
    }
}

impl Plane {
    /// Reads the plane of component `c` from the record of an image, as words for [`Plane::known`].
    /// The last word is 0 if the plane does not lie in the `bytes` of the planes.
    ///
    /// # Safety
    /// `image` is a record of an image.
    #[inline(always)]
    pub(super) unsafe fn read(cx: impl Simt, image: Record, bytes: u64, c: u32) -> [u32; PLANE_WORDS as usize] {
        let word = 16 + COMPONENT_WORDS * c;
        // SAFETY: The words are inside the record.
        unsafe {
            let [down, across] = [image.get(cx, word + 7).max(1), image.get(cx, word + 6).max(1)];
            let start = image.wide(cx, word + 4);
            let stride = image.get(cx, 5).saturating_mul(image.get(cx, word)).saturating_mul(8);
            let rows = shrunk(image.get(cx, 0), down).max(1);
            let columns = shrunk(image.get(cx, 1), across).max(1);
            let size = u64::from(rows) * u64::from(stride);
            let inside = columns <= stride && size < 1 << 32 && start < bytes && size <= bytes - start;
            // The samples lie after a multiple of 64 bytes, or 8 samples of a row would not be
            // aligned.
            let aligned = start.is_multiple_of(64) && stride.is_multiple_of(8);
            [start as u32, (start >> 32) as u32, stride, rows, columns, down, across, u32::from(inside && aligned)]
        }
    }

    /// Makes the plane of words that [`Plane::read`] gave, if there is one.
    #[inline(always)]
    pub(super) fn known(
        planes: In<u8>,
        [start, high, stride, rows]: [u32; 4],
        [columns, down, across, there]: [u32; 4],
    ) -> Option<Self> {
        let samples = planes.as_ptr().wrapping_add((u64::from(high) << 32 | u64::from(start)) as usize);
        (there != 0).then_some(Self { samples, stride, rows, columns, by: [down, across] })
    }

    /// Returns the sample of a row and a column of the plane.
    ///
    /// # Safety
    /// `y` is below `rows` and `x` below `columns`.
    #[inline(always)]
    unsafe fn at(self, cx: impl Simt, y: u32, x: u32) -> u32 {
        // SAFETY: `read` checked that `rows` rows of `stride` samples are in `planes`, and that a
        // row has `columns` samples.
        u32::from(unsafe { cx.load(self.samples.add((y * self.stride + x) as usize)) })
    }

    /// Returns 8 samples of a row, and zeros if there are none.
    ///
    /// # Safety
    /// `y` is below `rows`, and `x` is a multiple of 8.
    #[inline(always)]
    unsafe fn eight(self, cx: impl Simt, y: u32, x: u32) -> u64 {
        if x >= self.columns {
            return 0;
        }
        // SAFETY: As for `at`. `x` and `stride` are multiples of 8 and so is the place of the
        // plane, so the 8 samples are aligned and inside the row.
        unsafe { cx.load(self.samples.add((y * self.stride + x) as usize).cast::<u64>()) }
    }

    /// Returns the nearer and the farther of the two rows that count for row `y` of the enlarged
    /// image.
    #[inline(always)]
    fn near(self, y: u32) -> (u32, u32) {
        let near = y / 2;
        (near, if y.is_multiple_of(2) { near.saturating_sub(1) } else { (near + 1).min(self.rows - 1) })
    }

    /// Returns the samples at [`PIXELS`] pixels of a row. What is past the end of the row is
    /// arbitrary.
    ///
    /// # Safety
    /// Pixel `x` of row `y` is in the image, and `x` is a multiple of [`PIXELS`].
    #[inline(always)]
    pub(super) unsafe fn sixteen(self, cx: impl Simt, y: u32, x: u32) -> [u32; 4] {
        let [down, across] = self.by;
        // SAFETY: `y / down` is below `rows` and `x / across` below `columns` for a pixel of the
        // image, and `near` stays below `rows`. 16 and 8 divide `x`.
        unsafe {
            let (low, high) = if down == 1 && across == 1 {
                (self.eight(cx, y, x), self.eight(cx, y, x + 8))
            } else if across == 2 && down <= 2 && self.columns > 2 {
                return self.doubled(cx, y, x / 2);
            } else if down == 2 && across == 1 {
                (self.between(cx, y, x), self.between(cx, y, x + 8))
            } else {
                (self.replicated(cx, y, x), self.replicated(cx, y, x + 8))
            };
            [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
        }
    }

    /// Returns [`PIXELS`] samples of a row of a component that is not enlarged. What is past the
    /// end of the row is arbitrary.
    ///
    /// # Safety
    /// `y` is below `rows`, and `x` is a multiple of [`PIXELS`].
    #[inline(always)]
    pub(super) unsafe fn sixteen_there(self, cx: impl Simt, y: u32, x: u32) -> [u32; 4] {
        // SAFETY: The caller promises the row. 8 divides both columns.
        let (low, high) = unsafe { (self.eight(cx, y, x), self.eight(cx, y, x + 8)) };
        [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
    }

    /// Returns the samples at 8 pixels of a row of a component that is enlarged by 2 down.
    ///
    /// # Safety
    /// `y` is a row of the image, and `x` a multiple of 8.
    #[inline(always)]
    unsafe fn between(self, cx: impl Simt, y: u32, x: u32) -> u64 {
        let (near, far) = self.near(y);
        // SAFETY: Both rows are below `rows`.
        let (near, far) = unsafe { (self.eight(cx, near, x), self.eight(cx, far, x)) };
        let sum = |shift: u32| {
            let (a, b) = ((near >> shift) as u32 & 0x00ff_00ff, (far >> shift) as u32 & 0x00ff_00ff);
            (3 * a + b + (1 + (y & 1)) * 0x0001_0001) >> 2
        };
        let (low, high) = (cx.byte_perm(sum(0), sum(8), 0x6240), cx.byte_perm(sum(32), sum(40), 0x6240));
        u64::from(high) << 32 | u64::from(low)
    }

    /// Returns the samples at 8 pixels of a row of a component that is replicated.
    ///
    /// # Safety
    /// `y` is a row of the image.
    #[inline(always)]
    unsafe fn replicated(self, cx: impl Simt, y: u32, x: u32) -> u64 {
        let [down, across] = self.by;
        let (mut samples, mut i) = (0, 0);
        while i < 8 {
            // SAFETY: `y / down` is below `rows` for a row of the image.
            let sample = unsafe { self.at(cx, y / down, ((x + i) / across).min(self.columns - 1)) };
            samples |= u64::from(sample) << (8 * i);
            i += 1;
        }
        samples
    }

    /// Returns the samples at [`PIXELS`] pixels of a row that come from 8 columns of the plane.
    ///
    /// # Safety
    /// `y` is a row of the image. The component is enlarged by 2 across, and by 1 or 2 down. `x` is
    /// below `columns` and a multiple of 8.
    #[inline(always)]
    unsafe fn doubled(self, cx: impl Simt, y: u32, x: u32) -> [u32; 4] {
        let tall = self.by[0] == 2;
        // Enlarged across only, the nearer row is the only one.
        let (near, far) = if tall { self.near(y) } else { (y, y) };
        let weights = if tall { [3, 1] } else { [1, 0] };
        let [even, odd, shift] = if tall { [8, 7, 4] } else { [1, 2, 2] };
        // SAFETY: Both rows are below `rows`, and the columns are below `columns`.
        let [near, far] = unsafe { [self.ten(cx, near, x), self.ten(cx, far, x)] };
        enlarged(cx, Ten::sum(near, far, weights), [even, odd], shift)
    }

    /// Returns the samples at [`PIXELS`] pixels of rows 2 `pair` - 1 and 2 `pair` of a component
    /// that is enlarged by 2 in both directions. Both rows come from the same two rows of the
    /// plane. A row that the image lacks is arbitrary.
    ///
    /// # Safety
    /// `x` is below `columns` and a multiple of 8.
    #[inline(always)]
    pub(super) unsafe fn doubled_both(self, cx: impl Simt, pair: u32, x: u32) -> [[u32; 4]; 2] {
        let last = self.rows - 1;
        // SAFETY: Both rows are below `rows`, and the columns are below `columns`.
        let [upper, lower] =
            unsafe { [self.ten(cx, pair.saturating_sub(1).min(last), x), self.ten(cx, pair.min(last), x)] };
        let row = |near, far| enlarged(cx, Ten::sum(near, far, [3, 1]), [8, 7], 4);
        [row(upper, lower), row(lower, upper)]
    }

    /// Returns the samples of 8 columns of a row and of the columns beside them.
    ///
    /// # Safety
    /// `y` is below `rows`. `x` is below `columns` and a multiple of 8.
    #[inline(always)]
    unsafe fn ten(self, cx: impl Simt, y: u32, x: u32) -> Ten {
        let (before, after) = (x.saturating_sub(1), (x + 8).min(self.columns - 1));
        // SAFETY: The columns are below `columns`.
        let (left, right, mut samples) =
            unsafe { (self.at(cx, y, before), self.at(cx, y, after), self.eight(cx, y, x)) };
        let count = self.columns - x;
        if count < 8 {
            // The last sample of the row repeats once. What comes after that is past the end of the
            // image.
            let (kept, last) = (samples & ((1 << (8 * count)) - 1), samples >> (8 * (count - 1)) & 255);
            samples = kept | last << (8 * count);
        }
        let pairs = |four: u32| [four & 0x00ff_00ff, cx.byte_perm(four, 0, 0x4341)];
        Ten { left, first: pairs(samples as u32), second: pairs((samples >> 32) as u32), right }
    }
}

/// Ten samples of a row, or sums of two rows. Two are in a word: 0 and 2, 1 and 3 of the inner ones
/// in `first`, and 4 and 6, 5 and 7 in `second`.
#[derive(Clone, Copy)]
struct Ten {
    left: u32,
    first: [u32; 2],
    second: [u32; 2],
    right: u32,
}

impl Ten {
    /// Weighs two rows.
    #[inline(always)]
    fn sum(near: Self, far: Self, [weight, other]: [u32; 2]) -> Self {
        let sum = |near: u32, far: u32| weight * near + other * far;
        let two = |[a, b]: [u32; 2], [c, d]: [u32; 2]| [sum(a, c), sum(b, d)];
        Self {
            left: sum(near.left, far.left),
            first: two(near.first, far.first),
            second: two(near.second, far.second),
            right: sum(near.right, far.right),
        }
    }
}

/// Enlarges 8 columns by 2 across. `more` is what rounds the even and the odd results, and `shift`
/// divides them by the weights.
#[inline(always)]
fn enlarged(cx: impl Simt, columns: Ten, more: [u32; 2], shift: u32) -> [u32; 4] {
    let [even, odd] = more.map(|more| more * 0x0001_0001);
    let four = |[e, o]: [u32; 2], before: u32, after: u32| {
        // Each half has 8 bits of result, and above them what was shifted in from the other half.
        let [p04, p15] = [(3 * e + even + before) >> shift, (3 * e + odd + o) >> shift];
        let [p26, p37] = [(3 * o + even + e) >> shift, (3 * o + odd + after) >> shift];
        let (a, b) = (cx.byte_perm(p04, p15, 0x6240), cx.byte_perm(p26, p37, 0x6240));
        [cx.byte_perm(a, b, 0x5410), cx.byte_perm(a, b, 0x7632)]
    };
    let Ten { left, first: [e0, o0], second: [e1, o1], right } = columns;
    let [a, b] = four([e0, o0], cx.byte_perm(left, o0, 0x5410), cx.byte_perm(e0, e1, 0x5432));
    let [c, d] = four([e1, o1], cx.byte_perm(o0, o1, 0x5432), cx.byte_perm(e1, right, 0x5432));
    [a, b, c, d]
}
