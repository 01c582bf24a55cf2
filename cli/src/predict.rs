//! The subcommand `thalweg predict`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use thalweg::stream_tags;
use thalweg_train::{Tensors, TokenTransformer};
use thalweg_vision::{Pipeline, TokenParams};

use crate::args::{DecodeArg, DeviceArg};
use crate::inputs;
use crate::output::say;
use crate::photos::{Photos, print_lines};
use crate::train::data::Packed;
use crate::train::tokenizer::TOKENIZER;
use crate::train::{CLASSES, TOKENS, value};

stream_tags!(Work);

pub(crate) const NOTES: &str = "\
Examples:
  thalweg predict model.safetensors digits/3/*.png
      prints a line for each, such as: digits/3/0042.png\t3\t0.998120

  camera-snapshot | thalweg predict model.safetensors -
      reads one photograph from standard input

Exit code:
  0  all photographs have a line
  1  something failed; a line on standard error names each photograph without one
  2  wrong usage";

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

/// Runs the subcommand: prints path, class and probability of each image, in order.
pub(crate) fn run(args: &PredictArgs) -> Result<ExitCode, String> {
    let file = Tensors::load(&args.model).map_err(|e| e.to_string())?;
    if file.metadata.contains_key(TOKENIZER) {
        return Err(file.format_error("this model answers questions: use `thalweg ask`".into()).to_string());
    }
    let (classes, params): (Vec<String>, TokenParams) = (value(&file, CLASSES)?, value(&file, TOKENS)?);
    let (device, note) = args.device.open()?;
    if let Some(note) = note {
        say(format_args!("thalweg: {note}"));
    }
    let stream = device.stream::<Work>().map_err(|e| e.to_string())?;
    let mut model = TokenTransformer::<_, f32>::from_tensors(&stream, &file).map_err(|e| e.to_string())?;
    if model.config().num_classes != classes.len() || model.config().input_dim != thalweg_vision::PLANES {
        let what = format!("the weights are not those of a model with the classes {classes:?}");
        return Err(file.format_error(what).to_string());
    }
    let pipeline = Pipeline::new(device, params).map_err(|e| e.to_string())?;
    let mut photos = Photos::open(device, &args.images, &args.decode)?;
    let mut failed = 0;
    let name = |index: usize| inputs::name(&args.images[index]).display();
    while let Some(chunk) = photos.next_chunk(3)? {
        let mut lines = Vec::new();
        if !chunk.inputs.is_empty() {
            let mut packed = Packed::default();
            for (&index, set) in chunk.inputs.iter().zip(chunk.pixels.tokens(&pipeline)) {
                packed.add(&set.map_err(|e| format!("{}: {e}", name(index)))?);
            }
            let found = model.evaluate(&packed.batch()).map_err(|e| e.to_string())?;
            for ((&index, logits), &class) in
                chunk.inputs.iter().zip(found.logits.chunks_exact(classes.len())).zip(&found.predictions)
            {
                let class = class as usize;
                let total: f64 = logits.iter().map(|&v| f64::from(v - logits[class]).exp()).sum();
                lines.push((index, Ok(format!("{}\t{}\t{:.6}\n", name(index), classes[class], 1.0 / total))));
            }
        }
        lines.extend(chunk.failures.into_iter().map(|(index, error)| (index, Err(error))));
        failed += print_lines(&args.images, lines)?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
