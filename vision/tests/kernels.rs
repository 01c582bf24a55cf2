//! The kernels of one image, on every device, against the f64 reference: random sizes, contents,
//! parameters and alignments, in buffers between fences.
//!
//! `THALWEG_CASES=20000 cargo test --test kernels` runs each property that often.

use proptest::prelude::*;
use proptest::sample::select;
use testkit::cases;
use testkit::devices::on_each_device;
use testkit::fence::{Fence, Fenced, same};
use testkit::images::{images, side};
use testkit::oracle::{
    self, Content, Image, ImageSpec, PLANES, SplitMix, assert_close, assert_planes_close, relevance_error, wide,
};
use thalweg::{DeviceKind, Error, LiveBrand, Stream};
use thalweg_vision::kernels::{self, BatchTable, Budget, RelevanceMut, Selection, SelectionMut, TokensMut};

/// What features, scores, tokens and positions may be off where their inputs are exact, on the
/// stream's device: at most a tenth of the error allowed for the pipeline, whose planes are off
/// too. A GPU's logarithm is approximate.
fn error<S: LiveBrand>(stream: &Stream<S>) -> f64 {
    if on_cpu(stream) { 1e-6 } else { 2e-6 }
}

fn on_cpu<S: LiveBrand>(stream: &Stream<S>) -> bool {
    stream.device().kind() == DeviceKind::Cpu
}

/// Sides of patches: next to a warp, to where a block gets its second warp, larger than any image.
fn patches() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..=48, select(vec![1, 2, 31, 32, 33, 63, 64, 65, 91, 100, 16384])]
}

/// Elements past an aligned address: often none, so that the vector path is taken too.
fn shifts() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 0usize..9]
}

/// `len` numbers, all of `values` drawn by a generator.
fn draw<T>(len: usize, seed: u64, mut value: impl FnMut(&mut SplitMix) -> T) -> Vec<T> {
    let mut random = SplitMix(seed);
    (0..len).map(|_| value(&mut random)).collect()
}

/// Numbers as planes hold them, and a little more.
fn plane_values(len: usize, seed: u64) -> Vec<f32> {
    draw(len, seed, |random| (random.unit() * 1.5 - 0.5) as f32)
}

/// Any bits at all: infinite, not a number, denormal.
fn garbage(len: usize, seed: u64) -> Vec<f32> {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-40, -0.0];
    draw(len, seed, |random| match random.next() % 16 {
        i @ 0..8 => special[i as usize],
        _ => f32::from_bits(random.next() as u32),
    })
}

fn patch_count(image: &Image, patch: usize) -> usize {
    let (gh, gw) = oracle::grid(image.height, image.width, patch);
    gh * gw
}

// --- textures
// --------------------------------------------------------------------------------------------

fn run_textures<S: LiveBrand>(
    stream: &Stream<S>,
    image: &Image,
    fixation: [f32; 2],
    (rgb_shift, planes_shift): (usize, usize),
) -> Vec<f32> {
    let (h, w) = (image.height, image.width);
    let rgb = Fenced::new(stream, &image.rgb, rgb_shift);
    let mut planes = Fenced::room(stream, PLANES * h * w, planes_shift);
    let [fy, fx] = fixation;
    kernels::textures(stream, h as u32, w as u32, fy, fx, rgb.slice(), planes.slice_mut()).unwrap();
    assert_eq!(rgb.read(), image.rgb);
    planes.read()
}

fn check_textures<S: LiveBrand>(stream: &Stream<S>, image: &Image, fixation: [f32; 2], shifts: (usize, usize)) {
    let got = run_textures(stream, image, fixation, shifts);
    assert_planes_close("textures", &got, &oracle::textures(image, fixation.map(f64::from)));
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn textures(
        spec in images(200),
        fixation in prop_oneof![Just([0.5f32, 0.5]), [0f32..=1.0, 0f32..=1.0], [-1f32..=2.0, -1f32..=2.0]],
        shifts in (shifts(), shifts()),
    ) {
        let image = spec.build();
        on_each_device(|stream| check_textures(stream, &image, fixation, shifts));
    }

    /// The vector path and the other one compute the same bits.
    #[test]
    fn textures_do_not_depend_on_alignment(spec in images(150), fours in 1usize..40, shifts in (1usize..4, 1usize..4)) {
        let image = ImageSpec { width: 4 * fours, ..spec }.build();
        on_each_device(|stream| {
            let aligned = run_textures(stream, &image, [0.3, 0.6], (0, 0));
            for shifts in [shifts, (0, shifts.1), (shifts.0, 0)] {
                let other = run_textures(stream, &image, [0.3, 0.6], shifts);
                let differing = aligned.iter().zip(&other).position(|(a, b)| !same(a, b));
                assert_eq!(differing, None, "shifted by {shifts:?}");
            }
        });
    }
}

/// Rows and columns of one pixel, up to the largest extent.
#[test]
fn textures_of_lines() {
    for n in [1, 2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 255, 257, 1023, 16383, 16384] {
        for (height, width) in [(1, n), (n, 1), (2, n), (n, 3)] {
            let spec = ImageSpec { height, width, content: Content::Noise, saturated: false, seed: n as u64 };
            let image = spec.build();
            on_each_device(|stream| check_textures(stream, &image, [0.5, 0.5], (n % 2, 0)));
        }
    }
}

