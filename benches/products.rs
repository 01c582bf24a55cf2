//! Measures products of matrices, `thalweg_kernels::linear::matmul`.
//!
//! ```text
//! cargo bench --bench products
//! ```
//!
//! `cargo test --bench products` measures the same with what the tests have built. `-- f32` behind
//! either command measures only the operands of that type. `-- training` measures, on a GPU, the
//! products of a training step of a vision transformer (ViT-B, 196 tokens, batches of 8, 32
//! and 128) instead.
//!
//! Runs on the first GPU, if there is one, and on the CPU device. Some elements of each product are
//! compared with sums in f64 too. The table shows the median time of a product and its rate, where
//! each multiplication and each addition counts as an operation. A is [M, K] and B is [K, N]. The
//! forms say which of them is stored transposed: `nt` is B, `tn` is A.
//!
//! On the CPU device, the time includes the launch and the wait. On a GPU, ten products follow one
//! another between two events, after a rest of 4 ms, so that the power limit does not decide.
//! `benches/peers/cublas.py` times cuBLAS in the same way and in the same form.

mod support;

use std::time::{Duration, Instant};

use thalweg::{AnyStream, Device, DeviceKind, Error, LiveBrand, Stream};
use thalweg_kernels::linear::{
    Activation, Epilogue, Matrix, MatrixMut, Operand, Product, matmul_with_scratch, scratch_len,
};
use thalweg_simt::{bf16, f16};

/// M, N and K on the CPU device: squares, and the products of layers with few features.
const SHAPES: [[usize; 3]; 6] =
    [[512; 3], [1024; 3], [2048, 64, 64], [2048, 64, 256], [2048, 64, 3328], [2048, 3328, 64]];
/// M, N and K on a GPU: a square, and the products of a vision transformer's layers.
const LARGE: [[usize; 3]; 4] = [[4096; 3], [8192, 3072, 768], [8192, 768, 3072], [3152, 2304, 768]];
/// The rows of batches of 8, 32 and 128 images, the width of ViT-B.
const ROWS: [usize; 3] = [8 * 196, 32 * 196, 128 * 196];
const WIDTH: usize = 768;
/// The products between two events, and the rest before them.
const GROUP: u32 = 10;
const REST: Duration = Duration::from_millis(4);
/// The least time to spend on a product of the CPU device.
const LEAST: Duration = Duration::from_millis(400);

