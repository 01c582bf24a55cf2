//! Attention within sequences of different lengths, forward and backward.
//!
//! ```text
//! each thread, a query i of a head:  m = -inf, l = 0, o = 0
//!     for each key j that i sees:  s = q k_j / sqrt(size), in units of log2
//!         a larger m multiplies l and o by exp2(old m - m);  p = exp2(s - m);  l += p;  o += p v_j
//!     o / l is the result, and m + log2 l is kept
//! backward, with p = exp2(s - kept) and D_i = do_i o_i:
//!     a thread for each query:  dq = sum of p (do v_j - D) k_j
//!     a thread for each key:    dk = sum of p (do_i v - D_i) q_i
//!     a thread for each key:    dv = sum of p do_i
//! ```
//!
//! (Online softmax: Milakov and Gimelshein, 2018; attention by it: Dao et al., 2022.)
//!
//! Launch: a thread for each row and head, 128 in a block. The threads of a warp have neighboring
//! rows of one head, so they read the same keys at the same time, which one access serves.
//! Backward, `y` of the grid chooses between the three sums, and for heads of 64 elements between
//! their halves. The products that are computed more than once are the price for fewer registers.
//! Memory: Q, K, V and the result once each, and the rows of a sequence again from the L1 and L2
//! caches for each query. No matrix of queries and keys is stored.
//!
//! - **Who sees what**: query `i` of a sequence sees the keys before `prefix`, and those up to its
//!   own place. With a `prefix` that is as long as the sequence, it sees all. If there are more
//!   keys than queries, the queries are the last rows. Each sequence may have a prefix of its own.
//! - **No shared memory and no barriers**: threads are independent, so the CPU device runs them in
//!   a plain loop.
//! - **Heads of 64 elements in `bf16` have kernels of their own**, in `flash_attention.rs`, and `D`
//!   by words.
//! - **Heads of 64 elements have a kernel without a path for smaller ones**: the conditions of that
//!   path would need more registers than there are.
//! - **`cu_seqlens` may hold anything**: each bound is cut to the number of rows.

use thalweg_simt::{In, Simt, kernel};

use super::number::Stored;
use super::rows::{Rows, store};
use super::sequences::sequence_of;

/// log2 of e.
pub(super) const LOG2_E: f32 = core::f32::consts::LOG2_E;
/// Threads of a block.
#[cfg(not(target_arch = "nvptx64"))]
const THREADS: u32 = 128;

/// The rows of a sequence in a buffer.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) len: u32,
}

impl Span {
    /// Returns the rows of a sequence, as far as they are below `rows`.
    ///
    /// # Safety
    /// `cu_seqlens` has an element after that of the sequence.
    #[inline(always)]
    pub(super) unsafe fn new(cx: impl Simt, cu_seqlens: In<i32>, sequence: u32, rows: u32) -> Self {
        // SAFETY: The caller promises both elements.
        let [start, end] = unsafe { [cu_seqlens.get(cx, sequence), cu_seqlens.get(cx, sequence + 1)] };
        let start = (start as u32).min(rows);
        Self { start, len: (end as u32).min(rows).saturating_sub(start) }
    }
}

/// Returns how many keys of a sequence each of its queries sees: its own number, or that of all.
///
/// # Safety
/// If `each`, `prefixes` has an element for the sequence.
#[inline(always)]
pub(super) unsafe fn prefix_of(cx: impl Simt, each: bool, prefixes: In<i32>, all: u32, sequence: u32) -> u32 {
    // SAFETY: The caller promises the element.
    if each { unsafe { prefixes.get(cx, sequence) as u32 } } else { all }
}

/// Returns how many keys the query at `place` of its sequence sees.
#[inline(always)]
pub(super) fn seen(place: u32, prefix: u32, queries: u32, keys: u32) -> u32 {
    prefix.max((place + 1 + keys).saturating_sub(queries)).min(keys)
}

/// Returns the place of the first query that sees the key at `place`. All later ones see it, too.
#[inline(always)]
pub(super) fn first_that_sees(place: u32, prefix: u32, queries: u32, keys: u32) -> u32 {
    if place < prefix { 0 } else { (place + queries).saturating_sub(keys) }
}

/// Returns whether a buffer has `rows` rows of `sum_rows` elements from `start` on.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) fn holds(len: u128, rows: u128, columns: u128, stride: u128) -> bool {
    rows == 0 || (stride >= columns && (rows - 1) * stride + columns <= len)
}

