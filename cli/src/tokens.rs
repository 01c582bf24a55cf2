//! The subcommand `thalweg tokens`.
//!
//! The threads of a loader decode the next photographs while this thread runs the pipeline on a
//! chunk of photographs and writes the results.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use thalweg::{Device, DeviceKind, Error, Returned, Size};
use thalweg_vision::{Head, Image, Query, TokenSet};

use crate::args::{Profile, TokensArgs};
use crate::engine::{self, Engine, Outcome};
use crate::inputs::{Gathered, Input, gather};
use crate::output::{self, say};
use crate::photos::{Photos, Pixels, download};
use crate::report::{Decoded, Done, FORMAT_VERSION, Failure, Report, parameters, say_failures, summary};

/// Runs the subcommand. An error stops the run. Failures of single images are listed, and give exit
/// code 1.
pub(crate) fn run(args: &TokensArgs) -> Result<ExitCode, String> {
    let start = Instant::now();
    let Gathered { inputs, failures, skipped } = gather(args);
    if let Some(line) = summary(&skipped)
        && !args.quiet
    {
        say(format_args!("thalweg: {line}"));
    }
    let query = engine::query(args)?;
    let mut runner = Runner::open(args, query.as_ref())?;
    let mut report = Report {
        device: runner.device,
        note: runner.note.clone(),
        done: Vec::new(),
        failures,
        skipped,
        stages: Vec::new(),
        decoded: Decoded::default(),
        wall: Duration::ZERO,
    };
    if !inputs.is_empty() {
        process(args, &inputs, &mut runner, &mut report)?;
    }
    report.wall = start.elapsed();

    let printed = if args.json {
        output::print(&format!("{:#}\n", report.json(args)))
    } else if report.done.is_empty() || args.quiet {
        Ok(())
    } else {
        output::print(&report.table(args))
    };
    let code = say_failures(&report.failures, report.done.len() + report.failures.len(), "input");
    printed?;
    Ok(code)
}

