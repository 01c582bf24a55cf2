//! Programs that must not compile, and what to change so that they do.
//!
//! Each file of `tests/ui` is two programs. Without the lines marked `// fix` it must be refused;
//! without those marked `// bug` it is the twin, which must compile. So the two differ in the fix
//! and in nothing else. An expectation stands below the line that the compiler must point at:
//!
//! ```text
//!     compute.copy(&image, &mut copy)?;
//!     //~^ E0308 `DeviceSlice<Compute, u8>` `On<Upload, DeviceBuffer<u8>>`
//! ```
//!
//! It is the error's code (`error` where it has none) and what its text must contain, the names of
//! the types above all; the rest of the text is the compiler's own business, so that the suite
//! passes on every stable rustc. With `//~` the error may be anywhere. No error may be left over.
//!
//! The library is the one that this test was linked with, as cargo says, and cargo is not asked for
//! a build of its own: a case takes a tenth of a second.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::Value;

/// The test that checks programs, as cargo knows it: [`this_test`](crate::this_test) makes it.
#[derive(Clone, Copy, Debug)]
pub struct ThisTest {
    pub folder: &'static str,
    pub package: &'static str,
    pub name: &'static str,
    pub scratch: &'static str,
}

/// What cargo tells the test that is compiled.
#[macro_export]
macro_rules! this_test {
    () => {
        $crate::compile_fail::ThisTest {
            folder: env!("CARGO_MANIFEST_DIR"),
            package: env!("CARGO_PKG_NAME"),
            name: env!("CARGO_CRATE_NAME"),
            scratch: env!("CARGO_TARGET_TMPDIR"),
        }
    };
}

