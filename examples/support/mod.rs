//! What the examples share: their command line, and a measurement or two.
#![allow(dead_code, unreachable_pub, reason = "each example uses its own part")]

use std::path::PathBuf;
use std::process::exit;
use std::time::{Duration, Instant};

use thalweg::overlap::{Chunks, StageTimes, measure};
use thalweg::vision::{PLANES, kernels};
use thalweg::{
    AnyStream, Device, DeviceBuffer, DeviceKind, DeviceSlice, Error, PinnedBuffer, Ring, Stream, StreamTag, Timeline,
};

/// The command line of an example.
pub struct Arguments {
    timeline: Option<PathBuf>,
    device: Option<String>,
}

impl Arguments {
    /// Reads the command line. `--help` prints `purpose`, one line, and ends the program; so does what nobody understands.
    pub fn parse(purpose: &str) -> Self {
        let mut parsed = Self { timeline: None, device: None };
        let mut arguments = std::env::args().skip(1);
        let refuse = |why: String| -> ! {
            eprintln!("{why}; --help says what there is");
            exit(2)
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_else(|| refuse(format!("{argument} wants a value")));
            match argument.as_str() {
                "--timeline" => parsed.timeline = Some(value().into()),
                "--device" => parsed.device = Some(value()),
                "--help" | "-h" => {
                    println!(
                        "{purpose}\n\n  --timeline FILE  save what ran when, as .svg, .json (Perfetto) or .txt\n  \
                         --device DEVICE  auto, cpu or cuda:N (default: THALWEG_DEVICE, else auto)"
                    );
                    exit(0)
                }
                _ => refuse(format!("unknown argument `{argument}`")),
            }
        }
        let known = |path: &PathBuf| path.extension().is_some_and(|e| e == "svg" || e == "json" || e == "txt");
        if let Some(path) = parsed.timeline.as_ref().filter(|path| !known(path)) {
            refuse(format!("--timeline {}: expected a file name ending in .svg, .json or .txt", path.display()));
        }
        parsed
    }

    /// The device asked for, after saying which it is.
    pub fn device(&self) -> Result<Device, Error> {
        let (device, why) = self.device.as_deref().map_or_else(Device::from_environment, Device::from_spec)?;
        println!("{}: {}{}", device, device.name(), why.map(|why| format!(" ({why})")).unwrap_or_default());
        Ok(device)
    }

    /// A timeline that records if `--timeline` was given, else one that is off.
    pub fn timeline(&self, device: Device) -> Result<Timeline, Error> {
        if self.timeline.is_some() { Timeline::new(device) } else { Ok(Timeline::off()) }
    }

    /// Saves the timeline, if one was asked for, and says where and what it shows.
    pub fn finish(&self, timeline: &Timeline) -> Result<(), Error> {
        if let Some(path) = &self.timeline {
            let trace = timeline.finish()?;
            trace.save(path)?;
            println!("{}\ntimeline: {}", trace.metrics(), path.display());
        }
        Ok(())
    }
}

/// The first on a GPU, the second on the CPU device, where the same work takes longer.
pub fn sized<T>(device: Device, gpu: T, cpu: T) -> T {
    if device.kind() == DeviceKind::Cuda { gpu } else { cpu }
}

/// One page-locked buffer of `count` RGB images of `height` x `width`, each of another content.
pub fn images(device: Device, count: usize, height: u32, width: u32) -> Result<PinnedBuffer<u8>, Error> {
    let bytes = 3 * height as usize * width as usize;
    let mut rgb = device.pinned::<u8>(count * bytes)?;
    let mut state = 1u32;
    for (n, image) in rgb.chunks_mut(bytes).enumerate() {
        for run in image.chunks_mut(48) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            run.fill((state >> 24) as u8);
        }
        image[0] = n as u8;
    }
    Ok(rgb)
}

/// A stage that works as long as it is told to: the edge magnitude of images, of the middle three quarters of their rows, so that as many bytes
/// come back (4 a pixel) as went there (3 a pixel).
pub struct Edges {
    height: u32,
    width: u32,
    /// Rows of textures computed for each image before the ones that are kept.
    pub extra_rows: u32,
    /// Room for textures, in which the streams take turns.
    planes: Ring<DeviceBuffer<f32>>,
}

