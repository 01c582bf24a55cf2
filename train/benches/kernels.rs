//! Times the kernels of training that memory limits, attention, and augmentation.
//!
//! ```text
//! cargo bench -p thalweg-train --bench kernels [-- augmentation | limited]
//! ```
//!
//! The kernels that memory limits are compared with a copy within the device that moves as many
//! bytes, as many as the work must read and write once. Attention has 12 heads of 64 elements in
//! `bf16` and 16 sequences; its rate counts 4 T T 64 operations for each sequence and head, and 3.5
//! times as many for forward and backward together, as `benches/peers/torch_kernels.py` does.
//! Buffers are used in turn, so that nothing is in the caches. Each time is the median between two
//! events.
//!
//! Augmentation reads images of 256 x 256 pixels once and writes 224 x 224 numbers for each of
//! their three channels.
//!
//! `augmentation` leaves out the rest, and `limited` leaves out attention, cross-entropy, AdamW by
//! a gradient of `f32`, and augmentation.
//!
//! On the CPU device the sizes are small, and no limit is known: that run only shows that the
//! program works.

use std::time::Duration;

use thalweg::simt::bf16;
use thalweg::{Device, DeviceBuffer, DeviceCopy, DeviceKind, On, Stream, stream_tags};
use thalweg_kernels::train::{
    Attention, AttentionBackward, GROUPS, PARTS, SETTINGS, adamw, adamw_bf16, attention, attention_backward,
    cross_entropy, gelu_backward_columns, gradient_norm, norm, norm_backward, norm_columns, round_columns, settings,
    sum_rows,
};
use thalweg_train::Result;
use thalweg_vision::augment::{AugmentInput, Augmentation};

stream_tags!(Bench);

type Buffer<T> = On<Bench, DeviceBuffer<T>>;

/// The bytes that pass through the caches before a buffer has its next turn.
const COLD: usize = 160 << 20;
/// Heads of attention, and the elements of one.
const HEADS: usize = 12;
const SIZE: usize = 64;

struct Bencher {
    s: Stream<Bench>,
    gpu: bool,
}

impl Bencher {
    /// Returns the median time of `op`, which gets the number of its call.
    fn time(&self, mut op: impl FnMut(usize) -> Result<()>) -> Result<Duration> {
        let (warm, runs) = if self.gpu { (3, 15) } else { (1, 1) };
        let mut marks = vec![];
        for i in 0..warm + runs {
            marks.push(self.s.timestamp()?);
            op(i)?;
        }
        marks.push(self.s.timestamp()?);
        self.s.synchronize()?;
        let mut times = vec![];
        for pair in marks[warm..].windows(2) {
            times.push(pair[1].elapsed(&pair[0])?.unwrap_or_default());
        }
        times.sort();
        Ok(times[times.len() / 2])
    }

    /// Makes so many buffers that none is in the caches at its next turn.
    fn sets<T: DeviceCopy>(&self, numbers: &[T], len: usize) -> Result<Vec<Buffer<T>>> {
        let sets = if self.gpu { (COLD / (len * size_of::<T>())).clamp(1, 15) + 1 } else { 1 };
        let all: Vec<T> = numbers.iter().copied().cycle().take(len).collect();
        (0..sets).map(|_| Ok(self.s.upload_blocking(&all)?)).collect()
    }

    /// Times `op` beside a copy that reads and writes `bytes` bytes in all.
    fn limited(&self, name: &str, bytes: usize, op: impl FnMut(usize) -> Result<()>) -> Result<()> {
        let time = self.time(op)?.as_secs_f64();
        let (from, mut to) = (self.sets(&[1u8], bytes / 2)?, self.sets(&[2u8], bytes / 2)?);
        let sets = from.len();
        let copy = self.time(|i| Ok(self.s.copy(&from[i % sets], &mut to[i % sets])?))?.as_secs_f64();
        let (us, rate, percent) = (time * 1e6, bytes as f64 / time / 1e9, 100.0 * copy / time);
        println!("  {name:48} {us:10.1} us {rate:8.1} GB/s {percent:6.1} % of a copy");
        Ok(())
    }
}

