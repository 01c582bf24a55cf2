//! `Loader`: files to batches on the device, ahead of their consumer.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures_core::Stream as _;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use thalweg::{AnyStream, Device, DeviceKind, DeviceSlice, Event, LiveBrand, Size, Stream, beside_captures};
use thalweg_dlpack::Memory;
use thalweg_loader::{
    Batch, DecodeBackend, Loader as Inner, LoaderOptions, LoaderState, Sample, Shard, Source, UploadMode, byte_ranges,
    read_photo,
};
use thalweg_processor::{DeviceImage, InputLayout, RgbImage};

use crate::augment::Augment;
use crate::errors::{of_device, of_file, of_loader, of_processor};
use crate::pipeline::Pipeline;
use crate::place::{Job, Place};
use crate::processor::{ImageProcessor, Pixels, beside, on_host};
use crate::tensor::{Dtype, Tensor};
use crate::wait;

/// The files that a folder gives.
const EXTENSIONS: [&str; 4] = ["jpg", "jpeg", "png", "webp"];

const CLOSED: &str = "this loader is closed";

/// A label, or none.
type Meta = Option<i64>;

/// A loader, until it is closed.
#[pyclass(frozen, module = "thalweg._thalweg")]
#[derive(Debug)]
pub(crate) struct Loader {
    inner: Mutex<Option<Inner<Meta>>>,
    /// A batch whose call failed before any work on it was enqueued: the next call takes it.
    kept: Mutex<Option<Event<Batch<Meta>>>>,
    /// Images that cannot be used are left out.
    skip_errors: bool,
    device: Device,
    #[pyo3(get)]
    classes: Vec<String>,
    /// The samples of the source, of all ranks.
    #[pyo3(get)]
    total: u64,
    /// Nothing is uploaded: the host has the pixels.
    on_host: bool,
}

/// The work on a batch.
#[derive(FromPyObject)]
enum Transform<'py> {
    Augment(Bound<'py, Augment>),
    Pipeline(Bound<'py, Pipeline>),
    Processor(Bound<'py, ImageProcessor>),
}

/// A batch that goes back to its loader when a stream is past it.
struct FromLoader<'l> {
    loader: &'l Loader,
    batch: Option<Event<Batch<Meta>>>,
}

impl FromLoader<'_> {
    fn take(&mut self) -> PyResult<Event<Batch<Meta>>> {
        self.batch.take().ok_or_else(|| PyRuntimeError::new_err("this batch was used"))
    }

    /// Drops a batch without images that can be used, and returns what a call has of it.
    fn leave<T>(&mut self, py: Python<'_>) -> PyResult<(Py<PyAny>, Option<T>)> {
        drop(self.take()?);
        Ok((py.None(), None))
    }
}

impl Drop for FromLoader<'_> {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            *self.loader.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(batch);
        }
    }
}

impl Pixels for FromLoader<'_> {
    fn with<S: LiveBrand, T>(
        mut self,
        stream: &Stream<S>,
        work: impl FnOnce(&DeviceSlice<S, u8>) -> PyResult<T>,
    ) -> PyResult<T> {
        let batch = stream.wait(self.take()?).map_err(|returned| of_device(returned.error))?;
        let output = work(&batch.rgb);
        let event = stream.record(batch).map_err(|returned| of_device(returned.error))?;
        if let Some(inner) = &*self.loader.inner.lock().unwrap_or_else(PoisonError::into_inner) {
            inner.recycle(event);
        }
        output
    }
}

/// A copy of all pixels of a batch.
struct Raw<'l>(FromLoader<'l>);

impl Job<u8> for Raw<'_> {
    type Output = ();
    fn enqueue<S: LiveBrand>(self, stream: &Stream<S>, to: &mut DeviceSlice<S, u8>) -> PyResult<()> {
        self.0.with(stream, |rgb| {
            let from = rgb.slice(..to.len()).map_err(thalweg::Error::from);
            from.and_then(|from| stream.copy(from, to)).map_err(of_device)
        })
    }
}

/// The names and numbers of a batch.
struct About {
    sizes: Vec<Size>,
    indices: Vec<u64>,
    names: Vec<String>,
    labels: Vec<i64>,
    failed: Vec<u64>,
}

impl About {
    fn of(batch: &Batch<Meta>) -> Self {
        Self {
            sizes: batch.sizes.clone(),
            indices: batch.indices.clone(),
            names: batch.names.clone(),
            labels: batch.meta.iter().filter_map(|label| *label).collect(),
            failed: batch.failed.clone(),
        }
    }

