//! The gate by which relevance learns: each token is multiplied by the balanced score of its patch,
//! so that gradients go to the query head and the balancer that made the score.

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, Resource, Stream};
use thalweg_kernels::train::{
    balance_backward, coupling, coupling_backward, gated, gated_backward, gates, relu, relu_backward, score_gradients,
    score_statistics, token_patches,
};

use crate::batch::{DevicePatches, Extent, FEATURES, Patches, upload};
use crate::error::{Error, Result};
use crate::layers::{BackwardPass, ForwardPass, Linear, WeightsRef};
use crate::layout::ParameterLayout;
use crate::precision::Precision;
use crate::tensors::Tensors;

/// The units of the hidden layer of the head, and those of the balancer's. They are those of
/// `docs/spec.md`, section 3.
const HIDDEN: usize = 64;
const BALANCER: usize = 128;
/// The statistics of the three scores, which the balancer sees before the query.
const STATISTICS: usize = 9;

/// The shape of a gate: of a query head and a balancer as those of `thalweg-vision`. The names of
/// their tensors are the same, so `Head::from_safetensors` reads them from the file of a model.
///
/// The gate of a patch is the weighted sum of its scores, `mix . (entropy, salience, (1 + cos(z,
/// q)) / 2)`, before it is scaled to the range of the image. `docs/training.md`, section "Relevance
/// that learns", has all formulas. How many tokens a patch gets is a choice of whole numbers, which
/// the gradients take as it is.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::{GateConfig, Gated, Patches, TokenBatch, TokenTransformer, TokenTransformerConfig};
///
/// stream_tags!(Train);
/// let config = TokenTransformerConfig::default()
///     .with_input_dim(1)
///     .with_embed_dim(16)
///     .with_num_heads(2)
///     .with_num_classes(2)
///     .with_gate(Some(GateConfig::default().with_query_dim(2)));
/// let mut model = TokenTransformer::<_, f32>::new(&Device::cpu()?.stream::<Train>()?, config, 7)?;
///
/// // An image of two patches, which differ in a feature, and a query.
/// let mut features = [0.0; 2 * 13];
/// (features[0], features[13 + 1]) = (1.0, 1.0);
/// let patches = Patches {
///     features: &features,
///     entropy: &[0.5, 0.5],
///     salience: &[0.5, 0.5],
///     cu_patches: &[0, 2],
///     patch: &[0, 0, 1], // two tokens of the first patch, and one of the second
///     query: &[1.0, 0.0],
/// };
/// let tokens = TokenBatch {
///     tokens: &[1.0, 1.0, -1.0],
///     position: &[0.0; 6],
///     cu_seqlens: &[0, 3],
///     labels: &[1],
/// };
/// let batch = Gated { batch: tokens, patches };
/// let before = model.tensors()?;
/// model.step(&batch)?;
/// let name = "participatory_scorer.texture_proj.0.weight";
/// assert_ne!(model.tensors()?.tensors[name], before.tensors[name]); // the head learns
/// assert_eq!(model.gated(&batch)?.len(), 3); // the tokens as the model sees them
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thalweg::__Setters)]
#[non_exhaustive]
pub struct GateConfig {
    /// The numbers of a query.
    pub query_dim: usize,
    /// Whether the balancer weighs the scores by three tensions between two of them, and not by a
    /// softmax.
    pub tensions: bool,
}

impl Default for GateConfig {
    /// Queries of 64 numbers, and a softmax.
    fn default() -> Self {
        Self { query_dim: 64, tensions: false }
    }
}

/// The name of the second layer of the head.
const PROJECTION: &str = "participatory_scorer.texture_proj.2";

impl GateConfig {
    /// Reads the shape of the gate from the file of a model, if it has one.
    pub(crate) fn from_tensors(file: &Tensors) -> Result<Option<Self>> {
        let name = format!("{PROJECTION}.weight");
        if !file.tensors.contains_key(&name) {
            return Ok(None);
        }
        let [query_dim, _] = file.matrix(&name, Some(HIDDEN))?;
        Ok(Some(Self { query_dim, tensions: file.value("tensions")?.unwrap_or(false) }))
    }

    pub(crate) fn check(this: Option<Self>) -> Result<()> {
        match this {
            Some(Self { query_dim: 0, .. }) => Err(Error::Config("queries of 0 numbers".into())),
            _ => Ok(()),
        }
    }