/// Numbers from -1 to 1.
fn numbers(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn optimizer(b: &Bencher, n: usize) -> Result<()> {
    let mut setting = b.s.alloc(SETTINGS)?;
    settings(&b.s, 0.9999, 1e-3, 1.0, 0.9, 0.999, 1e-8, &mut setting)?;
    let g = b.s.upload_blocking(&numbers(n))?;
    let (mut w, mut m, mut v) = (b.s.upload_blocking(&numbers(n))?, b.s.alloc_zeroed(n)?, b.s.alloc_zeroed(n)?);
    b.limited(&format!("adamw, {n} weights"), 28 * n, |_| {
        Ok(adamw(&b.s, n as u32, &setting, &g, &mut w, &mut m, &mut v)?)
    })
}

/// The optimizer by a gradient of `bf16`, and the norm of a gradient.
fn by_bf16(b: &Bencher, n: usize) -> Result<()> {
    let mut setting = b.s.alloc(SETTINGS)?;
    settings(&b.s, 0.9999, 1e-3, 1.0, 0.9, 0.999, 1e-8, &mut setting)?;
    let g = b.s.upload_blocking(&numbers(n))?;
    let (mut w, mut m, mut v) = (b.s.upload_blocking(&numbers(n))?, b.s.alloc_zeroed(n)?, b.s.alloc_zeroed(n)?);
    let narrow: Vec<bf16> = numbers(n).into_iter().map(bf16::from_f32).collect();
    let (g16, mut rounded) = (b.s.upload_blocking(&narrow)?, b.s.alloc::<bf16>(n)?);
    b.limited(&format!("adamw by bf16, {n} weights"), 28 * n, |_| {
        Ok(adamw_bf16(&b.s, &setting, &g16, &mut w, [&mut m, &mut v], &mut rounded)?)
    })?;
    let (mut parts, mut norm) = (b.s.alloc(PARTS)?, b.s.alloc(1)?);
    b.limited(&format!("norm of {n} numbers"), 4 * n, |_| {
        Ok(gradient_norm(&b.s, &g, 1.0, &mut parts, &mut norm, &mut setting)?)
    })
}

/// Sums of columns, alone and on the way.
fn sums(b: &Bencher, rows: usize, width: usize) -> Result<()> {
    let (n, shape) = (rows * width, [rows as u32, width as u32]);
    let wide = b.sets(&numbers(1 << 20), n)?;
    let narrow: Vec<bf16> = numbers(1 << 20).into_iter().map(bf16::from_f32).collect();
    let (x, mut d) = (b.sets(&narrow, n)?, b.sets(&narrow, n)?);
    let (wides, sets) = (wide.len(), x.len());
    let (mut parts, mut to) = (b.s.alloc(GROUPS * width)?, b.s.alloc(width)?);
    let name = |what: &str| format!("{what} of {rows} x {width}");
    b.limited(&name("sums of columns, bf16,"), 2 * n, |i| {
        Ok(sum_rows(&b.s, shape, false, &x[i % sets], &mut parts, &mut to)?)
    })?;
    b.limited(&name("gradient of GELU, sums"), 6 * n, |i| {
        let i = i % sets;
        Ok(gelu_backward_columns(&b.s, shape, false, false, &x[i], &mut d[i], &mut parts, &mut to)?)
    })?;
    b.limited(&name("rounding, sums"), 6 * n, |i| {
        Ok(round_columns(&b.s, shape, false, &wide[i % wides], &mut d[i % sets], &mut parts, &mut to)?)
    })
}

fn norms(b: &Bencher, rows: usize, columns: usize) -> Result<()> {
    let (n, shape) = (rows * columns, [rows as u32, columns as u32]);
    let x = b.sets(&numbers(1 << 20), n)?;
    let sets = x.len();
    let (weight, bias) = (b.s.upload_blocking(&numbers(columns))?, b.s.upload_blocking(&numbers(columns))?);
    let mut stats = b.s.alloc_zeroed(2 * rows)?;
    let name = |what: &str| format!("{what} of {rows} x {columns}");
    let mut y = b.sets(&[0f32], n)?;
    b.limited(&name("layer norm, f32,"), 8 * n + 8 * rows, |i| {
        Ok(norm(&b.s, shape, 1e-5, &x[i % sets], [&weight, &bias], &mut stats, &mut y[i % sets])?)
    })?;
    let mut half = b.sets(&[bf16::ZERO], n)?;
    let halves = half.len();
    b.limited(&name("layer norm, bf16,"), 6 * n + 8 * rows, |i| {
        Ok(norm(&b.s, shape, 1e-5, &x[i % sets], [&weight, &bias], &mut stats, &mut half[i % halves])?)
    })?;
    drop(half);
    let mut dx = b.sets(&[0f32], n)?;
    b.limited(&name("gradient of the rows"), 12 * n + 8 * rows, |i| {
        let (i, [r, c]) = (i % sets, shape);
        Ok(norm_backward(&b.s, r, c, false, &y[i], &x[i], &stats, &weight, &mut dx[i])?)
    })?;
    let mut parts = b.s.alloc(2 * GROUPS * columns)?;
    let (mut dw, mut db) = (b.s.alloc_zeroed(columns)?, b.s.alloc_zeroed(columns)?);
    b.limited(&name("gradient of weight and bias"), 8 * n + 8 * rows, |i| {
        let i = i % sets;
        Ok(norm_columns(&b.s, shape, false, &y[i], &x[i], &stats, &mut parts, [&mut dw, &mut db])?)
    })
}

fn losses(b: &Bencher, rows: usize, classes: usize) -> Result<()> {
    let n = rows * classes;
    let z = b.sets(&numbers(1 << 20), n)?;
    let sets = z.len();
    let labels: Vec<i32> = (0..rows).map(|row| (row * 7919 % classes) as i32).collect();
    let (labels, mut losses, mut d) = (b.s.upload_blocking(&labels)?, b.s.alloc(rows)?, b.s.alloc(n)?);
    b.limited(&format!("cross-entropy of {rows} x {classes}"), 8 * n, |i| {
        let (r, c) = (rows as u32, classes as u32);
        Ok(cross_entropy(&b.s, r, c, 1.0 / rows as f32, &z[i % sets], &labels, &mut losses, &mut d)?)
    })
}

fn heads(b: &Bencher, sequences: usize, tokens: usize) -> Result<()> {
    let (rows, width) = (sequences * tokens, HEADS * SIZE);
    let values: Vec<bf16> = numbers(1 << 20).into_iter().map(|v| bf16::from_f32(2.0 * v)).collect();
    let (mut qkv, mut dout) = (b.sets(&values, 3 * rows * width)?, b.sets(&values, rows * width)?);
    qkv.truncate(4);
    dout.truncate(1);
    let sets = qkv.len();
    let cu: Vec<i32> = (0..=sequences).map(|i| (i * tokens) as i32).collect();
    let cu = b.s.upload_blocking(&cu)?;
    let (mut out, mut logs) = (b.s.alloc::<bf16>(rows * width)?, b.s.alloc(rows * HEADS)?);
    let (mut deltas, mut dqkv) = (b.s.alloc(rows * HEADS)?, b.s.alloc::<bf16>(3 * rows * width)?);
    let shape = [HEADS as u32, SIZE as u32];
    let mut forward = |i: usize| {
        let qkv = &qkv[i % sets];
        Ok(attention(
            &b.s,
            Attention {
                rows: [rows as u32; 2],
                heads: shape,
                prefix: u32::MAX,
                prefixes: None,
                cu_q: &cu,
                cu_k: &cu,
                q: qkv,
                k: qkv.slice(width..)?,
                v: qkv.slice(2 * width..)?,
                strides: [3 * width as u32; 2],
                out: &mut out,
                logs: &mut logs,
            },
        )?)
    };
    let one = b.time(&mut forward)?.as_secs_f64();
    forward(0)?;
    let back = b
        .time(|_| {
            Ok(attention_backward(
                &b.s,
                AttentionBackward {
                    rows: rows as u32,
                    heads: shape,
                    prefix: u32::MAX,
                    prefixes: None,
                    cu_seqlens: &cu,
                    qkv: &qkv[0],
                    out: &out,
                    dout: &dout[0],
                    logs: &logs,
                    deltas: &mut deltas,
                    dqkv: &mut dqkv,
                },
            )?)
        })?
        .as_secs_f64();
    let work = 4.0 * (sequences * tokens * tokens * HEADS * SIZE) as f64;
    let rate = |work: f64, time: f64| format!("{:9.3} ms {:6.1} TFLOP/s", time * 1e3, work / time / 1e12);
    println!(
        "  attention, {sequences} x {tokens}: forward {}, backward {}, both {}",
        rate(work, one),
        rate(2.5 * work, back),
        rate(3.5 * work, one + back)
    );
    Ok(())
}

/// Times the augmentation that is the default, from images of 256 x 256 pixels.
fn augmentation(b: &Bencher, images: usize, size: usize) -> Result<()> {
    const SIDE: usize = 256;
    let (one, number) = (3 * SIDE * SIDE, 3 * size * size);
    let pixels: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let (rgb, mut out) = (b.sets(&pixels, images * one)?, b.sets(&[0f32], images * number)?);
    let options = Augmentation::default();
    let mut augmenter = options.augmenter(&b.s, size as u32, images)?;
    let mut samples = vec![];
    for i in 0..images {
        let parameters = options.parameters(7, 0, i as u64, SIDE as u32, SIDE as u32)?;
        samples.push(AugmentInput { start: i * one, height: SIDE as u32, width: SIDE as u32, parameters });
    }
    augmenter.prepare(&b.s, &samples)?;
    let (inputs, outputs) = (rgb.len(), out.len());
    let mut launch = |i: usize| Ok(augmenter.launch(&b.s, &rgb[i % inputs], &mut out[i % outputs])?);
    let time = b.time(&mut launch)?.as_secs_f64();
    let name = format!("augmentation, {:.0} images/s of {images}", images as f64 / time);
    b.limited(&name, images * (one + 4 * number), launch)
}

fn main() -> Result<()> {
    // A test runner that asks for a list of tests, or runs them, gets no measurements.
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return Ok(());
    }
    let device = Device::best()?;
    let b = Bencher { s: device.stream()?, gpu: device.kind() == DeviceKind::Cuda };
    println!("{device}: {}", device.name());
    let only = |what: &str| std::env::args().any(|argument| argument == what);
    if !only("augmentation") {
        limited(&b)?;
        if only("limited") {
            return Ok(());
        }
        others(&b)?;
    }
    let (batches, size): (&[usize], _) = if b.gpu { (&[64, 256], 224) } else { (&[2], 32) };
    for &images in batches {
        augmentation(&b, images, size)?;
    }
    Ok(())
}

