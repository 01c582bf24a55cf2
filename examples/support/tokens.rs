//! Turns an image into tokens, step by step.

use thalweg::{AnyStream, Device, DeviceBuffer, DeviceCopy, LiveBrand, PinnedBuffer, Resource, Result, Size, Stream};
use thalweg_vision::kernels::{BatchTable, Budget, RelevanceMut, Selection, SelectionMut, TokensMut};
use thalweg_vision::{PLANES, kernels};

const PATCH: u32 = 32;
const BUDGET: usize = 4096;
const SIDES: [u32; 2] = [8, 20];

/// All buffers that an image needs.
#[derive(Resource)]
pub struct Slot {
    #[resource(plain)]
    size: Size,
    /// The image.
    pub host: PinnedBuffer<u8>,
    rgb: DeviceBuffer<u8>,
    planes: DeviceBuffer<f32>,
    features: DeviceBuffer<f32>,
    scores: [DeviceBuffer<f32>; 3],
    table: DeviceBuffer<u32>,
    gains: DeviceBuffer<u32>,
    allocated: (DeviceBuffer<i32>, DeviceBuffer<i32>, DeviceBuffer<i32>, DeviceBuffer<u32>),
    totals: [DeviceBuffer<i32>; 2],
    packed: (DeviceBuffer<f32>, DeviceBuffer<f32>),
    tokens: PinnedBuffer<f32>,
    counts: PinnedBuffer<u32>,
}

impl Slot {
    /// Makes a slot that holds an RGB image of this size.
    pub fn new(gpu: Device, rgb: &[u8], size: Size) -> Result<Self> {
        let pixels = size.area() as usize;
        let patches = size.sides().map(|side| side.div_ceil(PATCH) as usize).iter().product();
        AnyStream::new(gpu)?.enter(|s| {
            fn room<S: LiveBrand, T: DeviceCopy>(s: &Stream<S>, len: usize) -> Result<DeviceBuffer<T>> {
                s.alloc_zeroed(len)?.synchronize()
            }
            Ok(Self {
                size,
                host: gpu.pinned_from(rgb)?,
                rgb: room(s, rgb.len())?,
                planes: room(s, PLANES * pixels)?,
                features: room(s, PLANES * patches)?,
                scores: [room(s, patches)?, room(s, patches)?, room(s, patches)?],
                table: s.upload_blocking(thalweg_vision::layout(&[size], PATCH)?.table())?.synchronize()?,
                gains: s.upload_blocking(&kernels::gains(SIDES[0], SIDES[1], 0.8))?.synchronize()?,
                allocated: (room(s, patches)?, room(s, patches + 1)?, room(s, patches)?, room(s, 2)?),
                totals: [room(s, 2)?, room(s, 2)?],
                packed: (room(s, PLANES * BUDGET)?, room(s, 2 * BUDGET)?),
                tokens: gpu.pinned(PLANES * BUDGET)?,
                counts: gpu.pinned(2)?,
            })
        })
    }

    /// The tokens [T, 13] of the last image of this slot.
    pub fn tokens(&self) -> &[f32] {
        &self.tokens[..PLANES * self.counts[0] as usize]
    }
}

/// Enqueues the upload of the image.
pub fn upload<S: LiveBrand>(s: &Stream<S>, slot: &mut SlotOn<S>) -> Result<()> {
    s.copy_to_device(&slot.host, &mut slot.rgb)
}

/// Enqueues the 13 planes of the image.
pub fn texture<S: LiveBrand>(s: &Stream<S>, slot: &mut SlotOn<S>) -> Result<()> {
    kernels::textures(s, slot.size.height, slot.size.width, 0.5, 0.5, &slot.rgb, &mut slot.planes)
}

/// Enqueues the features and the entropy of the patches, and their relevance.
pub fn relevance<S: LiveBrand>(s: &Stream<S>, slot: &mut SlotOn<S>) -> Result<()> {
    let (Size { height, width }, [entropy, salience, map]) = (slot.size, &mut slot.scores);
    kernels::features(s, height, width, PATCH, &slot.planes, &mut slot.features)?;
    kernels::entropy(s, height, width, PATCH, &slot.rgb, entropy)?;
    let patches = entropy.len() as u32;
    let batch = BatchTable { images: 1, patches, largest: patches, table: &slot.table };
    let out = RelevanceMut { salience, relevance: map };
    kernels::relevance(s, &batch, 0.0, [0.5, 0.5], &slot.features, entropy, out)
}

/// Enqueues the allocation of tokens by relevance, and their download.
pub fn allocation<S: LiveBrand>(s: &Stream<S>, slot: &mut SlotOn<S>) -> Result<()> {
    let (Size { height, width }, map) = (slot.size, &slot.scores[2]);
    let (sides, cu_seqlens, patch_id, counts) = &mut slot.allocated;
    let (patches, [lo, hi]) = (map.len() as u32, SIDES);
    let [image_cu_seqlens, image_cu_patches] = &mut slot.totals;
    let batch = BatchTable { images: 1, patches, largest: patches, table: &slot.table };
    let budget = Budget { lo, hi, tokens: BUDGET as u64 };
    let out = SelectionMut { sides, cu_seqlens, patch_id, counts, image_cu_seqlens, image_cu_patches };
    kernels::allocate(s, &batch, budget, map, &slot.gains, out)?;
    let selection = Selection { sides, cu_seqlens, patch_id, counts, most: patches.min(BUDGET as u32 / (lo * lo)) };
    let (tokens, position) = &mut slot.packed;
    let out = TokensMut { tokens, position, capacity: BUDGET as u32 };
    kernels::compress(s, height, width, PATCH, &slot.planes, &selection, out)?;
    s.copy_to_host(tokens, &mut slot.tokens)?;
    s.copy_to_host(counts, &mut slot.counts)
}
