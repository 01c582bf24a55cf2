//! Parts that kernels of several families share.

pub(crate) mod block;
