//! The subcommand `thalweg train`.
//!
//! The tokens of all images are computed once and stay in memory. Then a token transformer
//! (`thalweg_train`) learns from batches of them. After each epoch the images that are kept apart are
//! tested, the best model so far is written, and a checkpoint, from which `--resume` goes on.

mod curves;
pub(crate) mod data;
mod scaling;
pub(crate) mod settings;

use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::json;
use thalweg::simt::bf16;
use thalweg::{Device, LiveBrand, Stream, stream_tags};
use thalweg_train::{AdamW, Config, Schedule, Tensors, TokenTransformer};
use thalweg_vision::Params;

use crate::args::TrainArgs;
use crate::output::{self, say};
use data::{INPUTS, Listing, Packed, Tokens, shuffle, split, tokenise};
use scaling::Scaling;
use settings::{Precision, Settings};

stream_tags!(Train);

/// The keys of a model's metadata: the names of the classes, and how images become tokens, as JSON.
pub(crate) const CLASSES: &str = "thalweg.classes";
pub(crate) const TOKENS: &str = "thalweg.tokens";

/// The images of a batch that is tested.
const TESTED: usize = 64;
/// The steps whose loss is not read yet.
const UNREAD: usize = 4;

/// What an epoch gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Epoch {
    epoch: u32,
    /// The mean loss over the batches, before each one's update.
    loss: f64,
    val_loss: f64,
    val_accuracy: f64,
    images_per_second: f64,
}

impl Epoch {
    /// Whether it is better than another one.
    fn beats(&self, other: &Self) -> bool {
        (self.val_accuracy, -self.val_loss) > (other.val_accuracy, -other.val_loss)
    }
}

/// The images of a run.
struct Set {
    classes: Vec<String>,
    params: Params,
    scaling: Scaling,
    learn: Tokens,
    test: Tokens,
    fingerprint: u64,
}

/// The files of a run.
struct Files<'a> {
    model: &'a Path,
    checkpoint: PathBuf,
    curves: PathBuf,
    json: Option<&'a Path>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &TrainArgs) -> Result<ExitCode, String> {
    let start = Instant::now();
    let files = Files {
        model: &args.out,
        checkpoint: args.out.with_extension("checkpoint.safetensors"),
        curves: args.out.with_extension("curves.svg"),
        json: args.json.as_deref(),
    };
    let saved = match args.resume {
        true => Some(Tensors::load(&files.checkpoint).map_err(|e| format!("--resume: {e}"))?),
        false => None,
    };
    let saved: Option<Settings> = saved.as_ref().map(|file| value(file, "progress.settings")).transpose()?;
    let settings = args.settings(saved.as_ref())?;
    let (device, note) = args.device.open()?;
    if let Some(note) = note.filter(|_| !args.quiet) {
        say(format_args!("thalweg: {note}"));
    }
    output::finish_writing_on_interrupt()?;
    let (set, failed) = read(args, &settings, device)?;
    let show = |line: String| if args.quiet { Ok(()) } else { output::print(&line) };
    show(format!(
        "{} images to learn from, {} to test, {} classes; {} tokens an image at most, in patches of {} pixels; on {device} ({})\n",
        set.learn.len(),
        set.test.len(),
        set.classes.len(),
        set.params.budget,
        set.params.patch,
        device.name()
    ))?;
    let stream = device.stream::<Train>().map_err(|e| e.to_string())?;
    let (history, best) = match settings.precision {
        Precision::F32 => fit::<_, f32>(args, &settings, &stream, &set, &files)?,
        Precision::Bf16 => fit::<_, bf16>(args, &settings, &stream, &set, &files)?,
    };
    let summary = json!({
        "done": true,
        "val_accuracy": best.val_accuracy,
        "val_loss": best.val_loss,
        "loss": best.loss,
        "best_epoch": best.epoch,
        "epochs": history.len(),
        "images": set.learn.len(),
        "val_images": set.test.len(),
        "classes": set.classes,
        "failed": failed,
        "model": files.model.to_string_lossy(),
        "device": device.to_string(),
        "settings": settings,
        "seconds": start.elapsed().as_secs_f64(),
    });
    write_report(&files, &history, Some(&summary))?;
    show(format!(
        "best: epoch {}, {:.2} % of {} images right, loss {:.4}; written to {}\n",
        best.epoch,
        100.0 * best.val_accuracy,
        set.test.len(),
        best.val_loss,
        files.model.display()
    ))?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads a value of a file's metadata.
pub(crate) fn value<T: for<'de> Deserialize<'de>>(file: &Tensors, key: &str) -> Result<T, String> {
    let missing =
        || file.wrong(format!("the metadata has no `{key}`; did `thalweg train` write this file?")).to_string();
    let text = file.metadata.get(key).ok_or_else(missing)?;
    serde_json::from_str(text).map_err(|e| file.wrong(format!("`{key}` in the metadata: {e}")).to_string())
}

