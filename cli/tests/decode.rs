//! `--decode`: the device decodes JPEG files, and whatever it cannot decode comes as it does from
//! the host.

use std::fs;
use std::path::PathBuf;

use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::{Bench, Run, jpeg, pattern, png, repository, thalweg};

fn golden(name: &str) -> Vec<u8> {
    fs::read(repository("tests/golden/jpeg").join(name)).expect("a golden file")
}

/// Writes files of all kinds, some of which no decoder takes.
fn files(bench: &Bench) -> Vec<PathBuf> {
    let good = golden("eye-420-q75.jpg");
    let mut broken = golden("row-444-q95.jpg");
    let middle = broken.len() / 2;
    broken[middle..middle + 40].fill(0xAA);
    let cmyk = fs::read(repository("loader/tests/images/cmyk.jpg")).expect("a CMYK file");
    vec![
        bench.file("a-good.jpg", &good),
        bench.file("b-progressive.jpg", golden("eye-progressive.jpg")),
        bench.file("c-cut.jpg", &good[..good.len() * 2 / 3]),
        bench.file("d-cmyk.jpg", cmyk),
        bench.file("e-text.jpg", "no photograph"),
        bench.file("f-turned.jpg", golden("exif6.jpg")),
        bench.file("g-broken.jpg", broken),
        bench.file("h-picture.png", png(pattern(40, 30))),
        bench.file("i-last.jpg", golden("eye-422-q85.jpg")),
    ]
}

/// Runs `tokens --json` on files, and returns the run, its report and the results by name.
fn tokens(bench: &Bench, files: &[PathBuf], decode: &str, code: i32) -> (Run, Value) {
    let _ = fs::remove_dir_all(bench.out());
    let flags = ["--textures", "--budget=256", "--json", "--decode", decode].map(Into::into);
    let run = bench.tokens(files.iter().cloned().chain(flags)).expect(code, &[]);
    let report = serde_json::from_str(&run.out).expect("JSON");
    (run, report)
}

fn red_green_blue(bench: &Bench, stem: &str) -> (Vec<usize>, Vec<f32>) {
    let tokens = bench.read(stem);
    let (shape, planes) = tokens.f32("textures");
    (shape.to_vec(), planes[..3 * shape[1] * shape[2]].to_vec())
}

#[test]
fn each_file_is_in_its_place_as_on_the_host() {
    let bench = Bench::new();
    let files = files(&bench);
    let (host, host_report) = tokens(&bench, &files, "host", 1);
    let (names, count) = (bench.results(), host_report["images"].as_array().expect("images").len());
    assert!(names.len() == count && count >= 5, "{host:#?}");
    let stems: Vec<&str> = names.iter().map(|name| name.strip_suffix(".safetensors").expect("the ending")).collect();
    let planes: Vec<_> = stems.iter().map(|stem| red_green_blue(&bench, stem)).collect();

    let (device, report) = tokens(&bench, &files, "device", 1);
    assert_eq!(device.err, host.err, "the same errors, which name their files, in the same order");
    for name in ["c-cut.jpg: truncated", "e-text.jpg: not an image"] {
        assert!(device.err.contains(name), "{device:#?}");
    }
    let sources = |report: &Value| -> Vec<String> {
        report["images"].as_array().expect("images").iter().map(|image| image["source"].to_string()).collect()
    };
    assert_eq!(sources(&report), sources(&host_report));
    assert_eq!(bench.results(), names);
    for (stem, (shape, host)) in stems.iter().zip(&planes) {
        let (size, got) = red_green_blue(&bench, stem);
        assert_eq!(size, *shape, "{stem}");
        assert!(got == *host, "{stem}");
    }
    let counts = |report: &Value| report["jpeg"].clone();
    let left = serde_json::json!({ "CMYK or YCCK": 1 });
    assert_eq!(counts(&report), serde_json::json!({ "on_device": 4, "on_host": 1, "left_device": left }));
    assert_eq!(counts(&host_report), serde_json::json!({ "on_device": 0, "on_host": 5, "left_device": {} }));
    // The device decodes to libjpeg-turbo's pixels.
    for (stem, file) in [
        ("a-good", "eye-420-q75"),
        ("b-progressive", "eye-progressive"),
        ("f-turned", "exif6"),
        ("i-last", "eye-422-q85"),
    ] {
        let file = golden(&format!("{file}.safetensors"));
        let tensors = SafeTensors::deserialize(&file).expect("a golden file");
        let rgb = tensors.tensor("rgb").expect("pixels");
        let (shape, planes) = red_green_blue(&bench, stem);
        assert_eq!(rgb.shape()[..2], shape[1..], "{stem}");
        let pixels = shape[1] * shape[2];
        for (i, value) in rgb.data().iter().enumerate() {
            let got = (planes[i % 3 * pixels + i / 3] * 255.0).round() as u8;
            assert_eq!(got, *value, "{stem}: byte {i}");
        }
    }
}

