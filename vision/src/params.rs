//! The inputs: an image and the parameters.

use std::ops::RangeInclusive;

use thalweg_kernels::vision::{BatchLayout, LayoutError, MAX_IMAGES, MAX_PATCHES};

use thalweg::__counted as counted;
use thalweg::{Error, PinnedBuffer, Result, Size};

/// The number of planes of the texture array, 13. A patch has as many features, and a token as many
/// channels.
pub const PLANES: usize = thalweg_kernels::vision::PLANES as usize;

/// The largest height and width of an image, in pixels.
pub const MAX_EXTENT: u32 = thalweg_kernels::vision::MAX_EXTENT;

/// The parameters that turn an image into tokens.
#[derive(Clone, Debug, PartialEq, thalweg::__Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct TokenParams {
    /// Side of a patch in pixels, 1 to 16384. Default 32.
    pub patch: u32,
    /// A selected patch becomes `n` x `n` tokens, with `n` in this range. It lies within 1 to 255,
    /// and is 8 to 20 by default.
    pub sides: RangeInclusive<u32>,
    /// The most tokens that an image gets; at least the smallest side squared. Default 4096.
    pub budget: u64,
    /// The exponent of the utility `tokens^focus`, between 0 and 1. Near 1, tokens gather on few
    /// patches; near 0, they spread. Default 0.8.
    pub focus: f64,
    /// The point where the eye rests: y, x, from 0 to 1. Default the center.
    pub fixation: [f32; 2],
    /// The fall of salience towards the periphery, 0 to 1. Default 0.
    pub foveal_bias: f32,
    /// Weights of entropy, salience and participatory score. If there are none, the balancer of the
    /// pipeline decides ([`Pipeline::with_query`](crate::Pipeline::with_query)); without a
    /// balancer, the scores weigh the same. Without a query there is no participatory score, and
    /// the third weight must be 0.
    pub mix: Option<[f32; 3]>,
}

impl Default for TokenParams {
    fn default() -> Self {
        Self { patch: 32, sides: 8..=20, budget: 4096, focus: 0.8, fixation: [0.5, 0.5], foveal_bias: 0.0, mix: None }
    }
}

fn refuse(name: &'static str, given: impl ToString, expected: impl ToString) -> Result<()> {
    Err(Error::Parameter { name, given: given.to_string(), expected: expected.to_string() })
}

impl TokenParams {
    /// Checks every parameter.
    ///
    /// # Errors
    /// [`Error::Parameter`] for the first parameter that is out of its range.
    pub fn validate(&self) -> Result<()> {
        let (lo, hi) = self.side_bounds();
        if !(1..=MAX_EXTENT).contains(&self.patch) {
            return refuse("patch", self.patch, format!("1 to {MAX_EXTENT} pixels"));
        }
        if lo == 0 || lo > hi || hi > 255 {
            return refuse("sides", format!("{lo}..{hi}"), "a range lo..hi with 1 <= lo <= hi <= 255");
        }
        if self.budget < u64::from(lo * lo) {
            return refuse(
                "budget",
                self.budget,
                format!("at least {}, the smallest share of a patch", counted(lo * lo, "token")),
            );
        }
        if !(self.focus > 0.0 && self.focus < 1.0) {
            return refuse("focus", self.focus, "a number between 0 and 1, both excluded");
        }
        let unit = 0.0..=1.0;
        if !self.fixation.iter().all(|v| unit.contains(v)) {
            let [y, x] = self.fixation;
            return refuse("fixation", format!("{y},{x}"), "y,x with both from 0 to 1");
        }
        if !unit.contains(&self.foveal_bias) {
            return refuse("foveal_bias", self.foveal_bias, "a number from 0 to 1");
        }
        if let Some(mix @ [a, b, c]) = self.mix
            && !(a >= 0.0 && b >= 0.0 && c >= 0.0 && a + b + c > 0.0 && (a + b + c).is_finite())
        {
            return refuse("mix", format!("{mix:?}"), "weights of a finite sum, none negative and not all zero");
        }
        Ok(())
    }

    pub(crate) fn side_bounds(&self) -> (u32, u32) {
        (*self.sides.start(), *self.sides.end())
    }

    /// Returns the grid of the patches of an image.
    pub fn grid(&self, image: Size) -> Size {
        image.sides().map(|side| side.div_ceil(self.patch)).into()
    }
}