/// Makes a bar on a terminal, unless the run is quiet.
fn bar(args: &TrainArgs, len: usize, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(len as u64), ProgressDrawTarget::hidden());
    if std::io::stderr().is_terminal() && !args.quiet {
        bar.set_draw_target(ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
    }
    bar
}

/// Reads the images and makes their tokens. Also returns how many could not be read.
fn read(args: &TrainArgs, settings: &Settings, device: Device) -> Result<(Set, usize), String> {
    let listing = Listing::read(&args.data)?;
    let classes = listing.classes();
    if classes.len() < 2 {
        return Err(format!(
            "{}: there is one class, {:?}; a model needs two to choose from",
            args.data.display(),
            classes[0]
        ));
    }
    let labels = listing.labels(&classes)?;
    let apart = match &args.val {
        Some(folder) => {
            let listing = Listing::read(folder)?;
            let labels = listing.labels(&classes)?;
            Some((listing, labels))
        }
        None => None,
    };
    let count = listing.paths.len() + apart.as_ref().map_or(0, |(listing, _)| listing.paths.len());
    let bar = bar(args, count, "{bar:40} {pos}/{len} images to tokens  {elapsed}");
    let mut failed = 0;
    let mut fail = |path: &Path, error: &str| {
        failed += 1;
        bar.suspend(|| say(format_args!("thalweg: {}: {error}; left out", path.display())));
    };
    let (all, params) = tokenise(
        device,
        &listing,
        &labels,
        args.decode.place,
        |sizes| settings.params(sizes),
        &bar,
        |i, e| {
            fail(&listing.paths[i], e);
        },
    )?;
    let part = |images: &[usize]| {
        let (mut part, mut packed) = (Tokens::default(), Packed::default());
        all.pack(images, &mut packed);
        part.take(&packed);
        part
    };
    let (mut learn, mut test) = match &apart {
        Some((listing, labels)) => {
            let chosen = params.clone();
            let (test, _) = tokenise(
                device,
                listing,
                labels,
                args.decode.place,
                |_| Ok(chosen),
                &bar,
                |i, e| {
                    fail(&listing.paths[i], e);
                },
            )?;
            (all, test)
        }
        None => {
            let [learn, test] = split(&all.labels, settings.val_share, settings.seed);
            (part(&learn), part(&test))
        }
    };
    bar.finish_and_clear();
    if learn.len() == 0 || test.len() == 0 {
        return Err(format!(
            "{}: too few images: {} to learn from, {} to test",
            args.data.display(),
            learn.len(),
            test.len()
        ));
    }
    let fingerprint = learn.fingerprint() ^ test.fingerprint().rotate_left(1);
    let scaling = Scaling::of(&learn);
    scaling.apply(&mut learn);
    scaling.apply(&mut test);
    Ok((Set { classes, params, scaling, learn, test, fingerprint }, failed))
}

