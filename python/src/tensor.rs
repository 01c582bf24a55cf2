//! `thalweg.Tensor`: results that no framework has taken yet.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};
use thalweg::{AnyStream, Device, DeviceBuffer, DeviceKind, Event};
use thalweg_dlpack::{CPU, CUDA, Export, Kind, Memory};

use crate::errors::of_device;
use crate::wait;

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    U8,
    I32,
    I64,
    F16,
    Bf16,
    F32,
}

impl Dtype {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::F32 => "float32",
        }
    }

    pub(crate) fn of(name: &str) -> PyResult<Self> {
        let all = [Self::U8, Self::I32, Self::I64, Self::F16, Self::Bf16, Self::F32];
        all.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
            let names = all.map(Self::name).join(", ");
            PyValueError::new_err(format!("dtype is {name:?}, expected one of {names}"))
        })
    }

    pub(crate) fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 => 8,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::U8 => Kind::UInt,
            Self::I32 | Self::I64 => Kind::Int,
            Self::F16 | Self::F32 => Kind::Float,
            Self::Bf16 => Kind::Bfloat,
        }
    }

    /// The name that NumPy's protocol has.
    fn numpy(self) -> Option<&'static str> {
        match self {
            Self::U8 => Some("|u1"),
            Self::I32 => Some("<i4"),
            Self::I64 => Some("<i8"),
            Self::F16 => Some("<f2"),
            Self::F32 => Some("<f4"),
            Self::Bf16 => None,
        }
    }
}

/// Memory of a GPU. A copy takes the event out and puts it back.
#[derive(Debug)]
pub(crate) struct OnDevice {
    device: Device,
    event: Mutex<Option<Event<DeviceBuffer<u32>>>>,
}

#[derive(Clone, Debug)]
enum Store {
    Host(Memory),
    Device(Arc<OnDevice>),
}

/// A result of thalweg, on the host or on a GPU.
#[pyclass(frozen, module = "thalweg")]
#[derive(Debug)]
pub(crate) struct Tensor {
    store: Store,
    offset: usize,
    shape: Vec<usize>,
    /// In elements. The elements lie without gaps, in some order of the dimensions.
    strides: Vec<usize>,
    dtype: Dtype,
}

/// Returns the strides of a tensor whose last dimension is contiguous.
fn contiguous(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    strides
}

impl Tensor {
    pub(crate) fn host(memory: Memory, shape: Vec<usize>, dtype: Dtype) -> Self {
        Self { store: Store::Host(memory), offset: 0, strides: contiguous(&shape), shape, dtype }
    }

    pub(crate) fn on_device(device: Device, event: Event<DeviceBuffer<u32>>, shape: Vec<usize>, dtype: Dtype) -> Self {
        let store = Store::Device(Arc::new(OnDevice { device, event: Mutex::new(Some(event)) }));
        Self { store, offset: 0, strides: contiguous(&shape), shape, dtype }
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    fn export(&self, memory: &Memory) -> Export {
        let signed = |numbers: &[usize]| numbers.iter().map(|n| *n as i64).collect();
        Export {
            memory: memory.clone(),
            offset: self.offset,
            shape: signed(&self.shape),
            strides: signed(&self.strides),
            kind: self.dtype.kind(),
            bits: (8 * self.dtype.size()) as u8,
        }
    }

    /// Returns the memory on the host, or a copy of it, and the first byte there.
    fn to_host(&self, py: Python<'_>) -> PyResult<(Memory, usize)> {
        match &self.store {
            Store::Host(memory) => Ok((memory.clone(), self.offset)),
            Store::Device(held) => {
                let (held, offset, bytes) = (held.clone(), self.offset, self.bytes());
                py.detach(move || thalweg::beside_captures(|| held.read(offset, bytes)))
            }
        }
    }

    fn words(&self) -> PyResult<(Arc<OnDevice>, usize, usize)> {
        match &self.store {
            Store::Device(held) if self.offset.is_multiple_of(4) => Ok((held.clone(), self.offset / 4, self.bytes())),
            Store::Device(_) => Err(PyValueError::new_err("this view does not begin at a multiple of 4 bytes")),
            Store::Host(_) => Err(PyValueError::new_err("this tensor is on the host")),
        }
    }
}

impl OnDevice {
    /// Takes the event for a copy, and puts it back.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(Event<DeviceBuffer<u32>>) -> PyResult<(Event<DeviceBuffer<u32>>, T)>,
    ) -> PyResult<T> {
        let mut slot = self.event.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = || crate::errors::of_class("DeviceError", "the memory was lost in a call that failed".into());
        let (event, output) = work(slot.take().ok_or_else(lost)?)?;
        *slot = Some(event);
        Ok(output)
    }

