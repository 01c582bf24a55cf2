//! From pixels on the device to tokens on the device: the work of a batch, and the memory it takes.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::cast_slice;
use thalweg::simt::{Element, bf16, f16};

use thalweg::{Brand, DeviceBuffer, DeviceSlice, Error, LiveBrand, Resource, Result, Stream};

use crate::allocate::Capacity;
use crate::kernels::{
    self, BatchLayout, Budget, ParticipatoryMut, RelevanceMut, Salience, Scores, Selection, SelectionMut, TokensMut,
};
use crate::{Head, PLANES, Query, TokenParams};

/// The format of the numbers of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum TokenPrecision {
    /// 32-bit floats.
    #[default]
    F32,
    /// IEEE half precision, rounded to nearest, ties to even.
    F16,
    /// bfloat16, rounded to nearest, ties to even.
    Bf16,
}

impl TokenPrecision {
    /// The bytes of a number.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// A head and a query in the form that the kernels take, and the source of the weights of the three
/// scores.
#[derive(Clone, Debug)]
pub(crate) struct Coupling {
    pub(crate) weights: Vec<f32>,
    pub(crate) mix: Mix,
}

/// The source of the weights of the three scores.
#[derive(Clone, Debug)]
pub(crate) enum Mix {
    Fixed([f32; 3]),
    Balancer { predictor: Vec<f32>, tensions: bool },
}

/// The parts of the results of a batch, in the order in which they lie.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Counts,
    ImageCuSeqlens,
    ImageCuPatches,
    Sides,
    Relevance,
    Entropy,
    Salience,
    Participatory,
    Mix,
    Features,
    CuSeqlens,
    PatchId,
    Position,
    Tokens,
}
const PARTS: usize = Part::Tokens as usize + 1;

/// Parts start at multiples of this many words, which are 16 bytes.
const ALIGNED: usize = 4;

/// Lays parts of these lengths one after another, each aligned. Returns their ranges and the length
/// of the whole.
fn lay<const K: usize>(lengths: [usize; K]) -> ([Range<usize>; K], usize) {
    let mut end = 0;
    let ranges = lengths.map(|len| {
        let start = usize::next_multiple_of(end, ALIGNED);
        end = start + len;
        start..end
    });
    (ranges, end)
}

/// Views the words of tokens as numbers.
fn numbers<S, T: Element>(words: &mut DeviceSlice<S, u32>, tokens: usize) -> Result<&mut DeviceSlice<S, T>> {
    // If the number of halves is odd, the last word is only half used.
    Ok(words.cast_mut().slice_mut(..PLANES * tokens)?)
}

/// The numbers of tokens on the device, in the [`TokenPrecision`] of the pipeline.
pub enum DeviceTokenValues<'a, S> {
    /// 32-bit floats.
    F32(&'a DeviceSlice<S, f32>),
    /// IEEE halves.
    F16(&'a DeviceSlice<S, f16>),
    /// bfloat16 numbers.
    Bf16(&'a DeviceSlice<S, bf16>),
}

impl<S> Clone for DeviceTokenValues<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for DeviceTokenValues<'_, S> {}

impl<S> std::fmt::Debug for DeviceTokenValues<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::F32(numbers) => f.debug_tuple("F32").field(numbers).finish(),
            Self::F16(numbers) => f.debug_tuple("F16").field(numbers).finish(),
            Self::Bf16(numbers) => f.debug_tuple("Bf16").field(numbers).finish(),
        }
    }
}

/// The sizes that follow from the sizes of a batch and the parameters, before there is an image.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) params: TokenParams,
    pub(crate) layout: BatchLayout,
    pub(crate) precision: TokenPrecision,
    capacity: Capacity,
    coupled: bool,
    /// Whether a balancer weighs the scores, and whether it does by tensions.
    balanced: bool,
    tensions: bool,
    /// The places of the table, the gains, the coupling and the predictor in the constants, in
    /// words.
    constants: [Range<usize>; 4],
    results: [Range<usize>; PARTS],
    words: usize,
}

