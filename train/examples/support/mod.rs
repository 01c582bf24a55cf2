//! Shared parts of the examples of overlap: the command line, and measurements.
#![allow(dead_code, unreachable_pub, reason = "each example uses only some parts")]

#[path = "../../../examples/support/command_line.rs"]
pub mod command_line;

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thalweg::{Device, DeviceKind, LiveBrand, Timeline, Trace};
use thalweg_train::{AdamW, HostBatch, MatmulBackend, Precision, Result, Tensors, TokenTransformer};

pub use command_line::{CommandLine, TIMELINE, Usage};

/// The command line of an example of overlap.
pub struct Arguments(CommandLine, Cell<Option<Device>>);

/// The options of the patterns on one device, all of which measure in the same way.
pub const MEASURED: &[Usage] = &[TIMELINE, ALL_WORK, MEMORY, BATCH, STEPS, SLOTS, RUNS];

/// The same of those with models whose products cuBLASLt can compute.
pub const MEASURED_CUBLASLT: &[Usage] = &[TIMELINE, ALL_WORK, MEMORY, BATCH, STEPS, SLOTS, RUNS, CUBLASLT];

pub const ALL_WORK: Usage = ("--all-work", "put each kernel and copy into the timeline (on a GPU: with CUPTI)");
const MEMORY: Usage = ("--memory FILE.svg", "draw the device memory in use, from the start of the timeline on");

pub const BATCH: Usage = ("--batch N", "the images or sequences of a step; of vlm_pipeline the tokens of a text");
pub const STEPS: Usage = ("--steps N", "the steps, or the requests");
const SLOTS: Usage = ("--slots N", "the batches or requests under way at most, in the overlapped form");
pub const RUNS: Usage =
    ("--runs N", "take all steps N times, and print the median time; a timeline has the last run only");
pub const FILES: Usage = ("--files FOLDER", "take the files of this folder, and make those that it lacks");
pub const CUBLASLT: Usage = ("--cublaslt", "have cuBLASLt compute the products (with the feature `cublaslt`)");

impl Arguments {
    /// Reads the command line of an example that has these options.
    pub fn parse(purpose: &str, options: &[Usage]) -> Self {
        let line = CommandLine::parse(purpose, &[], options);
        line.timeline();
        Self(line, Cell::new(None))
    }

    /// Returns whether an option is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.has(name)
    }

    /// Returns the number of an option, which is not 0.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.0.value::<NonZeroUsize>(name).map(NonZeroUsize::get)
    }

    /// Returns the size of a batch: that of `--batch`, or else `default`.
    pub fn batch(&self, default: usize) -> usize {
        self.number("--batch").unwrap_or(default)
    }

    /// Returns the number of steps: that of `--steps`, or else `default`.
    pub fn steps(&self, default: usize) -> usize {
        self.number("--steps").unwrap_or(default)
    }

    /// Returns the number of slots of the overlapped form: that of `--slots`, or else `default`.
    pub fn slots(&self, default: usize) -> usize {
        self.number("--slots").unwrap_or(default)
    }

    /// Calls `work` as often as `--runs` says, and returns the median time and the last value. The
    /// timeline has the last call alone, which costs some time, so it counts only if there is no
    /// other.
    pub fn timed<T>(&self, timeline: &Timeline, mut work: impl FnMut(&Timeline) -> Result<T>) -> Result<(Duration, T)> {
        let mut times = vec![];
        for _ in 1..self.number("--runs").unwrap_or(1) {
            times.push(timed(|| work(&Timeline::disabled()))?.0);
        }
        drop(timeline.finish()?); // what was done first, such as making the memory
        let (time, value) = timed(|| work(timeline))?;
        if times.is_empty() {
            times.push(time);
        }
        times.sort();
        Ok((times[times.len() / 2], value))
    }

    /// Returns what computes the products of the models.
    pub fn products(&self, device: Device) -> Result<MatmulBackend> {
        if self.0.has("--cublaslt") { MatmulBackend::cublaslt(device) } else { Ok(MatmulBackend::default()) }
    }

    /// Makes a timeline, which records only if `--timeline` was given. With `--memory`, the log of
    /// memory begins.
    pub fn timeline(&self, device: Device) -> Result<Timeline> {
        if self.0.text("--memory").is_some() {
            device.memory_log().enable();
            self.1.set(Some(device));
        }
        Ok(match (self.0.timeline(), self.0.has("--all-work")) {
            (None, _) => Timeline::disabled(),
            (_, true) => Timeline::with_all_work(device)?,
            _ => Timeline::new(device)?,
        })
    }

    /// Returns the folder of `--files`.
    pub fn files(&self) -> Option<&Path> {
        self.0.text("--files").map(Path::new)
    }

    /// Saves the trace if `--timeline` was given.
    pub fn save(&self, trace: &Trace) -> Result<()> {
        Ok(self.0.timeline().map_or(Ok(()), |path| trace.save(path))?)
    }

    /// Saves the timeline if `--timeline` was given, and prints its metrics. Does the same with the
    /// log of memory for `--memory`.
    pub fn finish(&self, timeline: &Timeline) -> Result<()> {
        if let (Some(path), Some(device)) = (self.0.text("--memory"), self.1.take()) {
            let report = device.memory_log().report();
            report.save(path)?;
            println!("{report}\nmemory: {path}");
        }
        if let Some(path) = self.0.timeline() {
            let trace = timeline.finish()?;
            trace.save(path)?;
            println!("{}\ntimeline: {}", trace.metrics(), path.display());
        }
        Ok(())
    }
}

