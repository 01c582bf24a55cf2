//! The kernels that write many texts at once: each step, every text gets a token, and the keys and
//! values of all texts lie in the pages of one cache.
//!
//! ```text
//! keys    [pages, heads * quads, PAGE] of four elements      quads = elements of a head / 4
//! values  [pages, PAGE, heads * quads] of four elements
//! ```
//!
//! Row `r` of a sequence is row `r % PAGE` of the page `table[r / PAGE]` of this sequence. The
//! threads of a warp have neighboring keys in the scores and neighboring elements of a row in the
//! sums of values, so both are read in whole sectors, and each page once by each head.
//!
//! - **No result depends on the other sequences**: a block has one sequence, and the order of its
//!   sums depends on the number of its own rows.
//! - **An idle sequence, which has no tokens left to write, is left out** by all kernels: it reads
//!   and writes no page, and its state stays.
//! - **A page is written by the block that has it**, one for each page of the cache, also if
//!   nothing is to be written. So two sequences cannot write the same place, whatever the table
//!   says.
//! - **Sampling adds integers**, so that the order does not matter: 2^28 stands for the most
//!   probable id. It draws an id by the upper 32 of the 64 bits that the seed of the text and the
//!   place of the token give.
//!
//! `table`, `owners` and the state may hold anything: what is outside the buffers counts as zero.

use thalweg_simt::safe::{In, Thread};
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

/// The threads of a block of attention, and the keys that each of them has at once.
const THREADS: u32 = 128;
const KEYS: usize = 4;

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