/// The places of the results in the words of [`WorkspaceOn::results`], for a program that copies
/// all of them at once. [`Pipeline::result_layout`](crate::Pipeline::result_layout) computes it
/// from the sizes of the images.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResultLayout {
    /// The number of words together.
    pub words: usize,
    /// T and K, as [`WorkspaceOn::counts`] has them.
    pub counts: Range<usize>,
    /// The numbers of [`WorkspaceOn::image_cu_seqlens`].
    pub image_cu_seqlens: Range<usize>,
    /// The numbers of [`WorkspaceOn::cu_seqlens`].
    pub cu_seqlens: Range<usize>,
    /// The numbers of [`WorkspaceOn::patch_id`].
    pub patch_id: Range<usize>,
    /// The numbers of [`WorkspaceOn::position`].
    pub position: Range<usize>,
    /// The words of [`WorkspaceOn::tokens`]. Of an odd number of halves, the last word is only half
    /// used.
    pub tokens: Range<usize>,
    /// The rows of `tokens` and of `position`, of which the first T count.
    pub capacity: usize,
}

impl Plan {
    fn new(
        params: &TokenParams,
        layout: BatchLayout,
        precision: TokenPrecision,
        coupling: Option<&Coupling>,
        constants: [Range<usize>; 4],
    ) -> Result<Self> {
        let (images, patches) = (layout.images() as usize, layout.patches() as usize);
        let capacity = Capacity::new(params, images, patches, layout.largest() as usize)?;
        let with_query = |len: usize| if coupling.is_some() { len } else { 0 };
        let (results, words) = lay([
            2,
            images + 1,
            images + 1,
            patches,
            patches,
            patches,
            patches,
            with_query(patches),
            with_query(3 * images),
            PLANES * patches,
            capacity.selected + 1,
            capacity.selected,
            2 * capacity.tokens,
            (PLANES * capacity.tokens * precision.size()).div_ceil(4),
        ]);
        Ok(Self {
            params: params.clone(),
            precision,
            capacity,
            coupled: coupling.is_some(),
            balanced: matches!(coupling.map(|c| &c.mix), Some(Mix::Balancer { .. })),
            tensions: matches!(coupling.map(|c| &c.mix), Some(Mix::Balancer { tensions: true, .. })),
            constants,
            results,
            words,
            layout,
        })
    }

    /// Returns the places of the results for images of this layout.
    pub(crate) fn result_layout(
        params: &TokenParams,
        layout: BatchLayout,
        precision: TokenPrecision,
        coupling: Option<&Coupling>,
    ) -> Result<ResultLayout> {
        let plan = Self::new(params, layout, precision, coupling, [0; 4].map(|at| at..at))?;
        Ok(ResultLayout {
            words: plan.words,
            counts: plan.part(Part::Counts),
            image_cu_seqlens: plan.part(Part::ImageCuSeqlens),
            cu_seqlens: plan.part(Part::CuSeqlens),
            patch_id: plan.part(Part::PatchId),
            position: plan.part(Part::Position),
            tokens: plan.part(Part::Tokens),
            capacity: plan.capacity.tokens,
        })
    }

    /// Returns the place of a part of the results, in words.
    pub(crate) fn part(&self, part: Part) -> Range<usize> {
        self.results[part as usize].clone()
    }

    /// Splits the results into their parts.
    fn split<'a, S>(&self, results: &'a mut DeviceSlice<S, u32>) -> [&'a mut DeviceSlice<S, u32>; PARTS] {
        let (mut rest, mut at) = (Some(results), 0);
        self.results.each_ref().map(|range| {
            let part = rest.take().and_then(|whole| whole.split_at_mut(range.end - at).ok());
            let Some((own, others)) = part else { unreachable!("the results are as long as the parts together") };
            (rest, at) = (Some(others), range.end);
            let start = own.len() - range.len();
            let Ok(own) = own.slice_mut(start..) else { unreachable!("a part is as long as its range or longer") };
            own
        })
    }

    /// The words of all results.
    pub(crate) fn words(&self) -> usize {
        self.words
    }
}

/// Device memory for the tokens of a batch of images.
/// [`Pipeline::workspace`](crate::Pipeline::workspace) makes it.
///
/// Its size depends only on the sizes of the images and on the settings of the pipeline. So it
/// serves any number of batches of those sizes, and the work on it can be captured in a
/// [`Graph`](thalweg::Graph).
#[derive(Debug, Resource)]
pub struct Workspace {
    constants: DeviceBuffer<u32>,
    summaries: DeviceBuffer<f32>,
    pub(crate) results: DeviceBuffer<u32>,
    #[resource(plain)]
    pub(crate) plan: Arc<Plan>,
}

