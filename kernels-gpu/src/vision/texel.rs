//! The planes of a pixel, which the materialised and the fused path share.
//!
//! The number of instructions counts here: in the fused path it is the limit.
//!
//! - **Columns.** The 3x3 window separates: a column (a, b, c) gives its sum, its smoothed value
//!   a + 2b + c, its slope c - a and its spread, and a window is three columns. Runs of 4 pixels
//!   share 6 columns, and a [`Walk`] downwards makes the columns of the next row from those of the
//!   last one in 7 operations.
//! - **Exactness.** Luma, Sobel sums and differences are integers below 2^24, so f32 holds them
//!   exactly. The variance is made of squared differences of neighbors, inside columns and between
//!   them: no term is large where the variance is small, as the terms of E[x^2] - E[x]^2 are.
//! - **One square less.** For u = b - a and v = c - b, the three pairs of a column have
//!   u^2 + v^2 + (u + v)^2 = 2 (u (u + v) + v^2), three operations of which u + v is the slope.
//! - **Dot products of bytes** make luma in two instructions, already as the mantissa of a float in
//!   [2^23, 2^24), so that one subtraction makes it a float. Conversions would share a slow unit
//!   with the roots and exponentials.
//! - **Linear light comes from a table** of 256 floats, exact to rounding.
//! - **Cube roots have no branch.** Below t0 = 0.008856, L*a*b* has a line instead of the root.
//!   With t in units of t0 and d = max(1 - t, 0), by a saturating subtraction, the value is
//!   root(t + d) - slope d.

use thalweg_simt::{In, Simt};

use crate::parts::number::scaled;
use crate::vision::patch::Patch;

/// Scales [`gradient`] to units of 1: luma is times 255000, and the weights of a Sobel sum add up
/// to eight.
pub(crate) const GRADIENT: f32 = 1.0 / (8.0 * 255_000.0);
/// Scales [`contrast`] to twice the standard deviation in units of 1: 2 sqrt(2 / 27) / 255000.
pub(crate) const CONTRAST: f32 = (2.0 * 0.272_165_526_975_908_7f64 / 255_000.0) as f32;

/// An image whose pixels are read in runs along a row, with the neighbor on each side. The border
/// is replicated. The bytes of a pixel are the low 24 bits of a word.
///
/// Whoever makes one vouches that `rgb` holds the `height` x `width` pixels. The methods rely on
/// that.
#[derive(Clone, Copy)]
pub(crate) struct Image {
    pub(crate) height: u32,
    pub(crate) width: u32,
    pub(crate) rgb: In<u8>,
}

impl Image {
    /// Whether rows start on whole words.
    #[inline(always)]
    pub(crate) fn is_aligned(self) -> bool {
        self.width.is_multiple_of(4) && self.rgb.as_ptr().addr().is_multiple_of(4)
    }

    /// Whether the rows of a patch can be read by [`quad`](Self::quad).
    #[inline(always)]
    pub(crate) fn has_quads(self, area: Patch) -> bool {
        self.is_aligned() && (area.x | area.width).is_multiple_of(4)
    }

    /// Returns where row `y` starts, in bytes.
    #[inline(always)]
    pub(crate) fn start(self, y: u32) -> u32 {
        3 * self.width * y
    }

    /// Returns where the row above row `y` starts, which itself starts at `start`. The first row is
    /// its own neighbor.
    #[inline(always)]
    pub(crate) fn above(self, y: u32, start: u32) -> u32 {
        if y > 0 { start - 3 * self.width } else { start }
    }

    /// Returns where the row below row `y` starts, which itself starts at `start`. The last row is
    /// its own neighbor.
    #[inline(always)]
    pub(crate) fn below(self, y: u32, start: u32) -> u32 {
        if y + 1 < self.height { start + 3 * self.width } else { start }
    }

