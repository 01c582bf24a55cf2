//! The kernels that write many texts at once: each step, every text gets a token, and the keys and
//! values of all texts lie in the pages of one cache.
//!
//! ```text
//! keys, values  [pages, blocks * heads * pieces, PAGE] of 16 bytes
//!               pieces = bytes of a head / 16
//! ```
//!
//! Row `r` of a sequence is row `r % PAGE` of the page `table[r / PAGE]` of this sequence. A page
//! has the rows of all blocks of the model, so that one launch writes the new rows of all of them.
//! Attention reads each page once for each head, in whole sectors: eight threads of a warp have
//! neighboring rows.
//!
//! - **No result depends on the other sequences**: a block has one sequence, and the order of its
//!   sums depends on the number of its own rows.
//! - **An idle sequence, which has no tokens left to write, is left out** by all kernels: it reads
//!   and writes no page, and its state stays.
//! - **Each page of the cache has a thread block for each block of the model**, and only that one
//!   writes there. So no table can make two sequences write the same place.
//! - **Sampling adds integers**, so that the order does not matter: 2^28 stands for the most
//!   probable id. It draws an id by the upper 32 of the 64 bits that the seed of the text and the
//!   place of the token give.
//!
//! `table`, `owners` and the state may hold anything: what is outside the buffers counts as zero.

use thalweg_simt::safe::{Block, Fresh, In, Item, Local, Member, Reading, Team, Thread};
use thalweg_simt::{Simt, kernel};

use super::attention::LOG2_E;
use super::loss::largest;
use super::number::Stored;

/// The rows of a page of the cache.
pub const PAGE: usize = 16;
const ROWS: u32 = PAGE as u32;

/// The numbers of the state of a text that change with each token: the id of the newest token, the
/// rows of the sequence that the cache has, the token's place in the text, and the number of tokens
/// that are left to write. Without any, the sequence is idle.
pub const PROGRESS: usize = 4;
const ID: u32 = 0;
const HAS: u32 = 1;
const PLACE: u32 = 2;
const LEFT: u32 = 3;

/// The numbers of the state of a text that stay: the two halves of its seed, its temperature and
/// its part of the probability as bits of `f32`, and its number in `owners`.
pub const RULES: usize = 5;
const TEMPERATURE: u32 = 2;
const TOP_P: u32 = 3;
const NUMBER: u32 = 4;

/// The rows of a page whose keys and values a thread loads at once.
const AT_ONCE: usize = 2;
/// The threads of a block of attention, and the pages that it has at once: one for each warp.
const THREADS: u32 = 128;
const PAGES: u32 = THREADS / 32;
/// The rows of a page that a thread has, and the distance of them.
const TWO: usize = 2;
const APART: u32 = ROWS / TWO as u32;
/// The elements of a head that a thread has, and the most that there are.
const MINE: usize = 16;
const MOST: u32 = 64;
/// The distance of two numbers of a thread in shared memory, so that they are in different banks.
const PITCH: u32 = THREADS + 1;

kernel! {
    /// Computes the row of the newest token of each text: that of its id and that of its place. An
    /// id or a place outside its table gives NaN, and an idle text gives zeros.
    pub fn newest_rows(
        t: impl Simt, texts: u32, ids: u32, places: u32, columns: u32, progress: In<i32>[texts, 4],
        table: In<f32>[ids, columns], position: In<f32>[places, columns], y: Out<f32>[texts, columns] by [block, rank],
    )
    grid(texts) block(256)
    {
        let text = t.block_idx().x;
        let [id, place] = [ID, PLACE].map(|field| progress.get(t, [text, field]) as u32);
        let idle = progress.get(t, [text, LEFT]) <= 0;
        for y in y.mine(t) {
            let [_, c] = y.at();
            let sum = table.try_get(t, [id, c]).zip(position.try_get(t, [place, c])).map(|(a, b)| a + b);
            y.set(if idle { 0.0 } else { sum.unwrap_or(f32::NAN) });
        }
    }
}

/// Returns which part of a head a thread has: the same for all rows.
#[inline(always)]
fn part(rank: u32) -> u32 {
    rank % 32 / APART
}

/// Returns the elements of a thread of one of the newest rows: of queries, keys or values.
#[inline(always)]
fn mine_of<'k, C: Member>(t: &Thread<'k, C>, new: &Reading<'k, f32>, of: u32) -> [f32; MINE] {
    core::array::from_fn(|i| new.get(t, of * MOST + part(t.rank()) * MINE as u32 + i as u32))
}

