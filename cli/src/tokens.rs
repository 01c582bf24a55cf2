//! `thalweg tokens`.
//!
//! A background thread decodes the next chunk of photographs while this one runs the pipeline on the current chunk and
//! writes its results, so at most two chunks are in memory.

use std::fs;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value};
use thalweg::vision::{Image, Params, Pipeline, Stages, TokenSet};
use thalweg::{Device, DeviceKind, Error};

use crate::args::TokensArgs;
use crate::inputs::{Input, gather};
use crate::report::{Done, FORMAT_VERSION, Failure, Report, parameters};
use crate::{decode, heatmap, output};

/// A chunk is closed once it holds so many images or bytes.
const CHUNK_IMAGES: usize = 16;
const CHUNK_BYTES: usize = 256 << 20;

/// Decoded photographs, with their places in the list of inputs.
struct Chunk {
    images: Vec<Image>,
    inputs: Vec<usize>,
    failures: Vec<(usize, String)>,
    decoding: Duration,
}

/// Runs the subcommand. An error is one that stops the run; failures of single images are listed and give exit code 1.
pub(crate) fn run(args: &TokensArgs) -> Result<ExitCode, String> {
    let start = Instant::now();
    let (inputs, failures) = gather(args);
    let mut runner = Runner::open(args)?;
    let mut report = Report {
        device: runner.device,
        note: runner.note.clone(),
        done: Vec::new(),
        failures,
        stages: Vec::new(),
        wall: Duration::ZERO,
    };
    if !inputs.is_empty() {
        process(args, &inputs, &mut runner, &mut report)?;
    }
    report.wall = start.elapsed();

    let printed = if args.json {
        output::print(&format!("{:#}\n", report.json(args)))
    } else if report.done.is_empty() {
        Ok(())
    } else {
        output::print(&report.table(args))
    };
    if !report.failures.is_empty() {
        let total = report.done.len() + report.failures.len();
        eprintln!("thalweg: {} of {total} inputs failed:", report.failures.len());
        for Failure { path, error } in &report.failures {
            eprintln!("  {}: {error}", path.display());
        }
    }
    printed?;
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn process(args: &TokensArgs, inputs: &[Input], runner: &mut Runner, report: &mut Report) -> Result<(), String> {
    fs::create_dir_all(&args.out).map_err(|e| format!("--out {}: cannot make this folder: {e}", args.out.display()))?;
    output::finish_writing_on_interrupt()?;

    let bar = ProgressBar::with_draw_target(Some(inputs.len() as u64), ProgressDrawTarget::hidden());
    if std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} images  {elapsed}  {wide_msg}") {
            bar.set_style(style);
        }
    }
    let (mut decoding, mut writing) = (Duration::ZERO, Duration::ZERO);
    let mut fail = |index: usize, error| report.failures.push(Failure { path: inputs[index].path.clone(), error });
    thread::scope(|scope| {
        let (send, receive) = sync_channel(0);
        scope.spawn(move || read_chunks(inputs, args.textures, &send));
        for chunk in receive {
            decoding += chunk.decoding;
            bar.inc(chunk.failures.len() as u64);
            chunk.failures.into_iter().for_each(|(index, error)| fail(index, error));
            let sets = runner.pipeline.run(&chunk.images);
            for ((index, image), set) in chunk.inputs.into_iter().zip(&chunk.images).zip(sets) {
                let input = &inputs[index];
                bar.set_message(input.path.display().to_string());
                let set = runner.rescue(image, set, |error| {
                    bar.suspend(|| eprintln!("thalweg: {}: {error}; done on the CPU device", input.path.display()));
                });
                let begin = Instant::now();
                match set.map_err(|e| e.to_string()).and_then(|(device, set)| write(args, device, input, image, &set)) {
                    Ok(done) => report.done.push(done),
                    Err(error) => fail(index, error),
                }
                writing += begin.elapsed();
                bar.inc(1);
            }
        }
    });
    bar.finish_and_clear();
    report.stages = vec![("decode", decoding)];
    report.stages.extend(runner.stages().named());
    report.stages.push(("write", writing));
    Ok(())
}

/// The pipeline, and where `auto` chose a GPU, another on the CPU device, made when an image first does not fit.
struct Runner {
    device: Device,
    /// Why `auto` is the CPU device.
    note: Option<String>,
    pipeline: Pipeline,
    params: Params,
    textures: bool,
    spare: Option<(Device, Pipeline)>,
    may_use_spare: bool,
}

