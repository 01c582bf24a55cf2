//! A crate of kernels where there is no compiler for them: its build fails and says what to do, or
//! it is asked to do without PTX.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Makes a crate whose program prints the file that its build script made.
fn crate_in(dir: &Path) {
    let builder = env!("CARGO_MANIFEST_DIR");
    for (file, text) in [
        (
            "Cargo.toml",
            format!(
                "[package]\nname = \"kernels\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
                 [build-dependencies]\nthalweg-ptx-builder = {{ path = '{builder}' }}\n[workspace]\n"
            ),
        ),
        (
            "build.rs",
            "fn main() -> Result<(), thalweg_ptx_builder::Error> {\n\
                 thalweg_ptx_builder::build_to_out_dir(\"kernels\")\n\
             }\n"
            .into(),
        ),
        (
            "src/main.rs",
            "fn main() { print!(\"{}\", include_str!(concat!(env!(\"OUT_DIR\"), \"/kernels.ptx\"))) }".into(),
        ),
    ] {
        let path = dir.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

#[test]
fn a_build_without_a_compiler_fails_unless_it_is_asked_to_do_without_ptx() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("without ptx");
    _ = fs::remove_dir_all(&dir);
    crate_in(&dir);
    let run = |setting: Option<&str>| -> (bool, String, String) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["run", "--offline"]).current_dir(&dir).env("CARGO_TARGET_DIR", dir.join("target"));
        cargo.env("THALWEG_RUSTC", "/nonexistent/rustc").env_remove("THALWEG_PTX").env_remove("OUT_DIR");
        cargo.envs(setting.map(|value| ("THALWEG_PTX", value)));
        let Output { status, stdout, stderr } = cargo.output().unwrap();
        (status.success(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    };

    let (built, _, error) = run(None);
    assert!(!built && error.contains("/nonexistent/rustc") && error.contains("set THALWEG_PTX=none"), "{error}");

    let (built, file, warning) = run(Some("none"));
    assert!(built && warning.contains("warning: kernels@0.0.0: built without PTX"), "{warning}");
    let none = thalweg_ptx_builder::PtxFile::none();
    assert_eq!(file, none.text);
    assert!(file.lines().any(|line| line.starts_with("// none: THALWEG_PTX")) && none.entries.is_empty(), "{file}");

    // Without the setting, cargo runs the build script again. A misspelled setting is no setting.
    let (built, _, error) = run(None);
    assert!(!built && error.contains("/nonexistent/rustc"), "{error}");
    let (built, _, error) = run(Some("no"));
    assert!(!built && error.contains("THALWEG_PTX is `no`"), "{error}");
}
