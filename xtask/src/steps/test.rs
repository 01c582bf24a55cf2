//! Tests.

use std::fs;
use std::time::SystemTime;

use super::SHARES;
use crate::built::{Built, build, program};
use crate::command::{command, line, root, run, words};

/// Returns a command that README.md prints, without its comment.
pub(crate) fn readme(start: &str) -> Result<String, String> {
    let readme = fs::read_to_string(root().join("README.md")).map_err(|error| error.to_string())?;
    let start = format!("$ {start}");
    let line =
        readme.lines().find(|line| line.starts_with(&start)).ok_or_else(|| format!("README.md lacks {start}"))?;
    let command = line["$ ".len()..].split('#').next().unwrap_or_default();
    Ok(command.trim().to_owned())
}

pub(crate) fn tests() -> Result<(), String> {
    line(&readme("cargo test")?)
}

/// Builds what README.md's test command builds, and returns its programs.
pub(crate) fn built() -> Result<Vec<Built>, String> {
    build(&format!("{} --no-run", readme("cargo test")?))
}

/// The tests that run on the checked device: the folder of the package, its test, the number of
/// cases of its properties (or the default), and which of its tests.
const CHECKED: &[(&str, &str, Option<&str>, &[&str])] = &[
    ("vision", "main", None, &["kernels::", "query::", "batch::", "augment::"]),
    ("kernels-gpu", "main", None, &["matmul::"]),
    ("simt", "main", None, &["kernel_vocabulary::", "safe_kernels::"]),
    ("train", "main", Some("16"), &["kernels::", "golden::"]),
    ("train", "overlap", None, &["batch_streams::"]),
    ("jpeg", "main", Some("4"), &["golden::", "properties::", "hostile::"]),
    ("jpeg", "steady", None, &["graphs"]),
    ("processor", "main", Some("4"), &["device::every", "device::random", "device::golden"]),
];

pub(crate) fn checked() -> Result<(), String> {
    let built = built()?;
    for (folder, name, cases, filter) in CHECKED {
        let mut test = program(&built, folder, "test", name)?;
        test.args(*filter).env("THALWEG_CHECK", "1");
        if let Some(cases) = cases {
            test.env("PROPTEST_CASES", cases);
        }
        run(&mut test)?;
    }
    Ok(())
}

/// The tests that run while the log of calls is checked: the package, its test, the number of cases
/// of its properties, and which of its tests.
const TRACED: &[(&str, &str, &str, &[&str])] = &[
    ("", "main", "200", &[]),
    ("", "alone", "8", &["--test-threads=1"]),
    ("loader", "main", "4", &[]),
    ("jpeg", "steady", "4", &[]),
    ("processor", "main", "4", &[]),
    ("vision", "pipeline", "4", &[]),
    ("vision", "main", "4", &[]),
    ("collective", "main", "4", &[]),
    ("train", "overlap", "4", &[]),
];

/// Runs tests, examples and the command while the checker of the log looks for accesses without an
/// order, and then programs on a library with a broken rule, which the checker must reject.
pub(crate) fn trace() -> Result<(), String> {
    let built = built()?;
    for (folder, name, cases, filter) in TRACED {
        let mut test = program(&built, folder, "test", name)?;
        run(test.args(*filter).env("THALWEG_TRACE", "check").env("THALWEG_CASES", cases).env("PROPTEST_CASES", cases))?;
    }
    run(words("cargo xtask step examples").env("THALWEG_TRACE", "check"))?;
    let out = root().join("target/traced");
    if out.exists() {
        fs::remove_dir_all(&out).map_err(|error| error.to_string())?;
    }
    let mut tokens = program(&built, "cli", "bin", "thalweg")?;
    tokens.args(["tokens", "assets/photos", "--out"]).arg(&out).current_dir(root());
    run(tokens.env("THALWEG_TRACE", "check"))?;
    line("tests/broken_rules.py")
}

/// The forms of the f32 products for compute capability 9.0, which are a feature of the kernels.
pub(crate) fn hopper() -> Result<(), String> {
    let test = "cargo test --locked -p thalweg-kernels --test main --features linear_f32_sm_90a matmul::";
    run(words(test).env("THALWEG_CHECK", "1"))
}

/// The command with the feature that the other tests are built without.
pub(crate) fn tokenizer() -> Result<(), String> {
    line("cargo test --locked -p thalweg-cli --features tokenizers --bin thalweg --test main tokenizer::")
}

pub(crate) fn loom() -> Result<(), String> {
    // Everything is built again, for the sake of a `cfg`. So it is the library alone, without what
    // its other tests need.
    let mut test = words("cargo test --locked --release -p thalweg --lib loom");
    run(test.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", root().join("target/loom")))
}

/// Chooses interleavings of threads with loom and shuttle, also with rules broken that order them.
pub(crate) fn order() -> Result<(), String> {
    line("tests/broken_rules.py --loom")?;
    line("tests/broken_rules.py --shuttle")
}

/// Tests the builder, and with it the kernels of the kernel vocabulary, whose PTX is built where
/// there is a GPU and where it is asked for.
pub(crate) fn builder() -> Result<(), String> {
    line("cargo test --locked -p thalweg-ptx-builder -p xtask -p mutations")?;
    let ptx = "cargo test --locked -p thalweg-simt --test main the_ptx_has_an_entry_for_each_instance";
    run(words(ptx).env("THALWEG_TEST_PTX", "1"))
}

/// Compares with Pillow, in a Python that has it. `.ci/pillow.py` fetches the images.
pub(crate) fn photographs() -> Result<(), String> {
    let venv = root().join("target/pillow-13.0.0");
    if !venv.join("done").exists() {
        run(words("python3 -m venv").arg(&venv))?;
        run(command(venv.join("bin/pip"), ".").args(["install", "--quiet", "pillow==13.0.0", "numpy"]))?;
        fs::write(venv.join("done"), "").map_err(|error| error.to_string())?;
    }
    let built = built()?;
    let thalweg = program(&built, "cli", "bin", "thalweg")?;
    run(command(venv.join("bin/python"), ".").arg(".ci/pillow.py").arg(thalweg.get_program()))
}

/// Builds the wheel of `python`, and tests it in an environment without Rust.
pub(crate) fn python() -> Result<(), String> {
    line(".ci/wheel.py")
}

/// Compares the resize of image processors with Pillow. `.ci/resize.py` installs its versions.
pub(crate) fn resize() -> Result<(), String> {
    let built = built()?;
    let resize = program(&built, "processor", "example", "resize")?;
    run(command(root().join(".ci/resize.py"), ".").arg(resize.get_program()))
}

/// Breaks the libraries on purpose: a part of the tables, which is the next one each time that the
/// share of this step is run.
pub(crate) fn part_of_mutations() -> Result<(), String> {
    const PARTS: u64 = 32;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(|error| error.to_string())?;
    let part = since.as_secs() / (24 * 60 * 60) / SHARES % PARTS;
    mutations(&["--share", &format!("{part}/{PARTS}")])
}

/// Breaks the libraries on purpose, with the options of `tests/mutations`.
pub(crate) fn mutations(options: &[&str]) -> Result<(), String> {
    run(words("cargo run --quiet --locked --package mutations --").args(options))
}
