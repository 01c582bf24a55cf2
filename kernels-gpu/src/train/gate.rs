//! The gate by which a query head and a balancer learn, forward and backward.
//!
//! ```text
//! p    = (1 + cos(z, q)) / 2       the participatory score of a patch, of which the head made z
//! x    = mean, maximum, standard deviation (n - 1) of entropy, salience and p of an image, then q
//! mix  = softmax(v), or by tensions: see `mix`          the balancer makes v of x
//! gate = mix . (entropy, salience, p);   y of a token = gate of its patch * token
//! ```
//!
//! Launch: a block of one warp for each patch, of three for each image, and a thread for each
//! element. `patch_ends` and `patch` may hold anything: what is outside the buffers is left out.
//!
//! - **A patch finds its tokens** by bisection of `patch`, which does not fall, so each gradient
//!   has one owner, and the order of its sum is that of the tokens.

use thalweg_simt::kernel;

use super::loss::largest;
use super::sequences::sequence_of;
use crate::parts::mix::{mix, tension};

/// The least length of a vector that cosines divide by.
const SHORT: f32 = 1e-12;

kernel! {
    /// Replaces each negative element by 0.
    pub fn relu(t: impl Simt, n: u32, x: InOut<f32>[n] by [x])
    grid(n.div_ceil(128)) block(128)
    {
        if let Some(x) = x.cell(t) {
            x.set(x.get().max(0.0));
        }
    }
}

kernel! {
    /// Replaces the gradient of each result `y` of [`relu`] by that of what it was computed from.
    pub fn relu_backward(t: impl Simt, n: u32, y: In<f32>[n], d: InOut<f32>[n] by [x])
    grid(n.div_ceil(128)) block(128)
    {
        if let Some(d) = d.cell(t) {
            d.set(if y.get(t, d.at()) > 0.0 { d.get() } else { 0.0 });
        }
    }
}

/// Computes, in all threads of a warp, the products of a row of `z` with one of `q`, and of each
/// with itself.
macro_rules! products {
    ($b:ident, $columns:ident, $z:ident[$row:ident], $q:ident[$image:ident]) => {{
        let parts = $b.each((), move |t, ()| {
            let (mut sums, mut c) = ([0.0; 3], t.rank());
            while c < $columns {
                let (z, q) = ($z.get(t, [$row, c]), $q.get(t, [$image, c]));
                sums = [t.fma(z, q, sums[0]), t.fma(z, z, sums[1]), t.fma(q, q, sums[2])];
                c += 32;
            }
            sums
        });
        let [zq, zz, qq] = [0, 1, 2].map(|k| $b.each(&parts, move |t, parts| parts.get(t)[k]));
        [$b.warp_sum(&zq), $b.warp_sum(&zz), $b.warp_sum(&qq)]
    }};
}

kernel! {
    /// Computes the participatory score of each patch: `(1 + cos(z, q)) / 2`, with the query of its
    /// image.
    pub fn coupling(
        b: impl Cooperative, patches: u32, columns: u32, images: u32, patch_ends: In<i32>[ends = images + 1],
        z: In<f32>[patches, columns], query: In<f32>[images, columns], score: Out<f32>[patches] by [block],
    )
    require { images >= 1 }
    grid(patches) block(32)
    {
        let patch = b.idx().x;
        let image = sequence_of(patch, images, |i| patch_ends.get(&b, [i]) as u32);
        let [zq, zz, qq] = products!(b, columns, z[patch], query[image]);
        b.each((&zq, &zz, &qq), move |t, (zq, zz, qq)| {
            if let Some(score) = score.cell(t) {
                let lengths = t.sqrt(zz.get(t)).max(SHORT) * t.sqrt(qq.get(t)).max(SHORT);
                score.set(0.5 + 0.5 * (zq.get(t) / lengths));
            }
        });
    }
}

