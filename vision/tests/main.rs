//! The kernels of vision and what is computed with them, against the f64 reference and golden
//! files, on every device. The pipeline is in `tests/pipeline`: its tests hold streams at gates,
//! and have a device to themselves.

mod accuracy;
mod augment;
mod batch;
mod golden;
mod heatmap;
mod kernels;
mod query;
mod reference_golden;
mod run;

thalweg::ptx! {}