/// Every byte as a gray, a red, a green and a blue, and the corners of the cube: the ends of the
/// tables and of the cube root.
#[test]
fn textures_of_pure_colors() {
    let mut rgb = Vec::new();
    for v in 0..=255 {
        rgb.extend([v, v, v, v, 0, 0, 0, v, 0, 0, 0, v]);
    }
    for corner in 0..8 {
        rgb.extend([corner & 1, corner >> 1 & 1, corner >> 2].map(|bit| 255 * bit));
    }
    let image = Image { height: 4, width: rgb.len() / 12, rgb };
    on_each_device(|stream| check_textures(stream, &image, [0.5, 0.5], (0, 0)));
}

// --- features
// --------------------------------------------------------------------------------------------

fn run_features<S: LiveBrand>(
    stream: &Stream<S>,
    (h, w): (usize, usize),
    patch: usize,
    planes: &[f32],
    shift: usize,
) -> Vec<f32> {
    let (gh, gw) = oracle::grid(h, w, patch);
    let planes = Fenced::new(stream, planes, shift);
    let mut features = Fenced::room(stream, PLANES * gh * gw, shift);
    kernels::features(stream, h as u32, w as u32, patch as u32, planes.slice(), features.slice_mut()).unwrap();
    features.read()
}

proptest! {
    #![proptest_config(cases(192))]

    #[test]
    fn features(h in side(129), w in side(129), patch in patches(), seed in any::<u64>(), shift in shifts()) {
        let planes = plane_values(PLANES * h * w, seed);
        let want = oracle::features(&wide(&planes), h, w, patch);
        on_each_device(|stream| {
            let got = run_features(stream, (h, w), patch, &planes, shift);
            assert_close("features", &got, &want, error(stream));
        });
    }
}

/// A tenth, added up half a million times and a million times: each addition to a large sum could
/// round the same way.
#[test]
fn features_of_a_large_patch_do_not_drift() {
    for (h, w, patch) in [(701, 700, 1024), (1024, 1024, 1024)] {
        let planes = vec![0.1f32; PLANES * h * w];
        on_each_device(|stream| {
            let bound = if on_cpu(stream) { 2e-8 } else { 5e-8 };
            let got = run_features(stream, (h, w), patch, &planes, 0);
            assert_close("features", &got, &[f64::from(0.1f32); PLANES], bound);
        });
    }
}

// --- entropy
// ---------------------------------------------------------------------------------------------

fn run_entropy<S: LiveBrand>(stream: &Stream<S>, image: &Image, patch: usize, shift: usize) -> Vec<f32> {
    let (h, w) = (image.height as u32, image.width as u32);
    let rgb = Fenced::new(stream, &image.rgb, shift);
    let mut entropy = Fenced::room(stream, patch_count(image, patch), shift);
    kernels::entropy(stream, h, w, patch as u32, rgb.slice(), entropy.slice_mut()).unwrap();
    entropy.read()
}

proptest! {
    #![proptest_config(cases(192))]

    #[test]
    fn entropy(spec in images(150), patch in patches(), shift in shifts()) {
        let image = spec.build();
        let want = oracle::entropy(&image, patch);
        on_each_device(|stream| {
            let got = run_entropy(stream, &image, patch, shift);
            assert_close("entropy", &got, &want, error(stream));
            // One value alone carries no information, and rounding adds none.
            for (got, want) in got.iter().zip(&want) {
                assert!(*want > 0.0 || *got == 0.0, "a patch of one value has entropy {got}");
                assert!((0.0..=1.0).contains(got), "{got}");
            }
        });
    }
}

/// All 256 values equally often: 8 bits, exactly on the CPU device, and nowhere a rounding more.
#[test]
fn entropy_reaches_one() {
    let rgb = (0..=255).flat_map(|v| [v; 3]).collect();
    let image = Image { height: 16, width: 16, rgb };
    on_each_device(|stream| {
        let got = run_entropy(stream, &image, 16, 1)[0];
        assert!(got <= 1.0 && f64::from(got) >= 1.0 - error(stream), "{got}");
        assert!(got == 1.0 || !on_cpu(stream), "{got}");
    });
}

// --- relevance
// -------------------------------------------------------------------------------------------

/// Numbers of patches: next to a warp, to where the block grows, and past the largest block.
fn counts() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 1usize..700,
        8 => select(vec![1, 2, 31, 32, 33, 255, 256, 257, 511, 512, 513, 1023, 1025]),
        1 => select(vec![7935, 7937, 8191, 8192, 8193, 9001]),
    ]
}

/// What the scores of an image can be like.
#[derive(Clone, Copy, Debug)]
enum Scores {
    Random,
    NoEdges,
    /// The same everywhere.
    Flat,
    /// Nearly the same.
    Faint,
}

