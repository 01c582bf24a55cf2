//! Attention on tensor cores, for heads of 64 elements in `bf16`.
//!
//! ```text
//! forward, each block, 4 warps: 128 queries of a head, 32 in each warp
//!     for each 64 keys, copied one step ahead:
//!         s = Q K^T;  a larger m multiplies l and o;  p = exp2(s - m);  l += p;  o += p V
//!     o / l is the result, and m + log2 l is kept
//! gradient of the queries, each block: 128 queries of a head
//!     for each 64 keys:      p = exp2(Q K^T - kept);  d = p (dO V^T - D);  dQ += d K
//! gradients of keys and values, each block: 128 keys of a head
//!     for each 64 queries:   p = exp2(K Q^T - kept);  d = p (V dO^T - D);  dV += p dO;  dK += d Q
//! ```
//!
//! (Tiles of attention: Dao, "FlashAttention-2", 2023.)
//!
//! Launch: `x` counts tiles of 128 rows of the sequences, and `y` is the head. Tile `t` belongs to
//! the last sequence `s` with `cu[s] / 128 + s <= t`: each sequence gets as many places as it has
//! tiles, or more, and the rest of the blocks returns at once. So the host need not know the
//! lengths. Memory: Q, the result and gradients once; keys and values, or queries and gradients of
//! the result, once for each 128 rows that see them, mostly from the L2 cache.
//!
//! - **A warp keeps two times 16 rows in registers**, so each fragment from shared memory serves
//!   two products.
//! - **Sums of one product are the operand of the next one** without a way through shared memory:
//!   their fragments have the same layout, after they are rounded to `bf16`.
//! - **No atomic additions.** The scores are computed three times, forward once and backward twice,
//!   so that each gradient is summed by one block in a fixed order.
//! - **The gradients take 16 rows of a step at a time** in a loop that is not unrolled: otherwise
//!   ptxas overlaps them, which needs more registers than there are.
//! - In shared memory, pieces of 16 bytes are at places exchanged by the exclusive or with the
//!   number of their row. So the eight rows of a small matrix lie in different banks.
//! - **`cu_seqlens` may hold anything**: each bound is cut to the number of rows, and a block
//!   writes a row only if `sequence_of` gives the row to the block's sequence.

use thalweg_simt::{Cooperative, In, SharedMemory, Simt, bf16x2, kernel};

#[cfg(not(target_arch = "nvptx64"))]
use super::attention::holds;
use super::attention::{LOG2_E, Span, first_that_sees, prefix_of, seen};
#[cfg(not(target_arch = "nvptx64"))]
use super::number::Stored;
use super::sequences::sequence_of;

/// The elements of a head.
const SIZE: u32 = 64;
/// The threads of a block.
const THREADS: u32 = 128;
/// The rows of a block: queries, or keys where their gradients are computed.
const ROWS: u32 = 128;
/// The rows of a step.
const STEP: u32 = 64;
/// The elements of shared memory that 64 rows take.
const TILE: u32 = STEP * SIZE;
/// The bytes of shared memory: two stages of two tiles.
const SHARED: u32 = 2 * 2 * 2 * TILE;
/// The bytes for the gradients of keys and values: also the keys and values of the block, and for
/// two stages the logarithms and `D` of the queries.
const SHARED_KEYS: u32 = SHARED + 2 * 2 * 2 * TILE + 2 * 2 * 4 * STEP;

/// Returns the sequence and the tile in it that a block has.
///
/// # Safety
/// `cu` has an element for each sequence, and there is a sequence.
#[inline(always)]
unsafe fn tile_of(cx: impl Simt, cu: In<i32>, sequences: u32) -> (u32, u32) {
    // SAFETY: The caller promises an element for each sequence, and `sequence_of` asks for no
    // others.
    let begins = |s: u32| (unsafe { cu.get(cx, s) } as u32) / ROWS + s;
    let block = cx.block_idx().x;
    let sequence = sequence_of(block, sequences, begins);
    (sequence, block.wrapping_sub(begins(sequence)))
}

/// Copies of rows to shared memory, 64 at once. A thread copies four pieces of 16 bytes.
#[derive(Clone, Copy)]
struct Copies {
    from: *const u16,
    stride: u32,
    /// The first row of this thread, and where it goes.
    row: u32,
    to: u32,
}

impl Copies {
    /// `start` is the head's first element of the first row, and `stride` the distance of rows.
    #[inline(always)]
    fn new(rank: u32, start: *const u16, stride: u32) -> Self {
        let (row, piece) = (rank / 8, rank % 8);
        let from = start.wrapping_add(row as usize * stride as usize + piece as usize * 8);
        Self { from, stride, row, to: row * SIZE + (piece ^ (row % 8)) * 8 }
    }