/// Trains a model, and returns all epochs and the best one.
fn fit<S: LiveBrand, E: thalweg_train::Precision>(
    args: &TrainArgs,
    settings: &Settings,
    stream: &Stream<S>,
    set: &Set,
    files: &Files<'_>,
) -> Result<(Vec<Epoch>, Epoch), String> {
    let text = |e: thalweg_train::Error| e.to_string();
    let &Settings { epochs, batch, width, heads, depth, seed, .. } = settings;
    let config = Config { inputs: INPUTS, width, heads, depth, classes: set.classes.len(), ..Config::default() };
    let (mut model, mut history) = match args.resume {
        false => (TokenTransformer::<S, E>::new(stream, config, seed).map_err(text)?, Vec::new()),
        true => {
            let (model, progress) = TokenTransformer::<S, E>::restore(stream, &files.checkpoint).map_err(text)?;
            let of = |key: &str| progress.get(key).map(String::as_str).unwrap_or_default();
            if of("data") != set.fingerprint.to_string() {
                return Err(format!(
                    "--resume: the images are not those of {}, or tokens are computed differently",
                    files.checkpoint.display()
                ));
            }
            let history: Vec<Epoch> = serde_json::from_str(of("history"))
                .map_err(|e| format!("{}: `progress.history` in the metadata: {e}", files.checkpoint.display()))?;
            (model, history)
        }
    };
    let steps_of_epoch = set.learn.len().div_ceil(batch) as u64;
    let steps = steps_of_epoch * u64::from(epochs);
    *model.optimiser_mut() = AdamW {
        rate: settings.lr,
        schedule: Schedule::Cosine { warm_up: (steps / 20).clamp(1, steps_of_epoch), steps, end: 0.0 },
        weight_decay: settings.weight_decay,
        clip: Some(settings.clip),
        ..AdamW::default()
    };
    let mut best = history.iter().cloned().reduce(|best: Epoch, next| if next.beats(&best) { next } else { best });
    let mut packed = Packed::default();
    for epoch in history.len() as u32 + 1..=epochs {
        if let Some(best) = &best
            && settings.patience > 0
            && epoch - best.epoch > settings.patience
        {
            if !args.quiet {
                output::print(&format!("no better model for {} epochs: stopped\n", settings.patience))?;
            }
            break;
        }
        let begin = Instant::now();
        let bar = bar(args, set.learn.len(), "{bar:40} {pos}/{len} images  {elapsed}  {wide_msg}");
        let mut order: Vec<usize> = (0..set.learn.len()).collect();
        shuffle(&mut order, seed, epoch);
        let (mut sum, mut seen, mut unread) = (0.0, 0, VecDeque::with_capacity(UNREAD + 1));
        for images in order.chunks(batch) {
            set.learn.pack(images, &mut packed);
            unread.push_back((model.step(&packed.batch()).map_err(text)?, images.len()));
            while unread.len() > UNREAD {
                settle(&mut unread, &mut sum, &mut seen)?;
            }
            bar.inc(images.len() as u64);
            bar.set_message(format!("epoch {epoch}/{epochs}  loss {:.4}", sum / f64::from(seen.max(1))));
        }
        while !unread.is_empty() {
            settle(&mut unread, &mut sum, &mut seen)?;
        }
        let loss = sum / f64::from(seen);
        if !loss.is_finite() {
            return Err(format!(
                "epoch {epoch}: the loss is {loss}; try a smaller --lr. The last checkpoint is from before this epoch"
            ));
        }
        let images_per_second = f64::from(seen) / begin.elapsed().max(Duration::from_nanos(1)).as_secs_f64();
        let (val_loss, val_accuracy) = test(&mut model, &set.test, &mut packed)?;
        bar.finish_and_clear();
        let now = Epoch { epoch, loss, val_loss, val_accuracy, images_per_second };
        if best.as_ref().is_none_or(|best| now.beats(best)) {
            let mut tensors = model.tensors().map_err(text)?;
            set.scaling.fold(&mut tensors);
            tensors.metadata.insert("format".into(), "thalweg-train".into());
            tensors.metadata.insert(CLASSES.into(), json!(set.classes).to_string());
            tensors.metadata.insert(TOKENS.into(), json!(set.params).to_string());
            output::whole(|| tensors.save(files.model)).map_err(text)?;
            best = Some(now.clone());
        }
        if !args.quiet {
            output::print(&format!(
                "epoch {epoch}/{epochs}  loss {loss:.4}  val loss {val_loss:.4}  val accuracy {:.2} %  {images_per_second:.0} images/s\n",
                100.0 * val_accuracy
            ))?;
        }
        history.push(now);
        let progress = BTreeMap::from([
            ("settings".to_owned(), json!(settings).to_string()),
            ("history".to_owned(), json!(history).to_string()),
            ("data".to_owned(), set.fingerprint.to_string()),
        ]);
        output::whole(|| model.checkpoint(&files.checkpoint, &progress)).map_err(text)?;
        write_report(files, &history, None)?;
    }
    let best = best.ok_or("the run has no epochs")?;
    Ok((history, best))
}

/// Waits for the oldest loss that was not read yet, and adds it.
fn settle(unread: &mut VecDeque<(thalweg_train::Loss, usize)>, sum: &mut f64, seen: &mut u32) -> Result<(), String> {
    if let Some((loss, images)) = unread.pop_front() {
        *sum += f64::from(loss.get().map_err(|e| e.to_string())?) * images as f64;
        *seen += images as u32;
    }
    Ok(())
}

/// Returns the mean loss over images, and which part of them the model gets right.
fn test<S: LiveBrand, E: thalweg_train::Precision>(
    model: &mut TokenTransformer<S, E>,
    images: &Tokens,
    packed: &mut Packed,
) -> Result<(f64, f64), String> {
    let (mut loss, mut right) = (0.0, 0);
    let places: Vec<usize> = (0..images.len()).collect();
    for places in places.chunks(TESTED) {
        images.pack(places, packed);
        let batch = packed.batch();
        let found = model.evaluate(&batch).map_err(|e| e.to_string())?;
        loss += f64::from(found.loss.unwrap_or(f32::NAN)) * places.len() as f64;
        right += found.classes.iter().zip(batch.labels).filter(|(a, b)| a == b).count();
    }
    Ok((loss / images.len() as f64, right as f64 / images.len() as f64))
}

/// Writes the curves and the report: an object for each epoch, and one for the whole run at the end.
fn write_report(files: &Files<'_>, history: &[Epoch], summary: Option<&serde_json::Value>) -> Result<(), String> {
    output::write_bytes(&files.curves, curves::svg(history).as_bytes())?;
    if let Some(path) = files.json {
        let lines = history.iter().map(|epoch| json!(epoch)).chain(summary.cloned());
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        output::write_bytes(path, text.as_bytes())?;
    }
    Ok(())
}