fn run_relevance<S: LiveBrand>(
    stream: &Stream<S>,
    bias: f32,
    mix: [f32; 2],
    features: &[f32],
    entropy: &[f32],
    shift: usize,
) -> (Vec<f32>, Vec<f32>) {
    let n = entropy.len();
    let features = Fenced::new(stream, features, shift);
    let entropy = Fenced::new(stream, entropy, shift);
    let mut salience = Fenced::room(stream, n, shift);
    let mut relevance = Fenced::room(stream, n, shift);
    let table = stream.alloc_zeroed(8).unwrap();
    let batch = BatchTable { images: 1, patches: n as u32, largest: n as u32, table: &table };
    let out = RelevanceMut { salience: salience.slice_mut(), relevance: relevance.slice_mut() };
    kernels::relevance(stream, &batch, bias, mix, features.slice(), entropy.slice(), out).unwrap();
    (salience.read(), relevance.read())
}

proptest! {
    #![proptest_config(cases(384))]

    #[test]
    fn relevance(
        n in counts(),
        scores in select(vec![Scores::Random, Scores::Random, Scores::NoEdges, Scores::Flat, Scores::Faint]),
        bias in prop_oneof![Just(0f32), Just(1f32), 0f32..=1.0],
        mix in prop_oneof![Just([0.5f32, 0.5]), Just([0f32, 1.0]), Just([1f32, 0.0]), [0f32..=1.0, 0f32..=1.0]],
        seed in any::<u64>(),
        shift in shifts(),
    ) {
        let mut features = plane_values(PLANES * n, seed);
        let mut entropy = draw(n, !seed, |random| random.unit() as f32);
        for (i, f) in features.chunks_mut(PLANES).enumerate() {
            (f[8], f[11]) = match scores {
                Scores::NoEdges => (0.0, f[11].abs().min(1.0)),
                Scores::Flat => (0.25, 0.5),
                Scores::Faint => (0.25 + 1e-5 * f[8], 0.5),
                Scores::Random => (f[8].abs() * 0.7, f[11].abs().min(1.0)),
            };
            if let Scores::Flat | Scores::Faint = scores {
                entropy[i] = 0.625;
            }
        }
        let salience = oracle::salience(&wide(&features), f64::from(bias));
        let (want, spread) = oracle::relevance(&[&wide(&entropy), &salience], &mix.map(f64::from));
        on_each_device(|stream| {
            let (got_salience, got) = run_relevance(stream, bias, mix, &features, &entropy, shift);
            assert_close("salience", &got_salience, &salience, 2e-6);
            assert_close("relevance", &got, &want, relevance_error(spread));
            assert!(got.iter().all(|v| (0.0..=1.0).contains(v)));
        });
    }
}

/// Patches past the end of an image share a tile with the last ones, which their threads write. The
/// checked device reports a thread that reads a patch of another one.
#[test]
fn relevance_of_images_that_end_within_a_tile() {
    for n in [8193, 9001, 9216, 10239, 10241] {
        let features = draw(PLANES * n, n as u64, |random| random.unit() as f32);
        let entropy = draw(n, 1, |random| random.unit() as f32);
        let salience = oracle::salience(&wide(&features), 0.5);
        let (want, spread) = oracle::relevance(&[&wide(&entropy), &salience], &[0.25, 0.75]);
        on_each_device(|stream| {
            let (got_salience, got) = run_relevance(stream, 0.5, [0.25, 0.75], &features, &entropy, 0);
            assert_close("salience", &got_salience, &salience, 2e-6);
            assert_close("relevance", &got, &want, relevance_error(spread));
        });
    }
}

// --- allocate
// --------------------------------------------------------------------------------------------

/// An allocation to make: relevances, sides, budget, focus, and what room there is beside what is
/// needed.
#[derive(Clone, Debug)]
struct Demand {
    relevance: Vec<f32>,
    lo: u32,
    hi: u32,
    budget: u64,
    focus: f64,
    spare: usize,
    shift: usize,
}

/// A relevance: any, one of a few (so that keys are equal and the raster order decides), one next
/// to where rounding to 16 bits turns, or one that no map should hold.
fn relevances() -> impl Strategy<Value = f32> {
    let half = (0u32..65536, -2i32..=2).prop_map(|(k, ulps)| {
        let middle = ((f64::from(k) + 0.5) / 65535.0) as f32;
        f32::from_bits(middle.to_bits().wrapping_add_signed(ulps))
    });
    prop_oneof![
        4 => 0f32..=1.0,
        8 => select(vec![0.0, 0.25, 0.5, 0.5, 1.0]),
        4 => half,
        1 => select(vec![-0.0, -1.0, 1.5, 1e-40, 1e-6, 7.6e-6, f32::MAX, f32::INFINITY, f32::NEG_INFINITY]),
    ]
}

fn sides() -> impl Strategy<Value = (u32, u32)> {
    prop_oneof![
        4 => Just((8, 20)),
        4 => (1u32..24).prop_flat_map(|lo| (Just(lo), lo..lo + 16)),
        1 => (1u32..=255).prop_flat_map(|lo| (Just(lo), lo..=255)),
        1 => Just((1, 255)),
        1 => (1u32..=255).prop_map(|n| (n, n)),
    ]
}