trait Number: Operand + bytemuck::Pod {
    const NAME: &'static str;
    /// The relative error of a rounding.
    const ROUNDING: f64;
    fn of(v: f32) -> Self;
    fn value(self) -> f64;
}
macro_rules! numbers {
    ($($t:ident, $digits:literal, $of:expr;)*) => {$(
        impl Number for $t {
            const NAME: &'static str = stringify!($t);
            const ROUNDING: f64 = 1.0 / (1u64 << $digits) as f64;
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
    f32, 24, |v| v;
    f16, 11, f16::from_f32;
    bf16, 8, bf16::from_f32;
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

/// The work on the sums.
#[derive(Clone, Copy, PartialEq)]
enum Extra {
    None,
    Gelu,
    Residual,
    Accumulate,
}

/// A kind of product.
#[derive(Clone, Copy)]
struct Kind {
    shape: [usize; 3],
    form: &'static str,
    extra: Extra,
}

fn measure<S: LiveBrand, T: Number, C: Number + Product<T>>(s: &Stream<S>, kind: Kind) -> Result<f64, Error> {
    let Kind { shape: [m, n, k], form, extra } = kind;
    let (ta, tb) = (form == "tn", form == "nt");
    let [x, y] = [numbers::<T>(m * k, 1), numbers::<T>(k * n, 2)];
    let [a, b] = [s.upload_blocking(&x)?, s.upload_blocking(&y)?];
    let bias = s.upload_blocking(&numbers::<C>(n, 3))?;
    let residual = s.upload_blocking(&numbers::<C>(if extra == Extra::Residual { m * n } else { 1 }, 4))?;
    let mut c = s.alloc_zeroed::<C>(m * n)?;
    let mut scratch = s.alloc(scratch_len(s)?)?;
    let mut run = || {
        let a = if ta { Matrix::new(&a, k, m).transposed() } else { Matrix::new(&a, m, k) };
        let b = if tb { Matrix::new(&b, n, k).transposed() } else { Matrix::new(&b, k, n) };
        let epilogue = Epilogue {
            bias: matches!(extra, Extra::Gelu | Extra::Residual).then_some(&*bias),
            activation: if extra == Extra::Gelu { Activation::GeluTanh } else { Activation::None },
            residual: (extra == Extra::Residual).then(|| Matrix::new(&residual, m, n)),
            accumulate: extra == Extra::Accumulate,
        };
        matmul_with_scratch(s, &mut scratch, 1, a, b, &epilogue, MatrixMut::new(&mut c, m, n))
    };
    let mut times = Vec::new();
    let start = Instant::now();
    if s.device().kind() == DeviceKind::Cuda {
        while times.len() < 11 {
            s.synchronize()?;
            std::thread::sleep(REST);
            run()?;
            let start = s.timestamp()?;
            (0..GROUP).try_for_each(|_| run())?;
            let end = s.timestamp()?;
            end.synchronize()?;
            times.push(end.elapsed(&start)?.expect("both are complete") / GROUP);
        }
    } else {
        while start.elapsed() < LEAST || times.len() < 5 {
            let start = Instant::now();
            run()?;
            s.synchronize()?;
            times.push(start.elapsed());
        }
    }
    if extra == Extra::None {
        let c = s.read_blocking(&c)?;
        for at in (0..m * n).step_by(m * n / 263) {
            let (row, column) = (at / n, at % n);
            let x = (0..k).map(|i| x[if ta { i * m + row } else { row * k + i }].value());
            let y = (0..k).map(|i| y[if tb { column * k + i } else { i * n + column }].value());
            let sum: f64 = x.zip(y).map(|(x, y)| x * y).sum();
            let error = (c[at].value() - sum).abs();
            assert!(error < 1e-6 * k as f64 + C::ROUNDING * sum.abs(), "{} is not {sum}", c[at].value());
        }
    }
    times.sort();
    Ok(times[times.len() / 2].as_secs_f64())
}

fn table<S: LiveBrand, T: Number, C: Number + Product<T>>(
    s: &Stream<S>,
    shapes: &[[usize; 3]],
    forms: &[&'static str],
    extras: &[Extra],
) -> Result<(), Error> {
    let mut only = std::env::args().skip(1).filter(|argument| ["f32", "f16", "bf16"].contains(&&**argument)).peekable();
    if only.peek().is_some() && !only.any(|name| name == T::NAME) {
        return Ok(());
    }
    for &shape in shapes {
        for &form in forms {
            for &extra in extras {
                let seconds = measure::<S, T, C>(s, Kind { shape, form, extra })?;
                let [m, n, k] = shape;
                let rate = (2 * m * n * k) as f64 / seconds / 1e9;
                let what = match extra {
                    Extra::None => "",
                    Extra::Gelu => "bias, GELU",
                    Extra::Residual => "bias, residual",
                    Extra::Accumulate => "added to C",
                };
                let types = format!("{} to {}", T::NAME, C::NAME);
                println!(
                    "  {types:12} {m:>5} {n:>5} {k:>5} {form} {what:15} {:>9.1} us {rate:>9.1} GFLOP/s",
                    seconds * 1e6
                );
            }
        }
    }
    Ok(())
}

/// Measures the products of a block, forward and backward. The encoder is not trained, so it has
/// the first four only, and GELU in the third.
fn training<S: LiveBrand>(s: &Stream<S>) -> Result<(), Error> {
    use Extra::{Gelu, None, Residual};
    let w = WIDTH;
    let only = |rows: usize| std::env::args().any(|argument| argument == rows.to_string());
    let all = !ROWS.into_iter().any(only);
    for rows in ROWS.into_iter().filter(|&rows| all || only(rows)) {
        table::<_, bf16, bf16>(s, &[[rows, 3 * w, w]], &["nt"], &[None])?;
        table::<_, bf16, f32>(s, &[[rows, w, w]], &["nt"], &[Residual])?;
        table::<_, bf16, bf16>(s, &[[rows, 4 * w, w]], &["nt"], &[None, Gelu])?;
        table::<_, bf16, f32>(s, &[[rows, w, 4 * w]], &["nt"], &[Residual])?;
        table::<_, bf16, bf16>(s, &[[rows, 4 * w, w], [rows, w, w]], &["nn"], &[None])?;
        table::<_, bf16, f32>(s, &[[rows, w, 4 * w], [rows, w, 3 * w]], &["nn"], &[None])?;
        let gradients = [[w, 4 * w, rows], [4 * w, w, rows], [w, w, rows], [3 * w, w, rows]];
        table::<_, bf16, f32>(s, &gradients, &["tn"], &[None])?;
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    support::on_each_device(|device: Device| {
        println!("{device}: {}", device.name());
        let gpu = device.kind() == DeviceKind::Cuda;
        AnyStream::new(device)?.enter(|s| {
            use Extra::{Accumulate, Gelu, None, Residual};
            if std::env::args().any(|argument| argument == "training") {
                return if gpu { training(s) } else { Ok(()) };
            }
            if gpu {
                table::<_, bf16, bf16>(s, &LARGE, &["nt", "nn", "tn"], &[None, Gelu, Residual])?;
                table::<_, bf16, f32>(s, &LARGE, &["nt"], &[None, Gelu, Residual, Accumulate])?;
                table::<_, f16, f16>(s, &LARGE, &["nt"], &[None])?;
                return table::<_, f32, f32>(s, &LARGE, &["nt", "nn", "tn"], &[None, Residual]);
            }
            table::<_, f32, f32>(s, &SHAPES, &["nn", "tn"], &[None])?;
            table::<_, f32, f32>(s, &SHAPES, &["nt"], &[None, Gelu])?;
            table::<_, f16, f32>(s, &[[512; 3], [2048, 64, 256]], &["nt"], &[None])?;
            table::<_, bf16, f32>(s, &[[512; 3], [2048, 64, 256]], &["nt"], &[None])
        })
    })
}
