//! Bad input gets a message that names it and says what was expected. It leaves no incomplete
//! results.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use image::{ImageBuffer, Luma};

use crate::support::{Bench, Run, Tokens, binary, jpeg, pattern, photo, png, thalweg};

#[test]
fn bad_files_are_listed_and_the_others_done() {
    let bench = Bench::new();
    let good = bench.file("good.png", png(pattern(40, 30)));
    let last = bench.file("last.jpg", jpeg(pattern(40, 30)));
    let missing = bench.input("missing.png");
    let empty = bench.file("empty.png", "");
    let text = bench.file("text.jpg", "hello, this is no image\n");
    let gif = bench.file("moving.png", b"GIF89a\x01\x00\x01\x00\x80\x00\x00");
    let whole = png(pattern(40, 30));
    let cut = bench.file("cut.png", &whole[..whole.len() / 2]);
    let mut wrong = whole.clone();
    wrong[60] ^= 0x55;
    let wrong = bench.file("wrong.png", wrong);
    let head = bench.file("head.jpg", &jpeg(pattern(40, 30))[..3]);

    let run = bench.tokens([&good, &missing, &empty, &text, &gif, &cut, &wrong, &head, &last]).expect(
        1,
        &[
            "7 of 9 inputs failed",
            "missing.png: cannot open it: No such file",
            "empty.png: the file is empty; expected PNG, JPEG or WebP",
            "text.jpg: not an image this program reads; expected PNG, JPEG or WebP",
            "moving.png: this is a GIF file; expected PNG, JPEG or WebP",
            "cut.png: truncated: the file ends before the PNG image does",
            "wrong.png: broken image",
            "head.jpg: truncated",
        ],
    );
    assert!(run.out.contains("images      2, 7 failed"), "{run:#?}");
    assert_eq!(bench.results(), ["good.safetensors", "last.safetensors"]);
}

#[test]
fn wherever_a_file_is_cut_it_is_an_error() {
    let bench = Bench::new();
    let mut paths = Vec::new();
    for (name, whole) in [("png", png(pattern(33, 21))), ("jpg", jpeg(pattern(33, 21)))] {
        let cuts = (0..24).map(|i| whole.len() * i / 24).chain(whole.len() - 13..whole.len());
        paths.extend(cuts.map(|cut| bench.file(&format!("{name}-{cut}.{name}"), &whole[..cut])));
    }
    let run = bench.tokens(&paths).expect(1, &[&format!("{0} of {0} inputs failed", paths.len())]);
    assert_eq!(run.out, "");
    assert_eq!(bench.results(), [""; 0]);
}

#[test]
fn folders_without_images_or_without_permission() {
    let bench = Bench::new();
    fs::create_dir(bench.input("bare")).unwrap();
    fs::write(bench.input("bare").join("notes.txt"), "x").unwrap();
    let good = bench.file("good.png", png(pattern(16, 16)));
    bench.tokens([bench.input("bare"), good]).expect(1, &["bare: no *.png, *.jpg, *.jpeg or *.webp in this folder"]);
    assert_eq!(bench.results(), ["good.safetensors"]);
}

#[cfg(unix)]
#[test]
fn what_may_not_be_read_or_written() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    let bench = Bench::new();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    fs::create_dir(bench.input("locked")).unwrap();
    let secret = bench.file("secret.png", png(pattern(16, 16)));
    let good = bench.file("good.png", png(pattern(16, 16)));
    fs::create_dir(bench.out()).unwrap();
    let sealed = bench.folder.path().join("sealed");
    fs::create_dir(&sealed).unwrap();
    mode(bench.folder.path(), 0o755);
    mode(&bench.input("locked"), 0o000);
    mode(&secret, 0o000);
    mode(&sealed, 0o555);

    // Permissions do not stop root. A test that runs as root therefore starts the program as the
    // user `nobody`, from a copy that this user can reach.
    let root = fs::read_dir(bench.input("locked")).is_ok();
    let mut command = if root {
        mode(&bench.out(), 0o777);
        let program = bench.folder.path().join("thalweg");
        fs::copy(binary(), &program).unwrap();
        mode(&program, 0o755);
        let mut command = Command::new(program);
        command.uid(65534).gid(65534);
        command
    } else {
        thalweg()
    };
    let run =
        Run::of(command.arg("tokens").args([&bench.input("locked"), &secret, &good]).arg("--out").arg(bench.out()));
    mode(&bench.input("locked"), 0o755);
    run.expect(
        1,
        &["locked: cannot read the folder: Permission denied", "secret.png: cannot open it: Permission denied"],
    );
    assert_eq!(bench.results(), ["good.safetensors"]);

    let mut command = if root {
        let mut command = Command::new(bench.folder.path().join("thalweg"));
        command.uid(65534).gid(65534);
        command
    } else {
        thalweg()
    };
    let run = Run::of(command.arg("tokens").arg(&good).arg("--out").arg(&sealed));
    run.expect(1, &["good.png: cannot write", "sealed/good.safetensors: Permission denied"]);
    assert_eq!(fs::read_dir(&sealed).unwrap().count(), 0);
    let run = Run::of(thalweg().arg("tokens").arg(&good).arg("--out").arg(good.join("below")));
    run.expect(1, &["--out ", "good.png/below: cannot make this folder"]);
}

