use first_kernel::saxpy;
use thalweg::{Device, Error, stream_tags};

stream_tags!(Work);

fn main() -> Result<(), Error> {
    let device = Device::best()?;
    let work = device.stream::<Work>()?;

    let n = 1_000_000;
    let numbers: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let x = work.upload_blocking(&numbers)?;
    let mut y = work.upload_blocking(&vec![1.0f32; n])?;
    saxpy(&work, n as u32, 2.0, &x, &mut y)?;
    let y = work.read_blocking(&y)?;
    assert!(numbers.iter().zip(&y).all(|(x, y)| *y == 2.0 * x + 1.0));
    println!("{n} elements on {}", device.name());

    // The launcher refuses a buffer that is too short.
    let mut short = work.alloc::<f32>(n - 1)?;
    println!("{}", saxpy(&work, n as u32, 2.0, &x, &mut short).unwrap_err());
    Ok(())
}
