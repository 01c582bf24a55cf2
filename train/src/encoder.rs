//! The image encoder: a vision transformer as timm's.

use thalweg::{Brand, DeviceBuffer, DeviceSlice, Graph, GraphCache, GraphWork, LiveBrand, On, Resource, Stream};

use crate::batch::upload;
use crate::error::{Error, Result};
use crate::layers::{
    ForwardPass, Gelu, Linear, PatchActivations, PatchActivationsOn, PatchEmbedding, Pooling, Sequences, Transformer,
    TransformerActivations, TransformerActivationsOn, TransformerConfig, Weights, WeightsOn, WeightsRef, patches_of,
};
use crate::layout::ParameterLayout;
use crate::matmul_backend::{Matmul, MatmulBackend, MatmulOn};
use crate::metadata::metadata;
use crate::precision::Precision;
use crate::tensors::Tensors;

/// The shape of an image encoder.
#[derive(Clone, Copy, Debug, PartialEq, thalweg::__Setters)]
#[non_exhaustive]
pub struct EncoderConfig {
    /// The pixels of a side of an image, which is square.
    pub image_size: usize,
    /// The pixels of a side of a patch.
    pub patch_size: usize,
    /// Whether a class token stands in front of the patches.
    pub class_token: bool,
    /// The numbers of a row between the blocks.
    pub embed_dim: usize,
    /// The heads of the attention.
    pub num_heads: usize,
    /// The number of blocks.
    pub depth: usize,
    /// The number of classes, or 0 if the encoder has no head.
    pub num_classes: usize,
    /// The number that is added to the variance in a norm.
    pub norm_eps: f32,
    /// The form of GELU.
    pub gelu: Gelu,
    /// The rows that the head sees.
    pub pooling: Pooling,
}

impl Default for EncoderConfig {
    /// The shape of timm's `vit_tiny_patch16_224`: 192 numbers a row, 3 heads, 12 blocks, 1000
    /// classes, and a class token, which the head sees.
    fn default() -> Self {
        Self {
            image_size: 224,
            patch_size: 16,
            class_token: true,
            embed_dim: 192,
            num_heads: 3,
            depth: 12,
            num_classes: 1000,
            norm_eps: 1e-6,
            gelu: Gelu::Erf,
            pooling: Pooling::Class,
        }
    }
}

impl EncoderConfig {
    /// Reads the shape of an encoder from its file: from the shapes of its tensors, and from the
    /// metadata `heads`, `depth`, `eps`, `gelu` and `pool`. A state dict of timm has none: then a
    /// head has 64 numbers, eps is 1e-6, GELU is by the error function, and the head sees the class
    /// token if there is one.
    ///
    /// # Errors
    /// A tensor is missing, a value makes no sense, or two tensors do not fit together.
    pub fn from_tensors(file: &Tensors) -> Result<Self> {
        Self::of(file, "")
    }

    /// Reads the shape from tensors whose names have a prefix.
    pub(crate) fn of(file: &Tensors, prefix: &str) -> Result<Self> {
        let name = |tensor: &str| format!("{prefix}{tensor}");
        let proj = &name("patch_embed.proj.weight");
        let &[width, 3, patch, across] = file.shape(proj)? else {
            return Err(file.format_error(format!("`{proj}` is not [width, 3, patch, patch]")));
        };
        // A file may say any extent beside one that is 0, so each extent that counts is compared
        // with `width`.
        let &[1, places, across_places] = file.shape(&name("pos_embed"))? else {
            return Err(file.format_error("`pos_embed` is not [1, places, width]".into()));
        };
        if across_places != width {
            return Err(
                file.format_error(format!("`pos_embed` has places of {across_places} numbers, and not {width}"))
            );
        }
        let class_token = file.tensors.contains_key(&name("cls_token"));
        let count = places.saturating_sub(usize::from(class_token));
        let side = count.isqrt();
        if patch != across || patch == 0 || side == 0 || side * side != count {
            return Err(
                file.format_error(format!("patches of {patch} x {across} pixels at {places} places are no square"))
            );
        }
        let pool = if class_token { Pooling::Class } else { Pooling::Mean };
        let block = |k: &usize| file.tensors.contains_key(&name(&format!("blocks.{k}.norm1.weight")));
        let defaults = [Some((width / 64).max(1)), Some((0..).take_while(block).count())];
        let (heads, depth, eps, gelu, pool) = metadata(file, defaults, (1e-6, Gelu::Erf, pool))?;
        let classes = match file.tensors.contains_key(&name("head.weight")) {
            true => file.matrix(&name("head.weight"), Some(width))?[0],
            false => 0,
        };
        let size = side.saturating_mul(patch); // which `check` refuses if it is no product
        let config = Self {
            image_size: size,
            patch_size: patch,
            class_token,
            embed_dim: width,
            num_heads: heads,
            depth,
            num_classes: classes,
            norm_eps: eps,
            gelu,
            pooling: pool,
        };
        config.check().map_err(|error| file.format_error(error.to_string()))
    }

