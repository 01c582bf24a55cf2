//! The command line. What can be checked without opening a file or a device is checked here, and
//! is a usage error (exit code 2).

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use thalweg::Device;
use thalweg_vision::Params;

const EXAMPLES: &str = "\
Examples:
  thalweg tokens photo.jpg --out tokens
      writes tokens/photo.safetensors: up to 4096 tokens, where the photograph
      has most to say

  thalweg tokens holiday/ extra.png --out tokens --heatmap
      a folder and one more; beside each result a picture of where tokens went

  thalweg tokens photo.jpg --out tokens --budget 1024 --sides 4..12 \\
      --fixation 0.3,0.7 --foveal-bias 0.5
      fewer and smaller lattices, less of them away from a point 30% down and
      70% across

  thalweg tokens photo.jpg --out tokens --weights head.safetensors \\
      --query question.safetensors
      more of them where the photograph meets a question

  thalweg tokens photos/ --out tokens --device cuda:1 --json > run.json
      on the second GPU, with a report for programs

  thalweg devices
      what there is to run on";

const NOTES: &str = "\
Results:
  DIR/STEM.safetensors for each image, with T tokens in K selected patches of
  a grid of gh x gw = N:

  tokens      f32 [T, 13]     means over a cell: R G B, L* a* b*, Gx Gy edge,
                              y x eccentricity, local contrast; f16 or bf16
                              with --precision
  cu_seqlens  i32 [K + 1]     where in tokens each selected patch starts
  patch_id    i32 [K]         raster index of each selected patch
  position    f32 [T, 2]      centre of each cell, (y, x) from 0 to 1
  sides       i32 [gh, gw]    n, where a patch has n x n tokens; 0 for none
  relevance   f32 [gh, gw]    what decided; entropy and salience, of the same
                              shape, are the scores it was made of; with a
                              query also participatory
  mix         f32 [3]         with a query: what entropy, salience and
                              participatory weighed
  features    f32 [N, 13]     means over whole patches
  textures    f32 [13, H, W]  the planes themselves, with --textures

  With --profile arr-coc-0-1, of a fixed grid of 32 x 32 patches:

  textures    f32 [13, 32, 32]    its planes, edges scaled over the image
  information, perspectival, participatory
              f32 [32, 32]        the three scores, and relevance made of them
  topk        i32 [200]           the most relevant patches, in order

  The metadata holds every parameter, the size and name of the image, the
  device and the versions. Existing results are replaced in one step. A result
  is whole or absent, whatever happens.

Weights and query:
  Safetensors of F32, F16 or BF16. The weights are a PyTorch state dict:
  participatory_scorer.texture_proj.{0,2}.{weight,bias}, for features to 64
  hidden units to D, and if it has a balancer
  balancer.weight_predictor.{0,2,4}.{weight,bias}. The query is a tensor
  `query` [D]. The scores are weighed by --mix if given, else by the balancer
  if there is one, else equally.

Images:
  PNG and JPEG, told by content, of 1 to 16384 pixels a side. Gray is
  replicated to RGB. Alpha is dropped, not blended. 16-bit samples are rounded
  to 8 bits: (v * 255 + 32767) / 65535 in whole numbers. CMYK is converted by
  the JPEG decoder; ICC profiles and gamma are ignored. The EXIF orientation is
  applied: results are those of the upright photograph. Of a folder, *.png,
  *.jpg and *.jpeg are taken in order of name, but no subfolders, no hidden
  files and no *.heatmap.png.

Exit code:
  0  all done
  1  something failed; all other images are done, the failed ones listed
  2  wrong usage
  128 and a signal's number, such as 130 after Ctrl-C and 143 after SIGTERM:
     the signal ended the run; the files there are whole";

