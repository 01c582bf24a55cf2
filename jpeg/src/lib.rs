//! JPEG files decoded on the device or on the host, to the same bits: those of libjpeg-turbo.
//!
//! Only the compressed bytes of a file cross the bus. Kernels in Rust decode them to RGB, many
//! files at once: [`thalweg_kernels::jpeg`] says how. Each kernel also runs on the CPU device.
//! [`HostDecoder`] is for machines without a GPU, and for the few files that the device leaves to
//! the host: [`outline`] says which. It decodes one file at a time on the calling thread.
//!
//! A [`EncodedBatch`] is what the host reads of some files. [`Decoder`] decodes it and returns an
//! [`Event`](thalweg::Event), so the images cannot be used before they are decoded.
//!
//! A batch takes two copies, a fill and seven or eight launches. On an H200 the host enqueues one
//! 4K image in 42.1 us, and 64 of them in 104.9, and the device decodes them in 1.04 and 6.7 ms:
//! replaying the launches as a graph gains nothing.
//!
//! # Trust
//!
//! Files may come from strangers. The parser and the host's decoder have no unsafe code, apart from
//! the call of code that is compiled for processors with AVX2, once the processor is known to have
//! it. The memory that a file asks for is bounded by its length: at most 5 KiB for each byte of the
//! file. The kernels bound every index, and their time is in proportion to the length of the data:
//! from about 256 KiB on, data of which no part can be decoded before all that precedes it is
//! [`Unsupported::Steps`] there, and the host decodes it. Scans look at each block at most 64 times
//! on average. A broken file is an error of its own and leaves the other files of its batch alone:
//! what libjpeg warns of because data is missing or wrong is an error here. Other bytes between
//! segments, and after the data of a scan, are passed over.
//!
//! # Modules
//!
//! | file | what is in it |
//! |---|---|
//! | `error` | why a file is not decoded |
//! | `huffman` | Huffman tables, as files have them and as kernels take them |
//! | `header` | the parser of a file's segments |
//! | [`orientation`] | how an image is turned |
//! | `plan` | a batch as the kernels take it |
//! | `decoder` | [`EncodedBatch`], [`Decoder`], [`DecodedImages`] and [`DecodeStatus`] |
//! | `bits`, `entropy` | the host's way through coded data, and what scans say of a block |
//! | `scans` | files with several scans, which the host decodes to coefficients |
//! | `host` | [`HostDecoder`] and [`Outline`]: samples and pixels on the host |
//! | `wide` | code that is compiled for wider vectors, too |

#![deny(unsafe_code)]

mod bits;
mod decoder;
mod entropy;
mod error;
mod header;
mod host;
mod huffman;
pub mod orientation;
mod plan;
mod scans;
mod wide;

pub use decoder::{
    DecodeStatus, DecodeStatusOn, DecodedImage, DecodedImages, DecodedImagesEvents, DecodedImagesOn, Decoder,
    EncodedBatch,
};
pub use error::{JpegError, Unsupported};
pub use header::dimensions;
pub use host::{HostDecoder, Outline, clear_orientation, outline};
pub use plan::ReservedFile;
