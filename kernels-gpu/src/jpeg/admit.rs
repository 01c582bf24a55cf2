//! Selects the images that take part: those whose parts of the buffers overlap no other image's.
//!
//! ```text
//! for every image, for its pieces, its planes and its pixels:
//!     before = the largest end of that part of all images before it      (a scan)
//! admitted = the record if each part starts at or after `before`, or else zeros
//! ```
//!
//! Launch: one block, a thread for each image, 256 at a time.
//! Memory: each record is read twice, the second time from L1, and written once.
//!
//! - **The records of admitted images are a copy**, which [`Images`](super::Images) borrows. So
//!   what was checked cannot change before the kernels read it, and they need not check it again in
//!   each block.
//! - **The order of the images is that of their parts.** Then one number for each part says what
//!   all images before have, and it takes one pass. A plan that lays images out one after another
//!   has this order anyway.

use thalweg_simt::{Simt, kernel};

use super::record::{COMPONENT_WORDS, IMAGE_WORDS, Record};

/// The images at a time, and the threads of the block.
const THREADS: u32 = 256;
/// The parts of an image that kernels write: pieces, planes in units of 8 bytes, and bytes of
/// pixels.
const PARTS: u32 = 3;

/// The memory that an image claims.
#[derive(Clone, Copy)]
struct Claim {
    starts: [u64; PARTS as usize],
    ends: [u64; PARTS as usize],
    /// Whether it has components whose planes follow one another.
    ordered: bool,
}

impl Claim {
    /// Nothing at all.
    const NONE: Self = Self { starts: [u64::MAX; PARTS as usize], ends: [0; PARTS as usize], ordered: false };

    /// Reads what the kernels would write for an image: `find_sync_points` and those after it for
    /// its pieces, `inverse_dct` for its planes, and `colors` and `colors_420` for its pixels.
    ///
    /// # Safety
    /// `image` is a record of an image.
    #[inline(always)]
    unsafe fn of(cx: impl Simt, image: Record) -> Self {
        let mut claim = Self::NONE;
        // SAFETY: All words are inside the record.
        unsafe {
            let components = image.get(cx, 4).min(3);
            // The record of an image that the host could not read is zeros.
            if components == 0 {
                return claim;
            }
            claim.ordered = true;
            let (first, count) = (u64::from(image.get(cx, 10)), u64::from(image.get(cx, 11)));
            if count > 0 {
                (claim.starts[0], claim.ends[0]) = (first, first + count);
            }
            let (across, down) = (image.get(cx, 5), image.get(cx, 6));
            let mut c = 0;
            while c < components {
                let word = 16 + COMPONENT_WORDS * c;
                let stride = across.saturating_mul(image.get(cx, word).max(1)).max(1);
                let rows = down.saturating_mul(image.get(cx, word + 1).max(1));
                let start = image.wide(cx, word + 4) / 8;
                if rows > 0 {
                    claim.ordered &= start >= claim.ends[1];
                    claim.starts[1] = claim.starts[1].min(start);
                    let len = (u64::from(stride) * u64::from(rows)).saturating_mul(8);
                    claim.ends[1] = claim.ends[1].max(start.saturating_add(len));
                }
                c += 1;
            }
            let pixels = u64::from(image.get(cx, 0).max(1)) * u64::from(image.get(cx, 1).max(1));
            let start = image.wide(cx, 14);
            (claim.starts[2], claim.ends[2]) = (start, start.saturating_add(pixels.saturating_mul(3)));
        }
        claim
    }
}

kernel! {
    /// Copies the records of images whose parts overlap no other image's to `admitted`, and zeros
    /// in the place of others.
    pub(super) unsafe fn admit(cx: impl Cooperative, image_count: u32, images: In<u32>, admitted: Out<u32>)
    require {
        (1..=65535).contains(&image_count),
        images.len() == image_count * IMAGE_WORDS,
        admitted.len() == images.len(),
    }
    grid(1) block(THREADS) shared(THREADS / 32 * PARTS * 8 + THREADS * 4)
    {
        let (rank, lane, warp) = (cx.rank(), cx.lane(), cx.warp());
        let totals = cx.shared::<u64>(0);
        let kept = cx.shared::<u32>(THREADS / 32 * PARTS * 8);
        let mut carry = [0u64; PARTS as usize];
        let mut first = 0;
        while first < image_count {
            let index = first + rank;
            let mut claim = Claim::NONE;
            if index < image_count {
                claim = Claim::of(cx, Record::new(images, index, IMAGE_WORDS));
            }
            // The largest ends up to this lane, and before it.
            let through = claim.ends.map(|end| {
                let mut most = end;
                let mut delta = 1;
                while delta < 32 {
                    let other = cx.tile::<32>().shuffle_up(most, delta);
                    if lane >= delta {
                        most = most.max(other);
                    }
                    delta *= 2;
                }
                most
            });
            let before = through.map(|most| {
                let other = cx.tile::<32>().shuffle_up(most, 1);
                if lane > 0 { other } else { 0 }
            });
            if lane == 31 {
                let [pieces, planes, pixels] = through;
                cx.shared_set(totals, warp * PARTS, pieces);
                cx.shared_set(totals, warp * PARTS + 1, planes);
                cx.shared_set(totals, warp * PARTS + 2, pixels);
            }
            cx.barrier();
            // The largest end before this image, and that of all images so far. A loop over the
            // parts would put them into local memory.
            let merged = |part: usize| {
                let (mut before, mut all) = (before[part].max(carry[part]), carry[part]);
                for w in 0..THREADS / 32 {
                    let total = cx.shared_get(totals, w * PARTS + part as u32);
                    before = before.max(if w < warp { total } else { 0 });
                    all = all.max(total);
                }
                (before, all)
            };
            let [(pieces, a), (planes, b), (pixels, c)] = [merged(0), merged(1), merged(2)];
            let [of_pieces, of_planes, of_pixels] = claim.starts;
            let apart = claim.ordered && of_pieces >= pieces && of_planes >= planes && of_pixels >= pixels;
            carry = [a, b, c];
            cx.shared_set(kept, rank, u32::from(apart));
            cx.barrier();
            let (start, words) = (first * IMAGE_WORDS, (image_count - first).min(THREADS) * IMAGE_WORDS);
            let mut word = rank;
            while word < words {
                let keeps = cx.shared_get(kept, word / IMAGE_WORDS) != 0;
                admitted.set(cx, start + word, if keeps { images.get(cx, start + word) } else { 0 });
                word += THREADS;
            }
            first += THREADS;
        }
    }
}
