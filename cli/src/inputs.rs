//! Which photographs a run reads, and where their results go.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use crate::args::TokensArgs;
use crate::report::Failure;

/// A photograph to read and the name its results get.
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    stem: OsString,
}

/// Lists the photographs that the command line names and those in the folders that it names, each
/// once. A photograph fails if its results would replace those of another one, or an input.
pub(crate) fn gather(args: &TokensArgs) -> (Vec<Input>, Vec<Failure>) {
    let mut paths = Vec::new();
    let mut failures = Vec::new();
    for path in &args.inputs {
        if path.is_dir() {
            match list(path) {
                Ok(found) => paths.extend(found),
                Err(error) => failures.push(Failure { path: path.clone(), error }),
            }
        } else {
            paths.push(path.clone());
        }
    }

    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let mut seen = HashSet::new();
    paths.retain(|path| seen.insert(real(path)));
    let stem = |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_owned();
    let mut by_stem: BTreeMap<OsString, Vec<PathBuf>> = BTreeMap::new();
    for path in &paths {
        by_stem.entry(stem(path)).or_default().push(path.clone());
    }
    let mut inputs = Vec::new();
    for path in paths {
        let input = Input { stem: stem(&path), path };
        let rivals: Vec<_> = by_stem[&input.stem]
            .iter()
            .filter(|rival| **rival != input.path)
            .map(|rival| rival.display().to_string())
            .collect();
        let overwritten = [Some(input.tokens(args)), input.heatmap(args)]
            .into_iter()
            .flatten()
            .find(|result| seen.contains(&real(result)));
        let error = if !rivals.is_empty() {
            let (have, all) = if rivals.len() == 1 { ("has", "both") } else { ("have", "all") };
            format!(
                "{} {have} the same stem, so {all} would write {}; rename one or use another --out",
                rivals.join(" and "),
                input.tokens(args).display()
            )
        } else if let Some(result) = overwritten {
            format!("its result would replace the input {}; use another --out", result.display())
        } else {
            inputs.push(input);
            continue;
        };
        failures.push(Failure { path: input.path, error });
    }
    (inputs, failures)
}

/// Lists the photographs of a folder in order of name.
fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| format!("cannot read the folder: {e}"))?;
    let wanted = |name: &OsStr| {
        let name = name.to_string_lossy().to_ascii_lowercase();
        [".png", ".jpg", ".jpeg", ".webp"].iter().any(|ending| name.ends_with(ending))
            && !name.starts_with('.')
            && !name.ends_with(".heatmap.png")
    };
    let mut paths: Vec<PathBuf> = entries
        .iter()
        .filter(|entry| wanted(&entry.file_name()))
        .map(fs::DirEntry::path)
        .filter(|path| !path.is_dir())
        .collect();
    paths.sort();
    if paths.is_empty() {
        return Err("no *.png, *.jpg, *.jpeg or *.webp in this folder".to_owned());
    }
    Ok(paths)
}

impl Input {
    /// Returns the path of the tokens, `DIR/<stem>.safetensors`.
    pub(crate) fn tokens(&self, args: &TokensArgs) -> PathBuf {
        self.result(args, ".safetensors")
    }

    /// Returns the path of the heatmap, `DIR/<stem>.heatmap.png`, if the run draws heatmaps.
    pub(crate) fn heatmap(&self, args: &TokensArgs) -> Option<PathBuf> {
        args.heatmap.then(|| self.result(args, ".heatmap.png"))
    }

    fn result(&self, args: &TokensArgs, ending: &str) -> PathBuf {
        let mut name = self.stem.clone(); // `with_extension` would cut a stem that contains dots
        name.push(ending);
        args.out.join(name)
    }
}
