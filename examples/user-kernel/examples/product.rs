//! Checks both matrix products and times them. With a number, the matrices have so many rows.

use first_kernel::{product_of_threads, product_of_tiles};
use thalweg::{Device, DeviceBuffer, DeviceKind, Error, On, Stream, stream_tags};

stream_tags!(Work);

type Buffer = On<Work, DeviceBuffer<f32>>;

/// A launch of one of the kernels: for the sizes `m`, `n` and `k`, `x`, `y` and `z`.
type Launch = fn(&Stream<Work>, [u32; 3], &Buffer, &Buffer, &mut Buffer) -> Result<(), Error>;

const KERNELS: [(&str, Launch); 2] = [
    ("a thread computes an element", |on, [m, n, k], x, y, z| product_of_threads(on, m, n, k, x, y, z)),
    ("a block computes a tile", |on, [m, n, k], x, y, z| product_of_tiles(on, m, n, k, x, y, z)),
];

/// Makes a matrix of small numbers.
fn matrix(rows: u32, columns: u32) -> Vec<f32> {
    (0..rows * columns).map(|i| (i.wrapping_mul(2654435761) >> 16) as f32 / 65536.0 - 0.5).collect()
}

fn main() -> Result<(), Error> {
    let device = Device::best()?;
    let on = device.stream::<Work>()?;

    for [m, n, k] in [[1, 1, 1], [33, 65, 31], [70, 20, 100], [5, 5, 0]] {
        let (x, y) = (matrix(m, k), matrix(k, n));
        let (dx, dy) = (on.upload_blocking(&x)?, on.upload_blocking(&y)?);
        for (name, launch) in KERNELS {
            let mut z = on.alloc((m * n) as usize)?;
            launch(&on, [m, n, k], &dx, &dy, &mut z)?;
            for (i, got) in on.read_blocking(&z)?.into_iter().enumerate() {
                let (row, column) = (i / n as usize * k as usize, i % n as usize);
                let products = (0..k as usize).map(|i| f64::from(x[row + i]) * f64::from(y[i * n as usize + column]));
                let want: f64 = products.sum();
                assert!((f64::from(got) - want).abs() < 1e-5, "{name}, {m} x {n} x {k}: {got} instead of {want}");
            }
        }
    }

    let side = std::env::args().nth(1).map(|side| side.parse().expect("a number of rows"));
    let side: u32 = side.unwrap_or(if device.kind() == DeviceKind::Cuda { 2048 } else { 256 });
    let x = on.upload_blocking(&matrix(side, side))?;
    let mut z = on.alloc((side * side) as usize)?;
    for (name, launch) in KERNELS {
        // The least of ten times. The first launch also loads the kernel.
        let mut least = f64::INFINITY;
        for _ in 0..10 {
            let start = on.timestamp()?;
            launch(&on, [side; 3], &x, &x, &mut z)?;
            let end = on.timestamp()?;
            end.synchronize()?;
            least = least.min(end.elapsed(&start)?.expect("both are complete").as_secs_f64());
        }
        let rate = 2.0 * f64::from(side).powi(3) / least / 1e9;
        println!("{side} x {side} on {}, {name}: {:.3} ms, {rate:.1} GFLOP/s", device.name(), least * 1e3);
    }
    Ok(())
}
