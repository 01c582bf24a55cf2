//! The images of a batch, as the host lays them out and as the kernels find them.
//!
//! A kernel that works patch by patch has the number of the patch and finds its image. A kernel
//! that works image by image has the image and finds its patches. Both descend the same binary tree
//! over the rows of the table, and keep two numbers on the way: the largest start of the images at
//! which they turn right, and the smallest start of those at which they turn left. In a proper
//! table that is where the image starts and ends. In any table, however wrong, the ranges of two
//! images are disjoint and in order, because their paths part at some row, which bounds both
//! ranges. For a batch of one image nothing is read.

use thalweg_simt::{In, Simt};

use crate::vision::patch::{Patch, divide};
use crate::vision::texel::Image;

/// An image's part of the patches of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// The image.
    pub(crate) image: u32,
    /// Its first patch, at most `end`.
    pub(crate) start: u32,
    /// One past its last patch.
    pub(crate) end: u32,
}

impl Span {
    /// Finds the last image that is `reached`, and its patches. `reached` takes the index and the
    /// first patch of an image, and is false from some image on. `first` finds the first patch of
    /// an image below `images`, and is never asked for image 0.
    #[inline(always)]
    fn find(images: u32, patches: u32, first: impl Fn(u32) -> u32, reached: impl Fn(u32, u32) -> bool) -> Self {
        let (mut image, mut next) = (0, images);
        let (mut start, mut end) = (0, patches);
        while next - image > 1 {
            let middle = image + (next - image) / 2;
            let first = first(middle);
            if reached(middle, first) {
                (image, start) = (middle, first.max(start));
            } else {
                (next, end) = (middle, first.min(end));
            }
        }
        Self { image, start: start.min(end), end }
    }

    /// Finds the patches of image `image`.
    ///
    /// # Safety
    /// `table` has `images + 1` rows of 4, and `images` is at least 1.
    #[inline(always)]
    pub(crate) unsafe fn of_image(cx: impl Simt, table: In<u32>, images: u32, patches: u32, image: u32) -> Self {
        // SAFETY: `find` only asks for rows below `images`, which the caller promises.
        Self::find(images, patches, |b| unsafe { first(cx, table, b) }, |b, _| b <= image)
    }

    /// Finds the image that has piece `piece`, and its patches. Each image is cut into pieces of
    /// [`PIECE`] patches.
    ///
    /// # Safety
    /// As for [`of_image`](Self::of_image).
    #[inline(always)]
    pub(crate) unsafe fn of_piece(cx: impl Simt, table: In<u32>, images: u32, patches: u32, piece: u32) -> Self {
        // SAFETY: `find` only asks for rows below `images`, which the caller promises.
        Self::find(images, patches, |b| unsafe { first(cx, table, b) }, |b, first| first / PIECE + b <= piece)
    }

    /// Number of patches.
    #[inline(always)]
    pub(crate) fn len(self) -> u32 {
        self.end - self.start
    }

    /// Returns the first piece. The pieces of image b start at its first patch / 64 + b: rounding
    /// down loses less than the piece that b adds for each image before, so no two images share a
    /// piece, and there are patches / 64 + images of them.
    #[inline(always)]
    pub(crate) fn piece(self) -> u32 {
        self.start / PIECE + self.image
    }
}

/// Reads the first patch of image `b`.
///
/// # Safety
/// `table` has row `b`.
#[inline(always)]
unsafe fn first(cx: impl Simt, table: In<u32>, b: u32) -> u32 {
    // SAFETY: this is the last element of row `b`, which the caller promises.
    unsafe { table.get(cx, b as usize * 4 + 3) }
}

/// Patches that are summarized together.
pub(crate) const PIECE: u32 = 64;

/// A row of the table.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    height: u32,
    width: u32,
    byte: u32,
    patch: u32,
}

