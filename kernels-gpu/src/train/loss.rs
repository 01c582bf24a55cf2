//! The cross-entropy of logits, with its gradient, and the largest logit.
//!
//! ```text
//! loss = ln(sum of exp z) - z[label];   dz = (exp z / sum of exp z - [label]) scale
//! ```
//!
//! Launch: a block of one warp for each row, or of 1024 threads if there are many classes. The
//! largest logit always has 1024 threads, because the text of a vision-language model waits for a
//! single row of it. Memory: the gradient is written. One warp reads its row twice, the second time
//! from a cache. Of a row with many classes, 1024 threads keep the first 32768 logits in registers
//! and read the others three times: the rows that are under way on all of the device are too large
//! for its caches.

use thalweg_simt::kernel;
use thalweg_simt::safe::{Block, Local, Team};

/// log2 of e.
const LOG2_E: f32 = core::f32::consts::LOG2_E;

kernel! {
    /// Computes, for each row of logits, its share of the loss and the gradient of the logits, both
    /// multiplied by `scale`. The loss of a row whose label is no class is NaN.
    pub(super) fn cross_entropy_narrow(
        b: impl Cooperative, rows: u32, classes: u32, scale: f32, logits: In<f32>[rows, classes], labels: In<i32>[rows],
        losses: Out<f32>[rows] by [block], gradient: Out<f32>[rows, classes] by [block, rank],
    )
    require { classes >= 1 }
    grid(rows) block(32)
    {
        let row = b.idx().x;
        let label = labels.get(&b, [row]) as u32;
        // The largest logit so far, and the sum of the powers with it as the origin.
        let parts = b.each((), move |t, ()| {
            let (mut most, mut sum, mut c) = (f32::NEG_INFINITY, 0.0, t.rank());
            while c < classes {
                let z = logits.get(t, [row, c]);
                if z > most {
                    sum = t.fma(sum, t.exp2_approx((most - z) * LOG2_E), 1.0);
                    most = z;
                } else {
                    sum += t.exp2_approx((z - most) * LOG2_E);
                }
                c += 32;
            }
            [most, sum]
        });
        let most = b.each(&parts, |t, parts| parts.get(t)[0]);
        let most = b.warp_max(&most);
        let sum = b.each((&parts, &most), |t, (parts, most)| {
            let [mine, sum] = parts.get(t);
            // A thread without a logit has no sum, and its largest one is no number to subtract.
            if mine == f32::NEG_INFINITY { sum } else { sum * t.exp2_approx((mine - most.get(t)) * LOG2_E) }
        });
        let sum = b.warp_sum(&sum);
        b.each((&most, &sum), move |t, (most, sum)| {
            let (most, sum) = (most.get(t), sum.get(t));
            if let Some(loss) = losses.cell(t) {
                let of_label = logits.try_get(t, [row, label]).unwrap_or(f32::NAN);
                loss.set((t.ln(sum) + (most - of_label)) * scale);
            }
            for d in gradient.mine(t) {
                let [_, c] = d.at();
                let p = t.exp2_approx((logits.get(t, [row, c]) - most) * LOG2_E) / sum;
                d.set((p - if c == label { 1.0 } else { 0.0 }) * scale);
            }
        });
    }
}

/// The threads of a block that has a row with many classes, and the logits that each keeps in
/// registers.
const THREADS: u32 = 1024;
const SLOTS: usize = 32;

