//! Copies the repository with all mutations in it, and builds the tests of the copy once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::patch::{Mutated, Patch, apply};
use crate::table::Test;

/// The variable that says which mutation is in force.
pub(crate) const VARIABLE: &str = "THALWEG_TEST_MUTATION";

/// What is appended to each crate that is mutated.
const SWITCH: &str = r#"
/// Whether a mutation is in force.
#[doc(hidden)]
#[allow(dead_code)]
pub fn __mutated(number: u32) -> bool {
    extern crate std;
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let read = || std::env::var("THALWEG_TEST_MUTATION").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    *CHOSEN.get_or_init(read) == number
}
"#;

/// The repository, and the copy of it.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) copy: PathBuf,
}

impl Tree {
    pub(crate) fn new() -> Result<Self, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let root = root.canonicalize().map_err(|error| error.to_string())?;
        let copy = root.join("target/mutations/tree");
        Ok(Self { root, copy })
    }

    pub(crate) fn text(&self, file: &str) -> Result<String, String> {
        fs::read_to_string(self.root.join(file)).map_err(|error| format!("{file}: {error}"))
    }

    /// Writes the copy with patches. Returns where the mutations are in it, by file.
    pub(crate) fn write(&self, patches: &BTreeMap<String, Vec<Patch>>) -> Result<BTreeMap<String, Mutated>, String> {
        let mut mutated = BTreeMap::new();
        for (file, patches) in patches {
            // An example is a part of a test, and its library is another crate.
            let home = if file.starts_with("examples/") { "thalweg" } else { "crate" };
            let done = apply(&self.text(file)?, patches.clone(), home);
            let done = done.map_err(|(a, b)| format!("{file}: the mutations {a} and {b} have text in common"))?;
            mutated.insert(file.clone(), done);
        }
        let roots: BTreeSet<String> = patches.keys().flat_map(|file| self.crate_roots(file)).collect();
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&self.root)
            .output();
        let listed = listed.map_err(|error| format!("git ls-files: {error}"))?;
        for file in String::from_utf8_lossy(&listed.stdout).split('\0').filter(|file| !file.is_empty()) {
            let from = self.root.join(file);
            if !from.is_file() {
                continue;
            }
            let mut text = match mutated.get(file) {
                Some(mutated) => mutated.text.clone().into_bytes(),
                None => fs::read(&from).map_err(|error| format!("{file}: {error}"))?,
            };
            if roots.contains(file) {
                text.extend(SWITCH.as_bytes());
            }
            let to = self.copy.join(file);
            // Cargo builds again what is newer.
            if fs::read(&to).is_ok_and(|there| there == text) {
                continue;
            }
            let parent = to.parent().unwrap_or(&self.copy);
            fs::create_dir_all(parent).and_then(|()| fs::write(&to, text)).map_err(|e| format!("{file}: {e}"))?;
            let mode = from.metadata().and_then(|it| fs::set_permissions(&to, it.permissions()));
            mode.map_err(|error| format!("{file}: {error}"))?;
        }
        Ok(mutated)
    }

    /// Returns the roots of the crate that a file belongs to.
    fn crate_roots(&self, file: &str) -> Vec<String> {
        let mut folder = Path::new(file);
        while let Some(parent) = folder.parent() {
            folder = parent;
            if self.root.join(folder).join("Cargo.toml").is_file() {
                break;
            }
        }
        let roots = ["host/lib.rs", "src/lib.rs", "src/main.rs"].map(|root| folder.join(root));
        roots
            .into_iter()
            .filter(|root| self.root.join(root).is_file())
            .map(|root| root.to_string_lossy().into_owned())
            .collect()
    }
}

/// The programs of tests, by package and name, each with the folder of its package.
pub(crate) type Programs = BTreeMap<(String, String), (PathBuf, PathBuf)>;

/// Builds the tests with every patch that compiles. `droppable` says which mutations may be left
/// out because they do not. Returns the programs and the mutations that were left out.
pub(crate) fn build(
    tree: &Tree,
    mut patches: BTreeMap<String, Vec<Patch>>,
    tests: &BTreeSet<(String, String)>,
    droppable: impl Fn(u32) -> bool,
) -> Result<(Programs, BTreeSet<u32>), String> {
    let mut dropped = BTreeSet::new();
    loop {
        let mutated = tree.write(&patches)?;
        let (done, messages) = cargo(tree, tests)?;
        if done {
            return Ok((programs(&messages), dropped));
        }
        let (bad, words) = rejected(&messages, &mutated, &droppable);
        if bad.is_empty() {
            return Err(format!("the mutations do not compile:\n{words}"));
        }
        println!("{} generated mutations do not compile", bad.len());
        for patches in patches.values_mut() {
            patches.retain(|patch| !bad.contains(&patch.number));
        }
        dropped.extend(bad);
    }
}

