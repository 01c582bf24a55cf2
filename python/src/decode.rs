//! `decode_jpeg`: JPEG files in memory to RGB.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};
use rayon::prelude::*;
use thalweg::{Device, DeviceBuffer, DeviceSlice, LiveBrand, On, Size, Stream};
use thalweg_dlpack::Memory;
use thalweg_jpeg::{Decoder, HostDecoder, JpegError, Outline, ReservedFile, outline};
use thalweg_loader::decode_photo_to_vec;

use crate::errors::{of_device, of_jpeg};
use crate::place::{Job, Place};
use crate::tensor::{Dtype, Tensor};
use crate::wait;

/// The bytes of a file: those of a `bytes` object, or a copy of what may change.
pub(crate) enum Bytes {
    Python(PyBackedBytes),
    Copied(Vec<u8>),
}

impl Bytes {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.extract::<PyBackedBytes>() {
            return Ok(Self::Python(bytes));
        }
        if object.is_instance_of::<PyString>() {
            let text = "a path, expected the bytes of a file: open(path, \"rb\").read(), or a Loader for many files";
            return Err(PyTypeError::new_err(text));
        }
        let py = object.py();
        match PyBuffer::<u8>::get(object) {
            Ok(buffer) => Ok(Self::Copied(buffer.to_vec(py)?)),
            Err(_) => Err(crate::place::not_an_image(object, "bytes, or another buffer of uint8")),
        }
    }

    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Self::Python(bytes) => bytes,
            Self::Copied(bytes) => bytes,
        }
    }
}

/// An image in the memory of a batch: its first byte, its rows and its columns.
type Found = (usize, u32, u32);

/// Lays images one after another, each from a multiple of 16 bytes on. Returns the total.
fn lay(outlines: &[Result<Outline, JpegError>]) -> (Vec<usize>, usize) {
    let mut end = 0;
    let starts = outlines.iter().map(|outline| {
        let start = end;
        if let Ok(Outline { height, width, .. }) = outline {
            end = (start + 3 * *height as usize * *width as usize).next_multiple_of(16);
        }
        start
    });
    (starts.collect(), end)
}

/// Decodes files on the host, into one memory.
pub(crate) fn on_host(files: &[Bytes]) -> PyResult<(Memory, usize, Vec<Result<Found, JpegError>>)> {
    let outlines: Vec<_> = files.iter().map(|file| outline(file.get())).collect();
    let (starts, total) = lay(&outlines);
    let mut pixels = Vec::new();
    let room = pixels.try_reserve_exact(total);
    room.map_err(|_| of_device(thalweg::Error::OutOfMemory { device: "the host".into(), wanted: total }))?;
    pixels.resize(total, 0);
    let mut parts = Vec::with_capacity(files.len());
    let mut rest = &mut pixels[..];
    for ((file, outline), start) in files.iter().zip(&outlines).zip(&starts) {
        let bytes = outline.map_or(0, |o| 3 * o.height as usize * o.width as usize);
        let (own, others) = std::mem::take(&mut rest).split_at_mut(bytes.next_multiple_of(16).min(total - start));
        parts.push((file, *outline, *start, &mut own[..bytes]));
        rest = others;
    }
    let decode = |decoder: &mut HostDecoder,
                  (file, outline, start, to): (&Bytes, Result<Outline, _>, usize, &mut [u8])| {
        let Outline { height, width, .. } = outline?;
        decoder.decode(file.get(), to)?;
        Ok((start, height, width))
    };
    let found = wait::with_threads(|| parts.into_par_iter().map_init(HostDecoder::new, decode).collect())?;
    Ok((Memory::new(pixels), total, found))
}

/// Decoders that no call uses. They keep memory for later batches.
static DECODERS: Mutex<Vec<(Device, Decoder)>> = Mutex::new(Vec::new());

/// A decoder on loan.
struct Lent(Device, Option<Decoder>);

impl Lent {
    fn of(device: Device) -> Self {
        let mut free = DECODERS.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free.iter().position(|(of, _)| *of == device).map(|i| free.swap_remove(i).1);
        Self(device, Some(found.unwrap_or_else(|| Decoder::new(device))))
    }

    fn get(&mut self) -> &mut Decoder {
        self.1.get_or_insert_with(|| Decoder::new(self.0))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(decoder), Ok(())) = (self.1.take(), self.0.ensure_usable()) {
            DECODERS.lock().unwrap_or_else(PoisonError::into_inner).push((self.0, decoder));
        }
    }
}

