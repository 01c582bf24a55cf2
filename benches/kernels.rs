//! The kernels on a GPU: microseconds, GB/s, and percent of what a copy of as many bytes takes.
//!
//! ```text
//! cargo bench --bench kernels
//! ```
//!
//! Needs a CUDA device. Everything is checked before it is timed: against the CPU device on a small image, and the
//! fused path against the materialised one on a large. Then each kernel runs over buffers in turn that together
//! exceed the L2 cache, so that inputs come from memory. The time is the median between two events around a launch;
//! "in a row" is that of a launch among many without events between. A copy counts what it reads and what it writes.
//! Results with machine and driver are in `benches/record/`.

use std::time::Duration;

use thalweg::vision::kernels::{self, Layout};
use thalweg::{Device, DeviceBuffer, DeviceSlice, Error, On, PerThread, Plain, Stream, stream_tags};

stream_tags!(Bench);

type Bytes = On<Bench, DeviceBuffer<u8>>;
type Floats = On<Bench, DeviceBuffer<f32>>;

/// Launches of each kernel that count, after some that do not.
const RUNS: usize = 41;
const WARM: usize = 4;
/// What must pass through L2 between two uses of a buffer.
const COLD: usize = 160 << 20;

/// Side of a patch, and tokens of a compression.
const PATCH: u32 = 32;
const TOKENS: usize = 4096;
const SIZES: [(&str, u32, u32); 3] = [("1080p", 1080, 1920), ("4K", 2160, 3840), ("8K", 4320, 7680)];

/// What fills an image.
#[derive(Clone, Copy)]
enum Content {
    Noise,
    Photo,
    Constant,
}
use Content::{Constant, Noise, Photo};

impl Content {
    fn name(self) -> &'static str {
        match self {
            Noise => "noise",
            Photo => "photo",
            Constant => "constant",
        }
    }

    fn pixels(self, height: u32, width: u32, photo: &(usize, usize, Vec<u8>)) -> Vec<u8> {
        let (h, w) = (height as usize, width as usize);
        match self {
            Constant => [90, 140, 30].repeat(h * w),
            Noise => {
                let mut state = 1u64;
                let mut word = || {
                    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                    z ^ z >> 31
                };
                let mut bytes: Vec<u8> = (0..(3 * h * w).div_ceil(8)).flat_map(|_| word().to_le_bytes()).collect();
                bytes.truncate(3 * h * w);
                bytes
            }
            Photo => {
                let (ph, pw, rgb) = photo;
                let mut bytes = Vec::with_capacity(3 * h * w);
                for y in 0..h {
                    let row = &rgb[y % ph * pw * 3..][..pw * 3];
                    let start = bytes.len();
                    while bytes.len() - start < 3 * w {
                        let left = 3 * w - (bytes.len() - start);
                        bytes.extend_from_slice(&row[..left.min(row.len())]);
                    }
                }
                bytes
            }
        }
    }
}

/// A photograph to tile images with.
fn photo() -> (usize, usize, Vec<u8>) {
    let file = include_bytes!("../assets/photos/astronaut.png");
    let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a PNG file");
    let mut rgb = vec![0; reader.output_buffer_size().expect("it fits")];
    let info = reader.next_frame(&mut rgb).expect("a PNG file");
    assert_eq!(info.color_type, png::ColorType::Rgb);
    (info.height as usize, info.width as usize, rgb)
}

/// Median time of a launch, and of a launch in a row of them.
#[derive(Clone, Copy)]
struct Time {
    one: Duration,
    row: Duration,
}

struct Bencher {
    stream: Stream<Bench>,
    /// Work to queue behind, so that no launch waits for the host.
    ballast: On<Bench, DeviceBuffer<u32>>,
}

impl Bencher {
    fn time(&mut self, mut op: impl FnMut(usize) -> Result<(), Error>) -> Result<Time, Error> {
        let stream = self.stream;
        stream.synchronize()?;
        stream.zero(&mut self.ballast)?;
        let mut marks = Vec::with_capacity(WARM + RUNS + 1);
        for i in 0..WARM + RUNS {
            marks.push(stream.timestamp()?);
            op(i)?;
        }
        marks.push(stream.timestamp()?);
        stream.zero(&mut self.ballast)?;
        (0..WARM).try_for_each(&mut op)?;
        let start = stream.timestamp()?;
        (WARM..WARM + RUNS).try_for_each(&mut op)?;
        let end = stream.timestamp()?;
        stream.synchronize()?;
        let mut times = Vec::with_capacity(WARM + RUNS);
        for pair in marks.windows(2) {
            times.push(pair[1].elapsed(&pair[0])?.unwrap_or_default());
        }
        let mut times = times.split_off(WARM);
        times.sort();
        Ok(Time { one: times[RUNS / 2], row: end.elapsed(&start)?.unwrap_or_default() / RUNS as u32 })
    }

