//! Overlap patterns of training: functions that run parts of training at the same time.
//!
//! | your situation | pattern | what overlaps |
//! |---|---|---|
//! | a batch is too large, so its gradient is the sum over several | [`micro_batches`](fn@micro_batches) | forward of micro-batch k + 1 with backward of k |
//! | the same with micro-batches that are made on the device | [`micro_batches_from`] | making k + 2, forward of k + 1, backward of k |
//! | a frozen encoder in front of a model that learns | [`encoder_decoder`](fn@encoder_decoder) | encoding batch N + 1 with training on N |
//! | data-parallel training | `DataParallel` | the reduction of gradients over the ranks with the rest of the backward pass |
//! | random augmentation of images on the device | `augment_train` | the upload of batch N + 2, augmentation of N + 1, training on N |
//! | training on the adaptive tokens of photographs | `texture_prefetch` | the upload of batch N + 2, textures, scores, allocation and tokens of N + 1, training on N |
//! | the same with a query, a question and an answer for each photograph | `texture_prefetch_texts` | the same |
//! | batches of requests for text about images | [`vlm_pipeline`](fn@vlm_pipeline) | preparing and encoding batch N + 1 with writing the texts of N |
//!
//! `augment_train`, `texture_prefetch` and `texture_prefetch_texts` need the feature `vision`, and
//! `DataParallel` needs `collective`. So does `BucketSink`, which reduces the gradients of a model
//! of your own.
//!
//! Each but `DataParallel` is [`stages`](thalweg::overlap::stages()) over slots, which events carry
//! from stream to stream. So a missing wait does not compile, and the results are those of the same
//! work on one stream, bit for bit. In the steady state nothing is allocated, and the host only
//! enqueues, except that `vlm_pipeline` reads the tokens.

#[cfg(feature = "vision")]
pub mod augment_train;
#[cfg(feature = "collective")]
pub mod data_parallel;
pub mod encoder_decoder;
pub mod micro_batches;
#[cfg(feature = "vision")]
pub mod texture_prefetch;
pub mod trainable;
pub mod vlm_pipeline;

pub use crate::batch::MicroBatch;
#[cfg(feature = "vision")]
pub use augment_train::{Augmented, AugmentedOn, augment_train};
#[cfg(feature = "collective")]
pub use data_parallel::{BucketSink, DataParallel};
pub use encoder_decoder::{Encoded, EncodedOn, encoder_decoder};
pub use micro_batches::{micro_batches, micro_batches_from};
#[cfg(feature = "vision")]
pub use texture_prefetch::{
    AskedPhotographs, AskedPhotographsOn, Photographs, PhotographsOn, texture_prefetch, texture_prefetch_texts,
};
pub use trainable::Trainable;
pub use vlm_pipeline::{Requests, RequestsOn, vlm_pipeline};
