//! `thalweg augment`: results as the golden files have them, contact sheets, and clear errors.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Bench, Run, Tokens, pattern, photo, png, repository, thalweg};

fn golden(name: &str) -> PathBuf {
    repository("tests/golden").join(format!("augment/{name}.safetensors"))
}

fn augment(bench: &Bench, image: &Path, arguments: &[&str], out: &str) -> Run {
    Run::of(thalweg().arg("augment").arg(image).args(arguments).arg("--out").arg(bench.folder.path().join(out)))
}

#[test]
fn one_result_equals_the_golden_file() {
    let bench = Bench::new();
    let cases = [
        ("eye", ["123456789012", "1", "5", "32"]),
        ("row", ["1", "0", "0", "16"]),
        ("coffee", ["7", "3", "41", "96"]),
        ("eye", ["31", "4000000000", "9", "120"]),
    ];
    for (name, [seed, epoch, index, size]) in cases {
        let arguments = ["--seed", seed, "--epoch", epoch, "--index", index, "--size", size];
        augment(&bench, &photo(&format!("{name}.png")), &arguments, "one.safetensors").expect(0, &[]);
        let got = Tokens::read(&bench.folder.path().join("one.safetensors"));
        let want = Tokens::read(&golden(&format!("{name}-s{seed}-e{epoch}-i{index}-{size}")));
        assert_eq!(got.names(), ["crop", "factors", "image"]);
        assert_eq!(got.i32("crop"), want.i32("crop"), "{name}");
        assert_eq!(got.f64("factors").0, [6]);
        for (got, want) in got.f64("factors").1.iter().zip(want.f64("factors").1) {
            assert!((got - want).abs() < 1e-15, "{name}: {got} instead of {want}");
        }
        let ((shape, image), (want_shape, want)) = (got.f32("image"), want.f32("image"));
        assert_eq!(shape, want_shape, "{name}");
        // 2e-5 before normalizing, which divides by at least 0.224.
        let worst = image.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 2e-5 / 0.224, "{name}: off by {worst}");
    }
}

/// A batch of one image is mixed with itself, so the mixture changes nothing.
#[test]
fn more_steps_are_options() {
    let bench = Bench::new();
    let options = r#"{"flip_vertical": 0.5, "rotation": 30, "hue": 0.3, "erasing": {"probability": 0.6}}"#;
    let file = bench.file("options.json", options);
    for (name, [seed, epoch, index, size]) in
        [("chelsea", ["22", "5", "4294967301", "33"]), ("coffee", ["7", "3", "41", "64"])]
    {
        let arguments = ["--seed", seed, "--epoch", epoch, "--index", index, "--size", size];
        let arguments = [&arguments[..], &["--options", file.to_str().expect("UTF-8")]].concat();
        augment(&bench, &photo(&format!("{name}.png")), &arguments, "one.safetensors").expect(0, &[]);
        let got = Tokens::read(&bench.folder.path().join("one.safetensors"));
        let want = Tokens::read(
            &repository("tests/golden")
                .join(format!("augment-more/{name}-s{seed}-e{epoch}-i{index}-{size}.safetensors")),
        );
        assert_eq!(got.names(), ["changes", "crop", "factors", "image"]);
        for (got, want) in got.f64("changes").1.iter().zip(want.f64("changes").1) {
            assert!((got - want).abs() < 1e-14, "{name}: {got} instead of {want}");
        }
        let (image, want) = (got.f32("image").1, want.f32("image").1);
        let worst = image.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 2e-5 / 0.224, "{name}: off by {worst}");
    }
}

