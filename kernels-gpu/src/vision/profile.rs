//! The reference profile `arr-coc-0-1`: 13 planes of 32 x 32, whatever the size of the image, and
//! the patches in order of relevance.
//!
//! ```text
//! profile_sample   resized = bilinear 512 x 512 of the image;
//!                  R, G, B, L, a, Gx, Gy and edge magnitude of it, each at 32 x 32: the mean of the four center pixels of a 16 x 16 block
//! profile_scale    Gx, Gy, edge = (v - min) / (max - min + 1e-8);
//!                  planes 8 to 12 = y, x, eccentricity, edge, L;
//!                  information = entropy of the softmax of a patch's planes, in nats, scaled likewise
//! top              the k largest of n numbers, in order
//! ```
//!
//! Launch: 64 blocks of 256 threads for each image; one block of 512 for each image; 8 threads for
//! each of the n numbers.
//! Memory: at most 192 bytes of the image read and 32 written for each patch; 48 read and 92
//! written; n squared times 4 from L1.
//!
//! - **Only what is needed is resized**: a patch's four center pixels and their neighbors are
//!   4 x 4 of its 16 x 16 resized pixels. A thread makes one of them.
//! - **The resize is exact**: positions are fractions of 1024, and the four products of a byte and
//!   two weights sum to less than 2^28, so a channel is an integer, which is rounded once.
//! - **Entropy is computed relative to that of equal shares**: ln S - sum(p x), where S is the sum
//!   of the exponentials, is near ln 13, and patches often differ by some hundredths only.
//!   ln(S / 13) from its series and sum(p x) are small and cancel less.
//! - **A rank is a count** of the numbers that are larger, or equal and before. They are compared
//!   as integers that order as the floats do, so the ranks are a permutation whatever the floats
//!   are, and no two threads write one element.

use thalweg_simt::{In, Simt, kernel};

#[cfg(not(target_arch = "nvptx64"))]
use crate::parts::block::WINDOW;
use crate::parts::block::maxima;
use crate::vision::PLANES;
use crate::vision::layout::fits;
use crate::vision::patch::pixel;
use crate::vision::texel::linear_lab;

/// Patches of an image, 32 x 32.
const PATCHES: u32 = 1024;
/// Planes that are sampled from the image.
const SAMPLED: u32 = 8;
/// Threads of a block of `profile_sample`: one for each resized pixel of 16 patches.
const PIXELS: u32 = 16 * 16;
/// Center pixels of these patches.
const CENTERS: u32 = 4 * 16;
/// Threads of a block of `profile_scale`.
const THREADS: u32 = 512;
/// Warps of a block of `top`.
const WARPS: u32 = 8;

kernel! {
    /// Computes the first eight planes of `textures` [images, 13, 32, 32]: R, G, B, L, a, Gx, Gy,
    /// edge magnitude. The last three are not scaled yet.
    ///
    /// `table` [images, 3] holds for each image where it starts in `rgb`, its height and its width.
    /// An image that is not inside `rgb`, or has an extent that is not within 1 to 16384, counts as
    /// black.
    pub unsafe fn profile_sample(
        cx: impl Cooperative, images: u32, bytes: u32, table: In<u32>, rgb: In<u8>, textures: Out<f32>,
    )
    require {
        images <= 65535,
        table.len() == 3 * images,
        rgb.len() == bytes,
        textures.len() == 13 * 1024 * images,
    }
    grid(PATCHES / 16, images)
    block(PIXELS)
    shared((4 * PIXELS + SAMPLED * CENTERS) * 4)
    {
        let (image, rank) = (cx.block_idx().y, cx.thread_idx().x);
        let [start, height, width] = [0, 1, 2].map(|k| table.get(cx, image as usize * 3 + k));
        let channels = cx.shared::<f32>(0);
        let centers = cx.shared::<f32>(4 * PIXELS * 4);
        // The block has 16 patches of a row. 4 x 4 resized pixels of each are needed, from row and
        // column 6 on.
        let first = cx.block_idx().x * 16;
        let (patch, sample) = (first + rank / 16, rank % 16);
        let (i, j) = (patch / 32 * 16 + 6 + sample / 4, patch % 32 * 16 + 6 + sample % 4);
        let rgb = if fits(start, height, width, bytes) {
            resized(cx, rgb, start, height, width, i, j)
        } else {
            [0.0; 3]
        };
        let luma = cx.fma(0.299, rgb[0], cx.fma(0.587, rgb[1], 0.114 * rgb[2]));
        let [r, g, b] = rgb;
        for (k, v) in [r, g, b, luma].into_iter().enumerate() {
            cx.shared_set(channels, k as u32 * PIXELS + rank, v);
        }
        cx.barrier();

        // A thread for each center pixel: the four of a patch are neighbors.
        if rank < CENTERS {
            let (row, column) = (1 + rank % 4 / 2, 1 + rank % 2);
            let at = |channel: u32, y: u32, x: u32| cx.shared_get(channels, channel * PIXELS + rank / 4 * 16 + y * 4 + x);
            let [r, g, b] = [0, 1, 2].map(|channel| at(channel, row, column));
            let (l, a, _) = linear_lab(cx, [r, g, b].map(|v| linear(cx, v)));
            let luma = |y: u32, x: u32| at(3, row + y - 1, column + x - 1);
            let across = |x: u32| luma(0, x) + 2.0 * luma(1, x) + luma(2, x);
            let down = |y: u32| luma(y, 0) + 2.0 * luma(y, 1) + luma(y, 2);
            let (gx, gy) = ((across(2) - across(0)) * 0.125, (down(2) - down(0)) * 0.125);
            let edge = cx.sqrt_approx(cx.fma(gx, gx, cx.fma(gy, gy, 1e-8)));
            for (k, v) in [r, g, b, l, a, gx, gy, edge].into_iter().enumerate() {
                cx.shared_set(centers, k as u32 * CENTERS + rank, v);
            }
        }
        cx.barrier();

        if rank < 16 * SAMPLED {
            let (plane, patch) = (rank / 16, rank % 16);
            let v = |k: u32| cx.shared_get(centers, plane * CENTERS + patch * 4 + k);
            let mean = ((v(0) + v(1)) + (v(2) + v(3))) * 0.25;
            textures.set(cx, ((image * PLANES + plane) * PATCHES + first + patch) as usize, mean);
        }
    }
}

