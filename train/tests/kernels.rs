//! Each kernel of training against a plain reference in f64, on every device: random shapes with
//! odd extents, sequences of length 1, one sequence, both types of activations.

use std::ops::Range;

use proptest::prelude::*;
use proptest::sample::select;
use testkit::oracle::{erf, gelu};
use thalweg::simt::bf16;
use thalweg::{Device, DeviceBuffer, DeviceCopy, DeviceSlice, LiveBrand, On, Stream, stream_tags};
use thalweg_kernels::train as kernels;
use thalweg_kernels::train::{AppendRows, Attention, AttentionBackward, GROUPS, PAGE, PagedAttention, TrainElement};

use crate::support::{Random, on_each_device};

stream_tags!(Work);

/// The type of activations, as the reference sees it.
trait Activation: TrainElement + DeviceCopy {
    /// The error that is allowed in a result.
    const ERROR: f64;
    fn of(v: f32) -> Self;
    fn value(self) -> f32;
}
impl Activation for f32 {
    const ERROR: f64 = 2e-6;
    fn of(v: f32) -> Self {
        v
    }
    fn value(self) -> f32 {
        self
    }
}
impl Activation for bf16 {
    const ERROR: f64 = 4e-3;
    fn of(v: f32) -> Self {
        Self::from_f32(v)
    }
    fn value(self) -> f32 {
        self.to_f32()
    }
}

fn up<S: LiveBrand, T: DeviceCopy>(s: &Stream<S>, v: &[T]) -> On<S, DeviceBuffer<T>> {
    s.upload_blocking(v).unwrap()
}

/// Makes room whose contents show if they are used.
fn room<S: LiveBrand, T: Activation>(s: &Stream<S>, len: usize) -> On<S, DeviceBuffer<T>> {
    up(s, &vec![T::of(f32::NAN); len])
}

fn read<S: LiveBrand, T: Activation>(s: &Stream<S>, x: &DeviceSlice<S, T>) -> Vec<f32> {
    s.read_blocking(x).unwrap().into_iter().map(T::value).collect()
}

/// Random activations, and the numbers that they are.
fn activations<T: Activation>(random: &mut Random, len: usize) -> (Vec<T>, Vec<f64>) {
    let rounded: Vec<T> = random.numbers(len).into_iter().map(T::of).collect();
    let values = rounded.iter().map(|v| f64::from(v.value())).collect();
    (rounded, values)
}

fn wide(v: &[f32]) -> Vec<f64> {
    v.iter().map(|&v| f64::from(v)).collect()
}

/// Checks the norm of the difference against `bound` times that of what is wanted.
#[track_caller]
fn close(what: &str, got: &[f32], wanted: &[f64], bound: f64) {
    close_of(what, got, wanted, wanted, bound);
}