/// The shell limits the size of files to less than two of the results, and ignores the signal by
/// which the limit would end the program.
#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_finished_is_not_left() {
    let bench = Bench::new();
    let run = Run::of(
        Command::new("sh")
            .args(["-c", r#"trap "" XFSZ; ulimit -f 64; exec "$@""#, "sh"])
            .arg(binary())
            .arg("tokens")
            .args([photo("row.png"), photo("chelsea.png"), photo("eye.png")])
            .args(["--budget=400", "--textures", "--out"])
            .arg(bench.out()),
    );
    run.expect(1, &["2 of 3 inputs failed", "chelsea.png: cannot write", "eye.png: cannot write", "File too large"]);
    assert_eq!(bench.results(), ["row.safetensors"]);
    bench.read("row");
}

#[test]
fn a_folder_in_the_place_of_a_result() {
    let bench = Bench::new();
    fs::create_dir_all(bench.out().join("a.safetensors")).unwrap();
    let (a, b) = (bench.file("a.png", png(pattern(64, 64))), bench.file("b.png", png(pattern(64, 64))));
    let run = bench.tokens([a.as_os_str(), b.as_os_str(), "--heatmap".as_ref()]);
    run.expect(1, &["a.png: cannot write", "a.safetensors: Is a directory"]);
    // Where there is a heat map, its tensors are, too.
    assert_eq!(bench.results(), ["a.safetensors", "b.heatmap.png", "b.safetensors"]);
}

#[test]
fn two_files_of_one_stem() {
    let bench = Bench::new();
    let image = pattern(16, 16);
    let (one, two, other) = (
        bench.file("same.png", png(image.clone())),
        bench.file("same.jpg", jpeg(image.clone())),
        bench.file("other.png", png(image)),
    );
    let run = bench
        .tokens([&one, &other, &two])
        .expect(1, &["same.png: ", "same.jpg has the same stem", "same.jpg: ", "same.png has the same stem"]);
    assert!(run.err.contains("2 of 3 inputs failed"), "{run:#?}");
    assert_eq!(bench.results(), ["other.safetensors"]);

    // With three files of one stem, the message lists both others.
    let three = bench.file("same.jpeg", jpeg(pattern(16, 16)));
    bench
        .tokens([&one, &two, &three])
        .expect(1, &["3 of 3 inputs failed", "same.jpg and ", "same.jpeg have the same stem, so all would write "]);
    bench.tokens([bench.input("alone.png")]).expect(1, &["1 of 1 input failed:"]);
    fs::remove_file(three).unwrap();

    // A file that is named twice is read once.
    bench.tokens([&one, &bench.input("../in/same.png"), &one]).expect(0, &[]);
    assert_eq!(bench.results(), ["other.safetensors", "same.safetensors"]);
}

#[test]
fn results_never_replace_an_input() {
    let bench = Bench::new();
    let image = png(pattern(16, 16));
    let (one, two) = (bench.file("a.png", &image), bench.file("a.heatmap.png", &image));
    let folder = bench.folder.path().join("in");
    let run = Run::of(thalweg().arg("tokens").args([&one, &two]).arg("--heatmap").arg("--out").arg(&folder));
    run.expect(1, &["a.png: its result would replace the input", "a.heatmap.png"]);
    assert_eq!(fs::read(two).unwrap(), image);
}

#[test]
fn wrong_usage_names_the_flag_and_what_it_takes() {
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(16, 16)));
    let cases: &[(&[&str], &[&str])] = &[
        (&["--budget", "63"], &["--budget 63", "at least 64", "--sides starts at 8"]),
        (&["--budget", "99", "--sides", "10..12"], &["--budget 99", "at least 100"]),
        (&["--budget", "-5"], &["--budget", "-5", "whole number of tokens"]),
        (&["--budget", "many"], &["--budget", "whole number of tokens"]),
        (&["--focus", "1"], &["--focus", "above 0 and below 1"]),
        (&["--focus", "0"], &["--focus", "above 0 and below 1"]),
        (&["--focus", "NaN"], &["--focus", "above 0 and below 1"]),
        (&["--focus", "-0.5"], &["--focus", "above 0 and below 1"]),
        (&["--patch", "0"], &["--patch", "1 to 16384"]),
        (&["--patch", "4294967296"], &["--patch", "1 to 16384"]),
        (&["--sides", "20..8"], &["--sides", "1 <= LO <= HI <= 255"]),
        (&["--sides", "0..8"], &["--sides", "1 <= LO <= HI <= 255"]),
        (&["--sides", "8..256"], &["--sides", "1 <= LO <= HI <= 255"]),
        (&["--sides", "8"], &["--sides", "LO..HI"]),
        (&["--foveal-bias", "1.1"], &["--foveal-bias", "from 0 to 1"]),
        (&["--foveal-bias", "inf"], &["--foveal-bias", "from 0 to 1"]),
        (&["--fixation", "0.5"], &["--fixation", "Y,X"]),
        (&["--fixation", "-0.1,0.5"], &["--fixation", "from 0 to 1"]),
        (&["--fixation", "0.1,0.5,0.5"], &["--fixation", "Y,X"]),
        (&["--device", "gpu"], &["--device", "auto, cpu or cuda:N"]),
        (&["--device", "cuda:-1"], &["--device", "auto, cpu or cuda:N"]),
        (&["--color"], &["--color"]),
    ];
    for (flags, words) in cases {
        Run::of(thalweg().arg("tokens").arg(&image).arg("--out").arg(bench.out()).args(*flags)).expect(2, words);
    }
    Run::of(thalweg().arg("tokens").arg(&image)).expect(2, &["--out"]);
    Run::of(thalweg().args(["tokens", "--out"]).arg(bench.out())).expect(2, &["<image|folder|->"]);
    Run::of(thalweg().arg("tokens").arg(&image).arg("--out").arg(bench.out()).env("THALWEG_DEVICE", "gpu"))
        .expect(2, &["THALWEG_DEVICE", "auto, cpu or cuda:N"]);
    assert!(!bench.out().exists());

    // A variable of the environment does not turn its flag into a required argument.
    let run = Run::of(thalweg().arg("tokens").env("THALWEG_DEVICE", "cpu"));
    let usage = "Usage: thalweg tokens [OPTIONS] --out <DIR> <image|folder|->...\n";
    let run = run.expect(2, &["required arguments were not provided", usage]);
    assert!(!run.err.contains("--device"), "{run:#?}");
    let help = Run::of(thalweg().args(["tokens", "-h"])).expect(0, &[]);
    assert!(help.out.contains(usage), "{help:#?}");
}

