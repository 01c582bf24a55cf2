//! The PTX that is kept in the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::built::{build, program};
use crate::command::{command, root, run, shown, words};

/// Returns the names of the PTX files, which are the names of the features that make them.
fn files() -> Result<Vec<String>, String> {
    let entries = fs::read_dir(root().join("kernels-gpu/ptx")).map_err(|error| error.to_string())?;
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".ptx")?.to_owned()));
    let mut names: Vec<_> = names.collect();
    names.sort();
    Ok(names)
}

/// Runs the builder for each file, two at a time: most of a build is one thread of LLVM. The largest are
/// first.
fn each(verb: &str) -> Result<(), String> {
    let built = build("cargo build --locked -p thalweg-ptx-builder")?;
    let builder = program(&built, "ptx-builder", "bin", "thalweg-ptx")?;
    let size =
        |name: &str| fs::metadata(root().join(format!("kernels-gpu/ptx/{name}.ptx"))).map_or(0, |file| file.len());
    let mut names = files()?;
    names.sort_by_key(|name| size(name));
    let names = std::sync::Mutex::new(names);
    let next = || names.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
    let work = || {
        let mut bad = Vec::new();
        while let Some(name) = next() {
            let mut command = command(builder.get_program(), ".");
            command.args([verb, "kernels-gpu", &format!("kernels-gpu/ptx/{name}.ptx"), "--features", &name]);
            match command.output() {
                Ok(output) => {
                    // In one piece, so that the lines of two files do not mix.
                    let printed = [&*output.stdout, &*output.stderr].concat();
                    println!("$ {}\n{}", shown(&command), String::from_utf8_lossy(&printed).trim_end());
                    if !output.status.success() {
                        bad.push(match output.status.code() {
                            Some(3) => format!("{name}: not compared, because another compiler made it"),
                            _ => format!("{name}: {}", output.status),
                        });
                    }
                }
                Err(error) => bad.push(format!("{name}: {error}")),
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

/// Builds the example that prints the launches of kernels, or takes it over from the build of the tests.
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
    // The PTX of test kernels, which the build of the tests made beside it.
    let scripts = launches.ancestors().nth(2).map(|profile| profile.join("build"));
    let mut found = Vec::new();
    for entry in scripts.and_then(|scripts| fs::read_dir(scripts).ok()).into_iter().flatten().flatten() {
        let ptx = entry.path().join("out/sm_75.ptx");
        if entry.file_name().to_string_lossy().starts_with("vocabulary-") {
            found.extend(fs::metadata(&ptx).and_then(|file| file.modified()).map(|made| (made, ptx)));
        }
    }
    let (_, vocabulary) =
        found.into_iter().max().ok_or("no PTX of simt/tests/vocabulary: `cargo test --no-run` builds it")?;
    run(registers(&launches).arg(vocabulary))
}
