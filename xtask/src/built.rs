//! Finds the programs that a build of the tests made.
//!
//! A step that runs some of them with other settings runs them itself. `cargo test -p` would choose
//! other features for the crates below, and build those again.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{command, output, root, words};

/// A test, an example, a benchmark or a command that a build made.
#[derive(Debug, PartialEq)]
pub(crate) struct Built {
    /// The directory of its package in the repository. It is empty for the root package.
    folder: String,
    kind: String,
    name: String,
    program: PathBuf,
}

/// Builds with the words of a cargo command, and returns the programs of the members of the
/// workspace.
pub(crate) fn build(cargo: &str) -> Result<Vec<Built>, String> {
    println!("$ {cargo}");
    let messages = output(words(cargo).args(["--message-format=json-render-diagnostics"]))?;
    let root = root();
    Ok(messages.lines().filter_map(|line| read(line, &root.to_string_lossy())).collect())
}

/// Makes the command that runs the program of this kind and name, of the package in `folder`, as
/// cargo would.
pub(crate) fn program(built: &[Built], folder: &str, kind: &str, name: &str) -> Result<Command, String> {
    let is = |it: &&Built| (&*it.folder, &*it.kind, &*it.name) == (folder, kind, name);
    let found = built.iter().find(is).ok_or_else(|| format!("no {kind} {name} in `{folder}` was built"))?;
    let mut command = command(&found.program, folder);
    command.env("CARGO_MANIFEST_DIR", root().join(folder));
    Ok(command)
}

/// Returns the names of the programs of a kind, of the package in `folder`.
pub(crate) fn names<'a>(built: &'a [Built], folder: &str, kind: &str) -> Vec<&'a str> {
    let mut names: Vec<_> =
        built.iter().filter(|it| it.folder == folder && it.kind == kind).map(|it| &*it.name).collect();
    names.sort_unstable();
    names
}

/// Reads a message of cargo. Returns none if it does not tell of a program.
fn read(message: &str, root: &str) -> Option<Built> {
    let message = message.strip_prefix("{\"reason\":\"compiler-artifact\"")?;
    let program = text(message, "\"executable\":\"")?.into();
    let manifest = text(message, "\"manifest_path\":\"")?;
    let folder = manifest.strip_prefix(root)?.trim_start_matches('/').strip_suffix("Cargo.toml")?;
    let target = message.split_once("\"target\":{")?.1;
    let mut kind = text(target, "\"kind\":[\"")?;
    // Unit tests of a library or a command.
    if matches!(kind, "lib" | "bin" | "proc-macro") && message.contains("\"test\":true},\"features\"") {
        kind = "unit";
    }
    let folder = folder.trim_end_matches('/').into();
    Some(Built { folder, kind: kind.into(), name: text(target, "\"name\":\"")?.into(), program })
}

/// Returns the text from `key` to the next quotation mark.
fn text<'a>(message: &'a str, key: &str) -> Option<&'a str> {
    Some(message.split_once(key)?.1.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_tell_the_programs() {
        let message = |manifest: &str, kind: &str, test: bool, program: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file:///r/train#thalweg-train@0.1.0\",\
                 \"manifest_path\":\"{manifest}\",\"target\":{{\"kind\":[\"{kind}\"],\"crate_types\":[\"bin\"],\
                 \"name\":\"golden\",\"src_path\":\"/r/train/x.rs\",\"test\":true}},\"profile\":{{\"opt_level\":\"2\",\
                 \"test\":{test}}},\"features\":[],\"filenames\":[\"/x\"],\"executable\":{program},\"fresh\":true}}"
            )
        };
        let built = |folder: &str, kind: &str| {
            let program = "/t/golden-1".into();
            Some(Built { folder: folder.into(), kind: kind.into(), name: "golden".into(), program })
        };
        let program = "\"/t/golden-1\"";
        assert_eq!(read(&message("/r/train/Cargo.toml", "test", true, program), "/r"), built("train", "test"));
        assert_eq!(read(&message("/r/Cargo.toml", "example", false, program), "/r"), built("", "example"));
        assert_eq!(read(&message("/r/cli/Cargo.toml", "bin", true, program), "/r"), built("cli", "unit"));
        assert_eq!(read(&message("/r/cli/Cargo.toml", "bin", false, program), "/r"), built("cli", "bin"));
        assert_eq!(read(&message("/r/train/Cargo.toml", "lib", false, "null"), "/r"), None);
        assert_eq!(read(&message("/elsewhere/Cargo.toml", "test", true, program), "/r"), None);
        assert_eq!(read("{\"reason\":\"build-finished\",\"success\":true}", "/r"), None);
    }
}
