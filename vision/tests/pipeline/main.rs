//! Tests of the pipeline as a whole, on every device: what it computes for random images and
//! parameters, how it fails, and what becomes of work that nobody waits for.

mod allocation;
mod errors;
mod gates;
mod kept;
mod large;
mod memory;
mod query_streams;
mod results;
#[path = "../run.rs"]
mod run;
mod slots;
mod waiting;

use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::select;
use testkit::oracle::{self, Content, ImageSpec};
use thalweg::{AnyStream, Device, Event, kernel};
use thalweg_vision::{
    Frame, Image, Pipeline, PipelineOptions, TokenAllocation, TokenParams, TokenSet, Tokens, allocate_tokens_blocking,
};

use run::given;

thalweg::ptx! {}

kernel! {
    unsafe fn panics(cx: impl Simt)
    grid(1) block(1)
    {
        let _ = cx;
        panic!("on purpose")
    }
}

fn noise(height: usize, width: usize) -> oracle::Image {
    let seed = (height * 1000 + width) as u64;
    ImageSpec { height, width, content: Content::Noise, saturated: false, seed }.build()
}

/// Images of sizes that have little in common, and a constant one.
fn mixed() -> Vec<Image> {
    let sizes = [(1, 1), (200, 151), (1, 90), (33, 32), (31, 129), (90, 1), (64, 64), (2, 3), (97, 67), (5, 260)];
    let mut all: Vec<Image> = sizes.iter().map(|&(h, w)| given(&noise(h, w))).collect();
    all.push(Image::new(70, 40, vec![200; 3 * 70 * 40]).unwrap());
    all
}

fn small_params() -> TokenParams {
    TokenParams::default().with_patch(16).with_sides(2..=6).with_budget(500)
}

/// A pipeline of the default depth that returns textures.
fn pipeline(device: Device, params: TokenParams) -> Pipeline {
    pipeline_with(device, params, PipelineOptions::default())
}

/// A pipeline of this depth that returns textures.
fn deep(device: Device, params: TokenParams, depth: usize) -> Pipeline {
    pipeline_with(device, params, PipelineOptions::default().with_depth(depth))
}

fn pipeline_with(device: Device, params: TokenParams, options: PipelineOptions) -> Pipeline {
    Pipeline::with_options(device, params, options.with_textures(true)).unwrap()
}

fn unwrap_all(results: Vec<thalweg::Result<TokenSet>>) -> Vec<TokenSet> {
    results.into_iter().map(Result::unwrap).collect()
}

fn allocate(device: Device, map: &[f32], params: &TokenParams) -> thalweg::Result<TokenAllocation> {
    AnyStream::new(device)?.enter(|stream| allocate_tokens_blocking(stream, map, params))
}

fn frame(pipeline: &Pipeline, images: &[Image]) -> thalweg::Result<Frame> {
    let sizes: Vec<_> = images.iter().map(|image| image.size()).collect();
    let mut frame = pipeline.frame(&sizes)?;
    for (i, image) in images.iter().enumerate() {
        frame.image_mut(i).copy_from_slice(image.rgb());
    }
    Ok(frame)
}

fn submit(pipeline: &Pipeline, image: &Image) -> thalweg::Result<Event<Tokens>> {
    pipeline.submit(frame(pipeline, std::slice::from_ref(image))?)
}

fn finish(pipeline: &Pipeline, submitted: Event<Tokens>) -> TokenSet {
    let tokens = submitted.synchronize().unwrap();
    let set = tokens.set(0);
    pipeline.recycle(tokens);
    set
}

fn params() -> impl Strategy<Value = TokenParams> {
    let patch = prop_oneof![1u32..70, select(vec![1, 8, 16, 31, 32, 33, 16384])];
    let sides = prop_oneof![Just((8, 20)), (1u32..20, 0u32..16).prop_map(|(lo, more)| (lo, lo + more))];
    let fixation = prop_oneof![Just([0.5f32, 0.5]), [0f32..=1.0, 0f32..=1.0]];
    let mix = prop::option::of((0f32..=1.0).prop_map(|part| [part, 1.0 - part, 0.0]));
    (patch, sides, 0u64..3000, 0.01..0.99, fixation, 0f32..=1.0, mix).prop_map(
        |(patch, (lo, hi), more, focus, fixation, foveal_bias, mix)| {
            TokenParams::default()
                .with_patch(patch)
                .with_sides(lo..=hi)
                .with_budget(u64::from(lo * lo) + more)
                .with_focus(focus)
                .with_fixation(fixation)
                .with_foveal_bias(foveal_bias)
                .with_mix(mix)
        },
    )
}

/// Asks again until there is an answer.
#[track_caller]
fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        thread::yield_now();
    }
}
