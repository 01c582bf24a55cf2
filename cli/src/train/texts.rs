//! Questions about images, with their answers.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::tokenizer::Tokenizer;

/// A question about an image, and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The place of the image in the list of images.
    pub(super) image: usize,
    /// The ids of the question, those of the answer, and 0.
    pub(super) ids: Vec<i32>,
    /// The number of ids of the question.
    pub(super) asked: i32,
}

/// A line of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    image: PathBuf,
    question: String,
    answer: String,
}

/// Returns whether a data set has questions, and no classes.
pub(super) fn asks(data: &Path) -> bool {
    data.extension().is_some_and(|end| end == "jsonl")
}

/// Reads a file with an object {image, question, answer} in each line. Returns the images, each
/// once, and the questions.
pub(super) fn read(data: &Path, tokenizer: &Tokenizer) -> Result<(Vec<PathBuf>, Vec<Question>), String> {
    let wrong = |what: String| format!("{}: {what}", data.display());
    let text = fs::read_to_string(data).map_err(|e| wrong(format!("cannot read it: {e}")))?;
    let base = data.parent().unwrap_or(Path::new(""));
    let (mut paths, mut places, mut questions) = (Vec::new(), HashMap::new(), Vec::new());
    for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let here = |what: String| wrong(format!("line {line}: {what}"));
        let found: Line = serde_json::from_str(text).map_err(|e| {
            // Each text is one line of the file.
            let (what, place) = (e.to_string(), format!(" at line {} column {}", e.line(), e.column()));
            here(format!("{}; expected image, question and answer", what.trim_end_matches(&place)))
        })?;
        if found.image.as_os_str().is_empty() {
            return Err(here("image: the path is empty".into()));
        }
        let [mut all, answer] = [("question", &found.question), ("answer", &found.answer)]
            .map(|(name, text)| tokenizer.ids(text).map_err(|e| here(format!("{name}: {e}"))))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?
            .try_into()
            .expect("two texts");
        let asked = all.len() as i32;
        all.extend(answer.into_iter().chain([0]));
        let image = *places.entry(base.join(&found.image)).or_insert_with_key(|path| {
            paths.push(path.clone());
            paths.len() - 1
        });
        questions.push(Question { image, ids: all, asked });
    }
    if questions.is_empty() {
        return Err(wrong("there are no questions".into()));
    }
    Ok((paths, questions))
}
