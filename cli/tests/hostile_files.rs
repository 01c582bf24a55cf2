//! Models and checkpoints whose headers were changed: `thalweg predict` and
//! `thalweg train --resume` name what is wrong and end with code 1. A killed or panicking process
//! has another code.

use std::fs;
use std::path::Path;

use image::RgbImage;
use serde_json::{Map, Value, json};

use crate::questions::questions;
use crate::support::bars::{SMALL, data};
use crate::support::{Bench, Run, png, thalweg};

/// A change of a file: of the extents of a tensor, which has no data then, or of a value of the
/// metadata.
enum Change {
    Empty(&'static str, Value),
    Metadata(&'static str, Value),
}
use Change::{Empty, Metadata};

/// Changes a safetensors file. What stays of it is right.
fn change(from: &Path, to: &Path, change: &Change) {
    let bytes = fs::read(from).expect("a file");
    let (length, rest) = bytes.split_first_chunk::<8>().expect("the length of the header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: Map<String, Value> = serde_json::from_slice(header).expect("a header");
    let offset = |entry: &Value, k: usize| entry["data_offsets"][k].as_u64().unwrap_or(0) as usize;
    let mut names: Vec<String> = header.keys().filter(|name| *name != "__metadata__").cloned().collect();
    names.sort_by_key(|name| offset(&header[name], 0));
    let mut kept = Vec::new();
    for name in names {
        let entry = header.get_mut(&name).expect("a tensor");
        let start = kept.len();
        match change {
            Empty(empty, shape) if *empty == name => entry["shape"] = shape.clone(),
            _ => kept.extend_from_slice(&data[offset(entry, 0)..offset(entry, 1)]),
        }
        entry["data_offsets"] = json!([start, kept.len()]);
    }
    if let Metadata(key, value) = change {
        let old = header["__metadata__"].get_mut(*key).unwrap_or_else(|| panic!("the file has `{key}`"));
        // Values are texts, most of them of JSON.
        *old = value.as_str().map_or_else(|| value.to_string(), str::to_owned).into();
    }
    let header = Value::from(header).to_string();
    fs::write(to, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &kept].concat()).expect("a file");
}

#[test]
fn headers_that_lie_are_errors() {
    let bench = Bench::new();
    let (learn, out) = (data(&bench, "learn", 4, 0), bench.folder.path().join("m.safetensors"));
    let train = |out: &Path, arguments: &[&str]| {
        Run::of(thalweg().arg("train").arg(&learn).args(SMALL).args(arguments).arg("--out").arg(out))
    };
    train(&out, &["--epochs", "1"]).expect(0, &[]);
    let image = learn.join("lying/001.png");
    let other = bench.folder.path().join("o.safetensors");
    let predict = || Run::of(thalweg().arg("predict").arg(&other).arg(&image));
    change(&out, &other, &Metadata("depth", "1".into()));
    predict().expect(0, &[]);
    let mut params: Value = {
        let (_, header) = safetensors::SafeTensors::read_metadata(&fs::read(&out).expect("a model")).expect("a header");
        let metadata = header.metadata().clone().expect("metadata");
        serde_json::from_str(&metadata["thalweg.tokens"]).expect("JSON")
    };
    params["budget"] = u64::MAX.into();
    let budget = params.clone();
    let mut broken = params.clone();
    broken["patch"] = 0.into();
    let no_columns = "and not [rows, ";
    for (wrong, words) in [
        (Empty("head.weight", json!([1u64 << 38, 0])), no_columns),
        (Empty("head.weight", json!([1u64 << 55, 0])), no_columns),
        (Empty("head.weight", json!([0, 1u64 << 50])), no_columns),
        (Empty("embed.weight", json!([1u64 << 38, 0])), no_columns),
        (Empty("position.weight", json!([1u64 << 55, 0])), "`position.weight` is "),
        (Metadata("depth", "1000".into()), "`depth` is 1000, and there are "),
        (Metadata("heads", "18446744073709551615".into()), "heads must divide a row"),
        (Metadata("eps", "inf".into()), "eps inf"),
        (Metadata("thalweg.classes", "[]".into()), "the weights are not those of a model with the classes []"),
        (Metadata("thalweg.tokens", broken), "patch is 0"),
    ] {
        change(&out, &other, &wrong);
        predict().expect(1, &[words]);
    }
    // A budget is what a user may ask for at most, and more than the patches of an image can take
    // does no harm.
    change(&out, &other, &Metadata("thalweg.tokens", budget));
    predict().expect(0, &[]);
    let answering = bench.folder.path().join("a.safetensors");
    let asked = questions(&bench, "asked", 1, 0);
    Run::of(thalweg().arg("train").arg(asked).args(SMALL).args(["--epochs", "1", "--out"]).arg(&answering))
        .expect(0, &[]);
    // 16 images are asked at once. The one behind them is larger.
    let mut images = vec![image.clone(); 16];
    images.push(bench.file("large.png", png(RgbImage::new(96, 96))));
    for images in [&images[..1], &images] {
        let said = [1 << 20, u64::MAX].map(|budget| {
            params["budget"] = budget.into();
            change(&answering, &other, &Metadata("thalweg.tokens", params.clone()));
            Run::of(thalweg().arg("ask").arg(&other).args(images).args(["--question", "which way?"]))
        });
        // A model that has hardly learned may say nothing whole.
        let [lines, failures] = [said[0].out.lines().count(), said[0].err.matches("no whole answer fits").count()];
        assert_eq!(lines + failures, images.len(), "{said:#?}");
        let [a, b] = said.each_ref().map(|run| (run.code, &run.out, &run.err));
        assert_eq!(a, b);
    }

    let [saved, checkpoint] = [&out, &other].map(|path| path.with_extension("checkpoint.safetensors"));
    let epoch = |epoch: u32| json!({"epoch": epoch, "loss": 1.0, "val_loss": 1.0, "val_accuracy": 0.5, "images_per_second": 1.0});
    for (wrong, words) in [
        (Metadata("steps", u64::MAX.into()), "`steps` is 18446744073709551615"),
        (Metadata("steps", (1u64 << 62).into()), "`steps` is 4611686018427387904"),
        (Empty("first.head.weight", json!([1u64 << 55, 0])), "`first.head.weight` is "),
        (Empty("head.weight", json!([1u64 << 38, 0])), no_columns),
        (Metadata("progress.history", json!([epoch(u32::MAX)])), "the epochs are not 1, 2, 3"),
        (Metadata("progress.history", json!([epoch(1), epoch(1)])), "the epochs are not 1, 2, 3"),
        (Metadata("heads", "1".into()), "the weights are not those of a model with these settings"),
    ] {
        change(&saved, &checkpoint, &wrong);
        train(&other, &["--epochs", "1", "--resume"]).expect(1, &["--resume", words]);
    }
}
