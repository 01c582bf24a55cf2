//! Embeds the PTX of each family of kernels whose feature is on: writes `$OUT_DIR/<family>.ptx`.
//!
//! The PTX is checked in under `ptx/`, so that a build needs stable Rust and nothing else. In a
//! checkout, which has all sources of the kernels, a file is used only if the fingerprints in its
//! header agree with them; otherwise the kernels are built again. In a published package some of
//! the sources are in other packages, so the files are used as they are.

use std::path::Path;
use std::process::ExitCode;

use thalweg_ptx_builder::{Ptx, PtxBuilder};

/// A PTX file: the family that embeds it, the name of the file and of the feature that it is built
/// with, the oldest GPU that it is for, and the options for LLVM.
struct Family {
    family: &'static str,
    name: &'static str,
    target: &'static str,
    llvm_args: &'static [&'static str],
}

/// The options that LLVM needs to keep the sums and fragments of a product in registers: all loops
/// around them are unrolled. Loops of unknown length stay as they are.
const UNROLL: &[&str] = &["-unroll-threshold=20000", "-unroll-full-max-count=256", "-unroll-runtime=0"];

const FAMILIES: [Family; 9] = [
    Family { family: "augment", name: "augment", target: "sm_75", llvm_args: &[] },
    Family { family: "collective", name: "collective", target: "sm_75", llvm_args: &[] },
    Family { family: "jpeg", name: "jpeg", target: "sm_75", llvm_args: &[] },
    Family { family: "linear", name: "linear", target: "sm_80", llvm_args: UNROLL },
    Family { family: "linear", name: "linear_f32_sm_90a", target: "sm_90a", llvm_args: UNROLL },
    Family { family: "linear", name: "linear_sm_90a", target: "sm_90a", llvm_args: &[] },
    Family { family: "stream", name: "stream", target: "sm_75", llvm_args: &[] },
    Family { family: "train", name: "train", target: "sm_80", llvm_args: UNROLL },
    Family { family: "vision", name: "vision", target: "sm_75", llvm_args: &[] },
];

fn main() -> ExitCode {
    if thalweg_ptx_builder::compiles_for_gpu() {
        return ExitCode::SUCCESS; // This is the build for the GPU that the lines below start.
    }
    for family in FAMILIES {
        if std::env::var_os(format!("CARGO_FEATURE_{}", family.family.to_uppercase())).is_none() {
            continue;
        }
        if let Err(error) = embed(&family) {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn embed(family: &Family) -> Result<(), String> {
    let name = family.name;
    let checked_in = format!("ptx/{name}.ptx");
    println!("cargo:rerun-if-changed={checked_in}");
    let ptx = match Path::new("../simt/Cargo.toml").exists() {
        true => current(family, &checked_in)?,
        false => Ptx::read(&checked_in).map_err(|error| error.to_string())?,
    };
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    ptx.write(Path::new(&out).join(format!("{name}.ptx"))).map_err(|error| error.to_string())
}

/// Returns the PTX of the current sources of a family: the checked-in file, or a new build if that
/// is stale.
fn current(family: &Family, checked_in: &str) -> Result<Ptx, String> {
    let &Family { name, target, llvm_args, .. } = family;
    let builder = PtxBuilder::new(".").features(name).target(target);
    let builder = llvm_args.iter().fold(builder, |builder, option| builder.llvm_arg(option));
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
    // The command takes the target and the options from the file if there is one.
    let update =
        format!("cargo run -p thalweg-ptx-builder -- build kernels-gpu kernels-gpu/{checked_in} --features {name}");
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
