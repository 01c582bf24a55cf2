//! The commands, with their examples.

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::args::{AugmentArgs, DevicesArgs, ProcessArgs, TokensArgs};
use crate::output;

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

const IMAGE_EXAMPLES: &str = "

  thalweg augment photos/*.jpg --out sheet.png
      draws what random crops, colors and blurs make of photographs

  thalweg process --model qwen2.5-vl photos/*.jpg --out batch.safetensors
      makes the input of a vision-language model, as transformers does";

#[cfg(feature = "train")]
const TRAIN_EXAMPLES: &str = "

  thalweg train digits/ --out model.safetensors
  thalweg predict model.safetensors digits/3/0042.png
      trains a model on a folder for each class, and asks it about a photograph";
#[cfg(not(feature = "train"))]
const TRAIN_EXAMPLES: &str = "";

#[cfg(feature = "ranks")]
const LAUNCH_EXAMPLES: &str = "

  thalweg launch -n 2 -- ./train --epochs 3
      runs a program as two processes that compute together";
#[cfg(not(feature = "ranks"))]
const LAUNCH_EXAMPLES: &str = "";

const OTHER_EXAMPLES: &str = "

  thalweg devices
      lists the devices

  thalweg trace check run.log
      finds missing waits in the log that THALWEG_TRACE=run.log wrote

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

/// Turn photographs into adaptive visual tokens
///
/// Cuts a photograph into patches, scores each one, and spends a budget of tokens on the patches
/// with the highest scores. By default, a patch gets no tokens or 8 x 8 to 20 x 20. Runs on an
/// NVIDIA GPU and needs only its driver there, or runs on the CPU if there is no GPU.
#[derive(Debug, Parser)]
#[command(
    name = "thalweg",
    version,
    after_long_help = format!("{EXAMPLES}{IMAGE_EXAMPLES}{TRAIN_EXAMPLES}{LAUNCH_EXAMPLES}{OTHER_EXAMPLES}"),
    max_term_width = 100,
)]
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
    /// Train a model that tells the classes of photographs apart, or answers questions about them
    #[cfg(feature = "train")]
    #[command(after_long_help = crate::train::args::NOTES, args_override_self = true)]
    Train(Box<crate::train::args::TrainArgs>),
    /// Say what a trained model sees on photographs
    #[cfg(feature = "train")]
    #[command(after_long_help = crate::predict::NOTES)]
    Predict(crate::predict::PredictArgs),
    /// Ask a trained model a question about photographs
    #[cfg(feature = "train")]
    #[command(after_long_help = crate::ask::NOTES)]
    Ask(crate::ask::AskArgs),
    /// List the devices and what they can do, and say which one a run would use
    Devices(DevicesArgs),
    /// Find missing waits of a program in its log
    Trace(crate::trace::TraceArgs),
    /// Run a program as several processes of this machine, each a rank
    #[cfg(feature = "ranks")]
    #[command(long_about = crate::launch::ABOUT, after_long_help = crate::launch::NOTES)]
    Launch(crate::launch::LaunchArgs),
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

#[cfg(test)]
mod tests {
    use thalweg_vision::TokenParams;

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
