//! Measures the host's path from decoded images to the input of a model, on one thread: `cargo
//! bench -p thalweg-processor --bench host_path -- [MODEL] FILE...`
//!
//! MODEL is `qwen` (Qwen2.5-VL, if it is left out), `naflex`, `clip` or `siglip`. Each file is
//! decoded first and then processed alone; the time is the median of 9 runs, with an output in f32,
//! as NumPy and torch make it. `benches/peers/processors.py` measures transformers on the same
//! files. Without arguments, it takes golden files and says so.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use thalweg_jpeg::{HostDecoder, outline};
use thalweg_processor::{Processor, Resampler, RgbImage};

const RUNS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let model = match arguments.first().map(String::as_str) {
        Some("qwen" | "naflex" | "clip" | "siglip") => arguments.remove(0),
        _ => "qwen".into(),
    };
    if arguments.is_empty() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/jpeg");
        println!("no files given: two golden files");
        arguments = ["row-420-q75.jpg", "eye-444-q95.jpg"].map(|file| golden.join(file).display().to_string()).to_vec();
    }
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    println!("{model}, one thread, f32, median of {RUNS} runs in ms, resized as torch and as Pillow 12.1 do");
    for path in &arguments {
        let file = std::fs::read(path)?;
        let head = outline(&file)?;
        let (height, width) = (head.height, head.width);
        let mut rgb = vec![0; 3 * height as usize * width as usize];
        HostDecoder::new().decode(&file, &mut rgb)?;
        let image = RgbImage { height, width, rgb: &rgb };
        let mut line = format!("{path}: {height} x {width}");
        for resampler in [Resampler::Aten, Resampler::Pil] {
            let processor = match &*model {
                "qwen" => Processor::qwen2_5_vl(),
                "naflex" => Processor::siglip2_naflex(256)?,
                "clip" => Processor::clip(224)?,
                _ => Processor::siglip(384)?,
            };
            let processor = Processor::new(processor.params().clone().with_resampler(resampler))?;
            let mut times = Vec::new();
            for _ in 0..RUNS + 1 {
                let begin = Instant::now();
                let made = one.install(|| processor.process::<f32>(&[image]))?;
                times.push(begin.elapsed());
                if let Some(refused) = made.layout.errors().first() {
                    return Err(format!("{path}: {}", refused.error).into());
                }
            }
            times.remove(0); // memory that the system has not given before
            times.sort();
            line += &format!("  {:8.2}", 1e3 * times[RUNS / 2].as_secs_f64());
        }
        println!("{line}");
    }
    Ok(())
}
