//! Turns photographs on disk into scores of their patches, in four stages that work on different
//! images at once.
//!
//! ```text
//! decode 0..n | jpeg 0..3 | jpeg 4..7 | jpeg 8..11 | ...         one thread for each core, into page-locked memory
//! upload      |           | 0..3      | 4..7       | ...
//! compute     |                       | 0..3       | 4..7 | ...
//! download    |                                    | 0..3 | ...
//! ```
//!
//! ```text
//! cargo run --release --example disk_pipeline -- --timeline disk.svg      (JPEG: a GPU decodes it)
//! cargo run --release --example disk_pipeline -- --decode host            (JPEG: the host's decoders are the limit)
//! cargo run --release --example disk_pipeline -- --raw                    (no decoding: the disk or the bus is the limit)
//! cargo run --release --example disk_pipeline -- --raw --keep             (the host keeps the frames as well)
//! cargo run --release --example disk_pipeline -- --raw --direct           (reads from the disk, without the page cache)
//! cargo run --release --example disk_pipeline -- --upload-streams 2       (uploads in turn on two streams)
//! cargo run --release --example disk_pipeline -- ~/photographs
//! ```

#[path = "support/mod.rs"]
mod support;

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use thalweg::{
    Activity, Device, DeviceBuffer, DeviceKind, Event, On, PinnedBuffer, Size, Stream, Timeline, stream_tags,
};
use thalweg_loader::{
    BatchOn, DecodeError, ImageSink, Loader, LoaderOptions, Source, UploadMode, byte_ranges, list_folder, read_photo,
    read_ppm, upload_ppm,
};
use thalweg_vision::kernels;

stream_tags!(Compute, Download);

