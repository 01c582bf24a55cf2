//! A disk that becomes full while the command writes results leaves no incomplete file.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use image::{Rgb, RgbImage};

use crate::support::{Bench, Run, Tokens, photo, png, repository, thalweg};

/// Compiles the library that simulates a small disk.
fn small_disk(bench: &Bench) -> PathBuf {
    let library = bench.folder.path().join("libsmall_disk.so");
    let source = repository("cli").join("tests/fixtures/small_disk.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiled = Command::new(&rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .args([&library, Path::new(&source)])
        .status()
        .unwrap_or_else(|e| panic!("this test needs a Rust compiler, and {} does not start: {e}", rustc.display()));
    assert!(compiled.success(), "the small disk compiles: {compiled}");
    library
}

/// Makes images to learn from.
fn two_classes(bench: &Bench) -> PathBuf {
    let images = bench.input("images");
    for (class, shade) in [("dark", 20), ("light", 200)] {
        fs::create_dir_all(images.join(class)).unwrap();
        for i in 0..6u32 {
            let picture = RgbImage::from_fn(32, 32, |x, y| Rgb([shade + ((x * y + i) % 16) as u8; 3]));
            fs::write(images.join(class).join(format!("{i}.png")), png(picture)).unwrap();
        }
    }
    images
}

/// The run ends when the file is whole and in its place, and leaves no file of another name.
#[test]
fn a_signal_in_the_middle_of_a_file_ends_the_run_behind_it() {
    let bench = Bench::new();
    let library = small_disk(&bench);
    fs::create_dir(bench.out()).unwrap();
    let disk = fs::canonicalize(bench.out()).unwrap();
    let images = two_classes(&bench);
    // The signal comes with the first byte. The run has much more to do.
    let run = |command: &mut Command| {
        command.env("LD_PRELOAD", &library).env("SMALL_DISK", &disk);
        Run::of(command.env("SMALL_DISK_SIGNAL", "1").env("SMALL_DISK_BYTES", "1")).expect(143, &[]);
        let left = bench.results();
        let whole = |name: &String| name.ends_with(".safetensors") || name.ends_with(".svg");
        assert!(left[0].ends_with(".safetensors") && left.iter().all(whole), "{left:?}");
        left.iter().filter(|name| name.ends_with(".safetensors")).for_each(|name| _ = Tokens::read(&disk.join(name)));
    };
    let picture = png(RgbImage::from_pixel(32, 32, Rgb([90; 3])));
    let many: Vec<_> = (0..200).map(|i| bench.file(&format!("{i}.png"), &picture)).collect();
    run(thalweg().arg("tokens").args(many).arg("--out").arg(&disk));
    let settings = ["--width=16", "--heads=2", "--depth=1", "--patience=0", "--epochs=1000"];
    // The first file is that of the tokens, or the model.
    let elsewhere = disk.with_file_name("scratch");
    fs::create_dir(&elsewhere).unwrap();
    for scratch in [&disk, &elsewhere] {
        let mut train = thalweg();
        train.arg("train").arg(&images).args(settings).arg("--scratch").arg(scratch);
        run(train.arg("--out").arg(disk.join("model.safetensors")));
    }
}

/// The last checkpoint before the disk was full is whole, and the run goes on from it.
#[test]
fn a_full_disk_at_a_checkpoint_leaves_the_last_one() {
    let bench = Bench::new();
    let library = small_disk(&bench);
    fs::create_dir(bench.out()).unwrap();
    let disk = fs::canonicalize(bench.out()).unwrap();
    let images = two_classes(&bench);
    let model = disk.join("model.safetensors");
    let run = |arguments: &[&str], bytes: usize| {
        Run::of(
            thalweg()
                .arg("train")
                .arg(&images)
                .args(arguments)
                .arg("--out")
                .arg(&model)
                .env("LD_PRELOAD", &library)
                .env("SMALL_DISK", &disk)
                .env("SMALL_DISK_BYTES", bytes.to_string()),
        )
    };
    let settings = ["--width", "16", "--heads", "2", "--depth", "1", "--patience", "0", "--epochs"];
    // A folder without room for the tokens is said.
    run(&[&settings[..], &["1"]].concat(), 100).expect(1, &["cannot write the file of tokens: ", "--scratch names"]);
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0);
    // A run of one epoch says how much an epoch writes. The disk has room for five of them, and not
    // for twenty.
    run(&[&settings[..], &["1"]].concat(), 16 << 20).expect(0, &[]);
    let size = |path: &Path| fs::metadata(path).unwrap().len() as usize;
    let checkpoint = model.with_extension("checkpoint.safetensors");
    let epoch = size(&model) + size(&checkpoint) + size(&model.with_extension("curves.svg"));
    fs::remove_dir_all(&disk).unwrap();
    fs::create_dir(&disk).unwrap();
    run(&[&settings[..], &["20"]].concat(), 5 * epoch).expect(1, &["No space left on device"]);
    let mut left: Vec<_> =
        fs::read_dir(&disk).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["model.checkpoint.safetensors", "model.curves.svg", "model.safetensors"]);
    let resumed = run(&["--resume"], 64 << 20).expect(0, &[]);
    assert!(resumed.out.contains("epoch 20/20") && !resumed.out.contains("epoch 1/20"), "{resumed:#?}");
}

#[test]
fn a_full_disk_leaves_no_half_file() {
    let bench = Bench::new();
    fs::create_dir(bench.out()).unwrap();
    let disk = fs::canonicalize(bench.out()).unwrap();
    let library = small_disk(&bench);

    let run = |bytes: usize| {
        Run::of(
            thalweg()
                .arg("tokens")
                .args([photo("row.png"), photo("eye.png")])
                .args(["--budget=1024", "--heatmap", "--out"])
                .arg(&disk)
                .env("LD_PRELOAD", &library)
                .env("SMALL_DISK", &disk)
                .env("SMALL_DISK_BYTES", bytes.to_string()),
        )
    };
    run(128 << 10).expect(1, &["1 of 2 inputs failed", "eye.png: cannot write", "No space left on device"]);
    assert_eq!(bench.results(), ["row.heatmap.png", "row.safetensors"]);
    bench.read("row");
    // A disk with enough room holds all results.
    run(16 << 20).expect(0, &[]);
    assert_eq!(bench.results(), ["eye.heatmap.png", "eye.safetensors", "row.heatmap.png", "row.safetensors"]);
}