    /// A copy that reads and writes `bytes` in all.
    fn copy(&mut self, bytes: usize) -> Result<Time, Error> {
        let stream = self.stream;
        let sets = (COLD / bytes).max(1) + 1;
        let mut buffers: Vec<(Bytes, Bytes)> = (0..sets)
            .map(|_| Ok((stream.alloc(bytes / 2)?, stream.alloc(bytes / 2)?)))
            .collect::<Result<_, Error>>()?;
        self.time(|i| {
            let (from, to) = &mut buffers[i % sets];
            stream.copy(from, to)
        })
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn report(name: &str, content: Content, size: &str, time: Time, bytes: usize, copy: Time) {
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    println!(
        "{name:<18} {:<9} {size:<6} {:>9.2} {:>9.2} {:>7.0} {:>8.1} {:>8.1}",
        content.name(),
        micros(time.one),
        micros(time.row),
        rate(time.one),
        100.0 * copy.one.as_secs_f64() / time.one.as_secs_f64(),
        100.0 * copy.row.as_secs_f64() / time.row.as_secs_f64(),
    );
}

/// Panics where two arrays differ by more than `bound`.
fn compare(what: &str, got: &[f32], want: &[f32], bound: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= bound, "{what}[{i}] is {g}, expected {w}");
    }
}

/// Planes, features and entropy of the CPU device.
fn expected(height: u32, width: u32, patch: u32, rgb: &[u8]) -> Result<[Vec<f32>; 3], Error> {
    let run = |s: &Stream<PerThread<'_>>| {
        let (h, w) = (height as usize, width as usize);
        let n = h.div_ceil(patch as usize) * w.div_ceil(patch as usize);
        let rgb = s.upload_blocking(rgb)?;
        let (mut planes, mut features, mut bits) = (s.alloc(13 * h * w)?, s.alloc(13 * n)?, s.alloc(n)?);
        kernels::textures(s, height, width, 0.5, 0.5, &rgb, &mut planes)?;
        kernels::features(s, height, width, patch, &planes, &mut features)?;
        kernels::entropy(s, height, width, patch, &rgb, &mut bits)?;
        Ok([s.read_blocking(&planes)?, s.read_blocking(&features)?, s.read_blocking(&bits)?])
    };
    Device::cpu()?.per_thread(run)?
}

