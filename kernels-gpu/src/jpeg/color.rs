//! Upsampling of chroma, conversion to RGB, and orientation.
//!
//! ```text
//! for every 16 pixels of a row of the file's image, in parallel:      (`photographs`: of two rows)
//!     for every component: its 16 samples there, enlarged as libjpeg does it ("fancy upsampling")
//!     RGB of the samples, to their places in the upright image
//! ```
//!
//! Memory: the planes are read once, 3 bytes are written for each pixel; 16.1 KiB of shared memory.
//!
//! - **The integers are those of libjpeg.** Where a component is enlarged by 2, a sample is 3/4 of
//!   the nearer one and 1/4 of the farther one, with biases 1 and 2 by turns (8 and 7 in two
//!   dimensions). At borders the last sample of the image repeats, not the padding of the last
//!   block. Enlarged across, this holds for components of more than 2 samples a row. All others are
//!   replicated.
//! - **Sums of chroma are computed in pairs**, as the halves of a word: the largest one has 12
//!   bits.
//! - **The pixels of a warp go through shared memory** if the image is upright. They are one run of
//!   bytes of the image, whatever its width, so the warp stores them 16 bytes at a time. Stored by
//!   the threads that compute them, each sector of memory would be written three times.
//! - **If the image lies on its side, the threads of a warp take pixels below one another**, which
//!   are neighbors in the upright image.

use thalweg_simt::{Cooperative, In, Out, kernel};

use super::PIXELS;
use super::pixels::{Rows, Run, WARP_BYTES, each, rgb_of, scatter};
use super::plane::{PLANE_WORDS, Plane};
use super::record::{IMAGE_WORDS, Record};

/// The threads of a block.
const THREADS: u32 = 256;
/// The blocks of [`colors_420`] that a multiprocessor has room for.
const BLOCKS: u32 = 4;
/// The bytes of the planes in shared memory, up to a multiple of 16.
const PLANES_BYTES: u32 = 3 * PLANE_WORDS * 4;

/// An image, as its record says.
#[derive(Clone, Copy)]
struct Frame {
    height: u32,
    width: u32,
    orientation: u32,
    color: u32,
    /// Its first pixel.
    rgb: *mut u8,
    luma: Plane,
    blue: Plane,
    red: Plane,
}