    pub(crate) fn check(self) -> Result<Self> {
        self.blocks().check()?;
        let Self { image_size: size, patch_size: patch, .. } = self;
        // Kernels count the numbers of an image in 32 bits.
        let numbers = [3, size, size].map(|extent| extent as u64).into_iter().try_fold(1, u64::checked_mul);
        if patch == 0 || size == 0 || size % patch != 0 || numbers.is_none_or(|n| u32::try_from(n).is_err()) {
            return Err(Error::Config(format!("images of {size} x {size} pixels in patches of {patch} x {patch}")));
        }
        Ok(self)
    }

    /// Returns the rows of an image: its patches, and the class token if there is one.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.patches().saturating_add(usize::from(self.class_token))
    }

    /// Returns where the rows of an image lie, [rows, 2]: the centers of the patches, as parts of
    /// height and width. The class token lies in the middle.
    #[must_use]
    pub fn positions(&self) -> Vec<f32> {
        let side = self.patches().isqrt();
        let place = |at: usize| (at as f32 + 0.5) / side as f32;
        let patches = (0..side * side).flat_map(|i| [place(i / side), place(i % side)]);
        (0..2 * usize::from(self.class_token)).map(|_| 0.5).chain(patches).collect()
    }

    fn patches(&self) -> usize {
        patches_of(self.image_size, self.patch_size)
    }

    /// Returns the starts and the end of the rows of so many images.
    pub(crate) fn ends(&self, images: usize) -> Vec<i32> {
        (0..=images).map(|image| (image * self.rows()) as i32).collect()
    }

    pub(crate) fn pixels(&self) -> usize {
        3 * self.image_size * self.image_size
    }

    /// Returns how many images so many pixels are.
    fn images(&self, pixels: usize) -> Result<usize> {
        if pixels == 0 || !pixels.is_multiple_of(self.pixels()) {
            let size = self.image_size;
            return Err(Error::Batch(format!("{pixels} numbers are no images of 3 x {size} x {size}")));
        }
        Ok(pixels / self.pixels())
    }

    /// Returns the number of images of a batch with so many pixels, positions and ends of
    /// sequences.
    pub(crate) fn images_of(&self, [pixels, positions, ends]: [usize; 3]) -> Result<usize> {
        if positions + ends > 0 {
            return Err(Error::Batch("images of pixels have neither `position` nor `cu_seqlens`".into()));
        }
        self.images(pixels)
    }

    fn blocks(&self) -> TransformerConfig {
        let &Self { embed_dim: width, num_heads: heads, depth, norm_eps: eps, gelu, .. } = self;
        TransformerConfig { width, heads, depth, eps, gelu }
    }
}

/// The places of an encoder's weights.
#[derive(Clone, Debug)]
struct Model {
    config: EncoderConfig,
    layout: ParameterLayout,
    embedding: PatchEmbedding,
    blocks: Transformer,
    head: Option<Linear>,
}

impl Model {
    fn new(config: EncoderConfig) -> Result<Self> {
        let EncoderConfig { image_size, patch_size, embed_dim: width, num_classes: classes, class_token, .. } =
            config.check()?;
        let mut layout = ParameterLayout::default();
        let embedding = PatchEmbedding::new(&mut layout, "", image_size, patch_size, class_token, width)?;
        let blocks = Transformer::new(&mut layout, "", config.blocks())?;
        let head = if classes > 0 { Some(Linear::new(&mut layout, "head", width, classes)?) } else { None };
        Ok(Self { config, layout, embedding, blocks, head })
    }
}

/// The buffers that one batch of images in flight needs.
#[derive(Debug, Resource)]
struct Pass<E: Precision> {
    patches: PatchActivations<E>,
    cu_seqlens: DeviceBuffer<i32>,
    matmul: Matmul,
    activations: TransformerActivations<E>,
    pooled: DeviceBuffer<f32>,
    operand: DeviceBuffer<E>,
    logits: DeviceBuffer<f32>,
    #[resource(plain)]
    room: usize,
}

