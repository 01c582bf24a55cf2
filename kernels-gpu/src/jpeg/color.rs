//! Upsampling of chroma, conversion to RGB, and orientation.
//!
//! ```text
//! for every 16 pixels of a row of the file's image, in parallel:
//!     for every component: its 16 samples there, enlarged as libjpeg does it ("fancy upsampling")
//!     RGB of the samples, to their places in the upright image
//! ```
//!
//! Memory: the planes are read once, 3 bytes are written for each pixel; 12.2 KiB of shared memory.
//!
//! - **The integers are those of libjpeg.** Where a component is enlarged by 2, a sample is 3/4 of the
//!   nearer one and 1/4 of the farther one, with biases 1 and 2 by turns (8 and 7 in two
//!   dimensions). At borders the last sample of the image repeats, not the padding of the last block.
//!   Enlarged across, this holds for components of more than 2 samples a row. All others are
//!   replicated.
//! - **Sums of chroma are computed in pairs**, as the halves of a word: the largest one has 12 bits.
//! - **The pixels of a warp go through shared memory** if the image is upright. They are one run of bytes
//!   of the image, whatever its width, so the warp stores them 16 bytes at a time. Stored by the threads
//!   that compute them, each sector of memory would be written three times.
//! - **If the image lies on its side, the threads of a warp take pixels below one another**, which are
//!   neighbours in the upright image.

use thalweg_simt::{Cooperative, In, Simt, kernel};

use super::PIXELS;
use super::record::{COMPONENT_WORDS, IMAGE_WORDS, Record};

/// The threads of a block.
const THREADS: u32 = 256;
/// The bytes that the pixels of a warp take, from the last multiple of 16 before them on.
const WARP_BYTES: u32 = 32 * 3 * PIXELS + 16;

/// The plane of a component.
#[derive(Clone, Copy)]
struct Plane {
    samples: *const u8,
    stride: u32,
    /// The samples of the image in this component, without padding.
    rows: u32,
    columns: u32,
    /// By how much the component is enlarged, down and across.
    by: [u32; 2],
}