fn process(args: &TokensArgs, inputs: &[Input], runner: &mut Runner<'_>, report: &mut Report) -> Result<(), String> {
    fs::create_dir_all(&args.out).map_err(|e| format!("--out {}: cannot make this folder: {e}", args.out.display()))?;
    output::finish_writing_on_interrupt()?;

    let bar = output::bar(inputs.len(), output::IMAGES, args.quiet);
    let mut photos = Photos::open(runner.device, inputs.iter().map(|input| &input.path), &args.decode)?;
    let mut writing = Duration::ZERO;
    let mut fail =
        |index: usize, error| report.failures.push(Failure { path: inputs[index].source().to_path_buf(), error });
    while let Some(chunk) = photos.next_chunk(if args.textures { 3 + 13 * 4 } else { 3 })? {
        bar.inc(chunk.failures.len() as u64);
        chunk.failures.into_iter().for_each(|(index, error)| fail(index, error));
        let results = runner.run(chunk.pixels).map_err(|e| e.to_string())?;
        for (index, (photo, outcome)) in chunk.inputs.into_iter().zip(results) {
            let input = &inputs[index];
            bar.set_message(input.source().display().to_string());
            let outcome = runner.rescue(&photo, outcome, |error| {
                if !args.quiet {
                    let name = input.source().display();
                    bar.suspend(|| say(format_args!("thalweg: {name}: {error}; done on the CPU device")));
                }
            });
            let begin = Instant::now();
            let outcome = outcome.map_err(|e| e.to_string());
            match outcome.and_then(|(device, outcome)| write(args, device, input, &photo, &outcome)) {
                Ok(done) => report.done.push(done),
                Err(error) => fail(index, error),
            }
            writing += begin.elapsed();
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let decoded = photos.decoded();
    report.stages = vec![("decode", decoded.time)];
    report.decoded = decoded;
    report.stages.extend(runner.stages());
    report.stages.push(("write", writing));
    Ok(())
}

/// A photograph whose result is there: its height and width, and its pixels if they are on the
/// host.
struct Photo {
    size: Size,
    image: Option<Image>,
}

/// The engine. If `auto` chose a GPU, there may be a second engine on the CPU device. It is created
/// when the first image does not fit into the GPU's memory.
struct Runner<'a> {
    args: &'a TokensArgs,
    query: Option<&'a (Head, Query)>,
    device: Device,
    /// The reason why `auto` chose the CPU device.
    note: Option<String>,
    engine: Engine,
    spare: Option<(Device, Engine)>,
    may_use_spare: bool,
}

impl<'a> Runner<'a> {
    fn open(args: &'a TokensArgs, query: Option<&'a (Head, Query)>) -> Result<Self, String> {
        let (mut device, mut note) = args.device.open()?;
        let mut may_use_spare = args.device.name == "auto" && device.kind() != DeviceKind::Cpu;
        let start = |device| Engine::new(device, args, query);
        let mut engine = start(device);
        if may_use_spare && let Err(error) = &engine {
            note = Some(format!("running on the CPU device: {device} cannot be used: {error}"));
            may_use_spare = false;
            device = Device::cpu().map_err(|e| e.to_string())?;
            engine = start(device);
        }
        if let Some(note) = &note
            && !args.quiet
        {
            say(format_args!("thalweg: {note}"));
        }
        let engine = engine.map_err(|e| format!("cannot start on {device}: {e}"))?;
        Ok(Self { args, query, device, note, engine, spare: None, may_use_spare })
    }

    /// Computes the results of photographs. Where their pixels are on the device, they stay there,
    /// if no heatmap and no profile needs them on the host. Those of a photograph that fails are
    /// brought to the host.
    fn run(&mut self, pixels: Pixels) -> thalweg::Result<Vec<(Photo, thalweg::Result<Outcome>)>> {
        match (pixels, &self.engine) {
            (Pixels::Device(images), Engine::Pipeline(pipeline)) if !self.args.heatmap => {
                let sizes: Vec<_> = images.iter().map(|(size, _)| *size).collect();
                let finish = |(size, set): (Size, Result<TokenSet, Returned<_>>)| match set {
                    Ok(set) => (Photo { size, image: None }, Ok(Outcome::Tokens(Box::new(set)))),
                    Err(Returned { error, value }) => (Photo { size, image: download(size, value).ok() }, Err(error)),
                };
                Ok(sizes.into_iter().zip(pipeline.run_pixels(images)).map(finish).collect())
            }
            (pixels, _) => {
                let images = pixels.into_images()?;
                let outcomes = self.engine.run(&images);
                let photos = images.into_iter();
                let photos = photos.map(|i| Photo { size: i.size(), image: Some(i) });
                Ok(photos.zip(outcomes).collect())
            }
        }
    }

    /// Passes a result on with its device. If memory did not suffice and `auto` chose the device,
    /// tells `note` why and runs the image on the CPU device.
    fn rescue(
        &mut self,
        photo: &Photo,
        outcome: thalweg::Result<Outcome>,
        note: impl FnOnce(&Error),
    ) -> thalweg_vision::Result<(Device, Outcome)> {
        match (outcome, &photo.image) {
            (Err(error @ Error::OutOfMemory { .. }), Some(image)) if self.may_use_spare => {
                note(&error);
                let (cpu, engine) = match &mut self.spare {
                    Some(spare) => spare,
                    none => {
                        let cpu = Device::cpu()?;
                        none.insert((cpu, Engine::new(cpu, self.args, self.query)?))
                    }
                };
                let outcome = engine.run(std::slice::from_ref(image)).pop().unwrap_or(Err(error))?;
                Ok((*cpu, outcome))
            }
            (outcome, _) => Ok((self.device, outcome?)),
        }
    }

    /// Returns the time of each stage, summed over both engines.
    fn stages(&self) -> Vec<(&'static str, Duration)> {
        let mut stages = self.engine.stages();
        if let Some((_, spare)) = &self.spare {
            for ((_, time), (_, more)) in stages.iter_mut().zip(spare.stages()) {
                *time += more;
            }
        }
        stages
    }
}

fn write(args: &TokensArgs, device: Device, input: &Input, photo: &Photo, outcome: &Outcome) -> Result<Done, String> {
    let (output, mut heatmap) = (input.tokens(args), None);
    if let Some(folder) = output.parent() {
        fs::create_dir_all(folder).map_err(|e| format!("cannot make the folder {}: {e}", folder.display()))?;
    }
    let mut picture = None;
    if let (Outcome::Tokens(set), Some(path), Some(image)) = (outcome, input.heatmap(args), &photo.image) {
        picture = Some(set.heatmap_png(image, &args.params()).map_err(|e| e.to_string())?);
        heatmap = Some(path);
    }
    let picture = heatmap.as_deref().zip(picture.as_deref());
    output::write(
        (
            &output,
            &outcome.tensors(photo.size, args.precision),
            &metadata(args, device, input.source(), photo.size, outcome),
        ),
        picture,
    )?;
    let (grid, selected, tokens) = outcome.counts();
    Ok(Done {
        device,
        source: input.source().to_path_buf(),
        name: input.name.clone(),
        output,
        heatmap,
        height: photo.size.height,
        width: photo.size.width,
        grid,
        selected,
        tokens,
    })
}

/// Returns the metadata of an output file. The format allows only strings.
fn metadata(
    args: &TokensArgs,
    device: Device,
    source: &Path,
    size: Size,
    outcome: &Outcome,
) -> BTreeMap<String, String> {
    let name = source.file_name().unwrap_or(source.as_os_str()).to_string_lossy().into_owned();
    let format = match args.profile {
        Some(Profile::ArrCoc01) => "thalweg-arr-coc-0-1",
        None => "thalweg-tokens",
    };
    let about = [
        ("format", format.to_owned()),
        ("format_version", FORMAT_VERSION.to_owned()),
        ("thalweg", env!("CARGO_PKG_VERSION").to_owned()),
        ("device", format!("{device} ({})", device.name())),
        ("source", name),
        ("height", size.height.to_string()),
        ("width", size.width.to_string()),
    ];
    let mix = outcome.mix().map(|[a, b, c]| ("mix", format!("{a},{b},{c}")));
    let all = about.into_iter().chain(parameters(args)).chain(mix);
    all.map(|(key, value)| (key.to_owned(), value)).collect()
}
