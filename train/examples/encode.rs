//! Encodes images, and writes what another implementation needs to compare itself.
//!
//! ```text
//! encode WEIGHTS IMAGES [--precision f32|bf16] --out RESULT
//! ```
//!
//! WEIGHTS is a safetensors file with the tensors of a vision transformer as timm's. IMAGES has
//! `images` [B, 3, S, S]. RESULT gets `features` [B, rows, width] and, if the encoder has a head,
//! `logits` [B, classes]. Without arguments, it takes the files of the tests.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use thalweg::simt::bf16;
use thalweg::{Device, stream_tags};
use thalweg_train::{ImageEncoder, Precision, Result, Tensors};

stream_tags!(Encode);

fn run<E: Precision>([weights, images]: [PathBuf; 2], out: Option<PathBuf>) -> Result<()> {
    let device = Device::best()?;
    let stream = device.stream::<Encode>()?;
    let mut encoder = ImageEncoder::<Encode, E>::from_tensors(&stream, &Tensors::load(weights)?)?;
    let file = Tensors::load(images)?;
    let shape = file.shape("images")?;
    let (count, config) = (shape.first().copied().unwrap_or(0), *encoder.config());
    let pixels = file.f32("images", &[count, 3, config.image_size, config.image_size])?;
    let start = Instant::now();
    let encoding = encoder.encode(pixels)?;
    println!("{count} images of {0} x {0} on {1} in {2:.1?}", config.image_size, device.name(), start.elapsed());

    let mut result = Tensors::default();
    result.insert("features", &[count, config.rows(), config.embed_dim], encoding.features);
    if let Some(logits) = encoding.logits {
        result.insert("logits", &[count, config.num_classes], logits);
    }
    match out {
        Some(out) => result.save(out),
        None => Ok(()),
    }
}

fn main() -> ExitCode {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/vit-timm");
    let (mut files, mut out, mut precision) = (Vec::new(), None, "f32".to_owned());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (word.as_str(), word.starts_with("--").then(|| words.next()).flatten()) {
            ("--out", Some(path)) => out = Some(PathBuf::from(path)),
            ("--precision", Some(name)) if matches!(&*name, "f32" | "bf16") => precision = name,
            (file, None) if !file.starts_with("--") => files.push(PathBuf::from(file)),
            _ => {
                eprintln!("error: {word}: encode WEIGHTS IMAGES [--precision f32|bf16] [--out RESULT]");
                return ExitCode::FAILURE;
            }
        }
    }
    if files.is_empty() {
        files = vec![golden.join("weights.safetensors"), golden.join("expected.safetensors")];
    }
    let Ok(files) = <[PathBuf; 2]>::try_from(files) else {
        eprintln!("error: there are two files: encode WEIGHTS IMAGES");
        return ExitCode::FAILURE;
    };
    let run = if precision == "f32" { run::<f32> } else { run::<bf16> };
    match run(files, out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
