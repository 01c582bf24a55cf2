//! Tokenizers: how texts become the ids of a model, and back.
//!
//! Id 0 ends a text. Without a `tokenizer.json` the other ids are the bytes 1 to 255. With one they
//! are its ids plus 1, so its id 0 is an id like all others. Questions and answers are parts of one
//! sequence, whose layout the model knows. So its post-processor adds nothing to them, nothing is
//! padded, and nothing is cut. A special token is in a text if the text says it.

use std::fs;
use std::path::Path;

/// The key of a model's metadata that has its tokenizer, as JSON: the string `bytes`, or all of a
/// `tokenizer.json`, which is an object.
pub(crate) const TOKENIZER: &str = "thalweg.tokenizer";
/// The JSON of the tokenizer of bytes.
pub(crate) const BYTES: &str = "\"bytes\"";
/// The ids of the tokenizer of bytes.
const BYTE_IDS: usize = 256;
/// The most bytes of a `tokenizer.json`. As a string in the header of a model it has twice as many
/// at most, and a header has 100 MB at most.
const MOST: usize = 47 << 20;

pub(crate) enum Tokenizer {
    Bytes,
    #[cfg(feature = "tokenizers")]
    Json {
        tokenizer: Box<tokenizers::Tokenizer>,
        size: usize,
    },
}

/// Returns the text of a `tokenizer.json`, which [`Tokenizer::from_json`] understands or refuses.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let wrong = |what: String| format!("--tokenizer {}: {what}", path.display());
    let text = fs::read_to_string(path).map_err(|e| wrong(format!("cannot read it: {e}")))?;
    match text.trim_start().starts_with('{') {
        false => Err(wrong("no tokenizer.json, which is a JSON object".into())),
        true if text.len() > MOST => Err(wrong(format!("more than {} MiB", MOST >> 20))),
        true => Ok(text),
    }
}

impl Tokenizer {
    /// Makes the tokenizer that a model or a checkpoint has, or that [`read`] returned.
    pub(crate) fn from_json(json: &str) -> Result<Self, String> {
        match json {
            BYTES => Ok(Self::Bytes),
            _ if json.trim_start().starts_with('{') => Self::from_object(json),
            _ => Err(format!("the tokenizer {json} is none that this version has")),
        }
    }

    #[cfg(not(feature = "tokenizers"))]
    fn from_object(_: &str) -> Result<Self, String> {
        Err("a tokenizer.json needs `thalweg` with the feature `tokenizers`: in a checkout, \
             cargo install --path cli --features tokenizers"
            .into())
    }

    #[cfg(feature = "tokenizers")]
    fn from_object(json: &str) -> Result<Self, String> {
        let wrong = |e: tokenizers::Error| format!("no tokenizer.json: {e}");
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(json).map_err(wrong)?;
        tokenizer.with_padding(None).with_truncation(None).map_err(wrong)?;
        tokenizer.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        if let tokenizers::ModelWrapper::BPE(model) = tokenizer.get_model()
            && model.dropout.is_some_and(|share| share > 0.0)
        {
            return Err("the tokenizer has dropout, so the ids of a text are random; make `dropout` null".into());
        }
        // There may be gaps between its ids.
        let last = tokenizer.get_vocab(true).into_values().max().ok_or("the tokenizer has no ids")?;
        let size = i32::try_from(last).ok().and_then(|last| last.checked_add(2));
        let size = size.ok_or_else(|| format!("the tokenizer has the id {last}, which is too large"))?;
        Ok(Self::Json { tokenizer: Box::new(tokenizer), size: size as usize })
    }

