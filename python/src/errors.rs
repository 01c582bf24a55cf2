//! Errors of Rust as exceptions of Python. The classes are in `thalweg/_errors.py`.

use std::io;

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;
use thalweg_jpeg::JpegError;
use thalweg_loader::SampleError;

/// Makes an exception of a class of `thalweg/_errors.py`.
pub(crate) fn of_class(class: &str, text: String) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Python::attach(|py| {
        let module = MODULE.get_or_try_init(py, || py.import("thalweg._errors").map(Bound::unbind));
        match module.and_then(|module| module.bind(py).getattr(class)?.call1((text,))) {
            Ok(value) => PyErr::from_value(value),
            Err(error) => error,
        }
    })
}

/// A text that names what a forked process can do.
const FORKED: &str = "a process that was forked after thalweg opened a device cannot use it: start workers with the \
                      method \"spawn\" or \"forkserver\", or set num_workers=0 (thalweg has threads of its own)";

/// Makes the exception of an error of a device.
pub(crate) fn of_device(error: thalweg::Error) -> PyErr {
    use thalweg::Error as E;
    let text = error.to_string();
    match error {
        E::Parameter { .. }
        | E::LengthMismatch { .. }
        | E::TooLarge { .. }
        | E::NoSuchDevice { .. }
        | E::DeviceSpec { .. } => PyValueError::new_err(text),
        E::OutOfMemory { .. } => of_class(
            "OutOfMemoryError",
            format!(
                "{text}. The memory of thalweg is beside that of a framework: torch.cuda.empty_cache() gives back what \
                 PyTorch keeps"
            ),
        ),
        E::PinnedBudget { .. } => of_class("OutOfMemoryError", text),
        E::Forked => of_class("ForkedError", FORKED.into()),
        _ => of_class("DeviceError", text),
    }
}

/// Makes the exception of a file that is not decoded, with the index and the name of the file.
pub(crate) fn of_file(index: u64, name: Option<&str>, cause: &str) -> PyErr {
    let label = name.map_or_else(|| format!("file {index}"), |name| format!("{name} (sample {index})"));
    let error = of_class("DecodeError", format!("{label}: {cause}"));
    Python::attach(|py| {
        let value = error.value(py);
        let set = value.setattr("index", index).and_then(|()| value.setattr("name", name));
        set.err().unwrap_or(error)
    })
}

/// Makes the exception of a JPEG file.
pub(crate) fn of_jpeg(index: usize, error: JpegError) -> PyErr {
    of_file(index as u64, None, &error.to_string())
}

/// Makes the exception of a loader.
pub(crate) fn of_loader(error: thalweg_loader::Error) -> PyErr {
    use thalweg_loader::Error as E;
    match error {
        E::Device(error) => of_device(error),
        E::Sample { index, name, cause } => match cause.downcast_ref::<SampleError>() {
            Some(SampleError::File { step, source }) => of_io(&name, step, source),
            _ => match cause.downcast_ref::<thalweg::Error>() {
                Some(error) => of_device(error.clone()),
                None => of_file(index, Some(&name), &cause.to_string()),
            },
        },
        other => PyRuntimeError::new_err(other.to_string()),
    }
}

/// Makes an `OSError` with the number of the system and the name of the file.
pub(crate) fn of_io(name: &str, step: &str, error: &io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, format!("cannot {step}: {error}"), name.to_owned())),
        None => PyOSError::new_err(format!("{name}: cannot {step}: {error}")),
    }
}

/// Makes the exception of an image processor.
pub(crate) fn of_processor(error: thalweg_processor::Error) -> PyErr {
    match error {
        thalweg_processor::Error::Device(error) => of_device(error),
        other => PyValueError::new_err(other.to_string()),
    }
}

/// Makes the exception of a pipeline.
pub(crate) fn of_vision(error: thalweg_vision::Error) -> PyErr {
    match error {
        thalweg_vision::Error::Device(error) => of_device(error),
        other => PyValueError::new_err(other.to_string()),
    }
}