impl Row {
    /// Loads the row of the image with patch `n` of the batch. In a wrong table it may be any row.
    ///
    /// # Safety
    /// `table` starts on 16 bytes and has `images + 1` rows of 4, and `images` is at least 1.
    #[inline(always)]
    pub(crate) unsafe fn of_patch(cx: impl Simt, table: In<u32>, images: u32, patches: u32, n: u32) -> Self {
        // SAFETY: `find` only asks for rows below `images`, and returns one. The caller promises
        // these rows and the alignment.
        unsafe {
            let Span { image, .. } = Span::find(images, patches, |b| first(cx, table, b), |_, first| first <= n);
            let [height, width, byte, patch] = cx.load4(table.as_ptr().add(image as usize * 4));
            Self { height, width, byte, patch }
        }
    }

    /// Returns the image, and patch `n` of the batch in it, if the image is inside the `bytes` of
    /// `rgb` and has the patch.
    #[inline(always)]
    pub(crate) fn locate(self, cx: impl Simt, rgb: In<u8>, bytes: u32, n: u32, side: u32) -> Option<(Image, Patch)> {
        let Self { height, width, byte, patch } = self;
        if !fits(byte, height, width, bytes) {
            return None;
        }
        // SAFETY: `fits` found the image inside `bytes`, which is the length of `rgb`, so `byte` is
        // inside it, too.
        let rgb = unsafe { rgb.tail(byte) };
        // Both divisions use floats, because those of integers take many instructions. The first is
        // of numbers below 2^15. In the second, a proper row is below 2^14, so the quotient is off
        // by less than 1/64, and by at most one after it is cut.
        let columns = divide(cx, width + side - 1, side);
        let index = n.wrapping_sub(patch);
        let mut row = (index as f32 * cx.recip_approx(columns as f32)) as u32;
        let mut column = index.wrapping_sub(row.wrapping_mul(columns));
        if column >= 1 << 31 {
            (row, column) = (row.wrapping_sub(1), column.wrapping_add(columns));
        } else if column >= columns {
            (row, column) = (row.wrapping_add(1), column - columns);
        }
        // For a wrong row the quotient may be anything.
        if column >= columns || row >= height || row * side >= height {
            return None;
        }
        Some((Image { height, width, rgb }, Patch::at(row, column, height, width, side)))
    }
}

/// Whether an image has extents within 1 to 16384, and is inside `bytes` bytes.
#[inline(always)]
pub(crate) fn fits(start: u32, height: u32, width: u32, bytes: u32) -> bool {
    let (h, w) = (height.wrapping_sub(1), width.wrapping_sub(1));
    h < 16384 && w < 16384 && start <= bytes && 3 * (h + 1) * (w + 1) <= bytes - start
}

#[cfg(not(target_arch = "nvptx64"))]
pub use host::{BatchLayout, LayoutError};

#[cfg(not(target_arch = "nvptx64"))]
mod host {
    use std::fmt;
    use std::ops::Range;

    use thalweg_simt::host::DeviceSlice;

    use crate::vision::arguments::{BatchTable, Pixels};
    use crate::vision::{MAX_EXTENT, MAX_IMAGES, MAX_PATCHES};

    /// Images start at a multiple of this many bytes, so that rows of the fast path can start on
    /// words.
    const ALIGN: usize = 16;

    /// The layout of the images of a batch: one after another in one buffer of bytes, with their
    /// patches one after another in every map.
    ///
    /// Kernels take it as a [`BatchTable`], with its [`table`](BatchLayout::table) on the device,
    /// and as [`Pixels`].
    ///
    /// ```
    /// use thalweg_kernels::vision::BatchLayout;
    ///
    /// let layout = BatchLayout::new(&[[40, 70], [1, 5]], 32)?; // height, width
    /// assert_eq!((layout.images(), layout.patches(), layout.largest()), (2, 2 * 3 + 1, 6));
    /// assert_eq!((layout.byte_range(0), layout.byte_range(1)), (0..8400, 8400..8415));
    /// assert_eq!((layout.grid(0), layout.patch_range(1)), ([2, 3], 6..7));
    /// assert_eq!(layout.table(), [40, 70, 0, 0, 1, 5, 8400, 6, 0, 0, 8416, 7]);
    /// # Ok::<(), thalweg_kernels::vision::LayoutError>(())
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct BatchLayout {
        patch: u32,
        largest: u32,
        table: Vec<u32>,
    }

