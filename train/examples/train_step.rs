//! Trains a model for a few steps on one batch, and writes everything that another implementation
//! needs to compare itself.
//!
//! WEIGHTS is a safetensors file with the tensors of a token transformer, and `heads` and `depth`
//! in its metadata. BATCH has `tokens` [T, I], `position` [T, 2], `cu_seqlens` [B + 1] and `labels`
//! [B]. RESULT gets `logits` before the first step, `losses` [steps + 1], the gradients `grad.*` of
//! the first step, and the weights `step{N}.*` after N steps. Without arguments, it takes the files
//! of the tests.

mod support;

use std::path::PathBuf;

use support::CommandLine;
use thalweg::simt::bf16;
use thalweg::{Device, stream_tags};
use thalweg_train::{Precision, Result, Tensors, TokenBatch, TokenTransformer};

stream_tags!(Train);

fn run<E: Precision>(line: &CommandLine) -> Result<()> {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/small");
    let [weights, batch] = support::files(line, ["weights.safetensors", "batch.safetensors"].map(|f| golden.join(f)));
    let train = Device::best()?.stream::<Train>()?;
    let mut model = TokenTransformer::<Train, E>::from_tensors(&train, &Tensors::load(weights)?)?;
    let file = Tensors::load(batch)?;
    let rows = file.shape("tokens")?[0];
    let inputs = model.config().input_dim;
    let batch = TokenBatch {
        tokens: file.f32("tokens", &[rows, inputs])?,
        position: file.f32("position", &[rows, 2])?,
        cu_seqlens: file.i32("cu_seqlens")?,
        labels: file.i32("labels")?,
    };

    support::take_steps(line, &mut model, &batch)
}

fn main() -> Result<()> {
    let line = CommandLine::parse(
        "Trains a model for a few steps on one batch, and writes the result.",
        &[("WEIGHTS", "a token transformer, in safetensors"), ("BATCH", "its tokens and labels, in safetensors")],
        support::COMPARED,
    );
    if support::is_bf16(&line) { run::<bf16>(&line) } else { run::<f32>(&line) }
}
