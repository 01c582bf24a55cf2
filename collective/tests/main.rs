//! Collective operations of ranks that are threads or processes. What needs a Rust compiler is in
//! `tests/compiler.rs`.

mod faults;
mod gradients;
mod greeting;
mod nccl;
mod operations;
mod processes;
mod store;
mod support;
