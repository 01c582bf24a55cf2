//! Texture array: 13 planes from sRGB.
//!
//! ```text
//! for every pixel (y, x):
//!     planes 0..3   = R, G, B / 255
//!     planes 3..6   = L*a*b* of linear RGB: (L / 100, (a + 128) / 255, (b + 128) / 255)
//!     l             = 299 R + 587 G + 114 B over the 3x3 window, border replicated   (integer luma)
//!     planes 6..9   = Gx, Gy, |G|: Sobel sums of l / (8 * 255000)
//!     planes 9..12  = y / (H - 1), x / (W - 1), distance from the fixation / largest such distance
//!     plane  12     = 2 * standard deviation of l / 255000
//! ```
//!
//! Launch: blocks of 32 x 8 threads, 4 pixels of a row a thread, so a block covers 128 x 8 pixels.
//! Memory: 3 bytes read and 52 written a pixel; neighbouring rows come from L1.
//!
//! - **Two layouts of one computation.** Where rows start on 16 bytes (W divisible by 4) a thread
//!   takes 4 adjacent pixels: 12 bytes are three aligned words, one more word on each side holds the
//!   neighbours, and a plane takes one `st.global.cs.v4`. Elsewhere the thread takes every 32nd of 128 pixels, so
//!   that a warp's scalar stores are still whole lines.
//! - **Streaming stores**: 52 bytes a pixel would otherwise push the image out of L2.
//! - **Columns.** Everything the window needs separates: a column (a, b, c) gives its sum, its smoothed value
//!   a + 2b + c, its slope c - a and its spread, and a window is three of them; 4 pixels
//!   share 6 columns.
//! - **Exactness.** Luma, Sobel sums and deviations are integers below 2^24, so f32 holds them exactly. The
//!   variance adds the spread inside columns and between them, each of exact deviations: two passes
//!   over the window, as E[x^2] - E[x]^2 would cancel.
//! - **Integer to float without a conversion**: below 2^23 an integer or-ed into the mantissa of 2^23 is the
//!   float 2^23 + v. Conversions share a slower pipe with the roots and exponentials.
//! - **Linear light from a table** of 256 floats: exact to rounding, 1 KiB in L1.
//!
//! Largest error against f64 over all 2^24 colours, on the CPU device: R, G, B 7.5e-8, L 3.0e-7, a 6.8e-7, b 3.0e-7.

use thalweg_simt::{In, Simt, kernel};

use crate::patch::pixel;

kernel! {
    /// Texture array of an image: `rgb` [H, W, 3] to `planes` [13, H, W].
    ///
    /// Planes: R, G, B, L\*, a\*, b\* (scaled to about [0, 1]), Gx, Gy, edge magnitude, y, x, eccentricity,
    /// local contrast. The fixation is in units of the image's height and width, (0.5, 0.5) its centre.
    pub unsafe fn textures(
        cx: impl Simt, height: u32, width: u32, fixation_y: f32, fixation_x: f32, rgb: In<u8>, planes: Out<f32>,
    )
    require {
        (1..=16384).contains(&height),
        (1..=16384).contains(&width),
        rgb.len() == 3 * height * width,
        planes.len() == 13 * height * width,
    }
    grid(width.div_ceil(128), height.div_ceil(8)) block(32, 8)
    {
        let y = cx.global_y();
        if y >= height {
            return;
        }
        let place = Place { height, width, fixation_y, fixation_x, y };
        let (above, below) = (y.max(1) - 1, (y + 1).min(height - 1));
        let size = (height * width) as usize;
        let out = planes.as_ptr().add((y * width) as usize);
        let aligned = rgb.as_ptr().addr().is_multiple_of(4) && planes.as_ptr().addr().is_multiple_of(16);
        if aligned && width.is_multiple_of(4) {
            let x = cx.global_x() * 4;
            if x >= width {
                return;
            }
            let a = words(cx, rgb, above, width, x);
            let b = words(cx, rgb, y, width, x);
            let c = words(cx, rgb, below, width, x);
            let column = |k: usize| Column::new(cx, luma(a[k]), luma(b[k]), luma(c[k]));
            let c = [column(0), column(1), column(2), column(3), column(4), column(5)];
            let windows = [[c[0], c[1], c[2]], [c[1], c[2], c[3]], [c[2], c[3], c[4]], [c[3], c[4], c[5]]];
            texels(cx, place, [b[1], b[2], b[3], b[4]], windows, [x, x + 1, x + 2, x + 3], |plane, v| {
                cx.store4_streaming(out.add(plane * size + x as usize), v);
            });
        } else {
            let mut x = cx.block_idx().x * 128 + cx.thread_idx().x;
            let end = width.min(x + 128);
            while x < end {
                let at = |y: u32, x: u32| bytes(cx, rgb, y * width + x);
                let column = |x: u32| Column::new(cx, luma(at(above, x)), luma(at(y, x)), luma(at(below, x)));
                let window = [column(x.max(1) - 1), column(x), column((x + 1).min(width - 1))];
                texels(cx, place, [at(y, x)], [window], [x], |plane, [v]| {
                    cx.store(out.add(plane * size + x as usize), v);
                });
                x += 32;
            }
        }
    }
}

