//! Layers, models, optimizer, checkpoints and ranks. The overlap patterns are in `tests/overlap`:
//! they measure what a device does, and have it to themselves.

mod answers;
mod data_parallel;
mod distributed;
mod gate;
mod golden;
mod hostile_files;
mod kernels;
mod layers;
mod server;
mod state;
mod support;
mod vision_language;