/// Computes pixel (i, j) of the image resized to 512 x 512, in [0, 1]: bilinear, with half-pixel
/// centers and replicated borders.
///
/// # Safety
/// `rgb` holds the image from byte `start` on. `i` and `j` are below 512, and both extents are
/// within 1 to 16384.
#[inline(always)]
unsafe fn resized(cx: impl Simt, rgb: In<u8>, start: u32, height: u32, width: u32, i: u32, j: u32) -> [f32; 3] {
    // The position is ((i + 1/2) extent / 512 - 1/2), in units of 1/1024.
    let taps = |i: u32, extent: u32| {
        let at = ((2 * i + 1) * extent).max(512) - 512;
        (at / 1024, (at / 1024 + 1).min(extent - 1), at % 1024)
    };
    let ((y0, y1, fy), (x0, x1, fx)) = (taps(i, height), taps(j, width));
    // SAFETY: For `i` below 512, 2 i + 1 is below 1024, so the first tap is below `extent`; the
    // second is clamped. The caller promises that `rgb` holds the image.
    let [a, b, c, d] = unsafe {
        let rgb = rgb.tail(start);
        [(y0, x0), (y0, x1), (y1, x0), (y1, x1)].map(|(y, x)| pixel(cx, rgb, y * width + x))
    };
    [0, 1, 2].map(|k| {
        let above = a[k] * (1024 - fx) + b[k] * fx;
        let below = c[k] * (1024 - fx) + d[k] * fx;
        let sum = above * (1024 - fy) + below * fy;
        sum as f32 * (1.0 / (255.0 * 1_048_576.0))
    })
}

/// Computes linear light from gamma-encoded sRGB in [0, 1] (IEC 61966-2-1).
#[inline(always)]
fn linear(cx: impl Simt, c: f32) -> f32 {
    // Both branches are computed, because the pixels of a warp differ.
    let base = (c + 0.055) * (1.0 / 1.055);
    let (line, power) = (c * (1.0 / 12.92), cx.exp2_approx(2.4 * cx.log2_approx(base)));
    if c <= 0.04045 { line } else { power }
}

