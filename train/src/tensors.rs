//! Named tensors on the host, and the safetensors files that hold them.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};
use serde_json::Value;

use crate::error::{Error, Result, room};

/// A tensor on the host, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The extents.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Data,
}

/// The elements of a [`Tensor`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Data {
    /// Numbers.
    F32(Vec<f32>),
    /// Indices and labels.
    I32(Vec<i32>),
}

/// Named tensors, and the metadata of their file.
///
/// ```
/// use thalweg_train::Tensors;
///
/// let mut tensors = Tensors::default();
/// tensors.insert("bias", &[2], vec![0.5f32, 1.0]);
/// let path = std::env::temp_dir().join(format!("thalweg-tensors-{}.safetensors", std::process::id()));
/// tensors.save(&path)?;
/// assert_eq!(Tensors::load(&path)?.tensors, tensors.tensors);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    /// The tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// The metadata of the file.
    pub metadata: BTreeMap<String, String>,
    path: PathBuf,
}

impl Tensor {
    /// Returns whether there are as many elements as the shape says.
    fn is_whole(&self) -> bool {
        elements(&self.shape) == Some(self.data.len())
    }
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::I32(data) => data.len(),
        }
    }
}

/// Returns the number of elements of a shape, or nothing if it is no `usize`.
pub(crate) fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent))
}

impl From<Vec<f32>> for Data {
    fn from(data: Vec<f32>) -> Self {
        Self::F32(data)
    }
}
impl From<Vec<i32>> for Data {
    fn from(data: Vec<i32>) -> Self {
        Self::I32(data)
    }
}

impl Tensors {
    /// Adds a tensor, or replaces the one of this name. `data` is row-major.
    ///
    /// # Panics
    /// The number of elements is not the product of the extents.
    pub fn insert(&mut self, name: impl Into<String>, shape: &[usize], data: impl Into<Data>) {
        let tensor = Tensor { shape: shape.to_vec(), data: data.into() };
        assert!(tensor.is_whole(), "a tensor has as many elements as its shape says");
        self.tensors.insert(name.into(), tensor);
    }

    /// Reads a safetensors file. Numbers of 16 and 64 bits become `f32`, and integers of 64 bits
    /// `i32`.
    ///
    /// # Errors
    /// The file cannot be read, is no safetensors file, or has other elements.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|source| Error::File { path: path.into(), source })?;
        let wrong = |what: String| Error::Format { path: path.into(), what };
        let (_, header) =
            SafeTensors::read_metadata(&bytes).map_err(|error| wrong(format!("no safetensors file: {error}")))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| wrong(format!("no safetensors file: {error}")))?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            let data = numbers(&view)?.ok_or_else(|| wrong(format!("`{name}` has elements of {:?}", view.dtype())))?;
            tensors.insert(name, Tensor { shape: view.shape().to_vec(), data });
        }
        let metadata = header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(Self { tensors, metadata, path: path.into() })
    }

    /// Writes the tensors and the metadata as a safetensors file. It is written beside its place
    /// and then renamed, so that the place always has a whole file: the old one until the new one
    /// is on the disk.
    ///
    /// # Errors
    /// A tensor does not have as many elements as its shape says, or the file cannot be written.
    /// The old one is then still there.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if let Some((name, Tensor { shape, data })) = self.tensors.iter().find(|(_, tensor)| !tensor.is_whole()) {
            let what = format!("`{name}` is {shape:?} and has {} elements", data.len());
            return Err(Error::Format { path: path.into(), what });
        }
        let views = self.tensors.iter().map(|(name, tensor)| (name.as_str(), View(tensor)));
        let bytes = serialize(views, &self.metadata)
            .map_err(|error| Error::Format { path: path.into(), what: error.to_string() })?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.new", std::process::id()));
        let beside = PathBuf::from(beside);
        let written = File::create(&beside)
            .and_then(|mut file| {
                file.write_all(&bytes)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&beside, path));
        written.map_err(|source| {
            // What was written so far helps nobody. If it cannot be removed, the first error says
            // why.
            let _ = fs::remove_file(&beside);
            Error::File { path: path.into(), source }
        })
    }

    /// Returns the numbers of a tensor of this shape.
    ///
    /// # Errors
    /// There is no such tensor, or it has another shape or other elements.
    pub fn f32(&self, name: &str, shape: &[usize]) -> Result<&[f32]> {
        match self.tensors.get(name) {
            Some(tensor @ Tensor { shape: found, data: Data::F32(data) }) if found == shape && tensor.is_whole() => {
                Ok(data)
            }
            found => Err(self.unfit(name, shape, found)),
        }
    }

    /// Returns the integers of a tensor with one dimension.
    ///
    /// # Errors
    /// There is no such tensor, or it has more dimensions or other elements.
    pub fn i32(&self, name: &str) -> Result<&[i32]> {
        match self.tensors.get(name) {
            Some(Tensor { shape, data: Data::I32(data) }) if shape.len() == 1 => Ok(data),
            found => Err(self.unfit(name, &[], found)),
        }
    }

    /// Returns the extents of a tensor.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        match self.tensors.get(name) {
            Some(tensor) => Ok(&tensor.shape),
            None => Err(self.unfit(name, &[], None)),
        }
    }

    /// Returns the extents of a matrix. A file may say any extent beside one that is 0, so an
    /// extent that counts must be compared with that of another tensor: `columns`, if it is known.
    pub(crate) fn matrix(&self, name: &str, columns: Option<usize>) -> Result<[usize; 2]> {
        match self.shape(name)? {
            &[a, b] if columns.is_none_or(|columns| columns == b) => Ok([a, b]),
            shape => {
                let columns = columns.map_or("columns".to_owned(), |columns| columns.to_string());
                Err(self.format_error(format!("`{name}` is {shape:?}, and not [rows, {columns}]")))
            }
        }
    }

    /// Returns a value of the metadata, or nothing if there is no such key.
    ///
    /// # Errors
    /// The value cannot be parsed.
    pub fn value<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>> {
        self.metadata
            .get(key)
            .map(|text| text.parse().map_err(|_| self.format_error(format!("the metadata has `{key}` = `{text}`"))))
            .transpose()
    }

    /// Makes an error that says what is wrong with this file.
    #[must_use]
    pub fn format_error(&self, what: String) -> Error {
        Error::Format { path: self.path.clone(), what }
    }

    fn unfit(&self, name: &str, shape: &[usize], found: Option<&Tensor>) -> Error {
        self.format_error(match found {
            None => format!("there is no tensor `{name}`"),
            Some(Tensor { shape: found, data }) => {
                let kind = if matches!(data, Data::F32(_)) { "f32" } else { "i32" };
                format!("`{name}` is {kind} {found:?} of {} numbers, and not as expected ({shape:?})", data.len())
            }
        })
    }
}

