//! The command line of `thalweg train`.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;

use super::settings::{Precision, Schedule, Settings};
use super::texts::asks;
use crate::args::{DecodeArg, DeviceArg, budget, number, patch, sides};

pub(crate) const NOTES: &str = "\
Examples:
  thalweg train digits/ --out model.safetensors
      learns from digits/0/*.png, digits/1/*.png and so on; a fifth of each class
      is kept apart and tested after each epoch

  thalweg train digits/ --out model.safetensors --resume
      goes on after an interruption, from the last checkpoint, with the results
      that the run would have had without it

  thalweg train digits/ --out model.safetensors --resume --epochs 100
      trains a finished run longer

  thalweg train questions.jsonl --out model.safetensors
      learns to answer questions; `thalweg ask` asks them

  thalweg train list.csv --val other/ --json run.jsonl --config run.json
      takes images and classes from a table, tests on another folder, reports
      for programs

DATA is a folder with a folder for each class, or a table: a line for each image
with its path, which starts at the table's folder, and its class, separated by
a tab or a comma. A first line `path,label` is left out. Or it is a file whose name ends in
.jsonl, with a question in each line:
  {\"image\": \"digits/3/0003.png\", \"question\": \"which digit\", \"answer\": \"3\"}
Then a vision-language model learns to write the answers, byte by byte or by the ids of
--tokenizer. A fifth of the images is kept apart with all their questions, --batch counts
questions, and an answer is right if every id is. To the ids of a tokenizer.json 1 is added,
because id 0 ends a text. Its post-processor, padding and truncation are left out, and the
model keeps it.

Each photograph becomes tokens once, on the device that also decodes JPEG files. They are kept
in a file without a name in the folder of --out, or in --scratch: 60 bytes for a token, on each
rank. So a data set may be larger than the memory of the machine. What --patch,
--sides and --budget do not say follows from the median area of the first images:
a patch is a quarter of a side (4 to 32 pixels), an image gets a token for 8 x 8 pixels
(64 to 256 tokens), and a patch 2 x 2 of them, or up to 4 x 4 in images with more than 64. Then a transformer over tokens learns with AdamW. The learning rate
rises over the first 5 % of the steps, at most an epoch, and falls along half a cosine. If such a run is
trained longer, the rate is that of the longer cosine from there on. With --schedule constant it
rises over the first epoch and stays, so then the weights are those of one long run, bit for bit.

Results:
  FILE.safetensors             the best model so far: weights, classes, and how
                               images become tokens; `thalweg predict` takes it, or,
                               of questions, `thalweg ask`
  FILE.checkpoint.safetensors  what --resume needs, after each epoch, and within an epoch
                               as often as --checkpoint-steps says
  FILE.curves.svg              loss and accuracy over the epochs
  --json                       a line for each epoch, and one for the whole run:
                               val_accuracy, val_loss and loss are of the epoch of
                               the model that was written; device, parameters, failed,
                               jpeg and wall_seconds are as in `thalweg tokens --json`

A new result replaces an existing one in one step. Ctrl-C leaves the last ones whole.
The file of --config has the names of the flags, with _ for -:
  {\"epochs\": 50, \"batch\": 32, \"lr\": 0.002, \"schedule\": \"cosine\", \"weight_decay\": 0.05, \"clip\": 1,
  \"width\": 64, \"heads\": 4, \"depth\": 2, \"precision\": \"f32\", \"seed\": 0, \"val_share\":
  0.2, \"patience\": 15, \"patch\": 16, \"sides\": [2, 2], \"budget\": 64}
Flags count more than the file, and of equal flags the last one counts. A broken image is named and left out, and then the exit code is 1.";

#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// A folder with a folder for each class, a table of paths and classes, or a .jsonl file of
    /// questions
    #[arg(value_name = "DATA")]
    pub(crate) data: PathBuf,

    /// The path of the model
    #[arg(long, value_name = "FILE", default_value = "model.safetensors")]
    pub(crate) out: PathBuf,

    #[command(flatten)]
    pub(crate) device: DeviceArg,

    #[command(flatten)]
    pub(crate) decode: DecodeArg,

    /// Images to test on, as DATA; without it, a share of DATA is kept apart
    #[arg(long, value_name = "DATA")]
    pub(crate) val: Option<PathBuf>,

    /// The tokenizer.json of questions and answers, which are bytes without it; --resume takes that
    /// of the run. The command needs the feature `tokenizers` for it
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,

    /// The number of GPUs that train together, each with a process of its own; or of CPU devices.
    /// Leave it out under a launcher (thalweg launch, torchrun, srun, mpirun)
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = gpus)]
    pub(crate) gpus: Option<usize>,

    /// Go on from the last checkpoint of this --out, with any number of GPUs; a finished run is
    /// trained longer if --epochs, or --patience, is larger
    #[arg(long)]
    pub(crate) resume: bool,

    /// Write a checkpoint after so many steps of an epoch, too, for --resume in its middle
    #[arg(long, value_name = "STEPS")]
    pub(crate) checkpoint_steps: Option<NonZeroU64>,

    /// The folder of the file of tokens [default: that of --out, or without it that of the system]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) scratch: Option<PathBuf>,

    /// Draw the last ten steps of the first epoch: .svg, .txt, or .json for Perfetto
    #[arg(long, value_name = "FILE", value_parser = timeline)]
    pub(crate) timeline: Option<PathBuf>,

    /// Settings, as JSON
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Write a report for programs to FILE: a JSON object for each epoch, and one at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Print errors only: no progress, no summary
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Passes over the images [default: 50, or 8 with questions]
    #[arg(long, allow_hyphen_values = true)]
    epochs: Option<u32>,

    /// Images of a step, of all GPUs together [default: 32]
    #[arg(long, value_name = "IMAGES", allow_hyphen_values = true)]
    batch: Option<usize>,

    /// The largest learning rate [default: 0.002]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    lr: Option<f64>,

    /// The course of the learning rate after its rise [default: cosine]
    #[arg(long, value_name = "NAME")]
    schedule: Option<Schedule>,

    /// Weight decay [default: 0.05]
    #[arg(long, allow_hyphen_values = true)]
    weight_decay: Option<f64>,

    /// The largest norm of a gradient; a larger one is scaled down [default: 1]
    #[arg(long, value_name = "NORM", allow_hyphen_values = true)]
    clip: Option<f32>,

    /// Numbers of a row of the transformer [default: 64]
    #[arg(long, allow_hyphen_values = true)]
    width: Option<usize>,

    /// Heads of the attention [default: 4]
    #[arg(long, allow_hyphen_values = true)]
    heads: Option<usize>,

    /// Blocks of the transformer [default: 2]
    #[arg(long, allow_hyphen_values = true)]
    depth: Option<usize>,

    /// Type of operands of matrix products; weights are always f32 [default: f32]
    #[arg(long, value_name = "NAME")]
    precision: Option<Precision>,

    /// Seed of the weights, of the order of images and of the share that is kept apart [default: 0]
    #[arg(long, allow_hyphen_values = true)]
    seed: Option<u64>,

    /// The share of each class that is kept apart, if there is no --val [default: 0.2]
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    val_share: Option<f64>,

    /// Stop after this many epochs without a better model; 0 never stops early [default: 15]
    #[arg(long, value_name = "EPOCHS", allow_hyphen_values = true)]
    patience: Option<u32>,

    /// Patch side in pixels [default: from the images]
    #[arg(long, value_name = "PIXELS", allow_hyphen_values = true, value_parser = patch)]
    patch: Option<u32>,

    /// Smallest and largest n of the n x n tokens in a patch [default: from the images]
    #[arg(long, value_name = "LO..HI", allow_hyphen_values = true, value_parser = sides)]
    sides: Option<RangeInclusive<u32>>,

    /// The most tokens of an image [default: from the images]
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true, value_parser = budget)]
    budget: Option<u64>,
}

impl TrainArgs {
    /// Returns the settings: those of the run that goes on, or the defaults, then those of
    /// --config, then the flags. A run that goes on keeps its settings.
    pub(crate) fn settings(&self, saved: Option<&Settings>) -> Result<Settings, String> {
        let mut defaults = Settings::default();
        if asks(&self.data) {
            defaults.epochs = 8; // an image is there once for each question
        }
        let mut settings = match (&self.config, saved) {
            (Some(path), _) => Settings::read(path, &defaults)?,
            (None, Some(saved)) => saved.clone(),
            (None, None) => defaults,
        };
        macro_rules! take {
            ($($name:ident)*) => {$(
                if let Some(value) = self.$name {
                    settings.$name = value;
                }
            )*};
        }
        take!(epochs batch lr schedule weight_decay clip width heads depth precision seed val_share patience);
        settings.patch = self.patch.or(settings.patch);
        settings.budget = self.budget.or(settings.budget);
        settings.sides = self.sides.as_ref().map(|sides| [*sides.start(), *sides.end()]).or(settings.sides);
        settings.check()?;
        // When a run ends may change; what it computes may not.
        let Settings { epochs, patience, .. } = settings;
        match saved.map(|saved| Settings { epochs, patience, ..saved.clone() }) {
            Some(saved) if saved != settings => Err(format!(
                "--resume: the run has other settings: {}; leave out the flags and --config, or start again without --resume",
                settings.differences(&saved)
            )),
            _ => Ok(settings),
        }
    }
}

fn gpus(text: &str) -> Result<usize, String> {
    number(text, "a whole number of GPUs, 1 to 64", |n| (1..=64).contains(n))
}

fn timeline(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|end| end.to_str()) {
        Some("svg" | "json" | "txt") => Ok(path),
        _ => Err("expected a file whose name ends in .svg, .json or .txt".into()),
    }
}
