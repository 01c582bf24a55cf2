//! The image processors of vision-language models: decoded images to `pixel_values` and the tensors
//! beside them, equal to those of transformers in every bit.
//!
//! ```
//! use thalweg_processor::{Processor, RgbImage};
//!
//! let (red, gray) = ([255, 0, 0].repeat(200 * 300), [77; 3 * 64 * 64]);
//! let images = [
//!     RgbImage { height: 200, width: 300, rgb: &red },
//!     RgbImage { height: 64, width: 64, rgb: &gray },
//! ];
//! let inputs = Processor::qwen2_5_vl().process::<f32>(&images)?;
//! let grids = inputs.layout.image_grid_thw().expect("Qwen has grids");
//! assert_eq!(grids, [[1, 14, 22], [1, 4, 4]]);
//! assert_eq!(inputs.layout.shape(), [14 * 22 + 4 * 4, 1176]);
//! assert_eq!(inputs.layout.cu_seqlens(), Some(vec![0, 308, 324]));
//! # Ok::<(), thalweg_processor::Error>(())
//! ```
//!
//! # What equal means
//!
//! An image becomes numbers in four steps: its size, a resize in two passes with 8-bit levels
//! between them, a table of 256 numbers for each channel, and an order of the numbers. Each is a
//! function of the pixels, of integers and of doubles that depend on sizes only, so the same bits
//! come out everywhere. Libraries differ in two choices, which [`Resampler`] and [`Style`] name:
//! the defaults are what transformers 5 computes on a CPU.
//!
//! # Modules
//!
//! | file | what is in it |
//! |---|---|
//! | `processor` | [`Processor`], [`ProcessorParams`] and [`InputFormat`]: parameters, and the plan of an image |
//! | `config` | [`Processor::from_config`]: the files of transformers |
//! | [`sizes`] | the sizes to which models resize |
//! | `resampler`, `coefficients` | filters, and the integer weights of one axis |
//! | `resize` | two passes on the host |
//! | `levels` | the tables of numbers |
//! | `plan` | the order of what is written |
//! | `host` | [`Processor::process`] |
//! | `device` | [`DeviceProcessor`]: images on the device to [`ModelInputs`] |
//! | `inputs`, [`grids`] | [`InputLayout`]: shapes, `image_grid_thw`, `cu_seqlens`, window index, position ids |
//! | `positions`, `rope` | interpolated position embeddings, and the position ids of language models |
//! | `packing` | [`pack`]: bins with a budget |
//! | `error` | [`Error`] |
//! | `memory` | the memory of outputs |
//! | `wide` | code that is compiled for wider vectors, too |

#![deny(unsafe_code)]

mod coefficients;
mod config;
mod device;
mod error;
pub mod grids;
mod host;
mod inputs;
mod levels;
mod memory;
mod packing;
mod plan;
mod positions;
mod processor;
mod resampler;
mod resize;
mod rope;
pub mod sizes;
mod wide;

pub use coefficients::AxisCoefficients;
pub use device::{DeviceImage, DeviceProcessor, ModelInputs, ModelInputsEvents, ModelInputsOn};
pub use error::{Error, Result};
pub use host::{HostInputs, InputElement, RgbImage, resize};
pub use inputs::{InputLayout, RefusedImage};
pub use packing::pack;
pub use positions::{InterpolatedPlaces, TransformersVersion, siglip2_positions};
pub use processor::{CLIP, ColorStatistics, HALF, IMAGENET, InputFormat, Processor, ProcessorParams};
pub use resampler::{ResampleFilter, Resampler, Style};
pub use rope::{RopePositions, TokenSequences};

/// The blocks of the page are tested with the documentation; `.ci/pages.py` compares the list.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../docs/processor.md")]
    mod processor {}
}
