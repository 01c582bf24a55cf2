//! Why a file is not decoded.

use std::fmt;

/// Why a file is not decoded on the device.
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
        /// What is wrong there.
        what: &'static str,
    },
    /// The coded data of the image is broken: it contains a code that its tables do not have, or too
    /// many coefficients for a block.
    BrokenData,
    /// There is no page-locked memory for the coefficients of a progressive file.
    NoMemory,
    /// The file is a JPEG file of a kind that the kernels do not decode. A decoder on the host may.
    Unsupported(Unsupported),
}

/// A kind of JPEG file that the kernels do not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// A file with arithmetic coding.
    Arithmetic,
    /// A lossless or hierarchical file.
    Lossless,
    /// Samples of another number of bits than 8.
    Bits(u8),
    /// Another number of components than 1 or 3, such as CMYK.
    Components(u8),
    /// Components in several scans of a file that is not progressive, or scans of a progressive file that an
    /// encoder has no use for.
    Scans,
    /// Sampling factors that are not 1 to 4, that do not divide the largest one, or that give more
    /// than 10 blocks for each unit of the scan.
    Sampling,
    /// More than 16384 pixels a side.
    Size {
        /// The number of rows.
        height: u16,
        /// The number of columns.
        width: u16,
    },
    /// The number of rows stands after the image (`DNL`).
    LateHeight,
    /// Coded data of which no part can be decoded before all that precedes it: a decoder that starts
    /// within it does not fall into step.
    Steps,
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
            Self::Unsupported(kind) => write!(f, "the device does not decode this kind of JPEG file: {kind}"),
        }
    }
}

impl std::error::Error for JpegError {}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arithmetic => f.write_str("arithmetic coding"),
            Self::Lossless => f.write_str("lossless or hierarchical"),
            Self::Bits(bits) => write!(f, "samples of {bits} bits"),
            Self::Components(count) => write!(f, "{count} components"),
            Self::Scans => f.write_str("several scans"),
            Self::Sampling => f.write_str("unusual sampling factors"),
            Self::Size { height, width } => write!(f, "{width} x {height} pixels, more than 16384 a side"),
            Self::Steps => f.write_str("its coded data can only be decoded from the start"),
            Self::LateHeight => f.write_str("the number of rows stands after the image"),
        }
    }
}