/// The words of a [`Plane`] in shared memory.
const PLANE_WORDS: u32 = 8;
/// The bytes of the planes in shared memory, up to a multiple of 16.
const PLANES_BYTES: u32 = 3 * PLANE_WORDS * 4;

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
    /// Reads the plane of component `c` from the record of an image, as words for [`Plane::known`]. The last
    /// word is 0 if the plane does not lie in the `bytes` of the planes.
    ///
    /// # Safety
    /// `image` is a record of an image.
    #[inline(always)]
    unsafe fn read(cx: impl Simt, image: Record, bytes: u64, c: u32) -> [u32; PLANE_WORDS as usize] {
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
            // The samples lie after a multiple of 64 bytes, or 8 samples of a row would not be aligned.
            let aligned = start.is_multiple_of(64) && stride.is_multiple_of(8);
            [start as u32, (start >> 32) as u32, stride, rows, columns, down, across, u32::from(inside && aligned)]
        }
    }

    /// Makes the plane of words that [`Plane::read`] gave, if there is one.
    #[inline(always)]
    fn known(
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
        // SAFETY: `read` checked that `rows` rows of `stride` samples are in `planes`, and that a row has
        // `columns` samples.
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
        // SAFETY: As for `at`. `x` and `stride` are multiples of 8 and so is the place of the plane, so the 8
        // samples are aligned and inside the row.
        unsafe { cx.load(self.samples.add((y * self.stride + x) as usize).cast::<u64>()) }
    }

    /// Returns the nearer and the farther of the two rows that count for row `y` of the enlarged image.
    #[inline(always)]
    fn near(self, y: u32) -> (u32, u32) {
        let near = y / 2;
        (near, if y.is_multiple_of(2) { near.saturating_sub(1) } else { (near + 1).min(self.rows - 1) })
    }

    /// Returns the samples at [`PIXELS`] pixels of a row. What is past the end of the row is arbitrary.
    ///
    /// # Safety
    /// Pixel `x` of row `y` is in the image, and `x` is a multiple of [`PIXELS`].
    #[inline(always)]
    unsafe fn sixteen(self, cx: impl Simt, y: u32, x: u32) -> [u32; 4] {
        let [down, across] = self.by;
        // SAFETY: `y / down` is below `rows` and `x / across` below `columns` for a pixel of the image, and
        // `near` stays below `rows`. 16 and 8 divide `x`.
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
    /// `y` is a row of the image. The component is enlarged by 2 across, and by 1 or 2 down. `x` is below
    /// `columns` and a multiple of 8.
    #[inline(always)]
    unsafe fn doubled(self, cx: impl Simt, y: u32, x: u32) -> [u32; 4] {
        let tall = self.by[0] == 2;
        // Enlarged across only, the nearer row is the only one.
        let (near, far) = if tall { self.near(y) } else { (y, y) };
        let [weight, other] = if tall { [3, 1] } else { [1, 0] };
        let [even, odd, shift] = if tall { [8, 7, 4] } else { [1, 2, 2] };
        let sum = |near: u32, far: u32| weight * near + other * far;
        // SAFETY: Both rows are below `rows`, and the columns are below `columns`.
        let (left, right, mut above, mut below) = unsafe {
            let (before, after) = (x.saturating_sub(1), (x + 8).min(self.columns - 1));
            let side = |x| sum(self.at(cx, near, x), self.at(cx, far, x));
            (side(before), side(after), self.eight(cx, near, x), self.eight(cx, far, x))
        };
        let count = self.columns - x;
        if count < 8 {
            // The last sample of the row repeats once. What comes after that is past the end of the image.
            let repeat = |samples: u64| {
                let (kept, last) = (samples & ((1 << (8 * count)) - 1), samples >> (8 * (count - 1)) & 255);
                kept | last << (8 * count)
            };
            (above, below) = (repeat(above), repeat(below));
        }
        // Two columns in a word: 0 and 2, 1 and 3, 4 and 6, 5 and 7.
        let pairs = |shift: u32| {
            let (a, b) = ((above >> shift) as u32, (below >> shift) as u32);
            let second = |v| cx.byte_perm(v, 0, 0x4341);
            [sum(a & 0x00ff_00ff, b & 0x00ff_00ff), sum(second(a), second(b))]
        };
        let ([e0, o0], [e1, o1]) = (pairs(0), pairs(32));
        let enlarge = |e: u32, o: u32, before: u32, after: u32| {
            let (even, odd) = (even * 0x0001_0001, odd * 0x0001_0001);
            // Each half has 8 bits of result, and above them what was shifted in from the other half.
            let [p04, p15] = [(3 * e + even + before) >> shift, (3 * e + odd + o) >> shift];
            let [p26, p37] = [(3 * o + even + e) >> shift, (3 * o + odd + after) >> shift];
            let (a, b) = (cx.byte_perm(p04, p15, 0x6240), cx.byte_perm(p26, p37, 0x6240));
            [cx.byte_perm(a, b, 0x5410), cx.byte_perm(a, b, 0x7632)]
        };
        let [a, b] = enlarge(e0, o0, cx.byte_perm(left, o0, 0x5410), cx.byte_perm(e0, e1, 0x5432));
        let [c, d] = enlarge(e1, o1, cx.byte_perm(o0, o1, 0x5432), cx.byte_perm(e1, right, 0x5432));
        [a, b, c, d]
    }
}

