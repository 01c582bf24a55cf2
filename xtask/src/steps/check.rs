//! The checks that need no test to run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_ptx_builder::{PtxBuilder, PtxFile};

use crate::command::{command, line, need, output, root, run, words};

/// The crates outside the workspace, which its commands do not reach: those that it excludes,
/// without the fixture of a test.
pub(crate) fn outside() -> Result<Vec<String>, String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).map_err(|error| error.to_string())?;
    let list = manifest.lines().find_map(|line| line.strip_prefix("exclude = [")?.strip_suffix(']'));
    let list = list.ok_or("Cargo.toml excludes nothing")?;
    let names = list.split(',').map(|name| name.trim().trim_matches('"').to_owned());
    Ok(names.filter(|name| name != "ptx-builder/tests/fixture").collect())
}

/// Makes a command of cargo in a crate outside the workspace. These crates have one target
/// directory.
pub(crate) fn apart(folder: &str, words: &str) -> Command {
    let mut cargo = command("cargo", folder);
    cargo.args(words.split_whitespace()).env("CARGO_TARGET_DIR", root().join("target/outside"));
    cargo
}

/// Finds the compiler of kernels: the one that made the PTX, or else another one with the sources
/// of `core`.
pub(crate) fn kernel_compiler() -> Result<PathBuf, String> {
    let made = made()?;
    PtxBuilder::new(root().join("kernels-gpu")).like(&made).rustc().map_err(|error| error.to_string())
}

/// Returns one of the files of PTX. One compiler makes all of them.
fn made() -> Result<PtxFile, String> {
    PtxFile::read(root().join("host/thalweg.ptx")).map_err(|error| error.to_string())
}

/// Returns whether the compiler that made the PTX is here.
fn made_it(rustc: &Path) -> bool {
    let version = output(command(rustc, ".").arg("--version"));
    let made = made();
    version.is_ok_and(|version| made.is_ok_and(|made| made.compiler.starts_with(version.trim())))
}

pub(crate) fn tools() -> Result<(), String> {
    need("cargo", "https://rustup.rs")?;
    need("cargo-fmt", "rustup component add rustfmt")?;
    need("cargo-clippy", "rustup component add clippy")?;
    need("git", "apt-get install git")?;
    // Debian has the rest.
    let node = need("npm", "apt-get install npm").and_then(|()| need("node", "apt-get install nodejs"));
    let python = run(words("python3 -c").arg("import venv, ensurepip"));
    let rustc = kernel_compiler();
    let missing: Vec<&str> = [
        (!rustc.as_deref().is_ok_and(made_it), "rustc-web rust-web-src"),
        (python.is_err(), "python3-venv"),
        (node.is_err(), "nodejs npm"),
    ]
    .iter()
    .filter_map(|(missing, packages)| missing.then_some(*packages))
    .collect();
    if !missing.is_empty() {
        match install(&missing) {
            // With another compiler everything works, except that PTX cannot be compared.
            Err(error) if rustc.is_ok() && python.is_ok() && node.is_ok() => println!("{error}"),
            result => result?,
        }
    }
    need("python3", "apt-get install python3-venv")?;
    let rustc = kernel_compiler()?;
    run(command(&rustc, ".").arg("--version"))?;
    if !made_it(&rustc) {
        println!("it did not make the PTX, so the step `ptx` will not compare");
    }
    Ok(())
}

/// Installs packages of Debian for root, and tells everybody else to.
pub(super) fn install(packages: &[&str]) -> Result<(), String> {
    let packages = packages.join(" ");
    if output(&mut words("id -u")).is_ok_and(|user| user.trim() != "0") || need("apt-get", "Debian's").is_err() {
        let or = "; or, for some compiler of kernels: rustup component add rust-src";
        let or = if packages.contains("rust") { or } else { "" };
        return Err(format!("missing: apt-get install {packages}{or}"));
    }
    line("apt-get update -q")?;
    let install = format!("apt-get install -y -q --no-install-recommends {packages}");
    run(words(&install).env("DEBIAN_FRONTEND", "noninteractive"))
}

pub(crate) fn format() -> Result<(), String> {
    line(".ci/names.py")?;
    line(".ci/environment.py")?;
    line("cargo fmt --all --check")?;
    // `--all` would format what a package depends on, too, which is this workspace again.
    for folder in outside()? {
        run(command("cargo", &folder).args(["fmt", "--check"]))?;
    }
    Ok(())
}

pub(crate) fn arrows() -> Result<(), String> {
    line(".ci/arrows.py")?;
    // Reviews fold these files, and line ends do not change with the machine.
    let attributes =
        output(&mut words("git check-attr linguist-generated eol -- host/thalweg.ptx kernels-gpu/ptx/vision.ptx"))?;
    if attributes.matches("linguist-generated: set").count() != 2 || attributes.matches("eol: lf").count() != 2 {
        return Err(format!(".gitattributes does not say what PTX files are:\n{attributes}"));
    }
    Ok(())
}

pub(crate) fn figures() -> Result<(), String> {
    line(".ci/figures.py")?;
    line(".ci/pages.py")
}

pub(crate) fn workflows() -> Result<(), String> {
    line("node .ci/workflows.mjs")
}

pub(crate) fn clippy() -> Result<(), String> {
    line("cargo clippy --workspace --all-targets --all-features --locked -- -D warnings")?;
    for folder in outside()? {
        println!("-- {folder}");
        run(&mut apart(&folder, "clippy -q --all-targets -- -D warnings"))?;
    }
    Ok(())
}

pub(crate) fn documentation() -> Result<(), String> {
    run(words("cargo doc --workspace --no-deps --all-features --locked").env("RUSTDOCFLAGS", "-D warnings"))
}

pub(crate) fn dependencies() -> Result<(), String> {
    let tree = output(&mut words("cargo tree --locked -e normal --prefix none -p thalweg"))?;
    let mut crates: Vec<_> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    crates.sort_unstable();
    crates.dedup();
    println!("the library and its dependencies: {} crates", crates.len());
    if crates.len() > 30 { Err("more than 30".into()) } else { Ok(()) }
}
