//! The extension module `thalweg._thalweg`. `lib/thalweg` has the interface that programs use.

mod augment;
mod decode;
mod errors;
mod loader;
mod logging;
mod pipeline;
mod place;
mod processor;
mod tensor;
mod wait;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _thalweg {
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        wait::start();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add_class::<tensor::Tensor>()?;
        module.add_class::<place::Place>()?;
        module.add_class::<pipeline::Pipeline>()?;
        module.add_class::<augment::Augment>()?;
        module.add_class::<loader::Loader>()?;
        module.add_class::<processor::ImageProcessor>()?;
        decode::add(module)
    }

    /// Starts to pass messages to `logging`, from this level on.
    #[pyfunction]
    fn start_logging(level: &str) -> bool {
        let level = level.parse();
        level.map(logging::start).is_ok()
    }

    /// Sets how many threads decode and process on the host.
    #[pyfunction]
    fn set_num_threads(py: Python<'_>, threads: usize) {
        py.detach(|| wait::set_threads(threads));
    }

    /// Lists the devices: name, kind, uuid, bytes of memory, compute capability.
    #[pyfunction]
    fn devices(py: Python<'_>) -> Vec<(String, String, Option<[u8; 16]>, u64, Option<(u32, u32)>)> {
        let all = py.detach(thalweg::Device::all);
        all.into_iter()
            .map(|device| {
                let capability = device.compute_capability().map(|version| (version.major, version.minor));
                (tensor::place_of(device), device.name(), device.uuid(), device.total_memory(), capability)
            })
            .collect()
    }
}