impl<S: LiveBrand> WorkspaceOn<S> {
    /// Makes the memory and enqueues the copies of the constants. Waits for nothing.
    pub(crate) fn new(
        stream: &Stream<S>,
        params: &TokenParams,
        layout: BatchLayout,
        precision: TokenPrecision,
        gains: &[u32],
        coupling: Option<&Coupling>,
    ) -> Result<Self> {
        let (images, patches) = (layout.images() as usize, layout.patches() as usize);
        let weights = coupling.map_or(&[][..], |c| &c.weights);
        let (predictor, mix) = match coupling.map(|c| &c.mix) {
            Some(Mix::Balancer { predictor, .. }) => (&predictor[..], [0.0; 3]),
            Some(Mix::Fixed(mix)) => (&[][..], *mix),
            None => (&[][..], [0.0; 3]),
        };
        let parts: [&[u32]; 4] = [layout.table(), gains, cast_slice(weights), cast_slice(predictor)];
        let (constants, words) = lay(parts.map(<[u32]>::len));
        let mut packed = vec![0; words];
        for (part, range) in parts.iter().zip(&constants) {
            packed[range.clone()].copy_from_slice(part);
        }

        let summaries = if coupling.is_some() { 12 * (patches / 64 + images) } else { 0 };
        let plan = Plan::new(params, layout, precision, coupling, constants)?;
        let upload = |data: &[u32], to: &mut DeviceSlice<S, u32>| {
            let staged = stream.bind(stream.device().pinned_from(data)?)?;
            stream.copy_to_device(&staged, to)
        };
        // Zeroed, because the download copies all of it, while the kernels write only T rows of
        // tokens.
        let mut results = stream.alloc_zeroed(plan.words)?;
        if plan.coupled {
            let all: Vec<u32> = (0..images).flat_map(|_| mix.map(f32::to_bits)).collect();
            upload(&all, results.slice_mut(plan.part(Part::Mix))?)?;
        }
        let mut constants = stream.alloc(packed.len())?;
        upload(&packed, &mut constants)?;
        Ok(Self { constants, summaries: stream.alloc(summaries)?, results, plan: Arc::new(plan) })
    }
}

impl<S: LiveBrand> WorkspaceOn<S> {
    /// Changes the query for the batches that are enqueued from now on. The workspace is that of a
    /// pipeline [with a query](crate::Pipeline::with_query), and `head` is the pipeline's. The copy
    /// is enqueued; the host waits for nothing.
    ///
    /// ```
    /// use thalweg::{Device, Size, stream_tags};
    /// use thalweg_vision::{Head, Layer, TokenParams, Pipeline, Query};
    ///
    /// stream_tags!(Work);
    /// let work = Device::best()?.stream::<Work>()?;
    /// let (w1, b1) = ([0.1f32; 64 * 13], [0.0f32; 64]);
    /// let (w2, b2) = ([0.1f32; 8 * 64], [0.0f32; 8]);
    /// let head = Head::new(Layer { weight: &w1, bias: &b1 }, Layer { weight: &w2, bias: &b2 })?;
    /// let (first, other) = (Query::new(&[1.0; 8])?, Query::new(&[-1.0; 8])?);
    /// let pipeline = Pipeline::new(work.device(), TokenParams::default().with_budget(500))?.with_query(&head, &first)?;
    /// let rgb = work.alloc_zeroed::<u8>(3 * 64 * 64)?;
    /// let mut workspace = pipeline.workspace(&work, &[Size::new(64, 64)])?;
    /// workspace.enqueue(&work, &rgb)?; // with the first query
    /// workspace.set_query(&work, &head, &other)?;
    /// workspace.enqueue(&work, &rgb)?; // with the other one
    /// # Ok::<(), thalweg_vision::Error>(())
    /// ```
    ///
    /// # Errors
    /// The query has another dimension than the head, the pipeline has no query, or a head of
    /// another form ([`Error::Parameter`](thalweg::Error::Parameter)), or the device has failed.
    pub fn set_query(&mut self, stream: &Stream<S>, head: &Head, query: &Query) -> crate::Result<()> {
        self.replace_queries(stream, head, std::slice::from_ref(query), true)
    }

