//! Lists the photographs that a run reads, and the paths of their results.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::args::TokensArgs;
use crate::report::{Failure, Skipped, Why};

/// The input that stands for standard input.
pub(crate) const STDIN: &str = "-";

/// A photograph to read and the name its results get.
pub(crate) struct Input {
    /// The file, or [`STDIN`].
    pub(crate) path: PathBuf,
    /// The path below the folder that the command line names, or the file's name. The result has
    /// the same path below `--out`, with another ending.
    pub(crate) name: PathBuf,
}

/// The files that a run reads, those that it cannot read, and those that it leaves out.
#[derive(Default)]
pub(crate) struct Gathered {
    pub(crate) inputs: Vec<Input>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) skipped: Vec<Skipped>,
}

/// Lists the photographs that the command line names and those in the folders that it names, each
/// once. A photograph fails if its results would replace those of another one, or an input.
pub(crate) fn gather(args: &TokensArgs) -> Gathered {
    let mut found = Vec::new();
    let mut gathered = Gathered::default();
    for path in &args.inputs {
        if path.as_os_str() == STDIN {
            found.push(Input { path: path.clone(), name: "stdin".into() });
        } else if path.is_dir() {
            let mut walk = Walk { args, root: path, seen: HashSet::new(), found: Vec::new(), gathered: &mut gathered };
            let readable = walk.folder(path);
            let inside = walk.found;
            if readable && inside.is_empty() {
                let below = if args.recursive { " or below" } else { "" };
                let error = format!("no *.png, *.jpg, *.jpeg or *.webp in this folder{below}");
                gathered.failures.push(Failure { path: path.clone(), error });
            }
            found.extend(inside);
        } else {
            let name = path.file_name().unwrap_or(path.as_os_str()).into();
            found.push(Input { path: path.clone(), name });
        }
    }

    let mut seen = HashSet::new();
    found.retain(|input| seen.insert(real(&input.path)));
    // By place, because standard input and a file may have the same name.
    let mut by_result: BTreeMap<PathBuf, Vec<(usize, PathBuf)>> = BTreeMap::new();
    for (place, input) in found.iter().enumerate() {
        by_result.entry(input.tokens(args)).or_default().push((place, input.source().to_path_buf()));
    }
    for (place, input) in found.into_iter().enumerate() {
        let result = input.tokens(args);
        let rivals: Vec<_> = by_result[&result]
            .iter()
            .filter(|(rival, _)| *rival != place)
            .map(|(_, rival)| rival.display().to_string())
            .collect();
        let results = || [Some(result.clone()), input.heatmap(args)].into_iter().flatten();
        let overwritten = results().find(|result| seen.contains(&real(result)));
        let error = if !rivals.is_empty() {
            let (have, all) = if rivals.len() == 1 { ("has", "both") } else { ("have", "all") };
            format!(
                "{} {have} the same stem, so {all} would write {}; rename one or use another --out",
                rivals.join(" and "),
                result.display()
            )
        } else if let Some(result) = overwritten {
            format!("its result would replace the input {}; use another --out", result.display())
        } else {
            if args.skip_existing && results().all(|result| result.is_file()) {
                gathered.skipped.push(Skipped { path: input.source().to_path_buf(), why: Why::Exists });
            } else {
                gathered.inputs.push(input);
            }
            continue;
        };
        gathered.failures.push(Failure { path: input.source().to_path_buf(), error });
    }
    gathered
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

/// A walk through a folder that the command line names.
struct Walk<'a> {
    args: &'a TokensArgs,
    root: &'a Path,
    /// The folders that were read, so that a link to one of them does not make a circle.
    seen: HashSet<PathBuf>,
    found: Vec<Input>,
    gathered: &'a mut Gathered,
}

impl Walk<'_> {
    /// Lists a folder. Returns whether it could be read.
    fn folder(&mut self, folder: &Path) -> bool {
        if !self.seen.insert(real(folder)) {
            return true;
        }
        let mut entries = match fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => entries,
            Err(e) => {
                let error = format!("cannot read the folder: {e}");
                self.gathered.failures.push(Failure { path: folder.to_path_buf(), error });
                return false;
            }
        };
        entries.sort_by_cached_key(fs::DirEntry::file_name); // the file system's order decides nothing
        for entry in entries {
            let path = entry.path();
            let is_folder = path.is_dir();
            match self.judge(&entry.file_name(), is_folder) {
                Some(why) => self.gathered.skipped.push(Skipped { path, why }),
                None if is_folder => _ = self.folder(&path),
                None => {
                    let name = path.strip_prefix(self.root).unwrap_or(&path).to_path_buf();
                    self.found.push(Input { path, name });
                }
            }
        }
        true
    }

    /// Returns why an entry of a folder is not read, if it is not.
    fn judge(&self, name: &OsStr, is_folder: bool) -> Option<Why> {
        let name = name.to_string_lossy().to_ascii_lowercase();
        let photograph = [".png", ".jpg", ".jpeg", ".webp"].iter().any(|ending| name.ends_with(ending));
        if name.starts_with('.') {
            Some(Why::Hidden)
        } else if is_folder {
            (!self.args.recursive).then_some(Why::Subfolder)
        } else if name.ends_with(".heatmap.png") {
            Some(Why::Heatmap)
        } else {
            (!photograph).then_some(Why::Other)
        }
    }
}

impl Input {
    /// Returns how messages and the report name the photograph.
    pub(crate) fn source(&self) -> &Path {
        if self.path.as_os_str() == STDIN { &self.name } else { &self.path }
    }

    /// Returns the path of the tokens, `DIR/<stem>.safetensors`.
    pub(crate) fn tokens(&self, args: &TokensArgs) -> PathBuf {
        self.result(args, ".safetensors")
    }

    /// Returns the path of the heatmap, `DIR/<stem>.heatmap.png`, if the run draws heatmaps.
    pub(crate) fn heatmap(&self, args: &TokensArgs) -> Option<PathBuf> {
        args.heatmap.then(|| self.result(args, ".heatmap.png"))
    }

    fn result(&self, args: &TokensArgs, ending: &str) -> PathBuf {
        // `with_extension` would cut a stem that contains dots
        let mut name = self.name.file_stem().unwrap_or(self.name.as_os_str()).to_owned();
        name.push(ending);
        args.out.join(self.name.with_file_name(name))
    }
}