/// Checks the norm of the difference against `bound` times that of `terms`: the numbers that the
/// results are differences of.
#[track_caller]
fn close_of(what: &str, got: &[f32], wanted: &[f64], terms: &[f64], bound: f64) {
    assert_eq!(got.len(), wanted.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
    let error = norm(&mut got.iter().zip(wanted).map(|(g, w)| f64::from(*g) - w));
    let size = norm(&mut terms.iter().copied());
    assert!(
        error <= bound * size + 1e-30,
        "{what} is off by {error:.2e} of {size:.2e}; got {got:?}, wanted {wanted:?}"
    );
}

fn norms<T: Activation>(rows: usize, columns: usize, add: bool, seed: u64) {
    let mut random = Random(seed);
    let x: Vec<f32> = random.numbers(rows * columns).iter().map(|v| v * 3.0 + 10.0).collect();
    let [weight, bias] = [random.numbers(columns), random.numbers(columns)];
    let (dy, old) = (random.numbers(rows * columns), random.numbers(rows * columns));
    let old_affine = [random.numbers(columns), random.numbers(columns)];
    let (eps, shape) = (1e-5f32, [rows as u32, columns as u32]);

    let (mut y, mut dx) = (vec![0.0; rows * columns], wide(&old));
    let mut terms = [vec![0.0; rows * columns], vec![0.0; rows * columns], vec![1.0; columns]];
    let mut affine = old_affine.each_ref().map(|v| wide(v));
    if !add {
        dx.fill(0.0);
        affine.iter_mut().for_each(|v| v.fill(0.0));
    }
    for r in 0..rows {
        let row: Vec<f64> = wide(&x[r * columns..][..columns]);
        let mean = row.iter().sum::<f64>() / columns as f64;
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / columns as f64;
        let root = 1.0 / (variance + f64::from(eps)).sqrt();
        let n: Vec<f64> = row.iter().map(|v| (v - mean) * root).collect();
        let dy: Vec<f64> = wide(&dy[r * columns..][..columns]);
        let g: Vec<f64> = dy.iter().zip(&weight).map(|(d, w)| d * f64::from(*w)).collect();
        let gm = g.iter().sum::<f64>() / columns as f64;
        let gn = g.iter().zip(&n).map(|(g, n)| g * n).sum::<f64>() / columns as f64;
        for c in 0..columns {
            y[r * columns + c] = n[c] * f64::from(weight[c]) + f64::from(bias[c]);
            dx[r * columns + c] += root * (g[c] - gm - n[c] * gn);
            // What is near the mean is a difference of numbers as large as x.
            let size = root * row[c].abs();
            terms[0][r * columns + c] = size * f64::from(weight[c]).abs() + y[r * columns + c].abs();
            terms[1][r * columns + c] =
                dx[r * columns + c].abs() + root * (1.0 + size) * (g[c].abs() + gm.abs() + gn.abs());
            terms[2][c] += dy[c].abs() * (1.0 + size);
            affine[0][c] += dy[c] * n[c];
            affine[1][c] += dy[c];
        }
    }
    on_each_device(|s| {
        let (dev_x, dev_w, dev_b, dev_dy) = (up(s, &x), up(s, &weight), up(s, &bias), up(s, &dy));
        let mut stats = room::<_, f32>(s, 2 * rows);
        let mut dev_y = room::<_, T>(s, rows * columns);
        kernels::norm(s, shape, eps, &dev_x, [&dev_w, &dev_b], &mut stats, &mut dev_y).unwrap();
        close_of("norm", &read(s, &dev_y), &y, &terms[0], T::ERROR);
        let mut dev_dx = up(s, &old);
        kernels::norm_backward(s, shape[0], shape[1], add, &dev_dy, &dev_x, &stats, &dev_w, &mut dev_dx).unwrap();
        close_of("dx", &read(s, &dev_dx), &dx, &terms[1], 4e-6);
        let mut parts = room::<_, f32>(s, 2 * GROUPS * columns);
        let [mut dw, mut db] = old_affine.each_ref().map(|v| up(s, v));
        kernels::norm_columns(s, shape, add, &dev_dy, &dev_x, &stats, &mut parts, [&mut dw, &mut db]).unwrap();
        close_of("dweight", &read(s, &dw), &affine[0], &terms[2], 2e-6);
        close_of("dbias", &read(s, &db), &affine[1], &terms[2], 2e-6);
    });
}

fn gelus<T: Activation>(n: usize, by_erf: bool, seed: u64) {
    let mut random = Random(seed);
    let x: Vec<T> = random.numbers(n).into_iter().map(|v| T::of(v * 6.0)).collect();
    let (d, wide_d) = activations::<T>(&mut random, n);
    let values: Vec<f64> = x.iter().map(|v| f64::from(v.value())).collect();
    let y: Vec<f64> = values.iter().map(|&x| gelu(x, by_erf)).collect();
    let slope = |x: f64| {
        if by_erf {
            0.5 * (1.0 + erf(x / 2f64.sqrt())) + x * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
        } else {
            // A central difference of the reference.
            (gelu(x + 1e-5, false) - gelu(x - 1e-5, false)) / 2e-5
        }
    };
    let dx: Vec<f64> = values.iter().zip(&wide_d).map(|(&x, d)| slope(x) * d).collect();
    on_each_device(|s| {
        let (x, mut y_, mut d) = (up(s, &x), room::<_, T>(s, n), up(s, &d));
        kernels::gelu(s, by_erf, &x, &mut y_).unwrap();
        // For large negative x, the result is a small difference: the error is that of x.
        close_of("gelu", &read(s, &y_), &y, &values, T::ERROR);
        kernels::gelu_backward(s, by_erf, &x, &mut d).unwrap();
        close_of("its gradient", &read(s, &d), &dx, &wide_d, 2.0 * T::ERROR);
    });
}

fn products_with_two(rows: usize, columns: usize, add: bool, seed: u64) {
    let mut random = Random(seed);
    let (x, y, old) = (random.numbers(rows * columns), random.numbers(2 * rows), random.numbers(2 * columns));
    let mut sums = if add { wide(&old) } else { vec![0.0; 2 * columns] };
    let mut terms = vec![1.0; 2 * columns];
    for (x, y) in x.chunks(columns).zip(y.chunks(2)) {
        for (c, (sum, term)) in sums.iter_mut().zip(&mut terms).enumerate() {
            let product = f64::from(x[c / 2]) * f64::from(y[c % 2]);
            *sum += product;
            *term += product.abs();
        }
    }
    on_each_device(|s| {
        let (x, y, mut got) = (up(s, &x), up(s, &y), up(s, &old));
        let mut parts = room::<_, f32>(s, 2 * GROUPS * columns);
        let shape = [rows as u32, columns as u32];
        kernels::products_with_two(s, shape, add, &x, &y, &mut parts, &mut got).unwrap();
        close_of("the product", &read(s, &got), &sums, &terms, 2e-6);
    });
}

#[derive(Clone, Debug)]
struct Heads {
    queries: Vec<usize>,
    /// The keys of each sequence beyond its queries.
    more: Vec<usize>,
    heads: usize,
    size: usize,
    prefix: u32,
    /// Whether each sequence has a prefix of its own.
    each: bool,
    gap: usize,
    seed: u64,
}

impl Heads {
    /// Returns the prefix of each sequence.
    fn prefixes(&self) -> Vec<u32> {
        let of = |b| if self.each { self.prefix.min(1000) + 3 * b as u32 } else { self.prefix };
        (0..self.queries.len()).map(of).collect()
    }
}

fn any_heads() -> impl Strategy<Value = Heads> {
    let lengths = prop::collection::vec(prop_oneof![Just(1usize), 1usize..9, 30usize..40], 1..5);
    let size = select(vec![1usize, 3, 8, 15, 16, 17, 24, 32, 64, 64]);
    let prefix = select(vec![u32::MAX, u32::MAX, 0, 1, 5]);
    (lengths, size, 1usize..4, prefix, 0usize..3, any::<bool>(), any::<u64>()).prop_map(
        |(queries, size, heads, prefix, gap, same, seed)| {
            let more =
                queries.iter().enumerate().map(|(i, _)| if same { 0 } else { (seed as usize >> i) % 4 }).collect();
            // Heads of 64 elements begin at multiples of 16 bytes.
            Heads {
                queries,
                more,
                heads,
                size,
                prefix,
                each: seed & 1 == 1,
                gap: if size == 64 { gap * 8 } else { gap },
                seed,
            }
        },
    )
}

/// Sequences with more than one tile of 128 rows and more than one step of 64, at the sizes where
/// tiles end.
fn any_tiles() -> impl Strategy<Value = Heads> {
    let length = prop_oneof![select(vec![1usize, 63, 64, 65, 127, 128, 129, 192]), 1usize..260];
    let prefix = select(vec![u32::MAX, u32::MAX, 0, 1, 70, 130, 200]);
    (prop::collection::vec(length, 1..4), 1usize..3, prefix, 0usize..3, any::<bool>(), any::<u64>()).prop_map(
        |(queries, heads, prefix, gap, same, seed)| {
            let more = queries.iter().enumerate().map(|(i, _)| if same { 0 } else { (seed as usize >> i) % 70 });
            let more = more.collect();
            Heads { queries, more, heads, size: 64, prefix, each: seed & 1 == 1, gap: gap * 8, seed }
        },
    )
}

fn ends(lengths: impl IntoIterator<Item = usize>) -> Vec<i32> {
    let mut ends = vec![0];
    for length in lengths {
        ends.push(ends.last().unwrap() + length as i32);
    }
    ends
}

/// The weights of the keys of each sequence for query `row` of a head, in f64.
#[allow(clippy::too_many_arguments)]
fn weights(
    (cu_q, cu_k): (&[i32], &[i32]),
    prefixes: &[u32],
    size: usize,
    row: usize,
    q: impl Fn(usize, usize) -> f64,
    k: impl Fn(usize, usize) -> f64,
) -> Vec<(usize, f64)> {
    let sequence = (0..cu_q.len() - 1).find(|&b| row < cu_q[b + 1] as usize).unwrap();
    let (start, keys) = (cu_k[sequence] as usize, (cu_k[sequence + 1] - cu_k[sequence]) as usize);
    let queries = (cu_q[sequence + 1] - cu_q[sequence]) as usize;
    let place = row - cu_q[sequence] as usize + keys - queries;
    let sees = |j: &usize| *j <= place || (*j as u32) < prefixes[sequence];
    let score = |j: usize| (0..size).map(|c| q(row, c) * k(start + j, c)).sum::<f64>() / (size as f64).sqrt();
    let scores: Vec<_> = (0..keys).filter(sees).map(|j| (start + j, score(j))).collect();
    let most = scores.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s.1 - most).exp()).sum();
    scores.into_iter().map(|(j, s)| (j, (s - most).exp() / sum)).collect()
}