/// The value of an IEEE half.
fn from_f16(half: u16) -> f32 {
    let (sign, exponent, mantissa) = (u32::from(half >> 15), u32::from(half >> 10 & 31), u32::from(half & 1023));
    let magnitude = match exponent {
        0 => mantissa as f32 * 2f32.powi(-24),
        31 => f32::INFINITY,
        _ => f32::from_bits((exponent + 112) << 23 | mantissa << 13),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// Every kernel on images small enough for the CPU device, which gives the expected values.
fn check(stream: Stream<Bench>, photo: &(usize, usize, Vec<u8>)) -> Result<(), Error> {
    let (height, width) = (301, 452);
    for content in [Noise, Photo, Constant] {
        let data = content.pixels(height, width, photo);
        let odd: Vec<u8> = [0].iter().chain(&data).copied().collect();
        let (rgb, odd) = (stream.upload_blocking(&data)?, stream.upload_blocking(&odd)?);
        for patch in [8, 32] {
            let [planes, features, bits] = expected(height, width, patch, &data)?;
            let mut out: Floats = stream.alloc(planes.len())?;
            stream.fill(&mut out, f32::NAN)?;
            kernels::textures(&stream, height, width, 0.5, 0.5, &rgb, &mut out)?;
            compare("textures", &stream.read_blocking(&out)?, &planes, 1e-5);
            let mut halves = stream.alloc::<u16>(planes.len())?;
            kernels::textures_f16(&stream, height, width, 0.5, 0.5, &rgb, &mut halves)?;
            let halves: Vec<f32> = stream.read_blocking(&halves)?.into_iter().map(from_f16).collect();
            compare("textures_f16", &halves, &planes, 2.6e-4);
            let layout = Layout::new(&[[height, width]], patch)?;
            let (n, table) = (layout.patches(), stream.upload_blocking(layout.table())?);
            for rgb in [rgb.slice(..)?, odd.slice(1..)?] {
                let (mut f, mut e): (Floats, Floats) = (stream.alloc(features.len())?, stream.alloc(bits.len())?);
                stream.fill(&mut f, f32::NAN)?;
                stream.fill(&mut e, f32::NAN)?;
                let bytes = rgb.len() as u32;
                kernels::analyze(&stream, 1, n, bytes, patch, 0.5, 0.5, &table, rgb, &mut f, &mut e)?;
                compare("features of analyze", &stream.read_blocking(&f)?, &features, 1e-5);
                compare("entropy of analyze", &stream.read_blocking(&e)?, &bits, 1e-5);
            }
        }
    }
    Ok(())
}

/// Selected patches for `compress`, as `allocate` would leave them.
struct Selection {
    sides: On<Bench, DeviceBuffer<i32>>,
    cu_seqlens: On<Bench, DeviceBuffer<i32>>,
    patch_id: On<Bench, DeviceBuffer<i32>>,
    counts: On<Bench, DeviceBuffer<u32>>,
    selected: u32,
}

impl Selection {
    /// As many patches of side `side` as fit `budget`, spread over the image.
    fn new(stream: Stream<Bench>, patches: usize, side: i32, budget: i32) -> Result<Self, Error> {
        let k = (budget / (side * side)) as usize;
        let (mut sides, mut cu_seqlens, mut patch_id) = (vec![0; patches], vec![0], vec![]);
        for i in 0..k {
            let id = i * patches / k;
            sides[id] = side;
            patch_id.push(id as i32);
            cu_seqlens.push((i as i32 + 1) * side * side);
        }
        Ok(Self {
            sides: stream.upload_blocking(&sides)?,
            cu_seqlens: stream.upload_blocking(&cu_seqlens)?,
            patch_id: stream.upload_blocking(&patch_id)?,
            counts: stream.upload_blocking(&[cu_seqlens[k] as u32, k as u32])?,
            selected: k as u32,
        })
    }
}

fn images(stream: Stream<Bench>, data: &[u8]) -> Result<Vec<Bytes>, Error> {
    let first = stream.upload_blocking(data)?;
    let sets = COLD / data.len() + 2;
    let mut all = vec![];
    for _ in 1..sets {
        let mut other = stream.alloc(data.len())?;
        stream.copy(&first, &mut other)?;
        all.push(other);
    }
    all.push(first);
    Ok(all)
}

fn sets<T: Plain>(stream: Stream<Bench>, len: usize) -> Result<Vec<On<Bench, DeviceBuffer<T>>>, Error> {
    let sets = (COLD / (len * size_of::<T>())).clamp(1, 31) + 1;
    (0..sets).map(|_| stream.alloc(len)).collect()
}

/// Tokens of patches at side 8 and at side 20, from the image and from planes.
fn compress(
    bench: &mut Bencher,
    (size, height, width): (&str, u32, u32),
    content: Content,
    rgb: &[Bytes],
    planes: &DeviceSlice<Bench, f32>,
    copy: Time,
) -> Result<(), Error> {
    let stream = bench.stream;
    let patches = (height.div_ceil(PATCH) * width.div_ceil(PATCH)) as usize;
    let table = stream.upload_blocking(Layout::new(&[[height, width]], PATCH)?.table())?;
    for side in [8, 20] {
        let Selection { sides, cu_seqlens, patch_id, counts, selected } =
            &Selection::new(stream, patches, side, TOKENS as i32)?;
        let (mut tokens, mut twin): (Floats, Floats) =
            (stream.alloc_zeroed(13 * TOKENS)?, stream.alloc_zeroed(13 * TOKENS)?);
        let (mut position, mut other): (Floats, Floats) =
            (stream.alloc_zeroed(2 * TOKENS)?, stream.alloc_zeroed(2 * TOKENS)?);
        let fused = bench.time(|i| {
            kernels::compress_fused(
                &stream,
                1,
                patches as u32,
                3 * height * width,
                PATCH,
                *selected,
                TOKENS as u32,
                0.5,
                0.5,
                &table,
                &rgb[i % rgb.len()],
                sides,
                cu_seqlens,
                patch_id,
                counts,
                &mut tokens,
                &mut position,
            )
        })?;
        let materialised = bench.time(|_| {
            kernels::compress(
                &stream,
                height,
                width,
                PATCH,
                *selected,
                TOKENS as u32,
                planes,
                sides,
                cu_seqlens,
                patch_id,
                counts,
                &mut twin,
                &mut other,
            )
        })?;
        compare("tokens", &stream.read_blocking(&tokens)?, &stream.read_blocking(&twin)?, 3e-6);
        compare("position", &stream.read_blocking(&position)?, &stream.read_blocking(&other)?, 0.0);
        let bytes = *selected as usize * 3 * (PATCH * PATCH) as usize + 60 * TOKENS;
        report(&format!("compress_fused {side}"), content, size, fused, bytes, copy);
        report(&format!("compress {side}"), content, size, materialised, bytes, copy);
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    // `cargo bench` passes flags of its own; `cargo test --benches` asks for a list of tests.
    if std::env::args().any(|a| a == "--list" || a == "--test") {
        return Ok(());
    }
    let gpu = match Device::cuda(0) {
        Ok(gpu) => gpu,
        Err(why) => {
            println!("not measured: {why}");
            return Ok(());
        }
    };
    let photo = photo();
    let stream = gpu.stream::<Bench>()?;
    check(stream, &photo)?;

    let mut bench = Bencher { stream, ballast: stream.alloc(1 << 28)? };
    let driver = gpu.driver_version().unwrap_or_default();
    println!("\n{}, driver for CUDA {}.{}; median of {RUNS}", gpu.name(), driver.0, driver.1);
    println!(
        "{:<18} {:<9} {:<6} {:>9} {:>9} {:>7} {:>8} {:>8}",
        "kernel", "content", "size", "us", "in a row", "GB/s", "% copy", "in a row"
    );
    for (size, height, width) in SIZES {
        let pixels = (height * width) as usize;
        let patches = (height.div_ceil(PATCH) * width.div_ceil(PATCH)) as usize;
        let (full, half, image) = (bench.copy(55 * pixels)?, bench.copy(29 * pixels)?, bench.copy(3 * pixels)?);
        for (bytes, copy) in [(55, full), (29, half), (3, image)] {
            report("copy", Noise, size, copy, bytes * pixels, copy);
        }
        let (mut planes, mut halves) = (sets::<f32>(stream, 13 * pixels)?, sets::<u16>(stream, 13 * pixels)?);
        let (many, most) = (planes.len(), halves.len());
        let fill = bench.time(|i| stream.zero(&mut planes[i % many]))?;
        report("fill", Noise, size, fill, 52 * pixels, full);
        for content in [Noise, Photo, Constant] {
            let rgb = images(stream, &content.pixels(height, width, &photo))?;
            let m = rgb.len();
            let time = bench
                .time(|i| kernels::textures(&stream, height, width, 0.5, 0.5, &rgb[i % m], &mut planes[i % many]))?;
            report("textures", content, size, time, 55 * pixels, full);
            let time = bench.time(|i| {
                kernels::textures_f16(&stream, height, width, 0.5, 0.5, &rgb[i % m], &mut halves[i % most])
            })?;
            report("textures_f16", content, size, time, 29 * pixels, half);

            // The fused path, against the materialised one.
            let (mut features, mut bits) = (stream.alloc::<f32>(13 * patches)?, stream.alloc::<f32>(patches)?);
            let time =
                bench.time(|i| kernels::features(&stream, height, width, PATCH, &planes[i % many], &mut features))?;
            report("features", content, size, time, 52 * pixels, full);
            let time = bench.time(|i| kernels::entropy(&stream, height, width, PATCH, &rgb[i % m], &mut bits))?;
            report("entropy", content, size, time, 3 * pixels, image);
            kernels::textures(&stream, height, width, 0.5, 0.5, &rgb[0], &mut planes[0])?;
            kernels::features(&stream, height, width, PATCH, &planes[0], &mut features)?;
            kernels::entropy(&stream, height, width, PATCH, &rgb[0], &mut bits)?;
            let (want, want_bits) = (stream.read_blocking(&features)?, stream.read_blocking(&bits)?);
            // One byte further no row starts on a word, so `analyze` takes a pixel a thread.
            let data = content.pixels(height, width, &photo);
            let odd = images(stream, &[&[0], &data[..]].concat())?;
            let table = stream.upload_blocking(Layout::new(&[[height, width]], PATCH)?.table())?;
            for (name, images, start) in [("analyze", &rgb, 0), ("analyze, odd", &odd, 1)] {
                stream.fill(&mut features, f32::NAN)?;
                let time = bench.time(|i| {
                    let rgb = images[i % m].slice(start..)?;
                    let (n, bytes) = (patches as u32, 3 * pixels as u32);
                    kernels::analyze(&stream, 1, n, bytes, PATCH, 0.5, 0.5, &table, rgb, &mut features, &mut bits)
                })?;
                compare(name, &stream.read_blocking(&features)?, &want, 3e-6);
                compare(name, &stream.read_blocking(&bits)?, &want_bits, 3e-6);
                report(name, content, size, time, 3 * pixels, image);
            }
            compress(&mut bench, (size, height, width), content, &rgb, &planes[0], image)?;
        }
    }
    Ok(())
}
