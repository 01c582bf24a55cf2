//! The mean eccentricity of a patch: from a few points, or from every pixel.

use thalweg_simt::Cooperative;

use super::totals::sum;
use crate::parts::number::scaled;
use crate::vision::patch::Patch;
use crate::vision::texel::{Place, eccentricity};

impl Place {
    /// Adds up the eccentricities of `N` columns from `x` on, over rows `top` to `end`.
    #[inline(always)]
    pub(super) fn distance<C: Cooperative, const N: usize>(self, cx: C, top: u32, end: u32, x: u32) -> f32 {
        let columns: [f32; N] = core::array::from_fn(|i| self.column(cx, x + i as u32).1);
        let mut distance = 0.0;
        for y in top..end {
            let dy = self.row(cx, y).1;
            distance += sum(columns.map(|dx| eccentricity(cx, dy, dx)));
        }
        distance
    }
}

/// Computes the center and half the extent of a patch's rows (`axis` 0) or columns (1), as parts of
/// the eccentricity. The extent is that of an even spread with the same variance as the positions
/// of the rows or columns.
#[inline(always)]
fn spread(cx: impl Cooperative, place: Place, axis: usize, start: u32, extent: u32) -> (f32, f32) {
    let center = scaled(cx, 2 * start + extent - 1, 0.5) * place.scale[axis];
    let half = 0.5 * cx.sqrt_approx(scaled(cx, extent * extent - 1, 1.0)) * place.scale[axis];
    ((center - place.fixation[axis]) * place.nearness, half * place.nearness)
}

/// Whether the mean distance of a patch needs every pixel: the patch is small or near the fixation.
#[inline(always)]
pub(super) fn near(cx: impl Cooperative, place: Place, area: Patch) -> bool {
    let (y, dy) = spread(cx, place, 0, area.y, area.height);
    let (x, dx) = spread(cx, place, 1, area.x, area.width);
    area.height.min(area.width) < 16 || y.abs().max(x.abs()) < 4.0 * dy.max(dx)
}

/// Computes term `i` of the 16 that add up to the sum of the distances, by Gauss' quadrature with
/// 4 x 4 points.
#[inline(always)]
pub(super) fn node(cx: impl Cooperative, place: Place, area: Patch, i: u32) -> f32 {
    let (y, dy) = spread(cx, place, 0, area.y, area.height);
    let (x, dx) = spread(cx, place, 1, area.x, area.width);
    let node = |i: u32| {
        let (at, weight) = if i & 2 == 0 { (0.339_981_04, 0.326_072_58) } else { (0.861_136_3, 0.173_927_42) };
        (if i & 1 == 0 { at } else { -at }, weight)
    };
    let ((v, p), (u, q)) = (node(i), node(i / 4));
    scaled(cx, area.area(), p * q) * eccentricity(cx, cx.fma(v, dy, y), cx.fma(u, dx, x))
}