/// Decoding by the kernels, with the host's decoder for the files that they leave to it.
struct OnDevice {
    files: Arc<Vec<Bytes>>,
    outlines: Vec<Result<Outline, JpegError>>,
    fallback: bool,
}

impl Job<u8> for OnDevice {
    type Output = Vec<Result<Found, JpegError>>;

    fn enqueue<S: LiveBrand>(self, stream: &Stream<S>, to: &mut DeviceSlice<S, u8>) -> PyResult<Self::Output> {
        let mut decoder = Lent::of(stream.device());
        let (starts, _) = lay(&self.outlines);
        let mut reports = Vec::new();
        for call in self.calls() {
            let (mut files, mut end) = (Vec::with_capacity(call.len()), starts[call[0]]);
            for &i in &call {
                let prefix = starts[i] - end;
                end = starts[i] + self.bytes(i).next_multiple_of(16);
                files.push(ReservedFile { prefix, file: self.files[i].get() });
            }
            let mut enqueue = || {
                let batch = decoder.get().read_with_reserved_prefix(&files)?;
                decoder.get().decode_into(stream, batch, to.slice_mut(starts[call[0]]..)?)
            };
            reports.push((enqueue().map_err(of_device)?, call));
        }
        let place = |(start, outline): (&usize, &Result<Outline, _>)| match *outline {
            Ok(Outline { height, width, host_only: None, .. }) => Ok((*start, height, width)),
            Ok(Outline { host_only: Some(kind), .. }) => Err(JpegError::Unsupported(kind)),
            Err(error) => Err(error),
        };
        let mut found: Vec<Result<Found, JpegError>> = starts.iter().zip(&self.outlines).map(place).collect();
        for (report, call) in reports {
            let report = wait::for_event(report)?;
            for (n, i) in call.into_iter().enumerate() {
                if let Err(error) = report.image(n) {
                    found[i] = Err(error);
                }
            }
        }
        for i in 0..found.len() {
            if let (Err(JpegError::Unsupported(kind)), Ok(outline), true) = (found[i], self.outlines[i], self.fallback)
                && kind.on_host()
            {
                found[i] = self.by_host(i, outline, starts[i], stream, to)?;
            }
        }
        Ok(found)
    }
}

/// The most pixels that one call of the decoder takes. The host reads the files of the next call
/// while the device decodes, and the decoder needs less memory of its own.
const MOST_PIXELS: usize = 1 << 27;

impl OnDevice {
    /// The bytes of an image.
    fn bytes(&self, index: usize) -> usize {
        self.outlines[index].map_or(0, |o| 3 * o.height as usize * o.width as usize)
    }

    /// The files of each call of the decoder.
    fn calls(&self) -> Vec<Vec<usize>> {
        let (mut calls, mut sum) = (Vec::<Vec<usize>>::new(), 0);
        for i in 0..self.files.len() {
            if !matches!(self.outlines[i], Ok(Outline { host_only: None, .. })) {
                continue;
            }
            sum += self.bytes(i) / 3;
            match calls.last_mut() {
                Some(call) if sum <= MOST_PIXELS => call.push(i),
                _ => {
                    sum = self.bytes(i) / 3;
                    calls.push(vec![i]);
                }
            }
        }
        calls
    }

    /// Decodes a file on the host, and copies the pixels to where the device's would be.
    fn by_host<S: LiveBrand>(
        &self,
        index: usize,
        Outline { height, width, .. }: Outline,
        start: usize,
        stream: &Stream<S>,
        to: &mut DeviceSlice<S, u8>,
    ) -> PyResult<Result<Found, JpegError>> {
        let bytes = 3 * height as usize * width as usize;
        let mut pixels = stream.device().pinned::<u8>(bytes).map_err(of_device)?;
        if let Err(error) = HostDecoder::new().decode(self.files[index].get(), &mut pixels) {
            return Ok(Err(error));
        }
        let copied = || {
            let pixels = stream.bind(pixels).map_err(|returned| returned.error)?;
            stream.copy_to_device(&pixels, to.slice_mut(start..start + bytes)?)
        };
        copied().map_err(of_device)?;
        Ok(Ok((start, height, width)))
    }
}

/// Returns the memory of a batch, and for each file the place of its image or an exception.
type Decoded = (Py<PyAny>, Vec<Result<Found, PyErr>>);

