//! Runs the programs that README.md and docs show on the CPU device.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::check::apart;
use super::test::{built, readme};
use crate::built::{Built, build, names, program};
use crate::command::{command, line, root, run};

/// The photographs in `assets/photos`.
const PHOTOS: [&str; 5] = ["astronaut", "chelsea", "coffee", "eye", "row"];

pub(crate) fn tokens() -> Result<(), String> {
    let folder = root().join("tokens");
    _ = fs::remove_dir_all(&folder);
    line(&readme("cargo run")?)?;
    let expected = PHOTOS.iter().flat_map(|photo| [format!("{photo}.heatmap.png"), format!("{photo}.safetensors")]);
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        if entry.metadata().is_ok_and(|file| file.len() > 0) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    if !found.iter().cloned().eq(expected) {
        return Err(format!("unexpected files in tokens: {found:?}"));
    }
    line(".ci/golden.py tokens/chelsea.safetensors tests/golden/chelsea.safetensors")?;
    fs::remove_dir_all(&folder).map_err(|error| error.to_string())
}

/// Sets the device of a command.
fn cpu(command: &mut Command) -> &mut Command {
    command.env("THALWEG_DEVICE", "cpu")
}

/// Runs an example of the package in `folder`.
fn example(built: &[Built], folder: &str, name: &str, arguments: &[&str]) -> Result<(), String> {
    println!("-- {name}");
    // As `cargo run` does, in the directory of the caller.
    run(cpu(program(built, folder, "example", name)?.args(arguments).current_dir(root())))
}

/// Runs an example of the package in `folder` as two ranks.
fn ranks(built: &[Built], folder: &str, name: &str, arguments: &[&str]) -> Result<(), String> {
    println!("-- {name}, as two ranks");
    let example = program(built, folder, "example", name)?;
    let mut launch = program(built, "cli", "bin", "thalweg")?;
    launch.args(["launch", "-n", "2", "--"]).arg(example.get_program()).args(arguments);
    run(cpu(launch.current_dir(root())))
}

/// Checks that an example describes itself, and refuses an option that it does not have.
fn command_line(built: &[Built], folder: &str, name: &str) -> Result<(), String> {
    for (argument, code, words) in [("--help", 0, "\nusage: "), ("--no-such-option", 2, "unknown option")] {
        let output = cpu(&mut program(built, folder, "example", name)?).arg(argument).output();
        let output = output.map_err(|error| format!("{name}: {error}"))?;
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        if output.status.code() != Some(code) || !text.contains(words) || !text.contains("--help") {
            return Err(format!("{name} {argument}: {}, expected {code} and {words:?}\n{text}", output.status));
        }
    }
    Ok(())
}

pub(crate) fn examples() -> Result<(), String> {
    all(&built()?)
}

/// Runs every example of the root package and of the crates on top.
fn all(built: &[Built]) -> Result<(), String> {
    // A new file is run without a line here.
    for (folder, least) in [("", 20), ("train", 10), ("processor", 2)] {
        let names = names(built, folder, "example");
        if names.len() < least {
            return Err(format!("only {} examples in `{folder}` were built: {names:?}", names.len()));
        }
        for name in names {
            example(built, folder, name, &[])?;
            command_line(built, folder, name)?;
        }
    }
    for kind in ["svg", "json", "txt"] {
        let path = format!("target/timeline.{kind}");
        _ = fs::remove_file(root().join(&path));
        example(built, "", "three_stream", &["--timeline", &path])?;
        if fs::metadata(root().join(&path)).map_or(0, |file| file.len()) == 0 {
            return Err(format!("no timeline as {kind}"));
        }
    }
    command_line(built, "collective", "all_reduce")?;
    ranks(built, "collective", "all_reduce", &[])?;
    ranks(built, "train", "data_parallel", &[])?;
    ranks(built, "train", "disk_to_model", &[])?;
    ranks(built, "train", "distributed", &[])?;
    ranks(built, "train", "own_model", &[])
}

pub(crate) fn release() -> Result<(), String> {
    all(&build("cargo build --locked --release --bins --examples")?)
}

pub(crate) fn benchmarks() -> Result<(), String> {
    let names = ["roofline", "decode", "host", "host_path", "device", "overlap"].map(|name| format!(" --bench {name}"));
    let built = build(&format!("cargo test --locked --no-run{}", names.concat()))?;
    let bench = |folder: &str, name: &str, arguments: &[&str]| {
        run(cpu(program(&built, folder, "bench", name)?.args(arguments)))
    };
    bench("", "roofline", &["--quick", "--device", "cpu", "--no-peers"])?;
    bench("jpeg", "decode", &[])?;
    bench("jpeg", "host", &[])?;
    bench("processor", "device", &[])?;
    bench("processor", "host_path", &[])?;
    bench("train", "overlap", &[])
}

pub(crate) fn tutorial() -> Result<(), String> {
    run(command(Path::new(".ci/tutorial.py"), ".").env("CARGO_TARGET_DIR", root().join("target/outside")))
}

/// Kernels without unsafe code, what is left of their checks in the PTX, and an example that is a
/// package.
pub(crate) fn safe() -> Result<(), String> {
    run(cpu(&mut apart("benches/safe", "test -q")))?;
    run(cpu(&mut apart("benches/safe", "run -q --release -- 16384")))?;
    run(cpu(&mut apart("examples/split-textures", "run -q --release")))
}