    /// Leaves out the images that a processor refuses, or returns the exception of the first one.
    fn leave_out(&mut self, layout: &InputLayout, skip: bool) -> PyResult<()> {
        if let (Some(refused), false) = (layout.errors().first(), skip) {
            let cause = of_processor(refused.error.clone()).to_string();
            return Err(of_file(self.indices[refused.index], Some(&self.names[refused.index]), &cause));
        }
        self.failed.extend(layout.errors().iter().map(|refused| self.indices[refused.index]));
        for at in layout.errors().iter().rev().map(|refused| refused.index) {
            self.sizes.remove(at);
            self.indices.remove(at);
            self.names.remove(at);
            if at < self.labels.len() {
                self.labels.remove(at);
            }
        }
        Ok(())
    }

    fn dict<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let sizes = self.sizes.iter().map(|size| (size.height, size.width));
        let starts = byte_ranges(&self.sizes);
        dict.set_item("sizes", sizes.collect::<Vec<_>>())?;
        dict.set_item("starts", starts.iter().map(|range| range.start).collect::<Vec<_>>())?;
        dict.set_item("indices", self.indices)?;
        dict.set_item("names", self.names)?;
        if self.labels.len() == self.sizes.len() && !self.labels.is_empty() {
            let shape = vec![self.labels.len()];
            dict.set_item("labels", Py::new(py, Tensor::host(Memory::new(self.labels), shape, Dtype::I64))?)?;
        } else {
            dict.set_item("labels", py.None())?;
        }
        dict.set_item("failed", self.failed)?;
        Ok(dict)
    }
}

impl Loader {
    fn lock(&self, py: Python<'_>) -> PyResult<Lock<'_>> {
        let guard = self.inner.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        match guard.is_some() {
            true => Ok(Lock(guard)),
            false => Err(PyRuntimeError::new_err(CLOSED)),
        }
    }

    /// Waits for the next batch.
    fn batch(&self) -> PyResult<Option<Event<Batch<Meta>>>> {
        if let Some(batch) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok(Some(batch));
        }
        // No lock is held while a handler of signals runs, which may ask for the state.
        let next = std::future::poll_fn(|context| {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *inner {
                Some(inner) => Pin::new(inner).poll_next(context).map(Ok),
                None => Poll::Ready(Err(CLOSED)),
            }
        });
        let next = wait::wait(next)?.map_err(PyRuntimeError::new_err)?;
        next.transpose().map_err(of_loader)
    }

    /// Reads what is plain in a batch that is on the device.
    fn peek(&self, batch: Event<Batch<Meta>>) -> PyResult<(Event<Batch<Meta>>, About)> {
        let read = || {
            AnyStream::new(self.device)?.enter(|s| {
                let batch = s.wait(batch).map_err(|returned| returned.error)?;
                let about = About {
                    sizes: batch.sizes.clone(),
                    indices: batch.indices.clone(),
                    names: batch.names.clone(),
                    labels: batch.meta.iter().filter_map(|label| *label).collect(),
                    failed: batch.failed.clone(),
                };
                Ok::<_, thalweg::Error>((s.record(batch).map_err(|returned| returned.error)?, about))
            })
        };
        read().map_err(of_device)
    }
}

/// A loader that is open.
struct Lock<'l>(MutexGuard<'l, Option<Inner<Meta>>>);

impl std::ops::Deref for Lock<'_> {
    type Target = Inner<Meta>;
    fn deref(&self) -> &Inner<Meta> {
        match &*self.0 {
            Some(inner) => inner,
            None => unreachable!("`Loader::lock` has looked"),
        }
    }
}

impl std::ops::DerefMut for Lock<'_> {
    fn deref_mut(&mut self) -> &mut Inner<Meta> {
        match &mut *self.0 {
            Some(inner) => inner,
            None => unreachable!("`Loader::lock` has looked"),
        }
    }
}

/// Makes the source of some files.
fn source(files: Vec<(PathBuf, Meta)>) -> Source<Meta> {
    Source::indexed(files.len() as u64, move |index| {
        let (path, label) = files[index as usize].clone();
        Sample::new(path.display().to_string(), label, move |sink| read_photo(&path, sink))
    })
}