/// Decodes files. Without a place the host does it, and opens no device.
pub(crate) fn decode(
    py: Python<'_>,
    files: Arc<Vec<Bytes>>,
    place: Option<&Place>,
    stream: Option<usize>,
    fallback: bool,
) -> PyResult<Decoded> {
    let (memory, found) = match place {
        None => {
            let (memory, total, found) = py.detach(|| on_host(&files))?;
            (Py::new(py, Tensor::host(memory, vec![total], Dtype::U8))?.into_any(), found)
        }
        Some(place) => {
            let outlines: Vec<_> = py.detach(|| files.iter().map(|file| outline(file.get())).collect());
            let (_, total) = lay(&outlines);
            let job = OnDevice { files, outlines, fallback };
            place.run(py, stream, &[total], Dtype::U8, job)?
        }
    };
    let exceptions = (0..).zip(found).map(|(i, found)| found.map_err(|error| of_jpeg(i, error)));
    Ok((memory, exceptions.collect()))
}

/// Decodes JPEG files, to a tensor with all pixels and the place of each image in it.
#[pyfunction]
#[pyo3(signature = (files, place=None, stream=None, fallback=true))]
fn decode_jpeg(
    py: Python<'_>,
    files: Vec<Bound<'_, PyAny>>,
    place: Option<&Place>,
    stream: Option<usize>,
    fallback: bool,
) -> PyResult<(Py<PyAny>, Vec<Py<PyAny>>)> {
    let files: Vec<Bytes> = files.iter().map(Bytes::of).collect::<PyResult<_>>()?;
    let (memory, found) = decode(py, Arc::new(files), place, stream, fallback)?;
    let list = found.into_iter().map(|found| match found {
        Ok(found) => Ok(found.into_pyobject(py)?.into_any().unbind()),
        Err(error) => Ok(error.into_value(py).into_any()),
    });
    Ok((memory, list.collect::<PyResult<_>>()?))
}

/// Decodes one photograph on the host: a JPEG, a PNG or a WebP.
#[pyfunction]
fn decode_photo(py: Python<'_>, file: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let file = Bytes::of(file)?;
    let (size, pixels) = py
        .detach(|| decode_photo_to_vec(file.get()).map_err(|error| error.to_string()))
        .map_err(|text| crate::errors::of_file(0, None, &text))?;
    let shape = vec![size.height as usize, size.width as usize, 3];
    Ok(Tensor::host(Memory::new(pixels), shape, Dtype::U8))
}

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decode_jpeg, module)?)?;
    module.add_function(wrap_pyfunction!(decode_photo, module)?)
}

/// The pixels of an image that is on the host: contiguous `uint8` of [height, width, 3].
pub(crate) struct HostImage {
    pub(crate) height: u32,
    pub(crate) width: u32,
    buffer: PyBuffer<u8>,
}

impl HostImage {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)
            .map_err(|_| crate::place::not_an_image(object, "an array of uint8 with the shape [height, width, 3]"))?;
        let side = |n: usize| u32::try_from(n).ok();
        match *buffer.shape() {
            [height, width, 3] if buffer.is_c_contiguous() => {
                if let (Some(height), Some(width)) = (side(height), side(width)) {
                    return Ok(Self { height, width, buffer });
                }
            }
            [_, _, 3] => {
                let text = "an image that is not contiguous: pass a copy, such as np.ascontiguousarray(image)";
                return Err(PyValueError::new_err(text));
            }
            _ => {}
        }
        let shape = buffer.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        Err(PyValueError::new_err(format!("an image has the shape [height, width, 3], not [{shape}]")))
    }

    /// Copies the pixels, while the caller is attached to the interpreter.
    pub(crate) fn copy_to(&self, py: Python<'_>, to: &mut [u8]) -> PyResult<()> {
        self.buffer.copy_to_slice(py, to)
    }
}

/// An image that a caller gave: an array, or a file in memory.
pub(crate) enum Image {
    Array(HostImage),
    File(Bytes),
    Pixels(Size, Vec<u8>),
}

/// Reads what a caller gave as images.
pub(crate) fn images(objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<Image>> {
    let one = |object: &Bound<'_, PyAny>| match object.is_instance_of::<PyBytes>() {
        true => Bytes::of(object).map(Image::File),
        false => HostImage::of(object).map(Image::Array),
    };
    objects.iter().map(one).collect()
}

