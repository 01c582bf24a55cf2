//! Runs your own kernel from your own crate. Use `cargo run` in this directory, on any machine.
//!
//! `kernels/` declares `saxpy` once. Its build script compiles the kernel to PTX, which the crate
//! embeds. The same crate, compiled for the host, has the launcher and the code that the CPU device
//! runs.

use thalweg::{Device, Error, stream_tags};
use user_kernel_kernels::saxpy;

stream_tags!(Work);

fn main() -> Result<(), Error> {
    let device = Device::best()?;
    let work = device.stream::<Work>()?;

    let n = 1_000_000;
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let x_host = work.bind(device.pinned_from(&x)?)?;
    let mut y_host = work.bind(device.pinned_from(&vec![1.0f32; n])?)?;
    let (mut x, mut y) = (work.alloc::<f32>(n)?, work.alloc::<f32>(n)?);
    work.copy_to_device(&x_host, &mut x)?;
    work.copy_to_device(&y_host, &mut y)?;
    saxpy(&work, n as u32, 2.0, &x, &mut y)?;
    work.copy_to_host(&y, &mut y_host)?;

    // The launcher refuses a buffer that is too short.
    let mut short = work.alloc::<f32>(n - 1)?;
    println!("{}", saxpy(&work, n as u32, 2.0, &x, &mut short).unwrap_err());

    let y = work.record(y_host)?.synchronize()?;
    assert!(y.iter().enumerate().all(|(i, &y)| y == 2.0 * i as f32 + 1.0));
    println!("{n} elements on {}", device.name());
    Ok(())
}
