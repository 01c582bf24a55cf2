//! The device of a call, and the memory that it fills.
//!
//! A [`Job`] fills one tensor. With a framework the tensor is the framework's: it is allocated on
//! the consumer's stream, lent to that stream for the call, and filled there. So every access of
//! ours is in the order of the stream that owns the allocation, and the framework may free it
//! whenever it likes: after an exception, after Ctrl-C, while the work is still queued. The host
//! waits for nothing.
//!
//! Without one, the tensor is ours: on the device, or on the CPU device in memory of the host.

use std::ffi::c_void;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use thalweg::{
    AnyStream, Device, DeviceCopy, DeviceKind, DeviceSlice, ForeignStream, LiveBrand, Stream, beside_captures,
};
use thalweg_dlpack::{Memory, Number};

use crate::errors::{of_class, of_device};
use crate::tensor::{Dtype, Tensor, place_of};

/// Work that fills the memory of one tensor.
pub(crate) trait Job<T>: Send {
    /// The report of the work.
    type Output: Send;
    /// Enqueues the work. The caller is detached from the interpreter.
    fn enqueue<S: LiveBrand>(self, stream: &Stream<S>, to: &mut DeviceSlice<S, T>) -> PyResult<Self::Output>;
}

/// The element types of jobs.
pub(crate) trait Cell: DeviceCopy + thalweg::simt::Element + Default {
    /// The same numbers in memory of the host.
    type Host: Number;
    fn host(numbers: Vec<Self>) -> Vec<Self::Host>;
}

macro_rules! cells {
    ($($cell:ty, $host:ty, $convert:expr;)*) => {$(
        impl Cell for $cell {
            type Host = $host;
            fn host(numbers: Vec<Self>) -> Vec<$host> {
                $convert(numbers)
            }
        }
    )*};
}
cells! {
    u8, u8, std::convert::identity;
    u32, u32, std::convert::identity;
    f32, f32, std::convert::identity;
    thalweg::simt::f16, u16, |v: Vec<thalweg::simt::f16>| v.into_iter().map(|v| v.to_bits()).collect();
    thalweg::simt::bf16, u16, |v: Vec<thalweg::simt::bf16>| v.into_iter().map(|v| v.to_bits()).collect();
}

/// A device, and the framework whose tensors results are.
#[pyclass(frozen, module = "thalweg._thalweg")]
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) device: Device,
    framework: Option<Framework>,
}

/// Opens the device that a text names, or the best one.
pub(crate) fn open(py: Python<'_>, spec: Option<&str>) -> PyResult<Device> {
    let spec = spec.map(|spec| if spec == "cuda" { "cuda:0" } else { spec }.to_owned());
    py.detach(|| {
        let opened = match spec {
            Some(spec) => Device::open(&spec),
            None => Device::from_env(),
        };
        opened.map(|opened| opened.device).map_err(of_device)
    })
}

#[pymethods]
impl Place {
    #[new]
    #[pyo3(signature = (device=None, framework=None))]
    fn new(py: Python<'_>, device: Option<&str>, framework: Option<Py<PyAny>>) -> PyResult<Self> {
        let device = open(py, device)?;
        let framework = framework.map(|module| Framework::new(module.bind(py), device)).transpose()?;
        Ok(Self { device, framework })
    }

    /// The device, as frameworks name it.
    #[getter]
    fn device(&self) -> String {
        place_of(self.device)
    }

    /// Fills a new tensor of bytes: the smallest work there is, for tests and benchmarks of the
    /// hand-over.
    #[pyo3(signature = (shape, value, stream=None))]
    fn _filled(&self, py: Python<'_>, shape: Vec<usize>, value: u8, stream: Option<usize>) -> PyResult<Py<PyAny>> {
        Ok(self.run(py, stream, &shape, Dtype::U8, Filled(value))?.0)
    }

    /// The number of the GPU that no reordering changes.
    #[getter]
    fn uuid(&self) -> Option<[u8; 16]> {
        self.device.uuid()
    }
}

