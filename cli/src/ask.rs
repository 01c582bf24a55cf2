//! The subcommand `thalweg ask`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use thalweg::{DeviceSlice, Stream, stream_tags};
use thalweg_train::{
    Result as Trained, Tensors, TextRequest, TextServer, TextServerOptions, VisionEncoder, VisionLanguage,
    VisionLanguageConfig,
};
use thalweg_vision::{Pipeline, TokenParams, TokenSet};

use crate::args::{DecodeArg, DeviceArg};
use crate::inputs;
use crate::output::say;
use crate::photos::{CHUNK_IMAGES, Photos, print_lines};
use crate::train::tokenizer::{TOKENIZER, Tokenizer};
use crate::train::{CLASSES, TOKENS, metadata, value};

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

/// A model that answers. The decoder for one text multiplies one row for each token, where the
/// server multiplies 16.
enum Model<'a> {
    One(Box<VisionLanguage<Work, f32>>),
    Several(Box<Several<'a>>),
}

impl Model<'_> {
    /// Returns the answer about each image, which has at most `room` ids.
    fn answers(&mut self, sets: &[TokenSet], question: &[i32], room: usize) -> Trained<Vec<Vec<i32>>> {
        match self {
            Self::One(model) => {
                sets.iter().map(|set| model.generate(&set.tokens, &set.position, question, room)).collect()
            }
            Self::Several(model) => {
                model.answers(sets, &TextRequest::default().with_prompt(question.to_vec()).with_count(room))
            }
        }
    }
}

/// A model that answers about the images of a chunk at once.
struct Several<'a> {
    stream: Stream<Work>,
    file: &'a Tensors,
    encoder: VisionEncoder<Work, f32>,
    /// The server, and the most rows of an image that it has room for.
    server: Option<(TextServer<Work, f32>, usize)>,
}

impl Several<'_> {
    fn answers(&mut self, sets: &[TokenSet], request: &TextRequest) -> Trained<Vec<Vec<i32>>> {
        let Self { stream, file, encoder, server } = self;
        let rows = |set: &TokenSet| set.position.len() / 2;
        let Some(most) = sets.iter().map(rows).max() else { return Ok(Vec::new()) };
        let (server, _) = match server.take() {
            Some(made) if made.1 >= most => server.insert(made),
            smaller => {
                drop(smaller); // its memory is free before the new one is allocated
                // All images are asked at once, if there are pages for them.
                let each = TextServerOptions::pages_of(most + encoder.config().max_tokens);
                let page = TextServerOptions::page_bytes::<f32>(encoder.config()).max(1);
                let pages = (CHUNK_IMAGES * each).min(CACHE_BYTES / page).max(each);
                let options = TextServerOptions::default().with_texts(CHUNK_IMAGES).with_pages(pages);
                let options = options.with_image_rows(most);
                server.insert((TextServer::from_tensors(stream, file, options)?, most))
            }
        };
        let asked = sets.iter().map(|set| server.submit(request.clone().with_rows(rows(set))));
        let asked = asked.collect::<Trained<Vec<_>>>()?;
        let number = |ticket| asked.iter().position(|of| *of == ticket).expect("it was submitted");
        while !server.is_idle() {
            server.step(|ticket, image: &mut DeviceSlice<Work, f32>| {
                let TokenSet { tokens, position, .. } = &sets[number(ticket)];
                encoder.encode(&*stream.upload_blocking(tokens)?, &*stream.upload_blocking(position)?, image)
            })?;
        }
        let mut answers = vec![Vec::new(); sets.len()];
        while let Some((ticket, answer)) = server.finished() {
            answers[number(ticket)] = answer?;
        }
        Ok(answers)
    }
}

/// Runs the subcommand: prints path and answer of each image, in order.
pub(crate) fn run(args: &AskArgs) -> Result<ExitCode, String> {
    let file = Tensors::load(&args.model).map_err(|e| e.to_string())?;
    if file.metadata.contains_key(CLASSES) {
        return Err(file.format_error("this model tells classes: use `thalweg predict`".into()).to_string());
    }
    let params: TokenParams = value(&file, TOKENS)?;
    let wrong = |what: String| file.format_error(what).to_string();
    let tokenizer = Tokenizer::from_json(metadata(&file, TOKENIZER)?).map_err(wrong)?;
    let question = tokenizer.ids(&args.question).map_err(|e| format!("--question: {e}"))?;
    let (device, note) = args.device.open()?;
    if let Some(note) = note {
        say(format_args!("thalweg: {note}"));
    }
    let stream = device.stream::<Work>().map_err(|e| e.to_string())?;
    let VisionLanguageConfig { max_tokens: places, vocab_size, gate, image_encoder, .. } =
        VisionLanguageConfig::from_tensors(&file).map_err(|e| e.to_string())?;
    if vocab_size != tokenizer.size() {
        return Err(wrong(format!("it has {vocab_size} ids, and its tokenizer {}", tokenizer.size())));
    }
    if gate.is_some() {
        let what = "its tokens go through a gate, which `thalweg ask` does not have: a program asks it with \
                    `TokenTransformer::gated`";
        return Err(wrong(what.into()));
    }
    if image_encoder.is_some() {
        let what = "its encoder has pixels, and `thalweg ask` gives it tokens: a program asks it with `VisionLanguage`";
        return Err(wrong(what.into()));
    }
    // The last id is said and not heard, so it needs no place.
    let room = (places + 1).saturating_sub(question.len());
    if room == 0 {
        return Err(format!(
            "--question: {} {}, and the model has room for {places}",
            question.len(),
            tokenizer.noun()
        ));
    }
    let model = if args.images.len() == 1 {
        VisionLanguage::from_tensors(&stream, &file).map(|model| Model::One(Box::new(model)))
    } else {
        VisionEncoder::from_tensors(&stream, &file)
            .map(|encoder| Model::Several(Box::new(Several { stream, file: &file, encoder, server: None })))
    };
    let mut model = model.map_err(|e| e.to_string())?;
    let pipeline = Pipeline::new(device, params).map_err(|e| e.to_string())?;
    let mut photos = Photos::open(device, &args.images, &args.decode)?;
    let mut failed = 0;
    let name = |index: usize| inputs::name(&args.images[index]).display();
    while let Some(chunk) = photos.next_chunk(3)? {
        let mut sets = Vec::new();
        for (&index, set) in chunk.inputs.iter().zip(chunk.pixels.tokens(&pipeline)) {
            sets.push(set.map_err(|e| format!("{}: {e}", name(index)))?);
        }
        let answers = model.answers(&sets, &question, room).map_err(|e| e.to_string())?;
        let mut lines = Vec::new();
        for (&index, answer) in chunk.inputs.iter().zip(answers) {
            lines.push((
                index,
                match answer.last() {
                    Some(0) => tokenizer.text(&answer).map(|text| format!("{}\t{}\n", name(index), one_line(&text))),
                    _ => Err(format!(
                        "no whole answer fits: the model has room for {places} {} with the question",
                        tokenizer.noun()
                    )),
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
