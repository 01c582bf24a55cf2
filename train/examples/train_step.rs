//! Trains a model for a few steps on one batch, and writes everything that another implementation
//! needs to compare itself.
//!
//! ```text
//! train_step WEIGHTS BATCH --steps 3 --lr 1e-3 --weight-decay 0.05 --precision f32|bf16 --out RESULT
//! ```
//!
//! WEIGHTS is a safetensors file with the tensors of a token transformer, and `heads` and `depth`
//! in its metadata. BATCH has `tokens` [T, I], `position` [T, 2], `cu_seqlens` [B + 1] and `labels`
//! [B]. RESULT gets `logits` before the first step, `losses` [steps + 1], the gradients `grad.*` of
//! the first step, and the weights `step{N}.*` after N steps. Without arguments, it takes the files
//! of the tests.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use thalweg::simt::bf16;
use thalweg::{Device, stream_tags};
use thalweg_train::{AdamW, Precision, Result, Tensors, TokenBatch, TokenTransformer};

stream_tags!(Train);

struct Arguments {
    weights: PathBuf,
    batch: PathBuf,
    steps: u64,
    rate: f64,
    weight_decay: f64,
    precision: String,
    out: Option<PathBuf>,
}

fn arguments() -> Result<Arguments, String> {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/small");
    let mut a = Arguments {
        weights: golden.join("weights.safetensors"),
        batch: golden.join("batch.safetensors"),
        steps: 3,
        rate: 1e-3,
        weight_decay: 0.05,
        precision: "f32".into(),
        out: None,
    };
    let mut files = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if !word.starts_with("--") {
            files.push(PathBuf::from(word));
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let wrong = || format!("{word} cannot be {value}");
        match word.as_str() {
            "--steps" => a.steps = value.parse().map_err(|_| wrong())?,
            "--lr" => a.rate = value.parse().map_err(|_| wrong())?,
            "--weight-decay" => a.weight_decay = value.parse().map_err(|_| wrong())?,
            "--precision" if matches!(&*value, "f32" | "bf16") => a.precision = value,
            "--out" => a.out = Some(value.into()),
            _ => return Err(wrong()),
        }
    }
    match <[PathBuf; 2]>::try_from(files) {
        Ok([weights, batch]) => (a.weights, a.batch) = (weights, batch),
        Err(files) if files.is_empty() => {}
        Err(_) => return Err("train_step WEIGHTS BATCH [OPTIONS]".into()),
    }
    Ok(a)
}

fn run<E: Precision>(a: &Arguments) -> Result<()> {
    let device = Device::best()?;
    let train = device.stream::<Train>()?;
    let mut model = TokenTransformer::<Train, E>::from_tensors(&train, &Tensors::load(&a.weights)?)?;
    *model.optimizer_mut() = AdamW::default().with_lr(a.rate).with_weight_decay(a.weight_decay);
    let file = Tensors::load(&a.batch)?;
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
    let losses = (0..a.steps).map(|_| model.step(&batch)).collect::<Result<Vec<_>>>()?;
    let mut losses = losses.into_iter().map(|loss| loss.item()).collect::<Result<Vec<_>>>()?;
    let took = start.elapsed();
    losses.push(model.evaluate(&batch)?.loss.expect("the batch has labels"));
    println!("{} steps on {} in {took:.1?}, losses {losses:?}", a.steps, device.name());
    result.insert("losses", &[losses.len()], losses);
    for (name, tensor) in model.tensors()?.tensors {
        result.tensors.insert(format!("step{}.{name}", a.steps), tensor);
    }
    if let Some(out) = &a.out {
        result.save(out)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let done = arguments().and_then(|a| {
        let run = if a.precision == "f32" { run::<f32> } else { run::<bf16> };
        run(&a).map_err(|error| error.to_string())
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
