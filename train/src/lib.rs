//! Training of transformers over sequences of different lengths.
//!
//! [`layers`] are explicit functions on typed streams, forward and backward; there is no automatic
//! differentiation. All weights of a model lie in one flat buffer, and so do the gradients and the
//! moments of the optimizer, so an update is one launch. Kernels and their launchers are in
//! [`thalweg_kernels::train`] and [`thalweg_kernels::linear`].
//!
//! [`TokenTransformer`] is the model with its optimizer on one stream, and has a complete example.
//!
//! # Modules
//!
//! | file | what is in it |
//! |---|---|
//! | `transformer` | [`TokenTransformer`]: steps, evaluation, checkpoints |
//! | [`overlap`] | patterns that run parts of training at the same time |
//! | `batch` | [`TokenBatch`], [`TextBatch`], [`DeviceBatch`], [`DeviceTextBatch`]; [`Gated`] with the [`Patches`] of their tokens |
//! | `model` | the model as functions on a stream; [`TokenTransformerConfig`] |
//! | `gate` | [`GateConfig`]: relevance that learns |
//! | `encoder` | [`ImageEncoder`]: a vision transformer as timm's |
//! | `vision_language` | [`VisionLanguage`]: tokens or pixels of an image to text, in two halves; [`TextServer`] |
//! | [`layers`] | the layers of which these models are made, and models of your own can be |
//! | `optimizer` | [`AdamW`], [`AdamWState`], [`Schedule`] |
//! | `layout` | [`ParameterLayout`]: where the weights lie in a flat buffer |
//! | `precision` | [`Precision`]: `f32` or `bf16` |
//! | `matmul_backend` | [`MatmulBackend`]: what multiplies matrices, thalweg's kernels or cuBLASLt; [`Matmul`] |
//! | `tensors` | [`Tensors`]: safetensors files |
//! | `error` | [`Error`] |

#![forbid(unsafe_code)]

mod batch;
mod encoder;
mod error;
mod gate;
pub mod layers;
mod layout;
mod matmul_backend;
mod metadata;
mod model;
mod optimizer;
pub mod overlap;
mod precision;
mod tensors;
mod transformer;
mod vision_language;

pub use batch::{
    DeviceBatch, DevicePatches, DeviceTextBatch, Gated, HostBatch, Patches, StreamBatch, TextBatch, TokenBatch,
};
pub use encoder::{EncoderConfig, Encoding, ImageEncoder};
pub use error::{Error, Result};
pub use gate::GateConfig;
pub use layers::{Gelu, Pooling};
pub use layout::{ParameterLayout, ParameterSlot};
pub use matmul_backend::{Matmul, MatmulBackend, MatmulOn};
pub use model::TokenTransformerConfig;
pub use optimizer::{AdamW, AdamWState, AdamWStateOn, Schedule};
pub use precision::Precision;
pub use tensors::{Data, Tensor, Tensors};
pub use transformer::{Evaluation, Loss, TokenTransformer};
pub use vision_language::{
    Half, TextDecoder, TextRequest, TextServer, TextServerOptions, TextTicket, VisionEncoder, VisionLanguage,
    VisionLanguageConfig,
};

/// The blocks of the page are tested with the documentation; `.ci/pages.py` compares the list.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../docs/training.md")]
    mod training {}
}
