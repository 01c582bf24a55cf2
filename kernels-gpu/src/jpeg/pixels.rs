//! Pixels of RGB: from samples, and to their places.

use thalweg_simt::{Cooperative, Simt};

use super::PIXELS;

/// The bytes of shared memory that the pixels of a warp take, and up to 16 more for each run of
/// them.
pub(super) const WARP_BYTES: u32 = 32 * (3 * PIXELS + 16);

/// Repeats an expression for each number. A loop over an array would put the array into local
/// memory.
macro_rules! each {
    ($i:ident in [$($number:literal)*] $body:block) => {$(
        {
            const $i: u32 = $number;
            $body
        }
    )*};
}

/// Turns samples of [`PIXELS`] pixels into RGB.
#[inline(always)]
pub(super) fn rgb_of(cx: impl Simt, color: u32, a: [u32; 4], b: [u32; 4], c: [u32; 4]) -> [u32; 12] {
    let mut words = [0; 12];
    each!(I in [0 1 2 3] {
        let (a, b, c) = (a[I as usize], b[I as usize], c[I as usize]);
        let four = if color == 1 { from_ycbcr(cx, a, b, c) } else { interleaved(cx, a, b, c) };
        [words[3 * I as usize], words[3 * I as usize + 1], words[3 * I as usize + 2]] = four;
    });
    words
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
        [(y + 91881 * cr) >> 16, (y - 22554 * cb - 46802 * cr) >> 16, (y + 116_130 * cb) >> 16]
    };
    let [[r0, g0, b0], [r1, g1, b1], [r2, g2, b2], [r3, g3, b3]] = [pixel(0), pixel(1), pixel(2), pixel(3)];
    let word = |a: i32, b: i32, c: i32, d: i32| cx.clamped_bytes(a, b, cx.clamped_bytes(c, d, 0));
    [word(r0, g0, b0, r1), word(g1, b1, r2, g2), word(b2, r3, g3, b3)]
}

/// Interleaves the components of 4 pixels.
#[inline(always)]
fn interleaved(cx: impl Simt, r: u32, g: u32, b: u32) -> [u32; 3] {
    let (first, last) = (cx.byte_perm(r, g, 0x5140), cx.byte_perm(r, g, 0x7362));
    let middle = cx.byte_perm(first, b, 0x0053);
    [cx.byte_perm(first, b, 0x2410), cx.byte_perm(middle, last, 0x5410), cx.byte_perm(last, b, 0x7326)]
}

/// The pixels of a warp in an upright image: a run of bytes.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// The shared memory of the warp, [`WARP_BYTES`] from a multiple of 16 on.
    pub(super) window: u32,
    /// The bytes of the window before the run, so that multiples of 16 are multiples of 16 in both.
    pub(super) shift: u32,
    /// The number of bytes.
    pub(super) bytes: u32,
}

impl Run {
    /// Writes `count` pixels of a thread to the window, from byte `at` of the run on.
    ///
    /// # Safety
    /// The pixels are in the run. `at` is 3 times a pixel of an image of this width, counted from
    /// the first one of the run.
    #[inline(always)]
    pub(super) unsafe fn put(self, cx: impl Cooperative, at: u32, words: [u32; 12], count: u32, width: u32) {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = words;
        let at = self.window + self.shift + at;
        // SAFETY: The run ends in the window. Where words are written, `at` is a multiple of their
        // size: a row starts at a multiple of 3 times its width, a thread at a multiple of 48 bytes
        // of its row, and the image at a multiple of 4 bytes.
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
    /// All lanes of the warp call it with the same run, after each has written its pixels. The
    /// bytes at `to` belong to the run, and lie `shift` bytes after a multiple of 16.
    #[inline(always)]
    pub(super) unsafe fn copy(self, cx: impl Cooperative, to: *mut u8) {
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
        // SAFETY: Each chunk of 16 bytes is inside the window, and what is stored lies between the
        // run's first byte and its last one. `to - shift` is a multiple of 16.
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
pub(super) unsafe fn scatter(cx: impl Simt, to: *mut u8, step: isize, words: [u32; 12], count: u32) {
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

/// The pixels of the threads of a warp in an upright image.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) window: u32,
    /// The first byte of the image, and the pixels of a row.
    pub(super) rgb: *mut u8,
    pub(super) width: u32,
    /// A number of the row, which the threads of no other row have.
    pub(super) pair: u32,
    /// The first byte of this thread's pixels. An image has fewer than 2^30 pixels, so it fits a
    /// word.
    pub(super) at: u32,
}

impl Rows {
    /// Stores `count` pixels of each thread, run by run.
    ///
    /// # Safety
    /// All lanes of the warp call it. The threads of a row that have pixels are neighbors, and so
    /// are their pixels. The pixels are in the image.
    #[inline(always)]
    pub(super) unsafe fn store(self, cx: impl Cooperative, words: [u32; 12], count: u32) {
        let Self { window, rgb, width, pair, at } = self;
        let present = cx.ballot(count > 0);
        let before = cx.shuffle_up(pair, 1);
        let mut starts = cx.ballot(count > 0 && (cx.lane() == 0 || pair != before));
        // Each run has 16 bytes more than its pixels in the window, because its bytes begin where
        // they do in memory.
        let own = starts & (u32::MAX >> (31 - cx.lane()));
        let lane = 31 - (own | 1).leading_zeros();
        let first = cx.shuffle(at, lane);
        let shift = |first: u32| rgb.wrapping_add(first as usize) as usize as u32 % 16;
        let from = |lane: u32, runs: u32| window + 3 * PIXELS * lane + 16 * runs;
        // SAFETY: The caller promises that the pixels of a row are one run in the image.
        unsafe {
            if count > 0 {
                let run = Run { window: from(lane, own.count_ones() - 1), shift: shift(first), bytes: 0 };
                run.put(cx, at - first, words, count, width);
            }
            cx.warp_barrier();
            let mut runs = 0;
            while starts != 0 {
                let lane = starts.trailing_zeros();
                starts &= starts - 1;
                let next = if starts != 0 { starts.trailing_zeros() } else { 32 - present.leading_zeros() };
                let (first, end) = (cx.shuffle(at, lane), cx.shuffle(at + 3 * count, next - 1));
                let run = Run { window: from(lane, runs), shift: shift(first), bytes: end - first };
                run.copy(cx, rgb.wrapping_add(first as usize));
                runs += 1;
            }
            cx.warp_barrier();
        }
    }
}

pub(super) use each;