const PATCH: u32 = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = support::Arguments::parse_with(
        "Turns photographs on disk into scores of their patches.",
        &[("FOLDER", "use your own photographs (default: files made from assets/photos)")],
        &[
            ("--raw", "use frames without a decoder (binary PPM); they go from the file to the device in pieces"),
            ("--keep", "like --raw, but each frame is read into memory that its batch keeps"),
            ("--direct", "like --raw, but with direct I/O (O_DIRECT); only for frames made for this run"),
            ("--upload-streams N", "the loader's streams of uploads (default: 1, and 3 where the device decodes)"),
            ("--decode WHERE", "auto, device or host: what decodes JPEG files (default: THALWEG_DECODE, else auto)"),
        ],
    );
    let (keep, direct) = (args.line().has("--keep"), args.line().has("--direct"));
    let raw = keep || direct || args.line().has("--raw");
    let decode = args.line().value("--decode").unwrap_or(LoaderOptions::from_env()?.decode);
    let folder = args.line().words().first().map(PathBuf::from);
    let gpu = args.device()?;
    let (files, [height, width], total, batch) =
        support::sized(gpu, (32, [2160, 3840], 512, 8), (6, [200, 300u32], 36, 4));
    let made = if folder.is_none() { Some(Made::new(files, height, width, raw)?) } else { None };
    let folder = folder.as_deref().or(made.as_ref().map(|made| made.0.as_path())).unwrap_or(Path::new("."));
    let endings: &[&str] = if raw { &["ppm"] } else { &["jpg", "jpeg", "png"] };
    let paths = list_folder(folder, endings, false).files;
    if paths.is_empty() {
        return Err(format!("{}: found no *.{}", folder.display(), endings.join(", *.")).into());
    }
    let read: Read = match (raw, direct && made.is_some(), keep) {
        (false, ..) => Box::new(read_photo),
        (_, true, _) => Box::new(move |path, sink| {
            let file = open_direct(path).map_err(|e| format!("cannot open it for direct I/O: {e}"))?;
            let header = file.metadata()?.len() - 3 * u64::from(height) * u64::from(width);
            sink.rgb_in_file(height, width, file, header)
        }),
        (.., true) => Box::new(read_ppm),
        (.., false) => Box::new(upload_ppm),
    };
    let read: Arc<Read> = Arc::new(read);
    let read = move |path: &Path, sink: &mut ImageSink<'_>| read(path, sink);
    let all: Vec<_> = paths.iter().cycle().take(total.max(paths.len())).cloned().collect();

    // Serial: one thread decodes a file, then the file is uploaded and scored, and its scores are
    // downloaded. Here and below the first epoch does not count, because it page-locks memory,
    // loads kernels, and brings files into the page cache.
    let options = LoaderOptions::default()
        .with_batch_size(1)
        .with_prefetch(1)
        .with_decode_threads(1)
        .with_upload(UploadMode::Sequential)
        .with_decode(decode);
    let mut loader = Loader::new(gpu, Source::files(&paths, read.clone()), options)?;
    score_all(gpu, &mut loader, &Timeline::disabled(), 0)?;
    let start = Instant::now();
    loader.restart();
    let serial = score_all(gpu, &mut loader, &Timeline::disabled(), 0)?;
    let serial_rate = paths.len() as f64 / start.elapsed().as_secs_f64();

    // Measure what the disk and the decoders can do alone, and what the bus can do alone.
    let options = LoaderOptions::default().with_batch_size(batch).with_upload(UploadMode::Off).with_decode(decode);
    let plain: fn(&Path, &mut ImageSink<'_>) -> Result<(), DecodeError> = if raw { read_ppm } else { read_photo };
    let mut loader = Loader::new(gpu, Source::files(&all, plain), options.clone())?;
    loader.by_ref().try_for_each(|batch| batch.map(drop))?;
    let image_bytes = loader.stats().bytes as f64 / all.len() as f64;
    let start = Instant::now();
    loader.restart();
    loader.by_ref().try_for_each(|batch| batch.map(drop))?;
    let decode_rate = all.len() as f64 / start.elapsed().as_secs_f64();
    drop(loader);
    let upload_rate = support::upload_limit(gpu, batch * image_bytes as usize)? / image_bytes;

    // Run all stages at once.
    let timeline = Timeline::new(gpu)?; // always on, because it costs only a few us for each image
    // While one thread enqueues the decoding of a batch, another prepares the next one.
    let usual = if !raw && decode.on(gpu.kind()) { 3 } else { 1 };
    let given: Option<usize> = args.line().value("--upload-streams");
    let options = options
        .with_upload(UploadMode::Auto)
        .with_upload_streams(given.unwrap_or(usual))
        .with_prefetch(given.unwrap_or(2).max(2)) // no more streams than batches ahead are used
        .with_timeline(timeline.clone());
    let mut loader = Loader::new(gpu, Source::files(&all, read), options)?;
    let warm = score_all(gpu, &mut loader, &timeline, 2)?;
    timeline.finish()?;
    let (start, cpu_before) = (Instant::now(), cpu_seconds());
    loader.restart();
    let scores = score_all(gpu, &mut loader, &timeline, 2)?;
    let elapsed = start.elapsed().as_secs_f64();
    let rate = all.len() as f64 / elapsed;
    let cpu = cpu_before.zip(cpu_seconds()).map(|(before, after)| after - before);
    assert!(warm == serial && scores == serial, "the scores differ from those of the serial run");

    let trace = timeline.finish()?;
    let threads = loader.decode_threads();
    let wall = trace.metrics().wall.as_secs_f64();
    let busy = |activity| {
        let spans = trace.spans().iter().filter(|span| span.activity == activity && &*span.label != "decode");
        spans.map(|span| span.duration().as_secs_f64()).fold(0.0, |sum, span| sum + span) / wall
    };
    let on_device = !raw && loader.decodes_on_device();
    let decodes = trace.spans().iter().filter(|span| &*span.label == "decode");
    let decoding = decodes.map(|span| span.duration().as_secs_f64()).fold(0.0, |sum, span| sum + span) / wall;
    let (first, alone) = match (raw, on_device) {
        (true, _) => ("read", "reading alone, from the page cache"),
        (_, true) => ("read", "the host decoding alone"),
        _ => ("decode", "decoding alone"),
    };
    let stages = [
        (first, busy(Activity::Host) / threads as f64, format!("{alone}: {decode_rate:.0} images/s")),
        ("upload", busy(Activity::Upload), format!("of pixels at the bus's rate: {upload_rate:.0} images/s")),
        ("device decode", decoding, if on_device { "with the upload of coded data".into() } else { String::new() }),
        ("kernels", busy(Activity::Compute), String::new()),
        ("download", busy(Activity::Download), String::new()),
    ];
    if let Some(plan) = loader.upload_plan() {
        let how = match plan.upload_streams {
            0 => "in turn".to_owned(),
            1 => "on the loader's own stream".to_owned(),
            streams => format!("on {streams} streams of the loader's own"),
        };
        println!("uploads {how}: {}", plan.reason);
    }
    println!("{}", loader.stats());
    println!("serial   {serial_rate:8.1} images/s of {image_bytes:.0} bytes");
    println!("pipeline {rate:8.1} images/s, {:.2} GB/s, {threads} threads", rate * image_bytes / 1e9);
    if let Some(cpu) = cpu {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        println!(
            "host     {:8.0} % of {cores} cores busy, in all threads of this program",
            100.0 * cpu / elapsed / cores as f64
        );
    }
    for (stage, share, note) in &stages {
        println!("  {stage:<13} busy {:3.0} %   {note}", 100.0 * share);
    }
    if gpu.kind() == DeviceKind::Cpu {
        return Ok(args.save(&trace)?);
    }
    let (binds, share, _) = stages.iter().max_by(|a, b| a.1.total_cmp(&b.1)).ok_or("no stages")?;
    print!("{binds} is the limit, {:.0} % busy; the pipeline reaches ", 100.0 * share);
    if on_device {
        println!("{:.2} times the rate of {alone}", rate / decode_rate);
    } else {
        let limit = decode_rate.min(upload_rate);
        println!("{:.0} % of the smaller rate of {alone} and uploading alone", 100.0 * rate / limit);
    }
    args.save(&trace)?;
    Ok(())
}

