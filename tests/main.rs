//! Streams: the states of resources, graphs, patterns, and every hole in them that was found. These
//! tests may run beside one another; what measures a device is in `tests/alone.rs`, and what needs
//! a Rust compiler in `tests/compiler.rs`.

mod foreign;
mod forks;
mod graphs;
mod logging;
mod overlap_parts;
mod regions;
mod shared_graphs;
mod soundness;
mod states;
mod streams;
mod trace;

thalweg::ptx! {}