/// An image: `height` x `width` pixels of sRGB, 8 bits a channel, `[H, W, 3]`, row-major.
///
/// It owns its bytes, in pageable or in page-locked memory. A clone is in pageable memory.
pub struct Image {
    height: u32,
    width: u32,
    rgb: Bytes,
}

/// The memory of an image.
enum Bytes {
    Pageable(Vec<u8>),
    Pinned(PinnedBuffer<u8>),
}

impl Image {
    /// An image of `3 * height * width` bytes.
    ///
    /// # Errors
    /// An extent is not within 1 to 16384, or the number of bytes is another.
    pub fn new(height: u32, width: u32, rgb: Vec<u8>) -> Result<Self> {
        check_size(height, width, rgb.len())?;
        Ok(Self { height, width, rgb: Bytes::Pageable(rgb) })
    }

    /// An image of `3 * height * width` bytes that lie in page-locked memory, such as a loader's.
    /// It keeps the memory until it is dropped, so the bytes need no copy.
    ///
    /// ```
    /// use thalweg::Device;
    /// use thalweg_vision::Image;
    ///
    /// let pixels = Device::cpu()?.pinned_from(&[0u8, 0, 0, 255, 255, 255])?;
    /// let image = Image::from_pinned(1, 2, pixels)?;
    /// assert_eq!(image, Image::new(1, 2, vec![0, 0, 0, 255, 255, 255])?);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// An extent is not within 1 to 16384, or the number of bytes is another.
    pub fn from_pinned(height: u32, width: u32, rgb: PinnedBuffer<u8>) -> Result<Self> {
        check_size(height, width, rgb.len())?;
        Ok(Self { height, width, rgb: Bytes::Pinned(rgb) })
    }

    /// The size in pixels.
    pub fn size(&self) -> Size {
        Size::new(self.height, self.width)
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Columns.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The bytes: red, green and blue of the first pixel, then of the pixel to its right.
    pub fn rgb(&self) -> &[u8] {
        match &self.rgb {
            Bytes::Pageable(rgb) => rgb,
            Bytes::Pinned(rgb) => rgb,
        }
    }
}

impl Clone for Image {
    fn clone(&self) -> Self {
        Self { height: self.height, width: self.width, rgb: Bytes::Pageable(self.rgb().to_vec()) }
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        (self.height, self.width, self.rgb()) == (other.height, other.width, other.rgb())
    }
}

impl Eq for Image {}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} x {})", self.height, self.width)
    }
}

/// Checks the extents of an image and its number of bytes.
pub(crate) fn check_size(height: u32, width: u32, bytes: usize) -> Result<()> {
    let extents = 1..=MAX_EXTENT;
    if !extents.contains(&height) || !extents.contains(&width) {
        return refuse("image size", format!("{height} x {width}"), format!("1 to {MAX_EXTENT} pixels a side"));
    }
    let expected = 3 * height as usize * width as usize;
    if bytes != expected {
        return refuse(
            "image",
            counted(bytes, "byte"),
            format!("{expected} bytes, 3 for each of {height} x {width} pixels"),
        );
    }
    Ok(())
}

/// Computes where images of these sizes lie in a batch, for the kernels that take a layout. It is
/// [`BatchLayout::new`] with the error of this crate.
///
/// # Errors
/// No batch can hold the images: see [`LayoutError`].
pub fn layout(sizes: &[Size], patch: u32) -> Result<BatchLayout> {
    let sizes: Vec<_> = sizes.iter().map(|size| size.sides()).collect();
    BatchLayout::new(&sizes, patch).map_err(|error| {
        let (name, given, expected) = match error {
            LayoutError::Patch(side) => ("patch", side.to_string(), format!("1 to {MAX_EXTENT} pixels")),
            LayoutError::Extent { image, height, width } => (
                "image size",
                format!("{height} x {width} for image {image}"),
                format!("1 to {MAX_EXTENT} pixels a side"),
            ),
            LayoutError::Images(n) => ("batch", counted(n, "image"), format!("1 to {MAX_IMAGES}")),
            LayoutError::Bytes(n) => ("batch", counted(n, "byte"), format!("at most {}", u32::MAX)),
            LayoutError::Patches(n) => ("batch", format!("{n} patches"), format!("at most {MAX_PATCHES}")),
            error => ("batch", error.to_string(), "images that one batch can hold".into()),
        };
        Error::Parameter { name, given, expected }
    })
}
