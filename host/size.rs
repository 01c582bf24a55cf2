//! The size of an image.

use std::fmt;

/// A size of two dimensions: of an image in pixels, or of a grid of patches or tiles. It prints as
/// `height x width`.
///
/// ```
/// use thalweg::Size;
///
/// let size = Size::new(480, 640);
/// assert_eq!((size.height, size.width, size.area()), (480, 640, 307_200));
/// assert_eq!(size, Size::from([480, 640]));
/// assert_eq!(size.to_string(), "480 x 640");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Size {
    /// The number of rows.
    pub height: u32,
    /// The number of columns.
    pub width: u32,
}

impl Size {
    /// Makes a size.
    pub const fn new(height: u32, width: u32) -> Self {
        Self { height, width }
    }

    /// Returns height and width, to compute both sides at once.
    pub const fn sides(self) -> [u32; 2] {
        [self.height, self.width]
    }

    /// Returns height times width.
    pub const fn area(self) -> u64 {
        self.height as u64 * self.width as u64
    }
}

/// Takes height and width.
impl From<[u32; 2]> for Size {
    fn from([height, width]: [u32; 2]) -> Self {
        Self { height, width }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.height, self.width)
    }
}
