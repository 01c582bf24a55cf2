//! The family `vision`.

use thalweg::Result;
use thalweg_kernels::vision::{
    self, BatchLayout, BatchTable, Budget, ParticipatoryMut, Pixels, RelevanceMut, Salience, Scores, Selection,
    SelectionMut, TokensMut, gains,
};

use super::Launcher;
use super::trial::{Piece, Trial};

pub(crate) const VISION: &[Launcher] = &[
    Launcher { name: "allocate", cases: 300, run: allocate },
    Launcher { name: "analyze", cases: 240, run: analyze },
    Launcher { name: "balance", cases: 120, run: balance },
    Launcher { name: "compress", cases: 180, run: compress },
    Launcher { name: "compress_fused", cases: 180, run: compress_fused },
    Launcher { name: "compress_fused_bf16", cases: 120, run: compress_fused_bf16 },
    Launcher { name: "compress_fused_f16", cases: 120, run: compress_fused_f16 },
    Launcher { name: "entropy", cases: 120, run: entropy },
    Launcher { name: "features", cases: 120, run: features },
    Launcher { name: "participatory", cases: 60, run: participatory },
    Launcher { name: "profile_sample", cases: 20, run: profile_sample },
    Launcher { name: "profile_scale", cases: 24, run: profile_scale },
    Launcher { name: "relevance", cases: 180, run: relevance },
    Launcher { name: "relevance_with_query", cases: 180, run: relevance_with_query },
    Launcher { name: "textures", cases: 120, run: textures },
    Launcher { name: "top", cases: 120, run: top },
];

/// The images of a batch, whose table may say anything.
struct Images<'l> {
    images: u32,
    patches: u32,
    largest: u32,
    patch: u32,
    bytes: u32,
    table: Piece<'l, u32>,
}

impl<'l> Images<'l> {
    fn batch(&self) -> BatchTable<'_, thalweg::PerThread<'l>> {
        let &Self { images, patches, largest, ref table, .. } = self;
        BatchTable { images, patches, largest, table }
    }
    fn n(&self) -> usize {
        self.patches as usize
    }
    fn summaries(&self) -> usize {
        12 * (self.patches / 64 + self.images) as usize
    }
}

fn images<'l>(t: &Trial<'_, 'l>) -> Result<Images<'l>> {
    let patch = t.pick(&[1, 2, 3, 4, 5, 8, 16, 32, 33, 70]);
    let most = if t.once_in(5) { 60 } else { (12 * patch).min(60) };
    let sizes: Vec<[u32; 2]> = (0..t.pick(&[1, 1, 2, 3, 5])).map(|_| [t.within(1, most), t.within(1, most)]).collect();
    let layout = BatchLayout::new(&sizes, patch).expect("the sizes are small");
    let largest = if t.once_in(4) { t.within(1, layout.patches()) } else { layout.largest() };
    Ok(Images {
        images: layout.images(),
        patches: layout.patches(),
        largest,
        patch,
        bytes: layout.bytes(),
        table: t.table(layout.table().to_vec(), 4)?,
    })
}

fn pixels<'a, 'l>(
    t: &Trial<'_, 'l>,
    images: &Images<'l>,
    rgb: &'a Piece<'l, u8>,
) -> Pixels<'a, thalweg::PerThread<'l>> {
    Pixels { rgb, bytes: images.bytes, patch: images.patch, fixation: [t.float(), t.float()] }
}

fn analyze(t: &Trial<'_, '_>) -> Result<()> {
    let images = images(t)?;
    let rgb = t.bytes(images.bytes as usize)?;
    let (mut features, mut entropy) = (t.room(13 * images.n())?, t.room(images.n())?);
    vision::analyze(t, &images.batch(), &pixels(t, &images, &rgb), &mut features, &mut entropy)
}

fn relevance(t: &Trial<'_, '_>) -> Result<()> {
    let images = images(t)?;
    let (features, entropy) = (t.numbers(13 * images.n())?, t.numbers(images.n())?);
    let (mut salience, mut relevance) = (t.room(images.n())?, t.room(images.n())?);
    let out = RelevanceMut { salience: &mut salience, relevance: &mut relevance };
    vision::relevance(t, &images.batch(), t.float(), [t.float(), t.float()], &features, &entropy, out)
}