kernel! {
    /// Computes attention for heads of as many elements as the name says, or fewer if that is
    /// not 64, and keeps the logarithm of each query's sum.
    pub(super) unsafe fn attention<E: Stored, const D: usize, const EXACT: bool>(
        cx: impl Simt, rows: u32, keys: u32, heads: u32, size: u32, sequences: u32, prefix: u32, each: bool,
        q_stride: u32, k_stride: u32, vector: bool, scale: f32, prefixes: In<i32>, cu_q: In<i32>, cu_k: In<i32>,
        q: In<E>, k: In<E>, v: In<E>, out: Out<E>, logs: Out<f32>,
    )
    instances {
        attention_16_f32 = <f32, 16, false>,
        attention_32_f32 = <f32, 32, false>,
        attention_64_f32 = <f32, 64, true>,
        attention_16_bf16 = <u16, 16, false>,
        attention_32_bf16 = <u16, 32, false>,
    }
    require {
        (1..=D).contains(&size), heads >= 1, sequences >= 1, keys <= 1 << 30, rows * heads <= 1 << 31,
        cu_q.len() == sequences + 1, cu_k.len() == sequences + 1, !each || prefixes.len() == sequences,
        holds(q.len(), rows, heads * size, q_stride), holds(k.len(), keys, heads * size, k_stride),
        holds(v.len(), keys, heads * size, k_stride), out.len() == rows * heads * size,
        logs.len() == rows * heads,
        vector || !EXACT,
        !vector || size == D && q_stride.is_multiple_of(4) && k_stride.is_multiple_of(4) && q.is_aligned(16) && k.is_aligned(16)
            && v.is_aligned(16) && out.is_aligned(16)
    }
    grid((rows * heads).div_ceil(THREADS)) block(THREADS)
    {
        // If only whole heads are allowed, the compiler leaves out what loads parts.
        let vector = EXACT || vector;
        let i = cx.global_x();
        if i >= rows * heads {
            return;
        }
        let (head, row) = (i / rows, i % rows);
        let sequence = sequence_of(row, sequences, |s| cu_q.get(cx, s) as u32);
        let (mine, theirs) = (Span::new(cx, cu_q, sequence, rows), Span::new(cx, cu_k, sequence, keys));
        let prefix = prefix_of(cx, each, prefixes, prefix, sequence);
        let limit = seen(row.saturating_sub(mine.start), prefix, mine.len, theirs.len);
        let at = head as usize * size as usize;
        let part = |start: In<E>, stride| Rows { start: start.as_ptr().wrapping_add(at), stride, size, vector };
        let (q, k, v) = (part(q, q_stride), part(k, k_stride), part(v, k_stride));

        let q: [f32; D] = q.load(cx, row, scale * LOG2_E);
        let (mut most, mut sum, mut o) = (f32::NEG_INFINITY, 0.0, [0f32; D]);
        let mut j = theirs.start;
        while j < theirs.start + limit {
            let score = k.dot(cx, j, &q);
            if score > most {
                let shrink = cx.exp2_approx(most - score);
                sum *= shrink;
                let mut c = 0;
                while c < D {
                    o[c] *= shrink;
                    c += 1;
                }
                most = score;
            }
            let p = cx.exp2_approx(score - most);
            sum += p;
            v.add(cx, j, p, &mut o);
            j += 1;
        }
        let share = if limit == 0 { 0.0 } else { 1.0 / sum };
        logs.set(cx, i, most + cx.log2_approx(sum));
        let to = out.as_ptr().wrapping_add(row as usize * (heads * size) as usize + at);
        store(cx, to, size, vector, &o, share);
    }
}

