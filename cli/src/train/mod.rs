//! The subcommand `thalweg train`.
//!
//! The tokens of all images are computed once, as the photographs come from the loader, and are
//! kept in a file (`data`). Then a token transformer (`thalweg_train`) learns from batches of them.
//! After each epoch the images that are kept apart are tested, the best model so far is written,
//! and a checkpoint, from which `--resume` goes on; `--checkpoint-steps` writes more of them.
//! From a file of questions (`texts`), a vision-language model learns to write their answers, whose
//! ids are bytes or those of a `tokenizer.json` (`tokenizer`).
//! `thalweg_train::overlap::texture_prefetch`, which makes the tokens of the next batch beside
//! training, is for photographs that are seen once or change: here it would make the same tokens
//! again in each epoch.
//!
//! Several ranks (`ranks`) divide the work: each makes the tokens of a part of the images, learns
//! from a part of each batch (`learner`) and tests a part. The model is that of one rank, up to the
//! rounding of sums, so a run may go on with another number of ranks.

pub(crate) mod args;
mod curves;
pub(crate) mod data;
mod learner;
mod ranks;
mod scaling;
pub(crate) mod settings;
pub(crate) mod texts;
pub(crate) mod tokenizer;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::json;
use thalweg::simt::bf16;
use thalweg::{Device, LiveBrand, Stream, Timeline, stream_tags};
use thalweg_collective::{World, WorldOptions};
use thalweg_train::{AdamW, Tensors, TokenTransformer, TokenTransformerConfig, VisionLanguageConfig};
use thalweg_vision::TokenParams;

use crate::launch::{self, Output};
use crate::output::{self, say};
use crate::report::{self, Decoded};
use args::TrainArgs;
use data::{INPUTS, Listing, Packed, Tokens, shuffle, split, tokenize};
use learner::Learner;
use ranks::{Problem, Team};
use scaling::Scaling;
use settings::{Precision, Settings};
use tokenizer::{BYTES, TOKENIZER, Tokenizer};

stream_tags!(Train, Reduce);

/// The keys of a model's metadata: the names of the classes, and how images become tokens, as JSON.
pub(crate) const CLASSES: &str = "thalweg.classes";
pub(crate) const TOKENS: &str = "thalweg.tokens";

/// The images of a batch that is tested.
const TESTED: usize = 64;
/// The steps that `--timeline` draws.
const DRAWN: u64 = 10;
/// The steps whose loss is not read yet.
const UNREAD: usize = 4;

/// The results of an epoch.
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

/// The images of a run. With questions there are no classes, and an image for each question.
struct Set {
    classes: Vec<String>,
    params: TokenParams,
    scaling: Scaling,
    learn: Tokens,
    test: Tokens,
    fingerprint: u64,
    /// The number of ids of questions and answers.
    ids: usize,
}

impl Set {
    fn asks(&self) -> bool {
        self.classes.is_empty()
    }

    /// Returns a noun for what is learned.
    fn noun(&self) -> &'static str {
        if self.asks() { "questions" } else { "images" }
    }

    /// Returns the model that answers. Encoder and decoder have the same shape.
    fn answering(&self, settings: &Settings) -> VisionLanguageConfig {
        let &Settings { width, heads, depth, .. } = settings;
        let longest = [&self.learn, &self.test].into_iter().flat_map(|set| &set.questions).map(|q| q.ids.len()).max();
        VisionLanguageConfig::default()
            .with_input_dim(INPUTS)
            .with_embed_dim(width)
            .with_num_heads(heads)
            .with_depth(depth)
            .with_text_embed_dim(width)
            .with_text_num_heads(heads)
            .with_text_depth(depth)
            .with_vocab_size(self.ids)
            .with_max_tokens(longest.unwrap_or(0).max(64))
    }
}

/// The report on the files of the images, of one rank or of all.
#[derive(Default, Serialize, Deserialize)]
struct Inputs {
    failed: Vec<serde_json::Value>,
    jpeg: Decoded,
}

/// The initial state of a run: that of rank 0 counts for all ranks.
#[derive(Serialize, Deserialize)]
struct Begin {
    settings: Settings,
    /// The JSON of the tokenizer of questions.
    tokenizer: String,
    /// The epochs so far, and the fingerprint of their images, if the run goes on.
    history: Vec<Epoch>,
    fingerprint: Option<u64>,
    /// The part of the next epoch that is done.
    within: Within,
}