/// Converts 4 pixels of full-range YCbCr of ITU-R BT.601 to RGB, in fixed point with 16 bits.
#[inline(always)]
fn from_ycbcr(cx: impl Simt, y: u32, cb: u32, cr: u32) -> [u32; 3] {
    // With the top bit turned, the bytes are the chroma minus 128, with their signs.
    let (cb, cr) = (cb ^ 0x8080_8080, cr ^ 0x8080_8080);
    let pixel = |i: u32| {
        // The luma times 2^16, plus 2^15, which rounds.
        let y = cx.byte_perm(y, 0x8000, 0x6054 | i << 8) as i32;
        let signed = |v: u32| cx.byte_perm(v, 0, 0x8880 + 0x1111 * i) as i32;
        let (cb, cr) = (signed(cb), signed(cr));
        // The value is in byte 2.
        let clamped = |v: i32| v.clamp(0, (256 << 16) - 1) as u32;
        [clamped(y + 91881 * cr), clamped(y - 22554 * cb - 46802 * cr), clamped(y + 116_130 * cb)]
    };
    let [[r0, g0, b0], [r1, g1, b1], [r2, g2, b2], [r3, g3, b3]] = [pixel(0), pixel(1), pixel(2), pixel(3)];
    let pair = |a: u32, b: u32| cx.byte_perm(a, b, 0x0062);
    let word = |a: u32, b: u32, c: u32, d: u32| cx.byte_perm(pair(a, b), pair(c, d), 0x5410);
    [word(r0, g0, b0, r1), word(g1, b1, r2, g2), word(b2, r3, g3, b3)]
}

/// Interleaves the components of 4 pixels.
#[inline(always)]
fn interleaved(cx: impl Simt, r: u32, g: u32, b: u32) -> [u32; 3] {
    let (first, last) = (cx.byte_perm(r, g, 0x5140), cx.byte_perm(r, g, 0x7362));
    let middle = cx.byte_perm(first, b, 0x0053);
    [cx.byte_perm(first, b, 0x2410), cx.byte_perm(middle, last, 0x5410), cx.byte_perm(last, b, 0x7326)]
}

/// Repeats an expression for each number. A loop over an array would put the array into local memory.
macro_rules! each {
    ($i:ident in [$($number:literal)*] $body:block) => {$(
        {
            const $i: u32 = $number;
            $body
        }
    )*};
}

/// Where the pixels of a warp lie in an upright image: a run of bytes.
#[derive(Clone, Copy)]
struct Run {
    /// The shared memory of the warp, [`WARP_BYTES`] from a multiple of 16 on.
    window: u32,
    /// The bytes of the window before the run, so that multiples of 16 are multiples of 16 in both.
    shift: u32,
    /// The number of bytes.
    bytes: u32,
}

impl Run {
    /// Writes `count` pixels of a thread to the window, from byte `at` of the run on.
    ///
    /// # Safety
    /// The pixels are in the run. `at` is 3 times a pixel of an image of this width, counted from the
    /// first one of the run.
    #[inline(always)]
    unsafe fn put(self, cx: impl Cooperative, at: u32, words: [u32; 12], count: u32, width: u32) {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = words;
        let at = self.window + self.shift + at;
        // SAFETY: The run ends in the window. Where words are written, `at` is a multiple of their size: a row
        // starts at a multiple of 3 times its width, a thread at a multiple of 48 bytes of its row, and the
        // image at a multiple of 4 bytes.
        unsafe {
            if width.is_multiple_of(PIXELS) && self.shift == 0 {
                let to = cx.shared_at(at);
                cx.shared_set4(to, 0, [a, b, c, d]);
                cx.shared_set4(to, 4, [e, f, g, h]);
                cx.shared_set4(to, 8, [i, j, k, l]);
            } else if width.is_multiple_of(4) {
                let to = cx.shared_at(at);
                each!(I in [0 1 2 3 4 5 6 7 8 9 10 11] {
                    if I / 3 * 4 < count {
                        cx.shared_set(to, I, words[I as usize]);
                    }
                });
            } else {
                let to = cx.shared_at::<u8>(at);
                each!(I in [0 1 2 3 4 5 6 7 8 9 10 11] {
                    each!(J in [0 1 2 3] {
                        if (4 * I + J) / 3 < count {
                            cx.shared_set(to, 4 * I + J, (words[I as usize] >> (8 * J)) as u8);
                        }
                    });
                });
            }
        }
    }

