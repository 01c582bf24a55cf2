//! Times a step of a token transformer.
//!
//! ```text
//! cargo bench -p thalweg-train --bench step [-- SEQUENCES TOKENS WIDTH HEADS DEPTH]
//! ```
//!
//! Without numbers, the model is the one for small images: 32 sequences of 64 tokens, rows of 64
//! numbers in 4 heads, and 2 blocks. Each number is the best of five times ten steps.

use std::time::Instant;

use thalweg::simt::bf16;
use thalweg::{Device, stream_tags};
use thalweg_train::{Precision, Result, TokenBatch, TokenTransformer, TokenTransformerConfig};

stream_tags!(Train);

fn time<E: Precision>(name: &str, [sequences, tokens, width, heads, depth]: [usize; 5]) -> Result<()> {
    let device = Device::best()?;
    let config = TokenTransformerConfig::default().with_embed_dim(width).with_num_heads(heads).with_depth(depth);
    let mut model = TokenTransformer::<_, E>::new(&device.stream::<Train>()?, config, 1)?;
    let rows = sequences * tokens;
    let number = |i: usize| (i.wrapping_mul(0x9e37_79b9) >> 8 & 0xffff) as f32 / 65536.0;
    let numbers: Vec<f32> = (0..rows * config.input_dim).map(number).collect();
    let cu_seqlens: Vec<i32> = (0..=sequences).map(|i| (i * tokens) as i32).collect();
    let labels: Vec<i32> = (0..sequences).map(|i| (i % config.num_classes) as i32).collect();
    let batch =
        TokenBatch { tokens: &numbers, position: &numbers[..2 * rows], cu_seqlens: &cu_seqlens, labels: &labels };
    let first = model.step(&batch)?.item()?;
    let (mut best, mut last) = (f64::INFINITY, first);
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..9 {
            model.step(&batch)?;
        }
        last = model.step(&batch)?.item()?;
        best = best.min(start.elapsed().as_secs_f64() / 10.0);
    }
    assert!(last < first, "the loss falls from {first}, and not to {last}");
    println!("{name:5} {:9.2} ms a step, {:9.0} sequences/s", best * 1e3, sequences as f64 / best);
    Ok(())
}

fn main() -> Result<()> {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let shape = given.try_into().unwrap_or([32, 64, 64, 4, 2]);
    println!(
        "{} sequences of {} tokens, width {}, heads {}, depth {}",
        shape[0], shape[1], shape[2], shape[3], shape[4]
    );
    println!("{}", Device::best()?.name());
    time::<f32>("f32", shape)?;
    time::<bf16>("bf16", shape)
}
