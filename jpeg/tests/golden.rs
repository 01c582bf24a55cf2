//! The decoder against the pixels of libjpeg-turbo, on every device.

use std::fs;
use std::path::{Path, PathBuf};

use thalweg_jpeg::{JpegError, Unsupported};

use crate::support::{decode, golden_folder, on_each_device};

/// The files with their names, in alphabetical order.
fn golden() -> Vec<(String, Vec<u8>, PathBuf)> {
    let mut paths: Vec<_> = fs::read_dir(golden_folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "jpg"));
    paths.sort();
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    paths.iter().map(|path| (name(path), fs::read(path).unwrap(), path.with_extension("safetensors"))).collect()
}

#[test]
fn all_files_at_once_equal_libjpeg_turbo() {
    let golden = golden();
    assert!(golden.len() > 40, "the golden files are missing");
    let files: Vec<&[u8]> = golden.iter().map(|(_, file, _)| &file[..]).collect();
    on_each_device(|stream| {
        let mut wrong = Vec::new();
        for ((name, _, expected), decoded) in golden.iter().zip(decode(stream, &files)) {
            match (name.split('-').nth(1), decoded) {
                (Some("arithmetic"), Err(JpegError::Unsupported(Unsupported::Arithmetic))) => {}
                (_, Err(error)) => wrong.push(format!("{name}: {error}")),
                (_, Ok((image, bytes))) => {
                    let file = fs::read(expected).unwrap();
                    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
                    let rgb = tensors.tensor("rgb").unwrap();
                    let shape = [image.height as usize, image.width as usize, 3];
                    if rgb.shape() != shape {
                        wrong.push(format!("{name}: {shape:?} instead of {:?}", rgb.shape()));
                    } else {
                        let different = rgb.data().iter().zip(&bytes).filter(|(a, b)| a != b).count();
                        let first = rgb.data().iter().zip(&bytes).position(|(a, b)| a != b);
                        if let Some(i) = first {
                            wrong.push(format!("{name}: {different} of {} values, first at {i}", bytes.len()));
                        }
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} files are wrong:\n{}", wrong.len(), wrong.join("\n"));
    });
}

#[test]
fn the_reference_equals_libjpeg_turbo() {
    let mut compared = 0;
    for (name, file, expected) in golden() {
        if ["progressive", "arithmetic"].iter().any(|kind| name.contains(kind)) || name.starts_with("exif") {
            continue;
        }
        let expected = fs::read(expected).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&expected).unwrap();
        let rgb = tensors.tensor("rgb").unwrap();
        let (height, width, pixels) = crate::reference::decode(&file);
        assert_eq!(rgb.shape(), [height, width, 3], "{name}");
        assert!(rgb.data() == pixels, "{name}");
        compared += 1;
    }
    assert!(compared > 35, "{compared} files");
}