fn attends<T: Activation>(case: &Heads) {
    let &Heads { ref queries, ref more, heads, size, prefix, each, gap, seed } = case;
    let prefixes = case.prefixes();
    let mut random = Random(seed);
    let (cu_q, cu_k) = (ends(queries.iter().copied()), ends(queries.iter().zip(more).map(|(q, m)| q + m)));
    let (rows, keys) = (cu_q[queries.len()] as usize, cu_k[queries.len()] as usize);
    let width = heads * size;
    let (qs, ks) = (width + gap, width + 2 * gap);
    let (q, wide_q) = activations::<T>(&mut random, rows * qs);
    let (k, wide_k) = activations::<T>(&mut random, keys * ks);
    let (v, wide_v) = activations::<T>(&mut random, keys * ks);
    let (mut out, mut terms) = (vec![0.0; rows * width], vec![0.0; rows * width]);
    for head in 0..heads {
        for row in 0..rows {
            let at = |x: &[f64], stride: usize, r: usize, c: usize| x[r * stride + head * size + c];
            let p = weights(
                (&cu_q, &cu_k),
                &prefixes,
                size,
                row,
                |r, c| at(&wide_q, qs, r, c),
                |r, c| at(&wide_k, ks, r, c),
            );
            for c in 0..size {
                let parts = p.iter().map(|&(j, p)| p * at(&wide_v, ks, j, c));
                let place = row * width + head * size + c;
                (out[place], terms[place]) = (parts.clone().sum(), parts.map(f64::abs).sum());
            }
        }
    }
    on_each_device(|s| {
        let (mut got, mut logs) = (room::<_, T>(s, rows * width), room::<_, f32>(s, rows * heads));
        let prefixes = up(s, &prefixes.iter().map(|p| *p as i32).collect::<Vec<_>>());
        let (cu_q, cu_k, q, k, v) = (up(s, &cu_q), up(s, &cu_k), up(s, &q), up(s, &k), up(s, &v));
        let attention = Attention {
            rows: [rows as u32, keys as u32],
            heads: [heads as u32, size as u32],
            prefix,
            prefixes: each.then_some(&prefixes),
            cu_q: &cu_q,
            cu_k: &cu_k,
            q: &q,
            k: &k,
            v: &v,
            strides: [qs as u32, ks as u32],
            out: &mut got,
            logs: &mut logs,
        };
        kernels::attention(s, attention).unwrap();
        close_of("attention", &read(s, &got), &out, &terms, T::ERROR);
    });
}

fn attends_backward<T: Activation>(case: &Heads) {
    let &Heads { ref queries, heads, size, prefix, each, seed, .. } = case;
    let prefixes = case.prefixes();
    let mut random = Random(seed);
    let cu = ends(queries.iter().copied());
    let rows = cu[queries.len()] as usize;
    let width = heads * size;
    let (qkv, x) = activations::<T>(&mut random, rows * 3 * width);
    let (dout, wide_dout) = activations::<T>(&mut random, rows * width);
    let (mut out, mut dqkv) = (vec![0.0; rows * width], vec![0.0; rows * 3 * width]);
    // The sizes of what the gradients are sums and differences of.
    let mut terms = dqkv.clone();
    let scale = 1.0 / (size as f64).sqrt();
    for head in 0..heads {
        let at = |part: usize, r: usize, c: usize| r * 3 * width + part * width + head * size + c;
        for row in 0..rows {
            let p = weights((&cu, &cu), &prefixes, size, row, |r, c| x[at(0, r, c)], |r, c| x[at(1, r, c)]);
            let d = |c: usize| wide_dout[row * width + head * size + c];
            let dp: Vec<f64> = p.iter().map(|&(j, _)| (0..size).map(|c| d(c) * x[at(2, j, c)]).sum()).collect();
            let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p.1 * dp).sum();
            for (&(j, p), dp) in p.iter().zip(dp) {
                let ds = p * (dp - mean) * scale;
                let off = p * (dp.abs() + mean.abs() + 1.0) * scale;
                for c in 0..size {
                    out[row * width + head * size + c] += p * x[at(2, j, c)];
                    dqkv[at(0, row, c)] += ds * x[at(1, j, c)];
                    dqkv[at(1, j, c)] += ds * x[at(0, row, c)];
                    dqkv[at(2, j, c)] += p * d(c);
                    terms[at(0, row, c)] += off * x[at(1, j, c)].abs();
                    terms[at(1, j, c)] += off * x[at(0, row, c)].abs();
                    terms[at(2, j, c)] += p * d(c).abs();
                }
            }
        }
    }
    on_each_device(|s| {
        let (qkv, dout, cu) = (up(s, &qkv), up(s, &dout), up(s, &cu));
        let prefixes = up(s, &prefixes.iter().map(|p| *p as i32).collect::<Vec<_>>());
        let (mut got, mut logs) = (room::<_, T>(s, rows * width), room::<_, f32>(s, rows * heads));
        let (mut deltas, mut d) = (room::<_, f32>(s, rows * heads), room::<_, T>(s, 3 * rows * width));
        let attention = Attention {
            rows: [rows as u32; 2],
            heads: [heads as u32, size as u32],
            prefix,
            prefixes: each.then_some(&prefixes),
            cu_q: &cu,
            cu_k: &cu,
            q: &qkv,
            k: qkv.slice(width..).unwrap(),
            v: qkv.slice(2 * width..).unwrap(),
            strides: [3 * width as u32; 2],
            out: &mut got,
            logs: &mut logs,
        };
        kernels::attention(s, attention).unwrap();
        close("attention", &read(s, &got), &out, T::ERROR);
        let backward = AttentionBackward {
            rows: rows as u32,
            heads: [heads as u32, size as u32],
            prefix,
            prefixes: each.then_some(&prefixes),
            cu_seqlens: &cu,
            qkv: &qkv,
            out: &got,
            dout: &dout,
            logs: &logs,
            deltas: &mut deltas,
            dqkv: &mut d,
        };
        kernels::attention_backward(s, backward).unwrap();
        let d = read(s, &d);
        for (part, name) in ["dq", "dk", "dv"].into_iter().enumerate() {
            let of = |r: usize| r * 3 * width + part * width..r * 3 * width + (part + 1) * width;
            let got: Vec<f32> = (0..rows).flat_map(|r| d[of(r)].to_vec()).collect();
            let wanted: Vec<f64> = (0..rows).flat_map(|r| dqkv[of(r)].to_vec()).collect();
            let terms: Vec<f64> = (0..rows).flat_map(|r| terms[of(r)].to_vec()).collect();
            close_of(name, &got, &wanted, &terms, 2.0 * T::ERROR);
        }
    });
}

