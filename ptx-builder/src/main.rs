//! The command `thalweg-ptx`, which makes and checks PTX that is kept in a repository.

use std::io::Write;
use std::process::ExitCode;

use thalweg_ptx_builder::{Error, PtxBuilder, PtxFile};

const HELP: &str = "\
Builds a Rust crate of kernels to PTX.

usage: thalweg-ptx build CRATE FILE [options]    build the crate in directory CRATE and write FILE
       thalweg-ptx check CRATE FILE [options]    build it again and compare the result with FILE

options:
  --target sm_NN     the oldest GPU that the PTX is for; default: the target that FILE names, or sm_75
                     if there is no FILE
  --llvm-args LIST   options for LLVM, separated by commas; default: those that FILE names
  --report-panics    let kernels that panic on a GPU report which block and thread it was; default: as
                     in FILE
  --features LIST    build with these features of the crate, separated by commas, and without its
                     default features
  --rustc PATH       the compiler; default: THALWEG_RUSTC, or the one that made FILE if there is a
                     FILE and that compiler is installed, or the current toolchain of CRATE, or the
                     newest release among rustup's toolchains and /usr/bin/rustc. It is new enough
                     and has the sources of `core`
  --work-dir DIR     the directory for intermediate files; default: target/ptx

check compares all bytes. If another compiler made FILE, the bytes cannot be compared: it compares the
flags, the fingerprints of the sources and the list of entries, and if they are the same, it says that
FILE was NOT COMPARED. The exit status is 1 if FILE is not what the sources make or if an error occurs,
2 if the arguments are wrong, and 3 if FILE was not compared.
";

/// The exit status of `check` if another compiler made the file.
const NOT_COMPARED: u8 = 3;

/// Writes a line to standard output. If nobody reads there any more, as with `| head`, that is no
/// error.
macro_rules! say {
    ($($text:tt)*) => {
        _ = writeln!(std::io::stdout(), $($text)*)
    };
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut positional = Vec::new();
    let (mut target, mut features, mut llvm_args, mut rustc, mut work_dir) = (None, None, None, None, None);
    let (mut options, mut reports) = (String::new(), false);
    while let Some(argument) = arguments.next() {
        let option = match &*argument {
            "-h" | "--help" => {
                say!("{}", HELP.trim_end());
                return ExitCode::SUCCESS;
            }
            "--report-panics" => {
                reports = true;
                options += " --report-panics";
                continue;
            }
            "--target" => &mut target,
            "--features" => &mut features,
            "--llvm-args" => &mut llvm_args,
            "--rustc" => &mut rustc,
            "--work-dir" => &mut work_dir,
            _ if argument.starts_with('-') => return usage(&format!("unknown option {argument}")),
            _ => {
                positional.push(argument);
                continue;
            }
        };
        let Some(value) = arguments.next() else { return usage(&format!("{argument} takes a value")) };
        options += &format!(" {argument} {value}");
        *option = Some(value);
    }
    let [command, krate, file] = &*positional else {
        return usage("expected a command, a directory and a file");
    };
    let mut builder = PtxBuilder::new(krate);
    if let Some(features) = &features {
        builder = builder.features(features);
    }
    if let Some(rustc) = rustc {
        builder = builder.compiler(rustc);
    }
    if let Some(dir) = work_dir {
        builder = builder.work_dir(dir);
    }
    // What is not given is as in the file, if there is one.
    let old = PtxFile::read(file);
    let recorded = old.as_ref().ok().filter(|old| !old.target.is_empty());
    if let Some(target) = target.as_deref().or(recorded.map(|old| &*old.target)) {
        builder = builder.target(target);
    }
    match (&llvm_args, recorded) {
        (Some(list), _) => builder = list.split(',').fold(builder, PtxBuilder::llvm_arg),
        (None, Some(old)) => builder = old.llvm_args().fold(builder, PtxBuilder::llvm_arg),
        (None, None) => {}
    }
    builder = builder.report_panics(reports || recorded.is_some_and(PtxFile::reports_panics));
    if let Some(old) = recorded {
        builder = builder.like(old);
    }
    let result = match &**command {
        "build" => build(builder, file),
        "check" => {
            old.and_then(|old| check(builder, &old, file, &format!("thalweg-ptx build {krate} {file}{options}")))
        }
        _ => return usage(&format!("unknown command {command}")),
    };
    match result {
        Ok(status) => status,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("error: {problem}\n\n{HELP}");
    ExitCode::from(2)
}

fn build(builder: PtxBuilder, file: &str) -> Result<ExitCode, Error> {
    let ptx = builder.build()?;
    ptx.write(file)?;
    say!("{file}: {}", summary(&ptx));
    for entry in &ptx.entries {
        say!("  {entry}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Says whether the file is what the sources make. If not, it says how to `update` the file.
fn check(builder: PtxBuilder, old: &PtxFile, file: &str, update: &str) -> Result<ExitCode, Error> {
    let new = builder.build()?;
    if old.text == new.text {
        say!("{file}: up to date, {}", summary(&new));
        return Ok(ExitCode::SUCCESS);
    }

    let changes = builder.changes(old);
    for change in &changes {
        say!("{file}: was not built from the present {change}");
    }
    for entry in old.entries.iter().filter(|e| !new.entries.contains(e)) {
        say!("{file}: has {entry}, which the sources do not make");
    }
    for entry in new.entries.iter().filter(|e| !old.entries.contains(e)) {
        say!("{file}: lacks {entry}");
    }
    let status = if old.compiler == new.compiler {
        let mut lines = old.text.lines().zip(new.text.lines()).enumerate();
        let end = old.text.lines().count().min(new.text.lines().count());
        let at = lines.find(|(_, (a, b))| a != b).map_or(end, |(i, _)| i);
        say!("{file}: differs from line {} on", at + 1);
        for (whose, text) in [("is", &old.text), ("should be", &new.text)] {
            say!("  {whose}: {}", text.lines().nth(at).unwrap_or("the end"));
        }
        ExitCode::FAILURE
    } else {
        say!("{file}: NOT COMPARED, because another compiler built it");
        say!("  built by  {}", old.compiler);
        say!("  found     {}", new.compiler);
        say!("  to compare them, install the first one, and name its rustc in THALWEG_RUSTC if there are others");
        say!("  entries   {} and {}", old.entries.len(), new.entries.len());
        say!("  bytes     {} and {}", old.text.len(), new.text.len());
        if changes.is_empty() && old.entries == new.entries {
            say!("  the sources and the entries are the same, which does not show that the instructions are");
            NOT_COMPARED.into()
        } else {
            ExitCode::FAILURE
        }
    };
    say!("to make it with the compiler that was found: {update}");
    Ok(status)
}

fn summary(ptx: &PtxFile) -> String {
    let (entries, bytes) = (ptx.entries.len(), ptx.text.len());
    format!("{entries} entries, {bytes} bytes, {}, {}", ptx.target, ptx.compiler)
}
