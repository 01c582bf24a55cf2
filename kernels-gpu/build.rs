//! Embeds the PTX of the kernels: writes `$OUT_DIR/vision.ptx`.
//!
//! `ptx/vision.ptx` is checked in, so that a build takes stable Rust and nothing else. In a checkout,
//! where all sources of the kernels are, it is used only while its header agrees with them; else the
//! kernels are built again. In a published package some of the sources are in other packages, so the
//! file is used as it is.

use std::path::Path;
use std::process::ExitCode;

use thalweg_ptx_builder::{Ptx, PtxBuilder};

const CHECKED_IN: &str = "ptx/vision.ptx";
/// How to bring it up to date, from the root of the repository.
const UPDATE: &str = "cargo run -p thalweg-ptx-builder -- build kernels-gpu kernels-gpu/ptx/vision.ptx";

fn main() -> ExitCode {
    if thalweg_ptx_builder::compiles_for_gpu() {
        return ExitCode::SUCCESS; // the builder runs this for the PTX that the lines below ask for
    }
    match embed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn embed() -> Result<(), String> {
    println!("cargo:rerun-if-changed={CHECKED_IN}");
    let ptx = match Path::new("../simt/Cargo.toml").exists() {
        true => current()?,
        false => Ptx::read(CHECKED_IN).map_err(|error| error.to_string())?,
    };
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    ptx.write(Path::new(&out).join("vision.ptx")).map_err(|error| error.to_string())
}

/// The PTX of the sources as they are.
fn current() -> Result<Ptx, String> {
    let builder = PtxBuilder::new(".");
    let stale = match Ptx::read(CHECKED_IN) {
        Ok(ptx) => match &*builder.changes(&ptx) {
            [] => {
                watch(&ptx);
                return Ok(ptx);
            }
            changes => format!("{CHECKED_IN} was built from other versions of {}", changes.join(", ")),
        },
        Err(error) => error.to_string(),
    };
    println!("cargo:rerun-if-env-changed=THALWEG_RUSTC");
    let ptx = builder.build().map_err(|error| {
        format!(
            "{stale},\nand building the kernels anew failed:\n{error}\n\nOnce that is solved, bring it up to date with\n  {UPDATE}"
        )
    })?;
    println!("cargo:warning={stale}; the kernels were built anew for this build only, to keep them: {UPDATE}");
    watch(&ptx);
    Ok(ptx)
}

/// Runs this again when a source of the PTX changes.
fn watch(ptx: &Ptx) {
    for source in &ptx.sources {
        println!("cargo:rerun-if-changed={}", source.path);
    }
}
