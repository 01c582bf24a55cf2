//! The engine that turns photographs into results: the pipeline, or a profile that computes what
//! another project computes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use thalweg::{Device, Result, Size};
use thalweg_vision::{Head, Image, Pipeline, PipelineOptions, Query, TokenSet, arr_coc_0_1};

use crate::args::{Precision, TokensArgs};
use crate::output::Data::{F32, Half, I32};
use crate::output::Tensor;

/// Reads the head and the query that the flags name, if they name any.
pub(crate) fn query(args: &TokensArgs) -> Result<Option<(Head, Query)>, String> {
    let (Some(weights), Some(query)) = (&args.weights, &args.query) else {
        return Ok(None);
    };
    fn read<T>(flag: &str, path: &Path, parse: impl Fn(&[u8]) -> thalweg_vision::Result<T>) -> Result<T, String> {
        let wrong = |what: String| format!("{flag} {}: {what}", path.display());
        let bytes = fs::read(path).map_err(|e| wrong(format!("cannot read it: {e}")))?;
        parse(&bytes).map_err(|e| wrong(e.to_string()))
    }
    let head = read("--weights", weights, Head::from_safetensors)?;
    let query = read("--query", query, |bytes| {
        let query = Query::from_safetensors(bytes)?;
        head.projection(&query)?; // fails if the two do not fit together
        Ok(query)
    })?;
    Ok(Some((head, query)))
}

/// The pipeline or a profile, on a device.
pub(crate) enum Engine {
    Pipeline(Box<Pipeline>),
    Profile(arr_coc_0_1::Profile, Duration),
}

/// The result of an [`Engine`] for one image.
pub(crate) enum Outcome {
    Tokens(Box<TokenSet>),
    Maps(arr_coc_0_1::Maps),
}

impl Engine {
    pub(crate) fn new(
        device: Device,
        args: &TokensArgs,
        query: Option<&(Head, Query)>,
    ) -> thalweg_vision::Result<Self> {
        match (args.profile, query) {
            (Some(_), Some((head, query))) => {
                Ok(Self::Profile(arr_coc_0_1::Profile::new(device, head, query)?, Duration::ZERO))
            }
            _ => {
                let options = PipelineOptions::default()
                    .with_textures(args.textures)
                    .with_precision(args.precision.into())
                    .with_stages(true);
                let mut pipeline = Pipeline::with_options(device, args.params(), options)?;
                if let Some((head, query)) = query {
                    pipeline = pipeline.with_query(head, query)?;
                }
                Ok(Self::Pipeline(Box::new(pipeline)))
            }
        }
    }

    /// Returns a result or an error for each image.
    pub(crate) fn run(&mut self, images: &[Image]) -> Vec<Result<Outcome>> {
        match self {
            Self::Pipeline(pipeline) => {
                let sets = pipeline.run(images);
                sets.into_iter().map(|set| set.map(|set| Outcome::Tokens(Box::new(set)))).collect()
            }
            Self::Profile(profile, spent) => {
                let begin = Instant::now();
                let done = match profile.run(images) {
                    Ok(maps) => maps.into_iter().map(|maps| Ok(Outcome::Maps(maps))).collect(),
                    Err(error) if images.len() < 2 => vec![Err(error)],
                    // There may be too little memory for all images together, but enough for each
                    // one alone.
                    Err(_) => {
                        let alone = |image| profile.run(std::slice::from_ref(image));
                        images.iter().map(|image| Ok(Outcome::Maps(alone(image)?.remove(0)))).collect()
                    }
                };
                *spent += begin.elapsed();
                done
            }
        }
    }

    /// Returns the time spent so far: for the pipeline, the device time of each stage; for a
    /// profile, wall time.
    pub(crate) fn stages(&self) -> Vec<(&'static str, Duration)> {
        match self {
            Self::Pipeline(pipeline) => pipeline.stages().named().to_vec(),
            Self::Profile(_, spent) => vec![("profile", *spent)],
        }
    }
}

impl Outcome {
    /// Returns the tensors of the file, in order of name.
    pub(crate) fn tensors(&self, size: Size, precision: Precision) -> Vec<Tensor<'_>> {
        match self {
            Self::Tokens(set) => {
                let [gh, gw] = set.grid.sides().map(|n| n as usize);
                let (selected, count) = (set.patch_id.len(), set.len());
                let mut tensors = vec![
                    ("cu_seqlens", I32(&set.cu_seqlens), vec![selected + 1]),
                    ("entropy", F32(&set.entropy), vec![gh, gw]),
                    ("features", F32(&set.features), vec![gh * gw, 13]),
                ];
                if let (Some(participatory), Some(mix)) = (&set.participatory, &set.mix) {
                    tensors.push(("mix", F32(mix), vec![3]));
                    tensors.push(("participatory", F32(participatory), vec![gh, gw]));
                }
                tensors.extend([
                    ("patch_id", I32(&set.patch_id), vec![selected]),
                    ("position", F32(&set.position), vec![count, 2]),
                    ("relevance", F32(&set.relevance), vec![gh, gw]),
                    ("salience", F32(&set.salience), vec![gh, gw]),
                    ("sides", I32(&set.sides), vec![gh, gw]),
                ]);
                if let Some(planes) = &set.textures {
                    let [height, width] = size.sides().map(|n| n as usize);
                    tensors.push(("textures", F32(planes), vec![13, height, width]));
                }
                let tokens = match &set.halves {
                    Some(bits) => Half(precision.dtype(), bits),
                    None => F32(&set.tokens),
                };
                tensors.push(("tokens", tokens, vec![count, 13]));
                tensors
            }
            Self::Maps(maps) => {
                let side = arr_coc_0_1::SIDE;
                vec![
                    ("information", F32(&maps.information), vec![side, side]),
                    ("participatory", F32(&maps.participatory), vec![side, side]),
                    ("perspectival", F32(&maps.perspectival), vec![side, side]),
                    ("relevance", F32(&maps.relevance), vec![side, side]),
                    ("textures", F32(&maps.textures), vec![13, side, side]),
                    ("topk", I32(&maps.topk), vec![maps.topk.len()]),
                ]
            }
        }
    }

    /// Returns the rows and columns of patches, the number of selected patches and the number of
    /// tokens.
    pub(crate) fn counts(&self) -> (Size, usize, usize) {
        match self {
            Self::Tokens(set) => (set.grid, set.patch_id.len(), set.len()),
            Self::Maps(maps) => ([arr_coc_0_1::SIDE as u32; 2].into(), maps.topk.len(), 0),
        }
    }

    /// Returns the weights of the three scores, if there is a query.
    pub(crate) fn mix(&self) -> Option<[f32; 3]> {
        match self {
            Self::Tokens(set) => set.mix,
            Self::Maps(maps) => Some(maps.mix),
        }
    }
}