/// Lists the files below a folder: with labels those of its subfolders, and otherwise all.
fn list(root: &PathBuf, labels: bool) -> Result<(Vec<(PathBuf, Meta)>, Vec<String>), String> {
    let read = |folder: &PathBuf, recursive: bool| {
        let found = thalweg_loader::list_folder(folder, &EXTENSIONS, recursive);
        match found.unreadable.first() {
            Some(problem) => Err(format!("{}: {}", problem.path.display(), problem.error)),
            None => Ok(found),
        }
    };
    let top = read(root, !labels)?;
    if !labels {
        return Ok((top.files.into_iter().map(|path| (path, None)).collect(), Vec::new()));
    }
    let (mut files, mut classes) = (Vec::new(), Vec::new());
    for (label, folder) in (0..).zip(top.subfolders) {
        classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
        files.extend(read(&folder, true)?.files.into_iter().map(|path| (path, Some(label))));
    }
    Ok((files, classes))
}

#[pymethods]
impl Loader {
    #[new]
    #[pyo3(signature = (place, files, *, labels, folder, batch_size, shuffle, drop_last, rank, world_size, prefetch, threads, skip_errors, decode, pinned_budget, host))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python class")]
    fn new(
        py: Python<'_>,
        place: &Place,
        files: Vec<PathBuf>,
        labels: Option<Vec<i64>>,
        folder: Option<bool>,
        batch_size: usize,
        shuffle: Option<u64>,
        drop_last: bool,
        rank: u64,
        world_size: u64,
        prefetch: usize,
        threads: usize,
        skip_errors: bool,
        decode: &str,
        pinned_budget: Option<usize>,
        host: bool,
    ) -> PyResult<Self> {
        let (mut list, mut classes) = match folder {
            Some(labels) => {
                let root = files.first().cloned().unwrap_or_default();
                py.detach(|| self::list(&root, labels)).map_err(PyValueError::new_err)?
            }
            None => (files.iter().map(|path| (path.clone(), None)).collect(), Vec::new()),
        };
        if list.is_empty() {
            let root = files.first().map_or_else(|| "the list".into(), |path| path.display().to_string());
            let where_ =
                if folder == Some(true) { " in subfolders, which are the classes (labels=None takes all)" } else { "" };
            return Err(PyValueError::new_err(format!("{root} has no JPEG, PNG or WebP files{where_}")));
        }
        if let Some(labels) = labels {
            if labels.len() != list.len() {
                return Err(PyValueError::new_err(format!("{} labels for {} files", labels.len(), list.len())));
            }
            list.iter_mut().zip(labels).for_each(|(file, label)| file.1 = Some(label));
            classes.clear();
        }
        let total = list.len() as u64;
        let options = LoaderOptions::default()
            .with_batch_size(batch_size)
            .with_shuffle(shuffle)
            .with_drop_last(drop_last)
            .with_shard(Shard::new(rank, world_size))
            .with_prefetch(prefetch)
            .with_decode_threads(threads)
            .with_skip_errors(skip_errors)
            .with_upload_streams(if place.device.kind() == DeviceKind::Cuda { 3 } else { 1 })
            .with_decode(decode.parse::<DecodeBackend>().map_err(of_device)?)
            .with_pinned_budget(pinned_budget.unwrap_or(usize::MAX));
        let on_host = host && place.device.kind() == DeviceKind::Cpu;
        let options = if on_host { options.with_upload(UploadMode::Off) } else { options };
        let device = place.device;
        let inner = py.detach(|| Inner::new(device, source(list), options)).map_err(of_device)?;
        let (inner, kept) = (Mutex::new(Some(inner)), Mutex::default());
        Ok(Self { inner, kept, skip_errors, device, classes, total, on_host })
    }