    /// Changes the queries for the batches that are enqueued from now on: one for each image of a
    /// workspace [for queries](crate::Pipeline::workspace_for_queries), or one. `head` is the
    /// pipeline's. The copy is enqueued; the host waits for nothing.
    ///
    /// ```
    /// use thalweg::{Device, Size, stream_tags};
    /// use thalweg_vision::{Head, Layer, TokenParams, Pipeline, Query};
    ///
    /// stream_tags!(Work);
    /// let work = Device::best()?.stream::<Work>()?;
    /// let (w1, b1) = ([0.1f32; 64 * 13], [0.0f32; 64]);
    /// let (w2, b2) = ([0.1f32; 8 * 64], [0.0f32; 8]);
    /// let head = Head::new(Layer { weight: &w1, bias: &b1 }, Layer { weight: &w2, bias: &b2 })?;
    /// let (first, other) = (Query::new(&[1.0; 8])?, Query::new(&[-1.0; 8])?);
    /// let pipeline = Pipeline::new(work.device(), TokenParams::default().with_budget(500))?.with_query(&head, &first)?;
    /// let mut workspace = pipeline.workspace_for_queries(&work, &[Size::new(64, 64); 2])?;
    /// workspace.set_queries(&work, &head, &[first, other])?; // of two images
    /// # Ok::<(), thalweg_vision::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`set_query`](Self::set_query), or there are more or fewer queries.
    pub fn set_queries(&mut self, stream: &Stream<S>, head: &Head, queries: &[Query]) -> crate::Result<()> {
        self.replace_queries(stream, head, queries, false)
    }

    /// Replaces the queries of all images by these, or by one that is `repeated` for each.
    fn replace_queries(
        &mut self,
        stream: &Stream<S>,
        head: &Head,
        queries: &[Query],
        repeated: bool,
    ) -> crate::Result<()> {
        if !self.plan.coupled {
            let (given, expected) = ("one".into(), "none: the pipeline was made without a query".into());
            return Err(Error::Parameter { name: "query", given, expected }.into());
        }
        let [.., weights, predictor] = &self.plan.constants;
        // A pipeline whose weights of the scores are fixed does not use the balancer of its head.
        let tensions = if self.plan.balanced { head.has_tensions() } else { self.plan.tensions };
        if tensions != self.plan.tensions {
            let says = |tensions| if tensions { "tensions" } else { "a softmax" };
            let (given, expected) = (says(tensions).into(), format!("a balancer by {}", says(self.plan.tensions)));
            return Err(Error::Parameter { name: "head", given, expected }.into());
        }
        let (mut coupling, mut balances) = (Vec::new(), Vec::new());
        for query in queries {
            coupling.extend(head.projection(query)?);
            if self.plan.balanced {
                balances.extend(head.balancer_weights(query)?.unwrap_or_default());
            }
        }
        if repeated {
            for (numbers, len) in [(&mut coupling, weights.len()), (&mut balances, predictor.len())] {
                *numbers = numbers.repeat(len / numbers.len().max(1));
            }
        }
        if coupling.len() != weights.len() || balances.len() != predictor.len() {
            let given = format!("{} and {} numbers", coupling.len(), balances.len());
            let expected = format!("the {} and {} of the pipeline's own query", weights.len(), predictor.len());
            let (name, given) = match repeated {
                true => ("head", given),
                false => ("queries", format!("{} of {given} together", queries.len())),
            };
            return Err(Error::Parameter { name, given, expected }.into());
        }
        for (data, range) in [(coupling, weights.clone()), (balances, predictor.clone())] {
            if !data.is_empty() {
                let staged = stream.bind(stream.device().pinned_from::<u32>(cast_slice(&data))?)?;
                stream.copy_to_device(&staged, self.constants.slice_mut(range)?)?;
            }
        }
        Ok(())
    }
}

impl<S: Brand> WorkspaceOn<S> {
    /// Enqueues the work that makes tokens of the images in `rgb`, which has [`BatchLayout::bytes`]
    /// bytes. No stage waits for the host. The results stay on the device until the next call.
    ///
    /// # Errors
    /// `rgb` has another length, or the device has failed.
    pub fn enqueue(&mut self, stream: &Stream<S>, rgb: &DeviceSlice<S, u8>) -> Result<()> {
        self.enqueue_marked(stream, rgb, || Ok(()))
    }