    /// Starts the copy of 64 rows. Rows from `rows` on, counted from the first of these, become
    /// zero.
    ///
    /// # Safety
    /// The first `rows` rows are in the buffer, 16-byte aligned, and nobody uses the tile at `at`.
    #[inline(always)]
    unsafe fn start(&self, cx: impl Cooperative, s: SharedMemory<u16>, at: u32, first: u32, rows: u32) {
        let mut i = 0;
        while i < 4 {
            let exists = first + self.row + 16 * i < rows;
            let from = self.from.wrapping_add((first + 16 * i) as usize * self.stride as usize);
            // SAFETY: A row below `rows` is in the buffer, and the caller promises the tile.
            unsafe { cx.copy_async_or_zero::<u16, 16>(s, at + self.to + 16 * SIZE * i, from, exists) };
            i += 1;
        }
    }
}

/// The places of this lane's rows of the small matrices of the first 16 columns of a tile.
///
/// Those of the next 16 columns differ in the bit of 16 elements only, and so on:
/// `(at + place) ^ 16 i` is the place for columns from `16 i` on, if `at` is that of a row that is
/// a multiple of 8. One number instead of four saves registers.
#[derive(Clone, Copy)]
struct Places {
    /// For fragments of A, and for those of B where the rows are its k.
    rows: u32,
    /// For fragments of B where the columns are its k.
    columns: u32,
}

impl Places {
    #[inline(always)]
    fn new(lane: u32) -> Self {
        Self {
            rows: lane % 16 * SIZE + ((lane / 16) ^ (lane % 8)) * 8,
            columns: (lane % 8 + lane / 16 * 8) * SIZE + ((lane / 8 % 2) ^ (lane % 8)) * 8,
        }
    }
}

/// Loads the fragments of 32 rows of a tile, as operand A.
///
/// # Safety
/// The rows at `at` are in shared memory and complete. All lanes call this.
#[inline(always)]
unsafe fn rows_of(cx: impl Cooperative, s: SharedMemory<u16>, places: Places, at: u32) -> [[[u32; 4]; 4]; 2] {
    let mut rows = [[[0; 4]; 4]; 2];
    let mut i = 0;
    while i < 2 {
        let mut c = 0;
        while c < 4 {
            // SAFETY: The caller promises the rows.
            rows[i][c] = unsafe { cx.load_matrices(s, (at + i as u32 * 16 * SIZE + places.rows) ^ (16 * c as u32)) };
            c += 1;
        }
        i += 1;
    }
    rows
}

/// Computes the products of 32 rows, A, and 16 rows of a tile, along the 64 elements of both. `a`
/// gives the fragment of 16 rows and 16 elements.
///
/// # Safety
/// The 16 rows at `at` are in shared memory and complete. All lanes call this.
#[inline(always)]
unsafe fn dots(
    cx: impl Cooperative,
    s: SharedMemory<u16>,
    places: Places,
    a: impl Fn(usize, usize) -> [u32; 4],
    at: u32,
) -> [[[f32; 4]; 2]; 2] {
    let mut sums = [[[0.0; 4]; 2]; 2];
    let mut c = 0;
    while c < 4 {
        // SAFETY: The caller promises the rows.
        let b: [u32; 4] = unsafe { cx.load_matrices(s, (at + places.columns) ^ (16 * c as u32)) };
        let mut i = 0;
        while i < 2 {
            let a = a(i, c);
            sums[i][0] = cx.mma_bf16(a, [b[0], b[1]], sums[i][0]);
            sums[i][1] = cx.mma_bf16(a, [b[2], b[3]], sums[i][1]);
            i += 1;
        }
        c += 1;
    }
    sums
}

/// Rounds 32 rows and 16 columns of numbers to a fragment of A each 16 rows.
#[inline(always)]
fn rounded(v: [[[f32; 4]; 2]; 2]) -> [[u32; 4]; 2] {
    let pair = |low: f32, high: f32| bf16x2::from_f32s(low, high).to_bits();
    let of = |[l, r]: [[f32; 4]; 2]| [pair(l[0], l[1]), pair(l[2], l[3]), pair(r[0], r[1]), pair(r[2], r[3])];
    let [a, b] = v;
    [of(a), of(b)]
}

/// Adds the products of `a`, 32 rows and 16 columns, and 16 rows of a tile to `sums`.
///
/// # Safety
/// The 16 rows at `at` are in shared memory and complete. All lanes call this.
#[inline(always)]
unsafe fn add_products(
    cx: impl Cooperative,
    s: SharedMemory<u16>,
    places: Places,
    a: [[u32; 4]; 2],
    at: u32,
    sums: &mut [[[f32; 4]; 8]; 2],
) {
    let mut c = 0;
    while c < 4 {
        // SAFETY: The caller promises the rows.
        let b: [u32; 4] = unsafe { cx.load_matrices_transposed(s, (at + places.rows) ^ (16 * c as u32)) };
        let mut i = 0;
        while i < 2 {
            sums[i][2 * c] = cx.mma_bf16(a[i], [b[0], b[1]], sums[i][2 * c]);
            sums[i][2 * c + 1] = cx.mma_bf16(a[i], [b[2], b[3]], sums[i][2 * c + 1]);
            i += 1;
        }
        c += 1;
    }
}