kernel! {
    /// Computes the gradient of `z` from that of [`coupling`]'s scores.
    pub fn coupling_backward(
        b: impl Cooperative, patches: u32, columns: u32, images: u32, patch_ends: In<i32>[ends = images + 1],
        z: In<f32>[patches, columns], query: In<f32>[images, columns], dscore: In<f32>[patches],
        dz: Out<f32>[patches, columns] by [block, rank],
    )
    require { images >= 1 }
    grid(patches) block(32)
    {
        let patch = b.idx().x;
        let image = sequence_of(patch, images, |i| patch_ends.get(&b, [i]) as u32);
        let half = 0.5 * dscore.get(&b, [patch]);
        let [zq, zz, qq] = products!(b, columns, z[patch], query[image]);
        b.each((&zq, &zz, &qq), move |t, (zq, zz, qq)| {
            let (length, of_query) = (t.sqrt(zz.get(t)), t.sqrt(qq.get(t)).max(SHORT));
            let share = half / (length.max(SHORT) * of_query);
            // The derivative of the length is along z. A length that is bounded has none.
            let along = if length > SHORT { share * (zq.get(t) / zz.get(t)) } else { 0.0 };
            for dz in dz.mine(t) {
                let [_, c] = dz.at();
                dz.set(share * query.get(t, [image, c]) - along * z.get(t, [patch, c]));
            }
        });
    }
}

kernel! {
    /// Computes what a balancer sees of each image: mean, maximum and standard deviation of each
    /// score of its patches, then the query. `peak` is the first patch with the largest
    /// participatory score.
    pub fn score_statistics(
        b: impl Cooperative, patches: u32, columns: u32, images: u32, patch_ends: In<i32>[ends = images + 1],
        entropy: In<f32>[patches], salience: In<f32>[patches], score: In<f32>[patches], query: In<f32>[images, columns],
        x: Out<f32>[images, all = columns + 9] by [block, rank], peak: Out<i32>[images] by [block],
    )
    grid(images) block(96) shared(4 * 3 * 4)
    {
        let image = b.idx().x;
        let start = patch_ends.get(&b, [image]) as u32;
        let end = (patch_ends.get(&b, [image + 1]) as u32).min(patches);
        let n = end.saturating_sub(start) as f32;
        // A warp has a score.
        macro_rules! of {
            ($t:ident, $i:ident) => {
                match $t.rank() / 32 {
                    0 => entropy.get($t, [$i]),
                    1 => salience.get($t, [$i]),
                    _ => score.get($t, [$i]),
                }
            };
        }
        let parts = b.each((), move |t, ()| {
            let mut i = start.saturating_add(t.rank() % 32);
            let (mut sum, mut most, mut at) = (0.0, f32::NEG_INFINITY, u32::MAX);
            while i < end {
                let v = of!(t, i);
                sum += v;
                if v > most {
                    (most, at) = (v, i);
                }
                i += 32;
            }
            (sum, most, at)
        });
        let sum = b.each(&parts, |t, parts| parts.get(t).0);
        let most = b.each(&parts, |t, parts| parts.get(t).1);
        let at = b.each(&parts, |t, parts| parts.get(t).2);
        largest(&mut b, &most, &at);
        let sum = b.warp_sum(&sum);
        let mean = b.each(&sum, move |t, sum| sum.get(t) / n);
        let squares = b.each(&mean, move |t, mean| {
            let (mean, mut sum, mut i) = (mean.get(t), 0.0, start.saturating_add(t.rank() % 32));
            while i < end {
                let off = of!(t, i) - mean;
                sum = t.fma(off, off, sum);
                i += 32;
            }
            sum
        });
        let squares = b.warp_sum(&squares);
        let deviation = b.each(&squares, move |t, squares| if n > 1.0 { t.sqrt(squares.get(t) / (n - 1.0)) } else { 0.0 });
        let [means, mosts, deviations] = [(); 3].map(|()| b.shared::<f32>(3));
        let places = b.shared::<u32>(3);
        let (means, mosts) = (b.publish_warps(means, &mean), b.publish_warps(mosts, &most));
        let (deviations, places) = (b.publish_warps(deviations, &deviation), b.publish_warps(places, &at));
        let (means, mosts, deviations, places) = b.sync((means.read(), mosts.read(), deviations.read(), places.read()));
        b.each((&means, &mosts, &deviations, &places), move |t, (means, mosts, deviations, places)| {
            for x in x.mine(t) {
                let [_, k] = x.at();
                x.set(match k % 3 {
                    _ if k >= 9 => query.get(t, [image, k - 9]),
                    0 => means.get(t, k / 3),
                    1 => mosts.get(t, k / 3),
                    _ => deviations.get(t, k / 3),
                });
            }
            if let Some(peak) = peak.cell(t) {
                peak.set(places.get(t, 2) as i32);
            }
        });
    }
}