    /// Works like [`enqueue`](Self::enqueue), and calls `mark` after each stage.
    pub(crate) fn enqueue_marked(
        &mut self,
        stream: &Stream<S>,
        rgb: &DeviceSlice<S, u8>,
        mut mark: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let plan = &*self.plan;
        let (params, capacity) = (&plan.params, &plan.capacity);
        let [table, gains, weights, predictor] =
            plan.constants.each_ref().map(|range| self.constants.slice(range.clone()));
        let (table, gains, weights, predictor) = (table?, gains?, weights?.cast(), predictor?.cast());
        let [
            counts,
            image_cu_seqlens,
            image_cu_patches,
            sides,
            relevance,
            entropy,
            salience,
            participatory,
            mix,
            features,
            cu_seqlens,
            patch_id,
            position,
            tokens,
        ] = plan.split(&mut self.results);
        let (batch, pixels) = (plan.layout.batch(table), plan.layout.pixels(rgb, params.fixation));
        let [features, entropy, relevance, salience] =
            [features, entropy, relevance, salience].map(DeviceSlice::cast_mut);
        kernels::analyze(stream, &batch, &pixels, features, entropy)?;
        mark()?;

        if plan.coupled {
            let (participatory, mix, summaries) = (participatory.cast_mut(), mix.cast_mut(), &mut *self.summaries);
            let how = Salience { edge: kernels::EDGE, least_peak: 0.0, foveal_bias: params.foveal_bias };
            let out = ParticipatoryMut { participatory, salience, summaries };
            kernels::participatory(stream, &batch, how, features, entropy, weights, out)?;
            if plan.balanced {
                kernels::balance(stream, &batch, summaries, predictor, plan.tensions, mix)?;
            }
            let scores = Scores { entropy, participatory, summaries, mix };
            kernels::relevance_with_query(stream, &batch, &scores, RelevanceMut { salience, relevance })?;
        } else {
            let [by_entropy, by_salience, _] = params.mix.unwrap_or([0.5, 0.5, 0.0]);
            let (mix, out) = ([by_entropy, by_salience], RelevanceMut { salience, relevance });
            kernels::relevance(stream, &batch, params.foveal_bias, mix, features, entropy, out)?;
        }
        mark()?;

        let [sides, cu_seqlens, patch_id, image_cu_seqlens, image_cu_patches] =
            [sides, cu_seqlens, patch_id, image_cu_seqlens, image_cu_patches].map(DeviceSlice::cast_mut);
        let (lo, hi) = params.side_bounds();
        let budget = Budget { lo, hi, tokens: capacity.budget };
        let out = SelectionMut { sides, cu_seqlens, patch_id, counts, image_cu_seqlens, image_cu_patches };
        kernels::allocate(stream, &batch, budget, relevance, gains, out)?;
        mark()?;

        let selection = Selection { sides, cu_seqlens, patch_id, counts, most: capacity.selected as u32 };
        let position = position.cast_mut();
        macro_rules! compress {
            ($kernel:ident) => {{
                let tokens = numbers(tokens, capacity.tokens)?;
                let out = TokensMut { tokens, position, capacity: capacity.tokens as u32 };
                kernels::$kernel(stream, &batch, &pixels, &selection, out)
            }};
        }
        match plan.precision {
            TokenPrecision::F32 => compress!(compress_fused),
            TokenPrecision::F16 => compress!(compress_fused_f16),
            TokenPrecision::Bf16 => compress!(compress_fused_bf16),
        }?;
        mark()
    }

    /// All results, one after another, as [`ResultLayout`] says: for a program that copies them at
    /// once.
    pub fn results(&self) -> &DeviceSlice<S, u32> {
        &self.results
    }

    /// T and K, the numbers of tokens and of selected patches.
    pub fn counts(&self) -> &DeviceSlice<S, u32> {
        self.view(Part::Counts)
    }