/// The part of an epoch that a run has behind it.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Within {
    steps: u64,
    images: u32,
    /// The bits of the sum of the losses of these images, which JSON would round.
    loss: u64,
}

/// The files of a run. Rank 0 writes them.
struct Files<'a> {
    model: &'a Path,
    checkpoint: PathBuf,
    curves: PathBuf,
    json: Option<&'a Path>,
}

/// A run as a rank sees it.
struct Run<'a> {
    args: &'a TrainArgs,
    files: Files<'a>,
    begin: Begin,
    /// Rank 0 prints and writes.
    leads: bool,
}

impl Run<'_> {
    fn show(&self, line: impl FnOnce() -> String) -> Result<(), String> {
        if self.leads && !self.args.quiet { output::print(&line()) } else { Ok(()) }
    }

    /// Makes a bar, which only rank 0 draws.
    fn bar(&self, len: usize, template: &str) -> ProgressBar {
        output::bar(len, template, !self.leads || self.args.quiet)
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &TrainArgs) -> Result<ExitCode, String> {
    let place = ranks::place(args)?;
    if let (None, Some(gpus @ 2..)) = (&place, args.gpus) {
        let program = std::env::current_exe().map_err(|e| format!("--gpus: where this program is: {e}"))?;
        let program: Vec<_> = [program.into()].into_iter().chain(std::env::args_os().skip(1)).collect();
        return launch::ranks(gpus, &program, Output::AsItIs);
    }
    let (device, note) = ranks::device(args, place.as_ref())?;
    if let Some(note) = note.as_ref().filter(|_| !args.quiet) {
        say(format_args!("thalweg: {note}"));
    }
    output::finish_writing_on_interrupt()?;
    let join = || {
        let world = match &place {
            None => World::single(),
            Some(place) => World::connect(place, WorldOptions::from_env()?)?,
        };
        let comm = world.comm(device.stream::<Reduce>()?)?;
        learn(args, &device.stream::<Train>()?, Team { comm }, note.as_deref())
    };
    join().map_err(|problem: Problem| problem.0)
}

