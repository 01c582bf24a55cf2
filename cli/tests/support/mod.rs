//! Helpers for the tests of the command: they run it, read its results and make files for it.
//!
//! The tests run the binary that cargo built, or the one that `THALWEG_BIN` names. They find
//! photographs and golden files from the folder of the package or of the repository, so they also
//! run from a bundle without cargo.

#![allow(dead_code)] // no test file uses all helpers

pub(crate) mod bars;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

/// Returns the command, ready for arguments. `THALWEG_TEST_DEVICE` is the device of the tests that
/// name none: a GPU takes half a second to start, hundreds of times.
pub(crate) fn thalweg() -> Command {
    let mut command = Command::new(binary());
    if let Some(device) = std::env::var_os("THALWEG_TEST_DEVICE") {
        command.env("THALWEG_DEVICE", device);
    }
    command
}

pub(crate) fn binary() -> PathBuf {
    std::env::var_os("THALWEG_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_thalweg")), PathBuf::from)
}

/// Returns the path of a file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    let found = [Path::new("..").join(path), PathBuf::from(path)].into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{path} is neither in .. nor in the current folder"))
}

pub(crate) fn photo(name: &str) -> PathBuf {
    repository("assets/photos").join(name)
}

/// The output and the exit code of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn of(command: &mut Command) -> Self {
        // A test may have just copied the program. If another test forked a child meanwhile, the
        // child holds the descriptor of the copy until it calls `exec`, and the copy is busy until
        // then.
        let output = (0..500).find_map(|_| match command.output() {
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(std::time::Duration::from_millis(10));
                None
            }
            output => Some(output),
        });
        Self::from(output.expect("the command is not busy").expect("the command starts"))
    }

    /// Checks the exit code, and that standard error contains each of `words`.
    #[track_caller]
    pub(crate) fn expect(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in {self:#?}");
        }
        assert!(!self.err.contains("panicked"), "{self:#?}");
        self
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("messages are UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// A folder for inputs and one for results of `thalweg tokens`. Both are deleted when it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) folder: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("in")).expect("a folder in it");
        Self { folder }
    }

    pub(crate) fn input(&self, name: &str) -> PathBuf {
        self.folder.path().join("in").join(name)
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// Writes an input file.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.input(name);
        fs::write(&path, bytes).expect("an input file");
        path
    }

    pub(crate) fn tokens<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Run {
        Run::of(thalweg().arg("tokens").args(arguments).arg("--out").arg(self.out()))
    }

    /// Returns the names of the files in the folder of results, sorted.
    pub(crate) fn results(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.out()) else { return Vec::new() };
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    pub(crate) fn read(&self, stem: &str) -> Tokens {
        Tokens::read(&self.out().join(format!("{stem}.safetensors")))
    }

    /// Returns the height and width of an image, and the 8-bit pixels that the command saw.
    pub(crate) fn pixels(&self, path: &Path) -> (usize, usize, Vec<[u8; 3]>) {
        self.tokens([path.as_os_str(), "--textures".as_ref(), "--budget=64".as_ref()]).expect(0, &[]);
        let tokens = self.read(path.file_stem().and_then(OsStr::to_str).expect("a stem"));
        let (shape, planes) = tokens.f32("textures");
        let (height, width) = (shape[1], shape[2]);
        let at = |plane: usize, i: usize| (planes[plane * height * width + i] * 255.0).round() as u8;
        (height, width, (0..height * width).map(|i| [at(0, i), at(1, i), at(2, i)]).collect())
    }
}

/// The tensors of a file, as the safetensors crate reads them.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) metadata: BTreeMap<String, String>,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Tokens {
    #[track_caller]
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a safetensors header");
        let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let owned = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        };
        Self {
            metadata: header.metadata().clone().unwrap_or_default().into_iter().collect(),
            tensors: tensors.tensors().into_iter().map(owned).collect(),
        }
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    /// Returns the bytes of all tensors.
    pub(crate) fn bytes(&self) -> Vec<(&str, &[u8])> {
        self.tensors.iter().map(|(name, (_, _, bytes))| (name.as_str(), &bytes[..])).collect()
    }

    #[track_caller]
    pub(crate) fn f32(&self, name: &str) -> (&[usize], Vec<f32>) {
        let (dtype, shape, bytes) = &self.tensors[name];
        assert_eq!(*dtype, Dtype::F32, "{name}");
        (shape, bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// Returns the shape and the bits of a tensor of 16-bit floats.
    #[track_caller]
    pub(crate) fn halves(&self, name: &str, format: Dtype) -> (&[usize], Vec<u16>) {
        let (dtype, shape, bytes) = &self.tensors[name];
        assert_eq!(*dtype, format, "{name}");
        (shape, bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect())
    }

    #[track_caller]
    pub(crate) fn f64(&self, name: &str) -> (&[usize], Vec<f64>) {
        let (dtype, shape, bytes) = &self.tensors[name];
        assert_eq!(*dtype, Dtype::F64, "{name}");
        (shape, bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect())
    }

    #[track_caller]
    pub(crate) fn i32(&self, name: &str) -> (&[usize], Vec<i32>) {
        let (dtype, shape, bytes) = &self.tensors[name];
        assert_eq!(*dtype, Dtype::I32, "{name}");
        (shape, bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }
}

/// Makes an image in which every pixel differs from its neighbors.
pub(crate) fn pattern(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        Rgb([(x * 37 + y * 11) as u8, (x * 5 + y * 71) as u8, (x * 13 + y * 29) as u8])
    })
}

pub(crate) fn encode(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).expect("an image in memory");
    bytes.into_inner()
}

pub(crate) fn png(image: impl Into<DynamicImage>) -> Vec<u8> {
    encode(&image.into(), ImageFormat::Png)
}

pub(crate) fn jpeg(image: impl Into<DynamicImage>) -> Vec<u8> {
    encode(&image.into(), ImageFormat::Jpeg)
}