/// An element of a cache, which has pieces of 16 bytes.
trait Cached: Stored {
    type Piece: Item;
    /// The pieces of a thread of a row, in whole words. They are taken apart where they are used: a
    /// load then keeps nobody waiting.
    type Row: Copy;
    /// Asks for each piece of a thread. One that does not exist is zero.
    fn row(piece: impl FnMut(u32) -> Option<Self::Piece>) -> Self::Row;
    fn elements(row: Self::Row) -> [f32; MINE];
}
impl Cached for f32 {
    type Piece = [f32; 4];
    type Row = [[f32; 4]; MINE / 4];
    #[inline(always)]
    fn row(mut piece: impl FnMut(u32) -> Option<[f32; 4]>) -> Self::Row {
        core::array::from_fn(|i| piece(i as u32).unwrap_or_default())
    }
    #[inline(always)]
    fn elements(row: Self::Row) -> [f32; MINE] {
        core::array::from_fn(|i| row[i / 4][i % 4])
    }
}
impl Cached for u16 {
    type Piece = [u16; 8];
    type Row = [[u32; 4]; MINE / 8];
    #[inline(always)]
    fn row(mut piece: impl FnMut(u32) -> Option<[u16; 8]>) -> Self::Row {
        core::array::from_fn(|i| {
            let words =
                |piece: [u16; 8]| core::array::from_fn(|i| u32::from(piece[2 * i]) | u32::from(piece[2 * i + 1]) << 16);
            piece(i as u32).map(words).unwrap_or_default()
        })
    }
    #[inline(always)]
    fn elements(row: Self::Row) -> [f32; MINE] {
        core::array::from_fn(|i| ((row[i / 8][i % 8 / 2] >> (i % 2 * 16)) as u16).wide())
    }
}

/// Loads the pieces of each thread from pages of a cache, from the column `first` on. `numbers` has
/// the number of the page for each row of the thread. What does not exist is zero.
#[inline(always)]
fn load<'k, M: Team, E: Cached>(
    b: &Block<'k, M>,
    cache: In<'k, E::Piece, 3>,
    numbers: &Local<'k, M, [u32; TWO]>,
    [first, pieces]: [u32; 2],
) -> Local<'k, M, [E::Row; TWO]> {
    b.each(numbers, move |t, numbers| {
        core::array::from_fn(|j| {
            E::row(|i| {
                let piece = part(t.rank()) * (MINE / E::Piece::COUNT) as u32 + i;
                let column = if piece < pieces { first + piece } else { u32::MAX };
                cache.try_get(t, [numbers.get(t)[j], column, t.rank() % APART + APART * j as u32])
            })
        })
    })
}

/// Returns the sum of the products of two parts of a row.
#[inline(always)]
fn product(t: impl Simt, a: [f32; MINE], b: [f32; MINE]) -> f32 {
    let (mut sum, mut i) = (0.0, 0);
    while i < MINE {
        sum = t.fma(a[i], b[i], sum);
        i += 1;
    }
    sum
}

/// Returns the sums over the parts of a row, in all threads that have one.
#[inline(always)]
fn of_row<'k, M: Team>(b: &mut Block<'k, M>, mut sums: Local<'k, M, f32>) -> Local<'k, M, f32> {
    let mut distance = APART;
    while distance < 32 {
        let others = b.shuffle_xor(&sums, distance);
        sums = b.each((&sums, &others), |t, (a, b)| a.get(t) + b.get(t));
        distance *= 2;
    }
    sums
}

