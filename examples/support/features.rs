//! Computes what patches look like on average: an upload, two kernels and a download for each
//! image.

use thalweg::{Activity, Error, Event, LiveBrand, PinnedBuffer, Stream, Timeline};
use thalweg_vision::kernels;

/// Columns and rows of a patch.
const PATCH: u32 = 32;

/// An image, and the mean of each of its 13 planes over each patch.
pub type Done = (PinnedBuffer<u8>, PinnedBuffer<f32>);

/// Enqueues all work on a square image of `side` pixels a side.
pub fn features<S: LiveBrand>(
    s: &Stream<S>,
    side: u32,
    image: PinnedBuffer<u8>,
    timeline: &Timeline,
) -> Result<Event<Done>, Error> {
    let means = (13 * (side / PATCH) * (side / PATCH)) as usize;
    let (image, mut result) = s.bind((image, s.device().pinned(means)?))?;
    let (mut rgb, mut features) = (s.alloc(image.len())?, s.alloc(means)?);
    let mut planes = s.alloc((13 * side * side) as usize)?;
    timeline.span(s, Activity::Upload, "image", || s.copy_to_device(&image, &mut rgb))?;
    timeline.span(s, Activity::Compute, "textures, features", || {
        kernels::textures(s, side, side, 0.5, 0.5, &rgb, &mut planes)?;
        kernels::features(s, side, side, PATCH, &planes, &mut features)
    })?;
    timeline.span(s, Activity::Download, "features", || s.copy_to_host(&features, &mut result))?;
    Ok(s.record((image, result))?)
}
