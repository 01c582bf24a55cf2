//! Embeds the PTX of each family of kernels whose feature is on: writes `$OUT_DIR/<family>.ptx`.
//!
//! The PTX is checked in under `ptx/`, so that a build needs stable Rust and nothing else. In a
//! checkout, which has all sources of the kernels, a file is used only if the fingerprints in its
//! header agree with them; otherwise the kernels are built again. In a published package some of
//! the sources are in other packages, so the files are used as they are.

use std::path::Path;
use std::process::ExitCode;

use thalweg_ptx_builder::{Ptx, PtxBuilder};

/// The families, by the names of their features.
const FAMILIES: [&str; 3] = ["jpeg", "stream", "vision"];

fn main() -> ExitCode {
    if thalweg_ptx_builder::compiles_for_gpu() {
        return ExitCode::SUCCESS; // This is the build for the GPU that the lines below start.
    }
    for family in FAMILIES {
        if std::env::var_os(format!("CARGO_FEATURE_{}", family.to_uppercase())).is_none() {
            continue;
        }
        if let Err(error) = embed(family) {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn embed(family: &str) -> Result<(), String> {
    let checked_in = format!("ptx/{family}.ptx");
    println!("cargo:rerun-if-changed={checked_in}");
    let ptx = match Path::new("../simt/Cargo.toml").exists() {
        true => current(family, &checked_in)?,
        false => Ptx::read(&checked_in).map_err(|error| error.to_string())?,
    };
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    ptx.write(Path::new(&out).join(format!("{family}.ptx"))).map_err(|error| error.to_string())
}

/// Returns the PTX of the current sources of a family: the checked-in file, or a new build if that
/// is stale.
fn current(family: &str, checked_in: &str) -> Result<Ptx, String> {
    let builder = PtxBuilder::new(".").features(family);
    let (stale, builder) = match Ptx::read(checked_in) {
        Ok(ptx) => match &*builder.changes(&ptx) {
            [] => {
                watch(&ptx);
                return Ok(ptx);
            }
            changes => {
                let stale = format!("{checked_in} was built from other versions of {}", changes.join(", "));
                (stale, builder.like(&ptx))
            }
        },
        Err(error) => (error.to_string(), builder),
    };
    if thalweg_ptx_builder::without_ptx().map_err(|error| error.to_string())? {
        println!("cargo:warning={stale}; THALWEG_PTX is `none`, so these kernels run on the CPU device only");
        return Ok(Ptx::none());
    }
    println!("cargo:rerun-if-env-changed=THALWEG_RUSTC");
    let update =
        format!("cargo run -p thalweg-ptx-builder -- build kernels-gpu kernels-gpu/{checked_in} --features {family}");
    let ptx = builder.build().map_err(|error| {
        format!(
            "{stale},\nand building the kernels again failed:\n{error}\n\nOnce that is solved, bring it up to date with\n  {update}"
        )
    })?;
    println!("cargo:warning={stale}; the kernels were built again for this build only, to keep them: {update}");
    watch(&ptx);
    Ok(ptx)
}

/// Has cargo run this again when a source of the PTX changes.
fn watch(ptx: &Ptx) {
    for source in &ptx.sources {
        println!("cargo:rerun-if-changed={}", source.path);
    }
}