/// Declares the kernels for a type of keys and values. A launcher by types takes no buffer of pairs
/// of a type that it chooses.
macro_rules! of_types {
    ($($e:ident $append:ident $attention:ident;)*) => {$(
        kernel! {
            /// Writes the keys and values of the last `new` rows of each sequence to its pages.
            pub(super) fn $append(
                t: impl Simt, sequences: u32, new: u32, heads: u32, size: u32, pages: u32, progress: In<i32>[sequences, 4],
                rules: In<i32>[sequences, 5], owners: In<i32>[pages, 2], qkv: In<$e>[rows = sequences * new, 3, heads, size],
                keys: Out<[$e; 4]>[pages, columns = heads * size.div_ceil(4), 16] by [block, rank, all],
                values: Out<[$e; 4]>[pages, 16, columns] by [block, all, rank],
            )
            require { size >= 1, sequences >= 1 }
            grid(pages) block(128)
            {
                let page = t.block_idx().x;
                // The sequences have neighboring numbers.
                let [owner, ordinal] = [0, 1].map(|field| owners.get(t, [page, field]));
                let sequence = owner.wrapping_sub(rules.get(t, [0, NUMBER])) as u32;
                if owner < 0 || progress.try_get(t, [sequence, LEFT]).unwrap_or(0) <= 0 {
                    return;
                }
                // The rows of the page that are new: the newest one is behind those that the cache
                // has.
                let (end, first) = (progress.get(t, [sequence, HAS]) as u32, (ordinal as u32).wrapping_mul(ROWS));
                let start = end.wrapping_add(1).wrapping_sub(new);
                let quads = size.div_ceil(4);
                let mut row = 0;
                while row < ROWS {
                    let from = first.wrapping_add(row).wrapping_sub(start);
                    if from < new {
                        let from = sequence * new + from;
                        let mut column = t.rank();
                        while column < columns {
                            let (head, quad) = (column / quads, column % quads * 4);
                            let four = |part| -> [$e; 4] {
                                core::array::from_fn(|i| {
                                    let c = quad + i as u32;
                                    if c < size { qkv.get(t, [from, part, head, c]) } else { <$e>::narrow(0.0) }
                                })
                            };
                            keys.set(t, [page, column, row], four(1));
                            values.set(t, [page, row, column], four(2));
                            column += t.threads();
                        }
                    }
                    row += 1;
                }
            }
        }

        kernel! {
            /// Computes attention of the newest row of each sequence: to all its rows in the cache,
            /// of which it is the last one. `q`, `k` and `v` of the newest rows lie side by side.
            pub(super) fn $attention(
                b: impl Cooperative, sequences: u32, heads: u32, size: u32, pages: u32, most: u32, scale: f32,
                progress: In<i32>[sequences, 4], table: In<i32>[sequences, most], qkv: In<$e>[sequences, 3, heads, size],
                keys: In<[$e; 4]>[pages, columns = heads * size.div_ceil(4), 16], values: In<[$e; 4]>[pages, 16, columns],
                out: Out<$e>[sequences, heads, size] by [block, block(y), rank],
            )
            require { (1..=64).contains(&size), heads <= 65535, most <= 1 << 24 }
            grid(sequences, heads) block(128) bounds(THREADS, 7) shared(4 * 64 + 4 * 4 + 4 * 512 + 4 * 640)
            {
                let (sequence, head) = (b.idx().x, b.idx().y);
                let has = progress.get(&b, [sequence, HAS]) as u32;
                let idle = progress.get(&b, [sequence, LEFT]) <= 0;
                let count = if idle { 0 } else { has.saturating_add(1).min(most.saturating_mul(ROWS)) };
                let quads = size.div_ceil(4);
                let page_of = move |row: u32| [sequence, row / ROWS];
                let no = u32::MAX;

                let q = b.shared::<f32>(64);
                let q = b.fill(q, (), move |t, (), c| {
                    if c < size { qkv.get(t, [sequence, 0, head, c]).wide() * (scale * LOG2_E) } else { 0.0 }
                });
                let q = b.sync(q.read());
                let (mut warps, mut powers) = (b.shared::<f32>(4), b.shared::<f32>(THREADS * KEYS as u32));
                // The largest score so far; four sums of values and the sum of powers.
                let most_so_far = b.each((), |_, ()| f32::NEG_INFINITY);
                let sums = b.each((), |_, ()| [0f32; 5]);
                let mut from = 0;
                while from < count {
                    let scores = b.each(&q, move |t, q| -> [f32; KEYS] {
                        let row = |i: usize| from + THREADS * i as u32 + t.rank();
                        let pages: [u32; KEYS] = core::array::from_fn(|i| {
                            if row(i) < count { table.try_get(t, page_of(row(i))).map_or(no, |page| page as u32) } else { no }
                        });
                        let (mut scores, mut quad) = ([0.0; KEYS], 0);
                        while quad < quads {
                            let q: [f32; 4] = core::array::from_fn(|c| q.get(t, 4 * quad + c as u32));
                            let some: [[$e; 4]; KEYS] = core::array::from_fn(|i| {
                                let at = [pages[i], head * quads + quad, row(i) % ROWS];
                                keys.try_get(t, at).unwrap_or([<$e>::narrow(0.0); 4])
                            });
                            let mut i = 0;
                            while i < KEYS {
                                let mut c = 0;
                                while c < 4 {
                                    scores[i] = t.fma(q[c], some[i][c].wide(), scores[i]);
                                    c += 1;
                                }
                                i += 1;
                            }
                            quad += 1;
                        }
                        core::array::from_fn(|i| if row(i) < count { scores[i] } else { f32::NEG_INFINITY })
                    });
                    let mine = b.each(&scores, |t, scores| scores.get(t).into_iter().fold(f32::NEG_INFINITY, f32::max));
                    let mine = b.warp_max(&mine);
                    let filled = b.publish_warps(warps, &mine);
                    let all = b.sync(filled.read());
                    let shrink = b.each((&all, &most_so_far), |t, (all, most)| {
                        let (old, mut new, mut i) = (most.get(t), most.get(t), 0);
                        while i < 4 {
                            new = new.max(all.get(t, i));
                            i += 1;
                        }
                        most.set(t, new);
                        t.exp2_approx(old - new)
                    });
                    let p = b.each((&scores, &most_so_far), |t, (scores, most)| {
                        let most = most.get(t);
                        scores.get(t).map(|score| t.exp2_approx(score - most))
                    });
                    let filled = b.publish_rows(powers, THREADS, &p);
                    let (again, p) = b.sync((all.renew(), filled.read()));
                    b.each((&p, &shrink, &sums), move |t, (p, shrink, sums)| {
                        let (group, quad) = (t.rank() / quads, t.rank() % quads);
                        let groups = THREADS / quads;
                        if group >= groups {
                            return;
                        }
                        let shrink = shrink.get(t);
                        let mut mine = sums.get(t).map(|sum| sum * shrink);
                        let (mut i, here) = (group, (count - from).min(THREADS * KEYS as u32));
                        while i < here {
                            // Four rows are under way at once. The order of the sums is that of the
                            // rows.
                            let some: [(f32, [$e; 4]); 4] = core::array::from_fn(|k| {
                                let i = i + k as u32 * groups;
                                let page = table.try_get(t, page_of(from + i)).map_or(no, |page| page as u32);
                                let page = if i < here { page } else { no };
                                let v = values.try_get(t, [page, (from + i) % ROWS, head * quads + quad]);
                                (if i < here { p.get(t, i) } else { 0.0 }, v.unwrap_or([<$e>::narrow(0.0); 4]))
                            });
                            let mut k = 0;
                            while k < 4 {
                                let (p, v) = some[k];
                                let mut c = 0;
                                while c < 4 {
                                    mine[c] = t.fma(p, v[c].wide(), mine[c]);
                                    c += 1;
                                }
                                mine[4] += p;
                                k += 1;
                            }
                            i += 4 * groups;
                        }
                        sums.set(t, mine);
                    });
                    (warps, powers) = (again, b.sync(p.renew()));
                    from += THREADS * KEYS as u32;
                }
                let all = b.shared::<f32>(5 * THREADS);
                let filled = b.publish_rows(all, THREADS, &sums);
                let all = b.sync(filled.read());
                b.each(&all, move |t, all| {
                    for out in out.mine(t) {
                        let [_, _, c] = out.at();
                        let (mut sum, mut of, mut group) = (0.0, 0.0, 0);
                        while group < THREADS / quads {
                            let thread = group * quads + c / 4;
                            sum += all.get(t, c % 4 * THREADS + thread);
                            of += all.get(t, 4 * THREADS + thread);
                            group += 1;
                        }
                        out.set(<$e>::narrow(if idle { 0.0 } else { sum / of }));
                    }
                });
            }
        }
    )*};
}
of_types! {
    f32 append_rows_f32 paged_attention_f32;
    u16 append_rows_bf16 paged_attention_bf16;
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
const SAMPLERS: u32 = 256;
const SLOTS: usize = 16;

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
    grid(texts) block(256) bounds(SAMPLERS, 2) shared(2 * 4 * 8 + 2 * 4 * 256 + 8 * 257)
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
        let (mosts, places) = (b.shared::<f32>(8), b.shared::<u32>(8));
        let (mosts, places) = (b.publish_warps(mosts, &most), b.publish_warps(places, &best));
        let (mosts, places) = b.sync((mosts.read(), places.read()));
        let most = b.each(&mosts, |t, mosts| mosts.get(t, t.rank() % 8));
        let best = b.each(&places, |t, places| places.get(t, t.rank() % 8));
        largest(&mut b, &most, &best);

        let temperature = f32::from_bits(rules.get(&b, [text, TEMPERATURE]) as u32);
        let top_p = f32::from_bits(rules.get(&b, [text, TOP_P]) as u32);
        if temperature > 0.0 {
            let factor = LOG2_E / temperature;
            // 256, bins and threads. The compiler must not know it: it would unroll the loops over
            // them, whose loads then need more registers than there are.
            let bins = 256 + (ids >> 18);
            let (mut low, mut high) = (b.shared::<u32>(256), b.shared::<u32>(256));
            let (sums, drawn) = (b.shared::<u64>(256), b.shared::<u64>(1));
            // The last step that is kept, by its upper byte, and then by its lower one. The first
            // thread has the sums of units before.
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
                            lows.add(t, bin, units & 0x3fff);
                            highs.add(t, bin, units >> 14);
                        }
                    });
                });
                let (lows, highs) = b.sync((lows.read(), highs.read()));
                let bin = b.each((&wanted, &lows, &highs), move |t, (wanted, lows, highs)| {
                    if t.rank() != 0 {
                        return 0;
                    }
                    let of = |bin| (u64::from(highs.get(t, bin)) << 14) + u64::from(lows.get(t, bin));
                    if level == 0 {
                        let (mut all, mut bin) = (0, 0);
                        while bin < bins {
                            all += of(bin);
                            bin += 1;
                        }
                        wanted.set(t, share(all, (top_p.max(0.0) * 4_294_967_296.0) as u32));
                    }
                    let (mut before, mut bin) = (0, 0);
                    while bin < bins - 1 && before + of(bin) < wanted.get(t) {
                        before += of(bin);
                        bin += 1;
                    }
                    wanted.set(t, wanted.get(t) - before.min(wanted.get(t)));
                    bin
                });
                (low, high) = b.sync((lows.renew(), highs.renew()));
                let bin = b.publish(low, &bin);
                let bin = b.sync(bin.read());
                b.each((&last, &bin), move |t, (last, bin)| {
                    let mut mine = last.get(t);
                    mine[level] = bin.get(t, 0);
                    last.set(t, mine);
                });
                low = b.sync(bin.renew());
                level += 1;
            }
            let kept = move |last: [u32; 2], step: u32| top_p >= 1.0 || step <= last[0] << 8 | last[1];
            let mine = b.each((&most, &last), move |t, (most, last)| {
                let (most, last, mut sum) = (most.get(t), last.get(t), 0u64);
                each_logit(t, logits, text, ids, |_, logit| {
                    let (step, units) = weight(**t, (most - logit) * factor);
                    sum += if kept(last, step) { u64::from(units) } else { 0 };
                });
                sum
            });
            let filled = b.publish(sums, &mine);
            let sums = b.sync(filled.read());
            // The thread that has the id, and the units of its ids before: the ids are in the order
            // of the threads.
            let seed = [0, 1].map(|field| u64::from(rules.get(&b, [text, field]) as u32));
            let drawn = b.fill(drawn, &sums, move |t, sums, _| {
                let place = progress.column(t).map_or(0, |state| state.cell::<1>(PLACE).get() as u32);
                let (mut all, mut thread) = (0, 0);
                while thread < bins {
                    all += sums.get(t, thread);
                    thread += 1;
                }
                let mut rest = share(all, (bits_of(seed[1] << 32 | seed[0], place) >> 32) as u32);
                thread = 0;
                while thread < bins - 1 && rest >= sums.get(t, thread) {
                    rest -= sums.get(t, thread);
                    thread += 1;
                }
                u64::from(thread) << 48 | rest
            });
            let drawn = b.sync(drawn.read());
            let id = b.each((&most, &last, &best, &drawn), move |t, (most, last, best, drawn)| {
                let (most, last, drawn) = (most.get(t), last.get(t), drawn.get(t, 0));
                let (mut rest, mut id) = (drawn & 0xffff_ffff_ffff, best.get(t));
                let mut more = drawn >> 48 == u64::from(t.rank());
                if more {
                    each_logit(t, logits, text, ids, |c, logit| {
                        let (step, units) = weight(**t, (most - logit) * factor);
                        let units = if kept(last, step) { u64::from(units) } else { 0 };
                        if more && rest < units {
                            (id, more) = (c, false);
                        }
                        rest -= units.min(rest);
                    });
                }
                id
            });
            let filled = b.publish(low, &id);
            let id = b.sync(filled.read());
            b.each((&best, &id, &drawn), |t, (best, id, drawn)| best.set(t, id.get(t, (drawn.get(t, 0) >> 48) as u32)));
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
