//! Shared parts of the examples: the command line, and measurements.
#![allow(dead_code, unreachable_pub, reason = "each example uses only some parts")]

pub mod command_line;
pub mod edges;
pub mod features;
pub mod tokens;

use std::time::{Duration, Instant};

use thalweg::{AnyStream, Device, DeviceCopy, DeviceKind, Error, OpenedDevice, PinnedBuffer, Timeline, Trace};

pub use command_line::{CommandLine, Usage};

const DEVICE: Usage = ("--device DEVICE", "auto, cpu or cuda:N (default: THALWEG_DEVICE, else auto)");

/// The command line of an example.
pub struct Arguments(CommandLine);

impl Arguments {
    /// Reads the command line of an example of which a timeline can be saved. `purpose` is a line.
    pub fn parse(purpose: &str) -> Self {
        Self::parse_with(purpose, &[], &[])
    }

    /// Does the same as [`parse`](Self::parse), for an example with words or options of its own.
    pub fn parse_with(purpose: &str, words: &[Usage], own: &[Usage]) -> Self {
        let line = CommandLine::parse(purpose, words, &[own, &[command_line::TIMELINE, DEVICE]].concat());
        line.timeline();
        Self(line)
    }

    /// Returns the arguments.
    pub fn line(&self) -> &CommandLine {
        &self.0
    }

    /// Prints which device the command line asks for, and returns it.
    pub fn device(&self) -> Result<Device, Error> {
        open(&self.0)
    }

    /// Makes a timeline, which records only if `--timeline` was given.
    pub fn timeline(&self, device: Device) -> Result<Timeline, Error> {
        if self.0.timeline().is_some() { Timeline::new(device) } else { Ok(Timeline::disabled()) }
    }

    /// Saves the timeline if `--timeline` was given, and prints its metrics and the file's name.
    pub fn finish(&self, timeline: &Timeline) -> Result<(), Error> {
        if self.0.timeline().is_some() { self.save(&timeline.finish()?) } else { Ok(()) }
    }

    /// Does the same as [`finish`](Self::finish) for a trace.
    pub fn save(&self, trace: &Trace) -> Result<(), Error> {
        if let Some(path) = self.0.timeline() {
            trace.save(path)?;
            println!("{}\n{}\ntimeline: {}", trace.metrics(), trace.by_label(), path.display());
        }
        Ok(())
    }
}

/// Reads the command line of an example without a timeline, prints which device it asks for, and
/// returns it.
pub fn device(purpose: &str) -> Result<Device, Error> {
    open(&CommandLine::parse(purpose, &[], &[DEVICE]))
}

fn open(line: &CommandLine) -> Result<Device, Error> {
    let OpenedDevice { device, fallback: why, .. } =
        line.text("--device").map_or_else(Device::from_env, Device::open)?;
    println!("{}: {}{}", device, device.name(), why.map(|why| format!(" ({why})")).unwrap_or_default());
    if device.kind() == DeviceKind::Cpu {
        println!("(its times are those of this machine's cores, which copies and kernels share: they show no overlap)");
    }
    Ok(device)
}

/// Returns a figure that means something on a GPU only, such as a ratio of times with and without
/// overlap. On the CPU device it is empty.
pub fn on_gpu(device: Device, figure: impl FnOnce() -> String) -> String {
    sized(device, Some(figure), None).map(|figure| figure()).unwrap_or_default()
}

/// Returns `gpu` on a GPU, and `cpu` on the CPU device, where the same work takes longer.
pub fn sized<T>(device: Device, gpu: T, cpu: T) -> T {
    if device.kind() == DeviceKind::Cuda { gpu } else { cpu }
}

/// Makes one page-locked buffer of `count` RGB images of `height` x `width` with different
/// contents.
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

/// Returns the least time of several runs, which other work on the machine disturbs least. A first
/// run does not count.
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

/// Measures the upload rate in bytes per second when nothing else runs. It copies `bytes` from
/// page-locked memory again and again.
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

/// Runs a pattern four times, and returns its least time, the input and the results. The first run
/// does not count, because it loads kernels and page-locks the output. `timeline` records the last
/// run.
pub fn timed<T: DeviceCopy, U: DeviceCopy>(
    mut input: PinnedBuffer<T>,
    timeline: &Timeline,
    mut pattern: impl FnMut(PinnedBuffer<T>, &Timeline) -> Result<(PinnedBuffer<T>, PinnedBuffer<U>), Error>,
) -> Result<(Duration, PinnedBuffer<T>, PinnedBuffer<U>), Error> {
    let off = Timeline::disabled();
    input = pattern(input, &off)?.0;
    let mut least = Duration::MAX;
    for _ in 0..2 {
        let start = Instant::now();
        input = pattern(input, &off)?.0;
        least = least.min(start.elapsed());
    }
    let start = Instant::now();
    let (input, output) = pattern(input, timeline)?;
    Ok((least.min(start.elapsed()), input, output))
}
