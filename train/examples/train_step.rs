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
use std::time::Instant;

use support::CommandLine;
use thalweg::simt::bf16;
use thalweg::{Device, stream_tags};
use thalweg_train::{AdamW, Precision, Result, Tensors, TokenBatch, TokenTransformer};

stream_tags!(Train);

fn run<E: Precision>(line: &CommandLine) -> Result<()> {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/small");
    let [weights, batch] = support::files(line, ["weights.safetensors", "batch.safetensors"].map(|f| golden.join(f)));
    let (steps, lr) = (line.value("--steps").unwrap_or(3), line.value("--lr").unwrap_or(1e-3));
    let device = Device::best()?;
    let train = device.stream::<Train>()?;
    let mut model = TokenTransformer::<Train, E>::from_tensors(&train, &Tensors::load(weights)?)?;
    *model.optimizer_mut() =
        AdamW::default().with_lr(lr).with_weight_decay(line.value("--weight-decay").unwrap_or(0.05));
    let file = Tensors::load(batch)?;
    let rows = file.shape("tokens")?[0];
    let inputs = model.config().input_dim;
    let batch = TokenBatch {
        tokens: file.f32("tokens", &[rows, inputs])?,
        position: file.f32("position", &[rows, 2])?,
        cu_seqlens: file.i32("cu_seqlens")?,
        labels: file.i32("labels")?,
    };

    let mut result = Tensors::default();
    let logits = model.evaluate(&batch)?.logits;
    result.insert("logits", &[batch.sequences(), model.config().num_classes], logits);
    for (name, tensor) in model.gradients(&batch)?.tensors {
        result.tensors.insert(format!("grad.{name}"), tensor);
    }
    let start = Instant::now();
    let losses = (0..steps).map(|_| model.step(&batch)).collect::<Result<Vec<_>>>()?;
    let mut losses = losses.into_iter().map(|loss| loss.item()).collect::<Result<Vec<_>>>()?;
    let took = start.elapsed();
    losses.push(model.evaluate(&batch)?.loss.expect("the batch has labels"));
    println!("{steps} steps on {} in {took:.1?}, losses {losses:?}", device.name());
    result.insert("losses", &[losses.len()], losses);
    for (name, tensor) in model.tensors()?.tensors {
        result.tensors.insert(format!("step{steps}.{name}"), tensor);
    }
    line.text("--out").map_or(Ok(()), |out| result.save(out))
}

fn main() -> Result<()> {
    let line = CommandLine::parse(
        "Trains a model for a few steps on one batch, and writes the result.",
        &[("WEIGHTS", "a token transformer, in safetensors"), ("BATCH", "its tokens and labels, in safetensors")],
        &[
            ("--steps N", "the steps (default: 3)"),
            ("--lr RATE", "the learning rate (default: 0.001)"),
            ("--weight-decay RATE", "the weight decay (default: 0.05)"),
            support::PRECISION,
            ("--out RESULT", "write logits, losses, gradients and weights here"),
        ],
    );
    if support::is_bf16(&line) { run::<bf16>(&line) } else { run::<f32>(&line) }
}