    /// Returns the next batch: its tensor, what is beside it, and its names and numbers; or None.
    #[pyo3(signature = (place, transform=None, stream=None))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        place: &Place,
        transform: Option<Transform<'py>>,
        stream: Option<usize>,
    ) -> PyResult<Option<(Py<PyAny>, Option<Bound<'py, PyDict>>, Bound<'py, PyDict>)>> {
        let Some(batch) = py.detach(|| beside_captures(|| self.batch()))? else { return Ok(None) };
        if self.on_host {
            return self.next_on_host(py, batch, transform).map(Some);
        }
        let (batch, mut about) = py.detach(|| beside_captures(|| self.peek(batch)))?;
        let ranges = byte_ranges(&about.sizes);
        let places: Vec<_> = ranges.iter().map(|range| range.start).zip(about.sizes.iter().copied()).collect();
        let mut pixels = FromLoader { loader: self, batch: Some(batch) };
        let (tensor, beside_it) = match transform {
            _ if places.is_empty() => pixels.leave(py)?,
            None => {
                let total = ranges.last().map_or(0, |range| range.end);
                (place.run(py, stream, &[total], Dtype::U8, Raw(pixels))?.0, None)
            }
            Some(Transform::Augment(augment)) => {
                let epoch = u32::try_from(self.lock(py)?.epoch()).unwrap_or(u32::MAX);
                let sample = (epoch, &about.indices[..]);
                (augment.get().run(py, place, stream, &places, sample, pixels)?, None)
            }
            Some(Transform::Pipeline(pipeline)) => {
                let rgb = pixels.take()?.unzip().rgb;
                let (tensor, parts) = pipeline.get().run_pixels(py, place, stream, &about.sizes, rgb)?;
                (tensor, Some(parts))
            }
            Some(Transform::Processor(processor)) => {
                let image = |&(start, Size { height, width }): &_| DeviceImage { start, height, width };
                let list = places.iter().map(image).collect();
                let layout = processor.get().layout(&about.sizes)?;
                if let Err(error) = about.leave_out(&layout, self.skip_errors) {
                    pixels.leave::<()>(py)?; // it would fail again
                    return Err(error);
                }
                match about.sizes.is_empty() {
                    true => pixels.leave(py)?,
                    false => {
                        let tensor = processor.get().run_layout(py, place, stream, &layout, list, pixels)?;
                        (tensor, Some(beside(py, &layout)?))
                    }
                }
            }
        };
        Ok(Some((tensor, beside_it, about.dict(py)?)))
    }

    /// The samples of this rank in an epoch.
    fn samples(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lock(py)?.samples().unwrap_or(0))
    }

    /// The epoch, and the samples of it that were delivered.
    fn position(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let LoaderState { epoch, samples } = self.lock(py)?.state();
        Ok((epoch, samples))
    }

    fn resume(&self, py: Python<'_>, epoch: u64, samples: u64) -> PyResult<()> {
        *self.kept.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner) = None;
        self.lock(py)?.resume(LoaderState { epoch, samples }).map_err(of_device)
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        *self.kept.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner) = None;
        self.lock(py)?.set_epoch(epoch);
        Ok(())
    }

    /// The statistics of the loader: numbers of all epochs, and a table.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.lock(py)?.stats();
        let dict = PyDict::new(py);
        for (name, number) in [
            ("images", stats.images),
            ("bytes", stats.bytes),
            ("failed", stats.failed),
            ("jpeg_on_device", stats.jpeg_on_device),
            ("jpeg_on_host", stats.jpeg_on_host),
        ] {
            dict.set_item(name, number)?;
        }
        dict.set_item("wait", stats.wait.as_secs_f64())?;
        dict.set_item("table", stats.to_string())?;
        Ok(dict)
    }

    /// Stops the threads and gives the memory back.
    fn close(&self, py: Python<'_>) {
        let kept = self.kept.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).take();
        let inner = self.inner.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop((kept, inner)));
    }
}

impl Loader {
    fn next_on_host<'py>(
        &self,
        py: Python<'py>,
        batch: Event<Batch<Meta>>,
        transform: Option<Transform<'py>>,
    ) -> PyResult<(Py<PyAny>, Option<Bound<'py, PyDict>>, Bound<'py, PyDict>)> {
        let batch = py.detach(|| wait::for_event(batch))?;
        let mut about = About::of(&batch);
        let (tensor, beside_it) = match transform {
            _ if about.sizes.is_empty() => (py.None(), None),
            Some(Transform::Processor(processor)) => {
                let processor = processor.get();
                let view = |(i, size): (usize, &Size)| RgbImage {
                    height: size.height,
                    width: size.width,
                    rgb: batch.pixels(i),
                };
                let views: Vec<_> = about.sizes.iter().enumerate().map(view).collect();
                let (memory, layout) = py.detach(|| on_host(&processor.processor, &views, processor.dtype))?;
                about.leave_out(&layout, self.skip_errors)?;
                match about.sizes.is_empty() {
                    true => (py.None(), None),
                    false => {
                        let tensor = Tensor::host(memory, layout.shape(), processor.dtype);
                        (Py::new(py, tensor)?.into_any(), Some(beside(py, &layout)?))
                    }
                }
            }
            _ => {
                let ranges = byte_ranges(&about.sizes);
                let total = ranges.last().map_or(0, |range| range.end);
                let pixels = py.detach(|| {
                    let mut pixels = vec![0; total];
                    for (i, range) in ranges.iter().enumerate() {
                        pixels[range.clone()].copy_from_slice(batch.pixels(i));
                    }
                    pixels
                });
                (Py::new(py, Tensor::host(Memory::new(pixels), vec![total], Dtype::U8))?.into_any(), None)
            }
        };
        Ok((tensor, beside_it, about.dict(py)?))
    }
}
