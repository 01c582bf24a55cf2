//! `Pipeline`: photographs to adaptive visual tokens.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use thalweg::{AnyStream, DeviceBuffer, DeviceKind, DeviceSlice, Event, LiveBrand, Size, Stream};
use thalweg_vision::{
    Head, KeptTokens, PLANES, Pipeline as Inner, PipelineOptions, Query, TokenParams, TokenPrecision,
};

use crate::decode::{Image, JpegFiles};
use crate::errors::{of_device, of_vision};
use crate::place::{Job, Place, dtype_of};
use crate::tensor::Dtype;
use crate::wait;

/// A pipeline on one device.
#[pyclass(frozen, module = "thalweg._thalweg")]
#[derive(Debug)]
pub(crate) struct Pipeline {
    inner: Inner,
    dtype: Dtype,
}

/// Tokens that were made on a stream of the pipeline, and go to a tensor.
struct Results<'p> {
    pipeline: &'p Inner,
    kept: Event<KeptTokens>,
}

impl Job<u32> for Results<'_> {
    type Output = ();

    fn enqueue<S: LiveBrand>(self, stream: &Stream<S>, to: &mut DeviceSlice<S, u32>) -> PyResult<()> {
        let kept = stream.wait(self.kept).map_err(|returned| of_device(returned.error))?;
        let copied = stream.copy(kept.workspace().results(), to);
        let event = stream.record(kept).map_err(|returned| of_device(returned.error))?;
        self.pipeline.recycle_kept(event);
        copied.map_err(of_device)
    }
}

impl Pipeline {
    /// Copies the results of a batch to a tensor. Returns it with the places of its parts.
    fn results<'py>(
        &self,
        py: Python<'py>,
        place: &Place,
        stream: Option<usize>,
        sizes: &[Size],
        kept: Event<KeptTokens>,
    ) -> PyResult<(Py<PyAny>, Bound<'py, PyDict>)> {
        let layout = self.inner.result_layout(sizes).map_err(of_device)?;
        let job = Results { pipeline: &self.inner, kept };
        let (tensor, ()) = place.run(py, stream, &[layout.words], Dtype::I32, job)?;
        let parts = PyDict::new(py);
        for (name, range, dtype, columns) in [
            ("tokens", &layout.tokens, self.dtype, PLANES),
            ("position", &layout.position, Dtype::F32, 2),
            ("cu_seqlens", &layout.cu_seqlens, Dtype::I32, 0),
            ("patch_id", &layout.patch_id, Dtype::I32, 0),
            ("image_cu_seqlens", &layout.image_cu_seqlens, Dtype::I32, 0),
            ("counts", &layout.counts, Dtype::I32, 0),
        ] {
            let shape = if columns == 0 { vec![range.len()] } else { vec![layout.capacity, columns] };
            parts.set_item(name, (4 * range.start, shape, dtype.name()))?;
        }
        Ok((tensor, parts))
    }

    /// Makes tokens of pixels that are on the device.
    pub(crate) fn run_pixels<'py>(
        &self,
        py: Python<'py>,
        place: &Place,
        stream: Option<usize>,
        sizes: &[Size],
        pixels: Event<DeviceBuffer<u8>>,
    ) -> PyResult<(Py<PyAny>, Bound<'py, PyDict>)> {
        let submit = || wait::wait(self.inner.submit_kept_pixels_async(sizes, pixels));
        let kept = py.detach(|| thalweg::beside_captures(submit))?;
        let (kept, _pixels) = kept.map_err(|returned| of_device(returned.error))?;
        self.results(py, place, stream, sizes, kept)
    }
}

#[pymethods]
impl Pipeline {
    #[new]
    #[pyo3(signature = (place, *, patch, sides, budget, focus, fixation, foveal_bias, mix, dtype, depth, head=None, query=None))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python class")]
    fn new(
        place: &Place,
        patch: u32,
        sides: (u32, u32),
        budget: u64,
        focus: f64,
        fixation: [f32; 2],
        foveal_bias: f32,
        mix: Option<[f32; 3]>,
        dtype: &str,
        depth: usize,
        head: Option<&[u8]>,
        query: Option<Vec<f32>>,
    ) -> PyResult<Self> {
        let dtype = dtype_of(dtype, &[Dtype::F32, Dtype::F16, Dtype::Bf16])?;
        let precision = match dtype {
            Dtype::F16 => TokenPrecision::F16,
            Dtype::Bf16 => TokenPrecision::Bf16,
            _ => TokenPrecision::F32,
        };
        let params = TokenParams::default()
            .with_patch(patch)
            .with_sides(sides.0..=sides.1)
            .with_budget(budget)
            .with_focus(focus)
            .with_fixation(fixation)
            .with_foveal_bias(foveal_bias)
            .with_mix(mix);
        let options = PipelineOptions::default().with_precision(precision).with_depth(depth);
        let mut inner = Inner::with_options(place.device, params, options).map_err(of_device)?;
        match (head, query) {
            (Some(head), Some(query)) => {
                let head = Head::from_safetensors(head).map_err(of_vision)?;
                let query = Query::new(&query).map_err(of_vision)?;
                inner = inner.with_query(&head, &query).map_err(of_vision)?;
            }
            (None, None) => {}
            _ => return Err(PyValueError::new_err("head and query go together: pass both, or none")),
        }
        Ok(Self { inner, dtype })
    }

    #[pyo3(signature = (images, place, stream=None))]
    fn tokens<'py>(
        &self,
        py: Python<'py>,
        images: Vec<Bound<'py, PyAny>>,
        place: &Place,
        stream: Option<usize>,
    ) -> PyResult<(Py<PyAny>, Bound<'py, PyDict>)> {
        let images = match JpegFiles::of(crate::decode::images(&images)?) {
            Ok(files) if place.device.kind() == DeviceKind::Cuda => {
                let sizes: Vec<Size> = files.places().iter().map(|(_, size)| *size).collect();
                let decode = || {
                    let ours = AnyStream::new(place.device).map_err(of_device)?;
                    ours.enter(|s| s.record(files.decode(s)?).map_err(|returned| of_device(returned.error)))
                };
                let pixels = py.detach(|| thalweg::beside_captures(decode))?;
                return self.run_pixels(py, place, stream, &sizes, pixels);
            }
            Ok(files) => files.into_images(),
            Err(images) => images,
        };
        let images = crate::decode::decode_files(py, images)?;
        let sizes: Vec<Size> = images.iter().map(Image::size).collect();
        let mut frame =
            py.detach(|| thalweg::beside_captures(|| wait::wait(self.inner.frame_async(&sizes))?.map_err(of_device)))?;
        for (i, image) in images.iter().enumerate() {
            image.copy_to(py, frame.image_mut(i))?;
        }
        let kept = py.detach(|| thalweg::beside_captures(|| self.inner.submit_kept(frame))).map_err(of_device)?;
        self.results(py, place, stream, &sizes, kept)
    }
}
