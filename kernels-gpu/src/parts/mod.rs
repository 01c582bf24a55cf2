//! Parts that kernels share, whatever family they are of.

#[cfg(any(feature = "augment", feature = "vision"))]
#[cfg_attr(
    not(all(feature = "augment", feature = "vision")),
    allow(dead_code, reason = "each family uses its own part")
)]
pub(crate) mod block;
#[cfg(any(
    feature = "linear",
    all(target_arch = "nvptx64", any(feature = "linear_sm_90a", feature = "linear_f32_sm_90a")),
    feature = "train"
))]
pub(crate) mod gelu;
#[cfg(any(feature = "train", feature = "vision"))]
#[cfg_attr(not(feature = "train"), allow(dead_code, reason = "only gradients use a tension by itself"))]
pub(crate) mod mix;
#[cfg(any(feature = "augment", feature = "vision"))]
#[cfg_attr(
    not(all(feature = "augment", feature = "vision")),
    allow(dead_code, reason = "each family uses its own part")
)]
pub(crate) mod number;