/// Times the kernels of training that memory limits, but for the loss and the optimizer by a
/// gradient of `f32`.
fn limited(b: &Bencher) -> Result<()> {
    let [weights, rows] = if b.gpu { [1 << 25, 25216] } else { [1 << 20, 64] };
    for columns in [768, 1024, 2048] {
        norms(b, rows, columns)?;
    }
    // The rows of a token of text, of an image, and of 8, 16 and 32 images.
    let few: &[usize] = if b.gpu { &[1, 196, 1568, 3136, 6272] } else { &[1] };
    for &rows in few {
        norms(b, rows, 768)?;
    }
    let shapes: &[_] = if b.gpu { &[[4096, 1024], [4096, 4096], [16384, 4096], [8192, 8192]] } else { &[[64, 64]] };
    for &[rows, columns] in shapes {
        sums(b, rows, columns)?;
    }
    by_bf16(b, weights)
}

/// Times the optimizer, the loss and attention.
fn others(b: &Bencher) -> Result<()> {
    optimizer(b, if b.gpu { 1 << 27 } else { 1 << 20 })?;
    let classes = if b.gpu { 32000 } else { 1000 };
    losses(b, if b.gpu { 8192 } else { 64 }, classes)?;
    let lengths: &[usize] = if b.gpu { &[197, 1024, 4096] } else { &[64] };
    for &tokens in lengths {
        heads(b, if b.gpu { 16 } else { 2 }, tokens)?;
    }
    Ok(())
}