/// Stores the 64 elements of a row that a lane has pairs of, multiplied by `factor`.
///
/// # Safety
/// `to` is the head's first element of a row in device memory that no other warp writes, 4-byte
/// aligned. `half` is 0 or 1: the lane's row is that many times 8 rows down.
#[inline(always)]
unsafe fn store(cx: impl Cooperative, to: *mut u16, half: usize, sums: &[[f32; 4]; 8], factor: f32) {
    let lane = cx.lane();
    let mut c = 0;
    while c < 8 {
        let [a, b] = [sums[c][2 * half] * factor, sums[c][2 * half + 1] * factor];
        let to = to.wrapping_add(c * 8 + lane as usize % 4 * 2).cast::<u32>();
        // SAFETY: The caller promises the row, of which these are two elements.
        unsafe { cx.store(to, bf16x2::from_f32s(a, b).to_bits()) };
        c += 1;
    }
}

/// A head's rows of one buffer.
#[derive(Clone, Copy)]
struct Head<T> {
    start: T,
    stride: u32,
}

impl Head<*const u16> {
    /// Returns the 64 elements of a row. Only CPUs call this.
    ///
    /// # Safety
    /// The buffer has the row.
    #[cfg(not(target_arch = "nvptx64"))]
    unsafe fn row(self, cx: impl Simt, row: u32) -> [f32; SIZE as usize] {
        let row = self.start.wrapping_add(row as usize * self.stride as usize);
        // SAFETY: The caller promises that the buffer has the row.
        core::array::from_fn(|c| unsafe { cx.load(row.wrapping_add(c)) }.wide())
    }
}

