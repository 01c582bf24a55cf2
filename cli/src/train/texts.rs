//! Questions about images with their answers, and how texts become ids: byte by byte.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The key of a model's metadata that names its tokenizer, and the name of the only one.
pub(crate) const TOKENIZER: &str = "thalweg.tokenizer";
pub(crate) const BYTES: &str = "bytes";
/// The number of ids: id 0 ends a text, and the others are bytes.
pub(crate) const IDS: usize = 256;

/// Returns the ids of a text.
pub(crate) fn ids(text: &str) -> Result<Vec<i32>, String> {
    match text.bytes().position(|byte| byte == 0) {
        Some(place) => Err(format!("byte {place} of {text:?} is 0, which ends a text")),
        None if text.is_empty() => Err("the text is empty".into()),
        None => Ok(text.bytes().map(i32::from).collect()),
    }
}

/// Returns the text of ids up to the first 0. What is no UTF-8 becomes U+FFFD.
pub(crate) fn text(ids: &[i32]) -> String {
    let bytes: Vec<u8> = ids.iter().map_while(|&id| u8::try_from(id).ok().filter(|&byte| byte > 0)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

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
pub(super) fn read(data: &Path) -> Result<(Vec<PathBuf>, Vec<Question>), String> {
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
            .map(|(name, text)| ids(text).map_err(|e| here(format!("{name}: {e}"))))
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

#[cfg(test)]
mod tests {
    use super::{ids, text};

    #[test]
    fn texts_are_their_bytes() {
        for whole in ["which digit", "häuser ☕", "\u{1}\u{7f}"] {
            let mut found = ids(whole).unwrap();
            assert_eq!(text(&found), whole);
            found.extend([0, 65]);
            assert_eq!(text(&found), whole, "what stands behind the end is no text");
        }
        assert_eq!(text(&[104, 105, 0xe9]), "hi\u{fffd}");
        assert!(ids("").is_err() && ids("a\0b").unwrap_err().contains("byte 1 of"));
    }
}