fn participatory(t: &Trial<'_, '_>) -> Result<()> {
    let images = images(t)?;
    let how = Salience { edge: t.below(14), least_peak: t.float(), foveal_bias: t.float() };
    let (features, entropy, coupling) = (t.numbers(13 * images.n())?, t.numbers(images.n())?, t.numbers(3400)?);
    let (mut score, mut salience) = (t.room(images.n())?, t.room(images.n())?);
    let mut summaries = t.room(images.summaries())?;
    let out = ParticipatoryMut { participatory: &mut score, salience: &mut salience, summaries: &mut summaries };
    vision::participatory(t, &images.batch(), how, &features, &entropy, &coupling, out)
}

fn balance(t: &Trial<'_, '_>) -> Result<()> {
    let images = images(t)?;
    let (summaries, predictor) = (t.numbers(images.summaries())?, t.numbers(18179)?);
    vision::balance(t, &images.batch(), &summaries, &predictor, t.flip(), &mut t.room(3 * images.images as usize)?)
}

fn relevance_with_query(t: &Trial<'_, '_>) -> Result<()> {
    let images = images(t)?;
    let (entropy, score) = (t.numbers(images.n())?, t.numbers(images.n())?);
    let (summaries, mix) = (t.numbers(images.summaries())?, t.numbers(3 * images.images as usize)?);
    // The salience is that which `participatory` left.
    let (mut salience, mut relevance) = (t.numbers(images.n())?, t.room(images.n())?);
    let scores = Scores { entropy: &entropy, participatory: &score, summaries: &summaries, mix: &mix };
    let out = RelevanceMut { salience: &mut salience, relevance: &mut relevance };
    vision::relevance_with_query(t, &images.batch(), &scores, out)
}

fn allocate(t: &Trial<'_, '_>) -> Result<()> {
    let images = images(t)?;
    let lo = t.pick(&[1, 1, 2, 3, 8]);
    let hi = lo + t.pick(&[0, 1, 3, 12, 247]).min(255 - lo);
    let least = u64::from(lo * lo);
    let tokens = least + u64::from(t.pick(&[0, t.below(20), t.below(3000), t.below(1 << 20)]));
    let gains = t.table(gains(lo, hi, 0.8), 1)?;
    let relevance = t.numbers(images.n())?;
    let room = u64::from(images.patches).min(u64::from(images.images) * (tokens / least)) as usize;
    let more = t.below(3) as usize;
    let mut sides = t.room(images.n())?;
    let (mut cu_seqlens, mut patch_id) = (t.room(room + 1 + more)?, t.room(room + more)?);
    let (mut counts, each) = (t.room(2)?, images.images as usize + 1);
    let (mut image_cu_seqlens, mut image_cu_patches) = (t.room(each)?, t.room(each)?);
    let out = SelectionMut {
        sides: &mut sides,
        cu_seqlens: &mut cu_seqlens,
        patch_id: &mut patch_id,
        counts: &mut counts,
        image_cu_seqlens: &mut image_cu_seqlens,
        image_cu_patches: &mut image_cu_patches,
    };
    vision::allocate(t, &images.batch(), Budget { lo, hi, tokens }, &relevance, &gains, out)
}

/// Patches with tokens, as `allocate` might have left them, or not.
struct Selected<'l> {
    sides: Piece<'l, i32>,
    cu_seqlens: Piece<'l, i32>,
    patch_id: Piece<'l, i32>,
    counts: Piece<'l, u32>,
    most: u32,
    capacity: u32,
}

impl<'l> Selected<'l> {
    fn new(t: &Trial<'_, 'l>, patches: u32) -> Result<Self> {
        let (mut sides, mut ends, mut ids) = (vec![], vec![0], vec![]);
        for patch in 0..patches.min(60) {
            let side = if t.flip() { t.below(5) } else { 0 };
            sides.push(side);
            if side > 0 {
                ends.push(ends[ends.len() - 1] + side * side);
                ids.push(patch);
            }
        }
        sides.resize(patches as usize, 0);
        let (selected, tokens) = (ids.len() as u32, ends[ends.len() - 1]);
        let most = selected + t.below(3);
        ends.resize(most as usize + 1, tokens);
        ids.resize(most as usize, u32::MAX);
        Ok(Self {
            sides: t.signed(sides)?,
            cu_seqlens: t.signed(ends)?,
            patch_id: t.signed(ids)?,
            counts: t.table(vec![tokens, selected], 1)?,
            most,
            capacity: (tokens + t.below(40)).saturating_sub(t.below(40)),
        })
    }

