//! The log of calls: it finds a missing wait of a program with `unsafe`, and accepts the same
//! program with the wait. Each program runs in a process of its own, on a seeded CPU device: there
//! its mistake cannot do harm, and the log does not need an unlucky schedule to show it.

mod programs;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use testkit::process::again;

use programs::{PROGRAMS, Program};

/// The program that a child runs: its name, and whether it is mended.
const PROGRAM: &str = "THALWEG_TEST_TRACED";

/// The command that runs a program.
fn run(test: &str, program: &Program, mended: bool) -> Command {
    let mut command = again(test);
    command.env(PROGRAM, format!("{}{}", program.name, if mended { ", mended" } else { "" }));
    command.env("RUST_BACKTRACE", "0");
    command
}

fn texts(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs the program that the environment names, if it names one.
fn is_child() -> bool {
    let Ok(asked) = std::env::var(PROGRAM) else { return false };
    let (name, mended) = asked.strip_suffix(", mended").map_or((&*asked, false), |name| (name, true));
    let program = PROGRAMS.iter().find(|program| program.name == name).expect("a program of this name");
    (program.run)(&programs::Streams::new().unwrap(), mended).unwrap();
    true
}

#[test]
fn a_missing_wait_stops_the_program() {
    if is_child() {
        return;
    }
    let test = concat!(module_path!(), "::a_missing_wait_stops_the_program");
    assert!(PROGRAMS.len() >= 30, "{}", PROGRAMS.len());
    for program in PROGRAMS {
        let [broken, mended] = [false, true].map(|mended| {
            let done = run(test, program, mended).env("THALWEG_TRACE", "check").output().unwrap();
            (done.status.success(), texts(&done))
        });
        let name = program.name;
        assert!(mended.0 && mended.1.contains("1 passed"), "{name}, mended: {}", mended.1);
        assert!(!broken.0 && broken.1.contains("THALWEG_TRACE=check: "), "{name}: {}", broken.1);
        for named in program.names {
            assert!(broken.1.contains(named), "{name}: the report does not have {named}: {}", broken.1);
        }
        // A destructor has no line.
        let has_line = program.names.iter().any(|named| !named.contains("`free`"));
        assert!(!has_line || broken.1.contains("tests/trace/programs.rs:"), "{name}: no line: {}", broken.1);
    }
    let _ = writeln!(std::io::stderr(), "covered: {} programs with a missing wait, and with it", PROGRAMS.len());
}

#[test]
fn the_file_of_a_log_has_the_same_mistake() {
    if is_child() {
        return;
    }
    let test = concat!(module_path!(), "::the_file_of_a_log_has_the_same_mistake");
    let folder = std::env::temp_dir().join(format!("thalweg-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for program in PROGRAMS.iter().step_by(5) {
        for mended in [false, true] {
            let file = folder.join("%p.log");
            let child = run(test, program, mended).env("THALWEG_TRACE", &file).stdout(Stdio::null()).spawn().unwrap();
            let log = folder.join(format!("{}.log", child.id()));
            child.wait_with_output().unwrap();
            let checked = thalweg::trace::check_log(&*std::fs::read(&log).unwrap());
            match (checked, mended) {
                (Ok(found), true) => assert!(found.rows > 5 && found.accesses > 1 && found.streams > 1, "{found:?}"),
                (Err(thalweg::trace::Rejected::Race(text)), false) => {
                    program.names.iter().for_each(|named| assert!(text.contains(named), "{}: {text}", program.name));
                }
                (other, _) => panic!("{}: {other:?}", program.name),
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_of_the_device() {
    if std::env::var_os(PROGRAM).is_some() {
        let why = thalweg::Device::cpu().unwrap_err().to_string();
        assert!(why.contains("THALWEG_TRACE") && why.contains("no/such/folder"), "{why}");
        return;
    }
    let test = concat!(module_path!(), "::a_file_that_cannot_be_written_is_an_error_of_the_device");
    let done = again(test).env(PROGRAM, "none").env("THALWEG_TRACE", "/no/such/folder/log").output().unwrap();
    assert!(done.status.success(), "{}", texts(&done));
}
