//! `thalweg train` and `thalweg predict`: what they learn, that a run goes on as if nothing had
//! happened, and clear errors.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::questions::questions;
use crate::support::bars::{CLASSES, SMALL, data, picture, report};
use crate::support::{Bench, Run, Tokens, png, thalweg};

fn train(data: &Path, out: &Path, arguments: &[&str]) -> Run {
    Run::of(thalweg().arg("train").arg(data).args(SMALL).args(arguments).arg("--out").arg(out))
}

#[test]
fn a_model_learns_and_predicts() {
    let bench = Bench::new();
    let (learn, other) = (data(&bench, "learn", 30, 0), data(&bench, "other", 8, 1000));
    let (out, json) = (bench.folder.path().join("m.safetensors"), bench.folder.path().join("m.jsonl"));
    let arguments =
        ["--epochs", "20", "--json", json.to_str().expect("UTF-8"), "--val", other.to_str().expect("UTF-8")];
    let run = train(&learn, &out, &arguments).expect(0, &[]);
    assert!(run.out.contains("90 images to learn from, 24 to test, 3 classes"), "{run:#?}");
    let lines = report(&json);
    let (last, epochs) = lines.split_last().expect("lines");
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"));
    assert!(number(last, "val_accuracy") >= 0.95, "{last}");
    assert!(number(&epochs[0], "loss") > 0.8 && number(last, "loss") < 0.4, "{lines:?}");
    // The summary is of the epoch whose model was written.
    let best = &epochs[last["best_epoch"].as_u64().expect("a number") as usize - 1];
    for key in ["loss", "val_loss", "val_accuracy"] {
        assert_eq!(best[key], last[key]);
    }
    assert!(epochs.iter().all(|e| number(e, "val_accuracy") <= number(last, "val_accuracy")));
    assert_eq!((&last["train_images"], &last["val_images"], &last["failed"]), (&90.into(), &24.into(), &json!([])));
    assert_eq!(last["output"], out.to_str().expect("UTF-8"));
    let [whole, tokens, training] =
        [&last["wall_seconds"], &last["seconds"]["tokens"], &last["seconds"]["training"]].map(|v| v.as_f64());
    assert!(tokens > Some(0.0) && training > Some(0.0) && whole >= tokens.zip(training).map(|(a, b)| a + b));
    let curves = fs::read_to_string(out.with_extension("curves.svg")).expect("curves");
    assert!(curves.starts_with("<svg") && curves.matches("<polyline").count() == 3, "{curves}");

    // The model of the file gets as many of the other images right as the run said.
    let mut images = Vec::new();
    for class in CLASSES {
        images.extend((0..8).map(|i| other.join(class).join(format!("{i:03}.png"))));
    }
    let run = Run::of(thalweg().arg("predict").arg(&out).args(&images)).expect(0, &[]);
    let lines: Vec<Vec<&str>> = run.out.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines.len(), 24);
    let mut right = 0;
    for ((path, line), class) in images.iter().zip(&lines).zip(CLASSES.iter().flat_map(|c| [c; 8])) {
        assert_eq!(line[0], path.to_str().expect("UTF-8"));
        let probability: f64 = line[2].parse().expect("a number");
        assert!((1.0 / 3.0..=1.0).contains(&probability), "{line:?}");
        right += u32::from(line[1] == *class);
    }
    assert!((f64::from(right) / 24.0 - number(last, "val_accuracy")).abs() < 1e-9, "{right} of 24, and {last}");

    // A broken image is named, and the others are done.
    let cut = bench.file("cut.png", &png(picture(0, 5))[..60]);
    let run = Run::of(thalweg().arg("predict").arg(&out).arg(&images[0]).arg(&cut).arg(&images[1]));
    let run = run.expect(1, &["cut.png: truncated"]);
    assert_eq!(run.out.lines().count(), 2);
}

