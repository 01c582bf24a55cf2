//! Rules for photographs that are not upright, opaque and of 8 bits.

/// The rules for a photograph that is not upright, opaque and of 8 bits.
///
/// The default is what people see. Libraries differ, so a model that was trained with another one
/// may want what that one does: Pillow turns nothing by itself, and cuts 16-bit gray at 255;
/// `qwen_vl_utils` and vLLM blend transparent pixels over white. Formats that have nothing of the
/// kind are the same under each rule.
///
/// ```
/// use thalweg_loader::{AlphaRule, LoaderOptions, OrientationRule, PhotoOptions};
///
/// let photo = PhotoOptions::default().with_orientation(OrientationRule::Stored).with_alpha(AlphaRule::White);
/// let options = LoaderOptions::default().with_photo(photo);
/// assert_eq!(options.photo.alpha, AlphaRule::White);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thalweg::__Setters)]
#[non_exhaustive]
pub struct PhotoOptions {
    /// Whether the orientation of EXIF and XMP counts.
    pub orientation: OrientationRule,
    /// The color of a transparent pixel.
    pub alpha: AlphaRule,
    /// The level of a sample of 16 bits.
    pub depth: DepthRule,
}

/// Whether the orientation of EXIF and XMP counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrientationRule {
    /// It is applied: the image is upright.
    #[default]
    Applied,
    /// It does not count: the rows are those of the file.
    Stored,
}

/// The color of a transparent pixel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlphaRule {
    /// Its own color, however transparent it is: what `convert("RGB")` of Pillow does.
    #[default]
    Drop,
    /// Its own color over white, rounded as `paste` of Pillow does.
    White,
}

/// The level of a sample of 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DepthRule {
    /// The nearest one of 8 bits.
    #[default]
    Rounded,
    /// The one that `convert("RGB")` of Pillow gives: a gray sample without alpha is cut at 255,
    /// and another one loses its low byte.
    Pillow,
}
