//! Section 5: the tokens of the selected patches.

use std::ops::Range;

use super::PLANES;
use super::patches::{means, patches};

/// Packed tokens.
#[derive(Debug, PartialEq)]
pub struct Tokens {
    /// `[T, 13]`
    pub tokens: Vec<f64>,
    /// `[K + 1]`
    pub cu_seqlens: Vec<i32>,
    /// `[K]`
    pub patch_id: Vec<i32>,
    /// `[T, 2]`
    pub position: Vec<f64>,
}

/// The tokens of the patches whose side is not 0.
pub fn compress(planes: &[f64], h: usize, w: usize, patch: usize, sides: &[u32]) -> Tokens {
    let mut packed = Tokens { tokens: Vec::new(), cu_seqlens: vec![0], patch_id: Vec::new(), position: Vec::new() };
    for (id, (rows, columns)) in patches(h, w, patch).into_iter().enumerate() {
        let n = sides[id] as usize;
        if n == 0 {
            continue;
        }
        for cy in 0..n {
            for cx in 0..n {
                let ys = cell(&rows, cy, n);
                let xs = cell(&columns, cx, n);
                packed.position.push((ys.start + ys.end) as f64 / 2.0 / h as f64);
                packed.position.push((xs.start + xs.end) as f64 / 2.0 / w as f64);
                packed.tokens.extend(means(planes, h, w, ys, xs));
            }
        }
        packed.patch_id.push(id as i32);
        packed.cu_seqlens.push((packed.tokens.len() / PLANES) as i32);
    }
    packed
}

/// The pixels of cell `c` of `n` along one axis of a patch; neighbors share a pixel where `n` does
/// not divide.
fn cell(extent: &Range<usize>, c: usize, n: usize) -> Range<usize> {
    let length = extent.len();
    extent.start + c * length / n..extent.start + ((c + 1) * length).div_ceil(n)
}