    /// Copies the run to its place.
    ///
    /// # Safety
    /// All lanes of the warp call it with the same run, after each has written its pixels. The bytes at `to` belong to the run,
    /// and lie `shift` bytes after a multiple of 16.
    #[inline(always)]
    unsafe fn copy(self, cx: impl Cooperative, to: *mut u8) {
        let (end, lane) = (self.shift + self.bytes, cx.lane());
        if self.bytes == 32 * 3 * PIXELS && self.shift == 0 {
            // SAFETY: All of the window is the run, and both are aligned.
            unsafe {
                let (from, to) = (cx.shared_at(self.window), to.cast::<u32>().wrapping_add(4 * lane as usize));
                let words: [[u32; 4]; 3] = [
                    cx.shared_get4(from, 4 * lane),
                    cx.shared_get4(from, 4 * lane + 128),
                    cx.shared_get4(from, 4 * lane + 256),
                ];
                cx.store4(to, words[0]);
                cx.store4(to.wrapping_add(128), words[1]);
                cx.store4(to.wrapping_add(256), words[2]);
            }
            return;
        }
        // SAFETY: Each chunk of 16 bytes is inside the window, and what is stored lies between the run's
        // first byte and its last one. `to - shift` is a multiple of 16.
        unsafe {
            let mut at = 16 * lane;
            while at < end {
                let to = to.wrapping_sub(self.shift as usize).wrapping_add(at as usize);
                if at >= self.shift && at + 16 <= end {
                    let words: [u32; 4] = cx.shared_get4(cx.shared_at(self.window), at / 4);
                    cx.store4(to.cast::<u32>(), words);
                } else {
                    let mut byte = self.shift.max(at);
                    while byte < end.min(at + 16) {
                        cx.store(to.wrapping_add((byte - at) as usize), cx.shared_get(cx.shared_at(self.window), byte));
                        byte += 1;
                    }
                }
                at += 16 * 32;
            }
        }
    }
}

/// Stores `count` pixels one after another, `step` bytes apart.
///
/// # Safety
/// The pixels are in the buffer, and no other thread writes them.
#[inline(always)]
unsafe fn scatter(cx: impl Simt, to: *mut u8, step: isize, words: [u32; 12], count: u32) {
    each!(I in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
        if I < count {
            let byte = |channel: u32| {
                let i = 3 * I + channel;
                (words[i as usize / 4] >> (8 * (i % 4))) as u8
            };
            let to = to.wrapping_offset(I as isize * step);
            // SAFETY: The caller promises that the pixel is in the buffer.
            unsafe {
                cx.store(to, byte(0));
                cx.store(to.wrapping_add(1), byte(1));
                cx.store(to.wrapping_add(2), byte(2));
            }
        }
    });
}

