//! Times a step of a token transformer, or with `answers` of a vision-language model.
//!
//! ```text
//! cargo bench -p thalweg-train --bench step [-- SEQUENCES TOKENS WIDTH HEADS DEPTH]
//! cargo bench -p thalweg-train --bench step -- answers [cublaslt] [IMAGES TOKENS ASK ANSWER WIDTH DEPTH TEXT]
//! ```
//!
//! Without numbers, the first model is the one for small images: 32 sequences of 64 tokens, rows of
//! 64 numbers in 4 heads, and 2 blocks. The second one has a ViT-B as encoder, and six blocks of
//! 768 numbers write 32 ids about 196 tokens and 32 ids, in batches of 64;
//! `benches/peers/torch_answers.py` takes the same steps in PyTorch, on a batch that is on the
//! device, so there is a row for that. Each number is the best of five times ten steps.

use std::time::Instant;

use thalweg::simt::bf16;
use thalweg::{Device, stream_tags};
use thalweg_train::{
    DeviceTextBatch, Loss, MatmulBackend, Precision, Result, TextBatch, TokenBatch, TokenTransformer,
    TokenTransformerConfig, VisionLanguageConfig,
};

stream_tags!(Train);

/// Times steps.
fn time(name: &str, sequences: usize, mut step: impl FnMut() -> Result<Loss>) -> Result<()> {
    let first = step()?.item()?;
    let (mut best, mut last) = (f64::INFINITY, first);
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..9 {
            step()?;
        }
        last = step()?.item()?;
        best = best.min(start.elapsed().as_secs_f64() / 10.0);
    }
    assert!(last < first, "the loss falls from {first}, and not to {last}");
    println!("{name:24} {:9.2} ms a step, {:9.0} sequences/s", best * 1e3, sequences as f64 / best);
    Ok(())
}

fn number(i: usize) -> f32 {
    (i.wrapping_mul(0x9e37_79b9) >> 8 & 0xffff) as f32 / 65536.0
}

fn ends(count: usize, len: usize) -> Vec<i32> {
    (0..=count).map(|i| (i * len) as i32).collect()
}

fn classes<E: Precision>(name: &str, [sequences, tokens, width, heads, depth]: [usize; 5]) -> Result<()> {
    let config = TokenTransformerConfig::default().with_embed_dim(width).with_num_heads(heads).with_depth(depth);
    let mut model = TokenTransformer::<_, E>::new(&Device::best()?.stream::<Train>()?, config, 1)?;
    let rows = sequences * tokens;
    let numbers: Vec<f32> = (0..rows * config.input_dim).map(number).collect();
    let cu_seqlens = ends(sequences, tokens);
    let labels: Vec<i32> = (0..sequences).map(|i| (i % config.num_classes) as i32).collect();
    let batch =
        TokenBatch { tokens: &numbers, position: &numbers[..2 * rows], cu_seqlens: &cu_seqlens, labels: &labels };
    time(name, sequences, || model.step(&batch))
}

fn answers<E: Precision>(
    name: &str,
    [sequences, image, asked, said, width, depth, text_depth]: [usize; 7],
) -> Result<()> {
    let config = VisionLanguageConfig::default()
        .with_input_dim(768.min(width))
        .with_embed_dim(width)
        .with_num_heads(width / 64)
        .with_depth(depth)
        .with_text_embed_dim(width)
        .with_text_num_heads(width / 64)
        .with_text_depth(text_depth)
        .with_vocab_size(32_000)
        .with_max_tokens(asked + said);
    let stream = Device::best()?.stream::<Train>()?;
    let mut model = TokenTransformer::<_, E>::answering(&stream, config, 1)?;
    model.optimizer_mut().lr = 1e-4;
    if has("cublaslt") {
        model.set_matmul_backend(MatmulBackend::cublaslt(stream.device())?);
    }
    let rows = sequences * image;
    let numbers: Vec<f32> = (0..rows * config.input_dim).map(number).collect();
    let id = |i: usize| if (i + 1).is_multiple_of(asked + said) { 0 } else { 1 + (number(i) * 31_999.0) as i32 };
    let ids: Vec<i32> = (0..sequences * (asked + said)).map(id).collect();
    let (cu_seqlens, text_cu_seqlens) = (ends(sequences, image), ends(sequences, asked + said));
    let (position, question) = (&numbers[..2 * rows], vec![asked as i32; sequences]);
    let batch = TextBatch {
        tokens: &numbers,
        position,
        cu_seqlens: &cu_seqlens,
        ids: &ids,
        text_cu_seqlens: &text_cu_seqlens,
        question: &question,
    };
    time(&format!("{name}, from the host"), sequences, || model.step(&batch))?;
    let batch = DeviceTextBatch {
        tokens: &stream.upload_blocking(&numbers)?,
        position: &stream.upload_blocking(position)?,
        cu_seqlens: &stream.upload_blocking(&cu_seqlens)?,
        ids: &stream.upload_blocking(&ids)?,
        text_cu_seqlens: &stream.upload_blocking(&text_cu_seqlens)?,
        question: &stream.upload_blocking(&question)?,
        answers: sequences * said,
        padded: false,
    };
    time(&format!("{name}, on the device"), sequences, || model.step_on(&batch))
}

fn has(word: &str) -> bool {
    std::env::args().any(|given| given == word)
}

fn main() -> Result<()> {
    println!("{}", Device::best()?.name());
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    if has("answers") {
        // A ViT-B as encoder, and six blocks of 768 numbers behind it.
        let shape = given.try_into().unwrap_or([64, 196, 32, 32, 768, 12, 6]);
        println!("images, their tokens, ids that ask and that answer, width, blocks of encoder and decoder: {shape:?}");
        return answers::<bf16>("bf16", shape);
    }
    let shape = given.try_into().unwrap_or([32, 64, 64, 4, 2]);
    println!(
        "{} sequences of {} tokens, width {}, heads {}, depth {}",
        shape[0], shape[1], shape[2], shape[3], shape[4]
    );
    classes::<f32>("f32", shape)?;
    classes::<bf16>("bf16", shape)
}
