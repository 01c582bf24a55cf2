//! Measures the host's decoding of JPEG files, one at a time on one thread, beside zune-jpeg and
//! libjpeg-turbo: `cargo bench -p thalweg-jpeg --bench host -- --full [--python PYTHON]`
//!
//! The files are a photograph, enlarged to 1080p and 4K with some noise, at three qualities,
//! baseline and progressive, with chroma halved in both directions, or not at the highest quality.
//! Other files may be named instead. All decode by turns, and each time is the shortest of the
//! rounds, because other work on the machine only makes one longer. With `--python`, a Python that
//! has Pillow decodes the same files between the rounds, which is libjpeg-turbo. The pixels of
//! zune-jpeg differ, and those of Pillow are compared. Without arguments, it decodes a small image
//! a few times: CI runs it like this.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use thalweg_jpeg::{HostDecoder, outline};
use zune_core::bytestream::ZCursor;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// Decodes the file that a line names. Prints the seconds, and a sum of the pixels.
const PYTHON: &str = "
import io, sys, time, zlib
from PIL import Image
for line in sys.stdin:
    data = open(line.strip(), 'rb').read()
    start = time.perf_counter()
    image = Image.open(io.BytesIO(data))
    image.load()
    print(time.perf_counter() - start, zlib.crc32(image.convert('RGB').tobytes()), flush=True)
";

/// A photograph of the repository, enlarged to a size.
fn photograph(height: usize, width: usize) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/readme/astronaut.jpg");
    let file = std::fs::read(path).expect("the photograph can be read");
    let small = outline(&file).expect("a photograph");
    let (own_height, own_width) = (small.height as usize, small.width as usize);
    let mut pixels = vec![0; 3 * own_height * own_width];
    HostDecoder::new().decode(&file, &mut pixels).expect("a photograph");
    let mut noise = 1u64;
    let mut enlarged = Vec::with_capacity(3 * height * width);
    // Three photographs across a 4K image, so that there is about as much detail as in one of a
    // camera.
    let scale = 3 * own_width;
    for y in 0..height {
        for x in 0..width {
            let (v, u) = (y as f32 * scale as f32 / 3840.0, x as f32 * scale as f32 / 3840.0);
            let (top, left) = (v as usize, u as usize);
            let (down, right) = (v.fract(), u.fract());
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let grain = (noise >> 61) as f32 - 3.5;
            for c in 0..3 {
                let at = |y: usize, x: usize| f32::from(pixels[3 * (y % own_height * own_width + x % own_width) + c]);
                let upper = at(top, left) * (1.0 - right) + at(top, left + 1) * right;
                let lower = at(top + 1, left) * (1.0 - right) + at(top + 1, left + 1) * right;
                enlarged.push((upper * (1.0 - down) + lower * down + grain) as u8);
            }
        }
    }
    enlarged
}

/// Files to decode, with their names.
fn files(sizes: &[(&str, usize, usize)]) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for &(size, height, width) in sizes {
        let pixels = photograph(height, width);
        for quality in [75, 90, 97] {
            for progressive in [false, true] {
                let mut file = Vec::new();
                let mut encoder = Encoder::new(&mut file, quality);
                let halved = quality < 97;
                encoder.set_sampling_factor(if halved { SamplingFactor::F_2_2 } else { SamplingFactor::F_1_1 });
                encoder.set_progressive(progressive);
                encoder.encode(&pixels, width as u16, height as u16, ColorType::Rgb).expect("it is encoded");
                let kind = if progressive { "progressive" } else { "baseline" };
                files.push((format!("{size} q{quality} {kind}"), file));
            }
        }
    }
    files
}

/// The CRC-32 of bytes, as zlib has it.
fn crc(bytes: &[u8]) -> u32 {
    let table: Vec<u32> =
        (0..256u32).map(|i| (0..8).fold(i, |v, _| if v & 1 == 1 { v >> 1 ^ 0xedb8_8320 } else { v >> 1 })).collect();
    !bytes.iter().fold(!0, |crc, byte| crc >> 8 ^ table[((crc ^ u32::from(*byte)) & 255) as usize])
}

