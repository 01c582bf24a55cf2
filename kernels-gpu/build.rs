//! Embeds the PTX of each family of kernels whose feature is on: writes `$OUT_DIR/<family>.ptx`.
//!
//! The PTX is checked in under `ptx/`, so that a build needs stable Rust and nothing else. Only a
//! checkout has all sources of the kernels, and compares the files with them.

use std::path::Path;
use std::process::ExitCode;

use thalweg_ptx_builder::PtxBuilder;

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

const FAMILIES: [Family; 10] = [
    Family { family: "augment", name: "augment", target: "sm_75", llvm_args: &[] },
    Family { family: "collective", name: "collective", target: "sm_75", llvm_args: &[] },
    Family { family: "jpeg", name: "jpeg", target: "sm_75", llvm_args: &[] },
    Family { family: "linear", name: "linear", target: "sm_80", llvm_args: UNROLL },
    Family { family: "linear", name: "linear_f32_sm_90a", target: "sm_90a", llvm_args: UNROLL },
    Family { family: "linear", name: "linear_sm_90a", target: "sm_90a", llvm_args: &[] },
    Family { family: "processor", name: "processor", target: "sm_75", llvm_args: &[] },
    Family { family: "processor", name: "processor_sm_80", target: "sm_80", llvm_args: &[] },
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
    let &Family { name, target, llvm_args, .. } = family;
    let checked_in = format!("ptx/{name}.ptx");
    let builder = PtxBuilder::new(".").features(name).target(target);
    let builder = llvm_args.iter().fold(builder, |builder, option| builder.llvm_arg(option));
    // The command takes the target and the options from the file if there is one.
    let update =
        format!("cargo run -p thalweg-ptx-builder -- build kernels-gpu kernels-gpu/{checked_in} --features {name}");
    thalweg_ptx_builder::embed(builder, &checked_in, Path::new("../simt/Cargo.toml").exists(), &update)
}
