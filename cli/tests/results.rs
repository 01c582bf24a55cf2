//! What the command writes and prints when all is well.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::Stdio;
use testkit::oracle;

use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::Value;

use crate::support::{Bench, Run, Tokens, pattern, photo, png, repository, thalweg};

/// The largest difference of two tensors of one shape.
#[track_caller]
fn difference(name: &str, ours: &Tokens, theirs: &Tokens) -> f64 {
    let ((shape, a), (expected, b)) = (ours.f32(name), theirs.f32(name));
    assert_eq!(shape, expected, "{name}");
    a.iter().zip(&b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

/// The sides that the oracle allocates for these relevances, with the parameters in a file's
/// metadata.
fn allocate(relevance: &[f32], metadata: &BTreeMap<String, String>) -> Vec<i32> {
    let (lo, hi) = metadata["sides"].split_once("..").expect("LO..HI");
    let (lo, hi) = (lo.parse().expect("LO"), hi.parse().expect("HI"));
    let budget = metadata["budget"].parse().expect("a budget");
    let focus = metadata["focus"].parse().expect("a focus");
    oracle::allocate(relevance, lo, hi, budget, focus).into_iter().map(|n| n as i32).collect()
}

/// Halves are the rounded floats, and everything else is the same.
#[test]
fn tokens_in_half_precision() {
    let path = photo("eye.png");
    let run = |precision: &str| {
        let bench = Bench::new();
        bench.tokens([path.to_str().expect("a name"), "--precision", precision]).expect(0, &[]);
        bench.read("eye")
    };
    let (whole, f16, bf16) = (run("f32"), run("f16"), run("bf16"));
    let (shape, values) = whole.f32("tokens");
    let (f16_shape, f16_bits) = f16.halves("tokens", Dtype::F16);
    let (bf16_shape, bf16_bits) = bf16.halves("tokens", Dtype::BF16);
    assert_eq!((f16_shape, bf16_shape), (shape, shape));
    for ((v, half), brain) in values.iter().zip(f16_bits).zip(bf16_bits) {
        let (half, brain) = (f16::from_bits(half).to_f32(), bf16::from_bits(brain).to_f32());
        assert!((brain - v).abs() <= v.abs() / 256.0, "{brain} for {v}");
        // Below the smallest normal half, the distance between two halves stays the same.
        assert!((half - v).abs() <= v.abs().max(2f32.powi(-14)) / 2048.0, "{half} for {v}");
    }
    assert_eq!(f16.i32("sides"), whole.i32("sides"));
    assert_eq!((whole.metadata["precision"].as_str(), f16.metadata["precision"].as_str()), ("f32", "f16"));
}

#[test]
fn golden_files() {
    for (image, golden, flags) in [
        ("eye", "eye", "--budget 1024 --textures"),
        ("chelsea", "chelsea", ""),
        ("coffee", "coffee-budget10000-focus0.5", "--budget 10000 --focus 0.5"),
        ("eye", "eye-options", "--patch 24 --sides 4..12 --budget 300 --fixation 0.2,0.8 --foveal-bias 0.5 --textures"),
        ("row", "row", "--patch 16 --budget 200 --textures"),
    ] {
        let bench = Bench::new();
        let path = photo(&format!("{image}.png"));
        bench.tokens(path.to_str().into_iter().chain(flags.split_whitespace())).expect(0, &[]);
        let ours = bench.read(image);
        let theirs = Tokens::read(&repository("tests/golden").join(format!("{golden}.safetensors")));

        let mut expected = vec![
            "cu_seqlens",
            "entropy",
            "features",
            "patch_id",
            "position",
            "relevance",
            "salience",
            "sides",
            "tokens",
        ];
        if flags.contains("--textures") {
            expected.insert(8, "textures");
        }
        assert_eq!(ours.names(), expected, "{golden}");
        for name in ["features", "entropy", "salience"] {
            assert!(difference(name, &ours, &theirs) <= 2e-5, "{golden}: {name}");
        }
        let raw: Vec<f32> =
            theirs.f32("entropy").1.iter().zip(theirs.f32("salience").1).map(|(a, b)| (a + b) / 2.0).collect();
        let span = raw.iter().copied().fold(f32::MIN, f32::max) - raw.iter().copied().fold(f32::MAX, f32::min);
        assert!(difference("relevance", &ours, &theirs) <= 2e-6 / f64::from(span), "{golden}: relevance");

        let (_, sides) = ours.i32("sides");
        assert_eq!(sides, allocate(&ours.f32("relevance").1, &ours.metadata), "{golden}: sides");
        assert_eq!(theirs.i32("sides").1, allocate(&theirs.f32("relevance").1, &ours.metadata), "{golden}");
        if theirs.names().contains(&"textures") {
            assert!(difference("textures", &ours, &theirs) <= 2e-5, "{golden}: textures");
        }
        // If relevance is rounded alike in both files, everything that follows from it is equal.
        if sides == theirs.i32("sides").1 {
            for name in ["cu_seqlens", "patch_id"] {
                assert_eq!(ours.i32(name), theirs.i32(name), "{golden}: {name}");
            }
            for name in ["tokens", "position"].into_iter().filter(|name| theirs.names().contains(name)) {
                assert!(difference(name, &ours, &theirs) <= 2e-5, "{golden}: {name}");
            }
        } else {
            eprintln!("{golden}: another allocation than the golden file's, from another rounding of relevance");
        }
    }
}

#[test]
fn shapes_fit_together() {
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(100, 70)));
    bench.tokens([image.as_os_str(), "--budget=700".as_ref(), "--textures".as_ref()]).expect(0, &[]);
    let tokens = bench.read("a");
    let (shape, sides) = tokens.i32("sides");
    assert_eq!(shape, [3, 4]);
    let (selected, each): (Vec<i32>, Vec<i32>) =
        sides.iter().enumerate().filter(|(_, side)| **side > 0).map(|(i, side)| (i as i32, side * side)).unzip();
    let ends: Vec<i32> = std::iter::once(0)
        .chain(each.iter().scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        }))
        .collect();
    assert_eq!(tokens.i32("patch_id"), (&[selected.len()][..], selected.clone()));
    assert_eq!(tokens.i32("cu_seqlens"), (&[selected.len() + 1][..], ends.clone()));
    let count = *ends.last().unwrap() as usize;
    assert!((64..=700).contains(&count), "{count}");
    assert_eq!(tokens.f32("tokens").0, [count, 13]);
    assert_eq!(tokens.f32("position").0, [count, 2]);
    assert_eq!(tokens.f32("features").0, [12, 13]);
    assert_eq!(tokens.f32("textures").0, [13, 70, 100]);
}