impl<S: LiveBrand, E: Precision> PassOn<S, E> {
    fn new(s: &Stream<S>, products: MatmulBackend, model: &Model, images: usize) -> thalweg::Result<Self> {
        let config = &model.config;
        let &EncoderConfig { embed_dim: width, num_classes: classes, .. } = config;
        let rows = images * config.rows();
        let mut cu_seqlens = s.alloc(images + 1)?;
        upload(s, &config.ends(images), &mut cu_seqlens)?;
        Ok(Self {
            patches: PatchActivationsOn::new(s, &model.embedding, images, false)?,
            cu_seqlens,
            matmul: MatmulOn::new(s, products)?,
            activations: TransformerActivationsOn::new(s, config.blocks(), rows, false)?,
            pooled: s.alloc(images * width)?,
            operand: s.alloc(images * width * E::ROOM)?,
            logits: s.alloc(images * classes)?,
            room: images,
        })
    }
}

/// The outputs of an encoder for images.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Encoding {
    /// All rows behind the last norm, [images, rows, `embed_dim`].
    pub features: Vec<f32>,
    /// The logits, [images, `num_classes`], if the encoder has a head.
    pub logits: Option<Vec<f32>>,
}

/// A vision transformer on one stream. A state dict of timm loads as it is.
///
/// It computes forward only: it is the frozen encoder in front of a model that learns. The encoder
/// that learns is that of a [vision-language model](crate::VisionLanguageConfig::image_encoder).
pub struct ImageEncoder<S: LiveBrand, E: Precision> {
    stream: Stream<S>,
    model: Model,
    /// It is empty after a failure of the device that lost the memory.
    parameters: Option<WeightsOn<S, E>>,
    pass: Option<PassOn<S, E>>,
    /// Room for images from the host.
    pixels: On<S, DeviceBuffer<f32>>,
    /// The work on as many images.
    graphs: GraphCache<usize, Graph<Whole<E>>>,
    products: MatmulBackend,
}

/// All memory of a batch.
type Whole<E> = (Weights<E>, Pass<E>);

/// The work on a number of images, after their patches were cut.
struct Encode<'a> {
    model: &'a Model,
    images: usize,
}

impl<E: Precision> GraphWork<Whole<E>> for Encode<'_> {
    fn enqueue<S: Brand>(
        &self,
        s: &Stream<S>,
        (parameters, pass): &mut <Whole<E> as Resource>::On<S>,
    ) -> thalweg::Result<()> {
        self.model.forward(s, parameters.view(), self.images, pass)
    }
}

impl<S: LiveBrand, E: Precision> std::fmt::Debug for ImageEncoder<S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageEncoder").field("config", &self.model.config).finish_non_exhaustive()
    }
}

impl<S: LiveBrand, E: Precision> ImageEncoder<S, E> {
    /// Makes an encoder with the weights of a file (see [`EncoderConfig::from_tensors`]).
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or there is no memory.
    pub fn from_tensors(stream: &Stream<S>, file: &Tensors) -> Result<Self> {
        let model = Model::new(EncoderConfig::from_tensors(file)?)?;
        let weights = model.layout.flatten(file, "")?;
        Self::with(stream, model, &weights)
    }

    /// Makes an encoder with random weights. The same seed gives the same weights.
    ///
    /// # Errors
    /// The configuration makes no sense, or there is no memory.
    pub fn new(stream: &Stream<S>, config: EncoderConfig, seed: u64) -> Result<Self> {
        let model = Model::new(config)?;
        let weights = model.layout.init(seed)?;
        Self::with(stream, model, &weights)
    }

    fn with(stream: &Stream<S>, model: Model, weights: &[f32]) -> Result<Self> {
        Ok(Self {
            stream: *stream,
            model,
            parameters: Some(WeightsOn::new(stream, weights)?),
            pass: None,
            pixels: stream.alloc(0)?,
            graphs: GraphCache::default(),
            products: MatmulBackend::default(),
        })
    }

    /// Returns the shape of the encoder.
    #[must_use]
    pub fn config(&self) -> &EncoderConfig {
        &self.model.config
    }

    /// Returns the stream that orders the encoder.
    #[must_use]
    pub fn stream(&self) -> Stream<S> {
        self.stream
    }

    /// Sets whether the work on a number of images that comes again becomes a graph, which one call
    /// enqueues. It does at first. The results are the same, bit for bit.
    pub fn set_graphs(&mut self, graphs: bool) {
        self.graphs = GraphCache::default().with_graphs(graphs);
    }