impl Frame {
    /// Reads the record of the image of a block. `None` if the image has no samples, because its
    /// `status` is not 0, or if a plane or the pixels do not lie in their buffers.
    ///
    /// # Safety
    /// All threads of the block call it, and it is the first that uses shared memory. The buffers
    /// have as many bytes.
    #[inline(always)]
    unsafe fn read(
        cx: impl Cooperative,
        images: In<u32>,
        status: In<u32>,
        planes: In<u8>,
        rgb: Out<u8>,
        bytes: u64,
        rgb_bytes: u64,
    ) -> Option<Self> {
        // SAFETY: There is a record for each row of blocks, and the words are inside it. The window
        // is that of the planes.
        unsafe {
            let number = cx.block_idx().y;
            let image = Record::new(images, number, IMAGE_WORDS);
            let (height, width) = (image.get(cx, 0).max(1), image.get(cx, 1).max(1));
            let (orientation, color) = (image.get(cx, 2), image.get(cx, 3));
            let start = image.wide(cx, 14);
            // A thread for each plane looks at what the image's record says of it, and the others
            // take that over.
            let (rank, known) = (cx.rank(), cx.shared::<u32>(0));
            if rank < 3 {
                let pixels = u64::from(height) * u64::from(width);
                let inside = status.get(cx, number) == 0
                    && pixels < 1 << 30
                    && start < rgb_bytes
                    && 3 * pixels <= rgb_bytes - start
                    && start.is_multiple_of(4);
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
            let (luma, blue, red) = (plane(0)?, plane(1)?, plane(2)?);
            let rgb = rgb.as_ptr().wrapping_add(start as usize);
            Some(Self { height, width, orientation, color, rgb, luma, blue, red })
        }
    }

    /// Says whether the image is of the usual kind, which [`colors_420`] takes and [`colors`]
    /// leaves alone: upright YCbCr whose chroma is enlarged by 2 in both directions. All threads of
    /// a block get the same answer.
    #[inline(always)]
    fn is_usual(self) -> bool {
        let doubled = |plane: Plane| plane.by == [2, 2] && plane.columns > 2;
        self.orientation <= 1 && self.color == 1 && self.luma.by == [1, 1] && doubled(self.blue) && doubled(self.red)
    }
}

kernel! {
    /// Does the work of [`colors`] for images of the usual kind. `most` is the largest number of
    /// groups of such an image: [`PIXELS`] pixels each of two rows, the last row of one pair and
    /// the first row of the next. So the first and the last group of a column may have one row.
    pub(super) unsafe fn colors_420(
        cx: impl Cooperative, image_count: u32, most: u32, bytes: u64, rgb_bytes: u64,
        images: In<u32>, status: In<u32>, planes: In<u8>, rgb: Out<u8>,
    )
    require {
        image_count >= 1, bytes >= 1, most <= 1 << 30,
        images.len() == image_count * IMAGE_WORDS,
        status.len() == image_count,
        planes.len() == bytes,
        rgb.len() == rgb_bytes,
        planes.is_aligned(64),
        rgb.is_aligned(4),
    }
    grid(most.div_ceil(THREADS), image_count) block(THREADS) bounds(THREADS, BLOCKS) shared(PLANES_BYTES + THREADS / 32 * WARP_BYTES)
    {
        let Some(frame) = Frame::read(cx, images, status, planes, rgb, bytes, rgb_bytes) else { return };
        if !frame.is_usual() {
            return;
        }
        let Frame { height, width, rgb, luma, blue, red, .. } = frame;
        let number = cx.block_idx().x * THREADS + cx.rank();
        let pairs = height / 2 + 1;
        let across = width.div_ceil(PIXELS);
        let (pair, x) = (number / across, number % across * PIXELS);
        let last = pair.min(pairs - 1);
        let (blue, red) = (blue.doubled_both(cx, last, x / 2), red.doubled_both(cx, last, x / 2));
        let window = cx.shared::<u8>(PLANES_BYTES + cx.warp() * WARP_BYTES).address();
        each!(ROW in [0 1] {
            // Past the end of the image if it is the row before the first one.
            let y = (2 * last + ROW).wrapping_sub(1);
            let count = if pair < pairs && y < height { (width - x).min(PIXELS) } else { 0 };
            let y = y.min(height - 1);
            let a = luma.sixteen_there(cx, y, x);
            let words = rgb_of(cx, 1, a, blue[ROW as usize], red[ROW as usize]);
            Rows { window, rgb, width, pair, at: 3 * (y * width + x) }.store(cx, words, count);
        });
    }
}

kernel! {
    /// Turns `planes` into `rgb`, the upright images one after another. `most` is the largest
    /// number of groups of [`PIXELS`] pixels of an image, where each row has groups of its own.
    pub(super) unsafe fn colors(
        cx: impl Cooperative, image_count: u32, most: u32, bytes: u64, rgb_bytes: u64,
        images: In<u32>, status: In<u32>, planes: In<u8>, rgb: Out<u8>,
    )
    require {
        image_count >= 1, bytes >= 1, most <= 1 << 30,
        images.len() == image_count * IMAGE_WORDS,
        status.len() == image_count,
        planes.len() == bytes,
        rgb.len() == rgb_bytes,
        planes.is_aligned(64),
        rgb.is_aligned(4),
    }
    grid(most.div_ceil(THREADS), image_count) block(THREADS) shared(PLANES_BYTES + THREADS / 32 * WARP_BYTES)
    {
        let Some(frame) = Frame::read(cx, images, status, planes, rgb, bytes, rgb_bytes) else { return };
        if frame.is_usual() {
            return;
        }
        let Frame { height, width, orientation, color, rgb, luma, blue, red } = frame;
        let number = cx.block_idx().x * THREADS + cx.rank();
        let lying = orientation >= 5;
        let across = if lying { height } else { width.div_ceil(PIXELS) };
        let (row, column) = (number / across, number % across);
        let (y, x) = if lying { (column, row) } else { (row, column) };
        let x = x.saturating_mul(PIXELS);
        let mut words = [0; 12];
        let mut count = 0;
        if y < height && x < width {
            count = (width - x).min(PIXELS);
            let a = luma.sixteen(cx, y, x);
            let (b, c) = if color == 0 { (a, a) } else { (blue.sixteen(cx, y, x), red.sixteen(cx, y, x)) };
            words = rgb_of(cx, color, a, b, c);
        }
        // The same for all threads of the block.
        if orientation <= 1 {
            // An image has fewer than 2^30 pixels, so the first byte of a thread's pixels fits a
            // word.
            let at = if count > 0 { 3 * (y * width + x) } else { 0 };
            let first = cx.shuffle(at, 0);
            // Threads past the end of the image come last.
            let present = cx.ballot(count > 0).count_ones();
            let end = cx.shuffle(at + 3 * count, present.max(1) - 1);
            let to = rgb.wrapping_add(first as usize);
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
                // The place of this thread's first pixel in the upright image, and the step to the
                // next one.
                let (place, step) = match orientation {
                    2 => (y * width + right - x, -1),
                    3 => ((bottom - y) * width + right - x, -1),
                    4 => ((bottom - y) * width + x, 1),
                    5 => (x * height + y, height as isize),
                    6 => (x * height + bottom - y, height as isize),
                    7 => ((right - x) * height + bottom - y, -(height as isize)),
                    _ => ((right - x) * height + y, -(height as isize)),
                };
                scatter(cx, rgb.wrapping_add(3 * place as usize), 3 * step, words, count);
            }
        }
    }
}
