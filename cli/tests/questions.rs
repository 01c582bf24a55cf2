//! `thalweg train` on questions, and `thalweg ask`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use thalweg_train::{EncoderConfig, Tensors, VisionLanguageConfig};

use crate::support::bars::{CLASSES, SMALL, data, report};
use crate::support::{Bench, Run, Tokens, thalweg};

/// Returns the result of a coin for an image, which the image does not show.
fn coin(i: u32, class: usize) -> &'static str {
    if (i.wrapping_mul(2_654_435_761) ^ (class as u32).wrapping_mul(0x9e37_79b9)) >> 13 & 1 == 0 { "yes" } else { "no" }
}

/// Writes images with two questions about each: one about the picture, and one about a coin.
pub(crate) fn questions(bench: &Bench, name: &str, count: u32, first: u32) -> PathBuf {
    let root = data(bench, name, count, first);
    let mut lines = String::new();
    for (class, folder) in CLASSES.iter().enumerate() {
        for i in 0..count {
            let image = format!("{folder}/{i:03}.png");
            let coin = coin(first + i, class);
            lines += &format!("{}\n", json!({"image": image, "question": "which way?", "answer": folder}));
            lines += &format!("{}\n", json!({"image": image, "question": "coin?", "answer": coin}));
        }
    }
    let path = root.join("questions.jsonl");
    fs::write(&path, lines).expect("a file");
    path
}

pub(crate) fn train(data: &Path, out: &Path, arguments: &[&str]) -> Run {
    let run = ["--budget", "64", "--patience", "0", "--batch", "16"];
    Run::of(thalweg().arg("train").arg(data).args(SMALL).args(run).args(arguments).arg("--out").arg(out))
}

pub(crate) fn ask(model: &Path, question: &str, images: &[PathBuf]) -> Vec<String> {
    let run = Run::of(thalweg().arg("ask").arg(model).args(images).args(["--question", question])).expect(0, &[]);
    run.out.lines().map(|line| line.split_once('\t').expect("a path and an answer").1.to_owned()).collect()
}

/// Asks which way the bars of thirty images beside `data` go. Most answers are right. Returns the
/// images and the answers.
pub(crate) fn ask_which_way(model: &Path, data: &Path) -> (Vec<PathBuf>, Vec<String>) {
    let of = |folder| (0..10).map(move |i| data.with_file_name(folder).join(format!("{i:03}.png")));
    let images: Vec<_> = CLASSES.into_iter().flat_map(of).collect();
    let said = ask(model, "which way?", &images);
    let right = said.iter().enumerate().filter(|(i, said)| **said == CLASSES[i / 10]).count();
    assert!(right >= 27, "{right} of 30: {said:?}");
    (images, said)
}

/// A model answers from the picture what is on it, and what is not on it by chance. So it reads
/// picture and question. Training longer, and on two ranks, gives the same model.
#[test]
fn a_model_learns_to_answer() {
    let bench = Bench::new();
    let (learn, other) = (questions(&bench, "learn", 24, 0), questions(&bench, "other", 10, 1000));
    let place = |name: &str| bench.folder.path().join(name);
    let (out, parts) = (place("m.safetensors"), place("parts.safetensors"));
    let val = ["--val", other.to_str().expect("UTF-8"), "--schedule", "constant"];
    let run = train(&learn, &out, &[&val[..], &["--epochs", "12"]].concat()).expect(0, &[]);
    assert!(run.out.contains("144 questions to learn from, 60 to test; "), "{run:#?}");

    let (images, _) = ask_which_way(&out, &other);
    let said = ask(&out, "coin?", &images);
    let right = said.iter().enumerate().filter(|(i, said)| **said == coin(1000 + *i as u32 % 10, i / 10)).count();
    assert!(said.iter().all(|said| said == "yes" || said == "no"), "{said:?}");
    assert!((6..=24).contains(&right), "{right} of 30 coins: nobody can see them");

    // Two runs one after the other have the bits of one.
    train(&learn, &parts, &[&val[..], &["--epochs", "3", "--checkpoint-steps", "4"]].concat()).expect(0, &[]);
    let whole = place("whole.safetensors");
    train(&learn, &whole, &[&val[..], &["--epochs", "5"]].concat()).expect(0, &[]);
    let resumed = train(&learn, &parts, &[&val[..], &["--epochs", "5", "--resume"]].concat()).expect(0, &[]);
    assert!(resumed.out.contains("epoch 4/5") && !resumed.out.contains("epoch 3/5"), "{resumed:#?}");
    let [a, b] = [&whole, &parts].map(|path| Tokens::read(&path.with_extension("checkpoint.safetensors")));
    assert!(a.bytes() == b.bytes(), "weights and moments have the same bits");
}

