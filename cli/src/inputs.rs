//! Lists the photographs that a run reads, and the paths of their results.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use thalweg_loader::{FolderContents, UnreadableFolder, list_folder};

use crate::args::TokensArgs;
use crate::report::{Failure, Skipped, Why};

/// The input that stands for standard input.
pub(crate) const STDIN: &str = "-";

/// Returns the path as messages and results name it.
pub(crate) fn name(path: &Path) -> &Path {
    if path.as_os_str() == STDIN { Path::new("stdin") } else { path }
}

/// The extensions of photographs in a folder.
pub(crate) const EXTENSIONS: [&str; 4] = ["png", "jpg", "jpeg", "webp"];

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
            let inside = gathered.folder(path, args.recursive);
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

impl Gathered {
    /// Lists the photographs of a folder. If there is none, that is a failure.
    fn folder(&mut self, root: &Path, recursive: bool) -> Vec<Input> {
        let FolderContents { files, other_files, hidden, subfolders, unreadable, .. } =
            list_folder(root, &EXTENSIONS, recursive);
        let (heatmaps, photos): (Vec<_>, Vec<_>) = files.into_iter().partition(|path| is_heatmap(path));
        if photos.is_empty() && !unreadable.iter().any(|folder| folder.path == root) {
            let below = match (recursive, subfolders.len()) {
                (true, _) => " or below",
                (_, 0) => "",
                (_, 1) => "; --recursive also reads its subfolder",
                _ => "; --recursive also reads its subfolders",
            };
            let error = format!("no *.png, *.jpg, *.jpeg or *.webp in this folder{below}");
            self.failures.push(Failure { path: root.to_path_buf(), error });
        }
        self.failures
            .extend(unreadable.into_iter().map(|folder| Failure { error: cannot_read(&folder), path: folder.path }));
        let why =
            [(hidden, Why::Hidden), (subfolders, Why::Subfolder), (heatmaps, Why::Heatmap), (other_files, Why::Other)];
        let mut skipped: Vec<_> =
            why.into_iter().flat_map(|(paths, why)| paths.into_iter().map(move |path| Skipped { path, why })).collect();
        skipped.sort_by(|a, b| a.path.cmp(&b.path));
        self.skipped.extend(skipped);
        let name = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_path_buf();
        photos.into_iter().map(|path| Input { name: name(&path), path }).collect()
    }
}

/// Says why a folder cannot be read.
pub(crate) fn cannot_read(folder: &UnreadableFolder) -> String {
    format!("cannot read the folder: {}", folder.error)
}

fn is_heatmap(path: &Path) -> bool {
    path.as_os_str().to_string_lossy().to_ascii_lowercase().ends_with(".heatmap.png")
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
