//! The helpers that benchmarks share.

use thalweg::{Device, Error};

/// Runs `measure` on the first GPU, if there is one, and then on the CPU device. A test runner that
/// asks for a list of tests, or runs them, gets no measurements.
pub(crate) fn on_each_device(measure: impl Fn(Device) -> Result<(), Error>) -> Result<(), Error> {
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return Ok(());
    }
    match Device::cuda(0) {
        Ok(gpu) => measure(gpu)?,
        Err(why) => println!("not measured on a GPU: {why}"),
    }
    measure(Device::cpu()?)
}