/// Declares the kernels for a type of keys and values: with the elements of a piece, and the blocks
/// of attention that a multiprocessor has at once, as many as there are registers for. A launcher
/// by types takes no buffer of pairs of a type that it chooses.
macro_rules! of_types {
    ($($e:ident $piece:literal $at_once:literal $append:ident $attention:ident;)*) => {$(
        kernel! {
            /// Writes the keys and values of the last `new` rows of each sequence, of all blocks of
            /// the model, to its pages. `qkv` has `room` rows of each block, of which the first
            /// `sequences * new` are those.
            pub(super) fn $append(
                t: impl Simt, sequences: u32, new: u32, blocks: u32, room: u32, heads: u32, size: u32, pages: u32,
                progress: In<i32>[sequences, 4], rules: In<i32>[sequences, 5], owners: In<i32>[pages, 2],
                qkv: In<$e>[rows = blocks * room, 3, heads, size],
                keys: Out<[$e; $piece]>[pages, blocks, columns = heads * size.div_ceil($piece), 16] by [block, block(y), rank, all],
                values: Out<[$e; $piece]>[pages, blocks, columns, 16] by [block, block(y), rank, all],
            )
            require { size >= 1, sequences >= 1, sequences * new <= room, blocks <= 65535 }
            grid(pages, blocks) block(128) bounds(128, 8)
            {
                let (page, block) = (t.block_idx().x, t.block_idx().y);
                // The sequences have neighboring numbers.
                let [owner, ordinal] = [0, 1].map(|field| owners.get(t, [page, field]));
                let sequence = owner.wrapping_sub(rules.get(t, [0, NUMBER])) as u32;
                let [left, has] = [LEFT, HAS].map(|field| progress.try_get(t, [sequence, field]).unwrap_or(0));
                if owner < 0 || left <= 0 {
                    return;
                }
                // The rows of the page that are new: the newest one is behind those that the cache
                // has.
                let (end, first) = (has as u32, (ordinal as u32).wrapping_mul(ROWS));
                let start = end.wrapping_add(1).wrapping_sub(new);
                // Most pages have none of them.
                let from = first.wrapping_sub(start);
                if from >= new && from < 0u32.wrapping_sub(ROWS - 1) {
                    return;
                }
                let pieces = size.div_ceil($piece);
                // The first row of the page that is not new.
                let last = new.wrapping_sub(from).min(ROWS);
                let mut column = t.rank();
                while column < columns {
                    let (head, piece) = (column / pieces, column % pieces * $piece);
                    let row_of_block = block * room + sequence * new;
                    let eight = |from: u32, part: u32| -> [$e; $piece] {
                        core::array::from_fn(|i| {
                            let (row, c) = (row_of_block.wrapping_add(from), piece + i as u32);
                            if from < new && c < size { qkv.get(t, [row, part, head, c]) } else { <$e>::narrow(0.0) }
                        })
                    };
                    let mut row = if from < new { 0 } else { 0u32.wrapping_sub(from) };
                    while row < last {
                        let from = |i: usize| first.wrapping_add(row + i as u32).wrapping_sub(start);
                        // The loads of several rows are under way at once.
                        let some: [[[$e; $piece]; 2]; AT_ONCE] =
                            core::array::from_fn(|i| [1, 2].map(|part| eight(from(i), part)));
                        let mut i = 0;
                        while i < AT_ONCE {
                            if row + (i as u32) < last {
                                keys.set(t, [page, block, column, row + i as u32], some[i][0]);
                                values.set(t, [page, block, column, row + i as u32], some[i][1]);
                            }
                            i += 1;
                        }
                        row += AT_ONCE as u32;
                    }
                    column += t.threads();
                }
            }
        }

        kernel! {
            /// Computes attention of the newest row of each sequence in a block of the model: to
            /// its rows in the cache, and to itself. `q`, `k` and `v` of these rows lie side by
            /// side.
            pub(super) fn $attention(
                b: impl Cooperative, sequences: u32, block: u32, blocks: u32, heads: u32, size: u32, pages: u32, most: u32,
                scale: f32, progress: In<i32>[sequences, 4], table: In<i32>[sequences, most],
                qkv: In<$e>[sequences, 3, heads, size],
                keys: In<[$e; $piece]>[pages, columns = blocks * heads * size.div_ceil($piece), 16],
                values: In<[$e; $piece]>[pages, columns, 16], out: Out<$e>[sequences, heads, size] by [block, block(y), rank],
            )
            require { (1..=64).contains(&size), heads <= 65535, most <= 1 << 24, block < blocks }
            grid(sequences, heads) block(128) bounds(THREADS, $at_once) shared(4 * 3 * MOST + 4 * PAGES + 4 * 17 * PITCH)
            {
                let (sequence, head) = (b.idx().x, b.idx().y);
                let has = progress.get(&b, [sequence, HAS]) as u32;
                let idle = progress.get(&b, [sequence, LEFT]) <= 0;
                // The rows in the cache, which does not have the newest one yet.
                let count = if idle { 0 } else { has.min(most.saturating_mul(ROWS)) };
                let pieces = size.div_ceil($piece);
                let columns = [(block * heads + head) * pieces, pieces];

                let new = b.shared::<f32>(3 * MOST);
                let new = b.fill(new, (), move |t, (), i| {
                    let (part, c) = (i / MOST, i % MOST);
                    let v = if c < size { qkv.get(t, [sequence, part, head, c]).wide() } else { 0.0 };
                    if part == 0 { v * (scale * LOG2_E) } else { v }
                });
                let new = b.sync(new.read());
                let q = b.each(&new, |t, new| mine_of(t, new, 0));
                // The newest row is the first one of a thread. All warps compute its score.
                let products = b.each((&new, &q), |t, (new, q)| product(**t, q.get(t), mine_of(t, new, 1)));
                let score = of_row(&mut b, products);
                // The largest score so far, the sum of powers, and the sums of values.
                let so_far = b.each((&new, &score), |t, (new, score)| {
                    // A score of minus infinity adds nothing, and the difference of two is NaN.
                    if t.rank() < 32 && t.rank() % APART == 0 && score.get(t) != f32::NEG_INFINITY {
                        (score.get(t), 1.0, mine_of(t, new, 2))
                    } else {
                        (f32::MIN, 0.0, [0.0; MINE])
                    }
                });
                let mut first = 0;
                while first * ROWS < count {
                    // A row that does not exist has no page.
                    let numbers = b.each((), move |t, ()| {
                        let page = first + t.rank() / 32;
                        let number = table.try_get(t, [sequence, page]).unwrap_or(-1) as u32;
                        let row = page * ROWS + t.rank() % APART;
                        [row, row + APART].map(|row| if row < count { number } else { u32::MAX })
                    });
                    let k = load::<_, $e>(&b, keys, &numbers, columns);
                    let v = load::<_, $e>(&b, values, &numbers, columns);
                    let [low, high] = [0, 1].map(|j: usize| {
                        let products = b.each((&k, &q), move |t, (k, q)| {
                            product(**t, q.get(t), <$e>::elements(k.get(t)[j]))
                        });
                        of_row(&mut b, products)
                    });
                    b.each((&v, &low, &high, &so_far), move |t, (v, low, high, so_far)| {
                        let row = (first + t.rank() / 32) * ROWS + t.rank() % APART;
                        let score = |row: u32, v: f32| if row < count { v } else { f32::NEG_INFINITY };
                        let scores = [score(row, low.get(t)), score(row + APART, high.get(t))];
                        let (old, mut sum, mut sums) = so_far.get(t);
                        let most = old.max(scores[0]).max(scores[1]);
                        let shrink = t.exp2_approx(old - most);
                        let p = scores.map(|score| t.exp2_approx(score - most));
                        sum = t.fma(sum, shrink, p[0]) + p[1];
                        let values = v.get(t).map(<$e as Cached>::elements);
                        let mut i = 0;
                        while i < MINE {
                            sums[i] = t.fma(p[1], values[1][i], t.fma(p[0], values[0][i], sums[i] * shrink));
                            i += 1;
                        }
                        so_far.set(t, (most, sum, sums));
                    });
                    first += PAGES;
                }
                let mine = b.each(&so_far, |t, so_far| so_far.get(t).0);
                let mine = b.warp_max(&mine);
                let warps = b.shared::<f32>(PAGES);
                let filled = b.publish_warps(warps, &mine);
                let warps = b.sync(filled.read());
                let rows = b.each((&warps, &so_far), |t, (warps, so_far)| -> [f32; MINE + 1] {
                    let (old, sum, sums) = so_far.get(t);
                    let (mut most, mut warp) = (warps.get(t, 0), 1);
                    while warp < PAGES {
                        most = most.max(warps.get(t, warp));
                        warp += 1;
                    }
                    let shrink = t.exp2_approx(old - most);
                    core::array::from_fn(|i| shrink * if i < MINE { sums[i] } else { sum })
                });
                let all = b.shared::<f32>(17 * PITCH);
                let filled = b.publish_rows(all, PITCH, &rows);
                let all = b.sync(filled.read());
                b.each(&all, move |t, all| {
                    for out in out.mine(t) {
                        let [_, _, c] = out.at();
                        let (c, mine) = (c % MINE as u32, c / MINE as u32 * APART);
                        let (mut sum, mut of, mut thread) = (0.0, 0.0, 0);
                        while thread < THREADS {
                            let mut row = 0;
                            while row < APART {
                                sum += all.get(t, c * PITCH + thread + mine + row);
                                of += all.get(t, MINE as u32 * PITCH + thread + row);
                                row += 1;
                            }
                            thread += 32;
                        }
                        out.set(<$e>::narrow(if idle { 0.0 } else { sum / of }));
                    }
                });
            }
        }
    )*};
}
of_types! {
    f32 4 4 append_rows_f32 paged_attention_f32;
    u16 8 6 append_rows_bf16 paged_attention_bf16;
}