kernel! {
    /// Computes the gradients of Q, K and V, which lie side by side in each row, as their
    /// gradients do.
    pub(super) unsafe fn attention_backward<E: Stored, const D: usize, const PART: usize, const EXACT: bool>(
        cx: impl Simt, rows: u32, heads: u32, size: u32, sequences: u32, prefix: u32, each: bool, vector: bool,
        scale: f32, prefixes: In<i32>, cu_seqlens: In<i32>, qkv: In<E>, dout: In<E>, logs: In<f32>, deltas: In<f32>,
        dqkv: Out<E>,
    )
    instances {
        attention_16_backward_f32 = <f32, 16, 16, false>,
        attention_32_backward_f32 = <f32, 32, 32, false>,
        attention_64_backward_f32 = <f32, 64, 32, true>,
        attention_16_backward_bf16 = <u16, 16, 16, false>,
        attention_32_backward_bf16 = <u16, 32, 32, false>,
    }
    require {
        (1..=D).contains(&size), heads >= 1, sequences >= 1, rows <= 1 << 30, rows * heads <= 1 << 31,
        3 * heads * size < 1 << 32,
        cu_seqlens.len() == sequences + 1, !each || prefixes.len() == sequences, qkv.len() == 3 * rows * heads * size,
        dout.len() == rows * heads * size, logs.len() == rows * heads, deltas.len() == rows * heads,
        dqkv.len() == qkv.len(),
        vector || !EXACT,
        !vector || size == D && qkv.is_aligned(16) && dout.is_aligned(16) && dqkv.is_aligned(16)
    }
    grid((rows * heads).div_ceil(THREADS), 3 * (D / PART)) block(THREADS)
    {
        // If only whole heads are allowed, the compiler leaves out what loads parts.
        let vector = EXACT || vector;
        let i = cx.global_x();
        if i >= rows * heads {
            return;
        }
        let (head, row) = (i / rows, i % rows);
        let sequence = sequence_of(row, sequences, |s| cu_seqlens.get(cx, s) as u32);
        let span = Span::new(cx, cu_seqlens, sequence, rows);
        let prefix = prefix_of(cx, each, prefixes, prefix, sequence);
        let place = row.saturating_sub(span.start);
        let width = heads * size;
        let at = head as usize * size as usize;
        let part = |k: u32| {
            let start = qkv.as_ptr().wrapping_add(k as usize * width as usize + at);
            Rows { start, stride: 3 * width, size, vector }
        };
        let (q, k, v) = (part(0), part(1), part(2));
        let dout = Rows { start: dout.as_ptr().wrapping_add(at), stride: width, size, vector };
        let of = |values: In<f32>, row: u32| values.get(cx, head as usize * rows as usize + row as usize);
        let (role, first) = (cx.block_idx().y % 3, cx.block_idx().y / 3 * PART as u32);
        let mut sums = [0f32; PART];
        let mut factor = scale;
        if role == 0 {
            let (log, delta) = (of(logs, row), of(deltas, row));
            let q: [f32; D] = q.load(cx, row, scale * LOG2_E);
            let dout: [f32; D] = dout.load(cx, row, 1.0);
            let end = span.start + seen(place, prefix, span.len, span.len);
            let mut j = span.start;
            while j < end {
                let p = cx.exp2_approx(k.dot(cx, j, &q) - log);
                let d = p * (v.dot(cx, j, &dout) - delta);
                k.from(first).add(cx, j, d, &mut sums);
                j += 1;
            }
        } else if role == 1 {
            let k: [f32; D] = k.load(cx, row, scale * LOG2_E);
            let v: [f32; D] = v.load(cx, row, 1.0);
            let mut j = span.start + first_that_sees(place, prefix, span.len, span.len);
            while j < span.start + span.len {
                let p = cx.exp2_approx(q.dot(cx, j, &k) - of(logs, j));
                let d = p * (dout.dot(cx, j, &v) - of(deltas, j));
                q.from(first).add(cx, j, d, &mut sums);
                j += 1;
            }
        } else {
            factor = 1.0;
            let k: [f32; D] = k.load(cx, row, scale * LOG2_E);
            let mut j = span.start + first_that_sees(place, prefix, span.len, span.len);
            while j < span.start + span.len {
                let p = cx.exp2_approx(q.dot(cx, j, &k) - of(logs, j));
                dout.from(first).add(cx, j, p, &mut sums);
                j += 1;
            }
        }
        let to = row as usize * (3 * width) as usize + role as usize * width as usize + at;
        let to = to + first as usize;
        store(cx, dqkv.as_ptr().wrapping_add(to), size - first, vector, &sums, factor);
    }
}

kernel! {
    /// Computes, for each row and head, the product of the result and its gradient.
    pub(super) fn deltas<E: Stored>(
        t: impl Simt, rows: u32, heads: u32, size: u32, out: In<E>[rows, heads, size],
        dout: In<E>[rows, heads, size], deltas: Out<f32>[heads, rows] by [y, x],
    )
    instances { deltas_f32 = <f32>, deltas_bf16 = <u16> }
    require { heads <= 65535 }
    grid(rows.div_ceil(64), heads) block(64)
    {
        if let Some(delta) = deltas.cell(t) {
            let [head, row] = delta.at();
            let (mut sum, mut c) = (0.0, 0);
            while c < size {
                sum = t.fma(out.get(t, [row, head, c]).wide(), dout.get(t, [row, head, c]).wide(), sum);
                c += 1;
            }
            delta.set(sum);
        }
    }
}

kernel! {
    /// Does the same as [`deltas`] for heads of 64 elements of `bf16`, of which a word has four. A
    /// thread loads all its words at once: its neighbor has another row, and a piece of 32 bytes
    /// would have left the cache before its next element.
    pub(super) fn deltas_64_words(
        t: impl Simt, rows: u32, heads: u32, out: In<u64>[rows, heads, 16], dout: In<u64>[rows, heads, 16],
        deltas: Out<f32>[heads, rows] by [y, x],
    )
    require { heads <= 65535 }
    grid(rows.div_ceil(64), heads) block(64)
    {
        if let Some(delta) = deltas.cell(t) {
            let [head, row] = delta.at();
            let words: [[u64; 2]; 16] =
                core::array::from_fn(|i| [&out, &dout].map(|of| of.get(t, [row, head, i as u32])));
            let (mut sum, mut i) = (0.0, 0);
            while i < 64 {
                let [out, dout] = words[i / 4].map(|word| ((word >> (i % 4 * 16)) as u16).wide());
                sum = t.fma(out, dout, sum);
                i += 1;
            }
            delta.set(sum);
        }
    }
}