fn cargo(tree: &Tree, tests: &BTreeSet<(String, String)>) -> Result<(bool, Vec<Value>), String> {
    let mut command = Command::new("cargo");
    command.args(["test", "--locked", "--quiet", "--no-run", "--no-fail-fast", "--message-format=json"]);
    for package in tests.iter().map(|it| &it.0).collect::<BTreeSet<_>>() {
        command.args(["-p", package]);
    }
    for binary in tests.iter().map(|it| &*it.1).collect::<BTreeSet<_>>() {
        match binary {
            "lib" => command.arg("--lib"),
            "bin" => command.arg("--bins"),
            name => command.args(["--test", name]),
        };
    }
    // A kernel with a mutation in it would be built for GPUs again, and no GPU runs it.
    command.env("THALWEG_PTX", "none");
    // The copy has its own build folder. If it shared the repository's, cargo would reuse crates
    // with mutations in later builds of the repository.
    command.env("CARGO_TARGET_DIR", tree.root.join("target/mutations"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "LD_LIBRARY_PATH" {
            command.env_remove(&name);
        }
    }
    let output = command.current_dir(&tree.copy).stderr(Stdio::piped()).output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    let messages: Vec<Value> =
        output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    if messages.is_empty() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok((output.status.success(), messages))
}

fn programs(messages: &[Value]) -> Programs {
    let mut programs = Programs::new();
    for message in messages.iter().filter(|it| it["reason"] == "compiler-artifact" && it["profile"]["test"] == true) {
        let (target, id) = (&message["target"], message["package_id"].as_str().unwrap_or_default());
        let Some(program) = message["executable"].as_str() else { continue };
        let folder = Path::new(message["manifest_path"].as_str().unwrap_or_default()).parent();
        // `path+file:///folder#name@version`, or without a name where the folder is called so.
        let end = id.rsplit(['/', '#']).next().unwrap_or_default();
        let name = end.split('@').next().unwrap_or_default().to_owned();
        let package = if name.starts_with(|c: char| c.is_ascii_digit()) {
            id.split('#').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default().to_owned()
        } else {
            name
        };
        let kind = target["kind"][0].as_str().unwrap_or_default();
        let binary = if kind == "test" { target["name"].as_str().unwrap_or_default() } else { kind };
        let folder = folder.unwrap_or(Path::new("")).to_path_buf();
        programs.insert((package, binary.to_owned()), (program.into(), folder));
    }
    programs
}

/// Returns the mutations that the compiler's errors are about, and its words.
fn rejected(
    messages: &[Value],
    mutated: &BTreeMap<String, Mutated>,
    droppable: &impl Fn(u32) -> bool,
) -> (BTreeSet<u32>, String) {
    let (mut bad, mut words) = (BTreeSet::new(), String::new());
    for message in messages.iter().map(|it| &it["message"]).filter(|it| it["level"] == "error") {
        words += message["rendered"].as_str().unwrap_or_default();
        let mut spans = Vec::new();
        let notes = message["children"].as_array().into_iter().flatten().map(|child| &child["spans"]);
        for spans_of in [&message["spans"]].into_iter().chain(notes) {
            spans.extend(spans_of.as_array().into_iter().flatten());
        }
        spans.sort_by_key(|span| span["is_primary"] != true);
        for span in spans {
            let Some(Mutated { places, .. }) = span["file_name"].as_str().and_then(|name| mutated.get(name)) else {
                continue;
            };
            let byte = |name: &str| span[name].as_u64().unwrap_or(0) as usize;
            let (start, end) = (byte("byte_start"), byte("byte_end"));
            let places = || places.iter().filter(|place| droppable(place.0));
            // The innermost mutation around the error, or those within it, or the next one before.
            let around = places().filter(|(_, at)| at.start <= start && end <= at.end).min_by_key(|it| it.1.len());
            let mut found: Vec<u32> = around.map(|it| it.0).into_iter().collect();
            if found.is_empty() {
                found = places().filter(|(_, at)| start <= at.start && at.end <= end).map(|it| it.0).collect();
            }
            if found.is_empty() {
                found = places()
                    .filter(|(_, at)| at.end <= start)
                    .max_by_key(|it| it.1.end)
                    .map(|it| it.0)
                    .into_iter()
                    .collect();
            }
            if !found.is_empty() {
                bad.extend(found);
                break;
            }
        }
    }
    (bad, words)
}

/// Names the program of a test.
pub(crate) fn key(test: &Test) -> (String, String) {
    (test.package.clone(), test.binary.clone())
}
