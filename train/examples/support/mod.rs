//! Shared parts of the examples of overlap: the command line, and measurements.
#![allow(dead_code, unreachable_pub, reason = "each example uses only some parts")]

use std::path::PathBuf;
use std::process::exit;
use std::time::{Duration, Instant};

use thalweg::{Device, DeviceKind, Timeline};
use thalweg_train::{MatmulBackend, Result, Tensors};

/// The command line of an example.
pub struct Arguments {
    timeline: Option<PathBuf>,
    batch: Option<usize>,
    steps: Option<usize>,
    slots: Option<usize>,
    runs: usize,
    cublaslt: bool,
}

/// The options of the patterns on one device, all of which measure in the same way.
pub const MEASURED: &[&str] = &["--timeline", "--batch", "--steps", "--slots", "--runs"];

/// The same of those with models whose products cuBLASLt can compute.
pub const MEASURED_CUBLASLT: &[&str] = &["--timeline", "--batch", "--steps", "--slots", "--runs", "--cublaslt"];

/// The options that an example may have, and their lines for `--help`.
const OPTIONS: [(&str, &str); 6] = [
    ("--timeline", "FILE  save what ran when, as .svg, .json (Perfetto) or .txt"),
    ("--batch", "N        the images or sequences of a step; of vlm_pipeline the tokens of a text"),
    ("--steps", "N        the steps, or the requests"),
    ("--slots", "N        the batches or requests under way at most, in the overlapped form"),
    (
        "--runs",
        "N         take all steps N times. If N is above 1, the last run is the one in the timeline, and the time is \
         the median of the others",
    ),
    ("--cublaslt", "      have cuBLASLt compute the products (with the feature `cublaslt`)"),
];

impl Arguments {
    /// Reads the command line of an example that has these options. `--help` prints `purpose` and
    /// the options, and ends the program. So does, as an error, an argument that it does not have.
    pub fn parse(purpose: &str, options: &[&str]) -> Self {
        let mut given = Self { timeline: None, batch: None, steps: None, slots: None, runs: 1, cublaslt: false };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || {
                arguments.next().unwrap_or_else(|| {
                    println!("{argument} needs a value");
                    exit(2)
                })
            };
            let number = |text: String| {
                text.parse().ok().filter(|&n: &usize| n > 0).unwrap_or_else(|| {
                    println!("{text} is no number above 0");
                    exit(2)
                })
            };
            match argument.as_str() {
                other if !options.contains(&other) => {
                    println!("{purpose}\n");
                    let has = |(name, _): &&(&str, &str)| options.contains(name);
                    OPTIONS.iter().filter(has).for_each(|(name, rest)| println!("  {name} {rest}"));
                    exit(if other == "--help" || other == "-h" { 0 } else { 2 })
                }
                "--timeline" => given.timeline = Some(value().into()),
                "--batch" => given.batch = Some(number(value())),
                "--steps" => given.steps = Some(number(value())),
                "--slots" => given.slots = Some(number(value())),
                "--runs" => given.runs = number(value()),
                _ => given.cublaslt = true,
            }
        }
        given
    }

    /// Returns the size of a batch: that of `--batch`, or else `default`.
    pub fn batch(&self, default: usize) -> usize {
        self.batch.unwrap_or(default)
    }

    /// Returns the number of steps: that of `--steps`, or else `default`.
    pub fn steps(&self, default: usize) -> usize {
        self.steps.unwrap_or(default)
    }

    /// Returns the number of slots of the overlapped form: that of `--slots`, or else `default`.
    pub fn slots(&self, default: usize) -> usize {
        self.slots.unwrap_or(default)
    }

    /// Calls `work` as often as `--runs` says, and returns the median time and the last value. Only
    /// the last call records a timeline. It costs some time, so it counts only if there is no
    /// other.
    pub fn timed<T>(&self, timeline: &Timeline, mut work: impl FnMut(&Timeline) -> Result<T>) -> Result<(Duration, T)> {
        let mut times = vec![];
        for _ in 1..self.runs {
            times.push(timed(|| work(&Timeline::disabled()))?.0);
        }
        let (time, value) = timed(|| work(timeline))?;
        if times.is_empty() {
            times.push(time);
        }
        times.sort();
        Ok((times[times.len() / 2], value))
    }

    /// Returns what computes the products of the models.
    pub fn products(&self, device: Device) -> Result<MatmulBackend> {
        if self.cublaslt { MatmulBackend::cublaslt(device) } else { Ok(MatmulBackend::default()) }
    }

    /// Makes a timeline, which records only if `--timeline` was given.
    pub fn timeline(&self, device: Device) -> Result<Timeline> {
        Ok(if self.timeline.is_some() { Timeline::new(device)? } else { Timeline::disabled() })
    }

    /// Saves the timeline if `--timeline` was given, and prints its metrics.
    pub fn finish(&self, timeline: &Timeline) -> Result<()> {
        if let Some(path) = &self.timeline {
            let trace = timeline.finish()?;
            trace.save(path)?;
            println!("{}\ntimeline: {}", trace.metrics(), path.display());
        }
        Ok(())
    }
}

/// Returns the arguments of an example that has no options, at most `most`. If there are others, it
/// prints `usage` and ends the program.
pub fn words(usage: &str, most: usize) -> Vec<String> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    if given.len() > most || given.iter().any(|word| word.starts_with('-')) {
        println!("{usage}");
        exit(if given.iter().any(|word| word == "--help" || word == "-h") { 0 } else { 2 })
    }
    given
}

/// Returns the device of `THALWEG_DEVICE`, or the best one, and prints it.
pub fn device() -> Result<Device> {
    let device = Device::from_env()?.device;
    println!("{device}: {}", device.name());
    note(device);
    Ok(device)
}

/// Says on the CPU device that times mean nothing there.
pub fn note(device: Device) {
    if device.kind() == DeviceKind::Cpu {
        println!("(copies and kernels of the CPU device share its cores: ratios of times say nothing about overlap)");
    }
}

/// Returns the first value on a GPU, and the second one on the CPU device.
pub fn sized<T>(device: Device, gpu: T, cpu: T) -> T {
    if device.kind() == DeviceKind::Cuda { gpu } else { cpu }
}

/// Runs `work` and returns how long it took.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let start = Instant::now();
    let value = work()?;
    Ok((start.elapsed(), value))
}

/// Random numbers from -1 to 1 (SplitMix64).
pub fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Prints both times, and checks that both runs learned the same weights.
pub fn compare(serial: (Duration, Tensors), overlapped: (Duration, Tensors), steps: usize) {
    let same = serial.1.tensors.iter().zip(&overlapped.1.tensors).all(|(a, b)| a == b);
    assert!(
        same && serial.1.tensors.len() == overlapped.1.tensors.len(),
        "the weights differ from those of one stream"
    );
    let rate = |time: Duration| steps as f64 / time.as_secs_f64();
    println!(
        "one stream {:.1} steps/s, overlapped {:.1} steps/s: {:.3} x; the weights are the same, bit for bit",
        rate(serial.0),
        rate(overlapped.0),
        serial.0.as_secs_f64() / overlapped.0.as_secs_f64()
    );
}