    impl BatchLayout {
        /// Lays out images of these heights and widths, in patches of `patch` x `patch` pixels.
        ///
        /// # Errors
        /// There is no image or more than [`MAX_IMAGES`], an extent or the patch is not within 1 to
        /// [`MAX_EXTENT`], or all images together have more than [`MAX_PATCHES`] patches or
        /// 2^32 - 1 bytes.
        pub fn new(sizes: &[[u32; 2]], patch: u32) -> Result<Self, LayoutError> {
            if !(1..=MAX_IMAGES as usize).contains(&sizes.len()) {
                return Err(LayoutError::Images(sizes.len()));
            }
            if !(1..=MAX_EXTENT).contains(&patch) {
                return Err(LayoutError::Patch(patch));
            }
            let (mut bytes, mut patches, mut largest) = (0u64, 0u64, 0);
            let mut table = Vec::with_capacity(4 * (sizes.len() + 1));
            for (image, &[height, width]) in sizes.iter().enumerate() {
                if ![height, width].iter().all(|extent| (1..=MAX_EXTENT).contains(extent)) {
                    return Err(LayoutError::Extent { image, height, width });
                }
                // The totals are checked below, so no row that wraps here is returned.
                table.extend([height, width, bytes as u32, patches as u32]);
                let n = height.div_ceil(patch) * width.div_ceil(patch);
                largest = n.max(largest);
                patches += u64::from(n);
                bytes += (3 * u64::from(height) * u64::from(width)).next_multiple_of(ALIGN as u64);
            }
            if bytes > u64::from(u32::MAX) {
                return Err(LayoutError::Bytes(bytes));
            }
            if patches > u64::from(MAX_PATCHES) {
                return Err(LayoutError::Patches(patches));
            }
            table.extend([0, 0, bytes as u32, patches as u32]);
            Ok(Self { patch, largest, table })
        }

        /// Number of images, B.
        pub fn images(&self) -> u32 {
            self.table.len() as u32 / 4 - 1
        }

        /// Side of a patch in pixels.
        pub fn patch(&self) -> u32 {
            self.patch
        }

        /// Returns the table that the kernels read, `[B + 1, 4]`: for each image its height, width,
        /// first byte and first patch; at the end 0, 0 and the numbers of bytes and patches.
        pub fn table(&self) -> &[u32] {
            &self.table
        }

        /// Bytes of all images and of the gaps between them: the length of `rgb`.
        pub fn bytes(&self) -> u32 {
            self.table[self.table.len() - 2]
        }

        /// Patches of all images: N, the length of every map.
        pub fn patches(&self) -> u32 {
            self.table[self.table.len() - 1]
        }

        /// Patches of the image that has the most.
        pub fn largest(&self) -> u32 {
            self.largest
        }

