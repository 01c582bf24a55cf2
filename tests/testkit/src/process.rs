//! Tests that run again in a process of their own: it finds another environment, or nothing else
//! runs in it.

use std::process::Command;

/// Makes the command that runs one test of this program again and nothing else. The test is named
/// by its whole path: `concat!(module_path!(), "::name")`.
pub fn again(test: &str) -> Command {
    let (_, name) = test.split_once("::").expect("the path of a test begins with its crate");
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", name, "--test-threads=1", "--nocapture"]);
    command
}

/// Returns whether the test has this process to itself. If it has not, runs it again in a process
/// that it has to itself, and checks that it passes there.
#[track_caller]
pub fn own_process(test: &str) -> bool {
    const MARK: &str = "THALWEG_TEST_OWN_PROCESS";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let output = again(test).env(MARK, "1").output().expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("test result: ok. 1 passed");
    assert!(passed, "{test}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    // What it covers is on standard error.
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    false
}
