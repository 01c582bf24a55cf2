//! Sources whose samples are the files of folders.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thalweg::{Error, Result};

use crate::DecodeError;
use crate::image_sink::ImageSink;
use crate::source::{Sample, Source};

/// A file, and the class that its folder stands for: what [`Source::image_folder`] gives each
/// sample as metadata.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Labeled {
    /// The index of the class in [`ImageFolder::classes`].
    pub label: u32,
    /// The file.
    pub path: PathBuf,
}

/// The images and the classes that [`Source::image_folder`] finds.
#[derive(Debug)]
#[non_exhaustive]
pub struct ImageFolder {
    /// The files of all classes: those of class 0 first, and those of a class in order of path.
    pub source: Source<Labeled>,
    /// The names of the classes in order. Bytes of a name that are not UTF-8 are replaced.
    pub classes: Vec<String>,
}

impl Source<PathBuf> {
    /// The files of a folder that have one of the `extensions` (`["jpg", "png"]`, in upper or lower
    /// case), in order of name. Subfolders and hidden files are left out.
    ///
    /// # Errors
    /// The folder cannot be read, or has no such file.
    pub fn folder(
        folder: impl AsRef<Path>,
        extensions: &[&str],
        read: impl Fn(&Path, &mut ImageSink<'_>) -> Result<(), DecodeError> + Clone + Send + 'static,
    ) -> Result<Self> {
        Ok(Self::files(Search::new(folder.as_ref(), extensions, false).some_files()?, read))
    }

    /// The files of a folder and of all folders below it, as [`folder`](Source::folder) finds those
    /// of one. They come in order of path, whatever order the file system has. Hidden folders and
    /// hidden files are left out.
    ///
    /// A symbolic link to a folder is followed, but no folder is read twice. So links that lead in
    /// a circle do no harm.
    ///
    /// ```
    /// use thalweg_loader::{Source, read_ppm};
    ///
    /// let root = std::env::temp_dir().join(format!("thalweg-folders-{}", std::process::id()));
    /// std::fs::create_dir_all(root.join("day/night"))?;
    /// std::fs::write(root.join("day/night/moon.ppm"), "P6 1 1 255 rgb")?;
    /// let source = Source::folders(&root, &["ppm"], read_ppm)?;
    /// assert!(Source::folder(&root, &["ppm"], read_ppm).is_err()); // it has none itself
    /// # std::fs::remove_dir_all(&root)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A folder cannot be read, or there is no such file.
    pub fn folders(
        root: impl AsRef<Path>,
        extensions: &[&str],
        read: impl Fn(&Path, &mut ImageSink<'_>) -> Result<(), DecodeError> + Clone + Send + 'static,
    ) -> Result<Self> {
        Ok(Self::files(Search::new(root.as_ref(), extensions, true).some_files()?, read))
    }
}

impl Source<Labeled> {
    /// The files below the subfolders of a folder, where each subfolder is a class: `cat/1.jpg` and
    /// `cat/old/2.jpg` are of the class `cat`. Classes are numbered in order of name. A subfolder
    /// without files is a class too, so that parts of a data set number their classes alike. Files
    /// of the folder itself and hidden folders are left out.
    ///
    /// Within a class, files are found as [`folders`](Source::folders) finds them.
    ///
    /// ```
    /// use thalweg_loader::{Loader, LoaderOptions, Source, read_ppm};
    /// use thalweg::Device;
    ///
    /// let root = std::env::temp_dir().join(format!("thalweg-classes-{}", std::process::id()));
    /// for class in ["dog", "cat"] {
    ///     std::fs::create_dir_all(root.join(class))?;
    ///     std::fs::write(root.join(class).join("1.ppm"), "P6 1 1 255 rgb")?;
    /// }
    /// let found = Source::image_folder(&root, &["ppm"], read_ppm)?;
    /// assert_eq!(found.classes, ["cat", "dog"]);
    /// let mut loader = Loader::new(Device::cpu()?, found.source, LoaderOptions::default())?;
    /// let batch = loader.next().unwrap()?.synchronize()?;
    /// assert_eq!((batch.meta[1].label, &batch.meta[1].path), (1, &root.join("dog/1.ppm")));
    /// # std::fs::remove_dir_all(&root)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A folder cannot be read, or there is no such file in any class.
    pub fn image_folder(
        root: impl AsRef<Path>,
        extensions: &[&str],
        read: impl Fn(&Path, &mut ImageSink<'_>) -> Result<(), DecodeError> + Clone + Send + 'static,
    ) -> Result<ImageFolder> {
        let root = Search::new(root.as_ref(), extensions, false);
        let (mut classes, mut all) = (Vec::new(), Vec::new());
        let mut folders = root.entries(root.folder)?;
        folders.retain(|path| path.is_dir());
        for (label, folder) in (0..).zip(&folders) {
            classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
            let files = Search::new(folder, extensions, true).files()?;
            all.extend(files.into_iter().map(|path| Labeled { label, path }));
        }
        if all.is_empty() {
            return Err(root.refuse(root.folder, "there is none in its subfolders"));
        }
        let source = Self::indexed(all.len() as u64, move |index| {
            let (file, read) = (all[index as usize].clone(), read.clone());
            let path = file.path.clone();
            Sample::new(path.display().to_string(), file, move |sink| read(&path, sink))
        });
        Ok(ImageFolder { source, classes })
    }
}

/// A search for files.
struct Search<'s> {
    folder: &'s Path,
    extensions: &'s [&'s str],
    /// Also in the folders below.
    below: bool,
}

impl<'s> Search<'s> {
    fn new(folder: &'s Path, extensions: &'s [&'s str], below: bool) -> Self {
        Self { folder, extensions, below }
    }

    fn refuse(&self, folder: &Path, given: impl std::fmt::Display) -> Error {
        let expected = format!("a folder with files *.{}", self.extensions.join(", *."));
        Error::Parameter { name: "the loader's folder", given: format!("{} ({given})", folder.display()), expected }
    }

    /// Everything in a folder that is not hidden, in order of name.
    fn entries(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = entries.map_err(|e| self.refuse(folder, e))?;
        let visible = |entry: &fs::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
        let mut paths: Vec<_> = entries.iter().filter(|entry| visible(entry)).map(fs::DirEntry::path).collect();
        paths.sort();
        Ok(paths)
    }

    /// The files, in order of path.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let (mut files, mut seen) = (Vec::new(), BTreeSet::new());
        // A list instead of recursion, because folders may be nested more deeply than a stack.
        let mut folders = vec![self.folder.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let real = fs::canonicalize(&folder).map_err(|e| self.refuse(&folder, e))?;
            if !seen.insert(real) {
                continue;
            }
            let mut below = Vec::new();
            for path in self.entries(&folder)? {
                let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
                let wanted = self.extensions.iter().any(|e| e.eq_ignore_ascii_case(extension));
                if !wanted && !self.below {
                    continue; // without asking the file system about it
                }
                if path.is_dir() {
                    below.push(path);
                } else if wanted {
                    files.push(path);
                }
            }
            if self.below {
                folders.extend(below.into_iter().rev()); // the last one is searched first
            }
        }
        files.sort();
        Ok(files)
    }

    /// The files, of which there must be one.
    fn some_files(&self) -> Result<Vec<PathBuf>> {
        let files = self.files()?;
        if files.is_empty() { Err(self.refuse(self.folder, "there is none")) } else { Ok(files) }
    }
}
