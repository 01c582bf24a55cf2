//! `thalweg process`: batches as the golden digests have them, a file each, and clear errors.

use std::fs;
use std::path::Path;

use crate::support::{Bench, Run, Tokens, pattern, photo, png, thalweg};

fn process(images: &[&Path], arguments: &[&str], out: &Path) -> Run {
    Run::of(thalweg().arg("process").args(images).args(arguments).arg("--out").arg(out))
}

/// The gray square has one level, so each number is the same for a channel.
#[test]
fn a_batch_has_the_names_and_numbers_of_transformers() {
    let bench = Bench::new();
    let gray = |height, width| png(image::RgbImage::from_pixel(width, height, image::Rgb([128; 3])));
    let (small, wide) = (bench.file("small.png", gray(30, 30)), bench.file("wide.png", gray(60, 90)));
    let out = bench.folder.path().join("batch.safetensors");
    let run = process(&[&small, &wide], &["--model", "qwen2.5-vl"], &out).expect(0, &[]);
    assert_eq!(run.out, format!("{}\n", out.display()));
    let batch = Tokens::read(&out);
    let names =
        ["cu_seqlens", "cu_window_seqlens", "image_grid_thw", "pixel_values", "vision_position_ids", "window_index"];
    assert_eq!(batch.names(), names);
    assert_eq!(batch.i32("cu_seqlens"), (&[3][..], vec![0, 16, 40]));
    let (shape, numbers) = batch.f32("pixel_values");
    assert_eq!(shape, [40, 1176]);
    let red = (128.0 - 0.48145466_f32 * 255.0) / (0.26862954_f32 * 255.0);
    assert!(numbers.iter().step_by(1176).all(|v| *v == red), "{} instead of {red}", numbers[0]);
}

#[test]
fn a_folder_gets_a_file_for_each_photograph() {
    let bench = Bench::new();
    let (eye, row) = (photo("eye.png"), photo("row.png"));
    let config = bench.file("config.json", r#"{"image_processor_type": "SiglipImageProcessor", "size": 20}"#);
    let config = config.to_str().expect("UTF-8");
    let out = bench.folder.path().join("inputs");
    let run = process(&[&eye, &row], &["--config", config, "--precision", "bf16", "--json"], &out).expect(0, &[]);
    let report: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!(report["images"][1]["grid"], serde_json::json!([1, 1]));
    let alone = fs::read(out.join("row.safetensors")).expect("a file for each");
    let file = safetensors::SafeTensors::deserialize(&alone).expect("safetensors");
    let tensor = file.tensor("pixel_values").expect("pixel values");
    assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::BF16, &[1, 3, 20, 20][..]));
    let batch = bench.folder.path().join("batch.safetensors");
    process(&[&eye, &row], &["--config", config, "--precision", "bf16"], &batch).expect(0, &[]);
    let batch = fs::read(batch).expect("a batch");
    let batch = safetensors::SafeTensors::deserialize(&batch).expect("safetensors");
    let both = batch.tensor("pixel_values").expect("pixel values");
    assert_eq!(both.shape(), [2, 3, 20, 20]);
    assert_eq!(&both.data()[both.data().len() / 2..], tensor.data());
}

#[test]
fn tiles_of_unlike_images_have_room_for_the_most() {
    let bench = Bench::new();
    let (square, wide) = (bench.file("a.png", png(pattern(40, 40))), bench.file("b.png", png(pattern(1200, 300))));
    let out = bench.folder.path().join("batch.safetensors");
    process(&[&square, &wide], &["--model", "llava-onevision"], &out).expect(0, &[]);
    let batch = Tokens::read(&out);
    let (shape, numbers) = batch.f32("pixel_values");
    let [2, most, 3, 384, 384] = shape[..] else { panic!("{shape:?}") };
    assert!(most > 2, "{most}");
    // The square has one tile and the whole image; what is behind them is zero.
    let tile = 3 * 384 * 384;
    assert!(numbers[2 * tile..most * tile].iter().all(|v| *v == 0.0));
    assert!(numbers[(most + 1) * tile..].iter().any(|v| *v != 0.0));
}

