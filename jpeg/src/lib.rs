//! JPEG files decoded on the device.
//!
//! Only the compressed bytes of a file cross the bus. Kernels in Rust decode them to RGB, many files
//! at once: [`thalweg_kernels::jpeg`] says how. The pixels equal those of libjpeg-turbo bit by bit.
//! Each kernel also runs on the CPU device.
//!
//! A [`Batch`] is what the host reads of some files. [`Decoder`] decodes it and returns an
//! [`Event`](thalweg::Event), so the images cannot be used before they are decoded.
//!
//! A batch takes two copies, a fill and seven or eight launches. With [`Decoder::with_graphs`], the fill and the six launches
//! up to the inverse DCT are one replay of a graph for batches of the same images' sizes, and one launch is made again behind it. Their coded data has another length each
//! time, so its length is rounded up there, and the launches have room for the rounded one. The other launches write
//! to pixels that may be others in each batch. On an H200 the host then enqueues one 4K image in 18.5 us instead of 42.1, and 64 of
//! them in 74.0 instead of 104.9. The images are not there sooner, because the host is ahead of the device
//! either way (1.04 ms, and 6.7 ms for 64), so graphs are off unless they are asked for.
//!
//! # Trust
//!
//! Files may come from strangers. The parser has no unsafe code. The memory that a file asks for is
//! bounded by its length: at most 5 KiB for each byte of the file. The kernels bound every index,
//! and their time is in proportion to the length of the data: from about 256 KiB on, data of which no
//! part can be decoded before all that precedes it is [`Unsupported::Steps`]. On the host, the scans of a
//! progressive file look at each block at most 64 times on average. A broken file is an
//! error of its own and leaves the other files of its batch alone.
//!
//! # Modules
//!
//! | file | what is in it |
//! |---|---|
//! | `error` | why a file is not decoded |
//! | `huffman` | Huffman tables, as files have them and as kernels take them |
//! | `header` | the parser of a file's segments |
//! | `plan` | a batch as the kernels take it |
//! | `progressive` | the scans of progressive files, which the host decodes to coefficients |
//! | `decoder` | [`Batch`], [`Decoder`], [`Images`] and [`Report`] |

#![forbid(unsafe_code)]

mod decoder;
mod error;
mod header;
mod huffman;
mod plan;
mod progressive;

pub use decoder::{Batch, Decoder, Image, Images, ImagesEvents, ImagesOn, Report, ReportOn};
pub use error::{JpegError, Unsupported};
pub use header::size;
