//! Embeds the PTX of the kernels: writes `$OUT_DIR/thalweg.ptx`.
//!
//! `ptx/thalweg.ptx` is checked in, so that a build takes stable Rust and nothing else. In a checkout,
//! where the sources of the kernels are, it is used only while its header agrees with them; else the
//! kernels are built again. The published package leaves the sources out and uses the file as it is.

use std::path::Path;
use std::process::ExitCode;

use thalweg_ptx_builder::{Ptx, PtxBuilder};

const CHECKED_IN: &str = "ptx/thalweg.ptx";
const KERNELS: &str = "kernels-gpu";

fn main() -> ExitCode {
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
    let ptx = match Path::new(KERNELS).join("Cargo.toml").exists() {
        true => current()?,
        false => Ptx::read(CHECKED_IN).map_err(|error| error.to_string())?,
    };
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    ptx.write(Path::new(&out).join("thalweg.ptx")).map_err(|error| error.to_string())
}

/// The PTX of the sources as they are.
fn current() -> Result<Ptx, String> {
    let builder = PtxBuilder::new(KERNELS);
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
    let how = format!("cargo run -p thalweg-ptx-builder -- build {KERNELS} {CHECKED_IN}");
    let ptx = builder.build().map_err(|error| {
        format!(
            "{stale},\nand building the kernels anew failed:\n{error}\n\nOnce that is solved, bring it up to date with\n  {how}"
        )
    })?;
    println!("cargo:warning={stale}; the kernels were built anew for this build only, to keep them: {how}");
    watch(&ptx);
    Ok(ptx)
}

/// Runs this again when a source of the PTX changes.
fn watch(ptx: &Ptx) {
    for source in &ptx.sources {
        println!("cargo:rerun-if-changed={KERNELS}/{}", source.path);
    }
}
