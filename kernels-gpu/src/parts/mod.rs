//! What kernels of several families are made of.

pub(crate) mod block;
