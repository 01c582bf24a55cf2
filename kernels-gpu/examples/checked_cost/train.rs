//! The family `train`: 64 rows, and heads of each size.

use thalweg_kernels::train;
use thalweg_simt::bf16;
use thalweg_simt::host::{DeviceSlice, LaunchError};

use crate::device::{Timed, buffer, number, of, zeros};

const ROWS: usize = 64;

/// Makes a buffer of numbers that look random.
fn numbers(len: usize) -> &'static mut DeviceSlice<(), f32> {
    buffer(len, number)
}

/// Launches the kernels for activations of one type, whose numbers `value` makes.
pub(crate) fn launch<T: train::TrainElement>(on: &Timed, value: impl Fn(usize) -> T) -> Result<(), LaunchError> {
    let r = ROWS as u32;
    let activations = |len| buffer(len, &value);
    // Few rows have the kernels of wide ones.
    for (rows, width) in [(2112, 768), (2112, 1024), (ROWS, 2048)] {
        let (n, r, c) = (rows * width, rows as u32, width as u32);
        let (x, weight, stats) = (numbers(n), numbers(width), zeros(2 * rows));
        train::norm::<(), _, T>(on, [r, c], 1e-5, x, [weight, numbers(width)], stats, activations(n))?;
        train::norm_backward(on, r, c, true, numbers(n), x, stats, weight, numbers(n))?;
    }
    let width = 768;
    let (n, c) = (ROWS * width, width as u32);
    let (shape, x, stats) = ([r, c], numbers(n), numbers(2 * ROWS));
    let parts = zeros(2 * train::GROUPS * width);
    train::norm_columns(on, shape, false, numbers(n), numbers(n), stats, parts, [zeros(width), zeros(width)])?;
    // Also a number of elements that is no number of words.
    for n in [n, n - 1] {
        train::gelu::<(), _, T>(on, false, activations(n), activations(n))?;
        train::gelu_backward::<(), _, T>(on, false, activations(n), activations(n))?;
        train::round(on, numbers(n), buffer(n, |_| bf16::from_f32(0.0)))?;
    }
    train::products_with_two(on, shape, false, x, numbers(2 * ROWS), parts, zeros(2 * width))?;
    train::sum_rows::<(), _, T>(on, shape, false, activations(n), parts, zeros(width))?;
    train::gelu_backward_columns::<(), _, T>(
        on,
        shape,
        false,
        false,
        activations(n),
        activations(n),
        parts,
        zeros(width),
    )?;
    train::round_columns(on, shape, false, x, buffer(n, |_| bf16::from_f32(0.0)), parts, zeros(width))?;
    for size in [16, 32, 64] {
        attention::<T>(on, size, &value)?;
    }
    let ends = of(&[0, r as i32]);
    train::pool(on, r, c, 1, false, ends, x, zeros(width))?;
    train::pool_backward(on, r, c, 1, false, ends, numbers(width), zeros(n))?;
    let labels = buffer(ROWS, |i| i as i32);
    train::cross_entropy(on, r, c, 1.0, x, labels, zeros(ROWS), zeros(n))?;
    let many = 4096;
    train::cross_entropy(on, r, many as u32, 1.0, numbers(ROWS * many), labels, zeros(ROWS), zeros(ROWS * many))?;
    train::argmax(on, r, c, x, zeros(ROWS))?;
    let settings = zeros(train::SETTINGS);
    train::settings(on, 0.99, 1e-3, 1.0, 0.9, 0.999, 1e-8, settings)?;
    train::gradient_norm(on, x, 1.0, zeros(train::PARTS), zeros(1), settings)?;
    train::adamw(on, n as u32, settings, x, numbers(n), zeros(n), zeros(n))?;
    // Also a number of weights that is no multiple of four.
    for n in [n, n - 1] {
        let (gradient, rounded) = (buffer(n, |i| bf16::from_f32(number(i))), buffer(n, |_| bf16::from_f32(0.0)));
        train::adamw_bf16(on, settings, gradient, numbers(n), [zeros(n), zeros(n)], rounded)?;
    }
    let pixels = 3 * 64 * 64;
    train::patches::<(), _, T>(on, [1, 3, 64, 16], numbers(pixels), activations(pixels))?;
    train::positions(on, 1, r - 1, 1, c, numbers(n - width), numbers(width), numbers(n), zeros(n))?;
    train::text(on, r, 100, r, c, 0, labels, numbers(100 * width), numbers(n), zeros(n))
}

/// Attention of two heads of `size` elements, and its gradient.
fn attention<T: train::TrainElement>(on: &Timed, size: usize, value: &impl Fn(usize) -> T) -> Result<(), LaunchError> {
    let (heads, width) = (2, 2 * size);
    let n = ROWS * width;
    let activations = |len| buffer(len, value);
    let ends: &DeviceSlice<(), i32> = of(&[0, ROWS as i32]);
    let (out, logs) = (activations(n), zeros(ROWS * heads));
    let attention = train::Attention::<(), T> {
        rows: [ROWS as u32; 2],
        heads: [heads as u32, size as u32],
        prefix: u32::MAX,
        prefixes: None,
        cu_q: ends,
        cu_k: ends,
        q: activations(n),
        k: activations(n),
        v: activations(n),
        strides: [width as u32; 2],
        out,
        logs,
    };
    train::attention(on, attention)?;
    let backward = train::AttentionBackward::<(), T> {
        rows: ROWS as u32,
        heads: [heads as u32, size as u32],
        prefix: u32::MAX,
        prefixes: None,
        cu_seqlens: ends,
        qkv: activations(3 * n),
        out,
        dout: activations(n),
        logs,
        deltas: zeros(ROWS * heads),
        dqkv: activations(3 * n),
    };
    train::attention_backward(on, backward)
}
