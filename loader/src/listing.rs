//! The contents of folders.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

/// The contents of a folder, as [`list_folder`] finds them. Each list is in order of path.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct FolderContents {
    /// The files with one of the extensions.
    pub files: Vec<PathBuf>,
    /// The files with another extension.
    pub other_files: Vec<PathBuf>,
    /// The files and folders whose name begins with a dot. No such folder is searched.
    pub hidden: Vec<PathBuf>,
    /// The folders that were not searched: those below, unless they were asked for.
    pub subfolders: Vec<PathBuf>,
    /// The folders that cannot be read. The folder itself may be one.
    pub unreadable: Vec<UnreadableFolder>,
}

/// A folder that cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub struct UnreadableFolder {
    /// The folder.
    pub path: PathBuf,
    /// The reason.
    pub error: io::Error,
}

/// Lists the files of a folder that have one of the `extensions` (`["jpg", "png"]`, in upper or
/// lower case), and what else is there. If `recursive`, it searches the folders below, too. The
/// order is that of the paths, whatever order the file system has.
///
/// A symbolic link to a folder is followed, but no folder is read twice. So links that lead in a
/// circle do no harm.
///
/// ```
/// use thalweg_loader::list_folder;
///
/// let root = std::env::temp_dir().join(format!("thalweg-listing-{}", std::process::id()));
/// std::fs::create_dir_all(root.join("day"))?;
/// std::fs::write(root.join("day/sun.ppm"), "P6 1 1 255 rgb")?;
/// assert_eq!(list_folder(&root, &["ppm"], false).subfolders, [root.join("day")]);
/// assert_eq!(list_folder(&root, &["ppm"], true).files, [root.join("day/sun.ppm")]);
/// # std::fs::remove_dir_all(&root)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn list_folder(folder: impl AsRef<Path>, extensions: &[&str], recursive: bool) -> FolderContents {
    let (mut found, mut seen) = (FolderContents::default(), HashSet::new());
    // A list instead of recursion, because folders may be nested more deeply than a stack.
    let mut open = vec![found.read(folder.as_ref(), &mut seen)];
    while let Some(entries) = open.last_mut() {
        let Some(entry) = entries.next() else {
            open.pop();
            continue;
        };
        let path = entry.path();
        match (is_hidden(&entry), is_folder(&entry, &path)) {
            (true, _) => found.hidden.push(path),
            (_, true) if recursive => open.push(found.read(&path, &mut seen)),
            (_, true) => found.subfolders.push(path),
            _ if has_extension(&path, extensions) => found.files.push(path),
            _ => found.other_files.push(path),
        }
    }
    found
}

impl FolderContents {
    /// Reads a folder. If that fails, it has no entries.
    fn read(&mut self, folder: &Path, seen: &mut HashSet<PathBuf>) -> std::vec::IntoIter<DirEntry> {
        let entries = read(folder, seen).unwrap_or_else(|error| {
            self.unreadable.push(UnreadableFolder { path: folder.to_path_buf(), error });
            Vec::new()
        });
        entries.into_iter()
    }
}

/// Reads a folder, in order of name. One that was read already gives nothing.
fn read(folder: &Path, seen: &mut HashSet<PathBuf>) -> io::Result<Vec<DirEntry>> {
    if !seen.insert(fs::canonicalize(folder)?) {
        return Ok(Vec::new());
    }
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_cached_key(DirEntry::file_name);
    Ok(entries)
}

fn is_hidden(entry: &DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(b".")
}

/// Asks the file system only about links: the folder says of the others what they are.
fn is_folder(entry: &DirEntry, path: &Path) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_symlink() && path.is_dir())
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    extensions.iter().any(|wanted| wanted.eq_ignore_ascii_case(extension))
}
