//! The command line. This module checks everything that needs no file and no device; a violation is
//! a usage error (exit code 2).

use std::ffi::OsStr;
use std::ffi::OsString;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use safetensors::Dtype;
use thalweg::{Device, Error};
use thalweg_loader::DecodeBackend;
use thalweg_vision::TokenParams;

use crate::output;
use crate::train::settings::Settings;

const EXAMPLES: &str = "\
Examples:
  thalweg tokens photo.jpg --out tokens
      writes tokens/photo.safetensors: up to 4096 tokens, most of them where
      the photograph holds most information

  thalweg tokens holiday/ extra.png --out tokens --heatmap
      reads a folder and one more file, and writes a picture beside each result
      that shows where the tokens are

  thalweg tokens photos/ --recursive --skip-existing --quiet --out tokens
      also reads the subfolders, writes the same tree of folders, and does only
      what an earlier run did not

  camera-snapshot | thalweg tokens - --out tokens
      reads one photograph from standard input, writes tokens/stdin.safetensors

  thalweg tokens photo.jpg --out tokens --budget 1024 --sides 4..12 \\
      --fixation 0.3,0.7 --foveal-bias 0.5
      makes fewer and smaller lattices, and fewer of them far from a point 30%
      down and 70% across

  thalweg tokens photo.jpg --out tokens --weights head.safetensors \\
      --query question.safetensors
      gives more tokens to the parts of the photograph that match a query

  thalweg tokens photos/ --out tokens --device cuda:1 --json > run.json
      runs on the second GPU and prints a report for programs";

const OTHERS: &str = "  thalweg augment photos/*.jpg --out sheet.png
      draws what random crops, colors and blurs make of photographs

  thalweg train digits/ --out model.safetensors
  thalweg predict model.safetensors digits/3/0042.png
      trains a model on a folder for each class, and asks it about a photograph

  thalweg launch -n 2 -- ./train --epochs 3
      runs a program as two processes that compute together

  thalweg devices
      lists the devices

  thalweg completions bash > ~/.local/share/bash-completion/completions/thalweg
      lets the shell complete commands and flags";

const NOTES: &str = "\
Results:
  DIR/STEM.safetensors for each image, with T tokens in K selected patches of
  a grid of gh x gw = N:

  tokens      f32 [T, 13]     means over a cell: R G B, L* a* b*, Gx Gy edge,
                              y x eccentricity, local contrast; f16 or bf16
                              with --precision
  cu_seqlens  i32 [K + 1]     where in tokens each selected patch starts
  patch_id    i32 [K]         raster index of each selected patch
  position    f32 [T, 2]      center of each cell, (y, x) from 0 to 1
  sides       i32 [gh, gw]    n, if a patch has n x n tokens; 0 if it has none
  relevance   f32 [gh, gw]    the score that decides the allocation
  entropy     f32 [gh, gw]    a score that is part of relevance
  salience    f32 [gh, gw]    a score that is part of relevance
  participatory
              f32 [gh, gw]    with a query: the third score
  mix         f32 [3]         with a query: the weights of entropy, salience and
                              participatory in relevance
  features    f32 [N, 13]     means over whole patches
  textures    f32 [13, H, W]  with --textures: the planes at full size

  With --profile arr-coc-0-1, the grid is always 32 x 32 patches:

  textures    f32 [13, 32, 32]    the planes of the profile; edges are scaled
                                  over the image
  information, perspectival, participatory, relevance
              f32 [32, 32]        the three scores, and what is made of them
  topk        i32 [200]           the most relevant patches, in order

  The metadata holds every parameter, the size and name of the image, the
  device and the versions. A new result replaces an existing one in one step.
  A result is always whole or absent. The letters in DIR/STEM.heatmap.png are
  Noto Sans Mono, which has the SIL Open Font License.

Weights and query:
  Safetensors of F32, F16 or BF16. The weights are a PyTorch state dict:
  participatory_scorer.texture_proj.{0,2}.{weight,bias} are required: a layer
  from the features to 64 hidden units and one from these to D.
  balancer.weight_predictor.{0,2,4}.{weight,bias} are optional. The query is a
  tensor `query` [D]. The weights of the scores come from --mix if it is given,
  else from the balancer if there is one, else they are equal.