/// Returns the 64 bits that a seed gives for a place: number `place` of the generator SplitMix64
/// (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[inline(always)]
fn bits_of(seed: u64, place: u32) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(place as u64 + 1));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The units of the most probable id, and the steps of a halving of probability by which the most
/// probable ids are chosen. After 32 halvings there is nothing.
const UNITS: f32 = (1 << 28) as f32;
const STEPS: f32 = 2048.0;
const LAST: u32 = 65535;
/// The threads of a block that samples, and the logits that each of them has at once.
const SAMPLERS: u32 = 512;
const SLOTS: usize = 16;
const WARPS: u32 = SAMPLERS / 32;

/// Returns how many steps an id is less probable than the most probable one, and its units.
#[inline(always)]
fn weight(t: impl Simt, halvings: f32) -> (u32, u32) {
    let step = ((halvings * STEPS) as u32).min(LAST);
    (step, if step == LAST { 0 } else { (t.exp2_approx(-halvings) * UNITS) as u32 })
}

/// Returns the part `part / 2^32` of a sum below 2^46.
#[inline(always)]
fn share(sum: u64, part: u32) -> u64 {
    (sum >> 32) * u64::from(part) + (((sum & 0xffff_ffff) * u64::from(part)) >> 32)
}

/// Calls `f` with each id of a thread and its logit, in order. Several loads are under way at once.
#[inline(always)]
fn each_logit<'k, C: Simt>(
    t: &Thread<'k, C>,
    logits: In<'k, f32, 2>,
    text: u32,
    ids: u32,
    mut f: impl FnMut(u32, f32),
) {
    let mut first = t.rank();
    while first < ids {
        let some: [f32; SLOTS] = core::array::from_fn(|i| {
            logits.try_get(t, [text, first + SAMPLERS * i as u32]).unwrap_or(f32::NEG_INFINITY)
        });
        let mut i = 0;
        // The number of turns is a constant, so that the compiler may unroll them.
        while i < SLOTS {
            let c = first + SAMPLERS * i as u32;
            if c < ids {
                f(c, some[i]);
            }
            i += 1;
        }
        first += SAMPLERS * SLOTS as u32;
    }
}

