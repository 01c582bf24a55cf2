//! The script of `docs/jobs` that starts the ranks of a machine: two machines, both of which are
//! this one.

#![cfg(unix)]

use std::process::{Command, Stdio};

use crate::support::bars::{SMALL, data, report};
use crate::support::{Bench, Run, binary, repository};

/// Starts the script as machine `machine` of two, with two ranks each.
fn machine(machine: usize, port: u16, program: &[&str]) -> Command {
    let mut command = Command::new("bash");
    let pools = format!(r#"{{"workerpool0": ["127.0.0.1:{port}"], "workerpool1": ["127.0.0.1:{}"]}}"#, port + 1);
    let task = format!(r#"{{"type": "workerpool{machine}", "index": 0}}"#);
    command.arg(repository("docs/jobs/start.sh")).args(program).env("GPUS", "2");
    command.env("CLUSTER_SPEC", format!(r#"{{"cluster": {pools}, "environment": "cloud", "task": {task}}}"#));
    command.env("THALWEG_DEVICE", "cpu").env("THALWEG_SECRET", "s").env("THALWEG_COLLECTIVE_JOIN", "60");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A port after which eight are free now.
fn port() -> u16 {
    let free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    let start = 21_000 + (std::process::id() % 2000) as u16 * 10;
    (start..).step_by(10).find(|&port| (port..port + 9).all(free)).expect("free ports")
}

#[test]
fn two_machines_train_together() {
    let bench = Bench::new();
    let learn = data(&bench, "learn", 6, 0);
    let (out, json) = (bench.folder.path().join("m.safetensors"), bench.folder.path().join("m.jsonl"));
    let program = binary();
    let text = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let paths = [text(&program), text(&learn), text(&out), text(&json)];
    let [program, learn, out, json] = paths.each_ref().map(String::as_str);
    let arguments = [&[program, "train", learn, "--epochs", "2", "--out", out, "--json", json], &SMALL[..]].concat();
    let port = port();
    let other = machine(1, port, &arguments).spawn().expect("bash");
    let first = Run::of(&mut machine(0, port, &arguments)).expect(0, &[]);
    let other = Run::from(other.wait_with_output().expect("it ends")).expect(0, &[]);
    assert!(first.out.contains("epoch 2/2") && other.out.is_empty(), "rank 0 prints: {first:?} {other:?}");
    assert_eq!(report(json.as_ref()).last().expect("lines")["ranks"], 4);
}

/// A rank that fails ends the ranks of its machine.
#[test]
fn a_rank_that_fails_ends_the_others() {
    let script = "[ $RANK = 3 ] && exit 7; exec sleep 1000";
    let run = Run::of(&mut machine(1, 2222, &["sh", "-c", script]));
    assert_eq!(run.code, Some(7), "{run:?}");
    let said =
        Run::of(&mut machine(1, 2222, &["sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT"]));
    let mut lines: Vec<&str> = said.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["2 0 4 127.0.0.1 2222", "3 1 4 127.0.0.1 2222"]);
}