    /// Writes what [`from_tensors`](Self::from_tensors) reads from the metadata.
    pub(crate) fn describe(this: Option<Self>, file: &mut Tensors) {
        if let Some(Self { tensions, .. }) = this {
            file.metadata.insert("tensions".into(), tensions.to_string());
        }
    }
}

/// The places of the weights of a query head and a balancer.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    config: GateConfig,
    head: [Linear; 2],
    balancer: [Linear; 3],
}

/// The memory that a batch needs for its gates. All of it is `f32`, whatever the precision of the
/// model: the products are small, and gradients of scores are small differences of large ones.
#[derive(Debug, Resource)]
pub(crate) struct GatePass {
    features: DeviceBuffer<f32>,
    entropy: DeviceBuffer<f32>,
    salience: DeviceBuffer<f32>,
    ends: DeviceBuffer<i32>,
    patch: DeviceBuffer<i32>,
    query: DeviceBuffer<f32>,
    hidden: DeviceBuffer<f32>,
    z: DeviceBuffer<f32>,
    score: DeviceBuffer<f32>,
    /// The inputs of the balancer, its hidden layers, and its outputs.
    seen: DeviceBuffer<f32>,
    first: DeviceBuffer<f32>,
    second: DeviceBuffer<f32>,
    said: DeviceBuffer<f32>,
    peak: DeviceBuffer<i32>,
    gate: DeviceBuffer<f32>,
    /// The tokens that the model sees, and later their gradient.
    gated: DeviceBuffer<f32>,
    dgate: DeviceBuffer<f32>,
    dscore: DeviceBuffer<f32>,
    /// The gradients of rows of two layers that follow one another.
    d: [DeviceBuffer<f32>; 2],
}

impl<S: LiveBrand> GatePassOn<S> {
    pub(crate) fn new(s: &Stream<S>, config: GateConfig, inputs: usize, extent: Extent) -> thalweg::Result<Self> {
        let Extent { rows, sequences: b, patches: n, .. } = extent;
        let (dim, seen) = (config.query_dim, STATISTICS + config.query_dim);
        // The widest row of a patch, and of an image.
        let most = (n * FEATURES.max(HIDDEN).max(dim)).max(b * BALANCER.max(seen));
        let [of_image, gate, score, dgate, dscore] = [b * BALANCER, n, n, n, n];
        Ok(Self {
            features: s.alloc(n * FEATURES)?,
            entropy: s.alloc(n)?,
            salience: s.alloc(n)?,
            ends: s.alloc(b + 1)?,
            patch: s.alloc(rows)?,
            query: s.alloc(b * dim)?,
            hidden: s.alloc(n * HIDDEN)?,
            z: s.alloc(n * dim)?,
            score: s.alloc(score)?,
            seen: s.alloc(b * seen)?,
            first: s.alloc(of_image)?,
            second: s.alloc(of_image)?,
            said: s.alloc(3 * b)?,
            peak: s.alloc(b)?,
            gate: s.alloc(gate)?,
            gated: s.alloc(rows * inputs)?,
            dgate: s.alloc(dgate)?,
            dscore: s.alloc(dscore)?,
            d: [s.alloc(most)?, s.alloc(most)?],
        })
    }

    pub(crate) fn upload(&mut self, s: &Stream<S>, patches: &Patches<'_>) -> thalweg::Result<()> {
        upload(s, patches.features, &mut self.features)?;
        upload(s, patches.entropy, &mut self.entropy)?;
        upload(s, patches.salience, &mut self.salience)?;
        upload(s, patches.cu_patches, &mut self.ends)?;
        upload(s, patches.patch, &mut self.patch)?;
        upload(s, patches.query, &mut self.query)
    }

    /// Copies the patches of a batch on the device, and finds that of each token.
    pub(crate) fn take(
        &mut self,
        s: &Stream<S>,
        patches: &DevicePatches<'_, S>,
        extent: Extent,
    ) -> thalweg::Result<()> {
        let (n, rows, selected) = (extent.patches, extent.rows, patches.patch_id.len());
        s.copy(patches.features, self.features.slice_mut(..n * FEATURES)?)?;
        s.copy(patches.entropy, self.entropy.slice_mut(..n)?)?;
        s.copy(patches.salience, self.salience.slice_mut(..n)?)?;
        s.copy(patches.cu_patches, self.ends.slice_mut(..patches.cu_patches.len())?)?;
        s.copy(patches.query, self.query.slice_mut(..patches.query.len())?)?;
        let (ends, patch) = (patches.cu_seqlens, self.patch.slice_mut(..rows)?);
        token_patches(s, rows as u32, selected as u32, ends, patches.patch_id, patch)
    }
}