    /// Returns the number of ids, with the 0 that ends a text.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Bytes => BYTE_IDS,
            #[cfg(feature = "tokenizers")]
            Self::Json { size, .. } => *size,
        }
    }

    /// Returns a noun for ids.
    pub(crate) fn noun(&self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            #[cfg(feature = "tokenizers")]
            Self::Json { .. } => "ids",
        }
    }

    /// Returns the ids of a text, without the 0 that ends it.
    pub(crate) fn ids(&self, text: &str) -> Result<Vec<i32>, String> {
        if text.is_empty() {
            return Err("the text is empty".into());
        }
        match self {
            Self::Bytes => match text.bytes().position(|byte| byte == 0) {
                Some(place) => Err(format!("byte {place} of {text:?} is 0, which ends a text")),
                None => Ok(text.bytes().map(i32::from).collect()),
            },
            #[cfg(feature = "tokenizers")]
            Self::Json { tokenizer, .. } => {
                let found =
                    tokenizer.encode_fast(text, false).map_err(|e| format!("the tokenizer on {text:?}: {e}"))?;
                match found.get_ids() {
                    [] => Err(format!("the tokenizer has no id for anything of {text:?}")),
                    ids => Ok(ids.iter().map(|&id| id as i32 + 1).collect()),
                }
            }
        }
    }

    /// Returns the text of ids up to the first 0. What is no UTF-8 becomes U+FFFD.
    pub(crate) fn text(&self, ids: &[i32]) -> Result<String, String> {
        let ids = ids.iter().take_while(|id| **id > 0);
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> = ids.map_while(|&id| u8::try_from(id).ok()).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            #[cfg(feature = "tokenizers")]
            Self::Json { tokenizer, .. } => {
                let ids: Vec<u32> = ids.map(|&id| id as u32 - 1).collect();
                tokenizer.decode(&ids, false).map_err(|e| format!("the tokenizer on {ids:?}: {e}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BYTES, Tokenizer};

    #[test]
    fn texts_are_their_bytes() {
        let bytes = Tokenizer::from_json(BYTES).unwrap();
        for whole in ["which digit", "häuser ☕", "\u{1}\u{7f}"] {
            let mut found = bytes.ids(whole).unwrap();
            assert_eq!(bytes.text(&found).unwrap(), whole);
            found.extend([0, 65]);
            assert_eq!(bytes.text(&found).unwrap(), whole, "what stands behind the end is no text");
        }
        assert_eq!(bytes.text(&[104, 105, 0xe9]).unwrap(), "hi\u{fffd}");
        assert!(bytes.ids("").is_err() && bytes.ids("a\0b").unwrap_err().contains("byte 1 of"));
        assert!(Tokenizer::from_json("\"words\"").err().unwrap().contains("none that this version has"));
    }

    #[cfg(feature = "tokenizers")]
    mod json {
        use super::Tokenizer;

        const FILE: &str = include_str!("../../tests/fixtures/tokenizer.json");

        /// The file has merges, a template with special tokens, truncation to 4 ids and padding.
        #[test]
        fn texts_are_the_ids_of_the_file_and_one() {
            let file = Tokenizer::from_json(FILE).unwrap();
            assert_eq!(file.size(), 46);
            // Id 0 of the file, `l`, is 1 here, and `ying`, 30 there, is 31.
            assert_eq!(file.ids("lying").unwrap(), [1, 31], "`lying` is `l` and `ying`");
            assert_eq!(file.text(&[1, 31, 0, 5]).unwrap(), "lying", "what stands behind the end is no text");
            for whole in ["which way?", "coin? coin? coin?", "lll", " no", "<s>which</s>"] {
                let mut ids = file.ids(whole).unwrap();
                assert!(ids.iter().all(|id| (1..46).contains(id)), "{ids:?}");
                assert_eq!(file.text(&ids).unwrap(), whole);
                ids.push(0);
                assert_eq!(file.text(&ids).unwrap(), whole);
            }
            assert_eq!(file.ids("<s>l").unwrap(), [44, 1], "a special token that the text says");
        }

        #[test]
        fn what_is_no_tokenizer_is_refused() {
            let refused = |json: &str| Tokenizer::from_json(json).err().expect("an error");
            for json in ["{", "{}", "{\"version\": \"1.0\"}", &FILE.replace("\"1.0\"", "\"2.0\"")] {
                assert!(refused(json).starts_with("no tokenizer.json: "), "{}", refused(json));
            }
            let random = FILE.replace("\"dropout\": null", "\"dropout\": 0.5");
            assert!(refused(&random).contains("make `dropout` null"));
            let words = |vocab: &str| {
                format!(
                    r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
                    "pre_tokenizer": {{"type": "Whitespace"}}, "post_processor": null, "decoder": null,
                    "model": {{"type": "WordLevel", "vocab": {vocab}, "unk_token": "?"}}}}"#
                )
            };
            assert!(refused(&words("{}")).contains("has no ids"));
            assert!(refused(&words(r#"{"a": 2147483647}"#)).contains("the id 2147483647, which is too large"));
            let words = Tokenizer::from_json(&words(r#"{"a": 0, "b": 7}"#)).unwrap();
            assert_eq!((words.size(), words.ids("b a").unwrap()), (9, vec![8, 1]));
            assert_eq!(words.text(&[8, 5, 1]).unwrap(), "b a", "an id in a gap has no text");
            assert!(words.ids("c").unwrap_err().contains("the tokenizer on \"c\": "), "it has no id for other words");
            assert!(words.ids(" ").unwrap_err().contains("no id for anything of \" \""));
        }
    }
}