    /// Sets what computes the products of matrices from now on. At first it is thalweg's kernels.
    pub fn set_matmul_backend(&mut self, products: MatmulBackend) {
        self.products = products;
        self.graphs.clear();
        self.pass = None; // it has the workspace
    }

    fn room(&mut self, images: usize) -> Result<()> {
        if self.pass.as_ref().is_none_or(|pass| pass.room < images) {
            self.graphs.clear();
            self.pass = None; // its memory is free before the new one is allocated
            self.pass = Some(PassOn::new(&self.stream, self.products, &self.model, images)?);
        }
        Ok(())
    }

    /// Encodes images on the device, `pixels` [images, 3, `image_size`, `image_size`] with the
    /// channels and the normalization that the weights were trained with. It returns at once, with
    /// the rows behind the last norm, [images, rows, `embed_dim`]; the stream computes them.
    ///
    /// # Errors
    /// The number of pixels is no number of images, there is no memory, or the device failed.
    pub fn features(&mut self, pixels: &DeviceSlice<S, f32>) -> Result<&DeviceSlice<S, f32>> {
        let images = self.model.config.images(pixels.len())?;
        self.room(images)?;
        let s = self.stream;
        let (Some(parameters), Some(mut pass)) = (self.parameters.take(), self.pass.take()) else {
            return Err(Error::Lost);
        };
        // The pixels are the caller's, so this launch is not part of the graph.
        let cut = self.model.embedding.cut(&s, images, pixels, &mut pass.patches);
        let whole = (parameters, pass);
        let (whole, enqueued) = match cut {
            Err(error) => (whole, Err(error)),
            Ok(()) => match self.graphs.enqueue(&s, images, whole, &Encode { model: &self.model, images }) {
                Ok(whole) => (whole, Ok(())),
                Err(returned) => (returned.value, Err(returned.error)),
            },
        };
        self.parameters = Some(whole.0);
        let pass = self.pass.insert(whole.1);
        enqueued?;
        Ok(pass.activations.features(images * self.model.config.rows())?)
    }

    /// Encodes images, `pixels` as for [`features`](Self::features), and waits for the result.
    ///
    /// # Errors
    /// The number of pixels is no number of images, there is no memory, or the device failed.
    pub fn encode(&mut self, pixels: &[f32]) -> Result<Encoding> {
        if self.pixels.len() < pixels.len() {
            self.pixels = self.stream.alloc(pixels.len())?;
        }
        let s = self.stream;
        upload(&s, pixels, &mut self.pixels)?;
        let on_device = std::mem::replace(&mut self.pixels, s.alloc(0)?);
        let features = on_device.slice(..pixels.len()).map_err(Error::from).and_then(|pixels| {
            let features = self.features(pixels)?;
            Ok(s.read_blocking(features)?)
        });
        self.pixels = on_device;
        let features = features?;
        let Self { model, parameters: Some(parameters), pass: Some(pass), .. } = self else { return Err(Error::Lost) };
        let logits = match &model.head {
            Some(head) => {
                let images = features.len() / (model.config.rows() * model.config.embed_dim);
                model.logits(&s, parameters.view(), images, head, pass)?;
                Some(s.read_blocking(pass.logits.slice(..images * head.outputs())?)?)
            }
            None => None,
        };
        Ok(Encoding { features, logits })
    }
}

impl Model {
    /// Computes the features from the patches.
    fn forward<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        images: usize,
        pass: &mut PassOn<S, E>,
    ) -> thalweg::Result<()> {
        let rows = images * self.config.rows();
        let mut f = ForwardPass::new(s, w, &mut pass.matmul);
        self.embedding.forward(&mut f, images, &mut pass.patches, pass.activations.input(rows)?)?;
        let batch = Sequences::new(rows, pass.cu_seqlens.slice(..=images)?);
        self.blocks.forward(&mut f, &batch, &mut pass.activations)
    }

    fn logits<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        images: usize,
        head: &Linear,
        pass: &mut PassOn<S, E>,
    ) -> thalweg::Result<()> {
        let (width, rows) = (self.config.embed_dim, images * self.config.rows());
        let batch = Sequences::new(rows, pass.cu_seqlens.slice(..=images)?);
        let pooled = pass.pooled.slice_mut(..images * width)?;
        self.config.pooling.forward(s, &batch, width, pass.activations.features(rows)?, pooled)?;
        let pooled = E::rounded(s, pooled, &mut pass.operand)?;
        let logits = pass.logits.slice_mut(..images * head.outputs())?;
        head.forward_f32(&mut ForwardPass::new(s, w, &mut pass.matmul), images, pooled, None, logits)
    }
}
