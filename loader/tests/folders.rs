//! Tests of sources that are folders of folders.

use std::path::{Path, PathBuf};

use thalweg::Device;
use thalweg_loader::{Loader, Source, UploadMode, list_folder, read_ppm};

use crate::files::Folder;
use crate::options;

fn write(root: &Path, path: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, "P6 1 1 255 rgb").unwrap();
}

/// The metadata of all samples, in order.
fn all<M: Clone + Send + 'static>(source: Source<M>) -> Vec<M> {
    let loader = Loader::new(Device::cpu().unwrap(), source, options(2, 2, UploadMode::Off)).unwrap();
    loader.flat_map(|batch| batch.unwrap().synchronize().unwrap().meta).collect()
}

fn below(root: &Path, paths: &[&str]) -> Vec<PathBuf> {
    paths.iter().map(|path| root.join(path)).collect()
}

#[test]
fn folders_below_are_searched_in_order() {
    let folder = Folder::new("tree");
    let root = folder.0.as_path();
    for path in ["b/2.ppm", "b/10.PPM", "b.ppm", "a/z/deep.ppm", "a/y.ppm", "a/no.txt", ".git/x.ppm", "b/.x.ppm"] {
        write(root, path);
    }
    std::fs::create_dir(root.join("dir.ppm")).unwrap();
    let listed = list_folder(root, &["ppm"], false);
    assert_eq!((listed.files, listed.other_files), (below(root, &["b.ppm"]), vec![]));
    assert_eq!((listed.hidden, listed.subfolders), (below(root, &[".git"]), below(root, &["a", "b", "dir.ppm"])));
    let listed = list_folder(root, &["ppm"], true);
    assert_eq!((listed.other_files, listed.subfolders), (below(root, &["a/no.txt"]), vec![]));
    assert_eq!(listed.hidden, below(root, &[".git", "b/.x.ppm"]));
    assert_eq!(list_folder(root.join("no"), &["ppm"], true).unreadable[0].path, root.join("no"));
    let expected = below(root, &["a/y.ppm", "a/z/deep.ppm", "b/10.PPM", "b/2.ppm", "b.ppm"]);
    assert_eq!(all(Source::folders(root, &["ppm"], read_ppm).unwrap()), expected);
    assert_eq!(all(Source::folder(root, &["ppm"], read_ppm).unwrap()), below(root, &["b.ppm"]));
    let none = Source::folders(root, &["gif"], read_ppm).unwrap_err().to_string();
    assert!(none.contains("*.gif") && none.contains("there is none)"), "{none}");
    let none = Source::folder(root.join("a/z"), &["gif"], read_ppm).unwrap_err().to_string();
    assert!(none.contains("there is none)"), "{none}");
    let none = Source::folder(root.join("a"), &["gif"], read_ppm).unwrap_err().to_string();
    assert!(none.contains("there is none; `Source::folders` also searches its subfolders"), "{none}");
}

/// A link back to a folder above would never end, and each folder comes once.
#[cfg(unix)]
#[test]
fn links_that_lead_in_a_circle_end() {
    use std::os::unix::fs::symlink;
    let (folder, other) = (Folder::new("circle"), Folder::new("circle-other"));
    let (root, other) = (folder.0.as_path(), other.0.as_path());
    write(root, "a/1.ppm");
    write(other, "2.ppm");
    symlink(root, root.join("a/up")).unwrap();
    symlink(root.join("a"), root.join("b")).unwrap();
    symlink(root.join("c"), root.join("c")).unwrap(); // to itself
    symlink(other, root.join("d")).unwrap();
    symlink(root, other.join("back")).unwrap();
    symlink(root.join("a/1.ppm"), root.join("e.ppm")).unwrap();
    symlink("nowhere", root.join("f.ppm")).unwrap();
    let samples = Source::folders(root, &["ppm"], read_ppm).unwrap();
    let options = options(9, 2, UploadMode::Off).with_skip_errors(true);
    let mut loader = Loader::new(Device::cpu().unwrap(), samples, options).unwrap();
    let batch = loader.next().unwrap().unwrap().synchronize().unwrap();
    // The link without a target is a sample that fails.
    assert_eq!(batch.meta, below(root, &["a/1.ppm", "d/2.ppm", "e.ppm"]));
    assert_eq!(batch.failed, [3]);
}

#[test]
fn each_subfolder_is_a_class() {
    let folder = Folder::new("classes");
    let root = folder.0.as_path();
    for path in ["dog/2.ppm", "dog/1.ppm", "ant/old/9.ppm", "ant/b.ppm", ".x/1.ppm", "loose.ppm"] {
        write(root, path);
    }
    std::fs::create_dir(root.join("cat")).unwrap(); // without files
    let found = Source::image_folder(root, &["ppm"], read_ppm).unwrap();
    assert_eq!(found.classes, ["ant", "cat", "dog"]);
    let (labels, paths): (Vec<_>, Vec<_>) = all(found.source).into_iter().map(|file| (file.label, file.path)).unzip();
    assert_eq!(labels, [0, 0, 2, 2]);
    assert_eq!(paths, below(root, &["ant/b.ppm", "ant/old/9.ppm", "dog/1.ppm", "dog/2.ppm"]));
    let none = Source::image_folder(root.join("dog"), &["ppm"], read_ppm).unwrap_err().to_string();
    assert!(none.contains("there is none in its subfolders"), "{none}");
}