    /// Loads pixels `x - 1` to `x + 4` of the row that starts at `start`.
    ///
    /// # Safety
    /// `rgb` holds the image, which [`is_aligned`](Self::is_aligned). `start` is a row of it, and
    /// `x` a column that is a multiple of 4.
    #[inline(always)]
    pub(crate) unsafe fn quad(self, cx: impl Simt, start: u32, x: u32) -> [u32; 6] {
        // SAFETY: The image is aligned, so a row is 3/4 * width whole words. `p` is the first of
        // the three words of pixels x to x + 3. The words before and after them are loaded only if
        // they are in the row.
        unsafe {
            let p = self.rgb.as_ptr().add(3 * x as usize).add(start as usize).cast::<u32>();
            let (p0, p1, p2) = (cx.load(p), cx.load(p.add(1)), cx.load(p.add(2)));
            let left = if x > 0 { cx.load(p.sub(1)) } else { p0 << 8 };
            let right = if x + 4 < self.width { cx.load(p.add(3)) } else { p2 >> 8 };
            [left >> 8, p0, p0 >> 24 | p1 << 8, p1 >> 16 | p2 << 16, p2 >> 8, right]
        }
    }

    /// Loads pixels `x - 1` to `x + 1` of the row that starts at `start`, byte by byte.
    ///
    /// # Safety
    /// `rgb` holds the image. `start` is a row of it, and `x` a column.
    #[inline(always)]
    pub(crate) unsafe fn single(self, cx: impl Simt, start: u32, x: u32) -> [u32; 3] {
        // SAFETY: the three columns are clamped to the row.
        [x.max(1) - 1, x, (x + 1).min(self.width - 1)].map(|x| unsafe { self.pixel(cx, start, x) })
    }

    /// Loads pixel `x` of the row that starts at `start`, byte by byte.
    ///
    /// # Safety
    /// As for [`single`](Self::single).
    #[inline(always)]
    pub(crate) unsafe fn pixel(self, cx: impl Simt, start: u32, x: u32) -> u32 {
        let at = (start + 3 * x) as usize;
        // SAFETY: the three bytes are those of a pixel of the image, which `rgb` holds, as the
        // caller promises.
        let byte = |k| u32::from(unsafe { self.rgb.get(cx, at + k) });
        let [r, g, b] = [byte(0), byte(1), byte(2)];
        r | g << 8 | b << 16
    }
}

/// Returns the bytes of a packed pixel, without its top byte.
#[inline(always)]
pub(crate) fn channels(pixel: u32) -> [u32; 3] {
    [pixel & 255, pixel >> 8 & 255, pixel >> 16 & 255]
}

/// Computes luma times 255000, an integer up to 255000.
#[inline(always)]
pub(crate) fn luma(cx: impl Simt, pixel: u32) -> f32 {
    // The float 2^23 + v has the integer v as its mantissa.
    let biased = cx.dp2a_hi_u32(114, pixel, cx.dp2a_lo_u32(299 | 587 << 16, pixel, 0x4b00_0000));
    f32::from_bits(biased) - 8_388_608.0
}

/// The sums that a window needs of three lumas a, b and c, one above the other. All numbers but
/// `spread` are exact integers.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    /// a + b + c
    sum: f32,
    /// a + 2b + c
    smooth: f32,
    /// c - a
    slope: f32,
    /// 3/2 times the sum of the squared deviations from the column's mean
    spread: f32,
}

/// `M` columns of luma, as far as they are known before the next row is read.
#[derive(Clone, Copy)]
pub(crate) struct Walk<const M: usize> {
    /// The last row.
    last: [f32; M],
    /// The sum of the last two rows.
    pub(crate) pair: [f32; M],
    /// The last row less the one before.
    step: [f32; M],
}

impl<const M: usize> Walk<M> {
    /// Starts with two rows.
    #[inline(always)]
    pub(crate) fn new(cx: impl Simt, above: [u32; M], row: [u32; M]) -> Self {
        let (above, last) = (above.map(|p| luma(cx, p)), row.map(|p| luma(cx, p)));
        let mut walk = Self { last, pair: last, step: last };
        for (i, above) in above.into_iter().enumerate() {
            walk.pair[i] += above;
            walk.step[i] -= above;
        }
        walk
    }

