//! Trains a vision-language model for a few steps on one batch, and writes everything that another
//! implementation needs to compare itself.
//!
//! WEIGHTS is a safetensors file with the tensors of the model, and `heads`, `depth`,
//! `decoder_heads` and `decoder_depth` in its metadata. BATCH has `tokens` [T, I], `position` [T,
//! 2], `cu_seqlens` [B + 1], or for a model with an image encoder only `tokens` [B, 3, S, S], and
//! `ids` \[U\], `text_cu_seqlens` [B + 1] and `question` \[B\], and for a model with a gate
//! `features` [N, 13], `entropy` and `salience` \[N\], `cu_patches` [B + 1], `patch` \[T\] and
//! `query` [B, D]. RESULT gets `logits` before the first step, `losses` [steps + 1], the gradients
//! `grad.*` of the first step, and the weights `step{N}.*` after N steps. Without arguments, it
//! takes the files of the tests.

mod support;

use std::path::PathBuf;

use support::CommandLine;
use thalweg::simt::bf16;
use thalweg::{Device, stream_tags};
use thalweg_train::{Gated, Patches, Precision, Result, Tensors, TextBatch, TokenTransformer};

stream_tags!(Train);

fn run<E: Precision>(line: &CommandLine) -> Result<()> {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/vlm-learn");
    let [weights, batch] = support::files(line, ["weights.safetensors", "batch.safetensors"].map(|f| golden.join(f)));
    let train = Device::best()?.stream::<Train>()?;
    let mut model = TokenTransformer::<Train, E>::from_tensors(&train, &Tensors::load(weights)?)?;
    let file = Tensors::load(batch)?;
    let shape = file.shape("tokens")?;
    let (position, cu_seqlens) = match model.vision_language().and_then(|config| config.image_encoder) {
        Some(_) => (&[][..], &[][..]),
        None => (file.f32("position", &[shape[0], 2])?, file.i32("cu_seqlens")?),
    };
    let batch = TextBatch {
        tokens: file.f32("tokens", shape)?,
        position,
        cu_seqlens,
        ids: file.i32("ids")?,
        text_cu_seqlens: file.i32("text_cu_seqlens")?,
        question: file.i32("question")?,
    };
    let Some(gate) = model.config().gate else { return support::take_steps(line, &mut model, &batch) };
    let (n, images) = (file.shape("features")?[0], batch.question.len());
    let patches = Patches {
        features: file.f32("features", &[n, 13])?,
        entropy: file.f32("entropy", &[n])?,
        salience: file.f32("salience", &[n])?,
        cu_patches: file.i32("cu_patches")?,
        patch: file.i32("patch")?,
        query: file.f32("query", &[images, gate.query_dim])?,
    };
    support::take_steps(line, &mut model, &Gated { batch, patches })
}

fn main() -> Result<()> {
    let line = CommandLine::parse(
        "Trains a vision-language model for a few steps on one batch, and writes the result.",
        &[("WEIGHTS", "the model, in safetensors"), ("BATCH", "its images and texts, in safetensors")],
        support::COMPARED,
    );
    if support::is_bf16(&line) { run::<bf16>(&line) } else { run::<f32>(&line) }
}