/// The 13 planes of `N` pixels, given packed, with their windows and columns in the image; `put` stores a
/// plane's values. Planes in this order keep the fewest registers alive.
#[inline(always)]
fn texels<const N: usize>(
    cx: impl Simt,
    place: Place,
    pixels: [u32; N],
    windows: [[Column; 3]; N],
    x: [u32; N],
    put: impl Fn(usize, [f32; N]),
) {
    let rgb = pixels.map(channels);
    put(0, rgb.map(|c| exact(c[0]) * (1.0 / 255.0)));
    put(1, rgb.map(|c| exact(c[1]) * (1.0 / 255.0)));
    put(2, rgb.map(|c| exact(c[2]) * (1.0 / 255.0)));
    let lab = rgb.map(|c| lab(cx, c));
    put(3, lab.map(|v| v.0));
    put(4, lab.map(|v| v.1));
    put(5, lab.map(|v| v.2));
    put(12, windows.map(|w| contrast(cx, w)));
    let gradients = windows.map(|w| gradient(cx, w));
    put(6, gradients.map(|v| v.0));
    put(7, gradients.map(|v| v.1));
    put(8, gradients.map(|v| v.2));
    let places = x.map(|x| place.at(cx, x));
    put(9, places.map(|v| v.0));
    put(10, places.map(|v| v.1));
    put(11, places.map(|v| v.2));
}

/// Where a row is, to find a pixel's position and eccentricity.
#[derive(Clone, Copy)]
struct Place {
    height: u32,
    width: u32,
    fixation_y: f32,
    fixation_x: f32,
    y: u32,
}

impl Place {
    /// Planes 9 to 11 at column `x`: y, x and eccentricity.
    #[inline(always)]
    fn at(self, cx: impl Simt, x: u32) -> (f32, f32, f32) {
        // Where the extent is 1 the only index is 0, and any scale will do.
        let scale = |extent: u32| cx.recip(exact(extent.max(2) - 1));
        let (y, x) = (exact(self.y) * scale(self.height), exact(x) * scale(self.width));
        let distance = |dy: f32, dx: f32| cx.sqrt_approx(cx.fma(dy, dy, dx * dx));
        // The farthest corner of the unit square is farther along both axes.
        let far = |f: f32| f.abs().max((1.0 - f).abs());
        let farthest = distance(far(self.fixation_y), far(self.fixation_x));
        (y, x, distance(y - self.fixation_y, x - self.fixation_x) * cx.recip(farthest))
    }
}

/// Three lumas, one above the other, as a window needs them. All but `spread` are exact integers.
#[derive(Clone, Copy)]
struct Column {
    /// a + b + c
    sum: f32,
    /// a + 2b + c
    smooth: f32,
    /// c - a
    slope: f32,
    /// 9 times the sum of squared deviations from the column's mean
    spread: f32,
}

impl Column {
    #[inline(always)]
    fn new(cx: impl Simt, a: f32, b: f32, c: f32) -> Self {
        let sum = a + b + c;
        let (da, db, dc) = (cx.fma(3.0, a, -sum), cx.fma(3.0, b, -sum), cx.fma(3.0, c, -sum));
        Self { sum, smooth: sum + b, slope: c - a, spread: cx.fma(da, da, cx.fma(db, db, dc * dc)) }
    }
}

/// Planes 6 to 8 of the pixel in the middle of three columns: Gx, Gy and edge magnitude.
#[inline(always)]
fn gradient(cx: impl Simt, [left, middle, right]: [Column; 3]) -> (f32, f32, f32) {
    const SCALE: f32 = 1.0 / (8.0 * 255_000.0);
    let gx = (right.smooth - left.smooth) * SCALE;
    let gy = (cx.fma(2.0, middle.slope, left.slope) + right.slope) * SCALE;
    (gx, gy, cx.sqrt_approx(cx.fma(gx, gx, gy * gy)))
}