kernel! {
    /// Computes all planes of `textures` [images, 13, 32, 32] from the first eight, as
    /// [`profile_sample`](crate::vision::profile_sample) leaves them. Also writes the planes as
    /// `features` [images, 1024, 13], and the scaled `information` [images, 1024].
    pub unsafe fn profile_scale(
        cx: impl Cooperative, images: u32, textures: InOut<f32>, features: Out<f32>, information: InOut<f32>,
    )
    require {
        images <= 65535,
        textures.len() == 13 * 1024 * images,
        features.len() == 13 * 1024 * images,
        information.len() == 1024 * images,
    }
    grid(images) block(THREADS) shared(6 * WINDOW * 4)
    {
        let (image, rank) = (cx.block_idx().x, cx.thread_idx().x);
        let at = |plane: u32, patch: u32| ((image * PLANES + plane) * PATCHES + patch) as usize;
        let window = cx.shared::<f32>(0);
        let scaled = |v: f32, below: f32, most: f32| (v + below) / ((most + below) + 1e-8);

        let mut most = [f32::NEG_INFINITY; 6];
        let mut patch = rank;
        while patch < PATCHES {
            let [gx, gy, edge] = [5, 6, 7].map(|plane| textures.get(cx, at(plane, patch)));
            let v = [-gx, gx, -gy, gy, -edge, edge];
            most = core::array::from_fn(|k| most[k].max(v[k]));
            patch += THREADS;
        }
        let ends = maxima(cx, window, most);

        let mut most = [f32::NEG_INFINITY; 2];
        let mut patch = rank;
        while patch < PATCHES {
            let v: [f32; 8] = core::array::from_fn(|plane| textures.get(cx, at(plane as u32, patch)));
            let [r, g, b, l, a, gx, gy, edge] = v;
            let (gx, gy) = (scaled(gx, ends[0], ends[1]), scaled(gy, ends[2], ends[3]));
            let edge = scaled(edge, ends[4], ends[5]);
            let (y, x) = ((patch / 32) as f32 * (1.0 / 31.0), (patch % 32) as f32 * (1.0 / 31.0));
            let (dy, dx) = (y - 0.5, x - 0.5);
            let eccentricity = cx.sqrt_approx(cx.fma(dy, dy, dx * dx)) * core::f32::consts::SQRT_2;
            let planes = [r, g, b, l, a, gx, gy, edge, y, x, eccentricity, edge, l];
            for (plane, v) in planes.into_iter().enumerate() {
                if plane >= 5 {
                    textures.set(cx, at(plane as u32, patch), v);
                }
                features.set(cx, ((image * PATCHES + patch) * PLANES) as usize + plane, v);
            }
            let nats = spread(cx, planes);
            information.set(cx, (image * PATCHES + patch) as usize, nats);
            most = [most[0].max(-nats), most[1].max(nats)];
            patch += THREADS;
        }
        let [below, most] = maxima(cx, window, most);
        let mut patch = rank;
        while patch < PATCHES {
            let at = (image * PATCHES + patch) as usize;
            information.set(cx, at, scaled(information.get(cx, at), below, most));
            patch += THREADS;
        }
    }
}

/// Computes the entropy in nats of the softmax of 13 numbers near [0, 1], less ln 13.
///
/// The definition adds 1e-10 to a share before its logarithm. That lowers the entropy of every
/// patch by 13e-10, which the scaling removes.
#[inline(always)]
fn spread(cx: impl Simt, v: [f32; 13]) -> f32 {
    let (mut sum, mut moment) = (0.0, 0.0);
    for v in v {
        // The numbers are taken relative to 1/2, so that exponentials are near 1 and the moment is
        // small.
        let x = v - 0.5;
        // The series gives exp(x) to within 6e-9 for |x| <= 1/2. The error of the instruction,
        // 2e-7, would show.
        let series = [1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
        let power = series.into_iter().fold(0.0, |sum, c| cx.fma(sum, x, c));
        sum += power;
        moment = cx.fma(power, x, moment);
    }
    // ln(1 + u) = 2 artanh(u / (2 + u)), |u| < 0.65
    let u = cx.fma(sum, 1.0 / 13.0, -1.0);
    let s = u / (2.0 + u);
    let s2 = s * s;
    let series = [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0];
    let tail = series.into_iter().fold(0.0, |sum, c| cx.fma(sum, s2, c));
    let log = 2.0 * cx.fma(s * s2, tail, s);
    log - moment / sum
}

kernel! {
    /// Finds the indices of the `k` largest of `n` numbers for each of `images` images: `values`
    /// [images, n] to `order` [images, k]. The largest comes first, and among equals the one with
    /// the lower index.
    pub unsafe fn top(cx: impl Cooperative, images: u32, n: u32, k: u32, values: In<f32>, order: Out<i32>)
    require {
        images <= 65535,
        n <= 65536,
        n.is_multiple_of(4),
        k <= n,
        values.len() == images * n,
        values.is_aligned(16),
        order.len() == images * k,
    }
    grid(n.div_ceil(32), images) block(32, WARPS) shared(WARPS * 32 * 4)
    {
        let (image, lane, warp) = (cx.block_idx().y, cx.thread_idx().x, cx.thread_idx().y);
        let i = cx.block_idx().x * 32 + lane;
        let values = values.as_ptr().add((image * n) as usize);
        let own = key(cx.load(values.add(i.min(n - 1) as usize)));
        let mut rank = 0;
        let mut j = warp * 4;
        while j < n {
            let others = cx.load4(values.add(j as usize)).map(key);
            for (k, other) in others.into_iter().enumerate() {
                rank += u32::from(other > own || other == own && j + (k as u32) < i);
            }
            j += WARPS * 4;
        }
        let counts = cx.shared::<u32>(0);
        cx.shared_set(counts, warp * 32 + lane, rank);
        cx.barrier();
        if warp == 0 && i < n {
            let rank: u32 = (0..WARPS).map(|part| cx.shared_get(counts, part * 32 + lane)).sum();
            if rank < k {
                order.set(cx, (image * k + rank) as usize, i as i32);
            }
        }
    }
}

/// Makes an integer that orders as the float does, and is the same for 0 and -0.
#[inline(always)]
fn key(v: f32) -> i32 {
    let bits = v.to_bits() as i32;
    // Negative floats fall as their bits rise; -0 becomes 0.
    if bits < 0 { (bits ^ i32::MAX).wrapping_add(1) } else { bits }
}