fn focuses() -> impl Strategy<Value = f64> {
    prop_oneof![8 => Just(0.8), 8 => 0.001..0.999, 1 => Just(1e-9), 1 => Just(1.0 - 1e-9)]
}

fn demands(n: impl Strategy<Value = usize>) -> impl Strategy<Value = Demand> {
    let relevance = n.prop_flat_map(|n| prop::collection::vec(relevances(), n));
    // Below, at, and above what all patches together can take, and as much as there can be.
    let budget = prop_oneof![
        8 => (0.0..1.1).prop_map(|part| (part, 0)),
        2 => (-2i64..=2).prop_map(|off| (1.0, off)),
        1 => Just((0.0, 0)),
        1 => Just((0.0, i64::from(i32::MAX))),
    ];
    (relevance, sides(), budget, focuses(), 0usize..40, shifts()).prop_map(
        |(relevance, (lo, hi), (part, off), focus, spare, shift)| {
            let all = relevance.len() as f64 * f64::from(hi * hi);
            let budget = ((all * part) as i64 + off).clamp(i64::from(lo * lo), i64::from(i32::MAX)) as u64;
            Demand { relevance, lo, hi, budget, focus, spare, shift }
        },
    )
}

impl Demand {
    /// The most patches that can be selected.
    fn most(&self) -> usize {
        (self.relevance.len() as u64).min(self.budget / u64::from(self.lo * self.lo)) as usize
    }
}

/// What the kernel wrote.
struct Allocated {
    sides: Vec<i32>,
    cu_seqlens: Vec<i32>,
    patch_id: Vec<i32>,
    counts: Vec<u32>,
}

fn run_allocate<S: LiveBrand>(stream: &Stream<S>, demand: &Demand, gains: &[u32]) -> Allocated {
    let &Demand { ref relevance, lo, hi, budget, spare, shift, .. } = demand;
    let n = relevance.len();
    let relevance = Fenced::new(stream, relevance, shift);
    let gains = Fenced::new(stream, gains, shift);
    let mut sides = Fenced::room(stream, n, shift);
    let mut cu_seqlens = Fenced::room(stream, demand.most() + 1 + spare, shift);
    let mut patch_id = Fenced::room(stream, demand.most() + spare, shift);
    let mut counts = Fenced::room(stream, 2, shift);
    let table = stream.alloc_zeroed(8).unwrap();
    let (mut tokens, mut selected) = (Fenced::room(stream, 2, shift), Fenced::room(stream, 2, shift));
    let batch = BatchTable { images: 1, patches: n as u32, largest: n as u32, table: &table };
    let out = SelectionMut {
        sides: sides.slice_mut(),
        cu_seqlens: cu_seqlens.slice_mut(),
        patch_id: patch_id.slice_mut(),
        counts: counts.slice_mut(),
        image_cu_seqlens: tokens.slice_mut(),
        image_cu_patches: selected.slice_mut(),
    };
    let budget = Budget { lo, hi, tokens: budget };
    kernels::allocate(stream, &batch, budget, relevance.slice(), gains.slice(), out).unwrap();
    relevance.read();
    gains.read();
    assert_eq!(
        [tokens.read(), selected.read()],
        counts.read().into_iter().map(|n| vec![0, n as i32]).collect::<Vec<_>>()[..]
    );
    Allocated { sides: sides.read(), cu_seqlens: cu_seqlens.read(), patch_id: patch_id.read(), counts: counts.read() }
}

/// Checks everything that follows from the sides.
fn check_order(demand: &Demand, got: &Allocated) {
    let (mut offsets, mut ids, mut total) = (vec![0], vec![], 0);
    for (i, &side) in got.sides.iter().enumerate() {
        if side != 0 {
            total += side * side;
            offsets.push(total);
            ids.push(i as i32);
        }
    }
    assert_eq!(got.counts, [total as u32, ids.len() as u32]);
    offsets.resize(demand.most() + 1, total);
    ids.resize(demand.most(), -1);
    offsets.resize(got.cu_seqlens.len(), i32::FENCE);
    ids.resize(got.patch_id.len(), i32::FENCE);
    assert_eq!(got.cu_seqlens, offsets, "cu_seqlens");
    assert_eq!(got.patch_id, ids, "patch_id");
}

fn check_allocate(demand: &Demand) {
    let &Demand { ref relevance, lo, hi, budget, focus, .. } = demand;
    let gains = oracle::gains(lo, hi, focus);
    let want = oracle::allocate(relevance, lo, hi, budget, focus);
    on_each_device(|stream| {
        let got = run_allocate(stream, demand, &gains);
        assert_eq!(got.sides.len(), want.len());
        let differing = got.sides.iter().zip(&want).position(|(got, want)| *got != *want as i32);
        let patch = differing.map(|i| (i, got.sides[i], want[i]));
        let n = want.len();
        assert_eq!(patch, None, "(patch, side, expected) of {n} patches, sides {lo}..={hi}, budget {budget}");
        check_order(demand, &got);
    });
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn allocate(demand in demands(prop_oneof![1usize..40, 1usize..300])) {
        check_allocate(&demand);
    }

    #[test]
    fn gains((lo, hi) in sides(), focus in focuses()) {
        prop_assert_eq!(kernels::gains(lo, hi, focus), oracle::gains(lo, hi, focus));
    }
}