#[test]
fn metadata_holds_what_made_the_file() {
    let bench = Bench::new();
    let image = bench.file("some photo.v2.png", png(pattern(50, 40)));
    let flags = ["--patch=16", "--budget=512", "--focus=0.7", "--sides=4..9", "--fixation=0.25,1", "--foveal-bias=0.5"];
    bench.tokens(image.to_str().into_iter().chain(flags)).expect(0, &[]);
    let metadata = bench.read("some photo.v2").metadata;
    for (key, value) in [
        ("format", "thalweg-tokens"),
        ("format_version", "1"),
        ("thalweg", env!("CARGO_PKG_VERSION")),
        ("source", "some photo.v2.png"),
        ("height", "40"),
        ("width", "50"),
        ("patch", "16"),
        ("budget", "512"),
        ("focus", "0.7"),
        ("sides", "4..9"),
        ("fixation", "0.25,1"),
        ("foveal_bias", "0.5"),
    ] {
        assert_eq!(metadata[key], value, "{key}");
    }
    assert!(metadata["device"].starts_with("cpu (") || metadata["device"].starts_with("cuda:"), "{metadata:?}");
    assert_eq!(metadata.len(), 14);
}

#[test]
fn equal_runs_write_equal_bytes_and_replace_the_old() {
    let bench = Bench::new();
    let run = || {
        bench.tokens([photo("eye.png").as_os_str(), "--heatmap".as_ref()]).expect(0, &[]);
        bench.results().iter().map(|name| fs::read(bench.out().join(name)).unwrap()).collect::<Vec<_>>()
    };
    fs::create_dir(bench.out()).unwrap();
    fs::write(bench.out().join("eye.safetensors"), "old").unwrap();
    // Who has the old file open goes on reading it, whenever the new one comes.
    let mut old = fs::File::open(bench.out().join("eye.safetensors")).unwrap();
    let first = run();
    let mut text = String::new();
    if cfg!(unix) {
        old.read_to_string(&mut text).unwrap();
        assert_eq!(text, "old");
    }
    assert_eq!(bench.results(), ["eye.heatmap.png", "eye.safetensors"]);
    assert_eq!(first, run());
}

