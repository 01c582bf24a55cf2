//! Sources whose samples are the files of folders.

use std::path::{Path, PathBuf};

use thalweg::{Error, Result};

use crate::DecodeError;
use crate::image_sink::ImageSink;
use crate::listing::{FolderContents, UnreadableFolder, list_folder};
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
        Ok(Self::files(some_files(folder.as_ref(), extensions, false)?, read))
    }

    /// The files of a folder and of all folders below it, as [`folder`](Source::folder) finds those
    /// of one, in the order of [`list_folder`]. Hidden folders and hidden files are left out.
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
        Ok(Self::files(some_files(root.as_ref(), extensions, true)?, read))
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
        let root = root.as_ref();
        let (mut classes, mut all) = (Vec::new(), Vec::new());
        for (label, folder) in (0..).zip(list(root, extensions, false)?.subfolders) {
            classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
            let files = list(&folder, extensions, true)?.files;
            all.extend(files.into_iter().map(|path| Labeled { label, path }));
        }
        if all.is_empty() {
            return Err(refuse(root, extensions, "there is none in its subfolders"));
        }
        let source = Self::indexed(all.len() as u64, move |index| {
            let (file, read) = (all[index as usize].clone(), read.clone());
            let path = file.path.clone();
            Sample::new(path.display().to_string(), file, move |sink| read(&path, sink))
        });
        Ok(ImageFolder { source, classes })
    }
}

/// Lists a folder that can be read.
fn list(folder: &Path, extensions: &[&str], recursive: bool) -> Result<FolderContents> {
    let found = list_folder(folder, extensions, recursive);
    match found.unreadable.first() {
        Some(UnreadableFolder { path, error }) => Err(refuse(path, extensions, error)),
        None => Ok(found),
    }
}

/// Lists the files of a folder, of which there must be one.
fn some_files(folder: &Path, extensions: &[&str], recursive: bool) -> Result<Vec<PathBuf>> {
    let FolderContents { files, subfolders, .. } = list(folder, extensions, recursive)?;
    match (files.is_empty(), subfolders.is_empty()) {
        (false, _) => Ok(files),
        (_, true) => Err(refuse(folder, extensions, "there is none")),
        (_, false) => Err(refuse(folder, extensions, "there is none; `Source::folders` also searches its subfolders")),
    }
}

fn refuse(folder: &Path, extensions: &[&str], given: impl std::fmt::Display) -> Error {
    let expected = format!("a folder with files *.{}", extensions.join(", *."));
    Error::Parameter { name: "the loader's folder", given: format!("{} ({given})", folder.display()), expected }
}