/// Attention of the newest rows of the second of two blocks to pages in any order, whose rows came
/// at once and one by one. The second sequence is idle.
fn attends_to_pages<T: Activation>(heads: usize, size: usize, lengths: [usize; 3], seed: u64) {
    let mut random = Random(seed);
    let (width, most) = (heads * size, lengths.iter().max().unwrap().div_ceil(PAGE));
    let count = 3 * most + 2;
    // Each sequence has every third page, from the end on.
    let page_of = |sequence: usize, ordinal: usize| count - 1 - (3 * ordinal + sequence);
    let (mut table, mut owners) = (vec![0; 3 * most], vec![-1; 2 * count]);
    for sequence in 0..3 {
        for ordinal in 0..most {
            let page = page_of(sequence, ordinal);
            table[sequence * most + ordinal] = page as i32;
            owners[2 * page..][..2].copy_from_slice(&[4 + sequence as i32, ordinal as i32]);
        }
    }
    let qkv: Vec<_> = lengths.iter().map(|n| activations::<T>(&mut random, n * 3 * width)).collect();
    // The first block has other rows, and both have room for more rows than there are.
    let (other, _) = activations::<T>(&mut random, (PAGE * most + 1) * 3 * width);
    let of_blocks = |rows: &[T]| [&other[..rows.len()], &other[..3 * width], rows, &other[..3 * width]].concat();
    let progress_of = |sequence: usize, has: usize| [1, has as i32, 1, i32::from(sequence != 1)];
    let rules_of = |of: &[usize]| of.iter().flat_map(|n| [0, 0, 0, 0, 4 + *n as i32]).collect::<Vec<_>>();
    let (mut out, mut terms) = (vec![0.0; 3 * width], vec![0.0; 3 * width]);
    for sequence in [0, 2] {
        let (n, of) = (lengths[sequence], &qkv[sequence].1);
        for (c, head) in (0..width).map(|c| (c, c / size)) {
            let at = |row: usize, part: usize, c: usize| of[row * 3 * width + part * width + c];
            let score = |j| (head * size..(head + 1) * size).map(|c| at(n - 1, 0, c) * at(j, 1, c)).sum::<f64>();
            let powers: Vec<_> = (0..n).map(|j| (score(j) / (size as f64).sqrt()).exp()).collect();
            let parts = powers.iter().enumerate().map(|(j, p)| p / powers.iter().sum::<f64>() * at(j, 2, c));
            let place = sequence * width + c;
            (out[place], terms[place]) = (parts.clone().sum(), parts.map(f64::abs).sum());
        }
    }
    on_each_device(|s| {
        let page = 2 * PAGE * heads * size.next_multiple_of(16 / size_of::<T>());
        let (mut keys, mut values) = (room::<_, T>(s, count * page), room::<_, T>(s, count * page));
        let (owners, table, heads) = (&up(s, &owners), &up(s, &table), [heads as u32, size as u32]);
        // The rows of a sequence from its end.
        let from_end = |sequence: usize, of: Range<usize>| {
            let (rows, n) = (&qkv[sequence].0, lengths[sequence]);
            &rows[n.saturating_sub(of.end) * 3 * width..n.saturating_sub(of.start) * 3 * width]
        };
        for (sequence, n) in lengths.into_iter().enumerate() {
            // All but the last two rows at once, and then the second last one with those of the
            // others.
            let before = n.saturating_sub(2);
            let (rows, blocks, rules) = ([1, before as u32], [2, before as u32 + 1], &up(s, &rules_of(&[sequence])));
            let (qkv, progress) =
                (&up(s, &of_blocks(from_end(sequence, 2..n))), &up(s, &progress_of(0, before.wrapping_sub(1))));
            let (keys, values) = (&mut keys, &mut values);
            kernels::append_rows(s, AppendRows { rows, blocks, heads, progress, rules, owners, qkv, keys, values })
                .unwrap();
        }
        let progress = |back: usize| {
            // A sequence of one row has no second last one.
            let of = |n: usize| if lengths[n] < back { [1, 0, 0, 0] } else { progress_of(n, lengths[n] - back) };
            up(s, &(0..3).flat_map(of).collect::<Vec<_>>())
        };
        let newest = |back: usize| {
            let row = |n: usize| if lengths[n] < back { &other[..3 * width] } else { from_end(n, back - 1..back) };
            (0..3).map(row).collect::<Vec<_>>().concat()
        };
        let (rows, blocks, rules) = ([3, 1], [2, 4], &up(s, &rules_of(&[0, 1, 2])));
        let (qkv, progress_before) = (&up(s, &of_blocks(&newest(2))), &progress(2));
        let append = AppendRows {
            rows,
            blocks,
            heads,
            progress: progress_before,
            rules,
            owners,
            qkv,
            keys: &mut keys,
            values: &mut values,
        };
        kernels::append_rows(s, append).unwrap();
        let (qkv, progress) = (&up(s, &newest(1)), &progress(1));
        let mut got = room::<_, T>(s, 3 * width);
        let (keys, values, block) = (&*keys, &*values, [1, 2]);
        kernels::paged_attention(
            s,
            PagedAttention { sequences: 3, block, heads, progress, table, qkv, keys, values, out: &mut got },
        )
        .unwrap();
        close_of("attention to pages", &read(s, &got), &out, &terms, T::ERROR);
    });
}

/// The shares of drawn ids against probabilities in f64, and ids that are not kept are not drawn.
fn samples(logits: &[f32], temperature: f32, top_p: f32) {
    const DRAWS: usize = 500;
    let ids = logits.len();
    let powers: Vec<f64> = logits.iter().map(|&z| (f64::from(z) / f64::from(temperature)).exp()).collect();
    let mut order: Vec<usize> = (0..ids).collect();
    order.sort_by(|&a, &b| powers[b].total_cmp(&powers[a]));
    let (all, mut kept, mut sum) = (powers.iter().sum::<f64>(), vec![0.0; ids], 0.0);
    for id in order {
        if sum == 0.0 || sum < f64::from(top_p) * all {
            (kept[id], sum) = (powers[id], sum + powers[id]);
        }
    }
    let states = |field: &dyn Fn(i32) -> Vec<i32>| (0..DRAWS as i32).flat_map(field).collect::<Vec<_>>();
    on_each_device(|s| {
        let logits = up(s, &logits.repeat(DRAWS));
        let rules = states(&|n| vec![n / 10, 77, temperature.to_bits() as i32, top_p.to_bits() as i32, n]);
        let mut progress = up(s, &states(&|n| vec![1, 5, n % 10, i32::from(n != 3)]));
        let mut next = up(s, &vec![-7; DRAWS]);
        kernels::sample(s, DRAWS as u32, ids as u32, &logits, &up(s, &rules), &mut progress, &mut next).unwrap();
        let (next, progress) = (s.read_blocking(&next).unwrap(), s.read_blocking(&progress).unwrap());
        assert_eq!((next[3], &progress[12..16]), (-1, &[1, 5, 3, 0][..]), "an idle text stays as it is");
        assert_eq!(progress[40..44], [next[10], 6, 1, 0]);
        let mut counts = vec![0.0; ids];
        next.iter().filter(|id| **id >= 0).for_each(|id| counts[*id as usize] += 1.0);
        for (id, (count, kept)) in counts.iter().zip(&kept).enumerate() {
            let (n, p) = ((DRAWS - 1) as f64, kept / sum);
            let off = (count - n * p).abs();
            // Five standard deviations.
            assert!(off <= 5.0 * (n * p * (1.0 - p)).sqrt(), "id {id}: {count} of {n} draws with probability {p}");
        }
    });
}