impl Head<*mut u16> {
    /// Stores the 64 elements of a row. Only CPUs call this.
    ///
    /// # Safety
    /// The buffer has the row, and no other block writes it.
    #[cfg(not(target_arch = "nvptx64"))]
    unsafe fn set(self, cx: impl Simt, row: u32, v: &[f32; SIZE as usize], factor: f32) {
        let row = self.start.wrapping_add(row as usize * self.stride as usize);
        for (c, v) in v.iter().enumerate() {
            // SAFETY: The caller promises that the buffer has the row.
            unsafe { cx.store(row.wrapping_add(c), u16::narrow(v * factor)) };
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
fn dot(a: &[f32; SIZE as usize], b: &[f32; SIZE as usize]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(not(target_arch = "nvptx64"))]
fn add(sums: &mut [f32; SIZE as usize], weight: f32, v: &[f32; SIZE as usize]) {
    sums.iter_mut().zip(v).for_each(|(sum, v)| *sum += weight * v);
}

kernel! {
    /// Computes attention, and keeps the logarithm of each query's sum.
    pub(super) unsafe fn attention_64_bf16(
        cx: impl Cooperative, rows: u32, keys: u32, heads: u32, sequences: u32, prefix: u32, each: bool,
        q_stride: u32, k_stride: u32, scale: f32, prefixes: In<i32>, cu_q: In<i32>, cu_k: In<i32>, q: In<u16>,
        k: In<u16>, v: In<u16>, out: Out<u16>, logs: Out<f32>,
    )
    require {
        (1..=65535).contains(&heads), sequences >= 1, keys <= 1 << 30, rows * heads <= 1 << 31,
        cu_q.len() == sequences + 1, cu_k.len() == sequences + 1, !each || prefixes.len() == sequences,
        holds(q.len(), rows, heads * SIZE, q_stride), holds(k.len(), keys, heads * SIZE, k_stride),
        holds(v.len(), keys, heads * SIZE, k_stride), out.len() == rows * heads * SIZE, logs.len() == rows * heads,
        q_stride.is_multiple_of(8), k_stride.is_multiple_of(8), q.is_aligned(16), k.is_aligned(16), v.is_aligned(16), out.is_aligned(16)
    }
    grid(rows / ROWS + sequences, heads) block(THREADS) bounds(THREADS, 2) shared(SHARED)
    cpu {
        let (sequence, tile) = tile_of(cx, cu_q, sequences);
        let (mine, theirs) = (Span::new(cx, cu_q, sequence, rows), Span::new(cx, cu_k, sequence, keys));
        let prefix = prefix_of(cx, each, prefixes, prefix, sequence);
        let at = cx.block_idx().y as usize * SIZE as usize;
        let part = |start: In<u16>, stride| Head { start: start.as_ptr().wrapping_add(at), stride };
        let (q, k, v) = (part(q, q_stride), part(k, k_stride), part(v, k_stride));
        let to = Head { start: out.as_ptr().wrapping_add(at), stride: heads * SIZE };
        let mut place = if tile < mine.len.div_ceil(ROWS) { tile * ROWS } else { mine.len };
        let end = mine.len.min(place.saturating_add(ROWS));
        let mut powers = Vec::new();
        while place < end {
            let row = mine.start + place;
            if sequence_of(row, sequences, |s| cu_q.get(cx, s) as u32) == sequence {
                let limit = seen(place, prefix, mine.len, theirs.len);
                let query = q.row(cx, row);
                powers.clear();
                powers.extend((0..limit).map(|j| scale * LOG2_E * dot(&query, &k.row(cx, theirs.start + j))));
                let most = powers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let (mut sum, mut o) = (0.0, [0.0; SIZE as usize]);
                for (j, power) in (0..).zip(&powers) {
                    let p = cx.exp2_approx(power - most);
                    sum += p;
                    add(&mut o, p, &v.row(cx, theirs.start + j));
                }
                logs.set(cx, cx.block_idx().y * rows + row, most + cx.log2_approx(sum));
                to.set(cx, row, &o, if limit == 0 { 0.0 } else { 1.0 / sum });
            }
            place += 1;
        }
    }
    {
        let (sequence, tile) = tile_of(cx, cu_q, sequences);
        let (mine, theirs) = (Span::new(cx, cu_q, sequence, rows), Span::new(cx, cu_k, sequence, keys));
        let prefix = prefix_of(cx, each, prefixes, prefix, sequence);
        if tile >= mine.len.div_ceil(ROWS) {
            return;
        }
        let (head, first) = (cx.block_idx().y, tile * ROWS);
        let at = head as usize * SIZE as usize;
        let part = |start: In<u16>, stride: u32, row: u32| {
            Copies::new(cx.rank(), start.as_ptr().wrapping_add(at + row as usize * stride as usize), stride)
        };
        let q = part(q, q_stride, mine.start + first);
        let (k, v) = (part(k, k_stride, theirs.start), part(v, k_stride, theirs.start));
        // The most keys that a query of this block sees, and how many all of them see.
        let last = (first + ROWS).min(mine.len) - 1;
        let most_keys = seen(last, prefix, mine.len, theirs.len);
        let all_see = seen(first, prefix, mine.len, theirs.len);

        let s = cx.shared::<u16>(0);
        let places = Places::new(cx.lane());
        // The queries go through the second stage.
        q.start(cx, s, 2 * TILE, 0, mine.len - first);
        q.start(cx, s, 3 * TILE, STEP, mine.len - first);
        cx.copy_async_commit();
        k.start(cx, s, 0, 0, most_keys);
        v.start(cx, s, TILE, 0, most_keys);
        cx.copy_async_commit();
        cx.copy_async_wait::<1>();
        cx.barrier();
        let q = rows_of(cx, s, places, 2 * TILE + cx.warp() * 32 * SIZE);

        let c = scale * LOG2_E;
        let lane = cx.lane();
        // The place of the lane's rows, and how many keys each sees.
        let place = |i: usize, half: usize| first + cx.warp() * 32 + i as u32 * 16 + half as u32 * 8 + lane / 4;
        let mut limits = [[0; 2]; 2];
        let mut i = 0;
        while i < 4 {
            limits[i / 2][i % 2] = seen(place(i / 2, i % 2).min(last), prefix, mine.len, theirs.len);
            i += 1;
        }
        let (mut most, mut total, mut o) = ([[f32::NEG_INFINITY; 2]; 2], [[0f32; 2]; 2], [[[0f32; 4]; 8]; 2]);
        let (mut stage, mut from) = (0, 0);
        while from < most_keys {
            cx.copy_async_wait::<0>();
            cx.barrier();
            let next = 2 * TILE - stage;
            if from + STEP < most_keys {
                k.start(cx, s, next, from + STEP, most_keys);
                v.start(cx, s, next + TILE, from + STEP, most_keys);
                cx.copy_async_commit();
            }
            let mut scores = [[[[0f32; 4]; 2]; 2]; 4];
            let mut j = 0;
            while j < 4 {
                scores[j] = dots(cx, s, places, |i, c| q[i][c], stage + j as u32 * 16 * SIZE);
                j += 1;
            }
            if from + STEP > all_see {
                let mut j = 0;
                while j < 4 {
                    let mut e = 0;
                    while e < 16 {
                        let (i, t, e_) = (e / 8, e / 4 % 2, e % 4);
                        let key = from + j as u32 * 16 + t as u32 * 8 + lane % 4 * 2 + e_ as u32 % 2;
                        if key >= limits[i][e_ / 2] {
                            scores[j][i][t][e_] = f32::NEG_INFINITY;
                        }
                        e += 1;
                    }
                    j += 1;
                }
            }
            let mut i = 0;
            while i < 4 {
                let (row, half) = (i / 2, i % 2);
                let mut largest = most[row][half];
                let mut j = 0;
                while j < 4 {
                    let [l, r] = scores[j][row];
                    largest = largest.max(l[2 * half].max(l[2 * half + 1])).max(r[2 * half].max(r[2 * half + 1]));
                    j += 1;
                }
                largest = largest.max(cx.shuffle_xor(largest, 1));
                largest = largest.max(cx.shuffle_xor(largest, 2));
                // A row that has seen no key yet has nothing to subtract.
                let origin = if largest == f32::NEG_INFINITY { 0.0 } else { largest * c };
                let shrink = cx.exp2_approx(most[row][half] * c - origin);
                most[row][half] = largest;
                let mut sum = 0.0;
                let mut j = 0;
                while j < 4 {
                    let mut e = 0;
                    while e < 4 {
                        let score = &mut scores[j][row][e / 2][2 * half + e % 2];
                        *score = cx.exp2_approx(cx.fma(*score, c, -origin));
                        sum += *score;
                        e += 1;
                    }
                    j += 1;
                }
                total[row][half] = cx.fma(total[row][half], shrink, sum);
                let mut t = 0;
                while t < 8 {
                    o[row][t][2 * half] *= shrink;
                    o[row][t][2 * half + 1] *= shrink;
                    t += 1;
                }
                i += 1;
            }
            let mut j = 0;
            while j < 4 {
                add_products(cx, s, places, rounded(scores[j]), stage + TILE + j as u32 * 16 * SIZE, &mut o);
                j += 1;
            }
            stage = next;
            from += STEP;
        }
        let mut i = 0;
        while i < 4 {
            let (row, half) = (i / 2, i % 2);
            let mut sum = total[row][half];
            sum += cx.shuffle_xor(sum, 1);
            sum += cx.shuffle_xor(sum, 2);
            let at_row = mine.start + place(row, half);
            if place(row, half) <= last && sequence_of(at_row, sequences, |s| cu_q.get(cx, s) as u32) == sequence {
                if lane.is_multiple_of(4) {
                    logs.set(cx, head * rows + at_row, most[row][half] * c + cx.log2_approx(sum));
                }
                let to = out.as_ptr().wrapping_add(at_row as usize * (heads * SIZE) as usize + at);
                store(cx, to, half, &o[row], if most_keys == 0 || sum == 0.0 { 0.0 } else { 1.0 / sum });
            }
            i += 1;
        }
    }
}

kernel! {
    /// Computes the gradient of Q, which lies beside those of K and V in each row.
    pub(super) unsafe fn attention_64_queries_bf16(
        cx: impl Cooperative, rows: u32, heads: u32, sequences: u32, prefix: u32, each: bool, scale: f32,
        prefixes: In<i32>, cu_seqlens: In<i32>,
        qkv: In<u16>, dout: In<u16>, logs: In<f32>, deltas: In<f32>, dq: Out<u16>,
    )
    require {
        (1..=65535).contains(&heads), sequences >= 1, rows <= 1 << 30, rows * heads <= 1 << 31,
        3 * heads * SIZE < 1 << 32,
        cu_seqlens.len() == sequences + 1, !each || prefixes.len() == sequences, qkv.len() == 3 * rows * heads * SIZE, dout.len() == rows * heads * SIZE,
        logs.len() == rows * heads, deltas.len() == rows * heads, dq.len() == qkv.len(),
        qkv.is_aligned(16), dout.is_aligned(16), dq.is_aligned(16)
    }
    grid(rows / ROWS + sequences, heads) block(THREADS) bounds(THREADS, 2) shared(SHARED)
    cpu {
        let (sequence, tile) = tile_of(cx, cu_seqlens, sequences);
        let span = Span::new(cx, cu_seqlens, sequence, rows);
        let prefix = prefix_of(cx, each, prefixes, prefix, sequence);
        let (head, width) = (cx.block_idx().y, heads * SIZE);
        let at = head as usize * SIZE as usize;
        let part = |k: usize| Head { start: qkv.as_ptr().wrapping_add(k * width as usize + at), stride: 3 * width };
        let (q, k, v) = (part(0), part(1), part(2));
        let dout = Head { start: dout.as_ptr().wrapping_add(at), stride: width };
        let to = Head { start: dq.as_ptr().wrapping_add(at), stride: 3 * width };
        let mut place = if tile < span.len.div_ceil(ROWS) { tile * ROWS } else { span.len };
        let end = span.len.min(place.saturating_add(ROWS));
        while place < end {
            let row = span.start + place;
            if sequence_of(row, sequences, |s| cu_seqlens.get(cx, s) as u32) == sequence {
                let (query, gradient) = (q.row(cx, row), dout.row(cx, row));
                let (log, delta) = (logs.get(cx, head * rows + row), deltas.get(cx, head * rows + row));
                let mut sums = [0.0; SIZE as usize];
                for j in span.start..span.start + seen(place, prefix, span.len, span.len) {
                    let key = k.row(cx, j);
                    let p = cx.exp2_approx(scale * LOG2_E * dot(&query, &key) - log);
                    add(&mut sums, p * (dot(&gradient, &v.row(cx, j)) - delta), &key);
                }
                to.set(cx, row, &sums, scale);
            }
            place += 1;
        }
    }
    {
        let (sequence, tile) = tile_of(cx, cu_seqlens, sequences);
        let span = Span::new(cx, cu_seqlens, sequence, rows);
        let prefix = prefix_of(cx, each, prefixes, prefix, sequence);
        if tile >= span.len.div_ceil(ROWS) {
            return;
        }
        let (head, first, width) = (cx.block_idx().y, tile * ROWS, heads * SIZE);
        let at = head as usize * SIZE as usize;
        let part = |k: u32, row: u32| {
            let to = at + (k * width) as usize + row as usize * (3 * width) as usize;
            Copies::new(cx.rank(), qkv.as_ptr().wrapping_add(to), 3 * width)
        };
        let (q, k, v) = (part(0, span.start + first), part(1, span.start), part(2, span.start));
        let dout = dout.as_ptr().wrapping_add(at + (span.start + first) as usize * width as usize);
        let dout = Copies::new(cx.rank(), dout, width);
        let last = (first + ROWS).min(span.len) - 1;
        let most_keys = seen(last, prefix, span.len, span.len);
        let all_see = seen(first, prefix, span.len, span.len);

        let s = cx.shared::<u16>(0);
        let places = Places::new(cx.lane());
        let mut half = 0;
        while half < 2 {
            q.start(cx, s, half * TILE, half * STEP, span.len - first);
            dout.start(cx, s, (2 + half) * TILE, half * STEP, span.len - first);
            half += 1;
        }
        cx.copy_async_commit();
        cx.copy_async_wait::<0>();
        cx.barrier();
        let mine = cx.warp() * 32 * SIZE;
        let (q, dout) = (rows_of(cx, s, places, mine), rows_of(cx, s, places, 2 * TILE + mine));
        cx.barrier();
        k.start(cx, s, 0, 0, most_keys);
        v.start(cx, s, TILE, 0, most_keys);
        cx.copy_async_commit();

        let c = scale * LOG2_E;
        let lane = cx.lane();
        let place = |i: usize, half: usize| first + cx.warp() * 32 + i as u32 * 16 + half as u32 * 8 + lane / 4;
        let (mut limits, mut kept, mut delta) = ([[0; 2]; 2], [[0f32; 2]; 2], [[0f32; 2]; 2]);
        let mut i = 0;
        while i < 4 {
            let (row, half) = (i / 2, i % 2);
            let place = place(row, half).min(last);
            limits[row][half] = seen(place, prefix, span.len, span.len);
            kept[row][half] = logs.get(cx, head * rows + span.start + place);
            delta[row][half] = deltas.get(cx, head * rows + span.start + place);
            i += 1;
        }
        let mut sums = [[[0f32; 4]; 8]; 2];
        let (mut stage, mut from) = (0, 0);
        while from < most_keys {
            cx.copy_async_wait::<0>();
            cx.barrier();
            let next = 2 * TILE - stage;
            if from + STEP < most_keys {
                k.start(cx, s, next, from + STEP, most_keys);
                v.start(cx, s, next + TILE, from + STEP, most_keys);
                cx.copy_async_commit();
            }
            let masked = from + STEP > all_see;
            let (mut j, chunks) = (0, (most_keys - from).div_ceil(16).min(4));
            while j < chunks {
                let at = stage + j * 16 * SIZE;
                let mut d = dots(cx, s, places, |i, c| q[i][c], at);
                let dp = dots(cx, s, places, |i, c| dout[i][c], at + TILE);
                let mut e = 0;
                while e < 16 {
                    let (i, t, e_) = (e / 8, e / 4 % 2, e % 4);
                    let p = cx.exp2_approx(cx.fma(d[i][t][e_], c, -kept[i][e_ / 2]));
                    let key = from + j * 16 + t as u32 * 8 + lane % 4 * 2 + e_ as u32 % 2;
                    let p = if masked && key >= limits[i][e_ / 2] { 0.0 } else { p };
                    d[i][t][e_] = p * (dp[i][t][e_] - delta[i][e_ / 2]);
                    e += 1;
                }
                add_products(cx, s, places, rounded(d), at, &mut sums);
                j += 1;
            }
            stage = next;
            from += STEP;
        }
        let mut i = 0;
        while i < 4 {
            let (row, half) = (i / 2, i % 2);
            let at_row = span.start + place(row, half);
            if place(row, half) <= last && sequence_of(at_row, sequences, |s| cu_seqlens.get(cx, s) as u32) == sequence {
                let to = dq.as_ptr().wrapping_add(at_row as usize * (3 * width) as usize + at);
                store(cx, to, half, &sums[row], scale);
            }
            i += 1;
        }
    }
}

kernel! {
    /// Computes the gradients of K and V, which lie beside that of Q in each row.
    pub(super) unsafe fn attention_64_keys_bf16(
        cx: impl Cooperative, rows: u32, heads: u32, sequences: u32, prefix: u32, each: bool, scale: f32,
        prefixes: In<i32>, cu_seqlens: In<i32>,
        qkv: In<u16>, dout: In<u16>, logs: In<f32>, deltas: In<f32>, dkv: Out<u16>,
    )
    require {
        (1..=65535).contains(&heads), sequences >= 1, rows <= 1 << 30, rows * heads <= 1 << 31,
        3 * heads * SIZE < 1 << 32,
        cu_seqlens.len() == sequences + 1, !each || prefixes.len() == sequences, qkv.len() == 3 * rows * heads * SIZE, dout.len() == rows * heads * SIZE,
        logs.len() == rows * heads, deltas.len() == rows * heads, dkv.len() == qkv.len(),
        qkv.is_aligned(16), dout.is_aligned(16), dkv.is_aligned(16)
    }
    grid(rows / ROWS + sequences, heads) block(THREADS) bounds(THREADS, 2) shared(SHARED_KEYS)
    cpu {
        let (sequence, tile) = tile_of(cx, cu_seqlens, sequences);
        let span = Span::new(cx, cu_seqlens, sequence, rows);
        let prefix = prefix_of(cx, each, prefixes, prefix, sequence);
        let (head, width) = (cx.block_idx().y, heads * SIZE);
        let at = head as usize * SIZE as usize;
        let part = |k: usize| Head { start: qkv.as_ptr().wrapping_add(k * width as usize + at), stride: 3 * width };
        let to = |k: usize| Head { start: dkv.as_ptr().wrapping_add(k * width as usize + at), stride: 3 * width };
        let (q, k, v) = (part(0), part(1), part(2));
        let dout = Head { start: dout.as_ptr().wrapping_add(at), stride: width };
        let mut place = if tile < span.len.div_ceil(ROWS) { tile * ROWS } else { span.len };
        let end = span.len.min(place.saturating_add(ROWS));
        while place < end {
            let row = span.start + place;
            if sequence_of(row, sequences, |s| cu_seqlens.get(cx, s) as u32) == sequence {
                let (key, value) = (k.row(cx, row), v.row(cx, row));
                let (mut dk, mut dv) = ([0.0; SIZE as usize], [0.0; SIZE as usize]);
                let first = first_that_sees(place, prefix, span.len, span.len);
                for i in span.start + first..span.start + span.len {
                    let (query, gradient) = (q.row(cx, i), dout.row(cx, i));
                    let (log, delta) = (logs.get(cx, head * rows + i), deltas.get(cx, head * rows + i));
                    let p = cx.exp2_approx(scale * LOG2_E * dot(&query, &key) - log);
                    add(&mut dv, p, &gradient);
                    add(&mut dk, p * (dot(&gradient, &value) - delta), &query);
                }
                to(1).set(cx, row, &dk, scale);
                to(2).set(cx, row, &dv, 1.0);
            }
            place += 1;
        }
    }
    {
        let (sequence, tile) = tile_of(cx, cu_seqlens, sequences);
        let span = Span::new(cx, cu_seqlens, sequence, rows);
        let prefix = prefix_of(cx, each, prefixes, prefix, sequence);
        if tile >= span.len.div_ceil(ROWS) {
            return;
        }
        let (head, first, width) = (cx.block_idx().y, tile * ROWS, heads * SIZE);
        let at = head as usize * SIZE as usize;
        let part = |k: u32, row: u32| {
            let to = at + (k * width) as usize + row as usize * (3 * width) as usize;
            Copies::new(cx.rank(), qkv.as_ptr().wrapping_add(to), 3 * width)
        };
        let (q, k, v) = (part(0, span.start), part(1, span.start + first), part(2, span.start + first));
        let dout = dout.as_ptr().wrapping_add(at + span.start as usize * width as usize);
        let dout = Copies::new(cx.rank(), dout, width);
        let last = (first + ROWS).min(span.len) - 1;
        // The first query that sees a key of this block, and the first one that sees all of them.
        let start = first_that_sees(first, prefix, span.len, span.len) / STEP * STEP;
        let all_see = first_that_sees(last, prefix, span.len, span.len);

        let s = cx.shared::<u16>(0);
        let (keys, values) = (4 * TILE, 6 * TILE);
        let (numbers, pairs) = (cx.shared::<f32>(2 * SHARED), cx.shared::<u64>(2 * SHARED));
        let places = Places::new(cx.lane());
        let mut half = 0;
        while half < 2 {
            k.start(cx, s, keys + half * TILE, half * STEP, span.len - first);
            v.start(cx, s, values + half * TILE, half * STEP, span.len - first);
            half += 1;
        }
        cx.copy_async_commit();
        let mine = cx.warp() * 32 * SIZE;
        // A stage has queries, gradients of the results, and 64 logarithms and 64 numbers D.
        let fill = |stage: u32, from: u32| {
            q.start(cx, s, 2 * TILE * stage, from, span.len);
            dout.start(cx, s, 2 * TILE * stage + TILE, from, span.len);
            let (rank, to) = (cx.rank(), 2 * STEP * stage + cx.rank());
            if rank < STEP {
                let (at, exists) = ((head * rows + span.start + from + rank) as usize, from + rank < span.len);
                cx.copy_async_or_zero::<f32, 4>(numbers, to, logs.as_ptr().wrapping_add(at), exists);
                cx.copy_async_or_zero::<f32, 4>(numbers, to + STEP, deltas.as_ptr().wrapping_add(at), exists);
            }
            cx.copy_async_commit();
        };
        fill(0, start);

        let c = scale * LOG2_E;
        let lane = cx.lane();
        let (mut dk, mut dv) = ([[[0f32; 4]; 8]; 2], [[[0f32; 4]; 8]; 2]);
        let (mut stage, mut from) = (0, start);
        while from < span.len {
            cx.copy_async_wait::<0>();
            cx.barrier();
            if from + STEP < span.len {
                fill(1 - stage, from + STEP);
            }
            let masked = from < all_see;
            let (mut j, chunks) = (0, (span.len - from).div_ceil(16).min(4));
            while j < chunks {
                let at = 2 * TILE * stage + j * 16 * SIZE;
                // Two numbers of neighboring queries: the lane has the same queries in all of its
                // rows.
                let of = |k: u32, t: usize| {
                    let query = j * 16 + t as u32 * 8 + lane % 4 * 2;
                    let pair = cx.shared_get(pairs, STEP * stage + (k * STEP + query) / 2);
                    [f32::from_bits(pair as u32), f32::from_bits((pair >> 32) as u32)]
                };
                // With all rows of K and V in registers, too few would be left.
                let row = |at: u32, i: usize, c: usize| {
                    cx.load_matrices(s, (at + mine + i as u32 * 16 * SIZE + places.rows) ^ (16 * c as u32))
                };
                let mut p = dots(cx, s, places, |i, c| row(keys, i, c), at);
                let kept = [of(0, 0), of(0, 1)];
                let mut e = 0;
                while e < 16 {
                    let (t, i, e_) = (e / 8, e / 4 % 2, e % 4);
                    let power = cx.exp2_approx(cx.fma(p[i][t][e_], c, -kept[t][e_ % 2]));
                    let query = from + j * 16 + t as u32 * 8 + lane % 4 * 2 + e_ as u32 % 2;
                    let key = first + cx.warp() * 32 + i as u32 * 16 + e_ as u32 / 2 * 8 + lane / 4;
                    p[i][t][e_] = if masked && key >= prefix && query < key { 0.0 } else { power };
                    e += 1;
                }
                add_products(cx, s, places, rounded(p), at + TILE, &mut dv);
                let mut d = dots(cx, s, places, |i, c| row(values, i, c), at + TILE);
                let delta = [of(1, 0), of(1, 1)];
                let mut e = 0;
                while e < 16 {
                    let (t, i, e_) = (e / 8, e / 4 % 2, e % 4);
                    d[i][t][e_] = p[i][t][e_] * (d[i][t][e_] - delta[t][e_ % 2]);
                    e += 1;
                }
                add_products(cx, s, places, rounded(d), at, &mut dk);
                j += 1;
            }
            stage = 1 - stage;
            from += STEP;
        }
        let mut i = 0;
        while i < 4 {
            let (row, half) = (i / 2, i % 2);
            let place = first + cx.warp() * 32 + row as u32 * 16 + half as u32 * 8 + lane / 4;
            let at_row = span.start + place;
            if place <= last && sequence_of(at_row, sequences, |s| cu_seqlens.get(cx, s) as u32) == sequence {
                let to = dkv.as_ptr().wrapping_add(at_row as usize * (3 * width) as usize + at);
                store(cx, to.wrapping_add(width as usize), half, &dk[row], scale);
                store(cx, to.wrapping_add(2 * width as usize), half, &dv[row], 1.0);
            }
            i += 1;
        }
    }
}
