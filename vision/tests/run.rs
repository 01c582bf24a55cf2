//! A run of the pipeline against the f64 reference.

use testkit::oracle::{
    self, Image, PLANES, POSITION_ERROR, SCORE_ERROR, assert_close, assert_planes_close, relevance_error,
};
use thalweg_vision::{TokenParams, TokenSet};

/// The image as the pipeline takes it.
pub(crate) fn given(image: &Image) -> thalweg_vision::Image {
    thalweg_vision::Image::new(image.height as u32, image.width as u32, image.rgb.clone()).expect("a legal size")
}

/// The sides that the reference allocates for the run's own relevance.
pub(crate) fn reference_sides(run: &TokenSet, params: &TokenParams) -> Vec<u32> {
    let (lo, hi) = (*params.sides.start(), *params.sides.end());
    oracle::allocate(&run.relevance, lo, hi, params.budget, params.focus)
}

/// Checks everything about a run without a query: planes, where it kept them, and scores within
/// their errors; sides, bit for bit, from its own relevance; the rest from the sides.
#[track_caller]
pub(crate) fn check_run(what: &str, image: &Image, params: &TokenParams, run: &TokenSet) {
    let (h, w, patch) = (image.height, image.width, params.patch as usize);
    let (gh, gw) = oracle::grid(h, w, patch);
    let size = (run.height as usize, run.width as usize, run.patch, run.grid.sides().map(|n| n as usize));
    assert_eq!(size, (h, w, params.patch, [gh, gw]), "{what}: sizes");

    let planes = oracle::textures(image, params.fixation.map(f64::from));
    if let Some(textures) = &run.textures {
        assert_planes_close(what, textures, &planes);
    }
    let features = oracle::features(&planes, h, w, patch);
    let entropy = oracle::entropy(image, patch);
    let salience = oracle::salience(&features, f64::from(params.foveal_bias));
    let mix = params.mix.unwrap_or([0.5, 0.5, 0.0]).map(f64::from);
    let (relevance, spread) = oracle::relevance(&[&entropy, &salience], &mix[..2]);
    assert_close(&format!("{what}: features"), &run.features, &features, SCORE_ERROR);
    assert_close(&format!("{what}: entropy"), &run.entropy, &entropy, SCORE_ERROR);
    assert_close(&format!("{what}: salience"), &run.salience, &salience, SCORE_ERROR);
    assert_close(&format!("{what}: relevance"), &run.relevance, &relevance, relevance_error(spread));

    let sides = reference_sides(run, params);
    assert_eq!(run.sides, sides.iter().map(|&n| n as i32).collect::<Vec<_>>(), "{what}: sides");
    let packed = oracle::compress(&planes, h, w, patch, &sides);
    assert_eq!(run.cu_seqlens, packed.cu_seqlens, "{what}: cu_seqlens");
    assert_eq!(run.patch_id, packed.patch_id, "{what}: patch_id");
    assert_eq!(run.len(), packed.tokens.len() / PLANES, "{what}: number of tokens");
    assert_close(&format!("{what}: tokens"), &run.tokens, &packed.tokens, SCORE_ERROR);
    assert_close(&format!("{what}: position"), &run.position, &packed.position, POSITION_ERROR);
}