fn losses(rows: usize, classes: usize, seed: u64) {
    let mut random = Random(seed);
    let z: Vec<f32> = random.numbers(rows * classes).iter().map(|v| v * 30.0).collect();
    let labels: Vec<i32> = (0..rows).map(|_| random.below(classes) as i32).collect();
    let scale = 1.0 / rows as f32;
    let (mut loss, mut dz, mut best) = (vec![], vec![], vec![]);
    for (row, &label) in z.chunks(classes).zip(&labels) {
        let row = wide(row);
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|z| (z - most).exp()).sum();
        loss.push((sum.ln() + most - row[label as usize]) * f64::from(scale));
        let d = |(c, z): (usize, &f64)| ((z - most).exp() / sum - f64::from(c == label as usize)) * f64::from(scale);
        dz.extend(row.iter().enumerate().map(d));
        best.push(row.iter().position(|&z| z == most).unwrap() as i32);
    }
    on_each_device(|s| {
        let (z, labels) = (up(s, &z), up(s, &labels));
        let (mut l, mut d) = (room::<_, f32>(s, rows), room::<_, f32>(s, rows * classes));
        let [r, c] = [rows as u32, classes as u32];
        kernels::cross_entropy(s, r, c, scale, &z, &labels, &mut l, &mut d).unwrap();
        // A small loss is the difference of two logits.
        let terms: Vec<f64> = loss.iter().map(|l| l + f64::from(scale)).collect();
        close_of("loss", &read(s, &l), &loss, &terms, 1e-6);
        let terms = vec![f64::from(scale); rows * classes];
        close_of("its gradient", &read(s, &d), &dz, &terms, 1e-5);
        let mut found = s.alloc_zeroed::<i32>(rows).unwrap();
        kernels::argmax(s, r, c, &z, &mut found).unwrap();
        assert_eq!(s.read_blocking(&found).unwrap(), best);
    });
}

fn pools(lengths: &[usize], columns: usize, first: bool, seed: u64) {
    let mut random = Random(seed);
    // Up to two rows before the first sequence and after the last one belong to none.
    let spare = (seed % 3) as i32;
    let cu: Vec<i32> = ends(lengths.iter().copied()).into_iter().map(|end| end + spare).collect();
    let (rows, b) = ((cu[lengths.len()] + spare) as usize, lengths.len());
    let (x, dy) = (random.numbers(rows * columns), random.numbers(b * columns));
    let (mut y, mut dx) = (vec![0.0; b * columns], vec![0.0; rows * columns]);
    for i in 0..b {
        let start = cu[i] as usize;
        let count = if first { 1 } else { lengths[i] };
        for row in start..start + count {
            for c in 0..columns {
                y[i * columns + c] += f64::from(x[row * columns + c]) / count as f64;
                dx[row * columns + c] = f64::from(dy[i * columns + c]) / count as f64;
            }
        }
    }
    on_each_device(|s| {
        let (x, dy, cu) = (up(s, &x), up(s, &dy), up(s, &cu));
        let (mut got, mut d) = (room::<_, f32>(s, b * columns), room::<_, f32>(s, rows * columns));
        let [r, c, n] = [rows, columns, b].map(|extent| extent as u32);
        kernels::pool(s, r, c, n, first, &cu, &x, &mut got).unwrap();
        close("pool", &read(s, &got), &y, 1e-6);
        kernels::pool_backward(s, r, c, n, first, &cu, &dy, &mut d).unwrap();
        close("its gradient", &read(s, &d), &dx, 1e-6);
    });
}

fn sums<T: Activation>(rows: usize, columns: usize, add: bool, seed: u64) {
    let mut random = Random(seed);
    let (x, values) = activations::<T>(&mut random, rows * columns);
    let old = random.numbers(columns);
    let column = |c: usize| (0..rows).map(|r| values[r * columns + c]).sum::<f64>();
    let wanted: Vec<f64> = (0..columns).map(|c| column(c) + if add { f64::from(old[c]) } else { 0.0 }).collect();
    on_each_device(|s| {
        let (x, mut parts, mut got) = (up(s, &x), room::<_, f32>(s, GROUPS * columns), up(s, &old));
        kernels::sum_rows(s, [rows as u32, columns as u32], add, &x, &mut parts, &mut got).unwrap();
        let terms = vec![(rows as f64 + 1.0).sqrt(); columns];
        close_of("columns", &read(s, &got), &wanted, &terms, 2e-6);
    });
}

/// Sums on the way are those of what is stored, and that has the bits of the kernel without sums.
/// With `from`, no access of four numbers is aligned.
fn sums_on_the_way(rows: usize, columns: usize, from: usize, add: bool, seed: u64) {
    let (n, mut random) = (rows * columns, Random(seed));
    let (numbers, old) = (random.numbers(n + from), random.numbers(columns));
    let (x, _) = activations::<bf16>(&mut random, n + from);
    let (d, _) = activations::<bf16>(&mut random, n + from);
    let shape = [rows as u32, columns as u32];
    on_each_device(|s| {
        let (x, numbers) = (up(s, &x), up(s, &numbers));
        let (x, numbers) = (x.slice(from..).unwrap(), numbers.slice(from..).unwrap());
        let check =
            |what: &str, sums: &DeviceSlice<_, f32>, got: &DeviceSlice<_, bf16>, alone: &DeviceSlice<_, bf16>| {
                let (got, alone) = (read(s, got), read(s, alone));
                assert_eq!(got, alone, "{what}");
                let column = |c: usize| (0..rows).map(|r| f64::from(got[r * columns + c])).sum::<f64>();
                let wanted: Vec<f64> =
                    (0..columns).map(|c| column(c) + if add { f64::from(old[c]) } else { 0.0 }).collect();
                close_of(what, &read(s, sums), &wanted, &vec![(rows as f64 + 1.0).sqrt(); columns], 2e-6);
            };
        let (mut parts, mut sums) = (room::<_, f32>(s, GROUPS * columns), up(s, &old));
        let (mut got, mut alone) = (up(s, &d), up(s, &d));
        let (got, alone) = (got.slice_mut(from..).unwrap(), alone.slice_mut(from..).unwrap());
        kernels::gelu_backward(s, false, x, alone).unwrap();
        kernels::gelu_backward_columns(s, shape, false, add, x, got, &mut parts, &mut sums).unwrap();
        check("the gradient of GELU", &sums, got, alone);
        let mut sums = up(s, &old);
        kernels::round(s, numbers, alone).unwrap();
        kernels::round_columns(s, shape, add, numbers, got, &mut parts, &mut sums).unwrap();
        check("rounding", &sums, got, alone);
    });
}

