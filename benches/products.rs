//! Measures products of matrices, `thalweg_kernels::linear::matmul`.
//!
//! ```text
//! cargo bench --bench products
//! ```
//!
//! `cargo test --bench products` measures the same with what the tests have built.
//!
//! Runs on the first GPU, if there is one, and on the CPU device. Some elements of each product are
//! compared with sums in f64 first. The table shows the median time of a product and its rate, where
//! each multiplication and each addition counts as an operation. A is [M, K] and B is [K, N] or, where
//! it says so, transposed.

mod support;

use std::time::{Duration, Instant};

use thalweg::{AnyStream, Device, Error, LiveBrand, Stream};
use thalweg_kernels::linear::{Activation, Epilogue, Matrix, MatrixMut, Operand, Product, matmul};
use thalweg_simt::{bf16, f16};

/// M, N and K: squares, and the products of layers with few features.
const SHAPES: [[usize; 3]; 6] =
    [[512; 3], [1024; 3], [2048, 64, 64], [2048, 64, 256], [2048, 64, 3328], [2048, 3328, 64]];
/// The least time to spend on a product.
const LEAST: Duration = Duration::from_millis(400);

trait Number: Operand + bytemuck::Pod {
    fn of(v: f32) -> Self;
    fn value(self) -> f64;
}
macro_rules! numbers {
    ($($t:ty, $of:expr;)*) => {$(
        impl Number for $t {
            fn of(v: f32) -> Self {
                $of(v)
            }
            fn value(self) -> f64 {
                self.into()
            }
        }
    )*};
}
numbers! {
    f32, |v| v;
    f16, f16::from_f32;
    bf16, bf16::from_f32;
}

/// Numbers between -1 and 1.
fn numbers<T: Number>(n: usize, seed: u32) -> Vec<T> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        T::of((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    std::iter::repeat_with(next).take(n).collect()
}

fn measure<S: LiveBrand, T: Number>(
    s: &Stream<S>,
    [m, n, k]: [usize; 3],
    transposed: [bool; 2],
    gelu: bool,
) -> Result<f64, Error>
where
    f32: Product<T>,
{
    let [x, y] = [numbers::<T>(m * k, 1), numbers::<T>(k * n, 2)];
    let [a, b] = [s.upload_blocking(&x)?, s.upload_blocking(&y)?];
    let bias = s.upload_blocking(&numbers::<f32>(n, 3))?;
    let mut c = s.alloc::<f32>(m * n)?;
    let [ta, tb] = transposed;
    let mut run = || {
        let a = if ta { Matrix::new(&a, k, m).transposed() } else { Matrix::new(&a, m, k) };
        let b = if tb { Matrix::new(&b, n, k).transposed() } else { Matrix::new(&b, k, n) };
        let (bias, activation) = if gelu { (Some(&*bias), Activation::GeluTanh) } else { (None, Activation::None) };
        let epilogue = Epilogue { bias, activation, ..Epilogue::default() };
        let start = Instant::now();
        matmul(s, 1, a, b, &epilogue, MatrixMut::new(&mut c, m, n))?;
        s.synchronize()?;
        Ok::<_, Error>(start.elapsed())
    };
    let start = Instant::now();
    let mut times = vec![run()?];
    while start.elapsed() < LEAST || times.len() < 5 {
        times.push(run()?);
    }
    if !gelu {
        let c = s.read_blocking(&c)?;
        for at in (0..m * n).step_by(997) {
            let (row, column) = (at / n, at % n);
            let x = (0..k).map(|i| x[if ta { i * m + row } else { row * k + i }].value());
            let y = (0..k).map(|i| y[if tb { column * k + i } else { i * n + column }].value());
            let sum: f64 = x.zip(y).map(|(x, y)| x * y).sum();
            let error = (f64::from(c[at]) - sum).abs();
            assert!(error < 1e-6 * k as f64, "{} is not {sum}", c[at]);
        }
    }
    times.sort();
    Ok(times[times.len() / 2].as_secs_f64())
}

fn main() -> Result<(), Error> {
    support::on_each_device(|device: Device| {
        println!("{device}: {}", device.name());
        println!("  {:6} {:>5} {:>5} {:>5}  {:34} {:>10} {:>9}", "type", "M", "N", "K", "", "us", "GFLOP/s");
        AnyStream::new(device)?.enter(|s| {
            let row = |name: &str, [m, n, k]: [usize; 3], what: &str, seconds: f64| {
                let rate = (2 * m * n * k) as f64 / seconds / 1e9;
                println!("  {name:6} {m:>5} {n:>5} {k:>5}  {what:34} {:>10.1} {rate:>9.1}", seconds * 1e6);
            };
            for shape in SHAPES {
                row("f32", shape, "", measure::<_, f32>(s, shape, [false, false], false)?);
                row("f32", shape, "B transposed", measure::<_, f32>(s, shape, [false, true], false)?);
                row("f32", shape, "A transposed", measure::<_, f32>(s, shape, [true, false], false)?);
                row("f32", shape, "B transposed, bias and GELU", measure::<_, f32>(s, shape, [false, true], true)?);
            }
            for shape in [[512; 3], [2048, 64, 256]] {
                row("f16", shape, "B transposed", measure::<_, f16>(s, shape, [false, true], false)?);
                row("bf16", shape, "B transposed", measure::<_, bf16>(s, shape, [false, true], false)?);
            }
            Ok(())
        })
    })
}
