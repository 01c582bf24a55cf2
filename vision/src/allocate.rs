//! The most tokens that an allocation can need, and allocation from a relevance map on the host.

use thalweg::{Error, LiveBrand, Result, Stream};

use crate::TokenParams;
use crate::kernels::{self, BatchTable, Budget, SelectionMut};

/// The sizes of the buffers that an allocation needs. They are known before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// The number of patches.
    pub(crate) patches: usize,
    /// The budget of an image. It is no larger than what the patches of an image can take.
    pub(crate) budget: u64,
    /// The most patches that can be selected.
    pub(crate) selected: usize,
    /// The most tokens.
    pub(crate) tokens: usize,
}

impl Capacity {
    /// The capacity for `images` images. They have `patches` patches together, and the image with
    /// the most patches has `largest`.
    pub(crate) fn new(params: &TokenParams, images: usize, patches: usize, largest: usize) -> Result<Self> {
        let (lo, hi) = params.side_bounds();
        let most = |patches: usize| patches as u64 * u64::from(hi * hi);
        // A budget below one share selects nothing, and the kernel accepts only a budget of at
        // least one share.
        let budget = params.budget.min(most(largest)).max(u64::from(lo * lo));
        let tokens = budget.saturating_mul(images as u64).min(most(patches));
        if budget.max(tokens) > i32::MAX as u64 {
            return Err(Error::Parameter {
                name: "budget",
                given: params.budget.to_string(),
                expected: format!("at most {} tokens for all images of a batch: token offsets are 32-bit", i32::MAX),
            });
        }
        let selected = (patches as u64).min(budget / u64::from(lo * lo) * images as u64) as usize;
        Ok(Self { patches, budget, selected, tokens: tokens as usize })
    }
}

/// The number of tokens of each patch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenAllocation {
    /// The side `n` of the `n` x `n` tokens of each patch, in raster order, or 0.
    pub sides: Vec<i32>,
    /// Token offsets of the selected patches, `[K + 1]`, from 0 to the number of tokens.
    pub cu_seqlens: Vec<i32>,
    /// Raster indices of the selected patches, `[K]`, ascending.
    pub patch_id: Vec<i32>,
}

/// Allocates tokens on the device by a relevance map of your own, and waits for the result. The map
/// has a number from 0 to 1 for each patch in raster order.
///
/// ```
/// use thalweg_vision::{TokenParams, allocate_tokens_blocking};
/// use thalweg::{Device, stream_tags};
///
/// stream_tags!(Work);
/// let work = Device::best()?.stream::<Work>()?;
/// let params = TokenParams::default().with_budget(500);
/// let allocation = allocate_tokens_blocking(&work, &[0.1, 1.0, 0.5], &params)?;
/// assert_eq!(allocation.sides, [0, 20, 10]); // 400 + 100 tokens
/// assert_eq!(allocation.cu_seqlens, [0, 400, 500]);
/// assert_eq!(allocation.patch_id, [1, 2]);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # Errors
/// A parameter is out of its range or a relevance is not finite ([`Error::Parameter`]), there is no
/// memory, or the device has failed.
pub fn allocate_tokens_blocking<S: LiveBrand>(
    stream: &Stream<S>,
    relevance: &[f32],
    params: &TokenParams,
) -> Result<TokenAllocation> {
    params.validate()?;
    if let Some((i, v)) = relevance.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        return Err(Error::Parameter {
            name: "relevance",
            given: format!("{v} for patch {i}"),
            expected: "finite numbers".into(),
        });
    }
    if relevance.is_empty() {
        return Ok(TokenAllocation { sides: vec![], cu_seqlens: vec![0], patch_id: vec![] });
    }
    let (lo, hi) = params.side_bounds();
    let capacity = Capacity::new(params, 1, relevance.len(), relevance.len())?;
    let relevance = stream.upload_blocking(relevance)?;
    let gains = stream.upload_blocking(&kernels::gains(lo, hi, params.focus))?;
    let mut sides = stream.alloc(capacity.patches)?;
    let mut cu_seqlens = stream.alloc(capacity.selected + 1)?;
    let mut patch_id = stream.alloc(capacity.selected)?;
    let mut counts = stream.alloc(2)?;
    let (mut tokens, mut selected) = (stream.alloc(2)?, stream.alloc(2)?);
    // The kernel does not read the table of a batch of one image.
    let (n, table) = (capacity.patches as u32, stream.alloc_zeroed(8)?);
    let batch = BatchTable { images: 1, patches: n, largest: n, table: &table };
    let budget = Budget { lo, hi, tokens: capacity.budget };
    let out = SelectionMut {
        sides: &mut sides,
        cu_seqlens: &mut cu_seqlens,
        patch_id: &mut patch_id,
        counts: &mut counts,
        image_cu_seqlens: &mut tokens,
        image_cu_patches: &mut selected,
    };
    kernels::allocate(stream, &batch, budget, &relevance, &gains, out)?;
    let selected = stream.read_blocking(&counts)?[1] as usize;
    Ok(TokenAllocation {
        sides: stream.read_blocking(&sides)?,
        cu_seqlens: stream.read_blocking(cu_seqlens.slice(..=selected)?)?,
        patch_id: stream.read_blocking(patch_id.slice(..selected)?)?,
    })
}