#[test]
fn a_device_that_is_not_there() {
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(16, 16)));
    let command = || {
        let mut command = thalweg();
        command.arg("tokens").arg(&image).arg("--out").arg(bench.out());
        command
    };
    Run::of(command().args(["--device", "cuda:99"])).expect(1, &["device cuda:99"]);
    Run::of(command().env("THALWEG_DEVICE", "cuda:99")).expect(1, &["device cuda:99", "THALWEG_DEVICE"]);
    assert!(!bench.out().exists());
    Run::of(command().args(["--device", "cpu"]).env("THALWEG_DEVICE", "cuda:99")).expect(0, &[]);
}

#[cfg(target_os = "linux")]
#[test]
fn standard_output_on_a_full_disk_or_closed() {
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(16, 16)));
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = thalweg();
    let run = Run::of(command.arg("tokens").arg(&image).arg("--json").arg("--out").arg(bench.out()).stdout(full));
    run.expect(1, &["cannot write to standard output: No space left on device"]);
    assert_eq!(bench.results(), ["a.safetensors"]);
}

/// Messages to a full disk are lost, but the exit code still says what happened.
#[cfg(target_os = "linux")]
#[test]
fn standard_error_on_a_full_disk() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let bench = Bench::new();
    for i in 0..16 {
        bench.file(&format!("{i:02}.png"), png(pattern(16, 16)));
    }
    let bad = bench.file("bad.jpg", "no image");
    for (input, flags, code) in [
        ("00.png", &["--budget=63"][..], 2),
        ("00.png", &["--budget=many"], 2),
        ("00.png", &["--device=cuda:99"], 1),
        ("bad.jpg", &[], 1),
    ] {
        let mut command = thalweg();
        command.arg("tokens").arg(bench.input(input)).args(flags).arg("--out").arg(bench.out());
        let code_of_run = command.stdout(Stdio::null()).stderr(full()).status().unwrap().code();
        assert_eq!(code_of_run, Some(code), "{input} {flags:?}");
    }
    fs::remove_file(bad).unwrap();
    add_endless_input(&bench);
    assert_eq!(interrupt(&bench, &[], 1, "HUP", full().into()), Some(129));
}

