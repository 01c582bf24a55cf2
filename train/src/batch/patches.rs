//! The patches from which the tokens of a batch were made, for a model with a gate.

use thalweg::DeviceSlice;

use super::sealed::Sealed;
use super::{HostBatch, Parts, StreamBatch, TextBatch, TokenBatch};
use crate::error::{Error, Result};

/// The numbers of a patch that a query head sees.
pub(crate) const FEATURES: usize = 13;

/// The patches from which the tokens of a batch were made, on the host, image after image. A
/// `TokenSet` of `thalweg-vision` has these numbers of an image.
#[derive(Clone, Copy, Debug)]
pub struct Patches<'a> {
    /// The mean of each plane over each patch, [N, 13].
    pub features: &'a [f32],
    /// The entropy of each patch, 0 to 1, \[N\].
    pub entropy: &'a [f32],
    /// The salience of each patch, 0 to 1, \[N\].
    pub salience: &'a [f32],
    /// The starts and the end of the images' patches, [B + 1]: image `b` has the patches
    /// `cu[b] .. cu[b + 1]`.
    pub cu_patches: &'a [i32],
    /// The patch of each token among those of all images, \[T\]. It does not fall.
    pub patch: &'a [i32],
    /// The query of each image, [B, `query_dim`].
    pub query: &'a [f32],
}

impl Patches<'_> {
    /// Returns the number of patches.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entropy.len()
    }

    /// Returns whether there are no patches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that the parts fit each other, the sequences of the tokens, and queries of so many
    /// numbers.
    pub(crate) fn check(&self, cu_seqlens: &[i32], query_dim: usize) -> Result<()> {
        let &Self { features, salience, cu_patches: ends, patch, query, .. } = self;
        let (n, images) = (self.len(), cu_seqlens.len() - 1);
        let wrong = |what: String| Err(Error::Batch(what));
        for (name, len, wanted) in [
            ("features", features.len(), FEATURES * n),
            ("salience", salience.len(), n),
            ("cu_patches", ends.len(), images + 1),
            ("patch", patch.len(), cu_seqlens[images] as usize),
            ("query", query.len(), query_dim * images),
        ] {
            if len != wanted {
                return wrong(format!("`{name}` has {len} numbers, and not {wanted}"));
            }
        }
        if ends[0] != 0 || ends[images] as usize != n || ends.windows(2).any(|w| w[0] >= w[1]) {
            return wrong(format!("`cu_patches` rises from 0 to {n}, with a patch at least"));
        }
        if let Some(w) = patch.windows(2).find(|w| w[0] > w[1]) {
            return wrong(format!("the patch of a token is {}, and the next one {}", w[0], w[1]));
        }
        for (rows, patches) in cu_seqlens.windows(2).zip(ends.windows(2)) {
            let (first, last) = (patch[rows[0] as usize], patch[rows[1] as usize - 1]);
            if first < patches[0] || last >= patches[1] {
                let [from, to] = [patches[0], patches[1]];
                return wrong(format!(
                    "the tokens of an image are of patches {first} to {last}, and it has {from}..{to}"
                ));
            }
        }
        Ok(())
    }
}

/// The patches from which the tokens of a batch were made, on the device, as a `Workspace` of
/// `thalweg-vision` has them.
#[derive(Debug)]
pub struct DevicePatches<'a, S> {
    /// The mean of each plane over each patch, [N, 13].
    pub features: &'a DeviceSlice<S, f32>,
    /// The entropy of each patch, 0 to 1, \[N\].
    pub entropy: &'a DeviceSlice<S, f32>,
    /// The salience of each patch, 0 to 1, \[N\].
    pub salience: &'a DeviceSlice<S, f32>,
    /// The starts and the end of the images' patches, [B + 1], rising.
    pub cu_patches: &'a DeviceSlice<S, i32>,
    /// The starts of the tokens of each selected patch, and the end, [K + 1]. Behind the last
    /// selected patch all are the end.
    pub cu_seqlens: &'a DeviceSlice<S, i32>,
    /// The selected patches among those of all images, rising, \[K\].
    pub patch_id: &'a DeviceSlice<S, i32>,
    /// The query of each image, [B, `query_dim`].
    pub query: &'a DeviceSlice<S, f32>,
}

/// A batch with the patches of its tokens, [`Patches`] or [`DevicePatches`], for a model with a
/// [gate](crate::GateConfig).
#[derive(Clone, Copy, Debug)]
pub struct Gated<B, P> {
    /// The batch, whose tokens are those of the patches, without the gate.
    pub batch: B,
    /// The patches.
    pub patches: P,
}

impl<B: Sealed, P> Sealed for Gated<B, P> {}

impl<S, B: StreamBatch<S>> StreamBatch<S> for Gated<B, DevicePatches<'_, S>> {
    fn parts(&self) -> Parts<'_, S> {
        Parts { patches: Some(&self.patches), ..self.batch.parts() }
    }
}

impl<B: HostBatch> HostBatch for Gated<B, Patches<'_>> {
    fn sequences(&self) -> TokenBatch<'_> {
        self.batch.sequences()
    }
    fn texts(&self) -> Option<&TextBatch<'_>> {
        self.batch.texts()
    }
    fn patches(&self) -> Option<&Patches<'_>> {
        Some(&self.patches)
    }
}
