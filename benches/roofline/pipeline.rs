//! The whole pipeline, from pinned images to tokens on the host, sustained: several images under way at once.

use std::collections::VecDeque;
use std::time::Instant;

use thalweg::PinnedBuffer;
use thalweg::vision::{Params, Pipeline};

use crate::Result;
use crate::bencher::{Bencher, micros};
use crate::images::{Content, Photo, Size};
use crate::limits::Limits;
use crate::record::Row;

const NAME: &str = "pinned image to tokens, frames";
/// Images under way.
const DEPTH: usize = 4;
/// Bytes of page-locked images that a run goes through.
const BYTES: usize = 1 << 30;

pub(crate) fn measure(bench: &mut Bencher, limits: &Limits, size: Size, content: Content, photo: &Photo) -> Result {
    if !bench.wants(NAME) {
        return Ok(());
    }
    let data = content.pixels(Size { images: 1, ..size }, photo);
    let images = if bench.is_gpu() { (BYTES / data.len()).clamp(8, 128) } else { 4 };
    let mut pipeline = Pipeline::new(bench.device, Params::default())?;
    let pinned =
        || -> Result<Vec<PinnedBuffer<u8>>> { (0..images).map(|_| Ok(bench.device.pinned_from(&data)?)).collect() };
    // The first round fills the pools.
    run(&mut pipeline, size, pinned()?)?;
    let frames = pinned()?;
    let start = Instant::now();
    run(&mut pipeline, size, frames)?;
    let us = micros(Some(start.elapsed())) / images as f64;
    bench.record.push(Row {
        section: "pipeline".into(),
        name: NAME.into(),
        by: "thalweg".into(),
        content: content.name().into(),
        size: size.name.into(),
        us,
        us_in_a_row: None,
        bytes: Some(data.len() as f64),
        limit: Some(limits.upload(data.len())),
        images: Some(1.0),
    });
    Ok(())
}

fn run(pipeline: &mut Pipeline, size: Size, frames: Vec<PinnedBuffer<u8>>) -> Result {
    let mut under_way = VecDeque::new();
    for frame in frames {
        if under_way.len() == DEPTH
            && let Some(first) = under_way.pop_front()
        {
            settle(pipeline, first)?;
        }
        under_way.push_back(pipeline.submit(size.height, size.width, frame)?);
    }
    under_way.into_iter().try_for_each(|submitted| settle(pipeline, submitted))
}

fn settle(pipeline: &mut Pipeline, submitted: thalweg::vision::Submitted) -> Result {
    let tokens = pipeline.finish(submitted)?;
    assert_eq!(tokens.tokens.len(), 13 * tokens.len());
    assert!(!tokens.is_empty() && tokens.len() <= 4096, "{} tokens", tokens.len());
    Ok(())
}