        /// Makes what kernels are told about the batch; `table` is [`table`](Self::table) on the
        /// device.
        pub fn batch<'a, S>(&self, table: &'a DeviceSlice<S, u32>) -> BatchTable<'a, S> {
            BatchTable { images: self.images(), patches: self.patches(), largest: self.largest, table }
        }

        /// Makes what kernels are told about the pixels of the batch: `rgb` holds the images, and
        /// `fixation` is (y, x) in units of an image's height and width.
        pub fn pixels<'a, S>(&self, rgb: &'a DeviceSlice<S, u8>, fixation: [f32; 2]) -> Pixels<'a, S> {
            Pixels { rgb, bytes: self.bytes(), patch: self.patch, fixation }
        }

        /// Height and width of image `b`.
        ///
        /// # Panics
        /// There is no image `b`.
        pub fn size(&self, b: usize) -> [u32; 2] {
            let row = self.row(b);
            [row[0], row[1]]
        }

        /// Rows and columns of patches of image `b`.
        ///
        /// # Panics
        /// There is no image `b`.
        pub fn grid(&self, b: usize) -> [u32; 2] {
            self.size(b).map(|extent| extent.div_ceil(self.patch))
        }

        /// The bytes of image `b` in `rgb`. They start at a multiple of 16.
        ///
        /// # Panics
        /// There is no image `b`.
        pub fn byte_range(&self, b: usize) -> Range<usize> {
            let [height, width] = self.size(b).map(|extent| extent as usize);
            let start = self.row(b)[2] as usize;
            start..start + 3 * height * width
        }

        /// The patches of image `b` among those of the batch.
        ///
        /// # Panics
        /// There is no image `b`.
        pub fn patch_range(&self, b: usize) -> Range<usize> {
            self.row(b)[3] as usize..self.table[4 * b + 7] as usize
        }

        fn row(&self, b: usize) -> &[u32] {
            assert!(b < self.images() as usize, "image {b} of {}", self.images());
            &self.table[4 * b..4 * b + 4]
        }
    }

    /// The reason why a batch cannot hold some images.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum LayoutError {
        /// There are this many images, none or too many.
        Images(usize),
        /// The side of a patch is this, 0 or too large.
        Patch(u32),
        /// An image has no or too many rows or columns.
        Extent {
            /// Index of the image.
            image: usize,
            /// Its rows.
            height: u32,
            /// Its columns.
            width: u32,
        },
        /// All images together have this many bytes, which is too many.
        Bytes(u64),
        /// All images together have this many patches, which is too many.
        Patches(u64),
    }

    impl fmt::Display for LayoutError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Images(n) => write!(f, "a batch of {n} images: there must be 1 to {MAX_IMAGES}"),
                Self::Patch(side) => write!(f, "patches of {side} pixels a side: it must be 1 to {MAX_EXTENT}"),
                Self::Extent { image, height, width } => {
                    write!(f, "image {image} is {height} x {width}: both must be 1 to {MAX_EXTENT}")
                }
                Self::Bytes(n) => write!(f, "the images of a batch take {n} bytes: there can be at most {}", u32::MAX),
                Self::Patches(n) => {
                    write!(f, "the images of a batch have {n} patches: there can be at most {MAX_PATCHES}")
                }
            }
        }
    }
    impl std::error::Error for LayoutError {}

    #[cfg(test)]
    mod tests {
        use super::super::{PIECE, Span};
        use super::{BatchLayout, LayoutError};

        #[test]
        fn images_follow_one_another() {
            let sizes: Vec<[u32; 2]> = (1..60).map(|i| [i * 7 % 41 + 1, i * 13 % 59 + 1]).collect();
            for patch in [1, 3, 32, 16384] {
                let layout = BatchLayout::new(&sizes, patch).unwrap();
                let (mut bytes, mut patches, mut largest) = (0, 0, 0);
                for (b, &[height, width]) in sizes.iter().enumerate() {
                    let n = (height.div_ceil(patch) * width.div_ceil(patch)) as usize;
                    let range = layout.byte_range(b);
                    assert_eq!((layout.size(b), range.len()), ([height, width], (3 * height * width) as usize));
                    assert!(range.start.is_multiple_of(16) && (bytes..bytes + 16).contains(&range.start));
                    assert_eq!(layout.patch_range(b), patches..patches + n);
                    assert_eq!(layout.grid(b).iter().product::<u32>() as usize, n);
                    (bytes, patches, largest) = (range.end, patches + n, n.max(largest));
                }
                assert!((bytes..bytes + 16).contains(&(layout.bytes() as usize)));
                assert_eq!((layout.images() as usize, layout.patches() as usize), (sizes.len(), patches));
                assert_eq!((layout.patch(), layout.largest() as usize), (patch, largest));
                assert_eq!(layout.table().len(), 4 * (sizes.len() + 1));
            }
        }

        /// First patches of images: proper ones, a little wrong, and noise; and how many patches
        /// there are.
        fn firsts(mut random: impl FnMut() -> u32) -> (Vec<u32>, u32) {
            let images = 1 + random() % 40;
            let most = [3, 100, 5000][random() as usize % 3];
            let mut patches = 0;
            let mut firsts: Vec<u32> = (0..images)
                .map(|_| {
                    patches += 1 + random() % most;
                    patches
                })
                .collect();
            firsts.insert(0, 0);
            firsts.pop();
            match random() % 3 {
                0 => {}
                1 => firsts[(random() % images) as usize] = random() % (patches + 1),
                _ => firsts.iter_mut().for_each(|first| *first = random() >> (random() % 32)),
            }
            (firsts, patches)
        }

        #[test]
        fn images_and_pieces_never_share_a_patch() {
            let mut state = 1u64;
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u32
            };
            let (mut proper, mut wrong) = (0, 0);
            for _ in 0..3000 {
                let (firsts, patches) = firsts(&mut random);
                let images = firsts.len() as u32;
                let first = |b: u32| firsts[b as usize];
                let is_proper = firsts[0] == 0
                    && firsts.windows(2).all(|pair| pair[0] < pair[1])
                    && firsts.iter().all(|first| *first < patches);
                let mut end = 0;
                for image in 0..images {
                    let span = Span::find(images, patches, first, |b, _| b <= image);
                    let apart = span.len() == 0 || end <= span.start;
                    assert!(span.image == image && span.start <= span.end && apart, "{firsts:?}");
                    let next = firsts.get(image as usize + 1).copied().unwrap_or(patches);
                    assert!(!is_proper || (span.start, span.end) == (firsts[image as usize], next));
                    end = span.end.max(end);
                }
                assert!(end <= patches);

                let (mut end, mut covered) = (0, 0);
                for piece in 0..patches / PIECE + images {
                    let span = Span::find(images, patches, first, |b, first| first / PIECE + b <= piece);
                    let k = piece.wrapping_sub(span.piece());
                    if k < span.len().div_ceil(PIECE) {
                        let start = span.start + k * PIECE;
                        assert!(end <= start && start < span.end, "{firsts:?}");
                        end = span.end.min(start + PIECE);
                        covered += end - start;
                    }
                }
                assert!(end <= patches && (!is_proper || covered == patches), "{firsts:?}");
                *(if is_proper { &mut proper } else { &mut wrong }) += 1;
            }
            assert!(proper > 500 && wrong > 500);
        }

        #[test]
        fn batches_have_limits() {
            assert_eq!(BatchLayout::new(&[], 32), Err(LayoutError::Images(0)));
            assert_eq!(BatchLayout::new(&[[1, 1]; 65536], 32), Err(LayoutError::Images(65536)));
            assert!(BatchLayout::new(&[[1, 1]; 65535], 32).is_ok());
            for patch in [0, 16385] {
                assert_eq!(BatchLayout::new(&[[1, 1]], patch), Err(LayoutError::Patch(patch)));
            }
            for [height, width] in [[0, 1], [1, 0], [16385, 1], [1, u32::MAX]] {
                let error = BatchLayout::new(&[[1, 1], [height, width]], 32).unwrap_err();
                assert_eq!(error, LayoutError::Extent { image: 1, height, width });
                assert!(error.to_string().contains(&format!("image 1 is {height} x {width}")));
            }
            let whole = [[16384, 16384]; 6];
            assert!(BatchLayout::new(&whole[..5], 32).is_ok());
            assert_eq!(BatchLayout::new(&whole, 32), Err(LayoutError::Bytes(6 * (3 << 28))));
            assert!(BatchLayout::new(&whole[..1], 1).is_ok());
            assert_eq!(BatchLayout::new(&[[16384, 16384], [1, 1]], 1), Err(LayoutError::Patches((1 << 28) + 1)));
        }
    }
}