impl Edges {
    /// For images of `height`, a multiple of 8, by `width`, on up to `streams` streams at once.
    pub fn new(device: Device, height: u32, width: u32, streams: usize) -> Result<Self, Error> {
        let room = PLANES * height as usize * width as usize;
        let make = move || AnyStream::new(device)?.enter(|s| s.alloc(room)?.idle());
        Ok(Self { height, width, extra_rows: 0, planes: Ring::new(streams, make)? })
    }

    /// Chunks of whole images.
    pub fn chunks(&self, count: usize) -> Chunks {
        let pixels = self.height as usize * self.width as usize;
        Chunks::of_items(count, 3 * pixels, 3 * pixels / 4)
    }

    /// Enqueues the work on a chunk.
    pub fn run<S: StreamTag>(
        &mut self,
        s: &Stream<S>,
        rgb: &DeviceSlice<S, u8>,
        edges: &mut DeviceSlice<S, f32>,
    ) -> Result<(), Error> {
        let (height, width) = (self.height, self.width as usize);
        let pixels = height as usize * width;
        let mut planes = s.wait(self.planes.take()?)?;
        for image in 0..rgb.len() / (3 * pixels) {
            let rgb = rgb.slice(3 * image * pixels..3 * (image + 1) * pixels)?;
            let mut textures = |rows: u32| {
                let pixels = rows as usize * width;
                let planes = planes.slice_mut(..PLANES * pixels)?;
                kernels::textures(s, rows, self.width, 0.5, 0.5, rgb.slice(..3 * pixels)?, planes)
            };
            let (passes, rest) = (self.extra_rows / height, self.extra_rows % height);
            (0..passes).try_for_each(|_| textures(height))?;
            if rest > 0 {
                textures(rest)?;
            }
            textures(height)?;
            let kept = pixels * kernels::EDGE as usize + pixels / 8;
            let kept = planes.slice(kept..kept + 3 * pixels / 4)?;
            s.copy(kept, edges.slice_mut(3 * pixels / 4 * image..3 * pixels / 4 * (image + 1))?)?;
        }
        self.planes.give(s.record(planes)?);
        Ok(())
    }

    /// Sets the work so that a chunk's kernels take as long as its upload, or as little as possible where they take longer anyhow, and
    /// returns what each step of a chunk then takes alone.
    pub fn balance(
        &mut self,
        stream: &AnyStream,
        mut input: PinnedBuffer<u8>,
        chunks: Chunks,
    ) -> Result<(StageTimes, PinnedBuffer<u8>), Error> {
        let mut times = |edges: &mut Self, extra_rows| {
            edges.extra_rows = extra_rows;
            let nothing = stream.device().pinned(0)?;
            let given = std::mem::replace(&mut input, nothing);
            let (times, back) = measure(stream, given, chunks, |s, x, y| edges.run(s, x, y))?;
            input = back;
            Ok::<_, Error>(times)
        };
        let (bare, doubled) = (times(self, 0)?, times(self, self.height)?);
        let row = doubled.kernel.saturating_sub(bare.kernel).as_secs_f64() / f64::from(self.height);
        let missing = bare.upload.saturating_sub(bare.kernel).as_secs_f64();
        let balanced = times(self, if row > 0.0 { (missing / row) as u32 } else { 0 })?;
        Ok((balanced, input))
    }
}

/// The least time of some runs, after one that is not counted: what it takes when nothing else gets in the way.
pub fn least<E>(runs: usize, mut run: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    run()?;
    let mut least = Duration::MAX;
    for _ in 0..runs {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed());
    }
    Ok(least)
}

/// Upload rate in bytes per second with nothing beside it: copies of `bytes` from page-locked memory, back to back.
pub fn upload_limit(device: Device, bytes: usize) -> Result<f64, Error> {
    const COPIES: usize = 16;
    let time = AnyStream::new(device)?.enter(|s| {
        let from = s.bind(device.pinned::<u8>(bytes)?)?;
        let mut to = s.alloc(bytes)?;
        least(3, || {
            (0..COPIES).try_for_each(|_| s.copy_to_device(&from, &mut to))?;
            s.synchronize()
        })
    })?;
    Ok((COPIES * bytes) as f64 / time.as_secs_f64())
}
