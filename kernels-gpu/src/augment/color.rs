//! The changes to the color of a pixel. All of it is clamped to 0..1.

use thalweg_simt::Simt;

use super::GRAYSCALE;
use super::record::Record;

#[inline(always)]
pub(super) fn luma(cx: impl Simt, weights: [f32; 3], [r, g, b]: [f32; 3]) -> f32 {
    cx.fma(weights[2], b, cx.fma(weights[1], g, weights[0] * r))
}

/// Multiplies the brightness.
#[inline(always)]
pub(super) fn bright(cx: impl Simt, record: Record, color: [f32; 3]) -> [f32; 3] {
    color.map(|v| cx.mul_sat(v, record.brightness()))
}

/// Changes contrast and saturation, and may make the color gray. `mean` is that of luma over the
/// image.
#[inline(always)]
pub(super) fn adjust(cx: impl Simt, record: Record, weights: [f32; 3], mean: f32, color: [f32; 3]) -> [f32; 3] {
    let contrast = record.contrast();
    let color = color.map(|v| cx.fma_sat(contrast, v, (1.0 - contrast) * mean));
    let saturation = record.saturation();
    let gray = luma(cx, weights, color);
    let color = color.map(|v| cx.fma_sat(saturation, v, (1.0 - saturation) * gray));
    if record.has(GRAYSCALE) { [luma(cx, weights, color); 3] } else { color }
}
