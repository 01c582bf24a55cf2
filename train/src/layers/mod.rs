//! The layers of models: the parts of which the models of this crate are made, and models of your
//! own can be.
//!
//! A layer has the places of its weights in the flat buffers of a model, and no memory: a
//! [`ParameterLayout`](crate::ParameterLayout) hands the places out, [`Weights`] is the memory
//! of all weights. Forward and backward are explicit functions, which enqueue kernels on a stream
//! and return at once. The caller has the buffers that they read and write, so nothing is allocated
//! in a step, and a step can be captured as a graph.
//!
//! | layer | what it computes |
//! |---|---|
//! | [`Linear`] | `x W^T + b` |
//! | [`LayerNorm`] | rows with mean 0 and variance 1, then a weight and a bias |
//! | [`Gelu`] | GELU of each element |
//! | [`SelfAttention`] | attention within sequences of different lengths, with its projections |
//! | [`Mlp`] | two linear layers with GELU between them |
//! | [`Transformer`] | blocks of norms, attention and MLP, and the norm behind them |
//! | [`TokenEmbedding`], [`TextEmbedding`], [`PatchEmbedding`] | rows from tokens of numbers, from ids, from images |
//! | [`Pooling`] | one row for each sequence |
//! | [`CrossEntropy`] | the loss, and the gradient of the logits |
//!
//! The formulas are those of `docs/training.md`, sections "The token transformer" and the ones of
//! the models. `E` is the [`Precision`](crate::Precision): the type of operands and activations. A
//! matrix [rows, columns] lies row by row, and a batch is its rows, one sequence after another.
//!
//! ```
//! use thalweg::{Device, stream_tags};
//! use thalweg_train::layers::{BackwardPass, BackwardScratchOn, CrossEntropy, ForwardPass, Linear, WeightsOn};
//! use thalweg_train::{AdamW, AdamWStateOn, MatmulBackend, MatmulOn, ParameterLayout};
//!
//! stream_tags!(Train);
//! let s = Device::cpu()?.stream::<Train>()?;
//! let mut layout = ParameterLayout::default();
//! let layer = Linear::new(&mut layout, "layer", 2, 3)?; // points in a plane, and three classes
//! let mut parameters = WeightsOn::<_, f32>::new(&s, &layout.init(7)?)?;
//! let mut state = AdamWStateOn::new(&s, layout.len())?;
//! let mut gradient = s.alloc_zeroed::<f32>(layout.len())?;
//! let mut matmul = MatmulOn::new(&s, MatmulBackend::default())?;
//! let mut scratch = BackwardScratchOn::new(&s, MatmulBackend::default(), &layout)?;
//!
//! let (x, labels) = (s.upload_blocking(&[1.0, 0.0, 0.0, 1.0, -1.0, -1.0])?, s.upload_blocking(&[0, 1, 2])?);
//! let (mut logits, mut losses, mut dlogits) = (s.alloc(9)?, s.alloc(3)?, s.alloc(9)?);
//! let mut seen = Vec::new();
//! for step in 0..100 {
//!     let mut forward = ForwardPass::new(&s, parameters.view(), &mut matmul);
//!     layer.forward(&mut forward, 3, &x, &mut logits)?;
//!     CrossEntropy::new(3).forward(&s, 3, &logits, &labels, &mut losses, &mut dlogits)?;
//!     let mut backward = BackwardPass::new(&s, parameters.view(), &mut gradient, &mut scratch);
//!     layer.backward_weight(&mut backward, 3, &x, &dlogits)?;
//!     AdamW::default().with_lr(0.1).step(&s, step, &gradient, &mut parameters, &mut state)?;
//!     seen.push(s.read_blocking(&losses)?.iter().sum::<f32>());
//! }
//! assert!(seen[99] < 0.1 * seen[0]);
//! # Ok::<(), thalweg_train::Error>(())
//! ```

mod attention;
mod embedding;
mod gelu;
mod linear;
mod loss;
mod mlp;
mod norm;
mod pass;
mod pooling;
mod sequences;
mod transformer;
mod weights;

pub(crate) use attention::PagedRows;
pub use attention::{AttentionBuffers, AttentionScratch, SelfAttention};
pub(crate) use embedding::JoinedRows;
pub(crate) use embedding::patches_of;
pub use embedding::{PatchActivations, PatchActivationsOn, PatchEmbedding, TextEmbedding, TokenEmbedding};
pub use gelu::Gelu;
pub use linear::Linear;
pub use loss::CrossEntropy;
pub use mlp::{Mlp, MlpBuffers};
pub use norm::LayerNorm;
pub use pass::{BackwardPass, BackwardScratch, BackwardScratchOn, ForwardPass, GradientSink};
pub use pooling::Pooling;
pub use sequences::Sequences;
pub use transformer::{
    InputGradient, Transformer, TransformerActivations, TransformerActivationsOn, TransformerConfig,
    TransformerScratch, TransformerScratchOn,
};
pub use weights::{Weights, WeightsOn, WeightsRef};
