//! Goes from JPEG files to the input of Qwen2.5-VL on the device.
//!
//! ```text
//! host    | read headers | enqueue                                    | what became of each file
//! decode                 | upload, decode      |
//! process                                      | tables, two launches |
//! ```
//!
//! Sizes are in the headers, so the processor needs to know nothing that the decoder finds out, and
//! the host waits for nothing before the end. It then compares the result with its own path.
//!
//! ```text
//! cargo run --release -p thalweg-processor --example photos -- photo.jpg other.jpg
//! ```

#[path = "../../examples/support/command_line.rs"]
mod command_line;

use std::error::Error;
use std::path::Path;

use thalweg::simt::bf16;
use thalweg::{Device, stream_tags};
use thalweg_jpeg::{DecodedImagesOn, Decoder, HostDecoder};
use thalweg_processor::{DeviceImage, DeviceProcessor, Processor, RgbImage};

use command_line::CommandLine;

stream_tags!(Decode, Process);

fn main() -> Result<(), Box<dyn Error>> {
    let files = ("FILE...", "JPEG files (default: three golden files)");
    let line = CommandLine::parse("Goes from JPEG files to the input of Qwen2.5-VL on the device.", &[files], &[]);
    let mut paths = line.words().to_vec();
    if paths.is_empty() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/jpeg");
        let files = ["row-420-q75.jpg", "eye-444-q95.jpg", "exif6.jpg"];
        paths = files.iter().map(|file| golden.join(file).to_string_lossy().into_owned()).collect();
        println!("no files given: three golden files");
    }
    let files = paths.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>()?;
    let device = Device::best()?;
    let (decode, process) = (device.stream::<Decode>()?, device.stream::<Process>()?);
    let mut decoder = Decoder::new(device);
    let mut processor = DeviceProcessor::<bf16>::new(Processor::qwen2_5_vl());

    let batch = decoder.read(&files.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    let readable: Vec<_> = (0..files.len()).filter_map(|i| batch.image(i).ok()).collect();
    let images: Vec<_> = readable
        .iter()
        .map(|image| DeviceImage { start: image.bytes.start, height: image.height, width: image.width })
        .collect();

    let decoded = decoder.decode(&decode, batch)?;
    let DecodedImagesOn { rgb, report } = process.wait(decoded)?;
    let inputs = processor.process(&process, &rgb, &images)?;
    let report = process.record(report)?.synchronize()?;
    let inputs = process.wait(inputs)?;
    let numbers = process.read_blocking(&inputs.pixel_values)?;

    println!("{}: pixel_values {:?}", device.name(), inputs.layout.shape());
    println!("image_grid_thw {:?}", inputs.layout.image_grid_thw().unwrap_or_default());
    for (i, path) in paths.iter().enumerate() {
        match report.image(i) {
            Ok(image) => println!("{path}: {} x {}", image.height, image.width),
            // Its rows are arbitrary, or it has none.
            Err(error) => return Err(format!("{path}: {error}").into()),
        }
    }
    let mut pixels = Vec::new();
    for (file, image) in files.iter().zip(&readable) {
        let mut rgb = vec![0; image.bytes.len()];
        HostDecoder::new().decode(file, &mut rgb)?;
        pixels.push(rgb);
    }
    let view = |(image, rgb): (&DeviceImage, _)| RgbImage { height: image.height, width: image.width, rgb };
    let views: Vec<_> = images.iter().zip(pixels.iter().map(Vec::as_slice)).map(view).collect();
    let host = processor.processor().process::<bf16>(&views)?;
    assert!(host.pixel_values == numbers, "the host computes other bits");
    println!("equal to the host's path in every bit");
    Ok(())
}