#[test]
fn a_run_that_goes_on_gives_the_same_model() {
    let bench = Bench::new();
    let learn = data(&bench, "learn", 12, 0);
    let place = |name: &str| bench.folder.path().join(name);
    let (whole, parts) = (place("whole.safetensors"), place("parts.safetensors"));
    train(&learn, &whole, &["--epochs", "30", "--batch", "4", "--patience", "0"]).expect(0, &[]);

    // The second run is stopped as soon as there is a checkpoint, and then goes on.
    let checkpoint = parts.with_extension("checkpoint.safetensors");
    let mut command = thalweg();
    command
        .arg("train")
        .arg(&learn)
        .args(SMALL)
        .args(["--epochs", "30", "--batch", "4", "--patience", "0", "--out"])
        .arg(&parts);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let begin = Instant::now();
    while !checkpoint.exists() {
        assert!(begin.elapsed() < Duration::from_secs(120), "no checkpoint");
        std::thread::sleep(Duration::from_millis(5));
    }
    #[cfg(unix)]
    let interrupted = {
        let pid = child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
        let run = Run::from(child.wait_with_output().expect("it ends"));
        assert!(run.code == Some(130) || run.code == Some(0), "{run:#?}");
        assert!(
            run.code == Some(0) || run.err.contains("interrupted; the files that were written are whole"),
            "{run:#?}"
        );
        run.code == Some(130)
    };
    #[cfg(not(unix))]
    let interrupted = {
        child.kill().expect("it can be ended");
        child.wait().expect("it ends");
        true
    };
    assert!(interrupted, "30 epochs took less time than a signal");
    let leftover = |dir: &Path| {
        fs::read_dir(dir)
            .expect("a folder")
            .filter(|e| {
                let name = e.as_ref().expect("an entry").file_name().into_string().expect("UTF-8");
                name.ends_with(".new") || name.ends_with(".tmp")
            })
            .count()
    };
    assert_eq!(leftover(bench.folder.path()), 0, "no file is half written");
    let run = Run::of(thalweg().arg("train").arg(&learn).args(["--resume", "--out"]).arg(&parts)).expect(0, &[]);
    assert!(run.out.contains("epoch 30/30") && !run.out.contains("epoch 1/30"), "{run:#?}");
    let [a, b] = [&whole, &parts].map(|path| fs::read(path).expect("a model"));
    assert!(a == b, "the files have the same bytes");
    let [a, b] = [&whole, &parts].map(|path| Tokens::read(&path.with_extension("checkpoint.safetensors")));
    assert!(a.bytes() == b.bytes(), "weights and moments have the same bits");

    // A run that goes on keeps its settings.
    let again = |arguments: &[&str]| {
        Run::of(thalweg().arg("train").arg(&learn).args(["--resume"]).args(arguments).arg("--out").arg(&parts))
    };
    let other = "--resume: the run has other settings: --lr is 0.01 there and 0.5 here; leave out";
    again(&["--lr", "0.5"]).expect(1, &[other]);
    again(&["--lr", "-1"]).expect(1, &["lr -1: expected a number above 0"]);
    let run = again(&["--epochs", "30"]).expect(0, &[]);
    assert!(run.out.contains("all 30 epochs are trained; a larger --epochs trains longer"), "{run:#?}");
}