/// Decodes the files among images on the host: JPEG, PNG and WebP.
pub(crate) fn decode_files(py: Python<'_>, images: Vec<Image>) -> PyResult<Vec<Image>> {
    if !images.iter().any(|image| matches!(image, Image::File(_))) {
        return Ok(images);
    }
    // An array stays on this thread, because it belongs to the interpreter.
    let (mut files, mut others) = (Vec::new(), Vec::new());
    for (i, image) in images.into_iter().enumerate() {
        match image {
            Image::File(file) => files.push((i, file)),
            other => others.push((i, other)),
        }
    }
    let decode = |(i, file): (usize, Bytes)| match decode_photo_to_vec(file.get()) {
        Ok((size, pixels)) => Ok((i, size, pixels)),
        Err(error) => Err((i, error.to_string())),
    };
    let decoded: Vec<Result<_, (usize, String)>> =
        py.detach(|| wait::with_threads(|| files.into_par_iter().map(decode).collect()))?;
    for decoded in decoded {
        let (i, size, pixels) = decoded.map_err(|(i, text)| crate::errors::of_file(i as u64, None, &text))?;
        others.push((i, Image::Pixels(size, pixels)));
    }
    others.sort_by_key(|(i, _)| *i);
    Ok(others.into_iter().map(|(_, image)| image).collect())
}

impl Image {
    /// The size of an image that is no file.
    pub(crate) fn size(&self) -> Size {
        match self {
            Self::Array(HostImage { height, width, .. }) => Size::new(*height, *width),
            Self::Pixels(size, _) => *size,
            Self::File(_) => Size::new(0, 0),
        }
    }

    /// Copies the pixels of an image that is no file.
    pub(crate) fn copy_to(&self, py: Python<'_>, to: &mut [u8]) -> PyResult<()> {
        match self {
            Self::Array(array) => array.copy_to(py, to),
            Self::Pixels(_, pixels) => {
                to.copy_from_slice(pixels);
                Ok(())
            }
            Self::File(_) => Ok(()),
        }
    }
}

/// JPEG files that a device decodes, and the places of their images.
pub(crate) struct JpegFiles {
    job: OnDevice,
    total: usize,
    places: Vec<(usize, Size)>,
}

impl JpegFiles {
    /// Takes images that are all JPEG files. Others come back.
    pub(crate) fn of(images: Vec<Image>) -> Result<Self, Vec<Image>> {
        let whole = |image: &Image| match image {
            Image::File(file) => outline(file.get()).ok(),
            _ => None,
        };
        let outlines: Vec<Outline> = images.iter().map_while(whole).collect();
        if images.is_empty() || outlines.len() < images.len() {
            return Err(images);
        }
        let files: Vec<Bytes> = images
            .into_iter()
            .filter_map(|image| match image {
                Image::File(file) => Some(file),
                _ => None,
            })
            .collect();
        let sizes: Vec<Size> = outlines.iter().map(|o| Size::new(o.height, o.width)).collect();
        let outlines: Vec<_> = outlines.into_iter().map(Ok).collect();
        let (starts, total) = lay(&outlines);
        let places = starts.into_iter().zip(sizes).collect();
        Ok(Self { job: OnDevice { files: Arc::new(files), outlines, fallback: true }, total, places })
    }

    /// Gives the files back.
    pub(crate) fn into_images(self) -> Vec<Image> {
        match Arc::try_unwrap(self.job.files) {
            Ok(files) => files.into_iter().map(Image::File).collect(),
            Err(_) => unreachable!("`of` has just made the only handle"),
        }
    }

    /// The first byte and the size of each image.
    pub(crate) fn places(&self) -> &[(usize, Size)] {
        &self.places
    }

    /// Decodes the files on a stream.
    pub(crate) fn decode<S: LiveBrand>(self, stream: &Stream<S>) -> PyResult<On<S, DeviceBuffer<u8>>> {
        let mut rgb = stream.alloc::<u8>(self.total).map_err(of_device)?;
        let found = self.job.enqueue(stream, &mut rgb)?;
        match (0..).zip(found).find_map(|(i, found)| found.err().map(|error| of_jpeg(i, error))) {
            Some(error) => Err(error),
            None => Ok(rgb),
        }
    }
}

impl crate::processor::Pixels for JpegFiles {
    fn with<S: LiveBrand, T>(
        self,
        stream: &Stream<S>,
        work: impl FnOnce(&DeviceSlice<S, u8>) -> PyResult<T>,
    ) -> PyResult<T> {
        work(&self.decode(stream)?)
    }
}
