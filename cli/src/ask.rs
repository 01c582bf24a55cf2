//! The subcommand `thalweg ask`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use thalweg::{DeviceSlice, stream_tags};
use thalweg_train::{Tensors, TextRequest, TextServer, TextServerOptions, VisionEncoder};
use thalweg_vision::{Pipeline, TokenParams};

use crate::args::{DecodeArg, DeviceArg};
use crate::inputs;
use crate::output::say;
use crate::photos::{CHUNK_IMAGES, Photos, print_lines};
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

/// The most bytes of keys and values, unless one image needs more.
const CACHE_BYTES: usize = 256 << 20;

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
    let mut encoder = VisionEncoder::<_, f32>::from_tensors(&stream, &file).map_err(|e| e.to_string())?;
    let (places, most) = (encoder.config().max_tokens, params.budget as usize);
    // The last id is said and not heard, so it needs no place.
    let room = (places + 1).saturating_sub(question.len());
    if room == 0 {
        return Err(format!("--question: {} bytes, and the model has room for {places}", question.len()));
    }
    // The images of a chunk are asked at once, if there are pages for all of them.
    let (each, config) = (TextServerOptions::pages_of(most + places), encoder.config());
    let page = TextServerOptions::page_bytes::<f32>(config).max(1);
    let pages = (CHUNK_IMAGES * each).min(CACHE_BYTES / page).max(each);
    let options = TextServerOptions::default().with_texts(CHUNK_IMAGES).with_pages(pages).with_image_rows(most);
    let mut server = TextServer::<_, f32>::from_tensors(&stream, &file, options).map_err(|e| e.to_string())?;
    let request = TextRequest::default().with_prompt(question).with_count(room);
    let pipeline = Pipeline::new(device, params).map_err(|e| e.to_string())?;
    let mut photos = Photos::open(device, &args.images, &args.decode)?;
    let mut failed = 0;
    let name = |index: usize| inputs::name(&args.images[index]).display();
    while let Some(chunk) = photos.next_chunk(3)? {
        let mut asked = Vec::new();
        for (&index, set) in chunk.inputs.iter().zip(chunk.pixels.tokens(&pipeline)) {
            let wrong = |e: String| format!("{}: {e}", name(index));
            let set = set.map_err(|e| wrong(e.to_string()))?;
            let ticket = server.submit(request.clone().with_rows(set.position.len() / 2));
            asked.push((ticket.map_err(|e| wrong(e.to_string()))?, index, set));
        }
        while !server.is_idle() {
            let image = |ticket, rows: &mut DeviceSlice<Work, f32>| {
                let (_, _, set) = asked.iter().find(|(of, ..)| *of == ticket).expect("it was submitted");
                encoder.encode(&*stream.upload_blocking(&set.tokens)?, &*stream.upload_blocking(&set.position)?, rows)
            };
            server.step(image).map_err(|e| e.to_string())?;
        }
        let mut lines = Vec::new();
        while let Some((ticket, answer)) = server.finished() {
            let &(_, index, _) = asked.iter().find(|(of, ..)| *of == ticket).expect("it was submitted");
            let answer = answer.map_err(|e| format!("{}: {e}", name(index)))?;
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
