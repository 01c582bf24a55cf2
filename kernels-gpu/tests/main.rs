//! What the launchers and the products of matrices promise, on every device, and what needs the
//! CPU's exact rounding. The kernels of vision, JPEG files and training are tested in those crates.

mod kernels;
mod launchers;
mod matmul;
