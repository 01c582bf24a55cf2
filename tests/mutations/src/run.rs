//! Runs a test while a mutation is in force.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::build::{Programs, VARIABLE, key};
use crate::table::Test;

/// Settings of the tests, unless they are set. Each test runs many times, so it has few cases.
const DEFAULTS: [(&str, &str); 4] =
    [("THALWEG_DEVICE", "cpu"), ("THALWEG_CASES", "200"), ("PROPTEST_CASES", "16"), ("THALWEG_FUZZ", "4000")];

/// A test that uses no processor for so long waits for something that never comes.
const IDLE: Duration = Duration::from_secs(20);

/// How a test ended.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    /// All passed: so many.
    Passed(u32),
    /// What failed first.
    Failed(String),
    Timeout,
}

/// Runs a test with a mutation (or 0) for at most `limit`.
pub(crate) fn run(programs: &Programs, test: &Test, number: u32, limit: Duration) -> Result<End, String> {
    let Some((program, folder)) = programs.get(&key(test)) else {
        return Err(format!("no test {} in the package {}", test.binary, test.package));
    };
    let mut command = Command::new(program);
    command.args(&test.filters).current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
    command.env(VARIABLE, number.to_string()).env("RUST_BACKTRACE", "0");
    for (name, value) in DEFAULTS {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let end = timed(command, limit)?;
    Ok(match end {
        None => End::Timeout,
        Some((true, text)) => End::Passed(passed(&text)),
        Some((false, text)) => End::Failed(failed(&text)),
    })
}

/// Runs a command in a process group of its own, which is ended when its time is up, when it is
/// [`IDLE`], or when it prints that a test failed: the other tests cannot change that. Returns
/// whether it succeeded, and what it printed.
fn timed(mut command: Command, limit: Duration) -> Result<Option<(bool, String)>, String> {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let mut stdout = BufReader::new(child.stdout.take().ok_or("the output is piped")?);
    let (tell, told) = std::sync::mpsc::channel();
    let failed = Arc::new(AtomicBool::new(false));
    let seen = failed.clone();
    std::thread::spawn(move || {
        let (mut text, mut line) = (String::new(), Vec::new());
        while stdout.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let read = String::from_utf8_lossy(&line);
            seen.fetch_or(failure(read.trim_end()).is_some(), Ordering::Relaxed);
            text += &read;
            line.clear();
        }
        let _ = tell.send(text);
    });
    let start = Instant::now();
    let (mut used, mut since) = (None, start);
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break Some(status.success());
        }
        if failed.load(Ordering::Relaxed) {
            break Some(false);
        }
        if start.elapsed() > limit {
            break None;
        }
        if since.elapsed() > IDLE {
            let now = ticks(child.id());
            if now.is_some() && now == used {
                break None;
            }
            (used, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    // Also what a test left behind, which would keep the pipe open.
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).stderr(Stdio::null()).status();
    child.wait().map_err(|error| error.to_string())?;
    let text = told.recv_timeout(Duration::from_secs(10)).unwrap_or_default();
    Ok(status.map(|succeeded| (succeeded, text)))
}

/// Returns the processor time that the processes of a group have used. Only Linux tells.
fn ticks(group: u32) -> Option<u64> {
    let stats = std::fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let stat = std::fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        let fields: Vec<u64> = stat.rsplit(") ").next()?.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
        (*fields.get(2)? == u64::from(group)).then_some(fields.get(11)? + fields.get(12)?)
    });
    stats.reduce(|a, b| a + b)
}

/// Returns how many tests passed, from the last line of a test binary.
fn passed(text: &str) -> u32 {
    let last = text.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    last.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0)
}

/// Returns the name of the test of which a line says that it failed.
fn failure(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Returns the name of a test that failed, or says that the process ended.
fn failed(text: &str) -> String {
    let line = text.lines().find_map(failure);
    let last = || text.lines().rev().find_map(|line| line.strip_prefix("test ")?.split(" ... ").next());
    match (line, last()) {
        (Some(name), _) => name.to_owned(),
        (None, Some(name)) => format!("the process ends after {name}"),
        (None, None) => "the process ends".to_owned(),
    }
}

/// Returns the seconds of user and system time of the commands that ended so far. Only Linux tells.
pub(crate) fn cpu() -> Option<f64> {
    let stat = std::fs::read_to_string(PathBuf::from("/proc/self/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(") ").next()?.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(13)? + ticks(14)?) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_and_the_first_failure_are_read() {
        assert_eq!(passed("test a ... ok\n\ntest result: ok. 12 passed; 0 failed\n"), 12);
        assert_eq!(failed("test a ... ok\ntest b::c ... FAILED\ntest d ... FAILED\n"), "b::c");
        assert_eq!(failed("test a ... ok\n"), "the process ends after a");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_time_of_a_group_is_that_of_its_processes() {
        let mut command = Command::new("sleep");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.arg("100").spawn().unwrap();
        assert!(ticks(child.id()).is_some_and(|ticks| ticks < 100));
        child.kill().and_then(|()| child.wait()).unwrap();
        assert_eq!(ticks(child.id()), None);
    }

    #[test]
    #[cfg(unix)]
    fn what_hangs_is_ended_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 100 & echo test a ... ok; wait"]);
        let start = Instant::now();
        assert_eq!(timed(command, Duration::from_millis(200)), Ok(None));
        assert!(start.elapsed() < Duration::from_secs(50), "the child that holds the pipe is ended, too");
        let mut command = Command::new("sh");
        command.args(["-c", "echo test a ... FAILED; sleep 100 & wait"]);
        assert_eq!(timed(command, Duration::from_secs(50)), Ok(Some((false, "test a ... FAILED\n".to_owned()))));
        assert!(start.elapsed() < Duration::from_secs(50), "nobody waits for the rest");
    }
}