/// Plane 12 of the pixel in the middle of three columns: twice the standard deviation.
#[inline(always)]
fn contrast(cx: impl Simt, [left, middle, right]: [Column; 3]) -> f32 {
    // 2 / (255000 sqrt(243))
    const SCALE: f32 = (2.0 / (255_000.0 * 15.588_457_268_119_896f64)) as f32;
    let sum = left.sum + middle.sum + right.sum;
    let [l, m, r] = [left, middle, right].map(|c| cx.fma(3.0, c.sum, -sum));
    let between = cx.fma(l, l, cx.fma(m, m, r * r));
    // 243 times the variance.
    let squares = cx.fma(3.0, left.spread + middle.spread + right.spread, between);
    cx.sqrt_approx(squares) * SCALE
}

/// Pixels `x - 1` to `x + 4` of row `y`, each in the low 24 bits, from whole words; `x` and `width` are multiples of 4.
///
/// # Safety
/// `rgb` is aligned to 4 bytes and holds row `y`; `x < width`.
#[inline(always)]
unsafe fn words(cx: impl Simt, rgb: In<u8>, y: u32, width: u32, x: u32) -> [u32; 6] {
    let at = ((y * width + x) * 3 / 4) as usize;
    // SAFETY: the row's 3/4 * width words start on a word; `at` is that of pixel x, and the words
    // before and after are taken only inside the row.
    unsafe {
        let p = rgb.as_ptr().cast::<u32>().add(at);
        let (p0, p1, p2) = (cx.load(p), cx.load(p.add(1)), cx.load(p.add(2)));
        let left = if x > 0 { cx.load(p.sub(1)) } else { p0 << 8 };
        let right = if x + 4 < width { cx.load(p.add(3)) } else { p2 >> 8 };
        [left >> 8, p0, p0 >> 24 | p1 << 8, p1 >> 16 | p2 << 16, p2 >> 8, right]
    }
}

/// Pixel `at`, in the low 24 bits, byte by byte.
///
/// # Safety
/// `rgb` holds the pixel.
#[inline(always)]
unsafe fn bytes(cx: impl Simt, rgb: In<u8>, at: u32) -> u32 {
    // SAFETY: the caller's promise.
    let [r, g, b] = unsafe { pixel(cx, rgb, at) };
    r | g << 8 | b << 16
}

/// The bytes of a packed pixel; its top byte is ignored.
#[inline(always)]
fn channels(pixel: u32) -> [u32; 3] {
    [pixel & 255, pixel >> 8 & 255, pixel >> 16 & 255]
}

/// Luma times 255000, an integer up to 255000.
#[inline(always)]
fn luma(pixel: u32) -> f32 {
    let [r, g, b] = channels(pixel);
    exact(299 * r + 587 * g + 114 * b)
}

/// `v` as a float, for `v` below 2^23.
#[inline(always)]
fn exact(v: u32) -> f32 {
    f32::from_bits(v | 0x4b00_0000) - 8_388_608.0
}

/// Planes 3 to 5 of sRGB bytes: L* / 100, (a* + 128) / 255, (b* + 128) / 255; CIE 1976, D65, 2 degree observer.
#[inline(always)]
fn lab(cx: impl Simt, rgb: [u32; 3]) -> (f32, f32, f32) {
    linear_lab(cx, rgb.map(|v| LINEAR[v as usize]))
}

/// The same of linear light.
#[inline(always)]
pub(crate) fn linear_lab(cx: impl Simt, [r, g, b]: [f32; 3]) -> (f32, f32, f32) {
    const WHITE: [f64; 3] = [0.95047, 1.0, 1.08883];
    let f = |x: f64, y: f64, z: f64, white: f64| {
        // Constants are folded, and rounded once.
        let (x, y, z) = ((x / white) as f32, (y / white) as f32, (z / white) as f32);
        let t = cx.fma(x, r, cx.fma(y, g, z * b));
        // Both, then a choice: pixels of a warp differ.
        let (root, line) = (cx.cbrt(t), cx.fma(7.787, t, (16.0f64 / 116.0) as f32));
        if t > 0.008856 { root } else { line }
    };
    let fx = f(0.412453, 0.357580, 0.180423, WHITE[0]);
    let fy = f(0.212671, 0.715160, 0.072169, WHITE[1]);
    let fz = f(0.019334, 0.119193, 0.950227, WHITE[2]);
    (
        cx.fma(1.16, fy, -0.16),
        cx.fma((500.0f64 / 255.0) as f32, fx - fy, (128.0f64 / 255.0) as f32),
        cx.fma((200.0f64 / 255.0) as f32, fy - fz, (128.0f64 / 255.0) as f32),
    )
}

/// Linear light of each sRGB byte (IEC 61966-2-1).
#[rustfmt::skip]
static LINEAR: [f32; 256] = [
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
];