/// The processor time that all threads of this program took so far, where the system says it.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // After the name in parentheses: the state is field 3, user and system time are fields 14 and
    // 15, in 1/100 s.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / 100.0)
}

type Read = Box<dyn Fn(&Path, &mut ImageSink<'_>) -> Result<(), DecodeError> + Send + Sync>;

/// Opens a file so that its blocks come from the disk and not from the page cache.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).custom_flags(libc::O_DIRECT).open(path)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> std::io::Result<File> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Computes the scores of each file. Up to `ahead` batches are under way after their upload.
fn score_all(
    gpu: Device,
    loader: &mut Loader<PathBuf>,
    timeline: &Timeline,
    ahead: usize,
) -> thalweg_loader::Result<HashMap<PathBuf, Vec<f32>>> {
    let (compute, download) = (gpu.stream::<Compute>()?, gpu.stream::<Download>()?);
    let mut scores = HashMap::new();
    let mut keep = |sizes: Vec<Size>, paths: Vec<PathBuf>, event: Event<PinnedBuffer<f32>>| {
        let all = timeline.wait("main", "scores", || event.synchronize_sleeping())?;
        let mut rest = &all[..];
        for (size, path) in sizes.into_iter().zip(paths) {
            let (own, others) = rest.split_at(14 * patches(size));
            let known = scores.entry(path).or_insert_with(|| own.to_vec());
            assert!(known == own, "the scores of a file changed between reads");
            rest = others;
        }
        Ok::<_, thalweg_loader::Error>(())
    };
    let mut under_way = VecDeque::new();
    while let Some(batch) = timeline.wait("main", "batch", || loader.next()) {
        let batch = compute.wait(batch?)?;
        let own = timeline.span(&compute, Activity::Compute, "scores", || score(&compute, &batch))?;
        let about = (batch.sizes.clone(), batch.meta.clone());
        loader.recycle(compute.record(batch)?);
        let own = compute.hand_off(own, &download)?;
        let mut host = download.bind(gpu.pinned(own.len())?)?;
        timeline.span(&download, Activity::Download, "scores", || download.copy_to_host(&own, &mut host))?;
        under_way.push_back((about, download.record(host)?));
        while under_way.len() > ahead
            && let Some(((sizes, paths), event)) = under_way.pop_front()
        {
            keep(sizes, paths, event)?;
        }
    }
    under_way.into_iter().try_for_each(|((sizes, paths), event)| keep(sizes, paths, event))?;
    Ok(scores)
}

fn patches(Size { height, width }: Size) -> usize {
    height.div_ceil(PATCH) as usize * width.div_ceil(PATCH) as usize
}

/// Enqueues the scores of a batch. For each image they are 13 means for each patch, then an entropy
/// for each patch.
fn score(s: &Stream<Compute>, batch: &BatchOn<Compute, PathBuf>) -> thalweg::Result<On<Compute, DeviceBuffer<f32>>> {
    let mut scores = s.alloc(batch.sizes.iter().map(|&size| 14 * patches(size)).sum())?;
    let mut at = 0;
    for (&size, bytes) in batch.sizes.iter().zip(byte_ranges(&batch.sizes)) {
        let (rgb, n) = (batch.rgb.slice(bytes)?, patches(size));
        let Size { height, width } = size;
        let mut planes = s.alloc(13 * height as usize * width as usize)?;
        kernels::textures(s, height, width, 0.5, 0.5, rgb, &mut planes)?;
        kernels::features(s, height, width, PATCH, &planes, scores.slice_mut(at..at + 13 * n)?)?;
        kernels::entropy(s, height, width, PATCH, rgb, scores.slice_mut(at + 13 * n..at + 14 * n)?)?;
        at += 14 * n;
    }
    Ok(scores)
}

/// Files made for this run. They are removed when this value is dropped.
struct Made(PathBuf);

impl Made {
    /// Makes `count` images, each tiled with one of the photographs in `assets/photos`.
    fn new(count: usize, height: u32, width: u32, raw: bool) -> Result<Self, Box<dyn std::error::Error>> {
        let made = Self(std::env::temp_dir().join(format!("thalweg-disk-pipeline-{}", std::process::id())));
        fs::create_dir_all(&made.0)?;
        let names = ["astronaut", "chelsea", "coffee"];
        for n in 0..count {
            let photo = image::open(format!("assets/photos/{}.png", names[n % names.len()]))?.into_rgb8();
            let image = image::RgbImage::from_fn(width, height, |x, y| {
                *photo.get_pixel((x + 7 * n as u32) % photo.width(), y % photo.height())
            });
            if raw {
                let mut file = File::create(made.0.join(format!("{n:03}.ppm")))?;
                writeln!(file, "P6 {width} {height} 255")?;
                file.write_all(&image)?;
            } else {
                let file = std::io::BufWriter::new(File::create(made.0.join(format!("{n:03}.jpg")))?);
                image::codecs::jpeg::JpegEncoder::new_with_quality(file, 90).encode_image(&image)?;
            }
        }
        Ok(made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