proptest! {
    #![proptest_config(cases(64))]

    /// Blocks of every size, where a thread has up to 9 patches.
    #[test]
    fn allocate_for_many_patches(demand in demands(counts())) {
        check_allocate(&demand);
    }
}

/// Every patch alike: raster order alone decides, wherever the budget ends.
#[test]
fn allocate_among_equals() {
    for n in [1, 31, 32, 33, 300] {
        for budget in [64, 65, 80, 81, 64 * 32, 64 * 32 + 17, 64 * 300, 81 * 300 - 1, 400 * 300] {
            for relevance in [0.0, 0.5, 1.0] {
                let relevance = vec![relevance; n];
                check_allocate(&Demand { relevance, lo: 8, hi: 20, budget, focus: 0.8, spare: 3, shift: 1 });
            }
        }
    }
}

/// Sums past 2^32, of which the low bits alone would fit the budget: of all sides, and of those of
/// one key.
#[test]
fn allocate_counts_past_32_bits() {
    let many: Vec<f32> = (0..70_000u32).map(|i| 0.9 + (i * 7919 % 1000) as f32 / 10_000.0).collect();
    let cost = many.len() as u64 * 255 * 255;
    for relevance in [vec![1.0; many.len()], many] {
        for budget in [300_000_000, i32::MAX as u64] {
            assert!(cost > u64::from(u32::MAX) && u64::from(cost as u32) <= budget);
            let relevance = relevance.clone();
            check_allocate(&Demand { relevance, lo: 255, hi: 255, budget, focus: 0.8, spare: 0, shift: 0 });
        }
    }
}

/// Every way through the search: few candidates and many, listed or too many for a warp's list;
/// ties where the first bound falls, at the threshold, everywhere; one tile a warp and several.
#[test]
fn allocate_takes_every_path() {
    for n in [255, 256, 257, 8191, 8192, 8193, 20000] {
        let noise = draw(n, 15, |random| random.unit() as f32);
        let step = |levels: f32| noise.iter().map(|v| (v * levels).floor() / levels).collect::<Vec<f32>>();
        let maps = [
            noise.clone(),
            // One is far above the rest, which share few bins.
            noise.iter().enumerate().map(|(i, v)| if i == 100 { 1.0 } else { v * v * 0.01 }).collect(),
            // The relevant ones are neighbors, so one warp has them all.
            (0..n).map(|i| if (200..700).contains(&i) { 1.0 - i as f32 / 1e4 } else { noise[i] * 0.5 }).collect(),
            step(300.0),
            step(3.0),
            vec![1.0; n],
            vec![0.0; n],
        ];
        for relevance in maps {
            for (lo, hi) in [(8, 20), (8, 8), (3, 255)] {
                // The reference takes seconds for long lists of steps.
                if hi == 255 && n > 300 {
                    continue;
                }
                let least = u64::from(lo * lo);
                let all = n as u64 * least;
                for budget in [least, 64 * least, 64 * least + 17, all / 5, all, 2 * all, i32::MAX as u64] {
                    let relevance = relevance.clone();
                    check_allocate(&Demand { relevance, lo, hi, budget, focus: 0.8, spare: 0, shift: 0 });
                }
            }
        }
    }
}

/// Each of 32 warps has 65792 neighbors, which is more than 16 bits tell apart, and the relevant
/// ones come last.
#[test]
fn allocate_for_two_million_patches() {
    let mut relevance = draw((1 << 21) + 1000, 16, |random| random.unit() as f32);
    for (i, v) in relevance.iter_mut().enumerate() {
        if i % 65_792 < 65_536 {
            *v *= 0.5;
        }
    }
    check_allocate(&Demand { relevance, lo: 8, hi: 9, budget: 4096, focus: 0.8, spare: 0, shift: 0 });
}

// --- compress
// --------------------------------------------------------------------------------------------

/// What `compress` is given beside the planes.
struct Packing {
    sides: Vec<i32>,
    cu_seqlens: Vec<i32>,
    patch_id: Vec<i32>,
    counts: [u32; 2],
    capacity: usize,
}

fn run_compress<S: LiveBrand>(
    stream: &Stream<S>,
    (h, w): (usize, usize),
    patch: usize,
    planes: &[f32],
    packing: &Packing,
    shift: usize,
) -> (Vec<f32>, Vec<f32>) {
    let planes = Fenced::new(stream, planes, shift);
    let sides = Fenced::new(stream, &packing.sides, shift);
    let cu_seqlens = Fenced::new(stream, &packing.cu_seqlens, shift);
    let patch_id = Fenced::new(stream, &packing.patch_id, shift);
    let counts = Fenced::new(stream, &packing.counts, shift);
    let mut tokens = Fenced::room(stream, PLANES * packing.capacity, shift);
    let mut position = Fenced::room(stream, 2 * packing.capacity, shift);
    let selection = Selection {
        sides: sides.slice(),
        cu_seqlens: cu_seqlens.slice(),
        patch_id: patch_id.slice(),
        counts: counts.slice(),
        most: packing.cu_seqlens.len() as u32 - 1,
    };
    let out =
        TokensMut { tokens: tokens.slice_mut(), position: position.slice_mut(), capacity: packing.capacity as u32 };
    kernels::compress(stream, h as u32, w as u32, patch as u32, planes.slice(), &selection, out).unwrap();
    (tokens.read(), position.read())
}