    /// `[capacity, 13]`: the tokens, in the [`TokenPrecision`] of the pipeline. Only the first T
    /// rows count ([`counts`](Self::counts)).
    pub fn tokens(&self) -> DeviceTokenValues<'_, S> {
        match self.plan.precision {
            TokenPrecision::F32 => DeviceTokenValues::F32(self.numbers()),
            TokenPrecision::F16 => DeviceTokenValues::F16(self.numbers()),
            TokenPrecision::Bf16 => DeviceTokenValues::Bf16(self.numbers()),
        }
    }

    /// The numbers of the tokens. If the number of halves is odd, the last word is only half used.
    fn numbers<T: Element>(&self) -> &DeviceSlice<S, T> {
        match self.view(Part::Tokens).slice(..PLANES * self.plan.capacity.tokens) {
            Ok(numbers) => numbers,
            Err(_) => unreachable!("the part of the tokens has room for all of them"),
        }
    }

    /// `[capacity, 2]`: the center of each token's cell, (y, x) as fractions of height and width.
    /// Only the first T rows count ([`counts`](Self::counts)).
    pub fn position(&self) -> &DeviceSlice<S, f32> {
        self.view(Part::Position)
    }

    /// `[most patches that can be selected + 1]`: where the tokens of each selected patch start.
    /// All numbers from the one at K on are T. Variable-length attention takes its offsets in this
    /// form.
    pub fn cu_seqlens(&self) -> &DeviceSlice<S, i32> {
        self.view(Part::CuSeqlens)
    }

    /// `[most patches that can be selected]`: the index of each of the K selected patches among the
    /// patches of all images, followed by -1.
    pub fn patch_id(&self) -> &DeviceSlice<S, i32> {
        self.view(Part::PatchId)
    }

    /// `[images + 1]`: where the tokens of each image start, and the end.
    pub fn image_cu_seqlens(&self) -> &DeviceSlice<S, i32> {
        self.view(Part::ImageCuSeqlens)
    }

    /// `[N]`: the side of the tokens of each patch, or 0, image after image.
    pub fn sides(&self) -> &DeviceSlice<S, i32> {
        self.view(Part::Sides)
    }

    /// `[N]`: the relevance of each patch, image after image.
    pub fn relevance(&self) -> &DeviceSlice<S, f32> {
        self.view(Part::Relevance)
    }

    /// `[N, 13]`: the mean of each plane over each patch, image after image.
    pub fn features(&self) -> &DeviceSlice<S, f32> {
        self.view(Part::Features)
    }

    /// `[N]`: the entropy of each patch, 0 to 1, image after image.
    pub fn entropy(&self) -> &DeviceSlice<S, f32> {
        self.view(Part::Entropy)
    }

    /// `[N]`: the salience of each patch, 0 to 1, image after image.
    pub fn salience(&self) -> &DeviceSlice<S, f32> {
        self.view(Part::Salience)
    }

    fn view<T: Element>(&self, part: Part) -> &DeviceSlice<S, T> {
        match self.results.slice(self.plan.part(part)) {
            Ok(words) => words.cast(),
            Err(_) => unreachable!("the results were made as long as the parts together"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceTokenValues, TokenPrecision};
    use crate::{Image, Pipeline, PipelineOptions, TokenParams};
    use thalweg::{Device, Result, stream_tags};

    stream_tags!(Work);

    /// The tokens on the device are those of the pipeline, in its precision.
    #[test]
    fn tokens_have_the_type_of_the_precision() -> Result<()> {
        let device = Device::new_cpu()?;
        let work = device.stream::<Work>()?;
        let image = Image::new(48, 70, (0..48 * 70 * 3).map(|i| (i * 31 % 251) as u8).collect())?;
        for precision in [TokenPrecision::F32, TokenPrecision::F16, TokenPrecision::Bf16] {
            let options = PipelineOptions::default().with_precision(precision);
            let pipeline = Pipeline::with_options(device, TokenParams::default().with_budget(301), options)?;
            let want = pipeline.run(std::slice::from_ref(&image)).remove(0)?;
            let rgb = work.upload_blocking(image.rgb())?;
            let mut workspace = pipeline.workspace(&work, &[image.size()])?;
            workspace.enqueue(&work, &rgb)?;
            let (numbers, bits) = (want.tokens.len(), want.halves.unwrap_or_default());
            match workspace.tokens() {
                DeviceTokenValues::F32(tokens) => {
                    assert_eq!(precision, TokenPrecision::F32);
                    assert_eq!(work.read_blocking(tokens.slice(..numbers)?)?, want.tokens);
                }
                DeviceTokenValues::F16(tokens) => {
                    assert_eq!(precision, TokenPrecision::F16);
                    let tokens = work.read_blocking(tokens.slice(..numbers)?)?;
                    assert_eq!(tokens.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), bits);
                }
                DeviceTokenValues::Bf16(tokens) => {
                    assert_eq!(precision, TokenPrecision::Bf16);
                    let tokens = work.read_blocking(tokens.slice(..numbers)?)?;
                    assert_eq!(tokens.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), bits);
                }
            }
        }
        Ok(())
    }
}