#[test]
fn a_contact_sheet_shows_the_photograph_and_its_results() {
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(40, 40)));
    let other = bench.file("b.png", png(pattern(64, 32)));
    let out = bench.folder.path().join("sheet.png");
    let sheet = |arguments: &[&str]| {
        let mut command = thalweg();
        command.arg("augment").args([&image, &other]).args(["--size", "40", "--count", "3"]).args(arguments);
        let run = Run::of(command.arg("--out").arg(&out)).expect(0, &[]);
        assert_eq!(run.out, format!("{}\n", out.display()));
        image::open(&out).expect("a PNG").to_rgb8()
    };
    let drawn = sheet(&[]);
    assert_eq!(drawn.dimensions(), (4 * 44 + 4, 2 * 44 + 4));
    // The first picture is the photograph, which has the size already.
    for (x, y, pixel) in pattern(40, 40).enumerate_pixels() {
        assert_eq!(drawn.get_pixel(4 + x, 4 + y), pixel, "at {x}, {y}");
    }
    // The pictures of an epoch are those of the first column when this epoch is the first.
    let later = sheet(&["--epoch", "1"]);
    let cell = |sheet: &image::RgbImage, column: u32, row: u32| -> Vec<u8> {
        image::imageops::crop_imm(sheet, 4 + 44 * column, 4 + 44 * row, 40, 40).to_image().into_raw()
    };
    for row in 0..2 {
        assert_eq!(cell(&drawn, 2, row), cell(&later, 1, row));
        assert_ne!(cell(&drawn, 1, row), cell(&later, 1, row));
    }
    // With all steps off, each picture is the photograph.
    let options = bench.file(
        "none.json",
        r#"{"crop": null, "flip": 0, "brightness": 0, "contrast": 0, "saturation": 0, "grayscale": 0, "blur": null}"#,
    );
    let plain = sheet(&["--options", options.to_str().expect("UTF-8")]);
    for column in 1..4 {
        assert_eq!(cell(&plain, column, 0), cell(&plain, 0, 0));
        assert_eq!(cell(&plain, column, 1), cell(&plain, 0, 1));
    }
}

#[test]
fn what_is_wrong_is_said() {
    let bench = Bench::new();
    let good = bench.file("good.png", png(pattern(40, 30)));
    let whole = png(pattern(40, 30));
    let mut empty_image = whole.clone();
    empty_image[16..20].fill(0); // the width in the header
    let cases = [
        (bench.file("cut.png", &whole[..whole.len() / 2]), "cut.png: truncated"),
        (bench.file("nothing.png", ""), "nothing.png: the file is empty"),
        (bench.file("zero.png", empty_image), "zero.png: "),
        (bench.input("missing.png"), "missing.png: cannot open it: No such file"),
        (bench.folder.path().join("in"), "in: this is a folder; expected a PNG"),
    ];
    for (path, message) in cases {
        augment(&bench, &path, &[], "x.safetensors").expect(1, &[message]);
        augment(&bench, &path, &[], "x.png").expect(1, &[message]);
    }
    augment(&bench, &good, &["--size", "6"], "x.png").expect(1, &["size", "at least 7 pixels, the taps of the blur"]);
    augment(&bench, &good, &["--size", "0"], "x.png").expect(2, &["--size", "1 to 4096"]);
    augment(&bench, &good, &["--seed", "-1"], "x.png").expect(2, &["--seed"]);
    augment(&bench, &good, &["--epoch", "4294967296"], "x.png").expect(2, &["--epoch"]);
    augment(&bench, &good, &["--count", "65"], "x.png").expect(2, &["--count", "1 to 64"]);
    augment(&bench, &good, &[], "x.jpg").expect(2, &["ends with .png or .safetensors"]);
    augment(&bench, &good, &[good.to_str().expect("UTF-8")], "x.safetensors")
        .expect(1, &["one result is of one image"]);
    augment(&bench, &good, &[], "in/good.png").expect(1, &["it would replace the input", "good.png"]);
    augment(&bench, &good, &[], "no/such/folder.png").expect(1, &["cannot write", "there is no folder ", "no/such"]);
    for (options, message) in [
        (r#"{"flips": 1}"#, "unknown field `flips`"),
        (r#"{"flip": 2}"#, "options.json: flip is 2"),
        ("[", "options.json: "),
    ] {
        let file = bench.file("options.json", options);
        let arguments = ["--options", file.to_str().expect("UTF-8")];
        augment(&bench, &good, &arguments, "x.png").expect(1, &[message]);
    }
    assert!(!bench.folder.path().join("x.png").exists() && !bench.folder.path().join("x.safetensors").exists());
    assert_eq!(fs::read(&good).expect("the input is there"), whole);
}