    /// Makes the columns whose middle is the last row from the row below, which then becomes the
    /// last row.
    #[inline(always)]
    pub(crate) fn down(&mut self, cx: impl Simt, below: [u32; M]) -> [Column; M] {
        let mut columns = [Column { sum: 0.0, smooth: 0.0, slope: 0.0, spread: 0.0 }; M];
        for i in 0..M {
            let c = luma(cx, below[i]);
            let (pair, step) = (self.last[i] + c, c - self.last[i]);
            let slope = self.step[i] + step;
            columns[i] = Column {
                sum: self.pair[i] + c,
                smooth: self.pair[i] + pair,
                slope,
                spread: cx.fma(self.step[i], slope, step * step),
            };
            (self.last[i], self.pair[i], self.step[i]) = (c, pair, step);
        }
        columns
    }
}

/// Computes Gx, Gy and edge magnitude in the middle of three columns, in units of [`GRADIENT`].
#[inline(always)]
pub(crate) fn gradient(cx: impl Simt, [left, middle, right]: [Column; 3]) -> (f32, f32, f32) {
    let gx = right.smooth - left.smooth;
    let gy = cx.fma(2.0, middle.slope, left.slope) + right.slope;
    (gx, gy, cx.sqrt_approx(cx.fma(gx, gx, gy * gy)))
}

/// Computes the local contrast in the middle of three columns, in units of [`CONTRAST`].
#[inline(always)]
pub(crate) fn contrast(cx: impl Simt, [left, middle, right]: [Column; 3]) -> f32 {
    // The three sums have a spread, like the three lumas of a column.
    let (a, b) = (middle.sum - left.sum, right.sum - middle.sum);
    let between = cx.fma(a, a + b, b * b);
    cx.sqrt_approx(cx.fma(1.0 / 3.0, between, left.spread + middle.spread + right.spread))
}

/// The end of the line of L*a*b* and the beginning of the cube root.
const T0: f64 = 0.008856;
/// The cube root of [`T0`].
const ROOT0: f64 = 0.206_893_034_422_963_83;

/// Computes f(X), f(Y) and f(Z) of linear light, in units of the cube root of [`T0`] (CIE 1976,
/// D65, 2 degree observer).
#[inline(always)]
pub(crate) fn response(cx: impl Simt, [r, g, b]: [f32; 3]) -> [f32; 3] {
    const WHITE: [f64; 3] = [0.95047, 1.0, 1.08883];
    let f = |x: f64, y: f64, z: f64, white: f64| {
        // The compiler folds the constants and rounds them once.
        let scale = |v: f64| (v / white / T0) as f32;
        let t = cx.fma(scale(x), r, cx.fma(scale(y), g, scale(z) * b));
        let lack = cx.sub_sat(1.0, t);
        cx.fma((-7.787 * T0 / ROOT0) as f32, lack, cx.cbrt_approx(t + lack))
    };
    [
        f(0.412453, 0.357580, 0.180423, WHITE[0]),
        f(0.212671, 0.715160, 0.072169, WHITE[1]),
        f(0.019334, 0.119193, 0.950227, WHITE[2]),
    ]
}

/// Computes L* / 100, (a* + 128) / 255 and (b* + 128) / 255, summed over `n` pixels, from the sums
/// of their responses.
#[inline(always)]
pub(crate) fn lab(cx: impl Simt, [x, y, z]: [f32; 3], n: f32) -> [f32; 3] {
    [
        cx.fma((1.16 * ROOT0) as f32, y, -0.16 * n),
        cx.fma((500.0 * ROOT0 / 255.0) as f32, x - y, (128.0f64 / 255.0) as f32 * n),
        cx.fma((200.0 * ROOT0 / 255.0) as f32, y - z, (128.0f64 / 255.0) as f32 * n),
    ]
}

/// Positions in the unit square, and distances from the fixation.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The distance of two rows, and of two columns.
    pub(crate) scale: [f32; 2],
    pub(crate) fixation: [f32; 2],
    /// One over the distance of the farthest corner.
    pub(crate) nearness: f32,
}