fn updates(n: usize, steps: u32, most: f32, seed: u64) {
    let mut random = Random(seed);
    let (rate, wd, b1, b2, eps) = (0.01f64, 0.05, 0.9f32, 0.999f32, 1e-8);
    let start = random.numbers(n);
    let gradients: Vec<Vec<f32>> = (0..steps).map(|_| random.numbers(n)).collect();
    let (mut w, mut m, mut v) = (wide(&start), vec![0.0; n], vec![0.0; n]);
    // The steps of a weight may cancel. Each of them is inexact by its own size, and by the
    // rounding of the weight that it changes.
    let (mut norms, mut terms) = (vec![], vec![0.0; n]);
    for (t, g) in gradients.iter().enumerate() {
        let norm = wide(g).iter().map(|g| g * g).sum::<f64>().sqrt();
        norms.push(norm);
        let factor = (f64::from(most) / (norm + 1e-6)).min(1.0);
        for i in 0..n {
            let g = f64::from(g[i]) * factor;
            m[i] = f64::from(b1) * m[i] + (1.0 - f64::from(b1)) * g;
            v[i] = f64::from(b2) * v[i] + (1.0 - f64::from(b2)) * g * g;
            let root = (v[i] / (1.0 - f64::from(b2).powi(t as i32 + 1))).sqrt();
            let step = -rate * wd * w[i] - rate * (m[i] / (1.0 - f64::from(b1).powi(t as i32 + 1))) / (root + eps);
            terms[i] += step.abs() + 1e-3 * w[i].abs();
            w[i] += step;
        }
    }
    on_each_device(|s| {
        let (mut dw, mut dm, mut dv) = (up(s, &start), s.alloc_zeroed::<f32>(n).unwrap(), s.alloc_zeroed(n).unwrap());
        let (mut settings, mut parts) = (room::<_, f32>(s, kernels::SETTINGS), room::<_, f32>(s, 16384));
        let mut norm = room::<_, f32>(s, 1);
        for (t, g) in gradients.iter().enumerate() {
            let g = up(s, g);
            let [c1, c2] = [b1, b2].map(|b| 1.0 - f64::from(b).powi(t as i32 + 1));
            let (decay, root) = (1.0 - rate * wd, 1.0 / c2.sqrt());
            kernels::settings(s, decay as f32, (rate / c1) as f32, root as f32, b1, b2, eps as f32, &mut settings)
                .unwrap();
            kernels::gradient_norm(s, &g, most, &mut parts, &mut norm, &mut settings).unwrap();
            close("norm", &read(s, &norm), &norms[t..=t], 1e-5);
            kernels::adamw(s, n as u32, &settings, &g, &mut dw, &mut dm, &mut dv).unwrap();
        }
        let start = wide(&start);
        let got: Vec<f32> = read(s, &dw).iter().zip(&start).map(|(w, s)| (f64::from(*w) - s) as f32).collect();
        let wanted: Vec<f64> = w.iter().zip(&start).map(|(w, s)| w - s).collect();
        close_of("update", &got, &wanted, &terms, 1e-4);
    });
}

/// With a gradient of `bf16`, the update is that of the same numbers in `f32`, bit for bit, and the
/// operands are the new weights, rounded.
#[test]
fn adamw_by_a_gradient_of_bf16() {
    let mut random = Random(5);
    // Four weights are one access if they are aligned. Behind the first weight they are not.
    for (n, from) in [(1usize, 0), (31, 0), (1000, 0), (4096, 0), (4097, 1)] {
        let (start, g) = (random.numbers(n), random.numbers(n));
        let narrow: Vec<bf16> = g.iter().map(|&g| bf16::from_f32(g)).collect();
        let g: Vec<f32> = narrow.iter().map(|g| g.to_f32()).collect();
        on_each_device(|s| {
            let mut settings = room::<_, f32>(s, kernels::SETTINGS);
            kernels::settings(s, 0.999, 0.01, 1.5, 0.9, 0.99, 1e-8, &mut settings).unwrap();
            let moments = || [s.alloc_zeroed::<f32>(n).unwrap(), s.alloc_zeroed::<f32>(n).unwrap()];
            let (mut w, [mut m, mut v]) = (up(s, &start), moments());
            let (mut w16, [mut m16, mut v16]) = (up(s, &start), moments());
            let (wide, narrow, mut rounded) = (up(s, &g), up(s, &narrow), room::<_, bf16>(s, n));
            for _ in 0..3 {
                kernels::adamw(s, n as u32, &settings, &wide, &mut w, &mut m, &mut v).unwrap();
                let [w16, m16, v16] = [&mut w16, &mut m16, &mut v16].map(|all| all.slice_mut(from..).unwrap());
                let (g, rounded) = (narrow.slice(from..).unwrap(), rounded.slice_mut(from..).unwrap());
                kernels::adamw_bf16(s, &settings, g, w16, [m16, v16], rounded).unwrap();
            }
            let behind = |x: &DeviceSlice<_, f32>| read(s, x)[from..].to_vec();
            let weights = behind(&w);
            assert_ne!(weights, start[from..], "{n}");
            assert_eq!([&weights, &behind(&m), &behind(&v)], [&behind(&w16), &behind(&m16), &behind(&v16)], "{n}");
            let operands = read(s, &rounded);
            assert_eq!(
                operands[from..],
                weights.iter().map(|&w| bf16::from_f32(w).to_f32()).collect::<Vec<_>>(),
                "{n}"
            );
        });
    }
}

fn images<T: Activation>(count: usize, side: usize, across: usize, class: bool, columns: usize, seed: u64) {
    let mut random = Random(seed);
    let size = side * across;
    let x = random.numbers(count * 3 * size * size);
    let patches = across * across;
    let mut rows = vec![];
    for image in 0..count {
        for (py, px) in (0..patches).map(|p| (p / across, p % across)) {
            for (c, y, x_) in (0..3 * side * side).map(|i| (i / (side * side), i / side % side, i % side)) {
                let at = ((image * 3 + c) * size + py * side + y) * size + px * side + x_;
                rows.push(f64::from(T::of(x[at]).value()));
            }
        }
    }
    let classes = usize::from(class);
    let (embedded, token) = (random.numbers(count * patches * columns), random.numbers(classes * columns));
    let position = random.numbers((patches + classes) * columns);
    let mut placed = vec![];
    for image in 0..count {
        for place in 0..patches + classes {
            for c in 0..columns {
                let at = |place: usize| embedded[(image * patches + place) * columns + c];
                let v = if place < classes { token[c] } else { at(place - classes) };
                placed.push(f64::from(v) + f64::from(position[place * columns + c]));
            }
        }
    }
    on_each_device(|s| {
        let mut got = room::<_, T>(s, rows.len());
        kernels::patches(s, [count as u32, 3, size as u32, side as u32], &up(s, &x), &mut got).unwrap();
        close("patches", &read(s, &got), &rows, 1e-12);
        let [n, p, k, c] = [count, patches, classes, columns].map(|extent| extent as u32);
        let mut got = room::<_, f32>(s, placed.len());
        let (embedded, token, position) = (up(s, &embedded), up(s, &token), up(s, &position));
        kernels::positions(s, n, p, k, c, &embedded, &token, &position, &mut got).unwrap();
        close("positions", &read(s, &got), &placed, 1e-6);
    });
}