/// The sums of units by a byte of the step, and the copies of each. Neighboring threads add to
/// different ones, because most ids are often in a few bins.
const BINS: u32 = 256;
const COPIES: u32 = 16;

/// Gives a window the sum of the numbers of each thread and of those before it in its warp. They
/// are below 2^46 together.
#[inline(always)]
fn running<'k, M: Team>(b: &mut Block<'k, M>, to: Fresh<'k, u64>, v: &Local<'k, M, u64>) -> Reading<'k, u64> {
    // Threads exchange 32 bits. 24 of them have room for the sum of a warp.
    let (low, high) = (b.each(v, |t, v| v.get(t) as u32 & 0xff_ffff), b.each(v, |t, v| (v.get(t) >> 24) as u32));
    let mut delta = 1;
    while delta < 32 {
        let (lows, highs) = (b.shuffle_up(&low, delta), b.shuffle_up(&high, delta));
        b.each((&low, &high, &lows, &highs), move |t, (low, high, lows, highs)| {
            if t.rank() % 32 >= delta {
                low.set(t, low.get(t) + lows.get(t));
                high.set(t, high.get(t) + highs.get(t));
            }
        });
        delta *= 2;
    }
    let sums = b.each((&low, &high), |t, (low, high)| (u64::from(high.get(t)) << 24) + u64::from(low.get(t)));
    let filled = b.publish(to, &sums);
    b.sync(filled.read())
}

/// Returns the sum of all numbers of [`running`].
#[inline(always)]
fn all<'k, C: Member>(t: &Thread<'k, C>, sums: &Reading<'k, u64>) -> u64 {
    let (mut all, mut warp) = (0, 0);
    while warp < WARPS {
        all += sums.get(t, 32 * warp + 31);
        warp += 1;
    }
    all
}