kernel! {
    /// Turns `planes` into `rgb`, the upright images one after another. `most` is the largest number
    /// of groups of [`PIXELS`] pixels of an image, where each row has groups of its own.
    pub(super) unsafe fn colors(
        cx: impl Cooperative, image_count: u32, most: u32, bytes: u64, rgb_bytes: u64,
        images: In<u32>, planes: In<u8>, rgb: Out<u8>,
    )
    require {
        image_count >= 1, bytes >= 1, most <= 1 << 30,
        images.len() == image_count * IMAGE_WORDS,
        planes.len() == bytes,
        rgb.len() == rgb_bytes,
        planes.is_aligned(64),
        rgb.is_aligned(4),
    }
    grid(most.div_ceil(THREADS), image_count) block(THREADS) shared(PLANES_BYTES + THREADS / 32 * WARP_BYTES)
    {
        let image = Record::new(images, cx.block_idx().y, IMAGE_WORDS);
        let (height, width) = (image.get(cx, 0).max(1), image.get(cx, 1).max(1));
        let (orientation, color) = (image.get(cx, 2), image.get(cx, 3));
        let start = image.wide(cx, 14);
        // A thread for each plane looks at what the image's record says of it, and the others take that over.
        let (rank, known) = (cx.rank(), cx.shared::<u32>(0));
        if rank < 3 {
            let pixels = u64::from(height) * u64::from(width);
            let inside = pixels < 1 << 30 && start < rgb_bytes && 3 * pixels <= rgb_bytes - start && start.is_multiple_of(4);
            // A gray image has no other planes, so its luma stands for them.
            let [a, b, c, d, e, f, g, there] = Plane::read(cx, image, bytes, if color == 0 { 0 } else { rank });
            cx.shared_set4(known, PLANE_WORDS * rank, [a, b, c, d]);
            cx.shared_set4(known, PLANE_WORDS * rank + 4, [e, f, g, if inside { there } else { 0 }]);
        }
        cx.barrier();
        let plane = |c: u32| {
            let at = PLANE_WORDS * c;
            Plane::known(planes, cx.shared_get4(known, at), cx.shared_get4(known, at + 4))
        };
        let (luma, blue, red) = (plane(0), plane(1), plane(2));

        let number = cx.block_idx().x * THREADS + rank;
        let lying = orientation >= 5;
        let across = if lying { height } else { width.div_ceil(PIXELS) };
        let (row, column) = (number / across, number % across);
        let (y, x) = if lying { (column, row) } else { (row, column) };
        let x = x.saturating_mul(PIXELS);
        let mut words = [0; 12];
        let mut count = 0;
        if let (Some(luma), Some(blue), Some(red)) = (luma, blue, red)
            && y < height
            && x < width
        {
            count = (width - x).min(PIXELS);
            let a = luma.sixteen(cx, y, x);
            let (b, c) = if color == 0 { (a, a) } else { (blue.sixteen(cx, y, x), red.sixteen(cx, y, x)) };
            each!(I in [0 1 2 3] {
                let (a, b, c) = (a[I as usize], b[I as usize], c[I as usize]);
                let four = if color == 1 { from_ycbcr(cx, a, b, c) } else { interleaved(cx, a, b, c) };
                [words[3 * I as usize], words[3 * I as usize + 1], words[3 * I as usize + 2]] = four;
            });
        }
        // The same for all threads of the block.
        if orientation <= 1 {
            // An image has fewer than 2^30 pixels, so the first byte of a thread's pixels fits a word.
            let at = if count > 0 { 3 * (y * width + x) } else { 0 };
            let first = cx.shuffle(at, 0);
            // Threads past the end of the image come last.
            let present = cx.ballot(count > 0).count_ones();
            let end = cx.shuffle(at + 3 * count, present.max(1) - 1);
            let to = rgb.as_ptr().wrapping_add(start as usize + first as usize);
            let shift = to as usize as u32 % 16;
            let run = Run { window: cx.shared::<u8>(PLANES_BYTES + cx.warp() * WARP_BYTES).address(), shift, bytes: end - first };
            if count > 0 {
                run.put(cx, at - first, words, count, width);
            }
            cx.warp_barrier();
            run.copy(cx, to);
        } else {
            if count > 0 {
                let (bottom, right) = (height - 1, width - 1);
                // The place of this thread's first pixel in the upright image, and the step to the next one.
                let (place, step) = match orientation {
                    2 => (y * width + right - x, -1),
                    3 => ((bottom - y) * width + right - x, -1),
                    4 => ((bottom - y) * width + x, 1),
                    5 => (x * height + y, height as isize),
                    6 => (x * height + bottom - y, height as isize),
                    7 => ((right - x) * height + bottom - y, -(height as isize)),
                    _ => ((right - x) * height + y, -(height as isize)),
                };
                scatter(cx, rgb.as_ptr().wrapping_add(start as usize + 3 * place as usize), 3 * step, words, count);
            }
        }
    }
}