#[cfg(unix)]
#[test]
fn results_are_readable_as_other_files_are() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(16, 16)));
    bench.tokens([&image]).expect(0, &[]);
    let mode = |path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(bench.out().join("a.safetensors")), mode(image));
}

#[test]
fn runs_side_by_side_into_one_folder() {
    let bench = Bench::new();
    let start = || {
        let mut command = thalweg();
        command.arg("tokens").arg(photo("")).args(["--budget=400", "--out"]).arg(bench.out());
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (one, two, three) = (start(), start(), start());
    for child in [one, two, three] {
        Run::from(child.wait_with_output().unwrap()).expect(0, &[]);
    }
    let names = bench.results();
    assert_eq!(names.len(), 5, "{names:?}");
    names.iter().for_each(|name| _ = Tokens::read(&bench.out().join(name)));
}

#[test]
fn more_images_than_fit_in_one_chunk() {
    let bench = Bench::new();
    for i in 0..40 {
        bench.file(&format!("{i:02}.png"), png(pattern(20 + i, 30)));
    }
    bench.file("17.png", "broken");
    let run =
        bench.tokens([bench.folder.path().join("in")]).expect(1, &["1 of 40 inputs failed", "17.png: not an image"]);
    assert!(run.out.contains("... and 19 more") && run.out.contains("images      39, 1 failed"), "{run:#?}");
    for i in (0..40).filter(|&i| i != 17) {
        assert_eq!(bench.read(&format!("{i:02}")).metadata["width"], (20 + i).to_string());
    }
}

#[test]
fn json_is_all_there_is_on_standard_output() {
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(50, 40)));
    let bad = bench.file("b.png", "no image");
    let run = bench
        .tokens([image.as_os_str(), bad.as_os_str(), "--json".as_ref(), "--heatmap".as_ref()])
        .expect(1, &["b.png"]);
    let document: Value = serde_json::from_str(&run.out).expect("one JSON document");
    let done = &document["images"][0];
    assert_eq!(done["source"], image.to_str().unwrap());
    assert_eq!(done["output"], bench.out().join("a.safetensors").to_str().unwrap());
    assert_eq!(done["heatmap"], bench.out().join("a.heatmap.png").to_str().unwrap());
    assert_eq!((&done["height"], &done["width"]), (&40.into(), &50.into()));
    assert_eq!(done["grid"], serde_json::json!([2, 2]));
    assert_eq!(done["tokens"], document["tokens"]);
    assert_eq!(done["device"], document["device"]["id"]);
    assert_eq!(document["parameters"]["focus"], 0.8);
    assert_eq!(document["tokens"], bench.read("a").f32("tokens").0[0]);
    assert_eq!(document["failed"][0]["source"], bad.to_str().unwrap());
    assert!(document["failed"][0]["error"].as_str().unwrap().contains("expected PNG, JPEG or WebP"));
    assert_eq!(document["parameters"]["sides"], "8..20");
    assert!(document["seconds"]["decode"].is_number() && document["seconds"]["write"].is_number());
    assert!(document["wall_seconds"].as_f64().unwrap() > 0.0);
    assert!(document["device"]["id"].is_string());
}

#[test]
fn heatmaps_are_images_of_a_fitting_size() {
    let bench = Bench::new();
    let shapes = [(97, 67), (600, 400), (3000, 40), (1, 1), (1, 300), (2400, 1600)];
    for (i, (width, height)) in shapes.into_iter().enumerate() {
        bench.file(&format!("{i}.png"), png(pattern(width, height)));
    }
    bench
        .tokens([bench.folder.path().join("in").as_os_str(), "--heatmap".as_ref(), "--patch=7".as_ref()])
        .expect(0, &[]);
    for i in 0..shapes.len() {
        let picture = image::open(bench.out().join(format!("{i}.heatmap.png"))).unwrap();
        assert!((640..=1536).contains(&picture.width()), "{i}: {} wide", picture.width());
        assert!(picture.height() < 2000, "{i}: {} high", picture.height());
    }
}

#[test]
fn devices_are_listed() {
    let run = Run::of(thalweg().arg("devices")).expect(0, &[]);
    assert!(
        run.out.contains("cpu  ") && run.out.contains("(auto)") && run.out.contains("stream priorities"),
        "{run:#?}"
    );
    let run = Run::of(thalweg().args(["devices", "--json"])).expect(0, &[]);
    let document: Value = serde_json::from_str(&run.out).expect("one JSON document");
    let devices = document["devices"].as_array().unwrap();
    let cpu = devices.iter().find(|device| device["id"] == "cpu").expect("the CPU is always there");
    assert!(cpu["total_memory"].as_u64().unwrap() > 0);
    assert!(devices.iter().any(|device| device["id"] == document["auto"]));
    assert_eq!(document["auto_note"].is_string(), document["auto"] == "cpu");
}