    fn read(&self, offset: usize, bytes: usize) -> PyResult<(Memory, usize)> {
        let first = offset / 4;
        let words = (offset + bytes).div_ceil(4) - first;
        // What can fail comes before the event is taken, and the wait after it was put back: Ctrl-C
        // ends it, and a handler of signals may use this tensor.
        let pinned = self.device.pinned::<u32>(words).map_err(of_device)?;
        let stream = AnyStream::new(self.device).map_err(of_device)?;
        let host = self.with(|event| {
            let copy = stream.enter(|s| {
                let words_on = s.wait(event)?;
                let mut host = s.bind(pinned)?;
                s.copy_to_host(words_on.slice(first..first + words)?, &mut host)?;
                Ok::<_, thalweg::Error>((s.record(words_on)?, s.record(host)?))
            });
            copy.map_err(of_device)
        })?;
        Ok((Memory::new(wait::for_event(host)?.to_vec()), offset - 4 * first))
    }
}

unsafe extern "C" fn drop_capsule(capsule: *mut pyo3::ffi::PyObject) {
    for (name, release) in [
        (c"dltensor_versioned", thalweg_dlpack::release_versioned as unsafe fn(std::ptr::NonNull<std::ffi::c_void>)),
        (c"dltensor", thalweg_dlpack::release_unversioned),
    ] {
        // SAFETY: The interpreter calls this with a capsule that it frees. A consumer that took the
        // tensor has given the capsule another name.
        unsafe {
            if pyo3::ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
                let tensor = pyo3::ffi::PyCapsule_GetPointer(capsule, name.as_ptr());
                if let Some(tensor) = std::ptr::NonNull::new(tensor) {
                    release(tensor);
                }
            }
        }
    }
}

#[pymethods]
impl Tensor {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    #[getter]
    fn device(&self) -> String {
        match &self.store {
            Store::Host(_) => "cpu".into(),
            Store::Device(held) => format!("cuda:{}", held.device.ordinal()),
        }
    }

    fn __len__(&self) -> PyResult<usize> {
        self.shape.first().copied().ok_or_else(|| PyTypeError::new_err("a tensor without dimensions has no length"))
    }

    fn __repr__(&self) -> String {
        let shape = self.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        format!("thalweg.Tensor(shape=({shape}), dtype={:?}, device={:?})", self.dtype.name(), self.device())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a thalweg.Tensor cannot be pickled: pickle tensor.numpy()"))
    }