impl<S: Brand> GatePassOn<S> {
    /// Returns the tokens as the model sees them, [rows, inputs].
    pub(crate) fn tokens(&self, n: usize) -> thalweg::Result<&DeviceSlice<S, f32>> {
        Ok(self.gated.slice(..n)?)
    }

    /// Returns room for the gradient of these tokens.
    pub(crate) fn gradient(&mut self, n: usize) -> thalweg::Result<&mut DeviceSlice<S, f32>> {
        Ok(self.gated.slice_mut(..n)?)
    }
}

impl Gate {
    /// Adds the tensors to a layout.
    pub(crate) fn new(layout: &mut ParameterLayout, config: GateConfig) -> Result<Self> {
        let GateConfig { query_dim: dim, .. } = config;
        let mut linear = |name: &str, inputs, outputs| Linear::new(layout, name, inputs, outputs);
        Ok(Self {
            config,
            head: [linear("participatory_scorer.texture_proj.0", FEATURES, HIDDEN)?, linear(PROJECTION, HIDDEN, dim)?],
            balancer: [
                linear("balancer.weight_predictor.0", STATISTICS + dim, BALANCER)?,
                linear("balancer.weight_predictor.2", BALANCER, BALANCER)?,
                linear("balancer.weight_predictor.4", BALANCER, 3)?,
            ],
        })
    }

    /// Computes the gates, and the tokens that the model sees.
    pub(crate) fn forward<S: Brand, E: Precision>(
        &self,
        f: &mut ForwardPass<'_, S, E>,
        extent: Extent,
        tokens: &DeviceSlice<S, f32>,
        pass: &mut GatePassOn<S>,
    ) -> thalweg::Result<()> {
        let (s, Extent { rows, patches: n, .. }, b) = (f.stream, extent, extent.labeled());
        let (dim, tensions, inputs) = (self.config.query_dim, self.config.tensions, tokens.len() / rows);
        let (ends, query) = (pass.ends.slice(..=b)?, pass.query.slice(..b * dim)?);
        let features = pass.features.slice(..n * FEATURES)?;
        let (entropy, salience) = (pass.entropy.slice(..n)?, pass.salience.slice(..n)?);
        let weights = WeightsRef { values: f.weights.values, operands: f.weights.values };
        let mut f = ForwardPass::new(s, weights, f.matmul);
        let mut layer = |layer: &Linear, rows: usize, x: &DeviceSlice<S, f32>, y: &mut DeviceSlice<S, f32>| {
            layer.forward_f32(&mut f, rows, x, None, y)
        };
        let [hidden, z] = [&mut pass.hidden, &mut pass.z];
        let (hidden, z) = (hidden.slice_mut(..n * HIDDEN)?, z.slice_mut(..n * dim)?);
        layer(&self.head[0], n, features, hidden)?;
        relu(s, (n * HIDDEN) as u32, hidden)?;
        layer(&self.head[1], n, hidden, z)?;
        let [patches, images, columns] = [n, b, dim].map(|extent| extent as u32);
        let score = pass.score.slice_mut(..n)?;
        coupling(s, patches, columns, images, ends, z, query, score)?;

        let (seen, peak) = (pass.seen.slice_mut(..b * (STATISTICS + dim))?, pass.peak.slice_mut(..b)?);
        score_statistics(s, patches, columns, images, ends, entropy, salience, score, query, seen, peak)?;
        let [first, second] = [&mut pass.first, &mut pass.second];
        let (first, second) = (first.slice_mut(..b * BALANCER)?, second.slice_mut(..b * BALANCER)?);
        let said = pass.said.slice_mut(..3 * b)?;
        layer(&self.balancer[0], b, seen, first)?;
        relu(s, (b * BALANCER) as u32, first)?;
        layer(&self.balancer[1], b, first, second)?;
        relu(s, (b * BALANCER) as u32, second)?;
        layer(&self.balancer[2], b, second, said)?;

        let gate = pass.gate.slice_mut(..n)?;
        gates(s, patches, images, tensions, ends, entropy, salience, score, said, gate)?;
        let [rows, inputs] = [rows, inputs].map(|extent| extent as u32);
        let patch = pass.patch.slice(..rows as usize)?;
        gated(s, rows, inputs, patches, patch, gate, tokens, pass.gated.slice_mut(..tokens.len())?)
    }