/// Each width has a kernel whose lanes keep as many elements in registers, and rows of more than
/// 2048 read the rest again.
#[test]
fn norms_of_every_width_agree() {
    let few = [(3, 256), (3, 257), (3, 768), (2, 1025), (3, 2048), (2, 2049), (2, 2600)];
    // Above 2048 rows, a row of up to 1024 columns has one warp.
    let many = [(2048, 257), (2049, 257), (2050, 768), (2049, 769), (2051, 1024)];
    for (rows, columns) in few.into_iter().chain(many) {
        for add in [false, true] {
            norms::<f32>(rows, columns, add, 1);
            norms::<bf16>(rows, columns, add, 2);
        }
    }
}

#[test]
fn attention_to_pages_agrees() {
    for (heads, size, lengths) in [(1, 64, [530, 3, 16]), (3, 5, [17, 40, 33]), (2, 32, [1, 2, 385])] {
        attends_to_pages::<f32>(heads, size, lengths, 5);
        attends_to_pages::<bf16>(heads, size, lengths, 5);
    }
}

#[test]
fn drawn_ids_have_their_probabilities() {
    for (ids, temperature, top_p) in [(12, 1.0, 1.0), (12, 0.7, 0.8), (300, 2.0, 0.5), (12, 1.5, 0.0)] {
        let logits: Vec<f32> = Random(ids as u64).numbers(ids).iter().map(|v| 3.0 * v).collect();
        samples(&logits, temperature, top_p);
    }
    // A thread has each 512th id. Two threads have all that are drawn here.
    let mut logits = vec![-40.0; 1300];
    [5, 517, 1029, 700, 188].into_iter().for_each(|id| logits[id] = id as f32 / 1000.0);
    samples(&logits, 1.0, 1.0);
    samples(&logits, 0.5, 0.7);
}

/// More numbers than all blocks of the sum load in one turn.
#[test]
fn the_norm_of_many_numbers() {
    let numbers = Random(3).numbers(1024 * 2048 + 3000);
    let wanted = wide(&numbers).iter().map(|g| g * g).sum::<f64>().sqrt();
    on_each_device(|s| {
        let (mut settings, mut parts) = (room::<_, f32>(s, kernels::SETTINGS), room::<_, f32>(s, kernels::PARTS));
        let mut norm = room::<_, f32>(s, 1);
        kernels::gradient_norm(s, &up(s, &numbers), 1.0, &mut parts, &mut norm, &mut settings).unwrap();
        close("norm", &read(s, &norm), &[wanted], 1e-6);
        close("factor", &read(s, settings.slice(6..7).unwrap()), &[1.0 / (wanted + 1e-6)], 1e-6);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn norms_agree(rows in prop_oneof![1usize..5, 60usize..70], columns in prop_oneof![3 => 1usize..5, 3 => 30usize..70, 1 => 230usize..800], add: bool, seed: u64) {
        norms::<f32>(rows, columns, add, seed);
        norms::<bf16>(rows, columns, add, seed);
    }

    #[test]
    fn gelus_agree(n in 1usize..300, by_erf: bool, seed: u64) {
        gelus::<f32>(n, by_erf, seed);
        gelus::<bf16>(n, by_erf, seed);
    }

    #[test]
    fn attention_agrees(case in any_heads()) {
        attends::<f32>(&case);
        attends::<bf16>(&case);
    }

    #[test]
    fn gradients_of_attention_agree(case in any_heads()) {
        attends_backward::<f32>(&case);
        attends_backward::<bf16>(&case);
    }

    #[test]
    fn losses_agree(rows in 1usize..20, classes in prop_oneof![1usize..5, 30usize..100, 2000usize..2100], seed: u64) {
        losses(rows, classes, seed);
    }

    #[test]
    fn pools_agree(lengths in prop::collection::vec(1usize..9, 1..6), columns in 1usize..70, first: bool, seed: u64) {
        pools(&lengths, columns, first, seed);
    }

    #[test]
    fn sums_of_columns_agree(rows in prop_oneof![1usize..5, 30usize..300], columns in 1usize..70, add: bool, seed: u64) {
        sums::<f32>(rows, columns, add, seed);
        sums::<bf16>(rows, columns, add, seed);
    }

    #[test]
    fn sums_on_the_way_agree(rows in prop_oneof![1usize..5, 30usize..300, Just(4100)], fours in 1usize..20, more in select(vec![0usize, 0, 1]), from in select(vec![0usize, 0, 1]), add: bool, seed: u64) {
        sums_on_the_way(rows, 4 * fours + more, from, add, seed);
    }

    #[test]
    fn products_with_two_columns_agree(rows in prop_oneof![1usize..5, 30usize..300], columns in 1usize..70, add: bool, seed: u64) {
        products_with_two(rows, columns, add, seed);
    }

    /// Four elements at once have the bits that each has alone. Behind the first element no word
    /// begins.
    #[test]
    fn words_have_the_bits_of_elements(words in 1usize..60, by_erf: bool, seed: u64) {
        let (n, mut random) = (4 * words, Random(seed));
        let numbers: Vec<f32> = random.numbers(n).iter().map(|v| v * 6.0).collect();
        let x: Vec<bf16> = numbers.iter().map(|&v| bf16::from_f32(v)).collect();
        on_each_device(|s| {
            let (wide, x) = (up(s, &numbers), up(s, &x));
            let bits = |y: &DeviceSlice<_, bf16>| s.read_blocking(y).unwrap().into_iter().map(bf16::to_bits).skip(1).collect::<Vec<_>>();
            let (mut all, mut each) = (room::<_, bf16>(s, n), room::<_, bf16>(s, n));
            kernels::gelu(s, by_erf, &x, &mut all).unwrap();
            kernels::gelu(s, by_erf, x.slice(1..).unwrap(), each.slice_mut(1..).unwrap()).unwrap();
            assert_eq!(bits(&all), bits(&each), "gelu");
            kernels::gelu_backward(s, by_erf, &x, &mut all).unwrap();
            kernels::gelu_backward(s, by_erf, x.slice(1..).unwrap(), each.slice_mut(1..).unwrap()).unwrap();
            assert_eq!(bits(&all), bits(&each), "its gradient");
            kernels::round(s, &wide, &mut all).unwrap();
            kernels::round(s, wide.slice(1..).unwrap(), each.slice_mut(1..).unwrap()).unwrap();
            assert_eq!(bits(&all), bits(&each), "rounding");
        });
    }

    #[test]
    fn updates_agree(n in prop_oneof![1usize..5, 100usize..300, Just(20_000)], steps in 1u32..4, most in select(vec![0.5f32, 1e6]), seed: u64) {
        updates(n, steps, most, seed);
    }

    #[test]
    fn images_agree(count in 1usize..3, side in 1usize..5, across in 1usize..4, class: bool, columns in 1usize..40, seed: u64) {
        images::<f32>(count, side, across, class, columns, seed);
        images::<bf16>(count, side, across, class, columns, seed);
    }
}

proptest! {
    // These shapes take long: fewer of them.
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: ProptestConfig::default().cases.div_ceil(16), ..ProptestConfig::default()
    })]

    #[test]
    fn attention_by_tiles_agrees(case in any_tiles()) {
        attends::<bf16>(&case);
    }

    #[test]
    fn gradients_of_attention_by_tiles_agree(case in any_tiles()) {
        attends_backward::<bf16>(&case);
    }

    #[test]
    fn long_rows_agree(columns in 760usize..900, classes in 32700usize..32900, add: bool, seed: u64) {
        norms::<f32>(3, columns, add, seed);
        norms::<bf16>(3, columns, add, seed);
        losses(2, classes, seed);
    }
}