impl Place {
    #[inline(always)]
    pub(crate) fn new(cx: impl Simt, height: u32, width: u32, fixation_y: f32, fixation_x: f32) -> Self {
        // If the extent is 1, the only index is 0, and any scale will do.
        let scale = |extent: u32| cx.recip_approx(scaled(cx, extent.max(2) - 1, 1.0));
        // The farthest corner of the unit square is the farther one along both axes.
        let far = |f: f32| f.abs().max((1.0 - f).abs());
        let (y, x) = (far(fixation_y), far(fixation_x));
        Self {
            scale: [scale(height), scale(width)],
            fixation: [fixation_y, fixation_x],
            nearness: cx.recip_approx(cx.sqrt_approx(cx.fma(y, y, x * x))),
        }
    }

    /// Computes plane 9 of row `y`, and its part of the eccentricity.
    #[inline(always)]
    pub(crate) fn row(self, cx: impl Simt, y: u32) -> (f32, f32) {
        let y = scaled(cx, y, self.scale[0]);
        (y, (y - self.fixation[0]) * self.nearness)
    }

    /// Computes plane 10 of column `x`, and its part of the eccentricity.
    #[inline(always)]
    pub(crate) fn column(self, cx: impl Simt, x: u32) -> (f32, f32) {
        let x = scaled(cx, x, self.scale[1]);
        (x, (x - self.fixation[1]) * self.nearness)
    }
}

/// Computes plane 11 from the parts of row and column.
#[inline(always)]
pub(crate) fn eccentricity(cx: impl Simt, row: f32, column: f32) -> f32 {
    cx.sqrt_approx(cx.fma(row, row, column * column))
}

/// Computes the 13 planes of `N` pixels of a `row`, which is given with its neighbors, from it and
/// the columns of luma. `y` and `x` are the places of the pixels and their parts of the
/// eccentricity. The order of the planes keeps few registers alive.
#[inline(always)]
pub(crate) fn texels<const N: usize, const M: usize>(
    cx: impl Simt,
    y: (f32, f32),
    x: [(f32, f32); N],
    row: [u32; M],
    columns: [Column; M],
    put: impl Fn(u32, [f32; N]),
) {
    let rgb: [[u32; 3]; N] = core::array::from_fn(|i| channels(row[i + 1]));
    let windows: [[Column; 3]; N] = core::array::from_fn(|i| [columns[i], columns[i + 1], columns[i + 2]]);
    put(0, rgb.map(|c| scaled(cx, c[0], 1.0 / 255.0)));
    put(1, rgb.map(|c| scaled(cx, c[1], 1.0 / 255.0)));
    put(2, rgb.map(|c| scaled(cx, c[2], 1.0 / 255.0)));
    let lab = rgb.map(|c| linear_lab(cx, c.map(|v| LINEAR.0[v as usize])));
    put(3, lab.map(|v| v.0));
    put(4, lab.map(|v| v.1));
    put(5, lab.map(|v| v.2));
    put(12, windows.map(|w| contrast(cx, w) * CONTRAST));
    let gradients = windows.map(|w| gradient(cx, w));
    put(6, gradients.map(|v| v.0 * GRADIENT));
    put(7, gradients.map(|v| v.1 * GRADIENT));
    put(8, gradients.map(|v| v.2 * GRADIENT));
    put(9, [y.0; N]);
    put(10, x.map(|v| v.0));
    put(11, x.map(|v| eccentricity(cx, y.1, v.1)));
}

/// Computes planes 3 to 5 from linear light.
#[inline(always)]
pub(crate) fn linear_lab(cx: impl Simt, rgb: [f32; 3]) -> (f32, f32, f32) {
    let [l, a, b] = lab(cx, response(cx, rgb), 1.0);
    (l, a, b)
}

/// A table that is aligned for loads of 16 bytes.
#[repr(align(16))]
pub(crate) struct Table(pub(crate) [f32; 256]);