/// The functions of a framework that allocates. They are called without a frame of Python between,
/// which would take as long as the rest of a hand-over.
#[derive(Debug)]
struct Framework {
    empty: Py<PyAny>,
    /// The class of all tensors with memory of their own.
    tensor: Py<PyAny>,
    /// The keywords of `empty` for each dtype.
    keywords: Py<PyDict>,
    /// Returns the handle of the stream that new tensors belong to, on a GPU.
    current_stream: Option<Py<PyAny>>,
    /// Allocates for another stream.
    on_stream: Py<PyAny>,
}

impl Framework {
    fn new(module: &Bound<'_, PyAny>, device: Device) -> PyResult<Self> {
        let allocator = module.call_method1("_Allocator", (place_of(device),))?;
        Ok(Self {
            empty: allocator.getattr("empty")?.unbind(),
            tensor: allocator.getattr("tensor")?.unbind(),
            keywords: allocator.getattr("keywords")?.extract()?,
            current_stream: allocator.getattr("current_stream")?.extract()?,
            on_stream: allocator.getattr("on_stream")?.unbind(),
        })
    }

    /// Returns a new tensor of a stream, its address, and the handle of the stream.
    fn allocate<'py>(
        &self,
        py: Python<'py>,
        shape: &[usize],
        dtype: Dtype,
        stream: Option<usize>,
    ) -> PyResult<(Bound<'py, PyAny>, u64, usize)> {
        let shape = PyTuple::new(py, shape)?;
        let (tensor, handle) = match (stream, &self.current_stream) {
            (Some(stream), Some(_)) => (self.on_stream.bind(py).call1((shape, dtype.name(), stream))?, stream),
            (stream, current) => {
                let keywords = self.keywords.bind(py).as_any().get_item(dtype.name())?;
                let tensor = self.empty.bind(py).call((shape,), Some(keywords.cast::<PyDict>()?))?;
                let current = current.as_ref().map(|current| current.bind(py).call0()?.extract()).transpose()?;
                (tensor, current.or(stream).unwrap_or(0))
            }
        };
        if !tensor.get_type().is(&self.tensor) {
            let kind = tensor.get_type().name()?;
            let text = format!("torch.empty gave a {kind} without memory: leave the mode that does this");
            return Err(PyTypeError::new_err(text));
        }
        let address = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        Ok((tensor, address, handle))
    }
}

/// The consumer's stream, as the framework gave it.
struct Theirs {
    device: Device,
    handle: usize,
}

impl Theirs {
    /// Adopts the stream on this thread.
    fn adopt(&self) -> PyResult<ForeignStream> {
        let adopted = if self.device.kind() == DeviceKind::Cpu {
            ForeignStream::stand_in(self.device, self.handle)
        } else {
            // SAFETY: The framework says that the stream exists, and `Place::run_theirs` asks
            // whether it captures before it enqueues anything. Python is the caller that keeps it.
            unsafe { ForeignStream::from_raw(self.device, std::ptr::without_provenance_mut::<c_void>(self.handle)) }
        };
        adopted.map_err(of_device)
    }
}

impl Place {
    /// Runs a job whose tensor has this shape, on the consumer's stream or on one of ours.
    pub(crate) fn run<T: Cell, J: Job<T>>(
        &self,
        py: Python<'_>,
        stream: Option<usize>,
        shape: &[usize],
        dtype: Dtype,
        job: J,
    ) -> PyResult<(Py<PyAny>, J::Output)> {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        let len = bytes / size_of::<T>();
        match &self.framework {
            Some(framework) => {
                let memory = framework.allocate(py, shape, dtype, stream)?;
                self.run_theirs(py, memory, (len, job))
            }
            None if stream.is_some() => {
                Err(PyValueError::new_err("stream= is of a framework: pass into=\"torch\", or leave it out"))
            }
            None => {
                let (tensor, output) = py.detach(|| beside_captures(|| self.run_ours(shape, dtype, (len, job))))?;
                Ok((Py::new(py, tensor)?.into_any(), output))
            }
        }
    }