    /// Computes the gradients of head and balancer. [`GatePassOn::gradient`] has that of the tokens
    /// that the model saw.
    pub(crate) fn backward<S: Brand, E: Precision>(
        &self,
        b: &mut BackwardPass<'_, S, E>,
        extent: Extent,
        tokens: &DeviceSlice<S, f32>,
        pass: &mut GatePassOn<S>,
    ) -> thalweg::Result<()> {
        let (s, Extent { rows, patches: n, .. }, count) = (b.stream, extent, extent.labeled());
        let (dim, tensions, inputs) = (self.config.query_dim, self.config.tensions, tokens.len() / rows);
        let (ends, query) = (pass.ends.slice(..=count)?, pass.query.slice(..count * dim)?);
        let (entropy, salience) = (pass.entropy.slice(..n)?, pass.salience.slice(..n)?);
        let (score, said) = (pass.score.slice(..n)?, pass.said.slice(..3 * count)?);
        let [patches, images, columns] = [n, count, dim].map(|extent| extent as u32);
        let dgate = pass.dgate.slice_mut(..n)?;
        let (patch, gradient) = (pass.patch.slice(..rows)?, pass.gated.slice(..tokens.len())?);
        gated_backward(s, rows as u32, inputs as u32, patches, patch, tokens, gradient, dgate)?;
        let [even, odd] = &mut pass.d;
        let &mut BackwardPass {
            weights: WeightsRef { values, .. },
            ref mut gradients,
            ref mut parts,
            ref mut matmul,
            add,
            ..
        } = b;
        let weights = WeightsRef { values, operands: values };
        let mut b = BackwardPass { stream: s, weights, gradients: &mut **gradients, parts, matmul, add };
        // The gradients of a layer from that of its rows `y`, and that of its rows `x`.
        let mut layer = |layer: &Linear,
                         rows: usize,
                         x: &DeviceSlice<S, f32>,
                         dy: &DeviceSlice<S, f32>,
                         dx: Option<&mut DeviceSlice<S, f32>>| {
            layer.backward_weight(&mut b, rows, x, dy)?;
            dx.map_or(Ok(()), |dx| layer.backward_input_f32(&mut b, rows, dy, dx))
        };

        let wide = count * BALANCER;
        let (first, second) = (pass.first.slice(..wide)?, pass.second.slice(..wide)?);
        let seen = pass.seen.slice(..count * (STATISTICS + dim))?;
        let dsaid = even.slice_mut(..3 * count)?;
        balance_backward(s, patches, images, tensions, ends, entropy, salience, score, dgate, said, dsaid)?;
        layer(&self.balancer[2], count, second, dsaid, Some(odd.slice_mut(..wide)?))?;
        relu_backward(s, wide as u32, second, odd.slice_mut(..wide)?)?;
        layer(&self.balancer[1], count, first, odd.slice(..wide)?, Some(even.slice_mut(..wide)?))?;
        relu_backward(s, wide as u32, first, even.slice_mut(..wide)?)?;
        let dseen = odd.slice_mut(..seen.len())?;
        layer(&self.balancer[0], count, seen, even.slice(..wide)?, Some(dseen))?;

        let (peak, dscore) = (pass.peak.slice(..count)?, pass.dscore.slice_mut(..n)?);
        score_gradients(s, patches, columns, images, tensions, ends, score, said, dgate, seen, dseen, peak, dscore)?;
        let (hidden, z) = (pass.hidden.slice(..n * HIDDEN)?, pass.z.slice(..n * dim)?);
        let dz = even.slice_mut(..n * dim)?;
        coupling_backward(s, patches, columns, images, ends, z, query, dscore, dz)?;
        let dhidden = odd.slice_mut(..n * HIDDEN)?;
        layer(&self.head[1], n, hidden, dz, Some(&mut *dhidden))?;
        relu_backward(s, (n * HIDDEN) as u32, hidden, dhidden)?;
        layer(&self.head[0], n, pass.features.slice(..n * FEATURES)?, dhidden, None)
    }
}