/// Returns the first thread whose number of [`running`] and those before it are more than `part`
/// together, or the last thread; and the sum of the numbers before it.
#[inline(always)]
fn reached<'k, C: Member>(t: &Thread<'k, C>, sums: &Reading<'k, u64>, part: u64) -> (u32, u64) {
    let (mut before, mut first) = (0, 0);
    while first < SAMPLERS - 32 && before + sums.get(t, first + 31) <= part {
        before += sums.get(t, first + 31);
        first += 32;
    }
    let (mut lane, mut half) = (0, 16);
    while half > 0 {
        if before + sums.get(t, first + lane + half - 1) <= part {
            lane += half;
        }
        half /= 2;
    }
    (first + lane, if lane > 0 { before + sums.get(t, first + lane - 1) } else { before })
}

kernel! {
    /// Chooses the next id of each text and moves the state of the text on. Without temperature it
    /// is the one with the largest logit, the first one among equals. Otherwise it is drawn from
    /// the softmax of `logits / temperature`, of which the most probable ids are kept until their
    /// sum is `top_p`, with all that are as probable as the last one, within 1 / 2048 of a halving.
    pub fn sample(
        b: impl Cooperative, texts: u32, ids: u32, logits: In<f32>[texts, ids], rules: In<i32>[texts, 5],
        progress: InOut<i32>[texts, 4] by [block, all], next: Out<i32>[texts] by [block],
    )
    require { (1..1 << 18).contains(&ids) }
    grid(texts) block(512) bounds(SAMPLERS, 1) shared(2 * 4 * WARPS + 2 * 4 * BINS * COPIES + 8 * SAMPLERS + 4)
    {
        let text = b.idx().x;
        // Block code cannot see what only the first thread may read.
        let busy = b.each((), move |t, ()| progress.column(t).is_some_and(|state| state.cell::<1>(LEFT).get() > 0));
        if !b.any(&busy) {
            b.each((), move |t, ()| {
                if let Some(next) = next.cell(t) {
                    next.set(-1);
                }
            });
            return;
        }
        let found = b.each((), move |t, ()| {
            let (mut most, mut at) = (f32::NEG_INFINITY, u32::MAX);
            each_logit(t, logits, text, ids, |c, logit| {
                if logit > most || at == u32::MAX {
                    (most, at) = (logit, c);
                }
            });
            (most, at)
        });
        let most = b.each(&found, |t, found| found.get(t).0);
        let best = b.each(&found, |t, found| found.get(t).1);
        largest(&mut b, &most, &best);
        let (mosts, places) = (b.shared::<f32>(WARPS), b.shared::<u32>(WARPS));
        let (mosts, places) = (b.publish_warps(mosts, &most), b.publish_warps(places, &best));
        let (mosts, places) = b.sync((mosts.read(), places.read()));
        let most = b.each(&mosts, |t, mosts| mosts.get(t, t.rank() % WARPS));
        let best = b.each(&places, |t, places| places.get(t, t.rank() % WARPS));
        largest(&mut b, &most, &best);

        let temperature = f32::from_bits(rules.get(&b, [text, TEMPERATURE]) as u32);
        let top_p = f32::from_bits(rules.get(&b, [text, TOP_P]) as u32);
        if temperature > 0.0 {
            let factor = LOG2_E / temperature;
            let (mut low, mut high) = (b.shared::<u32>(BINS * COPIES), b.shared::<u32>(BINS * COPIES));
            let mut sums = b.shared::<u64>(SAMPLERS);
            // All threads draw, and only the first one may read the state.
            let place = b.shared::<u32>(1);
            let place = b.fill(place, (), move |t, (), _| {
                progress.column(t).map_or(0, |state| state.cell::<1>(PLACE).get() as u32)
            });
            let place = b.sync(place.read());
            // The last step that is kept, by its upper byte, and then by its lower one.
            let last = b.each((), |_, ()| [0u32; 2]);
            let wanted = b.each((), |_, ()| 0u64);
            let mut level = if top_p < 1.0 { 0 } else { 2 };
            while level < 2 {
                let (empty, none) = (b.fill(low, (), |_, (), _| 0), b.fill(high, (), |_, (), _| 0));
                let (lows, highs) = b.sync((empty.add(), none.add()));
                b.each((&most, &last, &lows, &highs), move |t, (most, last, lows, highs)| {
                    let (most, [upper, _]) = (most.get(t), last.get(t));
                    each_logit(t, logits, text, ids, |_, logit| {
                        let (step, units) = weight(**t, (most - logit) * factor);
                        if level == 0 || step >> 8 == upper {
                            let bin = if level == 0 { step >> 8 } else { step & 255 };
                            let at = bin * COPIES + t.rank() % COPIES;
                            lows.add(t, at, units & 0x3fff);
                            highs.add(t, at, units >> 14);
                        }
                    });
                });
                let (lows, highs) = b.sync((lows.read(), highs.read()));
                // The first threads have a bin each.
                let mine = b.each((&lows, &highs), |t, (lows, highs)| {
                    let (mut sum, mut copy) = (0, 0);
                    while copy < COPIES && t.rank() < BINS {
                        // Threads of a warp begin in different banks.
                        let at = t.rank() * COPIES + (copy + t.rank()) % COPIES;
                        sum += (u64::from(highs.get(t, at)) << 14) + u64::from(lows.get(t, at));
                        copy += 1;
                    }
                    sum
                });
                let of = running(&mut b, sums, &mine);
                b.each((&wanted, &last, &of), move |t, (wanted, last, of)| {
                    if level == 0 {
                        wanted.set(t, share(all(t, of), (top_p.max(0.0) * 4_294_967_296.0) as u32));
                    }
                    let (bin, before) = reached(t, of, wanted.get(t).saturating_sub(1));
                    wanted.set(t, wanted.get(t) - before.min(wanted.get(t)));
                    let mut mine = last.get(t);
                    mine[level] = bin;
                    last.set(t, mine);
                });
                (low, high, sums) = b.sync((lows.renew(), highs.renew(), of.renew()));
                level += 1;
            }
            let units_of = move |cx, most: f32, [upper, lower]: [u32; 2], logit: f32| {
                let (step, units) = weight(cx, (most - logit) * factor);
                if top_p >= 1.0 || step <= upper << 8 | lower { u64::from(units) } else { 0 }
            };
            let mine = b.each((&most, &last), move |t, (most, last)| {
                let (most, last, mut sum) = (most.get(t), last.get(t), 0);
                each_logit(t, logits, text, ids, |_, logit| sum += units_of(**t, most, last, logit));
                sum
            });
            let of = running(&mut b, sums, &mine);
            // The thread that has the id, and the units of its ids before: the ids are in the order
            // of the threads.
            let seed = [0, 1].map(|field| u64::from(rules.get(&b, [text, field]) as u32));
            let rest = b.each((), |_, ()| 0u64);
            let thread = b.each((&rest, &place, &of), move |t, (rest, place, of)| {
                let place = place.get(t, 0);
                let drawn = share(all(t, of), (bits_of(seed[1] << 32 | seed[0], place) >> 32) as u32);
                let (thread, before) = reached(t, of, drawn);
                rest.set(t, drawn - before.min(drawn));
                thread
            });
            sums = b.sync(of.renew());
            // Each thread looks at one of its ids. There are enough threads for all that there are.
            const { assert!(SAMPLERS * SAMPLERS >= 1 << 18) };
            let id = move |rank: u32, thread: u32| rank * SAMPLERS + thread;
            let mine = b.each((&most, &last, &thread), move |t, (most, last, thread)| {
                let (most, last, at) = (most.get(t), last.get(t), [text, id(t.rank(), thread.get(t))]);
                logits.try_get(t, at).map_or(0, |logit| units_of(**t, most, last, logit))
            });
            let of = running(&mut b, sums, &mine);
            b.each((&best, &rest, &thread, &of), move |t, (best, rest, thread, of)| {
                if rest.get(t) < all(t, of) {
                    best.set(t, id(reached(t, of, rest.get(t)).0, thread.get(t)));
                }
            });
        }
        b.each(&best, move |t, best| {
            let (Some(state), Some(next)) = (progress.column(t), next.cell(t)) else { return };
            let id = best.get(t).min(ids - 1) as i32;
            next.set(id);
            state.cell::<1>(ID).set(id);
            for (field, by) in [(HAS, 1), (PLACE, 1), (LEFT, -1)] {
                let cell = state.cell::<1>(field);
                cell.set(cell.get().wrapping_add(by));
            }
        });
    }
}
