//! Turns an image and a query into tokens, step by step.
#![allow(dead_code, unreachable_pub, reason = "the example and the test use different parts")]

use thalweg::overlap::stages;
use thalweg::{
    Activity, AnyStream, Device, DeviceBuffer, DeviceCopy, LiveBrand, PinnedBuffer, Resource, Result, Ring, Size,
    Stream, Timeline,
};
use thalweg_vision::kernels::{
    self, BatchTable, Budget, ParticipatoryMut, RelevanceMut, Salience, Scores, Selection, SelectionMut, TokensMut,
};
use thalweg_vision::{Head, PLANES, Query, TokenParams};

/// All buffers that an image needs. The weights of the head and the query are among them, so that
/// every stage finds what it reads in the slot.
#[derive(Resource)]
pub struct Slot {
    #[resource(plain)]
    size: Size,
    #[resource(plain)]
    params: TokenParams,
    #[resource(plain)]
    balanced: bool,
    /// The image `[H, W, 3]`.
    pub image: PinnedBuffer<u8>,
    rgb: DeviceBuffer<u8>,
    planes: DeviceBuffer<f32>,
    features: DeviceBuffer<f32>,
    table: DeviceBuffer<u32>,
    gains: DeviceBuffer<u32>,
    coupling: DeviceBuffer<f32>,
    predictor: DeviceBuffer<f32>,
    summaries: DeviceBuffer<f32>,
    /// Entropy, salience, participatory score and relevance.
    maps: [DeviceBuffer<f32>; 4],
    mix: DeviceBuffer<f32>,
    sides: DeviceBuffer<i32>,
    offsets: [DeviceBuffer<i32>; 4],
    counts: DeviceBuffer<u32>,
    packed: [DeviceBuffer<f32>; 2],
    host: Host,
}

/// The results in page-locked memory.
#[derive(Resource)]
struct Host {
    tokens: PinnedBuffer<f32>,
    counts: PinnedBuffer<u32>,
    sides: PinnedBuffer<i32>,
    maps: [PinnedBuffer<f32>; 4],
    mix: PinnedBuffer<f32>,
}

impl Slot {
    /// Makes a slot for images of this size.
    pub fn new(
        gpu: Device,
        size: Size,
        params: &TokenParams,
        head: &Head,
        query: &Query,
    ) -> thalweg_vision::Result<Self> {
        let pixels = size.area() as usize;
        let patches = params.grid(size).area() as usize;
        let (lo, hi) = (*params.sides.start(), *params.sides.end());
        let budget = params.budget as usize;
        AnyStream::new(gpu)?.enter(|s| {
            fn room<S: LiveBrand, T: DeviceCopy>(s: &Stream<S>, len: usize) -> Result<DeviceBuffer<T>> {
                s.alloc_zeroed(len)?.synchronize()
            }
            let predictor = head.balancer_weights(query)?;
            Ok(Self {
                size,
                params: params.clone(),
                balanced: predictor.is_some(),
                image: gpu.pinned(3 * pixels)?,
                rgb: room(s, 3 * pixels)?,
                planes: room(s, PLANES * pixels)?,
                features: room(s, PLANES * patches)?,
                table: s.upload_blocking(thalweg_vision::layout(&[size], params.patch)?.table())?.synchronize()?,
                gains: s.upload_blocking(&kernels::gains(lo, hi, params.focus))?.synchronize()?,
                coupling: s.upload_blocking(&head.projection(query)?)?.synchronize()?,
                predictor: s.upload_blocking(&predictor.unwrap_or_default())?.synchronize()?,
                summaries: room(s, 12 * (patches / 64 + 1))?,
                maps: [room(s, patches)?, room(s, patches)?, room(s, patches)?, room(s, patches)?],
                mix: s.upload_blocking(&[1.0 / 3.0; 3])?.synchronize()?,
                sides: room(s, patches)?,
                offsets: [room(s, patches + 1)?, room(s, patches)?, room(s, 2)?, room(s, 2)?],
                counts: room(s, 2)?,
                packed: [room(s, PLANES * budget)?, room(s, 2 * budget)?],
                host: Host {
                    tokens: gpu.pinned(PLANES * budget)?,
                    counts: gpu.pinned(2)?,
                    sides: gpu.pinned(patches)?,
                    maps: [gpu.pinned(patches)?, gpu.pinned(patches)?, gpu.pinned(patches)?, gpu.pinned(patches)?],
                    mix: gpu.pinned(3)?,
                },
            })
        })
    }

    /// The results of the last image of this slot.
    pub fn results(&self) -> Results {
        let host = &self.host;
        Results {
            tokens: host.tokens[..PLANES * host.counts[0] as usize].to_vec(),
            sides: host.sides.to_vec(),
            maps: host.maps.each_ref().map(|map| map.to_vec()),
            mix: [host.mix[0], host.mix[1], host.mix[2]],
        }
    }
}