/// An option of the examples that write what other implementations compare themselves with.
pub const PRECISION: Usage = ("--precision TYPE", "f32 or bf16 (default: f32)");

/// Returns whether `--precision` says bf16.
pub fn is_bf16(line: &CommandLine) -> bool {
    match line.text("--precision") {
        None | Some("f32") => false,
        Some("bf16") => true,
        Some(other) => command_line::refuse(&format!("--precision cannot be `{other}`: expected f32 or bf16")),
    }
}

/// Returns both files that the command line names, or those of the tests if it names none.
pub fn files(line: &CommandLine, of_tests: [PathBuf; 2]) -> [PathBuf; 2] {
    match line.words() {
        [] => of_tests,
        [a, b] => [a, b].map(PathBuf::from),
        _ => command_line::refuse("expected two files, or none; --help says which"),
    }
}

/// The options of the examples that take steps on one batch.
pub const COMPARED: &[Usage] = &[
    ("--steps N", "the steps (default: 3)"),
    ("--lr RATE", "the learning rate (default: 0.001)"),
    ("--weight-decay RATE", "the weight decay (default: 0.05)"),
    PRECISION,
    ("--out RESULT", "write logits, losses, gradients and weights here"),
];

/// Takes steps on one batch, and writes logits and gradients before the first one, all losses and
/// the weights after the last one.
pub fn take_steps<S: LiveBrand, E: Precision>(
    line: &CommandLine,
    model: &mut TokenTransformer<S, E>,
    batch: &impl HostBatch,
) -> Result<()> {
    let (steps, lr) = (line.value("--steps").unwrap_or(3), line.value("--lr").unwrap_or(1e-3));
    *model.optimizer_mut() =
        AdamW::default().with_lr(lr).with_weight_decay(line.value("--weight-decay").unwrap_or(0.05));
    let mut result = Tensors::default();
    let (logits, classes) = (model.evaluate(batch)?.logits, model.config().num_classes);
    result.insert("logits", &[logits.len() / classes, classes], logits);
    for (name, tensor) in model.gradients(batch)?.tensors {
        result.tensors.insert(format!("grad.{name}"), tensor);
    }
    let start = Instant::now();
    let losses = (0..steps).map(|_| model.step(batch)).collect::<Result<Vec<_>>>()?;
    let mut losses = losses.into_iter().map(|loss| loss.item()).collect::<Result<Vec<_>>>()?;
    let took = start.elapsed();
    losses.push(model.evaluate(batch)?.loss.expect("the batch has labels"));
    println!("{steps} steps on {} in {took:.1?}, losses {losses:?}", model.stream().device().name());
    result.insert("losses", &[losses.len()], losses);
    for (name, tensor) in model.tensors()?.tensors {
        result.tensors.insert(format!("step{steps}.{name}"), tensor);
    }
    line.text("--out").map_or(Ok(()), |out| result.save(out))
}

/// Returns the device of `THALWEG_DEVICE`, or the best one, and prints it.
pub fn device() -> Result<Device> {
    let device = Device::from_env()?.device;
    println!("{device}: {}", device.name());
    note(device);
    Ok(device)
}

/// Says what times mean on the CPU device.
pub fn note(device: Device) {
    if device.kind() == DeviceKind::Cpu {
        println!("(its times are those of this machine's cores, which copies and kernels share: they show no overlap)");
    }
}

/// Returns `": 1.234 x"` on a GPU, and nothing on the CPU device, where the ratio is noise.
pub fn gain(device: Device, serial: Duration, overlapped: Duration) -> String {
    let ratio = serial.as_secs_f64() / overlapped.as_secs_f64();
    sized(device, format!(": {ratio:.3} x"), String::new())
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
pub fn compare(device: Device, serial: (Duration, Tensors), overlapped: (Duration, Tensors), steps: usize) {
    compare_named(device, ("one stream", serial), ("overlapped", overlapped), steps);
}

/// Does the same as [`compare`] for runs with these names.
pub fn compare_named(
    device: Device,
    (a, first): (&str, (Duration, Tensors)),
    (b, second): (&str, (Duration, Tensors)),
    steps: usize,
) {
    let same = first.1.tensors.iter().zip(&second.1.tensors).all(|(a, b)| a == b);
    assert!(same && first.1.tensors.len() == second.1.tensors.len(), "the weights differ from those of `{a}`");
    let rate = |time: Duration| steps as f64 / time.as_secs_f64();
    println!(
        "{a} {:.1} steps/s, {b} {:.1} steps/s{}; the weights are the same, bit for bit",
        rate(first.0),
        rate(second.0),
        gain(device, first.0, second.0)
    );
}