/// Photographs to adaptive visual tokens.
///
/// Cuts a photograph into patches, scores each one, and spends a budget of tokens where the scores
/// are high: none, or from 8 x 8 to 20 x 20 tokens a patch. Runs on an NVIDIA GPU through its driver
/// alone, and on the CPU where there is none.
#[derive(Debug, Parser)]
#[command(name = "thalweg", version, after_long_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Turn photographs into tokens, one safetensors file each
    // Written out, because clap takes what the environment sets for required.
    #[command(
        after_long_help = format!("{EXAMPLES}\n\n{NOTES}"),
        override_usage = "thalweg tokens [OPTIONS] --out <DIR> <image|folder>..."
    )]
    Tokens(TokensArgs),
    /// List the devices there are and what they can do, and say which one a run would use
    Devices(DevicesArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DeviceArg {
    /// Where to run; auto is the best GPU, or the CPU where there is none to use
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
    /// The device, with a line that says why it is the CPU where `auto` found no GPU.
    pub(crate) fn open(&self) -> Result<(Device, Option<String>), String> {
        Device::from_spec(&self.name)
            .map_err(|e| format!("device {} (from --device or THALWEG_DEVICE): {e}", self.name))
    }
}

#[derive(Debug, Args)]
pub(crate) struct TokensArgs {
    /// PNG or JPEG files, or folders of them
    #[arg(required = true, value_name = "image|folder")]
    pub(crate) inputs: Vec<PathBuf>,

    /// Folder for the results; made if missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    #[command(flatten)]
    pub(crate) device: DeviceArg,

    /// Patch side in pixels
    #[arg(long, value_name = "PIXELS", default_value = "32", allow_hyphen_values = true, value_parser = patch)]
    patch: u32,

    /// The most tokens an image may get
    #[arg(long, value_name = "TOKENS", default_value = "4096", allow_hyphen_values = true, value_parser = budget)]
    budget: u64,

    /// Towards 1 tokens gather in few patches, towards 0 they spread
    #[arg(long, default_value = "0.8", allow_hyphen_values = true, value_parser = focus)]
    focus: f64,

    /// Smallest and largest n of the n x n tokens in a selected patch, both included
    #[arg(long, value_name = "LO..HI", default_value = "8..20", allow_hyphen_values = true, value_parser = sides)]
    sides: RangeInclusive<u32>,

    /// How much salience falls with distance from the fixation point, 0 to 1
    #[arg(long, value_name = "BIAS", default_value = "0", allow_hyphen_values = true, value_parser = unit)]
    foveal_bias: f32,

    /// The point looked at, as fractions of height and width
    #[arg(long, value_name = "Y,X", default_value = "0.5,0.5", allow_hyphen_values = true, value_parser = fixation)]
    fixation: [f32; 2],

    /// How tokens are stored: 32-bit floats, IEEE halves or bfloat16
    #[arg(long, value_name = "NAME", default_value = "f32")]
    pub(crate) precision: Precision,

    /// Weights of a head, in safetensors: with --query, how well a patch meets it becomes part of its relevance
    #[arg(long, value_name = "FILE", requires = "query")]
    pub(crate) weights: Option<PathBuf>,

    /// A query embedding, in safetensors
    #[arg(long, value_name = "FILE", requires = "weights")]
    pub(crate) query: Option<PathBuf>,

    /// What entropy, salience and (with --query) the participatory score weigh, instead of equally or as the balancer says
    #[arg(long, value_name = "A,B[,C]", allow_hyphen_values = true, value_parser = mix)]
    pub(crate) mix: Option<Mix>,

    /// Compute what another project does: `arr-coc-0-1` is the published PyTorch ARR-COC 0.1
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

    /// Print one JSON document on standard output instead of the summary
    #[arg(long)]
    pub(crate) json: bool,
}

/// Weights of two scores, or of three.
#[derive(Clone, Debug)]
pub(crate) struct Mix(Vec<f32>);

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(f32::to_string).collect::<Vec<_>>().join(","))
    }
}

/// How tokens are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    F32,
    F16,
    Bf16,
}

impl Precision {
    /// The name of the format in a safetensors file.
    pub(crate) fn dtype(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }
}

impl From<Precision> for thalweg_vision::Precision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::F16 => Self::F16,
            Precision::Bf16 => Self::Bf16,
        }
    }
}

/// What other projects compute.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Profile {
    #[value(name = "arr-coc-0-1", help = "The published PyTorch ARR-COC 0.1")]
    ArrCoc01,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArg,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

impl TokensArgs {
    /// The parameters of the pipeline.
    pub(crate) fn params(&self) -> Params {
        Params {
            patch: self.patch,
            sides: self.sides.clone(),
            budget: self.budget,
            focus: self.focus,
            fixation: self.fixation,
            foveal_bias: self.foveal_bias,
            mix: self.mix.as_ref().map(|Mix(mix)| [mix[0], mix[1], mix.get(2).copied().unwrap_or(0.0)]),
        }
    }

    /// What no single flag can be blamed for by its own value parser.
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

/// Parses the process's arguments; prints help, version or a usage error and exits where they ask for it.
pub(crate) fn parse() -> Command {
    let command = Cli::parse().command;
    if let Command::Tokens(args) = &command
        && let Err(message) = args.check()
    {
        eprintln!("error: {message}\n\nFor more information, try '--help'.");
        std::process::exit(2);
    }
    command
}

fn number<T: FromStr>(text: &str, expected: &str, accept: impl Fn(&T) -> bool) -> Result<T, String> {
    text.trim().parse().ok().filter(accept).ok_or_else(|| format!("expected {expected}"))
}

fn device(text: &str) -> Result<String, String> {
    let text = if text.is_empty() { "auto" } else { text }; // an empty THALWEG_DEVICE
    let known = matches!(text, "auto" | "cpu") || text.strip_prefix("cuda:").is_some_and(|n| n.parse::<u16>().is_ok());
    known
        .then(|| text.to_owned())
        .ok_or_else(|| "expected auto, cpu or cuda:N with N from 0 (the value may come from THALWEG_DEVICE)".to_owned())
}

fn patch(text: &str) -> Result<u32, String> {
    number(text, "a whole number of pixels, 1 to 16384", |n| (1..=16384).contains(n))
}

fn budget(text: &str) -> Result<u64, String> {
    number(text, "a whole number of tokens, at least 1", |&n| n > 0)
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
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_library() {
        let cli = Cli::try_parse_from(["thalweg", "tokens", "a.png", "--out", "x"]).unwrap();
        let Command::Tokens(args) = cli.command else { panic!("tokens was asked for") };
        assert_eq!(format!("{:?}", args.params()), format!("{:?}", Params::default()));
    }
}
