//! The plain f64 reference of everything that the kernels compute.
//!
//! It consists of scalar loops in the order of the definitions in `docs/spec.md`, and it shares
//! nothing with the kernels. A file with definitions begins with the numbers of its sections.
//! Arrays are row-major; planes are `[13, H, W]`; there are `N` patches in raster order.
//! [`allocate`] takes the `f32` relevance that a run computed, because the allocation is an exact
//! function of it.
//!
//! [`ImageSpec`] draws the images that both kernel suites use, and [`assert_close`] compares what a
//! kernel computed with the reference.

mod allocate;
mod augment;
mod close;
mod compress;
mod gelu;
mod images;
mod patches;
mod profile;
mod scores;
mod textures;

pub use allocate::{allocate, gains, quantize};
pub use augment::{Augmented, Finished, augment, finish};
pub use close::{
    PLANE_ERROR, POSITION_ERROR, SCORE_ERROR, assert_close, assert_planes_close, max_error, relevance_error, wide,
};
pub use compress::{Tokens, compress};
pub use gelu::{erf, gelu};
pub use images::{Content, ImageSpec, SplitMix};
pub use patches::{entropy, features, grid, histograms};
pub use profile::{PROFILE_SIDE, Profile, arr_coc_0_1, profile_information, top};
pub use scores::{Layer, balance, balance_by_tensions, participatory, participatory_condition, relevance, salience};
pub use textures::textures;

/// The number of planes of the texture array.
pub const PLANES: usize = 13;

/// An sRGB image, interleaved `[H, W, 3]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    pub height: usize,
    pub width: usize,
    pub rgb: Vec<u8>,
}

impl Image {
    pub fn pixel(&self, y: usize, x: usize) -> [u8; 3] {
        let at = (y * self.width + x) * 3;
        [self.rgb[at], self.rgb[at + 1], self.rgb[at + 2]]
    }

    /// Luma in units of 1/255000 at a position that may lie one pixel outside: the border is
    /// replicated.
    fn luma(&self, y: isize, x: isize) -> i64 {
        let y = y.clamp(0, self.height as isize - 1) as usize;
        let x = x.clamp(0, self.width as isize - 1) as usize;
        let [r, g, b] = self.pixel(y, x).map(i64::from);
        299 * r + 587 * g + 114 * b
    }
}
