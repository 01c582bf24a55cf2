//! Encodes images, and writes what another implementation needs to compare itself (`--out`).
//!
//! WEIGHTS is a safetensors file with the tensors of a vision transformer as timm's. IMAGES has
//! `images` [B, 3, S, S]. RESULT gets `features` [B, rows, width] and, if the encoder has a head,
//! `logits` [B, classes]. Without arguments, it takes the files of the tests.

mod support;

use std::path::PathBuf;
use std::time::Instant;

use support::CommandLine;
use thalweg::simt::bf16;
use thalweg::{Device, stream_tags};
use thalweg_train::{ImageEncoder, Precision, Result, Tensors};

stream_tags!(Encode);

fn run<E: Precision>([weights, images]: [PathBuf; 2], out: Option<&str>) -> Result<()> {
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

fn main() -> Result<()> {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/vit-timm");
    let line = CommandLine::parse(
        "Encodes images, and writes the result.",
        &[("WEIGHTS", "a vision transformer as timm's, in safetensors"), ("IMAGES", "`images` [B, 3, S, S]")],
        &[support::PRECISION, ("--out RESULT", "write the features here, and the logits if the encoder has a head")],
    );
    let files = support::files(&line, ["weights.safetensors", "expected.safetensors"].map(|name| golden.join(name)));
    if support::is_bf16(&line) { run::<bf16>(files, line.text("--out")) } else { run::<f32>(files, line.text("--out")) }
}