kernel! {
    /// Computes the gate of each patch, the weighted sum of its scores, and the weights of each
    /// image from what its balancer says.
    pub fn gates(
        t: impl Simt, patches: u32, images: u32, tensions: bool, patch_ends: In<i32>[ends = images + 1],
        entropy: In<f32>[patches], salience: In<f32>[patches], score: In<f32>[patches], v: In<[f32; 3]>[images],
        gate: Out<f32>[patches] by [x],
    )
    require { images >= 1 }
    grid(patches.div_ceil(128)) block(128)
    {
        if let Some(gate) = gate.cell(t) {
            let [patch] = gate.at();
            let image = sequence_of(patch, images, |i| patch_ends.get(t, [i]) as u32);
            let [a, b, c] = mix(**t, tensions, v.get(t, [image]));
            let (entropy, salience) = (entropy.get(t, [patch]), salience.get(t, [patch]));
            gate.set(t.fma(a, entropy, t.fma(b, salience, c * score.get(t, [patch]))));
        }
    }
}

kernel! {
    /// Computes the gradient of what each balancer says from that of [`gates`].
    pub fn balance_backward(
        b: impl Cooperative, patches: u32, images: u32, tensions: bool, patch_ends: In<i32>[ends = images + 1],
        entropy: In<f32>[patches], salience: In<f32>[patches], score: In<f32>[patches], dgate: In<f32>[patches],
        v: In<[f32; 3]>[images], dv: Out<[f32; 3]>[images] by [block],
    )
    grid(images) block(32)
    {
        let image = b.idx().x;
        let start = patch_ends.get(&b, [image]) as u32;
        let end = (patch_ends.get(&b, [image + 1]) as u32).min(patches);
        let parts = b.each((), move |t, ()| {
            let (mut sums, mut i) = ([0.0; 3], start.saturating_add(t.rank()));
            while i < end {
                let d = dgate.get(t, [i]);
                let scores = [entropy.get(t, [i]), salience.get(t, [i]), score.get(t, [i])];
                sums = [t.fma(d, scores[0], sums[0]), t.fma(d, scores[1], sums[1]), t.fma(d, scores[2], sums[2])];
                i += 32;
            }
            sums
        });
        let [x, y, z] = [0, 1, 2].map(|k| b.each(&parts, move |t, parts| parts.get(t)[k]));
        let (x, y, z) = (b.warp_sum(&x), b.warp_sum(&y), b.warp_sum(&z));
        b.each((&x, &y, &z), move |t, (x, y, z)| {
            let Some(dv) = dv.cell(t) else { return };
            let (d, v) = ([x.get(t), y.get(t), z.get(t)], v.get(t, [image]));
            dv.set(if tensions {
                let places = tension(**t, v);
                let along = [d[0] - d[1], d[2] - d[0], d[1] - d[2]];
                [0, 1, 2].map(|k| along[k] * (places[k] * (1.0 - places[k])) * (1.0 / 3.0))
            } else {
                let mix = mix(**t, false, v);
                let mean = mix[0] * d[0] + mix[1] * d[1] + mix[2] * d[2];
                [0, 1, 2].map(|k| mix[k] * (d[k] - mean))
            });
        });
    }
}

