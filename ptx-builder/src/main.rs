//! The command `thalweg-ptx`: makes PTX that is kept in a repository, and checks it.

use std::process::ExitCode;

use thalweg_ptx_builder::{Error, Ptx, PtxBuilder};

const HELP: &str = "\
Builds a Rust crate of kernels to PTX.

usage: thalweg-ptx build CRATE FILE [options]    build the crate in directory CRATE, write FILE
       thalweg-ptx check CRATE FILE [options]    build it again and compare with FILE

options:
  --target sm_NN     the oldest GPU it is for; default: for build sm_75, for check what FILE says
  --features LIST    build with these features of the crate, separated by commas, and not its default ones
  --rustc PATH       the compiler; default: THALWEG_RUSTC, else the first one with the sources of
                     `core`: the current toolchain, rustup's, /usr/bin/rustc
  --work-dir DIR     intermediate files; default: target/ptx

check compares byte for byte. When FILE names another compiler than the one at hand, it compares
the fingerprints of the sources and the list of entries instead, and says so. It ends with 1 when
FILE is not what the sources make.
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut positional = Vec::new();
    let (mut target, mut features, mut rustc, mut work_dir) = (None, None, None, None);
    while let Some(argument) = arguments.next() {
        let option = match &*argument {
            "-h" | "--help" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            "--target" => &mut target,
            "--features" => &mut features,
            "--rustc" => &mut rustc,
            "--work-dir" => &mut work_dir,
            _ if argument.starts_with('-') => return usage(&format!("unknown option {argument}")),
            _ => {
                positional.push(argument);
                continue;
            }
        };
        *option = arguments.next();
        if option.is_none() {
            return usage(&format!("{argument} takes a value"));
        }
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
    let result = match &**command {
        "build" => build(builder, target.as_deref(), file),
        "check" => check(builder, target.as_deref(), file),
        _ => return usage(&format!("unknown command {command}")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            println!("to bring it up to date: thalweg-ptx build {krate} {file}");
            ExitCode::FAILURE
        }
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

fn build(builder: PtxBuilder, target: Option<&str>, file: &str) -> Result<bool, Error> {
    let ptx = builder.target(target.unwrap_or("sm_75")).build()?;
    ptx.write(file)?;
    println!("{file}: {}", summary(&ptx));
    for entry in &ptx.entries {
        println!("  {entry}");
    }
    Ok(true)
}

fn check(builder: PtxBuilder, target: Option<&str>, file: &str) -> Result<bool, Error> {
    let old = Ptx::read(file)?;
    let builder = builder.target(target.unwrap_or(&old.target));
    let new = builder.build()?;
    if old.text == new.text {
        println!("{file}: up to date, {}", summary(&new));
        return Ok(true);
    }

    let changes = builder.changes(&old);
    let mut same = changes.is_empty() && old.entries == new.entries;
    for change in &changes {
        println!("{file}: not built from the present {change}");
    }
    for entry in old.entries.iter().filter(|e| !new.entries.contains(e)) {
        println!("{file}: has {entry}, which the sources do not make");
    }
    for entry in new.entries.iter().filter(|e| !old.entries.contains(e)) {
        println!("{file}: lacks {entry}");
    }
    if old.compiler == new.compiler {
        same = false;
        let mut lines = old.text.lines().zip(new.text.lines()).enumerate();
        let end = old.text.lines().count().min(new.text.lines().count());
        let at = lines.find(|(_, (a, b))| a != b).map_or(end, |(i, _)| i);
        println!("{file}: differs from line {} on", at + 1);
        for (whose, text) in [("is", &old.text), ("should be", &new.text)] {
            println!("  {whose}: {}", text.lines().nth(at).unwrap_or("the end"));
        }
    } else {
        println!("{file}: THE COMPILER MOVED, so the bytes could not be compared");
        println!("  built by  {}", old.compiler);
        println!("  at hand   {}", new.compiler);
        println!("  entries   {} and {}", old.entries.len(), new.entries.len());
        println!("  bytes     {} and {}", old.text.len(), new.text.len());
        if same {
            println!("  sources and entries are the same; build it again to take the new compiler");
        }
    }
    Ok(same)
}

fn summary(ptx: &Ptx) -> String {
    let (entries, bytes) = (ptx.entries.len(), ptx.text.len());
    format!("{entries} entries, {bytes} bytes, {}, {}", ptx.target, ptx.compiler)
}