    /// The way W1: into the consumer's memory, on the consumer's stream.
    fn run_theirs<T: Cell, J: Job<T>>(
        &self,
        py: Python<'_>,
        (tensor, address, handle): (Bound<'_, PyAny>, u64, usize),
        (len, job): (usize, J),
    ) -> PyResult<(Py<PyAny>, J::Output)> {
        let theirs = Theirs { device: self.device, handle };
        let output = py.detach(|| {
            beside_captures(|| {
                let stream = theirs.adopt()?;
                if stream.is_capturing().map_err(of_device)? {
                    let text = "the stream captures a graph: call thalweg before or after the capture, and copy its \
                                results into the graph's own tensors";
                    return Err(of_class("CaptureError", text.into()));
                }
                stream.enter(|s| {
                    // SAFETY: The framework allocated the tensor for this stream a moment ago, with
                    // room for `len` elements. Only `tensor` refers to it, which Python code gets
                    // when this call has returned, and from then on the framework orders its uses
                    // by the same stream.
                    let to = unsafe { s.borrow::<T>(address, len) }.map_err(of_device)?;
                    let _finish = Finish(s);
                    job.enqueue(s, to)
                })
            })
        })?;
        Ok((tensor.unbind(), output))
    }

    fn run_ours<T: Cell, J: Job<T>>(
        &self,
        shape: &[usize],
        dtype: Dtype,
        (len, job): (usize, J),
    ) -> PyResult<(Tensor, J::Output)> {
        let stream = AnyStream::new(self.device).map_err(of_device)?;
        stream.enter(|s| {
            let words = (len * size_of::<T>()).div_ceil(4);
            let mut memory = s.alloc::<u32>(words).map_err(of_device)?;
            let to = Words::<T>::of(&mut memory, len)?;
            let output = job.enqueue(s, to)?;
            let shape = shape.to_vec();
            if self.device.kind() == DeviceKind::Cuda {
                let event = s.record(memory).map_err(|returned| of_device(returned.error))?;
                return Ok((Tensor::on_device(self.device, event, shape, dtype), output));
            }
            let event = s.record(()).map_err(|returned| of_device(returned.error))?;
            crate::wait::for_event(event)?;
            let numbers = s.read_blocking(Words::<T>::read(&memory, len)?).map_err(of_device)?;
            Ok((Tensor::host(Memory::new(T::host(numbers)), shape, dtype), output))
        })
    }
}

/// Bytes of one value.
struct Filled(u8);

impl Job<u8> for Filled {
    type Output = ();
    fn enqueue<S: LiveBrand>(self, stream: &Stream<S>, to: &mut DeviceSlice<S, u8>) -> PyResult<()> {
        stream.fill(to, self.0).map_err(of_device)
    }
}

/// Waits for a stream of the CPU device, however the work ends: a tensor on the CPU has no stream,
/// so whoever reads or frees it would not wait.
struct Finish<'s, S: LiveBrand>(&'s Stream<S>);

impl<S: LiveBrand> Drop for Finish<'_, S> {
    fn drop(&mut self) {
        if self.0.device().kind() == DeviceKind::Cpu {
            _ = self.0.synchronize(); // an error is one of the next call, too
        }
    }
}

/// Views words as elements.
struct Words<T>(std::marker::PhantomData<T>);

impl<T: Cell> Words<T> {
    fn of<S>(words: &mut DeviceSlice<S, u32>, len: usize) -> PyResult<&mut DeviceSlice<S, T>> {
        words.cast_mut::<T>().slice_mut(..len).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    fn read<S>(words: &DeviceSlice<S, u32>, len: usize) -> PyResult<&DeviceSlice<S, T>> {
        words.cast::<T>().slice(..len).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}

/// Reads the dtype of a result that can be one of these.
pub(crate) fn dtype_of(name: &str, allowed: &[Dtype]) -> PyResult<Dtype> {
    let names = || allowed.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
    match Dtype::of(name) {
        Ok(dtype) if allowed.contains(&dtype) => Ok(dtype),
        _ => Err(PyValueError::new_err(format!("dtype is {name:?}, expected one of {}", names()))),
    }
}

/// Refuses what is no list of images.
pub(crate) fn not_an_image(given: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let kind = given.get_type().name().map_or_else(|_| "an object".into(), |name| name.to_string());
    PyTypeError::new_err(format!("{kind}, expected {expected}"))
}