    fn __dlpack_device__(&self) -> (i32, usize) {
        match &self.store {
            Store::Host(_) => (CPU, 0),
            Store::Device(held) => (CUDA, held.device.ordinal()),
        }
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, usize)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let Store::Host(memory) = &self.store else {
            let text = "memory of a GPU leaves thalweg into a tensor of the consumer only: call .torch(), or pass \
                        into=\"torch\"";
            return Err(PyBufferError::new_err(text));
        };
        if stream.is_some() {
            return Err(PyBufferError::new_err("memory of the host has no stream: pass stream=None"));
        }
        if dl_device.is_some_and(|device| device != (CPU, 0)) {
            return Err(PyBufferError::new_err(format!("a tensor on the host, not on {dl_device:?}")));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("this export never copies: copy on the consumer's side"));
        }
        let export = self.export(memory);
        let (tensor, name) = match max_version {
            Some((1.., _)) => (export.versioned(), c"dltensor_versioned"),
            _ => (export.unversioned(), c"dltensor"),
        };
        // SAFETY: The pointer is to a tensor that lives until its deleter is called, by the
        // consumer or by `drop_capsule`. Any thread may run that.
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, tensor, name, Some(drop_capsule)) }
    }

    /// The array protocol of NumPy, for memory of the host.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (memory, typestr) = match (&self.store, self.dtype.numpy()) {
            (Store::Host(memory), Some(typestr)) => (memory, typestr),
            (_, None) => return Err(PyTypeError::new_err(NO_BFLOAT16)),
            // NumPy asks `__array__` then.
            _ => return Err(PyAttributeError::new_err("a tensor on a GPU: call .numpy(), which copies it")),
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("data", (memory.address() + self.offset, false))?;
        interface.set_item("strides", PyTuple::new(py, self.strides.iter().map(|n| n * self.dtype.size()))?)?;
        Ok(interface)
    }

    /// Returns the same tensor on the host: itself, or a copy of what is on a GPU.
    pub(crate) fn cpu(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        let this = slf.get();
        match this.store {
            Store::Host(_) => Ok(slf.clone().unbind()),
            Store::Device(_) => {
                let (memory, offset) = this.to_host(slf.py())?;
                let Self { ref shape, ref strides, dtype, .. } = *this;
                let (store, shape, strides) = (Store::Host(memory), shape.clone(), strides.clone());
                Py::new(slf.py(), Self { store, offset, shape, strides, dtype })
            }
        }
    }

    /// Returns a NumPy array: of the same memory on the host, or of a copy of what is on a GPU.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        if slf.get().dtype == Dtype::Bf16 {
            return Err(PyTypeError::new_err(NO_BFLOAT16));
        }
        slf.py().import("numpy")?.call_method1("asarray", (Self::cpu(slf)?,))
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = PyDict::new(slf.py());
        arguments.set_item("dtype", dtype)?;
        // What is on a GPU was copied by then.
        let on_host = matches!(slf.get().store, Store::Host(_));
        if copy == Some(false) && !on_host {
            return Err(PyValueError::new_err("a tensor on a GPU cannot be a NumPy array without a copy"));
        }
        match copy {
            Some(true) if on_host => arguments.set_item("copy", true)?,
            _ => {}
        }
        slf.py().import("numpy")?.call_method("array", (Self::numpy(slf)?,), Some(&arguments))
    }

    /// Returns a tensor of PyTorch: of the same memory on the host, or of memory of PyTorch on the
    /// same GPU.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("thalweg.torch")?.call_method1("_of_tensor", (slf,))
    }

    /// Returns a view: `offset` in bytes from the start of this tensor's memory.
    #[pyo3(signature = (offset, shape, dtype=None, order=None))]
    fn _view(
        &self,
        offset: usize,
        shape: Vec<usize>,
        dtype: Option<&str>,
        order: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let dtype = dtype.map_or(Ok(self.dtype), Dtype::of)?;
        let bytes = shape.iter().try_fold(dtype.size(), |bytes, n| bytes.checked_mul(*n));
        let end = bytes.and_then(|bytes| bytes.checked_add(offset));
        let aligned = (self.offset + offset.min(self.bytes())).is_multiple_of(dtype.size());
        if end.is_none_or(|end| end > self.bytes()) || !aligned {
            let text = format!("a view of {shape:?} {} from byte {offset} of {}", dtype.name(), self.bytes());
            return Err(PyValueError::new_err(text));
        }
        let mut view =
            Self { store: self.store.clone(), offset: self.offset + offset, strides: contiguous(&shape), shape, dtype };
        if let Some(order) = order {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if !sorted.into_iter().eq(0..view.shape.len()) {
                return Err(PyValueError::new_err(format!("{order:?} is no order of {} dimensions", view.shape.len())));
            }
            view.strides = order.iter().map(|i| view.strides[*i]).collect();
            view.shape = order.iter().map(|i| view.shape[*i]).collect();
        }
        Ok(view)
    }

    /// The elements from one to the next in each dimension.
    #[getter]
    fn _strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.strides)
    }

    /// Copies memory of a GPU into a tensor of a framework, on its stream: its bytes, as they lie.
    fn _into(&self, py: Python<'_>, place: &crate::place::Place, stream: Option<usize>) -> PyResult<Py<PyAny>> {
        let (held, first, bytes) = self.words()?;
        let (tensor, ()) = place.run(py, stream, &[bytes], Dtype::U8, Copy { held, first, bytes })?;
        Ok(tensor)
    }
}

pub(crate) const NO_BFLOAT16: &str = "NumPy has no bfloat16: pass dtype=\"float32\" or \"float16\", or take torch";

/// A copy of memory of a GPU, in words.
struct Copy {
    held: Arc<OnDevice>,
    first: usize,
    bytes: usize,
}

impl crate::place::Job<u8> for Copy {
    type Output = ();
    fn enqueue<S: thalweg::LiveBrand>(
        self,
        stream: &thalweg::Stream<S>,
        to: &mut thalweg::DeviceSlice<S, u8>,
    ) -> PyResult<()> {
        self.held.with(|event| {
            let from = stream.wait(event).map_err(|returned| of_device(returned.error))?;
            let copied = from
                .cast::<u8>()
                .slice(4 * self.first..4 * self.first + self.bytes)
                .map_err(thalweg::Error::from)
                .and_then(|from| stream.copy(from, to));
            let event = stream.record(from).map_err(|returned| of_device(returned.error))?;
            copied.map_err(of_device)?;
            Ok((event, ()))
        })
    }
}

/// Says where tensors of a device are for Python.
pub(crate) fn place_of(device: Device) -> String {
    match device.kind() {
        DeviceKind::Cuda => format!("cuda:{}", device.ordinal()),
        _ => "cpu".into(),
    }
}