Images:
  PNG, JPEG and WebP with sides of 1 to 16384 pixels, and up to --max-pixels
  together. The content of a file decides which of them it is, and of a moving
  WebP the first frame counts. Gray is replicated to RGB. Alpha is dropped, not
  blended. 16-bit samples are rounded to 8 bits: (v * 255 + 32767) / 65535 in
  whole numbers. JPEG files have the pixels of libjpeg-turbo, and CMYK is
  converted as Pillow does it; ICC profiles and gamma are ignored. The
  orientation of EXIF or XMP is applied: results are those of the upright
  photograph. From a folder, a run takes *.png, *.jpg, *.jpeg and *.webp in
  order of name, with --recursive also from its subfolders, but no hidden files,
  no hidden folders and no *.heatmap.png. The results of a subfolder go to the
  folder of the same name in DIR. A line on standard error says how much was
  skipped, and --json lists it.

Exit code:
  0  all images are done
  1  something failed; the failed inputs are listed, and all others are done
     unless an error stopped the run
  2  wrong usage
  128 plus a signal's number, such as 130 after Ctrl-C and 143 after SIGTERM:
     the signal ended the run; the files that it wrote are whole";

const AUGMENT_NOTES: &str = "\
Examples:
  thalweg augment photo.jpg --out sheet.png
      draws photo.jpg and eight results of it, as eight epochs would see it

  thalweg augment photo.jpg --seed 7 --epoch 3 --index 41 --size 96 \\
      --out photo.safetensors
      writes one result for programs

What happens to a photograph depends on the seed, the epoch and the index of the
photograph in its data set, and on nothing else. docs/spec.md, section 9, defines
every number.

Results:
  FILE.png, a contact sheet: a row for each photograph, first the whole photograph
  (squeezed into a square), then its results in this epoch and the next ones. The
  second photograph has the next index, and so on. Colors are not normalized.

  FILE.safetensors, for one photograph and N = --size:
  image    f32 [3, N, N]  the result, normalized
  crop     i32 [4]        top, left, height and width of the crop
  factors  f64 [6]        flip (0 or 1), brightness, contrast, saturation,
                          grayscale (0 or 1), sigma of the blur or 0

The options in FILE.json replace defaults: {\"flip\": 0, \"brightness\": 0.2,
\"blur\": null}. These are all defaults:
  {\"crop\": {\"area\": {\"start\": 0.08, \"end\": 1}, \"ratio\": {\"start\": 0.75,
  \"end\": 1.3333333333333333}, \"attempts\": 10}, \"flip\": 0.5, \"brightness\": 0.4,
  \"contrast\": 0.4, \"saturation\": 0.4, \"grayscale\": 0.1, \"blur\": {\"probability\":
  0.5, \"sigma\": {\"start\": 0.1, \"end\": 2}, \"taps\": 7}, \"luma\": [0.299, 0.587,
  0.114], \"normalize\": {\"mean\": [0.485, 0.456, 0.406], \"std\": [0.229, 0.224,
  0.225]}}
A result replaces an existing file in one step, but never one of the photographs.";