/// The summary says where JPEG files were decoded, and the limit of pixels is an option.
#[test]
fn people_see_who_decoded_and_what_is_too_large() {
    let bench = Bench::new();
    let cmyk = fs::read(repository("loader/tests/images/cmyk.jpg")).expect("a CMYK file");
    let files = [bench.file("good.jpg", golden("eye-420-q75.jpg")), bench.file("cmyk.jpg", cmyk)];
    let run = |flags: &[&str]| bench.tokens(files.iter().cloned().chain(flags.iter().map(PathBuf::from)));
    let line = "JPEG files  1 decoded on the device, 1 on the host (left the device: 1 with CMYK or YCCK)";
    assert!(run(&["--budget=256", "--decode=device"]).expect(0, &[]).out.contains(line));
    assert!(run(&["--budget=256", "--decode=host"]).expect(0, &[]).out.contains("JPEG files  2 decoded on the host\n"));
    let few =
        run(&["--budget=256", "--max-pixels=10"]).expect(1, &["good.jpg: ", "megapixels; the limit", "cmyk.jpg: "]);
    assert!(few.err.lines().all(|line| !line.trim().is_empty()), "{few:#?}");
    run(&["--max-pixels=0"]).expect(2, &["--max-pixels"]);
}

/// A heatmap needs the pixels on the host, wherever they were decoded.
#[test]
fn a_heatmap_is_drawn_over_what_the_device_decoded() {
    let bench = Bench::new();
    let file = bench.file("good.jpg", golden("eye-420-q75.jpg"));
    let flags = ["--heatmap", "--budget=256", "--decode=device"].map(PathBuf::from);
    bench.tokens([file].into_iter().chain(flags)).expect(0, &[]);
    assert_eq!(bench.results(), ["good.heatmap.png", "good.safetensors"]);
    let picture = image::open(bench.out().join("good.heatmap.png")).expect("a picture");
    assert!(picture.width() > 0);
}

#[test]
fn the_flag_decides_before_the_environment() {
    let bench = Bench::new();
    let file = bench.file("good.jpg", golden("eye-420-q75.jpg"));
    for (flag, environment, on_device) in
        [("host", "device", 0), ("device", "host", 1), ("auto", "device", 1), ("auto", "host", 0)]
    {
        let mut command = thalweg();
        command.arg("tokens").arg(&file).args(["--json", "--budget=256"]).env("THALWEG_DECODE", environment);
        if flag != "auto" {
            command.arg(format!("--decode={flag}"));
        }
        let run = Run::of(command.arg("--out").arg(bench.out())).expect(0, &[]);
        let report: Value = serde_json::from_str(&run.out).expect("JSON");
        assert_eq!(report["jpeg"]["on_device"], on_device, "{flag} and {environment}");
    }
    bench
        .tokens([file, "--decode=gpu".into()])
        .expect(2, &["--decode <auto|device|host>", "expected auto, device or host"]);
}

#[test]
fn train_and_predict_take_what_the_device_decodes() {
    let bench = Bench::new();
    let data = bench.input("data");
    for class in ["one", "two"] {
        fs::create_dir_all(data.join(class)).expect("a folder");
        for i in 0..4 {
            let side = if class == "one" { 40 } else { 56 };
            fs::write(data.join(class).join(format!("{i}.jpg")), jpeg(pattern(side, 48 + i))).expect("a file");
        }
    }
    let whole = jpeg(pattern(40, 40));
    fs::write(data.join("one/cut.jpg"), &whole[..whole.len() - 30]).expect("a file");
    let model = bench.folder.path().join("m.safetensors");
    let small = ["--width=16", "--heads=2", "--depth=1", "--epochs=1", "--decode=device"];
    Run::of(thalweg().arg("train").arg(&data).args(small).arg("--out").arg(&model))
        .expect(1, &["cut.jpg: truncated", "left out"]);
    let files = ["one/0.jpg", "one/cut.jpg", "two/1.jpg"].map(|name| data.join(name));
    let run = Run::of(thalweg().arg("predict").arg(&model).args(&files).arg("--decode=device"));
    let run = run.expect(1, &["cut.jpg: truncated"]);
    let lines: Vec<&str> = run.out.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("0.jpg\t") && lines[1].contains("1.jpg\t"), "{run:#?}");
}