/// The linear light of each sRGB byte (IEC 61966-2-1).
#[rustfmt::skip]
pub(crate) static LINEAR: Table = Table([
    0.0, 0.000303527, 0.000607054, 0.000910581, 0.001214108, 0.001517635, 0.001821162, 0.0021246888,
    0.002428216, 0.0027317428, 0.00303527, 0.0033465358, 0.0036765074, 0.004024717, 0.004391442, 0.0047769533,
    0.0051815165, 0.0056053917, 0.006048833, 0.0065120906, 0.00699541, 0.007499032, 0.008023193, 0.008568126,
    0.009134059, 0.009721218, 0.010329823, 0.010960094, 0.011612245, 0.012286488, 0.0129830325, 0.013702083,
    0.014443844, 0.015208514, 0.015996294, 0.016807375, 0.017641954, 0.01850022, 0.019382361, 0.020288562,
    0.02121901, 0.022173885, 0.023153367, 0.024157632, 0.02518686, 0.026241222, 0.027320892, 0.02842604,
    0.029556835, 0.030713445, 0.031896032, 0.033104766, 0.034339808, 0.035601314, 0.03688945, 0.038204372,
    0.039546236, 0.0409152, 0.04231141, 0.04373503, 0.045186203, 0.046665087, 0.048171826, 0.049706567,
    0.051269457, 0.052860647, 0.054480277, 0.05612849, 0.05780543, 0.059511237, 0.061246052, 0.063010015,
    0.064803265, 0.06662594, 0.06847817, 0.070360094, 0.07227185, 0.07421357, 0.07618538, 0.07818742,
    0.08021982, 0.08228271, 0.08437621, 0.08650046, 0.08865558, 0.09084171, 0.093058966, 0.09530747,
    0.09758735, 0.099898726, 0.10224173, 0.104616486, 0.107023105, 0.10946171, 0.11193243, 0.114435375,
    0.116970666, 0.11953843, 0.122138776, 0.12477182, 0.12743768, 0.13013647, 0.13286832, 0.13563333,
    0.13843161, 0.14126329, 0.14412847, 0.14702727, 0.14995979, 0.15292615, 0.15592647, 0.15896083,
    0.16202937, 0.1651322, 0.1682694, 0.17144111, 0.1746474, 0.17788842, 0.18116425, 0.18447499,
    0.18782078, 0.19120169, 0.19461784, 0.19806932, 0.20155625, 0.20507874, 0.20863687, 0.21223076,
    0.2158605, 0.2195262, 0.22322796, 0.22696587, 0.23074006, 0.23455058, 0.23839757, 0.24228112,
    0.24620132, 0.25015828, 0.2541521, 0.25818285, 0.26225066, 0.2663556, 0.2704978, 0.2746773,
    0.27889428, 0.28314874, 0.28744084, 0.29177064, 0.29613826, 0.30054379, 0.3049873, 0.30946892,
    0.31398872, 0.31854677, 0.3231432, 0.3277781, 0.33245152, 0.33716363, 0.34191442, 0.34670407,
    0.3515326, 0.35640013, 0.3613068, 0.3662526, 0.3712377, 0.37626213, 0.38132602, 0.38642943,
    0.39157248, 0.39675522, 0.40197778, 0.4072402, 0.4125426, 0.41788507, 0.42326766, 0.4286905,
    0.43415365, 0.43965718, 0.4452012, 0.4507858, 0.45641103, 0.462077, 0.4677838, 0.47353148,
    0.47932017, 0.48514995, 0.49102086, 0.49693298, 0.5028865, 0.50888133, 0.5149177, 0.52099556,
    0.5271151, 0.5332764, 0.5394795, 0.54572445, 0.55201143, 0.5583404, 0.5647115, 0.57112485,
    0.57758045, 0.58407843, 0.59061885, 0.59720176, 0.60382736, 0.61049557, 0.6172066, 0.6239604,
    0.63075715, 0.63759685, 0.6444797, 0.65140563, 0.65837485, 0.6653873, 0.67244315, 0.6795425,
    0.6866853, 0.69387174, 0.7011019, 0.70837575, 0.7156935, 0.7230551, 0.73046076, 0.7379104,
    0.7454042, 0.7529422, 0.7605245, 0.76815116, 0.7758222, 0.7835378, 0.7912979, 0.7991027,
    0.80695224, 0.8148466, 0.82278574, 0.8307699, 0.838799, 0.8468732, 0.8549926, 0.8631572,
    0.8713671, 0.8796224, 0.8879231, 0.8962694, 0.9046612, 0.91309863, 0.92158186, 0.9301109,
    0.9386857, 0.9473065, 0.9559733, 0.9646863, 0.9734453, 0.9822506, 0.9911021, 1.0,
]);
