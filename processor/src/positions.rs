//! Position embeddings that models interpolate for the grid of an image.

use thalweg::Size;

use crate::error::parameter;
use crate::grids::PatchGrid;
use crate::{Error, InputElement, Result};

/// A version of transformers, where the versions differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransformersVersion {
    /// Version 4.57.
    V4,
    /// Version 5.
    #[default]
    V5,
}

/// The four places of a table that each patch of Qwen3-VL is interpolated from, and their weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InterpolatedPlaces {
    /// The places of each patch in a table of `side * side` rows.
    pub indices: Vec<[i64; 4]>,
    /// Their weights.
    pub weights: Vec<[f32; 4]>,
}

/// A coordinate in a table: the places before and behind it, and its distance from the former.
type Coordinate = [(u32, f32); 2];

impl InterpolatedPlaces {
    /// Computes places and weights for a table of `side * side` positions, in the order of
    /// `pixel_values`. `side` is 48 in the files of Qwen3-VL.
    ///
    /// # Errors
    /// `side` or `merge` is 0.
    pub fn new(grids: &[PatchGrid], side: u32, merge: u32, version: TransformersVersion) -> Result<Self> {
        if side == 0 || merge == 0 {
            return Err(parameter("side and merge", format!("{side} and {merge}"), "at least 1"));
        }
        let mut all = Self::default();
        for grid in grids {
            let [rows, columns] = [grid.rows, grid.columns].map(|n| axis(side, n, version));
            for _ in 0..grid.frames {
                grid.each_patch(merge, |y, x| all.push(rows[y as usize], columns[x as usize], side));
            }
        }
        Ok(all)
    }

    fn push(&mut self, rows: Coordinate, columns: Coordinate, side: u32) {
        let corners = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(y, x)| (rows[y], columns[x]));
        self.indices.push(corners.map(|((y, _), (x, _))| i64::from(y * side + x)));
        self.weights.push(corners.map(|((_, y), (_, x))| y * x));
    }

    /// Interpolates a table of rows of `width` numbers: one row for each patch. Each operation is
    /// rounded to the type of the table.
    ///
    /// # Errors
    /// The table has fewer rows than places.
    pub fn embeddings<E: InputElement>(&self, table: &[E], width: usize) -> Result<Vec<E>> {
        let needed = self.indices.iter().flatten().max().map_or(0, |most| *most as usize + 1);
        if table.len() < needed.saturating_mul(width) {
            return Err(Error::Capacity {
                what: "positions",
                given: needed as u64,
                room: (table.len() / width) as u64,
            });
        }
        let rounded = |v: f32| E::from_number(v).to_number();
        let mut all = Vec::with_capacity(self.indices.len() * width);
        for (indices, weights) in self.indices.iter().zip(&self.weights) {
            let rows = indices.map(|i| &table[i as usize * width..][..width]);
            let weights = weights.map(rounded);
            all.extend((0..width).map(|d| {
                let [a, b, c, e]: [f32; 4] = std::array::from_fn(|k| rounded(rows[k][d].to_number() * weights[k]));
                E::from_number(rounded(rounded(a + b) + c) + e)
            }));
        }
        Ok(all)
    }
}

/// Returns the coordinates of `n` places in `side` positions.
fn axis(side: u32, n: u32, version: TransformersVersion) -> Vec<Coordinate> {
    let coordinate = |i| match version {
        TransformersVersion::V4 => linspace(side, n, i),
        TransformersVersion::V5 => (i as f32 * (side - 1) as f32) / n.saturating_sub(1).max(1) as f32,
    };
    let places = |at: f32| {
        let (before, distance) = (at as u32, at - (at as u32) as f32);
        [(before, 1.0 - distance), ((before + 1).min(side - 1), distance)]
    };
    (0..n).map(|i| places(coordinate(i))).collect()
}

/// Computes element `i` of torch's `linspace(0, side - 1, n)` on the CPU: from the front in the
/// first half and from the back in the second, each with one rounding.
fn linspace(side: u32, n: u32, i: u32) -> f32 {
    if n == 1 {
        return 0.0;
    }
    let end = (side - 1) as f32;
    let step = f64::from(end / (n - 1) as f32);
    let exact = if i < n / 2 { step * f64::from(i) } else { f64::from(end) - step * f64::from(n - 1 - i) };
    exact as f32
}

/// Resizes the position embeddings of SigLIP2, a table of `side * side` rows of `width` numbers, to
/// the grid of patches of each image: [images, `max_patches`, `width`]. Rows of padding
/// repeat the first one.
///
/// The numbers are those of torch's antialiased bilinear resize within 1e-6 for numbers of order 1.
///
/// # Errors
/// The table is no square, or an image has more than `max_patches` patches.
pub fn siglip2_positions(table: &[f32], width: usize, grids: &[Size], max_patches: usize) -> Result<Vec<f32>> {
    let side = (table.len() / width.max(1)).isqrt();
    if side == 0 || side * side * width != table.len() {
        return Err(parameter("table", format!("{} numbers", table.len()), "a square of rows"));
    }
    let mut all = Vec::with_capacity(grids.len() * max_patches * width);
    for &Size { height: rows, width: columns } in grids {
        let patches = rows as usize * columns as usize;
        if patches == 0 || patches > max_patches {
            return Err(Error::Capacity { what: "patches", given: patches as u64, room: max_patches as u64 });
        }
        let wide = resize_axis(table, [side, side, width], columns as usize);
        let own = resize_axis(&wide, [1, side, columns as usize * width], rows as usize);
        all.extend_from_slice(&own);
        (patches..max_patches).for_each(|_| all.extend_from_slice(&own[..width]));
    }
    Ok(all)
}

/// Resizes the middle dimension.
fn resize_axis(from: &[f32], [outer, samples, inner]: [usize; 3], outputs: usize) -> Vec<f32> {
    if samples == outputs {
        return from.to_vec();
    }
    let weights: Vec<_> = (0..outputs).map(|i| triangle(samples, outputs, i)).collect();
    let mut to = Vec::with_capacity(outer * outputs * inner);
    for block in from.chunks_exact(samples * inner).take(outer) {
        for (first, weights) in &weights {
            to.extend((0..inner).map(|d| {
                let products = weights.iter().enumerate().map(|(t, k)| block[(first + t) * inner + d] * k);
                products.reduce(|sum, product| sum + product).unwrap_or(0.0)
            }));
        }
    }
    to
}

/// Returns the first sample of output `i` and the weights of its samples, in floats.
fn triangle(samples: usize, outputs: usize, i: usize) -> (usize, Vec<f32>) {
    let scale = samples as f32 / outputs as f32;
    let support = scale.max(1.0);
    let inverse = 1.0 / support;
    let center = scale * (i as f32 + 0.5);
    let first = (center - support + 0.5) as usize;
    let end = ((center + support + 0.5) as usize).min(samples);
    let weight = |j: usize| (1.0 - ((j as f32 + (first as f32 - center) + 0.5) * inverse).abs()).max(0.0);
    let weights: Vec<f32> = (0..end - first).map(weight).collect();
    let total = weights.iter().fold(0.0, |sum, weight| sum + weight);
    (first, weights.into_iter().map(|weight| if total != 0.0 { weight / total } else { weight }).collect())
}
