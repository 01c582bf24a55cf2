//! The command, as a user runs it. What needs a Rust compiler is in `tests/compiler.rs`.

mod augment;
mod decode;
mod failures;
mod hostile_files;
mod images;
mod jobs;
mod launch;
mod process;
mod query;
mod questions;
mod results;
mod support;
mod tokenizer;
mod trace;
mod train;
mod train_ranks;
mod trees;