#[test]
fn two_ranks_answer_as_one() {
    let bench = Bench::new();
    let learn = questions(&bench, "learn", 8, 0);
    let losses = ["1", "2"].map(|gpus| {
        let (out, json) = (bench.folder.path().join("m.safetensors"), bench.folder.path().join("m.jsonl"));
        let json_of = ["--json", json.to_str().expect("UTF-8")];
        train(&learn, &out, &[&json_of[..], &["--epochs", "3", "--device", "cpu", "--gpus", gpus]].concat())
            .expect(0, &[]);
        report(&json)[..3].iter().map(|epoch| epoch["val_loss"].as_f64().expect("a number")).collect::<Vec<_>>()
    });
    for (one, two) in losses[0].iter().zip(&losses[1]) {
        assert!((one - two).abs() < 1e-3 * one, "{losses:?}");
    }
}

/// The loss of tested answers is one over all their ids: those of short answers and those of long
/// ones count by their ids when they are tested together, in batches that have some of both.
#[test]
fn a_tested_loss_is_one_over_all_ids() {
    let bench = Bench::new();
    let learn = questions(&bench, "learn", 4, 0);
    let image = "without/000.png";
    let lines = |count: u32, answer: &str| -> String {
        let line = |i: u32| format!("{}\n", json!({"image": image, "question": format!("q{i}"), "answer": answer}));
        (0..count).map(line).collect()
    };
    // More than one batch: 64 are tested at once.
    let (short, long) = (lines(50, "a"), lines(40, "a long answer"));
    let losses = [short.clone(), long.clone(), short + &long].map(|text| {
        let (val, out) = (learn.with_file_name("val.jsonl"), bench.folder.path().join("m.safetensors"));
        let json = out.with_extension("jsonl");
        fs::write(&val, text).expect("a file");
        let of = [&val, &json].map(|path| path.to_str().expect("UTF-8"));
        train(&learn, &out, &["--epochs", "1", "--val", of[0], "--json", of[1]]).expect(0, &[]);
        report(&json)[0]["val_loss"].as_f64().expect("a number")
    });
    // An answer has its bytes and the 0 behind them.
    let (short, long) = (50.0 * 2.0, 40.0 * 14.0);
    let wanted = (losses[0] * short + losses[1] * long) / (short + long);
    assert!((losses[2] - wanted).abs() < 1e-5 * wanted, "{losses:?}, and {wanted} is wanted");
    assert!((losses[0] - losses[1]).abs() > 0.01, "{losses:?}: unlike answers have unlike losses");
}

#[test]
fn what_is_no_question_is_an_error() {
    let bench = Bench::new();
    let out = bench.folder.path().join("m.safetensors");
    for (line, wanted) in [
        ("{\"image\": \"a.png\", \"question\": \"what\"}", "line 1: missing field `answer`"),
        ("{\"image\": \"a.png\", \"question\": \"\", \"answer\": \"b\"}", "line 1: question: the text is empty"),
        ("{\"image\": \"a.png\", \"question\": \"a\\u0000\", \"answer\": \"b\"}", "line 1: question: byte 1 of"),
        ("{\"image\": \"\", \"question\": \"a\", \"answer\": \"b\"}", "line 1: image: the path is empty"),
        ("\n", "there are no questions"),
    ] {
        let data = bench.file("questions.jsonl", line.as_bytes());
        train(&data, &out, &[]).expect(1, &[wanted]);
    }
    let learn = questions(&bench, "learn", 3, 0);
    train(&learn, &out, &["--epochs", "1"]).expect(0, &[]);
    let image = learn.with_file_name("lying/000.png");
    let run = |question: &str| Run::of(thalweg().arg("ask").arg(&out).arg(&image).args(["--question", question]));
    run("").expect(1, &["--question: the text is empty"]);
    run(&"a".repeat(65)).expect(1, &["--question: 65 bytes, and the model has room for 64"]);
    // A model of pixels is for programs.
    let shape = EncoderConfig::default().with_image_size(4).with_patch_size(2).with_embed_dim(8).with_num_heads(2);
    let config = VisionLanguageConfig::default().with_image_encoder(Some(shape.with_depth(1)));
    let (mut pixels, path) = (config.init(1).expect("a model"), out.with_file_name("pixels.safetensors"));
    for (key, value) in Tensors::load(&out).expect("the model").metadata {
        pixels.metadata.entry(key).or_insert(value);
    }
    pixels.save(&path).expect("a file");
    Run::of(thalweg().arg("ask").arg(&path).arg(&image).args(["--question", "what"]))
        .expect(1, &["its encoder has pixels"]);
    // Nobody predicts classes with it, and nobody asks a model of classes.
    Run::of(thalweg().arg("predict").arg(&out).arg(&image))
        .expect(1, &["this model answers questions: use `thalweg ask`"]);
    let classes = data(&bench, "classes", 3, 0);
    train(&classes, &out, &["--epochs", "1"]).expect(0, &[]);
    run("what").expect(1, &["this model tells classes: use `thalweg predict`"]);
}
