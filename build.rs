//! Embeds the PTX of the kernels that this crate launches itself: writes `$OUT_DIR/thalweg.ptx`.
//!
//! The file is checked in as `host/thalweg.ptx`. The crate in `host/gpu` is what a GPU runs of this
//! one.

use std::path::Path;
use std::process::ExitCode;

use thalweg_ptx_builder::{PtxBuilder, embed};

fn main() -> ExitCode {
    let update = "cargo run -p thalweg-ptx-builder -- build host/gpu host/thalweg.ptx";
    // A published package lacks that crate.
    let sources = Path::new("host/gpu/Cargo.toml").exists();
    match embed(PtxBuilder::new("host/gpu"), "host/thalweg.ptx", sources, update) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