kernel! {
    /// Computes the gradients of the participatory scores: through their part of [`gates`], and
    /// through what the balancer sees, `dx`. The gradient of a maximum is that of its `peak`.
    pub fn score_gradients(
        t: impl Simt, patches: u32, columns: u32, images: u32, tensions: bool, patch_ends: In<i32>[ends = images + 1],
        score: In<f32>[patches], v: In<[f32; 3]>[images], dgate: In<f32>[patches],
        x: In<f32>[images, all = columns + 9], dx: In<f32>[images, all], peak: In<i32>[images],
        dscore: Out<f32>[patches] by [x],
    )
    require { images >= 1 }
    grid(patches.div_ceil(128)) block(128)
    {
        if let Some(d) = dscore.cell(t) {
            let [patch] = d.at();
            let begins = |i| patch_ends.get(t, [i]) as u32;
            let image = sequence_of(patch, images, begins);
            let n = begins(image + 1).min(patches).saturating_sub(begins(image)) as f32;
            let of = |k| dx.get(t, [image, k]);
            let mut sum = t.fma(mix(**t, tensions, v.get(t, [image]))[2], dgate.get(t, [patch]), of(6) / n);
            if patch == peak.get(t, [image]) as u32 {
                sum += of(7);
            }
            let deviation = x.get(t, [image, 8]);
            if deviation > 0.0 {
                sum += of(8) * ((score.get(t, [patch]) - x.get(t, [image, 6])) / ((n - 1.0) * deviation));
            }
            d.set(sum);
        }
    }
}

kernel! {
    /// Multiplies each token by the gate of its patch. A token of no patch stays as it is.
    pub fn gated(
        t: impl Simt, rows: u32, columns: u32, patches: u32, patch: In<i32>[rows], gate: In<f32>[patches],
        x: In<f32>[n = rows * columns], y: Out<f32>[n] by [x],
    )
    grid(n.div_ceil(128)) block(128)
    {
        if let Some(y) = y.cell(t) {
            let [i] = y.at();
            let patch = patch.get(t, [i / columns]) as u32;
            y.set(x.get(t, [i]) * gate.try_get(t, [patch]).unwrap_or(1.0));
        }
    }
}

kernel! {
    /// Computes the gradients of the gates from those of [`gated`] tokens, `dy`. `patch` does not
    /// fall.
    pub fn gated_backward(
        b: impl Cooperative, rows: u32, columns: u32, patches: u32, patch: In<i32>[rows], x: In<f32>[n = rows * columns],
        dy: In<f32>[n], dgate: Out<f32>[patches] by [block],
    )
    grid(patches) block(32)
    {
        let wanted = b.idx().x;
        // The first token of a patch from this one on.
        let first = |wanted: u32| {
            let (mut low, mut high) = (0, rows);
            while low < high {
                let middle = low + (high - low) / 2;
                if (patch.get(&b, [middle]) as u32) < wanted {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            low
        };
        let (start, end) = (first(wanted) * columns, first(wanted + 1) * columns);
        let part = b.each((), move |t, ()| {
            let (mut sum, mut i) = (0.0, start + t.rank());
            while i < end {
                sum = t.fma(x.get(t, [i]), dy.get(t, [i]), sum);
                i += 32;
            }
            sum
        });
        let sum = b.warp_sum(&part);
        b.each(&sum, move |t, sum| {
            if let Some(dgate) = dgate.cell(t) {
                dgate.set(sum.get(t));
            }
        });
    }
}

kernel! {
    /// Finds the patch of each token from the selected patches, `patch_id`, and where their tokens
    /// begin. Rows behind the last token have -1.
    pub fn token_patches(
        t: impl Simt, rows: u32, selected: u32, cu_seqlens: In<i32>[ends = selected + 1], patch_id: In<i32>[selected],
        patch: Out<i32>[rows] by [x],
    )
    require { selected >= 1 }
    grid(rows.div_ceil(128)) block(128)
    {
        if let Some(patch) = patch.cell(t) {
            let [row] = patch.at();
            let k = sequence_of(row, selected, |k| cu_seqlens.get(t, [k]) as u32);
            let inside = row < cu_seqlens.get(t, [k + 1]) as u32;
            patch.set(if inside { patch_id.get(t, [k]) } else { -1 });
        }
    }
}