/// A run goes on from the middle of an epoch, alone with questions and as two ranks with classes,
/// with the bits that it would have had. It draws its steps, and leaves no file of tokens behind.
#[test]
fn a_run_goes_on_within_an_epoch() {
    let bench = Bench::new();
    let (classes, asked) = (data(&bench, "learn", 12, 0), questions(&bench, "asked", 6, 0));
    let place = |name: &str| bench.folder.path().join(name);
    let drawn = place("steps.json");
    // Two ranks are on the CPU device: a machine may have one GPU.
    for (gpus, device, learn) in [("1", "auto", asked), ("2", "cpu", classes)] {
        let (whole, parts) = (place("whole.safetensors"), place("parts.safetensors"));
        let checkpoint = |path: &Path| path.with_extension("checkpoint.safetensors");
        let settings = ["--epochs", "12", "--batch", "2", "--patience", "0", "--gpus", gpus];
        let command = || {
            let mut command = thalweg();
            command.env("THALWEG_DEVICE", device).arg("train").arg(&learn);
            command
        };
        let mut first = command();
        first.args(SMALL).args(settings).args(["--checkpoint-steps", "4", "--out"]).arg(&whole);
        let mut child = first.arg("--timeline").arg(&drawn).stdout(Stdio::null()).spawn().expect("the command starts");
        // The checkpoint of 4, 8 or 12 of 15 steps is kept, in an epoch that is not the first one.
        let begin = Instant::now();
        while {
            assert!(begin.elapsed() < Duration::from_secs(120), "no checkpoint within an epoch");
            let kept = fs::copy(checkpoint(&whole), checkpoint(&parts)).ok().map(|_| Tokens::read(&checkpoint(&parts)));
            let of = |key: &str| -> Value {
                kept.as_ref().map_or(Value::Null, |kept| serde_json::from_str(&kept.metadata[key]).expect("JSON"))
            };
            !(of("progress.within")["steps"].as_u64() > Some(0) && of("progress.history")[0].is_object())
        } {
            // A GPU takes a few milliseconds for an epoch.
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(child.wait().expect("it ends").success());
        let resume = ["--resume", "--gpus", gpus, "--out"];
        Run::of(command().args(resume).arg(&parts)).expect(0, &[]);
        let [a, b] = [&whole, &parts].map(|path| Tokens::read(&checkpoint(path)));
        assert!(a.bytes() == b.bytes(), "weights and moments have the same bits");
        let losses = |file: &Tokens| -> Vec<[Value; 2]> {
            let history: Vec<Value> = serde_json::from_str(&file.metadata["progress.history"]).expect("JSON");
            history.into_iter().map(|epoch| [epoch["loss"].clone(), epoch["val_loss"].clone()]).collect()
        };
        assert_eq!(losses(&a), losses(&b), "so have the losses, that of the divided epoch, too");

        let text = fs::read_to_string(&drawn).expect("a timeline");
        assert_eq!(text.matches("\"read tokens\"").count(), 10, "{text}");
        assert_eq!(text.matches("\"train\"").count(), 10, "{text}");
        for path in [&checkpoint(&whole), &checkpoint(&parts), &drawn] {
            fs::remove_file(path).expect("a file");
        }
    }
    let mut left: Vec<_> =
        fs::read_dir(bench.folder.path()).expect("a folder").map(|e| e.expect("e").file_name()).collect();
    left.retain(|name| !["in", "out"].iter().any(|known| name == known));
    left.sort();
    let models = ["parts.curves.svg", "parts.safetensors", "whole.curves.svg", "whole.safetensors"];
    assert_eq!(left, models, "the files of tokens have no name");
}

/// With a constant rate nothing depends on when a run ends. With a cosine, the later epochs have
/// the rates of the longer run.
#[test]
fn a_finished_run_is_trained_longer() {
    let bench = Bench::new();
    let learn = data(&bench, "learn", 10, 0);
    let place = |name: &str| bench.folder.path().join(name);
    for (schedule, same) in [("constant", true), ("cosine", false)] {
        let arguments = |epochs| ["--epochs", epochs, "--batch", "4", "--patience", "0", "--schedule", schedule];
        let (whole, parts, json) = (place("whole.safetensors"), place("parts.safetensors"), place("parts.jsonl"));
        train(&learn, &whole, &arguments("5")).expect(0, &[]);
        train(&learn, &parts, &arguments("2")).expect(0, &[]);
        let longer = ["--resume", "--epochs", "5", "--json", json.to_str().expect("UTF-8")];
        let run = Run::of(thalweg().arg("train").arg(&learn).args(longer).arg("--out").arg(&parts)).expect(0, &[]);
        assert!(run.out.contains("epoch 3/5") && !run.out.contains("epoch 2/"), "{run:#?}");

        let lines = report(&json);
        let epochs: Vec<_> = lines.iter().map(|line| line["epoch"].as_u64()).collect();
        assert_eq!(epochs, [Some(1), Some(2), Some(3), Some(4), Some(5), None], "the report has all epochs");
        assert_eq!(lines[5]["parameters"]["epochs"], 5);
        let checkpoints = [&whole, &parts].map(|path| Tokens::read(&path.with_extension("checkpoint.safetensors")));
        assert_eq!(checkpoints[0].bytes() == checkpoints[1].bytes(), same, "{schedule}: weights and moments");
        let models = [&whole, &parts].map(|path| Tokens::read(path));
        assert!(!same || models[0].bytes() == models[1].bytes(), "the models have the same bits");
    }
}

/// A run that its patience ended goes on with more of it.
#[test]
fn a_run_that_stopped_early_goes_on_with_more_patience() {
    let bench = Bench::new();
    let learn = data(&bench, "learn", 4, 0);
    let out = bench.folder.path().join("m.safetensors");
    let still = ["--epochs", "9", "--lr", "1e-30"];
    let run = train(&learn, &out, &[&still[..], &["--patience", "1"]].concat()).expect(0, &[]);
    assert!(run.out.contains("epoch 2/9") && !run.out.contains("epoch 3/9"), "{run:#?}");
    let more = ["--resume", "--patience", "3", "--out"];
    let run = Run::of(thalweg().arg("train").arg(&learn).args(more).arg(&out)).expect(0, &[]);
    assert!(run.out.contains("epoch 4/9") && !run.out.contains("epoch 5/9"), "{run:#?}");
    fs::remove_file(learn.join("lying/003.png")).expect("a file");
    let other = Run::of(thalweg().arg("train").arg(&learn).args(more).arg(&out));
    other.expect(1, &["--resume: the images are not those of"]);
}

#[test]
fn a_table_a_file_of_settings_and_an_early_stop() {
    let bench = Bench::new();
    data(&bench, "learn", 10, 0);
    let mut table = String::from("path,label\n");
    for class in &CLASSES[..2] {
        for i in 0..10 {
            table += &format!("learn/{class}/{i:03}.png,{class}\n");
        }
    }
    let table = bench.file("list.csv", table);
    let config = bench.file("run.json", r#"{"epochs": 40, "patience": 2, "val_share": 0.3, "batch": 7}"#);
    let (out, json) = (bench.folder.path().join("m.safetensors"), bench.folder.path().join("m.jsonl"));
    let arguments = [
        "--config",
        config.to_str().expect("UTF-8"),
        "--json",
        json.to_str().expect("UTF-8"),
        "--batch",
        "5",
        "--lr",
        "1e-30",
    ];
    let run = train(&table, &out, &arguments).expect(0, &[]);
    assert!(run.out.contains("14 images to learn from, 6 to test, 2 classes"), "{run:#?}");
    assert!(run.out.contains("no better model for 2 epochs: stopped"), "{run:#?}");
    let lines = report(&json);
    let last = lines.last().expect("lines");
    assert_eq!((&last["parameters"]["batch"], &last["parameters"]["epochs"]), (&5.into(), &40.into()));
    assert_eq!(last["epochs"].as_u64(), Some(lines.len() as u64 - 1));
    // With this learning rate no weight changes, so no epoch is better than the first one.
    assert_eq!((last["epochs"].as_u64(), last["best_epoch"].as_u64()), (Some(3), Some(1)));
    // So the order of the images alone makes the losses differ: how their sum is rounded.
    assert!(lines[1..3].iter().any(|epoch| epoch["loss"] != lines[0]["loss"]), "{lines:?}");
}

/// A run that ends between the two files has the model that a checkpoint could call the best, and
/// never a checkpoint that names a model that was not written.
#[test]
fn the_model_is_written_before_the_checkpoint() {
    let bench = Bench::new();
    let (learn, out) = (data(&bench, "learn", 4, 0), bench.folder.path().join("m.safetensors"));
    let place = out.with_extension("checkpoint.safetensors");
    fs::create_dir(&place).expect("a folder in the place of the checkpoint");
    train(&learn, &out, &["--epochs", "1"]).expect(1, &["m.checkpoint.safetensors"]);
    assert!(out.is_file() && place.is_dir());
}

#[test]
fn what_is_wrong_is_said() {
    let bench = Bench::new();
    let learn = data(&bench, "learn", 4, 0);
    let out = bench.folder.path().join("m.safetensors");
    let fails = |data: &Path, arguments: &[&str], words: &[&str]| {
        train(data, &out, arguments).expect(1, words);
        assert!(!out.exists());
    };
    let bare = bench.input("bare");
    fs::create_dir_all(bare.join("class")).expect("a folder");
    fails(&bare, &[], &["bare: no *.png", "expected a folder for each class"]);
    fails(&learn.join("missing"), &[], &["missing: cannot read it: No such file"]);
    fails(&bench.file("a.csv", "no separator"), &[], &["a.csv: line 1: expected a path and a class"]);
    fails(&bench.file("b.csv", "x.png,a\ny.png,a"), &[], &["b.csv: there is one class, \"a\""]);
    fails(
        &bench.file("c.csv", "x.png,a\ny.png,b"),
        &[],
        &["x.png: cannot open it", "none of the images can be decoded"],
    );
    fails(&learn, &["--resume"], &["--resume: ", "m.checkpoint.safetensors", "No such file", "without --resume"]);
    let one_each = bench.file("d.csv", "learn/lying/000.png,a\nlearn/without/000.png,b");
    fails(&one_each, &[], &["2 to learn from, 0 to test", "a class with two images"]);
    fails(&learn, &["--width", "30", "--heads", "4"], &["4 heads", "30 numbers"]);
    fails(&learn, &["--batch", "0"], &["batch 0: expected 1 to 65535"]);
    fails(&learn, &["--val-share", "1"], &["val_share 1: expected a number between 0 and 1"]);
    fails(
        &learn,
        &["--config", bench.file("a.json", r#"{"epoch": 3}"#).to_str().expect("UTF-8")],
        &["unknown field `epoch`"],
    );
    train(&learn, &out, &["--sides", "4..2"]).expect(2, &["--sides"]);
    train(&learn, &out, &["--timeline", "a.png"]).expect(2, &["ends in .svg, .json or .txt"]);
    train(&learn, &out, &["--checkpoint-steps", "0"]).expect(2, &["--checkpoint-steps"]);
    let missing = learn.join("missing");
    fails(&learn, &["--scratch", missing.to_str().expect("UTF-8")], &["cannot keep the tokens in", "missing: "]);
    let strange = bench.input("strange");
    fs::create_dir_all(strange.join("flying")).expect("a folder");
    fs::write(strange.join("flying/1.png"), png(picture(0, 1))).expect("a file");
    fails(&learn, &["--val", strange.to_str().expect("UTF-8")], &["flying", "the model has no class"]);

    // What could not be written is said before the work.
    let place = |out: &Path, arguments: &[&str], words: &[&str]| {
        let run = train(&learn, out, arguments).expect(1, words);
        assert!(!run.out.contains("images to learn from"), "{run:#?}");
    };
    let away = bench.folder.path().join("away/m.safetensors");
    place(&away, &[], &["cannot write", "m.safetensors: there is no folder", "away"]);
    place(&learn, &[], &["learn: this is a folder"]);
    place(&out, &["--json", away.to_str().expect("UTF-8")], &["there is no folder"]);

    // A broken image is left out.
    let broken = learn.join("lying/broken.png");
    fs::write(&broken, &png(picture(0, 1))[..50]).expect("a file");
    let report_file = bench.folder.path().join("m.jsonl");
    let arguments = ["--epochs", "1", "--json", report_file.to_str().expect("UTF-8")];
    let run = train(&learn, &out, &arguments).expect(1, &["broken.png: truncated", "left out"]);
    assert!(run.out.contains("9 images to learn from, 3 to test"), "{run:#?}");
    // The report says of it, and of the device, what that of `tokens` says.
    let run = bench.tokens([broken.as_os_str(), "--json".as_ref()]).expect(1, &[]);
    let (lines, tokens) = (report(&report_file), serde_json::from_str::<Value>(&run.out).expect("one JSON document"));
    for key in ["thalweg", "device", "failed", "jpeg"] {
        assert!(!tokens[key].is_null() && lines[1][key] == tokens[key], "{key} in {} and {tokens}", lines[1]);
    }

    let predict = |model: &Path| Run::of(thalweg().arg("predict").arg(model).arg(learn.join("lying/001.png")));
    predict(&out).expect(0, &[]);
    predict(&bench.input("missing")).expect(1, &["missing: No such file"]);
    predict(&bench.file("text.safetensors", "hello, this is no model"))
        .expect(1, &["text.safetensors: no safetensors file: "]);
    let weights = crate::support::repository("tests/golden").join("head-weights.safetensors");
    predict(&weights).expect(1, &["did `thalweg train` write this file?"]);
}