#[test]
fn the_check_of_a_device_measures_two_streams() {
    let check = |device: &str| {
        let run = Run::of(thalweg().args(["devices", "--check", "--json", "--device", device])).expect(0, &[]);
        serde_json::from_str::<Value>(&run.out).expect("one JSON document")["check"].clone()
    };
    let measured = check("auto");
    let [in_turn, together] = ["in_turn_ns", "together_ns"].map(|key| measured[key].as_u64().expect("a time"));
    let overlap = measured["overlap"].as_f64().expect("a share");
    assert!(in_turn > 0 && together > 0 && (0.0..=1.0).contains(&overlap), "{measured}");
    assert_eq!(measured["at_once"], overlap > 0.5);
    // No time is saved that was not there.
    assert!(overlap == 0.0 || together < in_turn, "{measured}");
    let run = Run::of(thalweg().args(["devices", "--check"])).expect(0, &[]);
    assert!(run.out.contains("\ncheck: the streams "), "{run:#?}");
    let run = Run::of(thalweg().arg("devices")).expect(0, &[]);
    assert!(!run.out.contains("check:"), "nobody asked: {run:#?}");
}

#[test]
fn devices_say_which_one_a_run_would_use() {
    let devices = |device: &str| {
        let mut command = thalweg();
        command.arg("devices").env("THALWEG_DEVICE", device);
        command
    };
    let run = Run::of(&mut devices("cpu")).expect(0, &[]);
    assert!(run.out.ends_with("used: cpu (as --device or THALWEG_DEVICE says)\n"), "{run:#?}");
    let document = |run: Run| serde_json::from_str::<Value>(&run.out).expect("one JSON document");
    assert_eq!(document(Run::of(devices("cpu").arg("--json")).expect(0, &[]))["used"], "cpu");
    assert_eq!(document(Run::of(devices("cuda:99").args(["--json", "--device=cpu"])).expect(0, &[]))["used"], "cpu");
    for device in ["", "auto"] {
        let run = Run::of(&mut devices(device)).expect(0, &[]);
        assert!(run.out.ends_with(" (as auto chooses)\n"), "{run:#?}");
        let document = document(Run::of(devices(device).arg("--json")).expect(0, &[]));
        assert_eq!(document["used"], document["auto"]);
    }

    // A name that `tokens` refuses is refused here, with the same message.
    let bench = Bench::new();
    for (device, code) in [("banana", 2), ("cuda:-1", 2), ("cuda:99", 1)] {
        let listed = Run::of(&mut devices(device)).expect(code, &[device]);
        let mut command = thalweg();
        command.args(["tokens", "a.png", "--out"]).arg(bench.out()).env("THALWEG_DEVICE", device);
        let run = Run::of(&mut command).expect(code, &[]);
        assert_eq!(listed.err.lines().next(), run.err.lines().next());
        assert_eq!(
            listed.out.contains("stream priorities"),
            code == 1,
            "the list helps whoever named a device that is not there"
        );
    }
    let nothing_used = document(Run::of(devices("cuda:99").arg("--json")).expect(1, &[]));
    assert_eq!(nothing_used["used"], Value::Null);
}

#[test]
fn help_and_version() {
    let run = Run::of(thalweg().arg("--version")).expect(0, &[]);
    assert_eq!(run.out.trim(), concat!("thalweg ", env!("CARGO_PKG_VERSION")));
    let run = Run::of(thalweg().args(["tokens", "--help"])).expect(0, &[]);
    for word in [
        "Examples:",
        "THALWEG_DEVICE",
        "--foveal-bias",
        "--skip-existing",
        "--recursive",
        "--quiet",
        "cu_seqlens",
        "EXIF",
        "Exit code",
    ] {
        assert!(run.out.contains(word), "{word}");
    }
    // The prose of the help is laid out for 80 columns.
    let prose = run.out.split("Examples:").nth(1).unwrap();
    assert_eq!(prose.lines().find(|line| line.chars().count() > 80), None);
    Run::of(&mut thalweg()).expect(2, &["Usage: thalweg"]);
}