/// Checks every program in the folder `tests/ui` of the test's package, and its twin.
///
/// # Panics
/// If one of them compiles and must not, or the other way around, or is refused for other reasons.
pub fn refused_programs_and_their_twins(test: ThisTest) {
    let mut cases: Vec<PathBuf> = fs::read_dir(Path::new(test.folder).join("tests/ui"))
        .expect("tests/ui is there")
        .map(|entry| entry.expect("tests/ui can be listed").path())
        .collect();
    cases.sort();
    assert!(!cases.is_empty(), "tests/ui is empty");

    let compiler = Compiler::new(test);
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|threads| {
        for _ in 0..thread::available_parallelism().map_or(1, |n| n.get()) {
            threads.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = check(&compiler, case) {
                        failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{} programs and their twins, {} wrong", cases.len(), failures.len());
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// Compiles both programs of a file; says what is wrong with them.
fn check(compiler: &Compiler, path: &Path) -> Result<(), String> {
    let name = path.file_stem().and_then(|s| s.to_str()).ok_or_else(|| format!("{}: not UTF-8", path.display()))?;
    let source = fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
    let expected = expectations(&source).map_err(|e| format!("{name}: {e}"))?;
    let without =
        |mark| source.lines().map(|l| if l.contains(mark) { "\n".into() } else { format!("{l}\n") }).collect();
    let (bug, fix): (String, String) = (without("// fix"), without("// bug"));
    if expected.is_empty() || bug == fix {
        return Err(format!("{name}: the file needs a line marked `// bug` or `// fix`, and an expectation `//~^`"));
    }

    // Assertions in constants are evaluated when code is generated; for the rest, checking is
    // enough.
    let emit = if expected.iter().any(|want| want.code == "E0080") { "obj" } else { "metadata" };
    let errors = compiler.compile(&format!("{name}_bug"), &bug, emit);
    let all = || errors.iter().map(|e| &*e.rendered).collect::<String>();
    if errors.is_empty() {
        return Err(format!("{name}: compiles, and must not"));
    }
    for want in &expected {
        if !errors.iter().any(|e| want.names(e) && want.texts.iter().all(|text| e.text.contains(text))) {
            return Err(format!("{name}: expected {want:?}, and got\n{}", all()));
        }
    }
    if let Some(error) = errors.iter().find(|e| !expected.iter().any(|want| want.names(e))) {
        return Err(format!("{name}: not expected:\n{}", error.rendered));
    }

    let errors = compiler.compile(&format!("{name}_fix"), &fix, emit);
    match errors.first() {
        Some(error) => Err(format!("{name}: the twin must compile:\n{}", error.rendered)),
        None => Ok(()),
    }
}

/// A promised error.
#[derive(Debug)]
struct Expected {
    code: String,
    line: Option<u64>,
    texts: Vec<String>,
}

impl Expected {
    /// Whether it speaks of this error, whatever its text.
    fn names(&self, error: &Found) -> bool {
        self.code == error.code && self.line.is_none_or(|line| error.lines.contains(&line))
    }
}

/// The `//~` comments of a file.
fn expectations(source: &str) -> Result<Vec<Expected>, String> {
    let mut expected = Vec::new();
    // The line that the next `^` means; expectations of one line may stand below one another.
    let mut above = 0;
    for (line, number) in source.lines().zip(1..) {
        let Some((_, comment)) = line.split_once("//~") else {
            above = number;
            continue;
        };
        let comment = comment.trim_start();
        let (line, comment) = comment.strip_prefix('^').map_or((None, comment), |rest| (Some(above), rest));
        let mut parts = comment.split('`');
        let code = parts.next().unwrap_or_default().trim().to_owned();
        let texts: Vec<String> = parts.step_by(2).map(str::to_owned).collect();
        if code.is_empty() || texts.is_empty() || texts.iter().any(String::is_empty) {
            return Err(format!("line {number}: expected a code and texts in backticks"));
        }
        expected.push(Expected { code, line, texts });
    }
    Ok(expected)
}

/// An error of the compiler.
struct Found {
    code: String,
    /// Lines of the file that it points at.
    lines: Vec<u64>,
    /// Its message with all labels, notes and helps, and without the lines of source shown among
    /// them.
    text: String,
    rendered: String,
}

impl Found {
    fn new(diagnostic: &Value, file: &str) -> Self {
        let code = diagnostic["code"]["code"].as_str().unwrap_or("error").to_owned();
        let rendered = diagnostic["rendered"].as_str().unwrap_or_default().to_owned();
        let (mut lines, mut text) = (Vec::new(), String::new());
        for part in [diagnostic].into_iter().chain(array(&diagnostic["children"])) {
            text.push_str(part["message"].as_str().unwrap_or_default());
            for span in array(&part["spans"]) {
                text.push('\n');
                text.push_str(span["label"].as_str().unwrap_or_default());
            }
            text.push('\n');
        }
        for span in array(&diagnostic["spans"]).filter(|span| span["is_primary"] == true) {
            // What a macro made stands where the macro is used.
            let mut span = span;
            while span["expansion"].is_object() {
                span = &span["expansion"]["span"];
            }
            if span["file_name"] == file {
                lines.extend(span["line_start"].as_u64());
            }
        }
        // Whether a path is written out depends on what other crates call their types.
        Self { code, lines, text: text.replace("thalweg_collective::", "").replace("thalweg::", ""), rendered }
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// rustc, and where the library and what it depends on lie.
struct Compiler {
    rustc: OsString,
    /// The libraries that programs name.
    libraries: Vec<String>,
    search: BTreeSet<PathBuf>,
    out: PathBuf,
}

impl Compiler {
    /// Asks cargo for the artifacts of this very test. They are all there, or it could not run.
    fn new(test: ThisTest) -> Self {
        let target = Path::new(test.scratch).parent().expect("a folder of the target directory");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["test", "--no-run", "--frozen", "--quiet", "--message-format=json"])
            .arg(format!("--package={}", test.package))
            .arg(format!("--test={}", test.name))
            .arg("--target-dir")
            .arg(target)
            .args((!cfg!(debug_assertions)).then_some("--release"))
            .current_dir(test.folder);
        let output = command.output().expect("cargo starts");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));

        // That of this test's package, `thalweg`, on which those on top are built, what its macros
        // name, and that of README's program, if the test depends on it.
        let package = test.package.replace('-', "_");
        let named = ["thalweg", "thalweg_simt", &package, "thalweg_vision"];
        let (mut libraries, mut search) = (BTreeSet::new(), BTreeSet::new());
        for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"{")) {
            let message: Value = serde_json::from_slice(line).expect("cargo writes JSON");
            for file in array(&message["filenames"]).filter_map(Value::as_str) {
                search.extend(Path::new(file).parent().map(Path::to_owned));
                let name = named.iter().find(|&&name| message["target"]["name"] == name);
                libraries.extend(name.filter(|_| file.ends_with(".rlib")).map(|name| format!("{name}={file}")));
            }
        }
        assert!(!libraries.is_empty(), "cargo names the library among the artifacts");
        let out = Path::new(test.scratch).join(format!("ui-{}", test.package));
        fs::create_dir_all(&out).expect("the target directory can be written");
        Self {
            rustc: std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()),
            libraries: libraries.into_iter().collect(),
            search,
            out,
        }
    }

    /// The errors of a program.
    fn compile(&self, name: &str, source: &str, emit: &str) -> Vec<Found> {
        let file = self.out.join(name).with_extension("rs");
        fs::write(&file, source).expect("the target directory can be written");
        let output = Command::new(&self.rustc)
            .args(["--edition=2024", "--crate-type=bin", "--error-format=json", "-Awarnings", "-Dunsafe-code"])
            // Wide, or the compiler leaves parts of long types out.
            .arg("--diagnostic-width=1000")
            .arg(format!("--emit={emit}"))
            .args(self.libraries.iter().map(|library| format!("--extern={library}")))
            .args(self.search.iter().map(|folder| format!("-Ldependency={}", folder.display())))
            .arg("--out-dir")
            .arg(&self.out)
            .arg(&file)
            .output()
            .expect("rustc starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let file = file.to_string_lossy();
        let errors: Vec<_> = stderr
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|d| d["level"].as_str().is_some_and(|level| level.starts_with("error")))
            // The closing count of errors has neither code nor place.
            .filter(|d| d["code"].is_object() || array(&d["spans"]).next().is_some())
            .map(|d| Found::new(&d, &file))
            .collect();
        assert_eq!(output.status.success(), errors.is_empty(), "{name}: rustc says\n{stderr}");
        errors
    }
}