/// Adds an input that comes last and is never read, because nobody writes into this pipe. A run
/// over the folder therefore ends only by a signal.
#[cfg(unix)]
fn add_endless_input(bench: &Bench) {
    assert!(Command::new("mkfifo").arg(bench.input("999.png")).status().unwrap().success());
}

/// Runs the command over the folder of inputs, sends it `signal` once the folder of results holds
/// at least `results` files, and returns the exit code.
#[cfg(unix)]
fn interrupt(bench: &Bench, flags: &[&str], results: usize, signal: &str, stderr: Stdio) -> Option<i32> {
    let mut child = thalweg()
        .arg("tokens")
        .arg(bench.folder.path().join("in"))
        .args(flags)
        .arg("--out")
        .arg(bench.out())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .unwrap();
    while bench.results().len() < results && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status().unwrap();
    // A run that ignores the signal must fail the test, and not outlive it.
    let given_up = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > given_up {
            child.kill().unwrap();
            panic!("SIG{signal} did not end the run");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let code = child.wait().unwrap().code();
    assert!(sent.success(), "the run ended before SIG{signal}, with exit code {code:?}");
    code
}

/// All files are whole after an interrupt, also when the signal comes between two results.
#[cfg(unix)]
#[test]
fn an_interrupt_leaves_whole_files() {
    const IMAGES: usize = 128; // whole chunks of 16: all are written, although the pipe never ends
    const TRIES: usize = 20;
    let bench = Bench::new();
    let image = png(ImageBuffer::from_fn(160, 120, |x, y| Luma([(x * y) as u8])));
    for i in 0..IMAGES {
        bench.file(&format!("{i:03}.png"), &image);
    }
    add_endless_input(&bench);
    for (results, signal, code) in [(1, "INT", 130), (20, "INT", 130), (50, "INT", 130), (100, "TERM", 143)] {
        // On a busy machine, the run may write all results before the signal reaches it. Such a run
        // says nothing about a signal that comes while files are written, so try again.
        let found_it_writing = (0..TRIES).any(|_| {
            let flags = ["--heatmap", "--sides=8..8"]; // small pictures
            assert_eq!(interrupt(&bench, &flags, results, signal, Stdio::null()), Some(code), "SIG{signal}");
            let names = bench.results();
            for name in &names {
                if name.ends_with(".safetensors") {
                    Tokens::read(&bench.out().join(name));
                } else {
                    assert!(name.ends_with(".heatmap.png"), "{name} is left");
                    image::open(bench.out().join(name)).unwrap();
                }
            }
            fs::remove_dir_all(bench.out()).unwrap();
            names.len() < 2 * IMAGES
        });
        assert!(found_it_writing, "SIG{signal} came too late in {TRIES} runs");
    }
}

/// Shells report a program that a signal ended as 128 and the signal's number.
#[cfg(unix)]
#[test]
fn the_exit_code_says_which_signal_it_was() {
    let bench = Bench::new();
    for i in 0..16 {
        bench.file(&format!("{i:02}.png"), png(pattern(16, 16)));
    }
    add_endless_input(&bench);
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        assert_eq!(interrupt(&bench, &[], 1, signal, Stdio::null()), Some(code), "SIG{signal}");
        fs::remove_dir_all(bench.out()).unwrap();
    }
}
