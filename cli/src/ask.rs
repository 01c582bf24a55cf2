//! The subcommand `thalweg ask`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use thalweg::stream_tags;
use thalweg_train::{Tensors, VisionLanguage};
use thalweg_vision::{Pipeline, TokenParams};

use crate::args::{DecodeArg, DeviceArg};
use crate::inputs;
use crate::output::say;
use crate::photos::{Photos, print_lines};
use crate::train::texts::{BYTES, TOKENIZER, ids, text};
use crate::train::{CLASSES, TOKENS, value};

stream_tags!(Work);

pub(crate) const NOTES: &str = "\
Examples:
  thalweg ask model.safetensors digits/3/*.png --question 'which digit'
      prints a line for each, such as: digits/3/0042.png\t3

Exit code:
  0  all photographs have a line
  1  something failed; a line on standard error names each photograph without one
  2  wrong usage";

#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    /// A model that `thalweg train` wrote from questions
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,

    /// PNG, JPEG or WebP files, or - for an image on standard input; a line for each: path and
    /// answer, separated by a tab
    #[arg(required = true, value_name = "image|-")]
    pub(crate) images: Vec<PathBuf>,

    /// The question about each of them
    #[arg(long, value_name = "TEXT")]
    pub(crate) question: String,

    #[command(flatten)]
    pub(crate) device: DeviceArg,

    #[command(flatten)]
    pub(crate) decode: DecodeArg,
}

/// Runs the subcommand: prints path and answer of each image, in order.
pub(crate) fn run(args: &AskArgs) -> Result<ExitCode, String> {
    let file = Tensors::load(&args.model).map_err(|e| e.to_string())?;
    if file.metadata.contains_key(CLASSES) {
        return Err(file.format_error("this model tells classes: use `thalweg predict`".into()).to_string());
    }
    let (tokenizer, params): (String, TokenParams) = (value(&file, TOKENIZER)?, value(&file, TOKENS)?);
    if tokenizer != BYTES {
        return Err(file
            .format_error(format!("the tokenizer {tokenizer:?} is none that this version has"))
            .to_string());
    }
    let question = ids(&args.question).map_err(|e| format!("--question: {e}"))?;
    let (device, note) = args.device.open()?;
    if let Some(note) = note {
        say(format_args!("thalweg: {note}"));
    }
    let stream = device.stream::<Work>().map_err(|e| e.to_string())?;
    let mut model = VisionLanguage::<_, f32>::from_tensors(&stream, &file).map_err(|e| e.to_string())?;
    let places = model.config().max_tokens;
    // The last id is said and not heard, so it needs no place.
    let room = (places + 1).saturating_sub(question.len());
    if room == 0 {
        return Err(format!("--question: {} bytes, and the model has room for {places}", question.len()));
    }
    let pipeline = Pipeline::new(device, params).map_err(|e| e.to_string())?;
    let mut photos = Photos::open(device, &args.images, &args.decode)?;
    let mut failed = 0;
    let name = |index: usize| inputs::name(&args.images[index]).display();
    while let Some(chunk) = photos.next_chunk(3)? {
        let mut lines = Vec::new();
        for (&index, set) in chunk.inputs.iter().zip(chunk.pixels.tokens(&pipeline)) {
            let wrong = |e: String| format!("{}: {e}", name(index));
            let set = set.map_err(|e| wrong(e.to_string()))?;
            let answer = model.generate(&set.tokens, &set.position, &question, room);
            let answer = answer.map_err(|e| wrong(e.to_string()))?;
            lines.push((
                index,
                match answer.last() {
                    Some(0) => Ok(format!("{}\t{}\n", name(index), one_line(&text(&answer)))),
                    _ => Err(format!("no whole answer fits: the model has room for {places} bytes with the question")),
                },
            ));
        }
        lines.extend(chunk.failures.into_iter().map(|(index, error)| (index, Err(error))));
        failed += print_lines(&args.images, lines)?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a text with its control characters escaped, so that it stays on its line.
fn one_line(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_answer_stays_as_it_is_on_its_line() {
        assert_eq!(super::one_line("it's \"12\" \\ ä"), "it's \"12\" \\ ä");
        assert_eq!(super::one_line("a\tb\nc"), "a\\tb\\nc");
    }
}