    fn as_argument(&self) -> Selection<'_, thalweg::PerThread<'l>> {
        let Self { sides, cu_seqlens, patch_id, counts, most, .. } = self;
        Selection { sides, cu_seqlens, patch_id, counts, most: *most }
    }
}

fn compress(t: &Trial<'_, '_>) -> Result<()> {
    let (height, width, patch) = (t.within(1, 40), t.within(1, 40), t.within(1, 20));
    let planes = t.numbers((13 * height * width) as usize)?;
    let selected = Selected::new(t, height.div_ceil(patch) * width.div_ceil(patch))?;
    let capacity = selected.capacity;
    let (mut tokens, mut position) = (t.room(13 * capacity as usize)?, t.room(2 * capacity as usize)?);
    let out = TokensMut { tokens: &mut *tokens, position: &mut position, capacity };
    vision::compress(t, height, width, patch, &planes, &selected.as_argument(), out)
}

macro_rules! fused {
    ($($name:ident)*) => {$(
        fn $name(t: &Trial<'_, '_>) -> Result<()> {
            let images = images(t)?;
            let rgb = t.bytes(images.bytes as usize)?;
            let selected = Selected::new(t, images.patches)?;
            let capacity = selected.capacity;
            let (mut tokens, mut position) = (t.room(13 * capacity as usize)?, t.room(2 * capacity as usize)?);
            let out = TokensMut { tokens: &mut *tokens, position: &mut position, capacity };
            vision::$name(t, &images.batch(), &pixels(t, &images, &rgb), &selected.as_argument(), out)
        }
    )*};
}
fused!(compress_fused compress_fused_f16 compress_fused_bf16);

fn entropy(t: &Trial<'_, '_>) -> Result<()> {
    let (height, width, patch) = (t.within(1, 50), t.within(1, 50), t.pick(&[1, 3, 8, 17, 32, 60]));
    let n = height.div_ceil(patch) * width.div_ceil(patch);
    vision::entropy(t, height, width, patch, &t.bytes((3 * height * width) as usize)?, &mut t.room(n as usize)?)
}

fn features(t: &Trial<'_, '_>) -> Result<()> {
    let (height, width, patch) = (t.within(1, 40), t.within(1, 40), t.pick(&[1, 3, 8, 17, 32, 60]));
    let n = height.div_ceil(patch) * width.div_ceil(patch);
    let planes = t.numbers((13 * height * width) as usize)?;
    vision::features(t, height, width, patch, &planes, &mut t.room(13 * n as usize)?)
}

fn textures(t: &Trial<'_, '_>) -> Result<()> {
    let (height, width) = (t.within(1, 40), t.pick(&[1, 4, 7, 31, 64, 130]));
    let (n, at) = ((height * width) as usize, [t.float(), t.float()]);
    vision::textures(t, height, width, at[0], at[1], &t.bytes(3 * n)?, &mut t.room(13 * n)?)
}

fn profile_sample(t: &Trial<'_, '_>) -> Result<()> {
    let (mut table, mut bytes) = (vec![], 0);
    for _ in 0..t.within(1, 2) {
        let [height, width] = [t.within(1, 60), t.within(1, 60)];
        table.extend([bytes, height, width]);
        bytes += 3 * height * width;
    }
    let images = table.len() as u32 / 3;
    let (table, rgb) = (t.table(table, 3)?, t.bytes(bytes as usize)?);
    vision::profile_sample(t, images, bytes, &table, &rgb, &mut t.room(13 * 1024 * images as usize)?)
}

fn profile_scale(t: &Trial<'_, '_>) -> Result<()> {
    let (images, n) = (1, 1024);
    vision::profile_scale(t, images, &mut t.numbers(13 * n)?, &mut t.room(13 * n)?, &mut t.room(n)?)
}

fn top(t: &Trial<'_, '_>) -> Result<()> {
    let (images, n) = (t.below(4), 4 * t.below(80) + u32::from(t.once_in(10)));
    let k = t.below(n + 2);
    let values = t.numbers((images * n) as usize)?;
    vision::top(t, images, n, k, &values, &mut t.room((images * k) as usize)?)
}
