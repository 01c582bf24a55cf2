//! The kernels that training needs beside matrix multiplication.
//!
//! | launcher | what it computes |
//! |---|---|
//! | [`norm`], [`norm_backward`], [`norm_columns`] | layer norm and its gradients |
//! | [`gelu`], [`gelu_backward`] | GELU where it is no epilogue of a product |
//! | [`attention`], [`attention_backward`] | attention within sequences of different lengths |
//! | [`pool`], [`pool_backward`] | one row for each sequence |
//! | [`cross_entropy`], [`argmax`] | the loss with its gradient; the largest element |
//! | [`sum_rows`], [`products_with_two`] | sums over rows, for gradients of biases and of the weights of positions |
//! | [`gelu_backward_columns`], [`round_columns`] | sums over rows of what they compute for each element |
//! | [`gradient_norm`], [`settings`], [`adamw`], [`adamw_bf16`] | the optimizer over all weights at once |
//! | [`patches`], [`positions`], [`text`] | what images and text begin with |
//! | [`join_ends`], [`join_rows`], [`image_rows`] | images and texts as the sequences of one decoder |
//! | [`answer_rows`], [`answer_rows_backward`] | the rows whose next id is learned |
//! | [`place_gradients`], [`id_chains`], [`id_gradients`] | the gradients of what texts begin with |
//! | [`coupling`], [`score_statistics`], [`gates`], [`gated`] and their gradients; [`token_patches`] | the gate by which relevance learns |
//! | [`relu`], [`relu_backward`] | `max(x, 0)` |
//! | [`newest_rows`], [`append_rows`], [`paged_attention`], [`sample`] | a token of many texts at once |
//! | [`round`] | numbers rounded to `bf16` |
//!
//! Activations are `f32` or `bf16` ([`TrainElement`]); all sums, statistics, weights and gradients
//! of weights are `f32`. No kernel adds atomically, so the order of all additions depends on the
//! shapes alone, and the same input gives the same bits on the same device.

mod activation;
mod attention;
mod columns;
mod embed;
mod flash_attention;
mod gate;
mod joined;
#[cfg(not(target_arch = "nvptx64"))]
mod launch;
mod loss;
mod norm;
mod number;
mod optimizer;
mod paged;
mod pool;
mod rows;
mod sequences;

#[cfg(not(target_arch = "nvptx64"))]
pub use self::{
    embed::{positions, text},
    gate::{
        balance_backward, coupling, coupling_backward, gated, gated_backward, gates, relu, relu_backward,
        score_gradients, score_statistics, token_patches,
    },
    joined::{
        answer_rows, answer_rows_backward, id_chains, id_gradients, image_rows, join_ends, join_rows, place_gradients,
    },
    launch::{
        AppendRows, Attention, AttentionBackward, GROUPS, PagedAttention, TrainElement, adamw_bf16, append_rows,
        attention, attention_backward, cross_entropy, gelu, gelu_backward, gelu_backward_columns, gradient_norm, norm,
        norm_backward, norm_columns, paged_attention, patches, products_with_two, round, round_columns, sum_rows,
    },
    loss::argmax,
    optimizer::{PARTS, SETTINGS, adamw, settings},
    paged::{PAGE, PROGRESS, RULES, newest_rows, sample},
    pool::{pool, pool_backward},
};