/// Sides for the patches of an image, from 0 to 255, `total` tokens at most.
fn draw_sides(n: usize, seed: u64, mut total: u32) -> Vec<u32> {
    draw(n, seed, |random| {
        let side = match random.next() % 8 {
            0..3 => 0,
            3 => 1,
            4 => 1 + random.next() as u32 % 255,
            _ => 1 + random.next() as u32 % 24,
        };
        let side = if side * side <= total { side } else { 0 };
        total -= side * side;
        side
    })
}

proptest! {
    #![proptest_config(cases(192))]

    #[test]
    fn compress(
        h in side(129),
        w in side(129),
        patch in patches(),
        seed in any::<u64>(),
        spare in prop_oneof![Just((0usize, 0usize)), (0usize..9, 0usize..70)],
        shift in shifts(),
    ) {
        let (gh, gw) = oracle::grid(h, w, patch);
        let planes = plane_values(PLANES * h * w, seed);
        let sides = draw_sides(gh * gw, seed, 70_000);
        let want = oracle::compress(&wide(&planes), h, w, patch, &sides);
        let (total, selected) = (want.tokens.len() / PLANES, want.patch_id.len());
        let mut packing = Packing {
            sides: sides.iter().map(|&n| n as i32).collect(),
            cu_seqlens: want.cu_seqlens.clone(),
            patch_id: want.patch_id.clone(),
            counts: [total as u32, selected as u32],
            capacity: total + spare.1,
        };
        // Past the last selected patch, anything.
        packing.cu_seqlens.resize(selected + 1 + spare.0, i32::FENCE);
        packing.patch_id.resize(selected + spare.0, i32::FENCE);
        on_each_device(|stream| {
            let (tokens, position) = run_compress(stream, (h, w), patch, &planes, &packing, shift);
            let (tokens, rest) = tokens.split_at(PLANES * total);
            assert!(rest.iter().all(|v| same(v, &f32::FENCE)), "rows after the last token are left alone");
            assert_close("tokens", tokens, &want.tokens, error(stream));
            let (position, rest) = position.split_at(2 * total);
            assert!(rest.iter().all(|v| same(v, &f32::FENCE)), "rows after the last token are left alone");
            assert_close("position", position, &want.position, error(stream));
        });
    }
}

// --- all of them
// -----------------------------------------------------------------------------------------

proptest! {
    #![proptest_config(cases(192))]

    /// Whatever the buffers hold: nothing outside is read or written, and the launch succeeds.
    #[test]
    fn garbage_stays_inside(
        h in side(70),
        w in side(70),
        patch in patches(),
        seed in any::<u64>(),
        (lo, hi) in sides(),
        budget in prop_oneof![3 => 0u64..5000, 1 => (0u32..31, any::<u32>()).prop_map(|(bits, v)| u64::from(v >> 1 >> bits))],
        parameters in [any::<f32>(), any::<f32>()],
        shift in shifts(),
    ) {
        let (gh, gw) = oracle::grid(h, w, patch);
        let n = gh * gw;
        let image = Image { height: h, width: w, rgb: draw(3 * h * w, seed, SplitMix::byte) };
        let planes = garbage(PLANES * h * w, seed);
        let (features, scores) = (garbage(PLANES * n, seed ^ 1), garbage(n, seed ^ 2));
        let demand = Demand {
            relevance: scores.clone(),
            lo,
            hi,
            budget: (budget + u64::from(lo * lo)).min(i32::MAX as u64),
            focus: 0.5,
            spare: 0,
            shift,
        };
        // Gains that rise, fall and overflow, large ones and small ones.
        let gains = draw((hi - lo + 1) as usize, seed, |random| random.next() as u32 >> (random.next() % 32));

        // Mostly numbers that nearly make sense.
        let wild = |len: usize, seed: u64, top: u64| draw(len, seed, |random| match random.next() % 8 {
            0 => random.next() as i32,
            1 => i32::MIN,
            2 => i32::MAX,
            3 => random.next() as i32 >> (random.next() % 32),
            _ => (random.next() % (top + 2)) as i32 - 1,
        });
        let selected = 1 + (seed % 40) as usize;
        let (capacity, counts) = (1 + (seed % 999) as usize, wild(2, seed ^ 3, 1000));
        let packing = Packing {
            sides: wild(n, seed ^ 4, 255),
            cu_seqlens: wild(selected + 1, seed ^ 5, capacity as u64),
            patch_id: wild(selected, seed ^ 6, n as u64),
            counts: [counts[0] as u32, counts[1] as u32],
            capacity,
        };
        let clean = plane_values(PLANES * h * w, seed);

        on_each_device(|stream| {
            run_textures(stream, &image, parameters, (shift, shift));
            run_features(stream, (h, w), patch, &planes, shift);
            run_relevance(stream, parameters[0], parameters, &features, &scores, shift);

            let got = run_allocate(stream, &demand, &gains);
            let legal = |side: &i32| *side == 0 || (lo..=hi).contains(&(*side as u32));
            assert!(got.sides.iter().all(legal), "{:?}", got.sides);
            assert!(u64::from(got.counts[0]) <= demand.budget);
            check_order(&demand, &got);

            run_compress(stream, (h, w), patch, &planes, &packing, shift);
            // The fences are no numbers, so a mean of anything outside would be none.
            let (tokens, position) = run_compress(stream, (h, w), patch, &clean, &packing, shift);
            let written = if packing.counts[1] == 0 { 0 } else { capacity.min(packing.counts[0] as usize) };
            let (tokens, rest) = tokens.split_at(PLANES * written);
            assert!(tokens.iter().all(|v| (-0.51..=1.01).contains(v)), "a token is no mean of its plane");
            assert!(rest.iter().all(|v| same(v, &f32::FENCE)));
            assert!(position[..2 * written].iter().all(|v| (0.0..=1.0).contains(v)));
        });
    }

    /// One color: no edges, no contrast, no information, no salience, and all of it equally
    /// relevant.
    #[test]
    fn a_constant_image_is_equally_relevant(
        h in side(129),
        w in side(129),
        color in any::<[u8; 3]>(),
        patch in patches(),
        bias in 0f32..=1.0,
    ) {
        let image = Image { height: h, width: w, rgb: color.repeat(h * w) };
        on_each_device(|stream| {
            let planes = run_textures(stream, &image, [0.5, 0.5], (0, 0));
            for plane in [6, 7, 8, 12] {
                assert!(planes[plane * h * w..(plane + 1) * h * w].iter().all(|v| *v == 0.0), "plane {plane}");
            }
            let features = run_features(stream, (h, w), patch, &planes, 0);
            let entropy = run_entropy(stream, &image, patch, 0);
            let (salience, relevance) = run_relevance(stream, bias, [0.5, 0.5], &features, &entropy, 0);
            assert!(entropy.iter().chain(&salience).all(|v| *v == 0.0));
            assert!(relevance.iter().all(|v| *v == 1.0));
        });
    }
}