/// Whatever `cu_seqlens` holds, no kernel leaves its buffers. The checked device reports it if one
/// does, and in other runs the memory beside the buffers would show it.
#[test]
fn any_cu_seqlens_stays_inside() {
    let bad: [[i32; 4]; 6] =
        [[0, 3, 9, 7], [9, 5, 2, 0], [-1, -5, i32::MIN, 3], [i32::MAX; 4], [0, 0, 0, 0], [5, 5, 7, 8]];
    on_each_device(|s| {
        for cu in bad {
            inside::<_, f32>(s, cu, 7, 5);
            inside::<_, bf16>(s, cu, 7, 64);
            // Tiles that overlap, and sequences that begin behind the tiles of later ones.
            inside::<_, bf16>(s, cu.map(|end| end.saturating_mul(40)), 280, 64);
        }
    });
}

fn inside<S: LiveBrand, T: Activation>(s: &Stream<S>, cu: [i32; 4], rows: usize, size: usize) {
    let heads = 2usize;
    let width = heads * size;
    let cu = up(s, &cu);
    let qkv = up(s, &vec![T::of(1.0); 3 * rows * width]);
    let (mut out, mut logs) = (room::<_, T>(s, rows * width), room::<_, f32>(s, rows * heads));
    let (mut deltas, mut d) = (room::<_, f32>(s, rows * heads), room::<_, T>(s, 3 * rows * width));
    let attention = Attention {
        rows: [rows as u32; 2],
        heads: [heads as u32, size as u32],
        prefix: 2,
        prefixes: None,
        cu_q: &cu,
        cu_k: &cu,
        q: &qkv,
        k: qkv.slice(width..).unwrap(),
        v: qkv.slice(2 * width..).unwrap(),
        strides: [3 * width as u32; 2],
        out: &mut out,
        logs: &mut logs,
    };
    kernels::attention(s, attention).unwrap();
    let backward = AttentionBackward {
        rows: rows as u32,
        heads: [heads as u32, size as u32],
        prefix: 2,
        prefixes: None,
        cu_seqlens: &cu,
        qkv: &qkv,
        out: &out,
        dout: out.slice(..).unwrap(),
        logs: &logs,
        deltas: &mut deltas,
        dqkv: &mut d,
    };
    kernels::attention_backward(s, backward).unwrap();
    let (x, mut pooled, mut dx) =
        (room::<_, f32>(s, rows * width), room::<_, f32>(s, 3 * width), room::<_, f32>(s, rows * width));
    kernels::pool(s, rows as u32, width as u32, 3, false, &cu, &x, &mut pooled).unwrap();
    kernels::pool_backward(s, rows as u32, width as u32, 3, true, &cu, &pooled, &mut dx).unwrap();
    s.synchronize().unwrap();
}

#[test]
fn what_a_kernel_cannot_do_is_refused() {
    let s = &Device::cpu().unwrap().stream::<Work>().unwrap();
    let cu = up(s, &[0i32, 2]);
    let x = up(s, &vec![0f32; 3 * 2 * 48]);
    for (size, len) in [(48u32, 96usize), (0, 0), (65, 130), (16, 33)] {
        let (mut out, mut logs) = (room::<_, f32>(s, len), room::<_, f32>(s, 2));
        let attention = Attention {
            rows: [2, 2],
            heads: [1, size],
            prefix: u32::MAX,
            prefixes: None,
            cu_q: &cu,
            cu_k: &cu,
            q: &x,
            k: &x,
            v: &x,
            strides: [48, 48],
            out: &mut out,
            logs: &mut logs,
        };
        assert!(kernels::attention(s, attention).is_err(), "heads of {size} in {len} elements");
    }
    // Numbers whose products are more than any buffer has.
    let most = u32::MAX;
    let (words, empty, sums) = (up::<_, i32>(s, &[]), room::<_, f32>(s, 0), || room::<_, f32>(s, 0));
    for heads in [[1, most], [most, most], [most, most - 8]] {
        let (progress, table, qkv, keys, values, out) = (&words, &words, &empty, &empty, &empty, &mut sums());
        let paged = PagedAttention { sequences: 0, block: [0, 1], heads, progress, table, qkv, keys, values, out };
        assert!(kernels::paged_attention(s, paged).is_err(), "{heads:?}");
    }
    let of = kernels::products_with_two(s, [0, 1 << 31], false, &empty, &empty, &mut sums(), &mut sums());
    assert!(of.is_err(), "2^32 sums without a place");
    // The loss of a label that is no class is NaN, and nothing is read outside the logits.
    let (z, labels) = (up(s, &[1f32, 2.0, 3.0, 4.0]), up(s, &[-1i32, 2]));
    let (mut l, mut d) = (room::<_, f32>(s, 2), room::<_, f32>(s, 4));
    kernels::cross_entropy(s, 2, 2, 1.0, &z, &labels, &mut l, &mut d).unwrap();
    assert!(read(s, &l).iter().all(|l| l.is_nan()));
    // So is the row of an id that is not in the table.
    let (id, table, mut y) = (up(s, &[1i32, 2, -1]), up(s, &[1f32, 2.0]), room::<_, f32>(s, 3));
    kernels::text(s, 3, 2, 2, 1, 0, &id, &table, &up(s, &[10f32, 20.0]), &mut y).unwrap();
    let y = read(s, &y);
    assert!(y[0] == 12.0 && y[1].is_nan() && y[2].is_nan(), "{y:?}");
}

#[test]
fn patches_of_no_pixels_are_an_error() {
    on_each_device(|s| {
        let (x, mut y) = (up(s, &[0f32; 3 * 32 * 32]), room::<_, f32>(s, 0));
        let error = kernels::patches(s, [1, 3, 32, 0], &x, &mut y).unwrap_err().to_string();
        assert!(error.contains("patches_f32"), "{error}");
    });
}