impl Runner {
    fn open(args: &TokensArgs) -> Result<Self, String> {
        let (mut device, mut note) = Device::from_spec(&args.device)
            .map_err(|e| format!("device {} (from --device or THALWEG_DEVICE): {e}", args.device))?;
        let mut may_use_spare = args.device == "auto" && device.kind() != DeviceKind::Cpu;
        let start = |device| Pipeline::new(device, args.params());
        let mut pipeline = start(device);
        if may_use_spare && let Err(error) = &pipeline {
            note = Some(format!("running on the CPU device: {device} cannot be used: {error}"));
            may_use_spare = false;
            device = Device::cpu().map_err(|e| e.to_string())?;
            pipeline = start(device);
        }
        if let Some(note) = &note {
            eprintln!("thalweg: {note}");
        }
        let pipeline = pipeline.map_err(|e| format!("cannot start on {device}: {e}"))?.with_textures(args.textures);
        Ok(Self { device, note, pipeline, params: args.params(), textures: args.textures, spare: None, may_use_spare })
    }

    /// Passes a result on with its device; where memory did not suffice and the device was ours to choose, tells `note`
    /// why and runs the image on the CPU device.
    fn rescue(
        &mut self,
        image: &Image,
        set: thalweg::Result<TokenSet>,
        note: impl FnOnce(&Error),
    ) -> thalweg::Result<(Device, TokenSet)> {
        match set {
            Err(error @ Error::OutOfMemory { .. }) if self.may_use_spare => {
                note(&error);
                let (cpu, pipeline) = match &mut self.spare {
                    Some(spare) => spare,
                    none => {
                        let cpu = Device::cpu()?;
                        none.insert((cpu, Pipeline::new(cpu, self.params.clone())?.with_textures(self.textures)))
                    }
                };
                let set = pipeline.run(std::slice::from_ref(image)).pop().unwrap_or(Err(error))?;
                Ok((*cpu, set))
            }
            set => set.map(|set| (self.device, set)),
        }
    }

    /// Time per stage, of both pipelines together.
    fn stages(&self) -> Stages {
        self.spare.iter().fold(self.pipeline.stages(), |sum, (_, spare)| sum + spare.stages())
    }
}

/// Decodes everything in order, a chunk at a time; waits while the last one has not been taken.
fn read_chunks(inputs: &[Input], textures: bool, send: &SyncSender<Chunk>) {
    let bytes_per_pixel = if textures { 3 + 13 * 4 } else { 3 };
    let mut rest = inputs.iter().enumerate().peekable();
    while rest.peek().is_some() {
        let begin = Instant::now();
        let mut chunk =
            Chunk { images: Vec::new(), inputs: Vec::new(), failures: Vec::new(), decoding: Duration::ZERO };
        let mut bytes = 0;
        while chunk.images.len() < CHUNK_IMAGES
            && bytes < CHUNK_BYTES
            && let Some((index, input)) = rest.next()
        {
            match decode::read(&input.path) {
                Ok(image) => {
                    bytes += image.rgb().len() / 3 * bytes_per_pixel;
                    chunk.images.push(image);
                    chunk.inputs.push(index);
                }
                Err(error) => chunk.failures.push((index, error)),
            }
        }
        chunk.decoding = begin.elapsed();
        if send.send(chunk).is_err() {
            return; // the other side is gone
        }
    }
}

fn write(args: &TokensArgs, device: Device, input: &Input, image: &Image, set: &TokenSet) -> Result<Done, String> {
    let params = &args.params();
    let (output, heatmap) = (input.tokens(args), input.heatmap(args));
    let picture =
        heatmap.as_deref().map(|path| Ok::<_, String>((path, heatmap::png(image, set, &params.sides)?))).transpose()?;
    let picture = picture.as_ref().map(|(path, png)| (*path, png.as_slice()));
    output::write((&output, set, metadata(params, device, &input.path, set)), picture)?;
    Ok(Done {
        device,
        source: input.path.clone(),
        output,
        heatmap,
        height: set.height,
        width: set.width,
        grid: set.grid,
        selected: set.patch_id.len(),
        tokens: set.tokens.len() / 13,
    })
}

/// The file's metadata; the format allows only strings.
fn metadata(params: &Params, device: Device, source: &Path, set: &TokenSet) -> Map<String, Value> {
    let name = source.file_name().unwrap_or(source.as_os_str()).to_string_lossy().into_owned();
    let about = [
        ("format", "thalweg-tokens".to_owned()),
        ("format_version", FORMAT_VERSION.to_owned()),
        ("thalweg", env!("CARGO_PKG_VERSION").to_owned()),
        ("device", format!("{device} ({})", device.name())),
        ("source", name),
        ("height", set.height.to_string()),
        ("width", set.width.to_string()),
    ];
    about.into_iter().chain(parameters(params)).map(|(key, value)| (key.to_owned(), Value::String(value))).collect()
}