#[test]
fn what_cannot_be_done_is_named() {
    let bench = Bench::new();
    let good = bench.file("good.png", png(pattern(40, 40)));
    let (broken, long) = (bench.file("broken.png", "no image"), bench.file("long.png", png(pattern(900, 3))));
    let out = bench.folder.path().join("x.safetensors");
    let qwen = ["--model", "qwen2-vl"];
    process(&[&good], &[], &out).expect(2, &["--model"]);
    process(&[&good], &["--model", "qwen9"], &out).expect(2, &["qwen2.5-vl"]);
    process(&[&good], &["--model", "siglip", "--patch", "3"], &out).expect(1, &["--patch: this model has no such"]);
    process(&[&good], &["--model", "siglip", "--size", "0"], &out).expect(1, &["`size` is 0, expected 1 to 4096"]);
    process(&[&good], &["--config", "none.json"], &out).expect(1, &["--config none.json: cannot read it"]);
    let config = bench.file("config.json", r#"{"image_processor_type": "SiglipImageProcessor", "do_resize": false}"#);
    let config = config.to_str().expect("UTF-8");
    process(&[&good], &["--config", config], &out).expect(1, &["config.json: ", "`do_resize` is false: expected true"]);
    process(&[&broken], &qwen, &out).expect(1, &["1 of 1 image failed", "broken.png: "]);
    assert!(!out.exists());
    let failed = ["2 of 3 images failed", "broken.png: ", "long.png: the long side of an image is 300 times"];
    process(&[&broken, &good, &long], &qwen, &out).expect(1, &failed);
    assert_eq!(Tokens::read(&out).i32("cu_seqlens").1.len(), 2);
    process(&[&good], &qwen, &bench.folder.path().join("no/x.safetensors")).expect(1, &["there is no folder"]);
}

#[test]
fn orientation_alpha_and_depth_are_what_the_options_say() {
    let bench = Bench::new();
    let turned = testkit::files::repository("tests/golden/jpeg/exif6.jpg");
    let clear = bench.file("clear.png", png(image::RgbaImage::from_pixel(40, 40, image::Rgba([0, 0, 0, 0]))));
    let deep = image::ImageBuffer::from_pixel(40, 40, image::Luma([1000_u16]));
    let deep = bench.file("deep.png", png(image::DynamicImage::from(deep)));
    let run = |name: &str, options: &[&str]| {
        let out = bench.folder.path().join(name);
        let arguments = [&["--model", "siglip", "--size", "16", "--json"], options].concat();
        let run = process(&[&turned, &clear, &deep], &arguments, &out).expect(0, &[]);
        let report: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
        let side = |key: &str| report["images"][0][key].as_u64().expect("a number");
        let (_, numbers) = Tokens::read(&out).f32("pixel_values");
        ([side("height"), side("width")], numbers)
    };
    let ([height, width], plain) = run("plain.safetensors", &[]);
    let ([rows, columns], other) =
        run("other.safetensors", &["--orient", "stored", "--alpha", "white", "--depth", "pillow"]);
    assert_eq!([rows, columns], [width, height]);
    let image = 3 * 16 * 16;
    // SigLIP maps 0 to -1 and 255 to 1. The nearest 8-bit level of 1000 is 4.
    assert!(plain[image..2 * image].iter().all(|v| *v == -1.0), "{}", plain[image]);
    assert!(other[image..2 * image].iter().all(|v| *v == 1.0), "{}", other[image]);
    assert!(plain[2 * image..].iter().all(|v| *v < -0.96), "{}", plain[2 * image]);
    assert!(other[2 * image..].iter().all(|v| *v == 1.0), "{}", other[2 * image]);
}