// --- launches that the declarations rule out
// ---------------------------------------------------------------

/// The message of a launch that was refused.
#[track_caller]
fn refused(result: thalweg::Result<()>) -> String {
    match result {
        Err(error @ Error::Launch(_)) => error.to_string(),
        other => panic!("expected Error::Launch, found {other:?}"),
    }
}

#[test]
fn refused_launches_say_why() {
    on_each_device(|stream| {
        let rgb = stream.alloc_zeroed::<u8>(3 * 6).unwrap();
        let mut planes = stream.alloc_zeroed::<f32>(13 * 6).unwrap();
        let message = refused(kernels::textures(stream, 0, 3, 0.5, 0.5, &rgb, &mut planes));
        assert!(message.starts_with("kernel `textures` requires `(1..=16384).contains(&height)`"), "{message}");
        assert!(message.contains("height = 0, width = 3"), "{message}");
        for width in [16385, u32::MAX] {
            let message = refused(kernels::textures(stream, 2, width, 0.5, 0.5, &rgb, &mut planes));
            assert!(message.contains("requires `(1..=16384).contains(&width)`"), "{message}");
        }
        let message = refused(kernels::textures(stream, 3, 3, 0.5, 0.5, &rgb, &mut planes));
        assert!(message.contains("requires `rgb.len() == 3 * height * width`"), "{message}");
        assert!(message.contains("rgb = [18 elements at 0x"), "{message}");
        let short = planes.slice_mut(1..).unwrap();
        let message = refused(kernels::textures(stream, 2, 3, 0.5, 0.5, &rgb, short));
        assert!(message.contains("requires `planes.len() == 13 * height * width`"), "{message}");

        let mut features = stream.alloc_zeroed::<f32>(13).unwrap();
        for patch in [0, 16385, u32::MAX] {
            let message = refused(kernels::features(stream, 2, 3, patch, &planes, &mut features));
            assert!(message.contains("`features` requires `(1..=16384).contains(&patch)`"), "{message}");
        }
        let message = refused(kernels::features(stream, 2, 3, 2, &planes, &mut features));
        assert!(message.contains("features.len() == 13 * height.div_ceil(patch) * width.div_ceil(patch)"), "{message}");
        assert!(message.contains("patch = 2"), "{message}");
        let message = refused(kernels::features(stream, 3, 3, 4, &planes, &mut features));
        assert!(message.contains("requires `planes.len() == 13 * height * width`"), "{message}");

        let mut scores = stream.alloc_zeroed::<f32>(2).unwrap();
        let message = refused(kernels::entropy(stream, 2, 3, 4, &rgb, &mut scores));
        assert!(message.contains("`entropy` requires `entropy.len() == height.div_ceil"), "{message}");
        for patch in [0, u32::MAX] {
            let message = refused(kernels::entropy(stream, 2, 3, patch, &rgb, &mut scores));
            assert!(message.contains("`entropy` requires `(1..=16384).contains(&patch)`"), "{message}");
        }
        let message = refused(kernels::entropy(stream, 2, 4, 2, &rgb, &mut scores));
        assert!(message.contains("requires `rgb.len() == 3 * height * width`"), "{message}");

        let entropy = stream.alloc_zeroed::<f32>(1).unwrap();
        let table = stream.alloc_zeroed::<u32>(8).unwrap();
        let (one, two) = scores.split_at_mut(1).unwrap();
        let mut relevance = |patches, largest| {
            let batch = BatchTable { images: 1, patches, largest, table: &table };
            let out = RelevanceMut { salience: one, relevance: two };
            kernels::relevance(stream, &batch, 0.0, [0.5, 0.5], &features, &entropy, out)
        };
        let message = refused(relevance(0, 0));
        assert!(message.contains("`relevance` requires `(1..=268435456).contains(&patches)`"), "{message}");
        let message = refused(relevance(2, 2));
        assert!(message.contains("requires `features.len() == 13 * patches`"), "{message}");
        let message = refused(relevance(1, 2));
        assert!(message.contains("requires `(1..=patches).contains(&largest)`"), "{message}");

        let map = stream.alloc_zeroed::<f32>(4).unwrap();
        let gains = stream.upload_blocking(&[65535u32, 50000]).unwrap();
        let mut sides = stream.alloc::<i32>(4).unwrap();
        let mut cu_seqlens = stream.alloc::<i32>(3).unwrap();
        let mut patch_id = stream.alloc::<i32>(2).unwrap();
        let mut counts = stream.alloc::<u32>(2).unwrap();
        let (mut tokens, mut selected) = (stream.alloc::<i32>(2).unwrap(), stream.alloc::<i32>(2).unwrap());
        let mut allocate = |n, lo, hi, budget| {
            let batch = BatchTable { images: 1, patches: n, largest: n, table: &table };
            let out = SelectionMut {
                sides: &mut sides,
                cu_seqlens: &mut cu_seqlens,
                patch_id: &mut patch_id,
                counts: &mut counts,
                image_cu_seqlens: &mut tokens,
                image_cu_patches: &mut selected,
            };
            kernels::allocate(stream, &batch, Budget { lo, hi, tokens: budget }, &map, &gains, out)
        };
        allocate(4, 2, 3, 11).unwrap();
        for (n, lo, hi, budget, requirement) in [
            (0, 2, 3, 11, "(1..=268435456).contains(&patches)"),
            (4, 0, 1, 11, "1 <= lo"),
            (4, 3, 2, 11, "lo <= hi"),
            (4, 255, 256, 70000, "hi <= 255"),
            (4, 4, 5, 15, "lo * lo <= budget"),
            (4, 2, 3, 1 << 31, "budget <= 2147483647"),
            (4, 2, 3, u64::MAX, "budget <= 2147483647"),
            (3, 2, 3, 11, "relevance.len() == patches"),
            (4, 2, 4, 11, "gains.len() == hi - lo + 1"),
            (4, 2, 3, 12, "cu_seqlens.len() > patches.min(images * (budget / (lo * lo)))"),
        ] {
            let message = refused(allocate(n, lo, hi, budget));
            assert!(message.starts_with(&format!("kernel `allocate_each` requires `{requirement}`")), "{message}");
            assert!(
                message.contains(&format!("patches = {n}, largest = {n}, lo = {lo}, hi = {hi}, budget = {budget}")),
                "{message}"
            );
        }

        let mut tokens = stream.alloc_zeroed::<f32>(13 * 5).unwrap();
        let mut position = stream.alloc_zeroed::<f32>(2 * 5).unwrap();
        let sides = stream.alloc_zeroed::<i32>(6).unwrap();
        let (cu, id) = (stream.alloc_zeroed::<i32>(3).unwrap(), stream.alloc_zeroed::<i32>(2).unwrap());
        let counts = stream.alloc_zeroed::<u32>(2).unwrap();
        let mut compress = |patch, most, capacity| {
            let selection = Selection { sides: &sides, cu_seqlens: &cu, patch_id: &id, counts: &counts, most };
            let out = TokensMut { tokens: &mut tokens, position: &mut position, capacity };
            kernels::compress(stream, 2, 3, patch, &planes, &selection, out)
        };
        compress(1, 2, 5).unwrap();
        for (patch, selected, capacity, requirement) in [
            (0, 2, 5, "(1..=16384).contains(&patch)"),
            (2, 2, 5, "sides.len() == height.div_ceil(patch) * width.div_ceil(patch)"),
            (1, 3, 5, "cu_seqlens.len() > selected"),
            (1, u32::MAX, 5, "cu_seqlens.len() > selected"),
            (1, 2, 4, "tokens.len() == 13 * capacity"),
            (1, 2, u32::MAX, "capacity <= 2147483647"),
        ] {
            let message = refused(compress(patch, selected, capacity));
            assert!(message.starts_with(&format!("kernel `compress` requires `{requirement}`")), "{message}");
        }
        stream.synchronize().unwrap();
    });
}
