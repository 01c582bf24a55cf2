//! What the operations that kernels call compute, against plain Rust, on every device. The kernels
//! are in the crate `simt/tests/vocabulary`. A file here tests the module of that crate with its
//! name.

mod atomics;
mod elements;
mod half;
mod instances;
mod integers;
mod math;
mod memory;
mod names;
mod panics;
mod tensor;
mod values;
mod warp;

use std::sync::Once;

use testkit::devices::{devices, report};
use thalweg::{DeviceKind, PerThread, Stream};

/// Runs `check` on every device that can run the kernels, on the calling thread's own stream there.
/// GPUs cannot if the kernels were built without a compiler for kernels, and are then reported as
/// not covered.
fn on_each_device(mut check: impl for<'l> FnMut(&Stream<PerThread<'l>>)) {
    static REPORT: Once = Once::new();
    for &device in devices() {
        if device.kind() == DeviceKind::Cuda && !vocabulary::has_ptx() {
            REPORT.call_once(|| report("NOT COVERED: GPUs (the kernels were built without a compiler for kernels)"));
            continue;
        }
        device.per_thread(&mut check).unwrap_or_else(|e| panic!("{device}: {e}"));
    }
}

/// Returns a small generator of numbers that are the same on every machine.
fn noise(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as u32
    }
}
