//! Measures the sustained rate of the whole pipeline, from pinned images to tokens on the host,
//! with several images in flight.

use std::collections::VecDeque;
use std::time::Instant;

use thalweg::Event;
use thalweg_vision::{Pipeline, TokenParams, Tokens};

use crate::Result;
use crate::bencher::{Bencher, micros};
use crate::images::{Content, Photo, Size};
use crate::limits::Limits;
use crate::record::Row;

pub(crate) const NAME: &str = "pinned image to tokens, frames";
/// The bytes of images that a run on a GPU processes, within bounds on the number of images.
const BYTES: usize = 8 << 30;

pub(crate) fn measure(bench: &mut Bencher, limits: &Limits, size: Size, content: Content, photo: &Photo) -> Result {
    if !bench.wants(NAME) {
        return Ok(());
    }
    let data = content.pixels(Size { images: 1, ..size }, photo);
    let images = if bench.is_gpu() { (BYTES / data.len()).clamp(64, 1024) } else { 4 };
    let pipeline = Pipeline::new(bench.device, TokenParams::default())?;
    // The first round captures the graphs and writes the image into the page-locked memory of each
    // frame. Later rounds find it there.
    let mut frames = (0..pipeline.depth())
        .map(|_| pipeline.frame(&[thalweg::Size::new(size.height, size.width)]))
        .collect::<thalweg::Result<Vec<_>>>()?;
    for frame in &mut frames {
        frame.image_mut(0).copy_from_slice(&data);
    }
    let first = frames.into_iter().map(|frame| pipeline.submit(frame)).collect::<thalweg::Result<Vec<_>>>()?;
    first.into_iter().try_for_each(|tokens| settle(&pipeline, tokens))?;
    run(&pipeline, size, 2 * pipeline.depth())?;
    let start = Instant::now();
    run(&pipeline, size, images)?;
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

fn run(pipeline: &Pipeline, size: Size, images: usize) -> Result {
    let mut under_way = VecDeque::with_capacity(pipeline.depth());
    for _ in 0..images {
        if under_way.len() == pipeline.depth()
            && let Some(first) = under_way.pop_front()
        {
            settle(pipeline, first)?;
        }
        under_way.push_back(pipeline.submit(pipeline.frame(&[thalweg::Size::new(size.height, size.width)])?)?);
    }
    under_way.into_iter().try_for_each(|tokens| settle(pipeline, tokens))
}

fn settle(pipeline: &Pipeline, tokens: Event<Tokens>) -> Result {
    let tokens = tokens.synchronize()?;
    assert!(!tokens.is_empty() && tokens.len() <= 4096, "{} tokens", tokens.len());
    pipeline.recycle(tokens);
    Ok(())
}
