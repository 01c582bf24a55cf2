//! Reading photographs and safetensors files.
//!
//! Paths are those in the repository. cargo runs tests in the folder of their package, and a bundle
//! without cargo in that of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::oracle::Image;
use safetensors::{Dtype, SafeTensors};

/// A dense row-major tensor.
#[derive(Debug)]
pub struct Tensor<T> {
    pub shape: Vec<usize>,
    pub data: Vec<T>,
}

/// The `f32`, `f64` and `i32` tensors of one safetensors file, by name.
#[derive(Debug)]
pub struct Tensors {
    path: PathBuf,
    f32: BTreeMap<String, Tensor<f32>>,
    f64: BTreeMap<String, Tensor<f64>>,
    i32: BTreeMap<String, Tensor<i32>>,
}

impl Tensors {
    /// Reads a whole file.
    ///
    /// # Panics
    /// If it cannot be read, is no safetensors file, or holds another element type.
    pub fn read(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let bytes = read(path);
        let file = SafeTensors::deserialize(&bytes)
            .unwrap_or_else(|e| panic!("{} is no safetensors file: {e}", path.display()));
        let mut all = Self { path: path.to_owned(), f32: BTreeMap::new(), f64: BTreeMap::new(), i32: BTreeMap::new() };
        for (name, view) in file.tensors() {
            let shape = view.shape().to_vec();
            let words = view.data().as_chunks::<4>().0.iter().copied();
            match view.dtype() {
                Dtype::F32 => {
                    let data = words.map(f32::from_le_bytes).collect();
                    all.f32.insert(name, Tensor { shape, data });
                }
                Dtype::I32 => {
                    let data = words.map(i32::from_le_bytes).collect();
                    all.i32.insert(name, Tensor { shape, data });
                }
                Dtype::F64 => {
                    let data = view.data().as_chunks::<8>().0.iter().copied().map(f64::from_le_bytes).collect();
                    all.f64.insert(name, Tensor { shape, data });
                }
                other => panic!("{}: `{name}` holds {other:?}, not F32, F64 or I32", path.display()),
            }
        }
        all
    }

    /// The names of all tensors, `f32` ones first.
    pub fn names(&self) -> Vec<&str> {
        self.f32.keys().chain(self.i32.keys()).map(String::as_str).collect()
    }

    #[track_caller]
    pub fn f32(&self, name: &str) -> &Tensor<f32> {
        let tensor = self.f32.get(name);
        tensor.unwrap_or_else(|| panic!("{} has no f32 tensor `{name}`", self.path.display()))
    }

    #[track_caller]
    pub fn f64(&self, name: &str) -> &Tensor<f64> {
        let tensor = self.f64.get(name);
        tensor.unwrap_or_else(|| panic!("{} has no f64 tensor `{name}`", self.path.display()))
    }

    #[track_caller]
    pub fn i32(&self, name: &str) -> &Tensor<i32> {
        let tensor = self.i32.get(name);
        tensor.unwrap_or_else(|| panic!("{} has no i32 tensor `{name}`", self.path.display()))
    }
}

/// Decodes an 8-bit RGB PNG.
///
/// # Panics
/// If it cannot be read or is any other kind of image.
pub fn read_png(path: impl AsRef<Path>) -> Image {
    let path = path.as_ref();
    let bytes = read(path);
    let decode = || {
        let mut reader = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info()?;
        let size = reader.output_buffer_size().ok_or(png::DecodingError::LimitsExceeded)?;
        let mut rgb = vec![0; size];
        let info = reader.next_frame(&mut rgb)?;
        Ok::<_, png::DecodingError>((info, rgb))
    };
    let (info, rgb) = decode().unwrap_or_else(|e| panic!("{} does not decode: {e}", path.display()));
    assert_eq!(
        (info.color_type, info.bit_depth),
        (png::ColorType::Rgb, png::BitDepth::Eight),
        "{} is not 8-bit RGB",
        path.display()
    );
    Image { height: info.height as usize, width: info.width as usize, rgb }
}

/// Returns the path of a file or folder of the repository from the current directory, which is the
/// repository or a folder in it.
///
/// # Panics
/// If it is in neither.
#[track_caller]
pub fn repository(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    let found = [Path::new("..").join(path), path.to_owned()].into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| {
        let current = std::env::current_dir().unwrap_or_default();
        panic!("{} is neither in {} nor in the folder above", path.display(), current.display())
    })
}

#[track_caller]
fn read(path: &Path) -> Vec<u8> {
    let path = repository(path);
    fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
}