const PROCESS_NOTES: &str = "\
Examples:
  thalweg process --model qwen2.5-vl photos/*.jpg --out batch.safetensors
      writes all photographs as one batch, with the names of transformers

  thalweg process --config preprocessor_config.json photo.jpg --out inputs
      takes the settings of a model's file, writes inputs/photo.safetensors

  thalweg process --model siglip2-naflex --max-patches 1024 --resampler pil \\
      --style slow photo.png --out batch.safetensors
      computes what transformers computes with Pillow

Results:
  pixel_values, in f32 or as --precision says, and
  Qwen             image_grid_thw i64 [B, 3], cu_seqlens i32, window_index i64,
                   cu_window_seqlens i32, vision_position_ids i64 [N, 2]
  SigLIP2          pixel_attention_mask i32 [B, max], spatial_shapes i64 [B, 2]
  InternVL         num_patches i64 [B]
  LLaVA-OneVision  image_sizes i64 [B, 2]

  The bits are those of transformers on a CPU: of version 5, or of what
  --resampler and --style name. A device changes none.

A photograph that fails is named, and the others are done; the exit code is 1
then. Gray is replicated, alpha is dropped, and orientation is applied.
A new result replaces an existing one in one step.";

const TRAIN_NOTES: &str = "\
Examples:
  thalweg train digits/ --out model.safetensors
      learns from digits/0/*.png, digits/1/*.png and so on; a fifth of each class
      is kept apart and tested after each epoch

  thalweg train digits/ --out model.safetensors --resume
      goes on after an interruption, from the last whole epoch, with the results
      that the run would have had without it

  thalweg train digits/ --out model.safetensors --resume --epochs 100
      trains a finished run longer

  thalweg train list.csv --val other/ --json run.jsonl --config run.json
      takes images and classes from a table, tests on another folder, reports
      for programs

DATA is a folder with a folder for each class, or a table: a line for each image
with its path, which starts at the table's folder, and its class, separated by
a tab or a comma. A first line `path,label` is left out.

Each photograph becomes tokens once; they stay in memory. What --patch,
--sides and --budget do not say follows from the median area of the first images:
a patch is a quarter of a side (4 to 32 pixels), an image gets a token for 8 x 8 pixels
(64 to 256 tokens), and a patch 2 x 2 of them, or up to 4 x 4 in images with more than 64. Then a transformer over tokens learns with AdamW. The learning rate
rises over the first 5 % of the steps, at most an epoch, and falls along half a cosine. If such a run is
trained longer, the rate is that of the longer cosine from there on. With --schedule constant it
rises over the first epoch and stays, so then the weights are those of one long run, bit for bit.

Results:
  FILE.safetensors             the best model so far: weights, classes, and how
                               images become tokens; `thalweg predict` takes it
  FILE.checkpoint.safetensors  what --resume needs, after each epoch
  FILE.curves.svg              loss and accuracy over the epochs
  --json                       a line for each epoch, and one for the whole run:
                               val_accuracy, val_loss and loss are of the epoch of
                               the model that was written

A new result replaces an existing one in one step. Ctrl-C leaves the last ones whole.
The file of --config has the names of the flags, with _ for -:
  {\"epochs\": 50, \"batch\": 32, \"lr\": 0.002, \"schedule\": \"cosine\", \"weight_decay\": 0.05, \"clip\": 1,
  \"width\": 64, \"heads\": 4, \"depth\": 2, \"precision\": \"f32\", \"seed\": 0, \"val_share\":
  0.2, \"patience\": 15, \"patch\": 16, \"sides\": [2, 2], \"budget\": 64}
Flags count more than the file, and of equal flags the last one counts. A broken image is named and left out, and then the exit code is 1.";

const PREDICT_NOTES: &str = "\
Examples:
  thalweg predict model.safetensors digits/3/*.png
      prints a line for each, such as: digits/3/0042.png\t3\t0.998120

  camera-snapshot | thalweg predict model.safetensors -
      reads one photograph from standard input

Exit code:
  0  all photographs have a line
  1  something failed; a line on standard error names each photograph without one
  2  wrong usage";

const LAUNCH_NOTES: &str = "\
Examples:
  thalweg launch -n 2 -- target/release/examples/all_reduce
      runs a program that joins the ranks by World::from_env of thalweg-collective

  thalweg launch -n 2 -- thalweg train photos/ --out model.safetensors
      trains on two GPUs, or on two CPU devices if there is no GPU";

const LAUNCH: &str = "\
Run a program as several processes of this machine, each a rank.

Each process gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR
and MASTER_PORT, as with torchrun, and the address and the secret of a store in
which programs that use thalweg-collective meet. Its lines of output have its
rank before them; its standard input is empty. If a rank fails, the others have
5 seconds to end; then they are killed, and so they are after Ctrl-C or SIGTERM.
The exit code is that of the first rank that failed, or 128 plus the number of
the signal that ended it.";

/// Turn photographs into adaptive visual tokens
///
/// Cuts a photograph into patches, scores each one, and spends a budget of tokens on the patches
/// with the highest scores. By default, a patch gets no tokens or 8 x 8 to 20 x 20. Runs on an
/// NVIDIA GPU and needs only its driver there, or runs on the CPU if there is no GPU.
#[derive(Debug, Parser)]
#[command(name = "thalweg", version, after_long_help = format!("{EXAMPLES}\n\n{OTHERS}"), max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Turn photographs into tokens, one safetensors file each
    // The usage is written by hand, because clap lists a flag as required if the environment sets
    // it.
    #[command(
        after_long_help = format!("{EXAMPLES}\n\n{NOTES}"),
        override_usage = "thalweg tokens [OPTIONS] --out <DIR> <image|folder|->..."
    )]
    Tokens(TokensArgs),
    /// Show what random augmentation makes of photographs, or write one result
    #[command(after_long_help = AUGMENT_NOTES)]
    Augment(AugmentArgs),
    /// Turn photographs into the input of a vision-language model, as transformers does
    #[command(
        after_long_help = PROCESS_NOTES,
        override_usage = "thalweg process [OPTIONS] <--model <NAME>|--config <FILE>> --out <FILE|DIR> <image|->..."
    )]
    Process(Box<ProcessArgs>),
    /// Train a model that tells the classes of photographs apart
    #[command(after_long_help = TRAIN_NOTES, args_override_self = true)]
    Train(TrainArgs),
    /// Say what a trained model sees on photographs
    #[command(after_long_help = PREDICT_NOTES)]
    Predict(PredictArgs),
    /// List the devices and what they can do, and say which one a run would use
    Devices(DevicesArgs),
    /// Run a program as several processes of this machine, each a rank
    #[command(long_about = LAUNCH, after_long_help = LAUNCH_NOTES)]
    Launch(LaunchArgs),
    /// Print a script that lets a shell complete commands and flags
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Returns the script for a shell.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "thalweg", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[derive(Debug, Args)]
pub(crate) struct DeviceArg {
    /// Device to run on; auto is the best GPU, or the CPU if no GPU can be used
    #[arg(
        id = "device",
        long = "device",
        value_name = "auto|cpu|cuda:N",
        default_value = "auto",
        env = "THALWEG_DEVICE",
        value_parser = device
    )]
    pub(crate) name: String,
}

impl DeviceArg {
    /// Opens the device. If `auto` found no GPU and chose the CPU, also returns a line that says
    /// why.
    pub(crate) fn open(&self) -> Result<(Device, Option<String>), String> {
        Device::open(&self.name).map_err(|e| format!("device {} (from --device or THALWEG_DEVICE): {e}", self.name))
    }
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DecodeArg {
    /// The decoder of JPEG files; auto is the device if it is a GPU, else the host. The pixels are
    /// the same. The host decodes what the device cannot, and standard input
    #[arg(
        id = "decode",
        long = "decode",
        value_name = "auto|device|host",
        default_value = "auto",
        env = "THALWEG_DECODE",
        value_parser = decode
    )]
    pub(crate) place: DecodeBackend,

    /// The most pixels of a photograph: a small file may claim many. The default is Pillow's limit
    #[arg(long, value_name = "N", default_value_t = PIXEL_LIMIT, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_pixels: u64,
}

/// The most pixels of a photograph if nothing else is said.
pub(crate) const PIXEL_LIMIT: u64 = 178_956_970;

#[derive(Debug, Args)]
pub(crate) struct TokensArgs {
    /// PNG, JPEG or WebP files, folders of them, or - for an image on standard input
    #[arg(required = true, value_name = "image|folder|-")]
    pub(crate) inputs: Vec<PathBuf>,

    /// Folder for the results; made if missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    #[command(flatten)]
    pub(crate) device: DeviceArg,

    #[command(flatten)]
    pub(crate) decode: DecodeArg,

    /// Patch side in pixels
    #[arg(long, value_name = "PIXELS", default_value = "32", allow_hyphen_values = true, value_parser = patch)]
    patch: u32,

    /// The most tokens an image may get
    #[arg(long, value_name = "TOKENS", default_value = "4096", allow_hyphen_values = true, value_parser = budget)]
    budget: u64,

    /// The concentration of the tokens: near 1 on few patches, near 0 over many
    #[arg(long, default_value = "0.8", allow_hyphen_values = true, value_parser = focus)]
    focus: f64,

    /// Smallest and largest n of the n x n tokens in a selected patch, both included
    #[arg(long, value_name = "LO..HI", default_value = "8..20", allow_hyphen_values = true, value_parser = sides)]
    sides: RangeInclusive<u32>,

    /// The fall of salience with distance from the fixation point, 0 to 1
    #[arg(long, value_name = "BIAS", default_value = "0", allow_hyphen_values = true, value_parser = unit)]
    foveal_bias: f32,

    /// The fixation point, as fractions of height and width
    #[arg(long, value_name = "Y,X", default_value = "0.5,0.5", allow_hyphen_values = true, value_parser = fixation)]
    fixation: [f32; 2],

    /// The format of stored tokens: 32-bit floats, IEEE halves or bfloat16
    #[arg(long, value_name = "NAME", default_value = "f32")]
    pub(crate) precision: Precision,

    /// Weights of a head, in safetensors; how well a patch matches --query becomes part of its
    /// relevance
    #[arg(long, value_name = "FILE", requires = "query")]
    pub(crate) weights: Option<PathBuf>,

    /// A query embedding, in safetensors
    #[arg(long, value_name = "FILE", requires = "weights")]
    pub(crate) query: Option<PathBuf>,

    /// Weights of entropy, salience and (with --query) the participatory score; they replace equal
    /// weights or the balancer's
    #[arg(long, value_name = "A,B[,C]", allow_hyphen_values = true, value_parser = mix)]
    pub(crate) mix: Option<Mix>,

    /// Compute what another project computes: `arr-coc-0-1` is the published PyTorch ARR-COC 0.1
    #[arg(long, value_name = "NAME", requires = "query", conflicts_with_all = [
        "patch", "budget", "focus", "sides", "foveal_bias", "fixation", "precision", "mix", "textures", "heatmap",
    ])]
    pub(crate) profile: Option<Profile>,

    /// Also write the 13 planes at full size (52 bytes a pixel)
    #[arg(long)]
    pub(crate) textures: bool,

    /// Also write DIR/STEM.heatmap.png: the photograph with the allocation drawn over it
    #[arg(long)]
    pub(crate) heatmap: bool,

    /// Also read the subfolders of folders; DIR gets the same tree
    #[arg(long, short)]
    pub(crate) recursive: bool,

    /// Skip images whose results exist, whatever parameters made them
    #[arg(long)]
    pub(crate) skip_existing: bool,

    /// Print errors only: no summary, no progress, no notes
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Print one JSON document on standard output instead of the summary
    #[arg(long)]
    pub(crate) json: bool,
}

/// The weights of two or three scores.
#[derive(Clone, Debug)]
pub(crate) struct Mix(Vec<f32>);

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(f32::to_string).collect::<Vec<_>>().join(","))
    }
}

/// The format of stored tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    F32,
    F16,
    Bf16,
}

impl Precision {
    /// The format in a safetensors file.
    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::BF16,
        }
    }
}

impl From<Precision> for thalweg_vision::TokenPrecision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::F16 => Self::F16,
            Precision::Bf16 => Self::Bf16,
        }
    }
}

/// Another project whose results a run can compute.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Profile {
    #[value(name = "arr-coc-0-1", help = "The published PyTorch ARR-COC 0.1")]
    ArrCoc01,
}

#[derive(Debug, Args)]
pub(crate) struct AugmentArgs {
    /// PNG, JPEG or WebP files, or - for an image on standard input
    #[arg(required = true, value_name = "image|-")]
    pub(crate) images: Vec<PathBuf>,

    /// The path of the result: FILE.png for a contact sheet, FILE.safetensors for one result
    #[arg(long, value_name = "FILE", default_value = "augment.png", value_parser = augment_out)]
    pub(crate) out: PathBuf,

    #[command(flatten)]
    pub(crate) device: DeviceArg,

    /// Seed of the random numbers
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    pub(crate) seed: u64,

    /// The epoch; for a contact sheet, the first one
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    pub(crate) epoch: u32,

    /// Index of the first photograph in its data set
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    pub(crate) index: u64,

    /// Side of a result in pixels
    #[arg(long, value_name = "PIXELS", default_value = "224", allow_hyphen_values = true, value_parser = size)]
    pub(crate) size: u32,

    /// The number of results of each photograph on a contact sheet
    #[arg(long, default_value = "8", allow_hyphen_values = true, value_parser = count)]
    pub(crate) count: u32,

    /// Options of the augmentation, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) options: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ProcessArgs {
    /// PNG, JPEG or WebP files, or - for an image on standard input
    #[arg(required = true, value_name = "image|-")]
    pub(crate) images: Vec<PathBuf>,

    /// FILE.safetensors for all photographs as one batch, or a folder for a file each
    #[arg(long, value_name = "FILE|DIR")]
    pub(crate) out: PathBuf,

    #[command(flatten)]
    pub(crate) device: DeviceArg,

    /// The decoder of JPEG files; auto is the device if it is a GPU, else the host
    #[arg(long, value_name = "auto|device|host", default_value = "auto", env = "THALWEG_DECODE", value_parser = decode)]
    pub(crate) decode: DecodeBackend,

    /// The family of models, with the settings of its files
    #[arg(long, value_name = "NAME", required_unless_present = "config", conflicts_with = "config")]
    pub(crate) model: Option<Model>,

    /// Settings of a model: preprocessor_config.json, or processor_config.json
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Pixels a side of a patch (Qwen, SigLIP2)
    #[arg(long, value_name = "PIXELS")]
    pub(crate) patch: Option<u32>,

    /// Patches a side of what becomes one token (Qwen)
    #[arg(long, value_name = "PATCHES")]
    pub(crate) merge: Option<u32>,

    /// The least pixels of a resized photograph (Qwen)
    #[arg(long, value_name = "N")]
    pub(crate) min_pixels: Option<u64>,

    /// The most pixels of a resized photograph (Qwen)
    #[arg(long, value_name = "N")]
    pub(crate) max_pixels: Option<u64>,

    /// The most patches of a photograph (SigLIP2)
    #[arg(long, value_name = "N")]
    pub(crate) max_patches: Option<u32>,

    /// Pixels a side of a tile (InternVL)
    #[arg(long, value_name = "PIXELS")]
    pub(crate) tile: Option<u32>,

    /// The least tiles of a photograph (InternVL)
    #[arg(long, value_name = "N")]
    pub(crate) min_tiles: Option<u32>,

    /// The most tiles of a photograph (InternVL)
    #[arg(long, value_name = "N")]
    pub(crate) max_tiles: Option<u32>,

    /// Pixels of the short side (CLIP), or of a side (SigLIP)
    #[arg(long, value_name = "PIXELS")]
    pub(crate) size: Option<u32>,

    /// Pixels a side of the part in the middle (CLIP)
    #[arg(long, value_name = "PIXELS")]
    pub(crate) crop: Option<u32>,

    /// Mean and deviation of the colors
    #[arg(long, value_name = "NAME")]
    pub(crate) mean: Option<Mean>,

    /// The library whose resize is computed: of Pillow to 12.1, 12.2 or 13, or of torch
    #[arg(long, value_name = "NAME", default_value = "aten")]
    pub(crate) resampler: ResamplerName,

    /// The processor whose rounding is computed: the slow or the fast one of transformers, or
    /// ToTensor and Normalize of torchvision
    #[arg(long, value_name = "NAME", default_value = "fast")]
    pub(crate) style: StyleName,

    /// The format of pixel_values: 32-bit floats, IEEE halves or bfloat16
    #[arg(long, value_name = "NAME", default_value = "f32")]
    pub(crate) precision: Precision,

    /// Print one JSON document on standard output instead of the summary
    #[arg(long)]
    pub(crate) json: bool,
}

/// A family of models.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Model {
    #[value(name = "qwen2-vl")]
    Qwen2Vl,
    #[value(name = "qwen2.5-vl")]
    Qwen25Vl,
    #[value(name = "qwen3-vl")]
    Qwen3Vl,
    Siglip2Naflex,
    #[value(name = "internvl")]
    InternVl,
    LlavaOnevision,
    Clip,
    Siglip,
}

/// Means and deviations of colors.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Mean {
    Clip,
    Imagenet,
    Half,
}

/// A library whose resize can be computed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ResamplerName {
    Pil,
    #[value(name = "pil-12.2")]
    Pil122,
    #[value(name = "pil-13")]
    Pil13,
    Aten,
}

/// A processor whose rounding can be computed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StyleName {
    Slow,
    Fast,
    Totensor,
}

#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// A folder with a folder for each class, or a table of paths and classes
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

    /// The number of GPUs that train together, each with a process of its own; or of CPU devices.
    /// Leave it out under a launcher (thalweg launch, torchrun, srun, mpirun)
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = gpus)]
    pub(crate) gpus: Option<usize>,

    /// Go on from the last checkpoint of this --out, with any number of GPUs; a finished run is
    /// trained longer if --epochs, or --patience, is larger
    #[arg(long)]
    pub(crate) resume: bool,

    /// Settings, as JSON
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Write a report for programs to FILE: a JSON object for each epoch, and one at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Print errors only: no progress, no summary
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Passes over the images [default: 50]
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
    schedule: Option<crate::train::settings::Schedule>,

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
    precision: Option<crate::train::settings::Precision>,

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
        let mut settings = match (&self.config, saved) {
            (Some(path), _) => Settings::read(path)?,
            (None, Some(saved)) => saved.clone(),
            (None, None) => Settings::default(),
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

#[derive(Debug, Args)]
pub(crate) struct PredictArgs {
    /// A model that `thalweg train` wrote
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,

    /// PNG, JPEG or WebP files, or - for an image on standard input; a line for each: path, class
    /// and probability, separated by tabs
    #[arg(required = true, value_name = "image|-")]
    pub(crate) images: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) device: DeviceArg,

    #[command(flatten)]
    pub(crate) decode: DecodeArg,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArg,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LaunchArgs {
    /// The number of processes
    #[arg(short = 'n', long = "ranks", value_name = "N", allow_hyphen_values = true, value_parser = ranks)]
    pub(crate) ranks: usize,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

impl TokensArgs {
    /// Returns the parameters of the pipeline.
    pub(crate) fn params(&self) -> TokenParams {
        TokenParams::default()
            .with_patch(self.patch)
            .with_sides(self.sides.clone())
            .with_budget(self.budget)
            .with_focus(self.focus)
            .with_fixation(self.fixation)
            .with_foveal_bias(self.foveal_bias)
            .with_mix(self.mix.as_ref().map(|Mix(mix)| [mix[0], mix[1], mix.get(2).copied().unwrap_or(0.0)]))
    }

    /// Checks what depends on several flags, so that no value parser of one flag can check it.
    fn check(&self) -> Result<(), String> {
        let lo = u64::from(*self.sides.start());
        if self.budget < lo * lo {
            return Err(format!(
                "--budget {} is below the cost of one patch: expected at least {}, since --sides starts at {lo}",
                self.budget,
                lo * lo
            ));
        }
        if let Some(mix) = &self.mix {
            let (scores, because) = if self.query.is_some() { (3, "with --query") } else { (2, "without --query") };
            if mix.0.len() != scores {
                return Err(format!("--mix {mix}: expected {scores} weights {because}, not {}", mix.0.len()));
            }
        }
        self.params().validate().map_err(|error| error.to_string())
    }
}

/// Parses the arguments of the process. If they ask for help or the version, or are wrong, prints
/// that text and exits.
pub(crate) fn parse() -> Command {
    let command = Cli::parse().command;
    if let Command::Tokens(args) = &command
        && let Err(message) = args.check()
    {
        output::say(format_args!("error: {message}\n\nFor more information, try '--help'."));
        std::process::exit(2);
    }
    command
}

fn number<T: FromStr>(text: &str, expected: &str, accept: impl Fn(&T) -> bool) -> Result<T, String> {
    text.trim().parse().ok().filter(accept).ok_or_else(|| format!("expected {expected}"))
}

fn device(text: &str) -> Result<String, String> {
    let text = if text.is_empty() { "auto" } else { text }; // THALWEG_DEVICE may be set but empty
    // Only the library knows which names there are. To ask it means to open the device, which the
    // run does anyway, and which stays open. `auto` is always right; to ask for it could open a GPU
    // for nothing if another flag is wrong.
    if text != "auto" && matches!(Device::open(text), Err(Error::DeviceSpec { .. })) {
        return Err("expected auto, cpu or cuda:N with N from 0 (the value may come from THALWEG_DEVICE)".to_owned());
    }
    Ok(text.to_owned())
}

fn decode(text: &str) -> Result<DecodeBackend, String> {
    let text = if text.is_empty() { "auto" } else { text }; // THALWEG_DECODE may be set but empty
    text.parse().map_err(|_| "expected auto, device or host (the value may come from THALWEG_DECODE)".to_owned())
}

fn augment_out(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(OsStr::to_str) {
        Some("png" | "safetensors") => Ok(path),
        _ => Err("expected a name that ends with .png or .safetensors".to_owned()),
    }
}

fn size(text: &str) -> Result<u32, String> {
    number(text, "a whole number of pixels, 1 to 4096", |n| (1..=4096).contains(n))
}

fn count(text: &str) -> Result<u32, String> {
    number(text, "a whole number, 1 to 64", |n| (1..=64).contains(n))
}

fn patch(text: &str) -> Result<u32, String> {
    number(text, "a whole number of pixels, 1 to 16384", |n| (1..=16384).contains(n))
}

fn budget(text: &str) -> Result<u64, String> {
    number(text, "a whole number of tokens, at least 1", |&n| n > 0)
}

fn ranks(text: &str) -> Result<usize, String> {
    number(text, "a whole number of processes, 1 to 1024", |n| (1..=1024).contains(n))
}

fn gpus(text: &str) -> Result<usize, String> {
    number(text, "a whole number of GPUs, 1 to 64", |n| (1..=64).contains(n))
}

fn focus(text: &str) -> Result<f64, String> {
    number(text, "a number above 0 and below 1", |&x| x > 0.0 && x < 1.0)
}

fn unit(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |x| (0.0..=1.0).contains(x))
}

fn sides(text: &str) -> Result<RangeInclusive<u32>, String> {
    const EXPECTED: &str = "LO..HI, two whole numbers with 1 <= LO <= HI <= 255";
    let (lo, hi) = text.split_once("..").ok_or_else(|| format!("expected {EXPECTED}"))?;
    let lo = number(lo, EXPECTED, |&n| n >= 1)?;
    let hi = number(hi, EXPECTED, |n| (lo..=255).contains(n))?;
    Ok(lo..=hi)
}

fn mix(text: &str) -> Result<Mix, String> {
    const EXPECTED: &str = "A,B or A,B,C, weights of which none is negative and not all are zero";
    let weight = |text| number(text, EXPECTED, |w: &f32| *w >= 0.0 && w.is_finite());
    let weights = text.split(',').map(weight).collect::<Result<Vec<_>, _>>()?;
    let fit = matches!(weights.len(), 2 | 3) && weights.iter().any(|w| *w > 0.0);
    if fit { Ok(Mix(weights)) } else { Err(format!("expected {EXPECTED}")) }
}

fn fixation(text: &str) -> Result<[f32; 2], String> {
    const EXPECTED: &str = "Y,X, two numbers from 0 to 1";
    let (y, x) = text.split_once(',').ok_or_else(|| format!("expected {EXPECTED}"))?;
    let fraction = |text| number(text, EXPECTED, |v| (0.0..=1.0).contains(v));
    Ok([fraction(y)?, fraction(x)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_library() {
        let cli = Cli::try_parse_from(["thalweg", "tokens", "a.png", "--out", "x"]).unwrap();
        let Command::Tokens(args) = cli.command else { panic!("tokens was asked for") };
        assert_eq!(format!("{:?}", args.params()), format!("{:?}", TokenParams::default()));
    }
}
