//! `thalweg train --tokenizer`, and `thalweg ask` of its model.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::questions::{questions, train};
use crate::support::{Bench, Run, thalweg};

/// The letters, some merges, and everything that the command leaves out.
const FILE: &str = include_str!("fixtures/tokenizer.json");

/// Gives a model another tokenizer.
fn replace(model: &Path, tokenizer: &str) {
    let bytes = fs::read(model).expect("a model");
    let (len, rest) = bytes.split_first_chunk().expect("the length of the header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let mut header: Value = serde_json::from_slice(header).expect("a header");
    header["__metadata__"]["thalweg.tokenizer"] = json!(tokenizer);
    let header = header.to_string();
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    fs::write(model, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()).expect("a model");
}

#[cfg(not(feature = "tokenizers"))]
#[test]
fn without_the_feature_the_error_names_it() {
    let bench = Bench::new();
    let learn = questions(&bench, "learn", 3, 0);
    let (file, out) = (bench.file("tokenizer.json", FILE), bench.folder.path().join("m.safetensors"));
    let named = ["tokenizer.json: a tokenizer.json needs `thalweg` with the feature `tokenizers`"];
    train(&learn, &out, &["--epochs", "1", "--tokenizer", file.to_str().expect("UTF-8")]).expect(1, &named);
    assert!(!out.exists());
    train(&learn, &out, &["--epochs", "1"]).expect(0, &[]);
    replace(&out, FILE);
    let mut run = thalweg();
    run.arg("ask").arg(&out).arg(learn.with_file_name("lying/000.png")).args(["--question", "coin?"]);
    Run::of(&mut run).expect(1, &["m.safetensors: ", "with the feature `tokenizers`"]);
}

/// A model learns the ids of the file and keeps them: nobody needs the file again. A run that goes
/// on keeps them, too, with the bits of one long run, and takes no others.
#[cfg(feature = "tokenizers")]
#[test]
fn a_model_keeps_its_tokenizer() {
    use crate::questions::{ask, ask_which_way};
    use crate::support::Tokens;

    let bench = Bench::new();
    let (learn, other) = (questions(&bench, "learn", 24, 0), questions(&bench, "other", 10, 1000));
    let place = |name: &str| bench.folder.path().join(name);
    let (file, out, parts) = (bench.file("tokenizer.json", FILE), place("m.safetensors"), place("parts.safetensors"));
    let tokenizer = ["--tokenizer", file.to_str().expect("UTF-8")];
    let val = ["--val", other.to_str().expect("UTF-8"), "--schedule", "constant"];
    let run = |out: &Path, more: &[&str]| train(&learn, out, &[&val[..], more].concat());
    run(&out, &[&tokenizer[..], &["--epochs", "9"]].concat()).expect(0, &[]);
    run(&parts, &[&tokenizer[..], &["--epochs", "2", "--checkpoint-steps", "4"]].concat()).expect(0, &[]);

    let another = bench.file("another.json", FILE.replace("\"no\": 40", "\"no\": 60"));
    let another = another.to_str().expect("UTF-8");
    let refused = run(&parts, &["--epochs", "9", "--resume", "--tokenizer", another]);
    refused.expect(1, &["--resume: the run has another tokenizer"]);
    run(&parts, &[&tokenizer[..], &["--epochs", "3", "--resume"]].concat()).expect(0, &[]);
    fs::remove_file(&file).expect("the file was there");
    let resumed = run(&parts, &["--epochs", "9", "--resume"]).expect(0, &[]);
    assert!(resumed.out.contains("epoch 4/9") && !resumed.out.contains("epoch 3/9"), "{resumed:#?}");
    let [a, b] = [&out, &parts].map(|path| Tokens::read(&path.with_extension("checkpoint.safetensors")));
    assert!(a.bytes() == b.bytes(), "weights and moments have the same bits");
    assert_eq!(Tokens::read(&out).metadata["thalweg.tokenizer"], FILE);
    // 45 ids of the file, and the end.
    assert_eq!(Tokens::read(&out).f32("decoder.tok.weight").0, [46, 16]);

    // One image is asked without the server, and several by it.
    let (images, said) = ask_which_way(&out, &other);
    assert_eq!(ask(&out, "which way?", &images[..1]), said[..1]);

    let asked = |question: &str| {
        let mut run = thalweg();
        run.arg("ask").arg(&out).arg(&images[0]).args(["--question", question]);
        Run::of(&mut run)
    };
    asked("ÄÖ").expect(1, &["--question: the tokenizer has no id for anything of \"ÄÖ\""]);
    asked(&"coin".repeat(65)).expect(1, &["--question: 65 ids, and the model has room for 64"]);
    replace(&out, &FILE.replace("\"coin\": 42", "\"coin\": 50"));
    asked("coin?").expect(1, &["m.safetensors: it has 46 ids, and its tokenizer 52"]);
    replace(&out, "{}");
    asked("coin?").expect(1, &["m.safetensors: no tokenizer.json: "]);
}

#[cfg(feature = "tokenizers")]
#[test]
fn two_ranks_have_one_tokenizer() {
    use crate::support::bars::report;

    let bench = Bench::new();
    let learn = questions(&bench, "learn", 8, 0);
    let file = bench.file("tokenizer.json", FILE);
    let losses = ["1", "2"].map(|gpus| {
        let (out, json) = (bench.folder.path().join("m.safetensors"), bench.folder.path().join("m.jsonl"));
        let files = ["--tokenizer", file.to_str().expect("UTF-8"), "--json", json.to_str().expect("UTF-8")];
        train(&learn, &out, &[&files[..], &["--epochs", "2", "--device", "cpu", "--gpus", gpus]].concat())
            .expect(0, &[]);
        report(&json)[1]["val_loss"].as_f64().expect("a number")
    });
    assert!((losses[0] - losses[1]).abs() < 1e-3 * losses[0], "{losses:?}");
}

#[test]
fn what_is_no_tokenizer_is_refused() {
    let bench = Bench::new();
    let (learn, out) = (questions(&bench, "learn", 3, 0), bench.folder.path().join("m.safetensors"));
    let file = bench.input("tokenizer.json");
    let file = file.to_str().expect("UTF-8");
    let run = |data: &Path, more: &[&str]| train(data, &out, &[&["--epochs", "1", "--tokenizer", file], more].concat());
    run(&learn, &[]).expect(1, &["tokenizer.json: cannot read it: "]);
    bench.file("tokenizer.json", "\"bytes\"");
    run(&learn, &[]).expect(1, &["tokenizer.json: no tokenizer.json, which is a JSON object"]);
    run(learn.parent().expect("a folder"), &[]).expect(1, &["--tokenizer: ", "has no texts"]);
    bench.file("tokenizer.json", [b"{", &b" ".repeat(48 << 20)[..]].concat());
    run(&learn, &[]).expect(1, &["tokenizer.json: more than 47 MiB"]);
    bench.file("tokenizer.json", "{}");
    run(&learn, &[]).expect(1, &["tokenizer.json: "]);
    assert!(!out.exists());
    // A run that began with bytes cannot take a tokenizer.
    train(&learn, &out, &["--epochs", "1"]).expect(0, &[]);
    bench.file("tokenizer.json", FILE);
    run(&learn, &["--resume"]).expect(1, &["--resume: the run has another tokenizer"]);
}