/// The results of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// `[T, 13]`
    pub tokens: Vec<f32>,
    /// `[N]`: the side of the tokens of each patch, or 0.
    pub sides: Vec<i32>,
    /// `[N]` each: entropy, salience, participatory score and relevance.
    pub maps: [Vec<f32>; 4],
    /// The weights of entropy, salience and participatory score.
    pub mix: [f32; 3],
}

/// Sends images through slots that are used in turn: the upload and the three stages, each on its
/// own stream. `load` fills a slot on the host, and `take` sees it when its results are there.
pub fn query_streams<S: LiveBrand, A: LiveBrand, B: LiveBrand, C: LiveBrand>(
    (up, first, second, third): (&Stream<S>, &Stream<A>, &Stream<B>, &Stream<C>),
    slots: &mut Ring<Slot>,
    images: usize,
    load: impl FnMut(usize, &mut Slot) -> Result<()>,
    take: impl FnMut(usize, &mut Slot) -> Result<()>,
    timeline: &Timeline,
) -> Result<()> {
    stages(slots)
        .host(load)
        .step(up, Activity::Upload, |s, _, slot| upload(s, slot))
        .step(first, Activity::Compute, |s, _, slot| textures(s, slot))
        .step(second, Activity::Compute, |s, _, slot| scores(s, slot))
        .step(third, Activity::Compute, |s, _, slot| tokens(s, slot))
        .run_and_take(0..images, take, timeline)
}

/// Enqueues the upload of the image.
pub fn upload<S: LiveBrand>(s: &Stream<S>, slot: &mut SlotOn<S>) -> Result<()> {
    s.copy_to_device(&slot.image, &mut slot.rgb)
}

/// The first stage: the 13 planes of the image.
pub fn textures<S: LiveBrand>(s: &Stream<S>, slot: &mut SlotOn<S>) -> Result<()> {
    let (Size { height, width }, [y, x]) = (slot.size, slot.params.fixation);
    kernels::textures(s, height, width, y, x, &slot.rgb, &mut slot.planes)
}

/// The second stage: entropy, salience and participatory score of each patch, the balance of the
/// three as opponents, and relevance.
pub fn scores<S: LiveBrand>(s: &Stream<S>, slot: &mut SlotOn<S>) -> Result<()> {
    let (Size { height, width }, patch) = (slot.size, slot.params.patch);
    let ([entropy, salience, participatory, relevance], summaries) = (&mut slot.maps, &mut slot.summaries);
    kernels::features(s, height, width, patch, &slot.planes, &mut slot.features)?;
    kernels::entropy(s, height, width, patch, &slot.rgb, entropy)?;
    let patches = entropy.len() as u32;
    let batch = BatchTable { images: 1, patches, largest: patches, table: &slot.table };
    let how = Salience { edge: kernels::EDGE, least_peak: 0.0, foveal_bias: slot.params.foveal_bias };
    let out = ParticipatoryMut { participatory, salience, summaries };
    kernels::participatory(s, &batch, how, &slot.features, entropy, &slot.coupling, out)?;
    if slot.balanced {
        kernels::balance(s, &batch, summaries, &slot.predictor, false, &mut slot.mix)?;
    }
    let scores = Scores { entropy, participatory, summaries, mix: &slot.mix };
    kernels::relevance_with_query(s, &batch, &scores, RelevanceMut { salience, relevance })
}

/// The third stage: the allocation of tokens by relevance, the tokens, and the download.
pub fn tokens<S: LiveBrand>(s: &Stream<S>, slot: &mut SlotOn<S>) -> Result<()> {
    let (Size { height, width }, params) = (slot.size, &slot.params);
    let (lo, hi) = (*params.sides.start(), *params.sides.end());
    let [cu_seqlens, patch_id, image_cu_seqlens, image_cu_patches] = &mut slot.offsets;
    let (sides, counts, relevance) = (&mut slot.sides, &mut slot.counts, &slot.maps[3]);
    let patches = relevance.len() as u32;
    let batch = BatchTable { images: 1, patches, largest: patches, table: &slot.table };
    let budget = Budget { lo, hi, tokens: params.budget };
    let out = SelectionMut { sides, cu_seqlens, patch_id, counts, image_cu_seqlens, image_cu_patches };
    kernels::allocate(s, &batch, budget, relevance, &slot.gains, out)?;
    let most = patches.min((params.budget / u64::from(lo * lo)) as u32);
    let selection = Selection { sides, cu_seqlens, patch_id, counts, most };
    let [tokens, position] = &mut slot.packed;
    let out = TokensMut { tokens, position, capacity: params.budget as u32 };
    kernels::compress(s, height, width, params.patch, &slot.planes, &selection, out)?;
    let host = &mut slot.host;
    s.copy_to_host(tokens, &mut host.tokens)?;
    s.copy_to_host(counts, &mut host.counts)?;
    s.copy_to_host(sides, &mut host.sides)?;
    for (from, to) in slot.maps.iter().zip(&mut host.maps) {
        s.copy_to_host(from, to)?;
    }
    s.copy_to_host(&slot.mix, &mut host.mix)
}
