//! What the build scripts of crates of test kernels share.

use std::error::Error;
use std::path::Path;

use thalweg_ptx_builder::{Error as Unbuilt, PtxBuilder, PtxFile};

/// Where a driver of NVIDIA shows itself: Linux, and Linux in Windows.
const DRIVERS: [&str; 2] = ["/dev/nvidiactl", "/dev/dxg"];

/// Builds the kernels to `$OUT_DIR/<target>.ptx` for each target, which is a feature of the crate
/// too. The files are empty on a machine without a GPU, unless `THALWEG_TEST_PTX=1` asks for them,
/// and without a compiler for kernels. The tests then cover the CPU device only.
pub(crate) fn build(targets: &[&str], report_panics: bool) -> Result<(), Box<dyn Error>> {
    if thalweg_ptx_builder::compiles_for_gpu() {
        return Ok(());
    }
    println!("cargo:rerun-if-env-changed=THALWEG_RUSTC");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../vocabulary/built_kernels.rs");
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    println!("cargo:rerun-if-env-changed=THALWEG_TEST_PTX");
    let asked = std::env::var_os("THALWEG_TEST_PTX").is_some_and(|set| set == "1");
    let wanted = asked || DRIVERS.iter().any(|driver| Path::new(driver).exists());
    let without = thalweg_ptx_builder::without_ptx()? || !wanted;
    for target in targets {
        let built = match without {
            true => Ok(PtxFile::none()),
            false => PtxBuilder::new(".").target(target).features(target).report_panics(report_panics).build(),
        };
        let ptx = match built {
            Err(Unbuilt::NoCompiler { .. }) if std::env::var_os("THALWEG_RUSTC").is_none() => {
                println!("cargo:warning=no compiler for kernels: these kernels are tested on the CPU device only");
                PtxFile::none()
            }
            built => built?,
        };
        for source in &ptx.sources {
            println!("cargo:rerun-if-changed={}", source.path);
        }
        ptx.write(Path::new(&out).join(format!("{target}.ptx")))?;
    }
    Ok(())
}