/// Runs a rank.
fn learn<S: LiveBrand, C: LiveBrand>(
    args: &TrainArgs,
    stream: &Stream<S>,
    mut team: Team<C>,
    note: Option<&str>,
) -> Result<ExitCode, Problem> {
    let (start, device) = (Instant::now(), stream.device());
    let files = Files {
        model: &args.out,
        checkpoint: args.out.with_extension("checkpoint.safetensors"),
        curves: args.out.with_extension("curves.svg"),
        json: args.json.as_deref(),
    };
    let begin = team.first(|| Ok(json!(begin(args, &files)?).to_string().into_bytes()))?;
    let begin = serde_json::from_slice(&begin).map_err(|e| format!("what rank 0 has sent: {e}"))?;
    let (leads, size) = (team.rank() == 0, team.size());
    let run = Run { args, files, begin, leads };
    let (set, inputs) = read(&run, &mut team, device)?;
    let to_tokens = start.elapsed();
    run.show(|| {
        let ranks = if size == 1 { String::new() } else { format!(", {size} ranks") };
        let classes = if set.asks() { String::new() } else { format!(", {} classes", set.classes.len()) };
        format!(
            "{} {} to learn from, {} to test{classes}; {} tokens an image at most, in patches of {} pixels; on {device} ({}){ranks}\n",
            set.learn.len(),
            set.noun(),
            set.test.len(),
            set.params.budget,
            set.params.patch,
            device.name()
        )
    })?;
    let (history, best) = match run.begin.settings.precision {
        Precision::F32 => fit::<_, _, f32>(&run, stream, team, &set)?,
        Precision::Bf16 => fit::<_, _, bf16>(&run, stream, team, &set)?,
    };
    if leads {
        // Fields that `tokens --json` has, too, have the same names and forms here.
        let summary = json!({
            "thalweg": env!("CARGO_PKG_VERSION"),
            "device": report::device(device, note),
            "parameters": run.begin.settings,
            "output": run.files.model.to_string_lossy(),
            "failed": inputs.failed,
            "jpeg": inputs.jpeg,
            "seconds": { "tokens": to_tokens.as_secs_f64(), "training": (start.elapsed() - to_tokens).as_secs_f64() },
            "wall_seconds": start.elapsed().as_secs_f64(),
            "done": true,
            "val_accuracy": best.val_accuracy,
            "val_loss": best.val_loss,
            "loss": best.loss,
            "best_epoch": best.epoch,
            "epochs": history.len(),
            "train_images": set.learn.len(),
            "val_images": set.test.len(),
            "classes": set.classes,
            "ranks": size,
        });
        write_report(&run.files, &history, Some(&summary))?;
    }
    run.show(|| {
        format!(
            "best: epoch {}, {:.2} % of {} {} right, loss {:.4}; written to {}\n",
            best.epoch,
            100.0 * best.val_accuracy,
            set.test.len(),
            set.noun(),
            best.val_loss,
            run.files.model.display()
        )
    })?;
    // A launcher ends all ranks when one fails, so only the one that writes says that images are
    // broken.
    Ok(if inputs.failed.is_empty() || !leads { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Finds out how a run begins: anew, or at the checkpoint. What it will write must be possible to
/// write.
fn begin(args: &TrainArgs, files: &Files<'_>) -> Result<Begin, String> {
    [Some(files.model), files.json, args.timeline.as_deref()].into_iter().flatten().try_for_each(output::can_write)?;
    if args.tokenizer.is_some() && !texts::asks(&args.data) {
        return Err(format!("--tokenizer: {} has no texts; only a .jsonl file of questions has", args.data.display()));
    }
    let given = args.tokenizer.as_deref().map(tokenizer::read).transpose()?;
    if !args.resume {
        let (settings, tokenizer) = (args.settings(None)?, given.unwrap_or_else(|| BYTES.into()));
        return Ok(Begin { settings, tokenizer, history: Vec::new(), fingerprint: None, within: Within::default() });
    }
    let file = Tensors::load(&files.checkpoint).map_err(|e| match files.checkpoint.exists() {
        true => format!("--resume: {e}"),
        false => format!("--resume: {e}; a run has it after its first epoch, or --checkpoint-steps, so start this one without --resume"),
    })?;
    let saved: Settings = value(&file, "progress.settings")?;
    let (history, fingerprint): (Vec<Epoch>, _) = (value(&file, "progress.history")?, value(&file, "progress.data")?);
    if history.iter().zip(1..).any(|(epoch, number)| epoch.epoch != number) {
        let wrong =
            file.format_error("`progress.history` in the metadata: the epochs are not 1, 2, 3 and so on".into());
        return Err(format!("--resume: {wrong}"));
    }
    let within = value(&file, "progress.within")?;
    let tokenizer = file.metadata.get("progress.tokenizer").map_or(BYTES, String::as_str);
    if given.is_some_and(|given| given != tokenizer) {
        let what = "--resume: the run has another tokenizer; leave out --tokenizer, or start again without --resume";
        return Err(what.into());
    }
    let settings = args.settings(Some(&saved))?;
    Ok(Begin { settings, tokenizer: tokenizer.into(), history, fingerprint: Some(fingerprint), within })
}

/// Returns the JSON of a value of a file's metadata.
pub(crate) fn metadata<'a>(file: &'a Tensors, key: &str) -> Result<&'a str, String> {
    let missing =
        || file.format_error(format!("the metadata has no `{key}`; did `thalweg train` write this file?")).to_string();
    file.metadata.get(key).map(String::as_str).ok_or_else(missing)
}

/// Reads a value of a file's metadata.
pub(crate) fn value<T: for<'de> Deserialize<'de>>(file: &Tensors, key: &str) -> Result<T, String> {
    serde_json::from_str(metadata(file, key)?)
        .map_err(|e| file.format_error(format!("`{key}` in the metadata: {e}")).to_string())
}

/// Reads the images and makes their tokens. Also returns what became of the files of all ranks.
fn read<C: LiveBrand>(run: &Run<'_>, team: &mut Team<C>, device: Device) -> Result<(Set, Inputs), Problem> {
    let (args, settings) = (run.args, &run.begin.settings);
    let tokenizer = Tokenizer::from_json(&run.begin.tokenizer).map_err(|e| match &args.tokenizer {
        Some(path) => format!("--tokenizer {}: {e}", path.display()),
        None => format!("--resume: {}: {e}", run.files.checkpoint.display()),
    })?;
    let listing = Listing::read(&args.data, &tokenizer)?;
    let classes = listing.classes();
    if classes.len() < 2 && listing.questions.is_empty() {
        return Err(Problem(format!(
            "{}: there is one class, {:?}; a model needs two to choose from",
            args.data.display(),
            classes[0]
        )));
    }
    let labels = listing.labels(&classes)?;
    let apart = match &args.val {
        Some(folder) => {
            let other = Listing::read(folder, &tokenizer)?;
            if other.questions.is_empty() != listing.questions.is_empty() {
                return Err(Problem(format!(
                    "--val {}: one of both has questions, and the other has none",
                    folder.display()
                )));
            }
            let listing = other;
            let labels = listing.labels(&classes)?;
            Some((listing, labels))
        }
        None => None,
    };
    let count = listing.paths.len() + apart.as_ref().map_or(0, |(listing, _)| listing.paths.len());
    if team.size() > 1 {
        let labels = [&labels[..], apart.as_ref().map_or(&[], |(_, labels)| labels)];
        let asked = |listing: &Listing| data::hash_questions(&listing.questions);
        let questions = asked(&listing) ^ apart.as_ref().map_or(0, |(other, _)| asked(other).rotate_left(1));
        team.comm.verify_equal("the list of images", data::hash(&classes, labels) ^ questions)?;
    }
    let bar = run.bar(count.div_ceil(team.size()), "{bar:40} {pos}/{len} images to tokens  {elapsed}");
    let mut own = Inputs::default();
    let mut fail = |path: &Path, error: &str| {
        own.failed.push(report::failure(path, error));
        bar.suspend(|| say(format_args!("thalweg: {}: {error}; left out", path.display())));
    };
    let choose = |sizes: &[_]| settings.params(sizes);
    let decode = &args.decode;
    // The machines of other ranks need not have the folder of --out.
    let (of_out, of_system) = (output::folder(&args.out), std::env::temp_dir());
    let place = (device, args.scratch.as_deref().unwrap_or(if of_out.is_dir() { of_out } else { &of_system }));
    let (all, params, mut decoded) =
        tokenize(team, place, (&listing, &labels), decode, choose, &bar, |i, e| fail(&listing.paths[i], e))?;
    let (learn, test) = match &apart {
        Some((listing, labels)) => {
            let chosen = |_: &[_]| Ok(params.clone());
            let fail = |i: usize, e: &str| fail(&listing.paths[i], e);
            let (test, _, more) = tokenize(team, place, (listing, labels), decode, chosen, &bar, fail)?;
            decoded.add(more);
            (all, test)
        }
        None => {
            // All images with questions are of one class.
            let classes = if listing.questions.is_empty() { &all.labels } else { &vec![0; all.len()] };
            let [learn, test] = split(classes, settings.val_share, settings.seed);
            (all.part(&learn), all.part(&test))
        }
    };
    bar.finish_and_clear();
    own.jpeg = decoded;
    let mut inputs = Inputs::default();
    for rank in team.gather(json!(own).to_string().into_bytes())? {
        let Inputs { failed, jpeg } =
            serde_json::from_slice(&rank).map_err(|e| format!("what a rank has sent of its images: {e}"))?;
        inputs.failed.extend(failed);
        inputs.jpeg.add(jpeg);
    }
    if learn.len() == 0 || test.len() == 0 {
        return Err(Problem(format!(
            "{}: too few images: {} to learn from, {} to test; without --val, a class with two images is needed",
            args.data.display(),
            learn.len(),
            test.len()
        )));
    }
    let other = apart.as_ref().map_or(&listing, |(other, _)| other);
    let mut fingerprint = learn.fingerprint()? ^ test.fingerprint()?.rotate_left(1);
    if !listing.questions.is_empty() {
        let [learn, test] = [&listing, other].map(|listing| data::hash_questions(&listing.questions));
        fingerprint ^= learn.rotate_left(2) ^ test.rotate_left(3);
    }
    let scaling = Scaling::of(&learn)?;
    scaling.apply(&learn)?;
    scaling.apply(&test)?;
    let (learn, test) = (learn.asked(&listing.questions), test.asked(&other.questions));
    Ok((Set { classes, params, scaling, learn, test, fingerprint, ids: tokenizer.size() }, inputs))
}

/// Trains a model, and returns all epochs and the best one.
fn fit<S: LiveBrand, C: LiveBrand, E: thalweg_train::Precision>(
    run: &Run<'_>,
    stream: &Stream<S>,
    team: Team<C>,
    set: &Set,
) -> Result<(Vec<Epoch>, Epoch), Problem> {
    let (files, settings) = (&run.files, &run.begin.settings);
    let &Settings { epochs, batch, width, heads, depth, seed, .. } = settings;
    if run.begin.fingerprint.is_some_and(|fingerprint| fingerprint != set.fingerprint) {
        return Err(Problem(format!(
            "--resume: the images are not those of {}, or tokens are computed differently",
            files.checkpoint.display()
        )));
    }
    let mut history = run.begin.history.clone();
    let config = TokenTransformerConfig::default()
        .with_input_dim(INPUTS)
        .with_embed_dim(width)
        .with_num_heads(heads)
        .with_depth(depth)
        .with_num_classes(set.classes.len());
    let answering = set.answering(settings);
    // The other ranks get what rank 0 has.
    let model = match run.args.resume && run.leads {
        true => TokenTransformer::<S, E>::restore(stream, &files.checkpoint).map_err(|e| format!("--resume: {e}"))?.0,
        false if set.asks() => TokenTransformer::answering(stream, answering, seed)?,
        false => TokenTransformer::new(stream, config, seed)?,
    };
    let same = match model.vision_language() {
        Some(found) => set.asks() && *found == answering,
        None => *model.config() == config,
    };
    if !same {
        return Err(Problem(format!(
            "--resume: {}: the weights are not those of a model with these settings and classes",
            files.checkpoint.display()
        )));
    }
    let mut learner = Learner::new(team, model)?;
    let steps_of_epoch = set.learn.len().div_ceil(batch) as u64;
    *learner.model().optimizer_mut() = AdamW::default()
        .with_lr(settings.lr)
        .with_schedule(settings.schedule.of_run(steps_of_epoch, epochs))
        .with_weight_decay(settings.weight_decay)
        .with_max_grad_norm(Some(f64::from(settings.clip)));
    let mut best = history.iter().cloned().reduce(|best: Epoch, next| if next.beats(&best) { next } else { best });
    if history.len() as u32 >= epochs {
        run.show(|| format!("all {epochs} epochs are trained; a larger --epochs trains longer\n"))?;
    }
    let mut packed = Packed::default();
    // The epoch in which the checkpoint was written goes on behind its steps.
    let mut within = run.begin.within;
    let (mut timeline, mut drawn) = (Timeline::disabled(), run.args.timeline.as_deref().filter(|_| run.leads));
    for epoch in history.len() as u32 + 1..=epochs {
        if let Some(best) = &best
            && settings.patience > 0
            && epoch - best.epoch > settings.patience
        {
            run.show(|| format!("no better model for {} epochs: stopped\n", settings.patience))?;
            break;
        }
        let begin = Instant::now();
        let bar = run.bar(set.learn.len(), output::IMAGES);
        let mut order: Vec<usize> = (0..set.learn.len()).collect();
        shuffle(&mut order, seed, epoch);
        let Within { steps: done, images: before, loss } = std::mem::take(&mut within);
        let (mut sum, mut seen, mut unread) = (f64::from_bits(loss), before, VecDeque::with_capacity(UNREAD + 1));
        bar.inc(before.into());
        for (step, images) in (1..).zip(order.chunks(batch)).skip(done as usize) {
            if drawn.is_some() && !timeline.is_enabled() && step + DRAWN > steps_of_epoch {
                timeline = Timeline::new(stream.device())?;
            }
            unread.push_back((learner.step(&set.learn, images, &mut packed, &timeline)?, images.len()));
            let marks = run.args.checkpoint_steps.is_some_and(|every| step % every == 0 && step < steps_of_epoch);
            while unread.len() > if marks { 0 } else { UNREAD } {
                timeline.wait("main", "loss", || settle(&mut unread, &mut sum, &mut seen))?;
            }
            if marks {
                learner.verify()?;
                let within = Within { steps: step, images: seen, loss: sum.to_bits() };
                if run.leads {
                    checkpoint(run, learner.model(), set, &history, within)?;
                }
            }
            bar.inc(images.len() as u64);
            bar.set_message(format!("epoch {epoch}/{epochs}  loss {:.4}", sum / f64::from(seen.max(1))));
        }
        while !unread.is_empty() {
            timeline.wait("main", "loss", || settle(&mut unread, &mut sum, &mut seen))?;
        }
        if let Some(path) = drawn.take() {
            let trace = std::mem::replace(&mut timeline, Timeline::disabled()).finish()?;
            output::whole(|| trace.save(path))?;
        }
        let loss = sum / f64::from(seen);
        if !loss.is_finite() {
            return Err(Problem(format!(
                "epoch {epoch}: the loss is {loss}; try a smaller --lr. The last checkpoint is from before this epoch"
            )));
        }
        let images_per_second = f64::from(seen - before) / begin.elapsed().max(Duration::from_nanos(1)).as_secs_f64();
        let (val_loss, val_accuracy) = learner.test(&set.test, &mut packed)?;
        bar.finish_and_clear();
        let now = Epoch { epoch, loss, val_loss, val_accuracy, images_per_second };
        let better = best.as_ref().is_none_or(|best| now.beats(best));
        if better {
            best = Some(now.clone());
        }
        history.push(now);
        // What is written is the same on all ranks.
        learner.verify()?;
        if run.leads {
            write(run, learner.model(), set, better, &history)?;
        }
        run.show(|| {
            format!(
                "epoch {epoch}/{epochs}  loss {loss:.4}  val loss {val_loss:.4}  val accuracy {:.2} %  {images_per_second:.0} images/s\n",
                100.0 * val_accuracy
            )
        })?;
    }
    let best = best.ok_or_else(|| "the run has no epochs".to_owned())?;
    Ok((history, best))
}

/// Writes what an epoch leaves: the model if it is `better` than all before, the checkpoint and the
/// report.
fn write<S: LiveBrand, E: thalweg_train::Precision>(
    run: &Run<'_>,
    model: &TokenTransformer<S, E>,
    set: &Set,
    better: bool,
    history: &[Epoch],
) -> Result<(), Problem> {
    if better {
        let mut tensors = model.tensors()?;
        set.scaling.fold(&mut tensors, if set.asks() { "encoder." } else { "" });
        tensors.metadata.insert("format".into(), "thalweg-train".into());
        match set.asks() {
            true => tensors.metadata.insert(TOKENIZER.into(), run.begin.tokenizer.clone()),
            false => tensors.metadata.insert(CLASSES.into(), json!(set.classes).to_string()),
        };
        tensors.metadata.insert(TOKENS.into(), json!(set.params).to_string());
        output::whole(|| tensors.save(run.files.model))?;
    }
    checkpoint(run, model, set, history, Within::default())?;
    Ok(write_report(&run.files, history, None)?)
}

/// Writes the checkpoint, from which a run goes on behind these epochs and this part of the next.
fn checkpoint<S: LiveBrand, E: thalweg_train::Precision>(
    run: &Run<'_>,
    model: &TokenTransformer<S, E>,
    set: &Set,
    history: &[Epoch],
    within: Within,
) -> Result<(), Problem> {
    let mut progress = BTreeMap::from([
        ("settings".to_owned(), json!(run.begin.settings).to_string()),
        ("history".to_owned(), json!(history).to_string()),
        ("data".to_owned(), set.fingerprint.to_string()),
        ("within".to_owned(), json!(within).to_string()),
    ]);
    if set.asks() {
        progress.insert("tokenizer".to_owned(), run.begin.tokenizer.clone());
    }
    Ok(output::whole(|| model.checkpoint(&run.files.checkpoint, &progress))?)
}

/// Waits for the oldest loss that was not read yet, and adds it.
fn settle(unread: &mut VecDeque<(thalweg_train::Loss, usize)>, sum: &mut f64, seen: &mut u32) -> Result<(), Problem> {
    if let Some((loss, images)) = unread.pop_front() {
        *sum += f64::from(loss.item()?) * images as f64;
        *seen += images as u32;
    }
    Ok(())
}

/// Writes the curves and the report: an object for each epoch, and one for the whole run at the
/// end.
fn write_report(files: &Files<'_>, history: &[Epoch], summary: Option<&serde_json::Value>) -> Result<(), String> {
    output::write_bytes(&files.curves, curves::svg(history).as_bytes())?;
    if let Some(path) = files.json {
        let lines = history.iter().map(|epoch| json!(epoch)).chain(summary.cloned());
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        output::write_bytes(path, text.as_bytes())?;
    }
    Ok(())
}
