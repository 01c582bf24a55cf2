//! The reasons why a file is not decoded.

use std::fmt;

/// The reason why a file is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JpegError {
    /// The bytes do not start as a JPEG file does.
    NotJpeg,
    /// The file ends before the image does.
    Truncated,
    /// The file contradicts the format. `at` is the byte at which that shows.
    Broken {
        /// The place in the file, in bytes.
        at: usize,
        /// A description of the defect.
        what: &'static str,
    },
    /// The coded data of the image is broken: it contains a code that its tables do not have, or
    /// too many coefficients for a block.
    BrokenData,
    /// There is no page-locked memory for the coefficients of a progressive file.
    NoMemory,
    /// The pixels have no room in the memory that is there for them.
    NoRoom,
    /// The file is a JPEG file of a kind that is not decoded. [`Unsupported::on_host`] says whether
    /// the host decodes it.
    Unsupported(Unsupported),
}

/// A kind of JPEG file that the device, or the host too, does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// A file with arithmetic coding.
    Arithmetic,
    /// A lossless file.
    Lossless,
    /// A hierarchical file.
    Hierarchical,
    /// Samples of another number of bits than 8.
    Bits(u8),
    /// Another number of components than 1, 3 or 4.
    Components(u8),
    /// Four components, CMYK or YCCK. The host decodes them.
    Cmyk,
    /// A quantization table that changes between scans. The host decodes such files.
    LateTables,
    /// Scans that an encoder has no use for: too many, or two of one component in a file that is
    /// not progressive.
    Scans,
    /// A progressive file without its last scans.
    MissingScans,
    /// Sampling factors that are not 1 to 4, that do not divide the largest one, or that give more
    /// than 10 blocks for each unit of the scan. The host decodes the last ones if no scan has so
    /// many.
    Sampling,
    /// More than 16384 pixels a side.
    Size {
        /// The number of rows.
        height: u16,
        /// The number of columns.
        width: u16,
    },
    /// The number of rows is not in the frame header, but after the image (`DNL`).
    LateHeight,
    /// Coded data of which no part can be decoded before all that precedes it: a decoder that
    /// starts within it does not fall into step. The host decodes it.
    Steps,
}

impl Unsupported {
    /// Says whether the host decodes files of this kind.
    #[must_use]
    pub fn on_host(self) -> bool {
        matches!(self, Self::Cmyk | Self::LateTables | Self::Sampling | Self::Steps)
    }
}

impl fmt::Display for JpegError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJpeg => f.write_str("not a JPEG file"),
            Self::Truncated => f.write_str("truncated: the file ends before the JPEG image does"),
            Self::Broken { at, what } => write!(f, "broken JPEG file: {what} at byte {at}"),
            Self::BrokenData => f.write_str("broken JPEG file: its coded data does not fit its tables"),
            Self::NoMemory => {
                f.write_str("there is no page-locked memory for the coefficients of this progressive file")
            }
            Self::NoRoom => f.write_str("the memory for the pixels has another size than they"),
            Self::Unsupported(kind @ Unsupported::Size { .. }) => kind.fmt(f),
            Self::Unsupported(kind) => write!(f, "JPEG files of this kind are not supported: {kind}"),
        }
    }
}

impl std::error::Error for JpegError {}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arithmetic => f.write_str("arithmetic coding"),
            Self::Lossless => f.write_str("lossless"),
            Self::Hierarchical => f.write_str("hierarchical"),
            Self::Bits(bits) => write!(f, "samples of {bits} bits"),
            Self::Components(count) => write!(f, "{count} components"),
            Self::Scans => f.write_str("scans that no encoder needs"),
            Self::Cmyk => f.write_str("CMYK or YCCK"),
            Self::LateTables => f.write_str("quantization tables between scans"),
            Self::MissingScans => f.write_str("progressive, without its last scans"),
            Self::Sampling => f.write_str("unusual sampling factors"),
            Self::Size { height, width } => write!(f, "{width} x {height} pixels; expected 1 to 16384 a side"),
            Self::Steps => f.write_str("coded data that can only be decoded from the start"),
            Self::LateHeight => f.write_str("the number of rows stands after the image"),
        }
    }
}
