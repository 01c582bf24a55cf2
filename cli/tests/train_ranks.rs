//! `thalweg train` on several ranks, by `--gpus` and under a launcher: they learn what one learns,
//! and a run whose rank is killed goes on as if nothing had happened. On CPU ranks, and on two GPUs
//! over NCCL, or on one GPU with `NCCL_MULTI_RANK_GPU_ENABLE=1`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use thalweg::Device;

use crate::support::bars::{CLASSES, SMALL, data, report};
use crate::support::{Bench, Run, Tokens, thalweg};

/// Batches of 7 of 30 images: the ranks have unequal parts of a batch, and one of three has none of
/// the last.
const MANY_STEPS: [&str; 6] = ["--epochs", "10", "--batch", "7", "--patience", "0"];

/// What the ranks compute on: the value of `THALWEG_DEVICE` and of `THALWEG_COLLECTIVE_BACKEND`.
type On = [&'static str; 2];
const CPU: On = ["cpu", "auto"];
const NCCL: On = ["auto", "nccl"];

/// Whether two ranks can compute over NCCL here. Otherwise says that the test covers nothing.
fn have_gpus() -> bool {
    let shares = std::env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_some_and(|value| value == "1");
    let enough = Device::cuda(0).is_ok() && (shares || Device::cuda(1).is_ok());
    if !enough {
        eprintln!("NOT COVERED: this machine has no two GPUs, and NCCL_MULTI_RANK_GPU_ENABLE is not 1");
    }
    enough
}

/// `thalweg train`.
fn train_on(on: On, data: &Path, out: &Path, arguments: &[&str]) -> Command {
    let mut command = thalweg();
    command.arg("train").arg(data).args(arguments).arg("--out").arg(out).env("THALWEG_COLLECTIVE_TIMEOUT", "20");
    command.env("THALWEG_DEVICE", on[0]).env("THALWEG_COLLECTIVE_BACKEND", on[1]);
    command
}

/// The same of a small model on the CPU device.
fn train(data: &Path, out: &Path, arguments: &[&str]) -> Command {
    train_on(CPU, data, out, &[&SMALL, arguments].concat())
}

/// The same program as processes of `thalweg launch`.
fn launched(ranks: &str, program: &Command) -> Command {
    let mut command = thalweg();
    command.args(["launch", "-n", ranks, "--"]).arg(program.get_program()).args(program.get_args());
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// A place in the folder of a test for a model.
fn model(bench: &Bench, name: &str) -> PathBuf {
    bench.folder.path().join(name).with_extension("safetensors")
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"))
}

/// Expects two reports of the same run, up to the rounding of sums. Returns how far the losses are
/// apart.
fn close(a: &[Value], b: &[Value]) -> f64 {
    assert_eq!(a.len(), b.len());
    let apart = |(a, b): (&Value, &Value)| {
        assert_eq!(a["val_accuracy"], b["val_accuracy"], "{a} {b}");
        let apart = |key| (number(a, key) - number(b, key)).abs() / number(a, key).abs();
        apart("loss").max(apart("val_loss"))
    };
    a.iter().zip(b).map(apart).fold(0.0, f64::max)
}

#[test]
fn ranks_learn_what_one_rank_learns() {
    learn(CPU, &["3"]);
}

#[test]
fn gpus_learn_what_one_gpu_learns() {
    if have_gpus() {
        learn(NCCL, &[]);
    }
}

/// Compares runs of one rank, of two, and of other numbers.
fn learn(on: On, others: &[&str]) {
    let bench = Bench::new();
    let learn = data(&bench, "learn", 12, 0);
    // It is the image of some rank, and the others have no more batches because of it.
    fs::write(learn.join("lying/broken.png"), "broken").expect("a file");
    let run = |name: &str, ranks: &str, by_launcher: bool| {
        let (out, json) = (model(&bench, name), bench.folder.path().join(name).with_extension("jsonl"));
        let mut command = train_on(on, &learn, &out, &[&SMALL[..], &MANY_STEPS].concat());
        command.arg("--json").arg(&json);
        if by_launcher {
            command = launched(ranks, &command);
        } else {
            command.args(["--gpus", ranks]);
        }
        let run = Run::of(&mut command).expect(1, &["broken.png: "]);
        assert!(run.out.contains("30 images to learn from, 6 to test"), "{run:#?}");
        // One rank prints.
        assert_eq!(run.err.matches("broken.png").count(), 1, "{run:#?}");
        assert_eq!(run.out.matches("epoch 3/10").count(), 1, "{run:#?}");
        let lines = report(&json);
        let last = lines.last().expect("lines");
        assert_eq!(last["ranks"], ranks.parse::<u64>().expect("a number"));
        let [failed] = &last["failed"].as_array().expect("a list")[..] else { panic!("{last}") };
        assert_eq!(failed["source"], learn.join("lying/broken.png").to_str().expect("UTF-8"));
        (lines, out)
    };
    let (alone, _) = run("alone", "1", false);
    assert!(number(&alone[9], "loss") < 0.9 * number(&alone[0], "loss"), "{alone:?}");
    let (two, of_two) = run("two", "2", false);
    let (launched, of_launched) = run("launched", "2", true);
    let mut all = vec![("2", two), ("2", launched)];
    all.extend(others.iter().map(|ranks| (*ranks, run("others", ranks, false).0)));
    for (name, lines) in &all {
        let apart = close(&alone, lines);
        println!("{name} ranks on {on:?}: the losses of 50 steps differ by {apart:e} at most");
        assert!(apart < 1e-5, "{name} ranks: {apart:e}");
    }
    // Two ranks sum in the same order, wherever they are.
    let [a, b] = [&of_two, &of_launched].map(|path| Tokens::read(path));
    assert!(a.metadata == b.metadata && a.bytes() == b.bytes(), "every run gives the same bits");
}

/// More ranks than images, and batches of one image.
#[test]
fn ranks_without_an_image_take_part() {
    let bench = Bench::new();
    let learn = data(&bench, "learn", 3, 0);
    let run = |name: &str, gpus: &str| {
        let out = model(&bench, name);
        let arguments = ["--epochs", "3", "--batch", "1", "--budget", "32", "--gpus", gpus];
        Run::of(&mut train(&learn, &out, &arguments)).expect(0, &[]);
        Tokens::read(&out)
    };
    let (alone, many) = (run("alone", "1"), run("many", "11"));
    assert_eq!(alone.metadata, many.metadata, "tokens are made alike");
    for name in alone.names() {
        let ((shape, a), (_, b)) = (alone.f32(name), many.f32(name));
        let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let apart = norm(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / norm(&mut a.iter().copied()).max(1e-3);
        assert!(apart < 1e-3, "{name} {shape:?}: {apart:e}");
    }
}

/// A run under way: its lines, and the processes of its ranks.
struct UnderWay {
    child: Child,
    ids: Vec<String>,
}

/// Starts a run of processes, each of which says its number first, and waits for its first
/// checkpoint.
fn start(ranks: &str, program: &Command, checkpoint: &Path) -> UnderWay {
    let text = |part: &std::ffi::OsStr| part.to_str().expect("UTF-8").to_owned();
    let mut script = Command::new("sh");
    script.args(["-c", "echo $$; exec \"$0\" \"$@\""]).arg(program.get_program()).args(program.get_args());
    script.envs(program.get_envs().filter_map(|(name, value)| Some((text(name), text(value?)))));
    let mut command = launched(ranks, &script);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut ids = vec![String::new(); ranks.parse().expect("a number")];
    let out = child.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(out).lines();
    while ids.iter().any(String::is_empty) {
        let line = lines.next().expect("a line of each rank").expect("text");
        let (rank, id) = line.split_once("] ").expect("a rank before each line");
        if let Ok(id) = id.parse::<u32>() {
            ids[rank[1..].parse::<usize>().expect("a number")] = id.to_string();
        }
    }
    // Nobody reads on, but the ranks must be able to write.
    std::thread::spawn(move || lines.for_each(drop));
    let begin = Instant::now();
    while !checkpoint.exists() {
        assert!(begin.elapsed() < Duration::from_secs(120), "no checkpoint");
        std::thread::sleep(Duration::from_millis(2));
    }
    UnderWay { child, ids }
}

/// A rank is killed in the middle of training. The others end with an error that names it and the
/// operation; the ranks that are started next go on from the checkpoint, and nothing is different
/// in the end.
#[cfg(unix)]
fn killed(on: On, cases: &[(&str, usize)]) {
    let bench = Bench::new();
    let learn = data(&bench, "learn", 12, 0);
    let arguments = [&SMALL[..], &["--epochs", "24", "--batch", "6", "--patience", "0"]].concat();
    for &(ranks, killed) in cases {
        let (whole, parts) = (model(&bench, &format!("whole-{ranks}")), model(&bench, &format!("parts-{ranks}")));
        Run::of(&mut launched(ranks, &train_on(on, &learn, &whole, &arguments))).expect(0, &[]);

        let checkpoint = |path: &Path| path.with_extension("checkpoint.safetensors");
        let UnderWay { child, ids } = start(ranks, &train_on(on, &learn, &parts, &arguments), &checkpoint(&parts));
        let time = Instant::now();
        assert!(Command::new("kill").args(["-KILL", &ids[killed]]).status().expect("kill").success());
        let run = Run::from(child.wait_with_output().expect("it ends"));
        assert!(time.elapsed() < Duration::from_secs(15), "{:?}", time.elapsed());
        let run = run.expect(137, &[&format!("rank {killed} has failed: signal: 9")]);
        // Each survivor says who is gone and which operation needs it, and none had to be killed.
        assert!(!run.err.contains("is killed"), "{run:#?}");
        for survivor in (0..ids.len()).filter(|&rank| rank != killed) {
            let said = format!("[{survivor}] thalweg: ");
            let line = run.err.lines().find(|line| line.starts_with(&said)).unwrap_or_else(|| panic!("{run:#?}"));
            assert!(line.contains(&format!("rank {killed} is gone: operation ")), "{line}");
            assert!(line.contains(" of ") && line.ends_with(", needs it"), "{line}");
        }
        let epochs: Vec<Value> = {
            let text = &Tokens::read(&checkpoint(&parts)).metadata["progress.history"];
            serde_json::from_str(text).expect("JSON")
        };
        assert!(epochs.len() < 24, "the run was over before the signal came");

        // Another number of ranks goes on too, up to the rounding of sums.
        let other = model(&bench, &format!("other-{ranks}"));
        fs::copy(checkpoint(&parts), checkpoint(&other)).expect("a copy");
        Run::of(&mut train_on(on, &learn, &other, &["--resume", "--gpus", "1"])).expect(0, &[]);

        let run = Run::of(&mut launched(ranks, &train_on(on, &learn, &parts, &["--resume"]))).expect(0, &[]);
        assert!(run.out.contains("epoch 24/24") && !run.out.contains("epoch 1/24"), "{run:#?}");
        let [a, b] = [&whole, &parts].map(|path| Tokens::read(path));
        assert!(a.metadata == b.metadata && a.bytes() == b.bytes(), "the models have the same bits");
        let [a, b, c] = [&whole, &parts, &other].map(|path| Tokens::read(&checkpoint(path)));
        assert!(a.bytes() == b.bytes(), "weights and moments have the same bits");
        let history = |tokens: &Tokens| -> Vec<Value> {
            serde_json::from_str(&tokens.metadata["progress.history"]).expect("JSON")
        };
        let apart = close(&history(&a)[..epochs.len() + 3], &history(&c)[..epochs.len() + 3]);
        assert!(apart < 1e-4, "{apart:e}");
    }
}

#[test]
#[cfg(unix)]
fn a_run_whose_rank_is_killed_goes_on() {
    killed(CPU, &[("2", 1), ("3", 0)]);
}

#[test]
#[cfg(unix)]
fn a_run_on_gpus_whose_rank_is_killed_goes_on() {
    if have_gpus() {
        killed(NCCL, &[("2", 1)]);
    }
}

#[test]
fn what_is_wrong_with_ranks_is_said() {
    let bench = Bench::new();
    let learn = data(&bench, "learn", 4, 0);
    let out = model(&bench, "m");
    Run::of(&mut train(&learn, &out, &["--gpus", "0"])).expect(2, &["--gpus", "1 to 64"]);
    let run = |program: &Command| Run::of(&mut launched("2", program));
    let words = ["--gpus 3: a launcher has started this process as rank 0 of 2"];
    run(&train(&learn, &out, &["--gpus", "3"])).expect(1, &words);
    run(&train(&learn, &out, &["--device", "cuda:0"])).expect(1, &["each of several ranks takes the GPU of its own"]);
    Run::of(&mut train(&learn.join("missing"), &out, &["--gpus", "2"]))
        .expect(1, &["thalweg: ", "missing: cannot read it"]);

    // Ranks with other images than rank 0 would learn something else.
    data(&bench, "0", 4, 0);
    let one = data(&bench, "1", 4, 0);
    fs::remove_file(one.join(CLASSES[1]).join("003.png")).expect("a file");
    let program = |data: &Path| {
        let mut script = Command::new("sh");
        let plain = train(data, &out, &["--epochs", "1"]);
        script.args(["-c", "data=\"$1/$RANK\"; shift 1; exec \"$0\" train \"$data\" \"$@\""]);
        script.arg(plain.get_program()).arg(data).args(plain.get_args().skip(2));
        script.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        script
    };
    let root = one.parent().expect("a folder").to_path_buf();
    let words =
        ["[0] thalweg: ranks 0 and 1 differ from the others in the list of images", "[1] thalweg: ranks 0 and 1"];
    run(&program(&root)).expect(1, &words);
    // A rank that cannot read its images says so, and the other one says who has left.
    fs::remove_dir_all(&one).expect("a folder");
    run(&program(&root))
        .expect(1, &["[1] thalweg: ", "cannot read it", "rank 1 has dropped its communicator before operation"]);
    assert!(!out.exists());
}
