//! Drivers that fail, for machines with a GPU and without: a program finds them in place of
//! NVIDIA's.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Drivers in a folder, which is removed at the end.
pub struct Drivers(PathBuf);

impl Drop for Drivers {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drivers {
    /// Compiles the driver of this crate in a folder for what the test `name` makes. The folder is
    /// in `scratch`, which is cargo's `CARGO_TARGET_TMPDIR`.
    pub fn new(scratch: &str, name: &str) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("failing_driver.rs");
        let drivers = Self(Path::new(scratch).join(format!("{name}-{}", std::process::id())));
        for folder in ["failing", "broken", "none"] {
            std::fs::create_dir_all(drivers.0.join(folder)).expect("a folder");
        }
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let status = Command::new(&rustc)
            .args(["--edition=2024", "--crate-type=cdylib", "-o"])
            .args([&drivers.0.join("failing/libcuda.so"), &source])
            .status()
            .unwrap_or_else(|e| panic!("this test needs a Rust compiler, and {} does not start: {e}", rustc.display()));
        assert!(status.success(), "the driver compiles: {status}");
        // A file that is no library.
        for name in ["libcuda.so", "libcuda.so.1"] {
            std::fs::write(drivers.0.join("broken").join(name), "this is no library").expect("a file");
        }
        drivers
    }

    /// Makes a program find the driver of a folder: `failing`, whose function and code are `fails`
    /// (`cuInit 999`), `broken`, which is no library, or `none`, which leaves the machine as it is.
    pub fn give(&self, command: &mut Command, folder: &str, fails: &str) {
        command.env("LD_LIBRARY_PATH", self.0.join(folder)).env("FAILING_DRIVER", fails);
        command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("THALWEG_DEVICE");
    }
}
