//! `thalweg launch`: environment, output, exit codes, and ranks that fail.

use std::time::{Duration, Instant};

use crate::support::{Bench, thalweg};

/// Runs a script of `sh` as `n` ranks.
fn launch(n: &str, script: &str) -> (Option<i32>, Vec<String>, String) {
    let output = thalweg().args(["launch", "-n", n, "--", "sh", "-c", script]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    (output.status.code(), lines, text(&output.stderr))
}

#[test]
fn each_rank_knows_its_place_and_lines_have_its_number() {
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR; \
        test -n \"$MASTER_PORT\" && test -n \"$THALWEG_STORE\" && test ${#THALWEG_SECRET} = 64; echo $?; \
        printf 'no end'; echo 'to the side' >&2";
    let (code, lines, err) = launch("2", script);
    assert_eq!(code, Some(0), "{err}");
    let expected = ["[0] 0", "[0] 0 0 2 2 127.0.0.1", "[0] no end", "[1] 0", "[1] 1 1 2 2 127.0.0.1", "[1] no end"];
    assert_eq!(lines, expected);
    let mut err: Vec<&str> = err.lines().collect();
    err.sort_unstable();
    assert_eq!(err, ["[0] to the side", "[1] to the side"]);
}

#[test]
fn the_first_failure_decides_and_ends_the_others() {
    let started = Instant::now();
    let (code, lines, err) = launch("3", "if [ $RANK = 1 ]; then exit 7; else exec sleep 1000; fi");
    assert_eq!((code, lines), (Some(7), vec![]), "{err}");
    assert!(err.contains("rank 1 has failed: exit status: 7"), "{err}");
    assert!(err.contains("rank 0 is killed") && err.contains("rank 2 is killed"), "{err}");
    assert!(started.elapsed() < Duration::from_secs(60));

    let (code, _, err) = launch("2", "if [ $RANK = 0 ]; then kill -9 $$; fi");
    assert_eq!(code, Some(137), "{err}");

    // Rank 0 fails after rank 1 has ended and the launcher knows it.
    let bench = Bench::new();
    let place = bench.folder.path().join("process");
    let script = format!(
        "if [ $RANK = 1 ]; then echo $$ > {0}; exit 7; fi; until [ -s {0} ]; do sleep 0.05; done; \
         while kill -0 $(cat {0}) 2> {0}.gone; do sleep 0.05; done; exit 9",
        place.display()
    );
    let (code, _, err) = launch("2", &script);
    assert_eq!(code, Some(7), "{err}");
}

#[test]
fn what_cannot_run_is_an_error() {
    let run = |args: &[&str]| {
        let output = thalweg().arg("launch").args(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, err) = run(&["-n", "2", "--", "/there/is/no/such/program"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("cannot start /there/is/no/such/program"), "{err}");
    assert_eq!(run(&["-n", "0", "--", "true"]).0, Some(2));
    assert_eq!(run(&["-n", "2"]).0, Some(2));
}

/// A signal to the launcher ends the ranks too. Ctrl-C of a terminal reaches all of them at once,
/// and no rank has failed.
#[test]
#[cfg(unix)]
fn a_signal_ends_the_ranks() {
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::process::CommandExt;
    for (signal, group, code) in [("-TERM", false, 143), ("-INT", true, 130)] {
        let script = "echo $$; exec sleep 1000";
        let mut launcher = thalweg()
            .args(["launch", "-n", "2", "--", "sh", "-c", script])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
        let ids: Vec<String> = (0..2).map(|_| lines.next().unwrap().unwrap()[4..].to_owned()).collect();
        let kill = |signal: &str, id: &str| {
            let output = std::process::Command::new("kill").args([signal, "--", id]).output();
            output.unwrap().status.success()
        };
        let target = if group { format!("-{}", launcher.id()) } else { launcher.id().to_string() };
        assert!(kill(signal, &target));
        assert_eq!(launcher.wait().unwrap().code(), Some(code));
        assert!(ids.iter().all(|id| !kill("-0", id)), "{ids:?} still run");
        let mut err = String::new();
        launcher.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(!err.contains("has failed"), "{err}");
    }
}