/// A Python with Pillow, and a folder for its files.
struct Pillow {
    child: Child,
    folder: std::path::PathBuf,
}

impl Pillow {
    fn new(python: &str) -> Self {
        let child = Command::new(python).args(["-c", PYTHON]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let folder = std::env::temp_dir().join(format!("thalweg-host-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self { child: child.expect("Python starts"), folder }
    }

    /// Decodes a file. Returns the time, and the CRC-32 of the pixels.
    fn decode(&mut self, file: &[u8]) -> (Duration, u32) {
        let path = self.folder.join("file.jpg");
        std::fs::write(&path, file).expect("the file can be written");
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{}", path.display()).expect("Python reads");
        let mut line = String::new();
        BufReader::new(self.child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("Python answers");
        let (time, crc) = line.trim().split_once(' ').expect("Pillow decodes it");
        (Duration::from_secs_f64(time.parse().expect("seconds")), crc.parse().expect("a number"))
    }
}

impl Drop for Pillow {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        _ = self.child.wait();
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let full = arguments.iter().any(|a| a == "--full");
    let python = arguments.iter().position(|a| a == "--python");
    let mut pillow = python.map(|at| Pillow::new(arguments.get(at + 1).expect("--python PYTHON")));
    let named =
        arguments.iter().enumerate().filter(|(i, a)| !a.starts_with("--") && python.is_none_or(|at| *i != at + 1));
    let named: Vec<_> = named.map(|(_, path)| (path.clone(), std::fs::read(path).expect("a file"))).collect();
    let files = match (named.is_empty(), full) {
        (false, _) => named,
        (true, true) => files(&[("1080p", 1080, 1920), ("4K", 2160, 3840)]),
        (true, false) => files(&[("small", 270, 480)]),
    };
    let rounds = if full || !arguments.is_empty() { 15 } else { 2 };
    println!(
        "{:<24} {:>9} {:>10} {:>10} {:>10} {:>8} {:>8}",
        "file", "bytes", "thalweg ms", "zune ms", "turbo ms", "x zune", "x turbo"
    );
    let (mut logs, mut count) = ([0.0; 2], 0);
    for (name, file) in &files {
        let size = outline(file).expect("a JPEG file");
        let mut rgb = vec![0; 3 * size.height as usize * size.width as usize];
        let mut decoder = HostDecoder::new();
        let mut best = [Duration::MAX; 3];
        for _ in 0..rounds {
            // Last, so that `rgb` has its pixels.
            let begin = Instant::now();
            let options = DecoderOptions::default();
            JpegDecoder::new_with_options(ZCursor::new(&file[..]), options).decode_into(&mut rgb).expect("zune-jpeg");
            best[1] = best[1].min(begin.elapsed());
            let begin = Instant::now();
            decoder.decode(file, &mut rgb).expect("the file is decoded");
            best[0] = best[0].min(begin.elapsed());
            if let Some(pillow) = &mut pillow {
                let (time, sum) = pillow.decode(file);
                best[2] = best[2].min(time);
                assert_eq!(sum, crc(&rgb), "{name}: Pillow has other pixels");
            }
        }
        let ms = best.map(|time| 1e3 * time.as_secs_f64());
        let ratios = [ms[1] / ms[0], ms[2] / ms[0]];
        logs = [logs[0] + ratios[0].ln(), logs[1] + ratios[1].ln()];
        count += 1;
        let turbo = |value: f64, digits: usize| match pillow {
            Some(_) => format!("{value:.digits$}"),
            None => "-".to_owned(),
        };
        println!(
            "{name:<24} {:>9} {:>10.2} {:>10.2} {:>10} {:>8.2} {:>8}",
            file.len(),
            ms[0],
            ms[1],
            turbo(ms[2], 2),
            ratios[0],
            turbo(ratios[1], 2)
        );
    }
    let mean = logs.map(|log| (log / f64::from(count)).exp());
    print!("geometric means: {:.2} x zune-jpeg", mean[0]);
    println!("{}", if pillow.is_some() { format!(", {:.2} x libjpeg-turbo", mean[1]) } else { String::new() });
}
