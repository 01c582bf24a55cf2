//! The PTX that is kept in the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::built::{build, program};
use crate::command::{command, root, run, shown, words};

/// A PTX file: its name in the repository, and what the builder is told to make it.
struct File {
    path: String,
    krate: &'static str,
    features: Option<String>,
}

/// The PTX of the kernels that the root package launches itself.
const OWN: &str = "host/thalweg.ptx";

/// Returns the PTX files. The names of those of `kernels-gpu` are the names of the features that
/// make them.
fn files() -> Result<Vec<File>, String> {
    let entries = fs::read_dir(root().join("kernels-gpu/ptx")).map_err(|error| error.to_string())?;
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".ptx")?.to_owned()));
    let mut names: Vec<_> = names.collect();
    names.sort();
    let own = File { path: OWN.into(), krate: "host/gpu", features: None };
    let kernels = names.into_iter().map(|name| {
        let path = format!("kernels-gpu/ptx/{name}.ptx");
        File { path, krate: "kernels-gpu", features: Some(name) }
    });
    Ok(kernels.chain([own]).collect())
}

/// Runs the builder for each file, two at a time: most of a build is one thread of LLVM. The
/// largest are first.
fn each(verb: &str) -> Result<(), String> {
    let built = build("cargo build --locked -p thalweg-ptx-builder")?;
    let builder = program(&built, "ptx-builder", "bin", "thalweg-ptx")?;
    let size = |path: &str| fs::metadata(root().join(path)).map_or(0, |file| file.len());
    let mut files = files()?;
    files.sort_by_key(|file| size(&file.path));
    let files = std::sync::Mutex::new(files);
    let next = || files.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
    let work = || {
        let mut bad = Vec::new();
        while let Some(File { path, krate, features }) = next() {
            let mut command = command(builder.get_program(), ".");
            command.args([verb, krate, &path]);
            if let Some(features) = &features {
                command.args(["--features", features]);
            }
            match command.output() {
                Ok(output) => {
                    // In one piece, so that the lines of two files do not mix.
                    let printed = [&*output.stdout, &*output.stderr].concat();
                    println!("$ {}\n{}", shown(&command), String::from_utf8_lossy(&printed).trim_end());
                    if !output.status.success() {
                        bad.push(match output.status.code() {
                            Some(3) => format!("{path}: not compared, because another compiler made it"),
                            _ => format!("{path}: {}", output.status),
                        });
                    }
                }
                Err(error) => bad.push(format!("{path}: {error}")),
            }
        }
        bad
    };
    let bad: Vec<String> = thread::scope(|threads| {
        let started = [(); 2].map(|()| threads.spawn(work));
        started.into_iter().flat_map(|thread| thread.join().expect("the thread does not panic")).collect()
    });
    if bad.is_empty() { Ok(()) } else { Err(bad.join("; ")) }
}

pub(crate) fn compare() -> Result<(), String> {
    each("check")
}

pub(crate) fn update_ptx() -> Result<(), String> {
    each("build")?;
    run(registers(&launches()?).arg("--write"))
}

/// Builds the example that prints the launches of kernels, or takes it over from the build of the
/// tests.
fn launches() -> Result<PathBuf, String> {
    let built = build("cargo build --locked --example launches")?;
    Ok(program(&built, "kernels-gpu", "example", "launches")?.get_program().into())
}

/// Makes the command of the script that assembles the files.
fn registers(launches: &Path) -> Command {
    let mut command = words(".ci/registers.py --launches");
    command.arg(launches);
    command
}

pub(crate) fn assemble() -> Result<(), String> {
    let launches = launches()?;
    // The test kernels, which the tests build on machines with a GPU.
    let vocabulary = root().join("target/vocabulary.ptx");
    let built = build("cargo build --locked -p thalweg-ptx-builder")?;
    let mut builder = program(&built, "ptx-builder", "bin", "thalweg-ptx")?;
    let options = ["--report-panics", "--target", "sm_75", "--features", "sm_75"];
    run(builder.current_dir(root()).args(["build", "simt/tests/vocabulary"]).arg(&vocabulary).args(options))?;
    // Neither is in the table, which is of kernels that compute something.
    run(registers(&launches).arg(vocabulary).arg(root().join(OWN)))
}