/// Returns the numbers of a tensor, or nothing if they are of a type that is not read.
fn numbers(view: &TensorView<'_>) -> Result<Option<Data>> {
    let bytes = view.data();
    fn map<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
        let mut numbers = room(bytes.len() / N)?;
        numbers.extend(bytes.as_chunks().0.iter().map(|&b| f(b)));
        Ok(numbers)
    }
    Ok(Some(match view.dtype() {
        Dtype::F32 => Data::F32(map(bytes, f32::from_le_bytes)?),
        Dtype::F64 => Data::F32(map(bytes, |b| f64::from_le_bytes(b) as f32)?),
        Dtype::BF16 => Data::F32(map(bytes, |b| thalweg::simt::bf16::from_bits(u16::from_le_bytes(b)).to_f32())?),
        Dtype::F16 => Data::F32(map(bytes, |b| thalweg::simt::f16::from_bits(u16::from_le_bytes(b)).to_f32())?),
        Dtype::I32 => Data::I32(map(bytes, i32::from_le_bytes)?),
        Dtype::I64 => Data::I32(map(bytes, |b| i64::from_le_bytes(b) as i32)?),
        _ => return Ok(None),
    }))
}

/// Returns a safetensors file. Equal tensors and metadata give equal bytes.
fn serialize<'n, V: safetensors::View>(
    tensors: impl IntoIterator<Item = (&'n str, V)>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, SafeTensorError> {
    let unordered: HashMap<_, _> = metadata.clone().into_iter().collect();
    let mut file = safetensors::serialize(tensors, (!unordered.is_empty()).then_some(unordered))?;
    sort_header(&mut file)?;
    Ok(file)
}

/// Sorts the header by name. In a new file, the metadata has the order of a hash map, which is
/// another one in each run.
fn sort_header(file: &mut [u8]) -> serde_json::Result<()> {
    let Some((&mut len, rest)) = file.split_first_chunk_mut() else { return Ok(()) };
    let header = &mut rest[..u64::from_le_bytes(len) as usize];
    let sorted: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_slice(header)?;
    serde_json::to_writer(header, &sorted) // the same length, so the spaces behind it stay
}

/// A tensor as it is written.
struct View<'a>(&'a Tensor);

impl safetensors::View for View<'_> {
    fn dtype(&self) -> Dtype {
        match self.0.data {
            Data::F32(_) => Dtype::F32,
            Data::I32(_) => Dtype::I32,
        }
    }
    fn shape(&self) -> &[usize] {
        &self.0.shape
    }
    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        let bytes: Vec<u8> = match &self.0.data {
            Data::F32(data) => data.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Data::I32(data) => data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        bytes.into()
    }
    fn data_len(&self) -> usize {
        4 * self.0.data.len()
    }
}
