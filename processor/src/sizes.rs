//! The sizes to which processors resize: those that the Python code computes, in the same doubles.
//!
//! The grids of tiles are sizes, too.

use thalweg::Size;

use crate::{Error, Result};

/// The most pixels a side after a resize.
const MAX_RESIZED: u64 = 65535;

/// Checks the size of an image.
pub(crate) fn admit([height, width]: [u32; 2]) -> Result<()> {
    match [height, width].iter().all(|side| (1..=16384).contains(side)) {
        true => Ok(()),
        false => Err(Error::ImageSize { height, width }),
    }
}

/// Returns the size, if its sides are no longer than a resize can make them.
fn bounded(Size { height, width }: Size, resized: [f64; 2]) -> Result<Size> {
    let sides = resized.map(|side| side as u64);
    match sides.iter().all(|side| (1..=MAX_RESIZED).contains(side)) {
        true => Ok(sides.map(|side| side as u32).into()),
        false => Err(Error::ResizedSize { height, width, resized: sides }),
    }
}

/// Returns the size of Qwen's `smart_resize`: multiples of `factor`, with about as many pixels as
/// the bounds allow.
///
/// # Errors
/// The image is longer than 200 times its width or becomes too large.
pub fn smart_resize(size: Size, factor: u32, min_pixels: u64, max_pixels: u64) -> Result<Size> {
    let [h, w] = size.sides().map(f64::from);
    let ratio = h.max(w) / h.min(w);
    if ratio > 200.0 {
        return Err(Error::Ratio { ratio });
    }
    let (f, area) = (f64::from(factor), h * w);
    let near = [h, w].map(|side| (side / f).round_ties_even() * f);
    let pixels = near[0] * near[1];
    let resized = if pixels > max_pixels as f64 {
        let shrink = (area / max_pixels as f64).sqrt();
        [h, w].map(|side| f.max((side / shrink / f).floor() * f))
    } else if pixels < min_pixels as f64 {
        let grow = (min_pixels as f64 / area).sqrt();
        [h, w].map(|side| (side * grow / f).ceil() * f)
    } else {
        near
    };
    bounded(size, resized)
}

/// Returns the largest size of SigLIP2 in multiples of `patch` with at most `max_patches` patches.
///
/// # Errors
/// The image becomes too large.
pub fn naflex_size(size: Size, patch: u32, max_patches: u32) -> Result<Size> {
    let p = f64::from(patch);
    let scaled = |scale: f64| size.sides().map(|side| p.max((f64::from(side) * scale / p).ceil() * p));
    let (mut lo, mut hi) = (1e-5 / 10.0, 100.0);
    while hi - lo >= 1e-5 {
        let middle = (lo + hi) / 2.0;
        let [rows, columns] = scaled(middle).map(|side| side / p);
        if rows * columns <= f64::from(max_patches) { lo = middle } else { hi = middle }
    }
    bounded(size, scaled(lo))
}

/// Returns the grid of tiles of InternVL: the one whose shape is nearest to that of
/// the image, with `lo` to `hi` tiles.
#[must_use]
pub fn tile_grid(Size { height, width }: Size, tile: u32, lo: u32, hi: u32) -> Size {
    let mut grids: Vec<[u32; 2]> = (1..=hi).flat_map(|c| (1..=hi / c).map(move |r| [c, r])).collect();
    grids.retain(|[c, r]| c * r >= lo);
    grids.sort_by_key(|[c, r]| c * r);
    let (ratio, area) = (f64::from(width) / f64::from(height), f64::from(width) * f64::from(height));
    let (mut best, mut least) = ([1, 1], f64::INFINITY);
    for [c, r] in grids {
        let difference = (ratio - f64::from(c) / f64::from(r)).abs();
        let half_of_tiles = 0.5 * f64::from(tile) * f64::from(tile) * f64::from(c) * f64::from(r);
        if difference < least || (difference == least && area > half_of_tiles) {
            (best, least) = ([c, r], difference);
        }
    }
    let [columns, rows] = best;
    Size::new(rows, columns)
}

/// Returns the size of CLIP, whose short edge is `edge`.
///
/// # Errors
/// A side is 0, or the long edge becomes too large.
pub fn shortest_edge(size: Size, edge: u32) -> Result<Size> {
    let Size { height: h, width: w } = size;
    let (short, long) = (h.min(w), h.max(w));
    let long = (u64::from(edge) * u64::from(long)).checked_div(u64::from(short)).unwrap_or(0);
    let long = f64::from(long.min(u64::from(u32::MAX)) as u32);
    bounded(size, if w <= h { [long, f64::from(edge)] } else { [f64::from(edge), long] })
}

/// A canvas of LLaVA-OneVision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnyResSize {
    /// The size of the canvas.
    pub canvas: Size,
    /// The size of the image in its middle.
    pub resized: Size,
}

/// Returns the canvas of LLaVA-OneVision among `canvases`.
///
/// # Errors
/// There are no canvases.
pub fn anyres(size: Size, canvases: &[Size]) -> Result<AnyResSize> {
    let [h, w] = size.sides().map(f64::from);
    let area = size.area();
    let (mut best, mut most, mut least) = (Size::default(), 0, u64::MAX);
    for &canvas in canvases {
        let [rows, columns] = canvas.sides().map(f64::from);
        let s = (columns / w).min(rows / h);
        let shown = (((w * s) as u64) * ((h * s) as u64)).min(area);
        let waste = canvas.area() - shown;
        if shown > most || (shown == most && waste < least) {
            (best, most, least) = (canvas, shown, waste);
        }
    }
    let [rows, columns] = best.sides().map(f64::from);
    let (sw, sh) = (columns / w, rows / h);
    let inner = if sw < sh { [(h * sw).ceil().min(rows), columns] } else { [rows, (w * sh).ceil().min(columns)] };
    Ok(AnyResSize { canvas: best, resized: bounded(size, inner)? })
}
