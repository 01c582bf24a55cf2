//! The sequences of a batch.

use std::fmt;

use thalweg::DeviceSlice;

/// The sequences of a batch, and what their rows see.
pub struct Sequences<'a, S> {
    pub(crate) rows: usize,
    pub(crate) prefix: u32,
    pub(crate) prefixes: Option<&'a DeviceSlice<S, i32>>,
    pub(crate) cu_seqlens: &'a DeviceSlice<S, i32>,
    /// The rows before these, and where the sequences of all rows begin and end.
    pub(crate) before: usize,
    pub(crate) cu_all: &'a DeviceSlice<S, i32>,
}

impl<'a, S> Sequences<'a, S> {
    /// Makes sequences of `rows` rows together. `cu_seqlens` [B + 1] has their starts and the end:
    /// sequence `b` has the rows `cu_seqlens[b] .. cu_seqlens[b + 1]`. Each row sees all rows of
    /// its sequence.
    #[must_use]
    pub fn new(rows: usize, cu_seqlens: &'a DeviceSlice<S, i32>) -> Self {
        Self { rows, prefix: u32::MAX, prefixes: None, cu_seqlens, before: 0, cu_all: cu_seqlens }
    }

    /// Lets each row see the first `prefix` rows of its sequence, and those up to itself. With 0,
    /// attention is causal.
    #[must_use]
    pub fn with_prefix(self, prefix: u32) -> Self {
        Self { prefix, ..self }
    }

    /// Does the same with a number for each sequence, \[B\].
    #[must_use]
    pub fn with_prefixes(self, prefixes: &'a DeviceSlice<S, i32>) -> Self {
        Self { prefixes: Some(prefixes), ..self }
    }

    /// Says that the rows follow `before` rows of the same sequence, whose queries, keys and values
    /// the buffers of the attention have. `cu_all` has the start and the end of all rows.
    #[must_use]
    pub fn behind(self, before: usize, cu_all: &'a DeviceSlice<S, i32>) -> Self {
        Self { before, cu_all, ..self }
    }

    pub(crate) fn ends(&self) -> &'a DeviceSlice<S, i32> {
        self.cu_seqlens
    }

    pub(crate) fn count(&self) -> usize {
        self.cu_seqlens.len().saturating_sub(1)
    }
}

impl<S> fmt::Debug for Sequences<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, prefix, before, .. } = self;
        let mut f = f.debug_struct("Sequences");
        f.field("count", &self.count()).field("rows", rows).field("prefix", prefix).field("before", before).finish()
    }
}
