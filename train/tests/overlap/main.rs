//! The overlap patterns: bits of the serial form whatever the schedule, what overlaps, no waits and
//! no memory in the steady state, and failures. Each pattern has its file.

mod augment_train;
mod batch_streams;
mod common;
mod encoder_decoder;
mod micro_batches;
#[path = "../support/mod.rs"]
mod support;
mod texture_prefetch;
mod vlm_pipeline;
