//! Runs programs and counts what they took.

use std::io::{BufRead, BufReader, Write};
use std::ops::Sub;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The tests that passed in all commands so far.
static PASSED: AtomicU32 = AtomicU32::new(0);

/// The resources that the commands so far took.
pub(crate) struct Usage {
    /// Seconds of user and system time. Only Linux tells them.
    pub(crate) cpu: Option<f64>,
    /// The tests that passed.
    pub(crate) passed: u32,
}

impl Usage {
    pub(crate) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // After the name in parentheses; then `cutime` and `cstime` are fields 13 and 14, in
        // hundredths.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
        let cpu = ticks(13).zip(ticks(14)).map(|(user, system)| (user + system) / 100.0);
        Self { cpu, passed: PASSED.load(Ordering::Relaxed) }
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let cpu = self.cpu.zip(before.cpu).map(|(now, before)| now - before);
        Self { cpu, passed: self.passed - before.passed }
    }
}

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}

/// Makes a command that runs in `dir` of the repository.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>, dir: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root().join(dir));
    // The cargo that runs this program describes this package. The commands are run as by hand.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "LD_LIBRARY_PATH" {
            command.env_remove(&name);
        }
    }
    command
}

/// Makes a command of the words of a line. It runs in the root of the repository.
pub(crate) fn words(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = command(words.next().unwrap_or_default(), ".");
    command.args(words);
    command
}

/// Runs a line of words.
pub(crate) fn line(line: &str) -> Result<(), String> {
    run(&mut words(line))
}

/// Runs a command, passes on what it prints, and counts the tests that passed.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    println!("$ {}", shown(command));
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| failed(command, &error))?;
    let output = child.stdout.take().ok_or("the output is piped")?;
    let mut reader = BufReader::new(output);
    let mut text = Vec::new();
    let read = |reader: &mut BufReader<_>, text: &mut Vec<u8>| reader.read_until(b'\n', text);
    while read(&mut reader, &mut text).map_err(|error| failed(command, &error))? > 0 {
        std::io::stdout().write_all(&text).map_err(|error| error.to_string())?;
        PASSED.fetch_add(passed(&String::from_utf8_lossy(&text)), Ordering::Relaxed);
        text.clear();
    }
    done(command, child.wait().map_err(|error| failed(command, &error))?)
}

/// Runs a command and returns what it printed on standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| failed(command, &error))?;
    done(command, output.status)?;
    String::from_utf8(output.stdout).map_err(|error| failed(command, &error))
}

/// Fails if the program is not installed.
pub(crate) fn need(program: &str, how: &str) -> Result<(), String> {
    let found = Command::new(program).arg("--version").output();
    match found {
        Ok(found) if found.status.success() => {
            print!("{}", String::from_utf8_lossy(&found.stdout));
            Ok(())
        }
        _ => Err(format!("missing: {program} ({how})")),
    }
}

/// Returns how many tests passed, if a line is the last one of a test binary.
fn passed(line: &str) -> u32 {
    let count = line.strip_prefix("test result: ok. ").and_then(|rest| rest.split(' ').next());
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

pub(crate) fn shown(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let set = set.map(|(name, value)| format!("{}={} ", name.display(), value.display()));
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    format!("{}{}", set.collect::<String>(), words.join(" "))
}

fn done(command: &Command, status: ExitStatus) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", shown(command))) }
}

fn failed(command: &Command, error: &dyn std::fmt::Display) -> String {
    format!("`{}`: {error}", shown(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_counted_from_the_last_line_of_a_binary() {
        assert_eq!(passed("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured\n"), 12);
        assert_eq!(passed("test result: FAILED. 12 passed; 1 failed\n"), 0);
        assert_eq!(passed("test a ... ok\n"), 0);
    }

    #[test]
    fn a_command_that_fails_is_an_error_with_its_words() {
        let error = run(command("cargo", ".").arg("no-such-command")).unwrap_err();
        assert!(error.contains("`cargo no-such-command` ended with exit status: 101"), "{error}");
        assert!(need("no-such-program", "nowhere").unwrap_err().contains("missing: no-such-program (nowhere)"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn cpu_time_of_commands_is_counted() {
        let before = Usage::now();
        run(command("sh", ".").args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"])).unwrap();
        assert!((Usage::now() - before).cpu.unwrap() > 0.05);
    }
}
