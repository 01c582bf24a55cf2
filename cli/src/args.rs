//! The arguments that commands share, and those of `tokens`, `augment`, `process` and `devices`.
//! They check everything that needs no file and no device; a violation is a usage error (exit code
//! 2).

use std::ffi::OsStr;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use safetensors::Dtype;
use thalweg::{Device, Error, OpenedDevice};
use thalweg_loader::{AlphaRule, DecodeBackend, DepthRule, OrientationRule, PhotoOptions};
use thalweg_processor::{CLIP, ColorStatistics, HALF, IMAGENET, Resampler, Style};
use thalweg_vision::TokenParams;

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
        let opened = Device::open(&self.name);
        let OpenedDevice { device, fallback, .. } =
            opened.map_err(|e| format!("device {} (from --device or THALWEG_DEVICE): {e}", self.name))?;
        Ok((device, fallback))
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

    /// The rules for photographs that are not upright, opaque and of 8 bits.
    #[arg(skip)]
    pub(crate) photo: PhotoOptions,
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
    #[arg(long, value_name = "NAME", value_parser = one_of(&[("clip", CLIP), ("imagenet", IMAGENET), ("half", HALF)]))]
    pub(crate) mean: Option<ColorStatistics>,

    /// The library whose resize is computed: of Pillow to 12.1, 12.2 or 13, or of torch
    #[arg(long, value_name = "NAME", default_value = "aten", value_parser = one_of(&[
        ("pil", Resampler::Pil), ("pil-12.2", Resampler::Pil12_2), ("pil-13", Resampler::Pil13), ("aten", Resampler::Aten)
    ]))]
    pub(crate) resampler: Resampler,

    /// The processor whose rounding is computed: the slow or the fast one of transformers, or
    /// ToTensor and Normalize of torchvision
    #[arg(long, value_name = "NAME", default_value = "fast", value_parser = one_of(&[
        ("slow", Style::Slow), ("fast", Style::Fast), ("totensor", Style::ToTensor)
    ]))]
    pub(crate) style: Style,

    /// The format of pixel_values: 32-bit floats, IEEE halves or bfloat16
    #[arg(long, value_name = "NAME", default_value = "f32")]
    pub(crate) precision: Precision,

    /// Turn photographs as EXIF and XMP say, or leave their rows as they are stored, as Pillow does
    #[arg(long, value_name = "NAME", default_value = "applied", value_parser = one_of(&[
        ("applied", OrientationRule::Applied), ("stored", OrientationRule::Stored)
    ]))]
    pub(crate) orient: OrientationRule,

    /// Drop alpha, as Pillow does, or blend over white, as qwen_vl_utils and vLLM do
    #[arg(long, value_name = "NAME", default_value = "drop", value_parser = one_of(&[
        ("drop", AlphaRule::Drop), ("white", AlphaRule::White)
    ]))]
    pub(crate) alpha: AlphaRule,

    /// Round samples of 16 bits to 8 bits, or make of them what Pillow does: it cuts gray at 255
    #[arg(long, value_name = "NAME", default_value = "rounded", value_parser = one_of(&[
        ("rounded", DepthRule::Rounded), ("pillow", DepthRule::Pillow)
    ]))]
    pub(crate) depth: DepthRule,

    /// Print one JSON document on standard output instead of the summary
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses one of these names to the value that it stands for.
fn one_of<T: Copy + Send + Sync + 'static>(values: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.iter().map(|(name, _)| *name)).try_map(|given| {
        let found = values.iter().find(|(name, _)| *name == given);
        found.map(|(_, value)| *value).ok_or("there is no such name")
    })
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

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArg,

    /// Also measure, on the device of a run, whether two streams run kernels at once. The device
    /// should be idle
    #[arg(long)]
    pub(crate) check: bool,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
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
    pub(crate) fn check(&self) -> Result<(), String> {
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

pub(crate) fn number<T: FromStr>(text: &str, expected: &str, accept: impl Fn(&T) -> bool) -> Result<T, String> {
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

pub(crate) fn patch(text: &str) -> Result<u32, String> {
    number(text, "a whole number of pixels, 1 to 16384", |n| (1..=16384).contains(n))
}

pub(crate) fn budget(text: &str) -> Result<u64, String> {
    number(text, "a whole number of tokens, at least 1", |&n| n > 0)
}

fn focus(text: &str) -> Result<f64, String> {
    number(text, "a number above 0 and below 1", |&x| x > 0.0 && x < 1.0)
}

fn unit(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |x| (0.0..=1.0).contains(x))
}

pub(crate) fn sides(text: &str) -> Result<RangeInclusive<u32>, String> {
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
