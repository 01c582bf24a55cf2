//! Strategies for property tests: a test draws an [`ImageSpec`], whose values shrink fast, and
//! builds the pixels from it.

use crate::oracle::{Content, ImageSpec};
use proptest::prelude::*;

/// Sizes next to a warp, a patch or a block of pixels, and the smallest.
const NASTY: [usize; 14] = [1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129];

/// Images of 1 to `max` pixels a side.
pub fn images(max: usize) -> impl Strategy<Value = ImageSpec> {
    let content = prop::sample::select(vec![
        Content::Constant,
        Content::Gradient,
        Content::Smooth,
        Content::TwoValued,
        Content::Noise,
    ]);
    (side(max), side(max), content, any::<bool>(), any::<u64>())
        .prop_map(|(height, width, content, saturated, seed)| ImageSpec { height, width, content, saturated, seed })
}

/// Lengths from 1 to `max`, the nasty ones as often as all others together.
pub fn side(max: usize) -> impl Strategy<Value = usize> {
    let nasty: Vec<usize> = NASTY.into_iter().filter(|&n| n <= max).collect();
    prop_oneof![1..=max, prop::sample::select(nasty)]
}