kernel! {
    /// Does the same as [`cross_entropy_narrow`] with a block for each row.
    pub(super) fn cross_entropy_wide(
        b: impl Cooperative, rows: u32, classes: u32, scale: f32, logits: In<f32>[rows, classes], labels: In<i32>[rows],
        losses: Out<f32>[rows] by [block], gradient: Out<f32>[rows, classes] by [block, rank],
    )
    require { classes >= 1 }
    grid(rows) block(1024) bounds(THREADS, 1) shared(2 * 32 * 4)
    {
        let row = b.idx().x;
        let label = labels.get(&b, [row]) as u32;
        let first = b.each((), move |t, ()| -> [f32; SLOTS] {
            let at = |i: usize| [row, t.rank() + THREADS * i as u32];
            core::array::from_fn(|i| logits.try_get(t, at(i)).unwrap_or(f32::NEG_INFINITY))
        });
        let most = b.each(&first, move |t, first| {
            let (first, mut most, mut i) = (first.get(t), f32::NEG_INFINITY, 0);
            while i < SLOTS {
                most = most.max(first[i]);
                i += 1;
            }
            let mut c = t.rank() + THREADS * SLOTS as u32;
            while c < classes {
                most = most.max(logits.get(t, [row, c]));
                c += THREADS;
            }
            most
        });
        let most = b.warp_max(&most);
        let (window, sums) = (b.shared::<f32>(32), b.shared::<f32>(32));
        let filled = b.publish_warps(window, &most);
        let warps = b.sync(filled.read());
        let most = b.each(&warps, |t, warps| warps.get(t, t.rank() % 32));
        let most = b.warp_max(&most);
        let powers = b.each((&first, &most), move |t, (first, most)| -> [f32; SLOTS] {
            let (first, most) = (first.get(t), most.get(t));
            core::array::from_fn(|i| t.exp2_approx((first[i] - most) * LOG2_E))
        });
        let sum = b.each((&powers, &most), move |t, (powers, most)| {
            let (powers, mut sum, mut i) = (powers.get(t), 0.0, 0);
            while i < SLOTS {
                sum += powers[i];
                i += 1;
            }
            let mut c = t.rank() + THREADS * SLOTS as u32;
            while c < classes {
                sum += t.exp2_approx((logits.get(t, [row, c]) - most.get(t)) * LOG2_E);
                c += THREADS;
            }
            sum
        });
        let sum = b.warp_sum(&sum);
        let filled = b.publish_warps(sums, &sum);
        let warps = b.sync(filled.read());
        let sum = b.each(&warps, |t, warps| warps.get(t, t.rank() % 32));
        let sum = b.warp_sum(&sum);
        b.each((&powers, &most, &sum), move |t, (powers, most, sum)| {
            let (powers, most, sum) = (powers.get(t), most.get(t), sum.get(t));
            if let Some(loss) = losses.cell(t) {
                let of_label = logits.try_get(t, [row, label]).unwrap_or(f32::NAN);
                loss.set((t.ln(sum) + (most - of_label)) * scale);
            }
            let share = 1.0 / sum;
            let of = |c, power: f32| (power * share - if c == label { 1.0 } else { 0.0 }) * scale;
            let (mut mine, mut i) = (gradient.mine(t), 0);
            while i < SLOTS {
                let Some(d) = mine.next() else { return };
                let [_, c] = d.at();
                d.set(of(c, powers[i]));
                i += 1;
            }
            for d in mine {
                let [_, c] = d.at();
                d.set(of(c, t.exp2_approx((logits.get(t, [row, c]) - most) * LOG2_E)));
            }
        });
    }
}

/// Gives each thread the largest value of its warp and its place: the first one if several are
/// equal.
#[inline(always)]
pub(super) fn largest<'k, M: Team>(b: &mut Block<'k, M>, most: &Local<'k, M, f32>, at: &Local<'k, M, u32>) {
    let mut mask = 16;
    while mask > 0 {
        let (other, there) = (b.shuffle_xor(most, mask), b.shuffle_xor(at, mask));
        b.each((most, at, &other, &there), |t, (most, at, other, there)| {
            let (v, i) = (other.get(t), there.get(t));
            if v > most.get(t) || v == most.get(t) && i < at.get(t) {
                most.set(t, v);
                at.set(t, i);
            }
        });
        mask /= 2;
    }
}

kernel! {
    /// Finds the largest element of each row: the first one if several are equal.
    pub fn argmax(b: impl Cooperative, rows: u32, columns: u32, x: In<f32>[rows, columns], best: Out<i32>[rows] by [block])
    require { columns >= 1 }
    grid(rows) block(1024) bounds(THREADS, 1) shared(2 * 32 * 4)
    {
        let row = b.idx().x;
        let found = b.each((), move |t, ()| {
            let (mut most, mut at, mut first) = (f32::NEG_INFINITY, u32::MAX, t.rank());
            while first < columns {
                let some: [f32; SLOTS] = core::array::from_fn(|i| {
                    x.try_get(t, [row, first + THREADS * i as u32]).unwrap_or(f32::NEG_INFINITY)
                });
                let mut i = 0;
                while i < SLOTS {
                    let c = first + THREADS * i as u32;
                    if c < columns && (some[i] > most || at == u32::MAX) {
                        (most, at) = (some[i], c);
                    }
                    i += 1;
                }
                first += THREADS * SLOTS as u32;
            }
            (most, at)
        });
        let most = b.each(&found, |t, found| found.get(t).0);
        let at = b.each(&found, |t, found| found.get(t).1);
        largest(&mut b, &most, &at);
        let (mosts, places) = (b.shared::<f32>(32), b.shared::<u32>(32));
        let (mosts, places) = (b.publish_warps(mosts, &most), b.publish_warps(places, &at));
        let (mosts, places) = b.sync((mosts.read(), places.read()));
        let most = b.each(&mosts, |t, mosts| mosts.get(t, t.rank() % 32));
        let at = b.each(&places, |t, places| places.get(t, t.rank() % 32));
        largest(&mut b, &most, &at);
        b.each(&at, move |t, at| {
            if let Some(best) = best.cell(t) {
                best.set(at.get(t) as i32);
            }
        });
    }
}
