//! Query coupling, balance and the reference profile: the f64 reference against the golden files,
//! and every device against both.

use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::sample::select;
use testkit::cases;
use testkit::devices::{devices, on_each_device};
use testkit::fence::{Fenced, same};
use testkit::files::{Tensors, read_png, repository};
use testkit::images::images;
use testkit::oracle::{self, Image, PLANES, SCORE_ERROR, SplitMix, assert_close, max_error, relevance_error, wide};
use thalweg::{Device, Error, LiveBrand, Stream};
use thalweg_vision::kernels::{BatchTable, ParticipatoryMut, RelevanceMut, Salience};
use thalweg_vision::{Head, Layer, Pipeline, Query, TokenParams, TokenSet, arr_coc_0_1, kernels};

use crate::run::given;

/// Half a unit in the last place of an f32 just below 1, and a little.
const ROUNDING: f64 = 3e-8;

// --- heads
// -----------------------------------------------------------------------------------------------

/// The numbers of a layer.
#[derive(Clone, Debug)]
struct Numbers {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Numbers {
    fn layer(&self) -> Layer<'_> {
        Layer { weight: &self.weight, bias: &self.bias }
    }

    fn wide(&self) -> oracle::Layer {
        oracle::Layer { weight: wide(&self.weight), bias: wide(&self.bias) }
    }
}

/// A head, its balancer and a query.
#[derive(Clone, Debug)]
struct Weights {
    head: [Numbers; 2],
    balancer: [Numbers; 3],
    query: Vec<f32>,
    /// Whether the balancer weighs by tensions.
    tensions: bool,
}

impl Weights {
    fn golden() -> &'static Self {
        static GOLDEN: OnceLock<Weights> = OnceLock::new();
        GOLDEN.get_or_init(|| {
            let file = Tensors::read("tests/golden/head-weights.safetensors");
            let layer = |name: &str, i: usize| {
                let tensor = |kind: &str| file.f32(&format!("{name}.{i}.{kind}")).data.clone();
                Numbers { weight: tensor("weight"), bias: tensor("bias") }
            };
            Self {
                head: [0, 2].map(|i| layer("participatory_scorer.texture_proj", i)),
                balancer: [0, 2, 4].map(|i| layer("balancer.weight_predictor", i)),
                query: Tensors::read("tests/golden/query.safetensors").f32("query").data.clone(),
                tensions: false,
            }
        })
    }

    /// Numbers that keep each layer's outputs near 1; a `share` of the weights is 0.
    fn random(dimension: usize, share: f64, seed: u64) -> Self {
        let mut random = SplitMix(seed);
        let mut draw = |n: usize, scale: f64| -> Vec<f32> {
            let mut value = || if random.unit() < share { 0.0 } else { (random.unit() * 2.0 - 1.0) * scale };
            (0..n).map(|_| value() as f32).collect()
        };
        let mut layer = |outputs: usize, inputs: usize| Numbers {
            weight: draw(outputs * inputs, 1.7 / (inputs as f64).sqrt()),
            bias: draw(outputs, 0.3),
        };
        let head = [layer(64, PLANES), layer(dimension, 64)];
        let balancer = [layer(128, 9 + dimension), layer(128, 128), layer(3, 128)];
        let query = draw(dimension, 1.0);
        // Drawn last, so that the other numbers do not depend on it.
        let tensions = random.next() % 2 == 1;
        Self { head, balancer, query, tensions }
    }

    fn build(&self, balancer: bool) -> (Head, Query) {
        let head = Head::new(self.head[0].layer(), self.head[1].layer()).unwrap();
        let head =
            if balancer { head.with_balancer(self.balancer.each_ref().map(Numbers::layer)).unwrap() } else { head };
        let head = head.with_tensions(self.tensions);
        assert_eq!((head.dimension(), head.has_balancer()), (self.query.len(), balancer));
        (head, Query::new(&self.query).unwrap())
    }

    fn head(&self) -> [oracle::Layer; 2] {
        self.head.each_ref().map(Numbers::wide)
    }

    fn balancer(&self) -> [oracle::Layer; 3] {
        self.balancer.each_ref().map(Numbers::wide)
    }

    /// The weights of the scores.
    fn mix(&self, maps: [&[f64]; 3]) -> [f64; 3] {
        let balance = if self.tensions { oracle::balance_by_tensions } else { oracle::balance };
        balance(&self.balancer(), maps, &self.query())
    }

    fn query(&self) -> Vec<f64> {
        wide(&self.query)
    }
}

// --- the reference against the golden files
// --------------------------------------------------------------

#[test]
fn reference_of_chelsea_query() {
    let file = Tensors::read("tests/golden/chelsea-query.safetensors");
    let map = |name: &str| wide(&file.f32(name).data);
    let weights = Weights::golden();

    let participatory = oracle::participatory(&weights.head(), &weights.query(), &map("features"));
    assert_close("participatory", &file.f32("participatory").data, &participatory, ROUNDING);
    let maps = [&map("entropy")[..], &map("salience"), &participatory];
    let mix = oracle::balance(&weights.balancer(), maps, &weights.query());
    assert_close("mix", &file.f32("mix").data, &mix, ROUNDING);
    let (relevance, _) = oracle::relevance(&maps, &mix);
    assert_close("relevance", &file.f32("relevance").data, &relevance, 1e-7);
}

/// Made in f32 by the project itself, so not as near as the others; entropies differ by hundredths
/// and are scaled to 1.
#[test]
fn reference_of_arr_coc_0_1() {
    let file = Tensors::read("tests/golden/arr-coc-0-1-chelsea.safetensors");
    let want = golden_profile();
    for (plane, want) in want.textures.chunks(1024).enumerate() {
        let got = &file.f32("textures").data[plane * 1024..(plane + 1) * 1024];
        assert_close(&format!("plane {plane}"), got, want, 5e-7);
    }
    for (name, want, bound) in [
        ("information", &want.information, 1e-5),
        ("perspectival", &want.perspectival, 5e-7),
        ("participatory", &want.participatory, 1e-7),
        ("relevance", &want.relevance, 1e-5),
    ] {
        println!("{name}: {:e}", max_error(&file.f32(name).data, want));
        assert_close(name, &file.f32(name).data, want, bound);
    }
    check_ranks("the golden file", &file.i32("topk").data, &want.relevance);
}

fn golden_profile() -> oracle::Profile {
    let weights = Weights::golden();
    let image = read_png("assets/photos/chelsea.png");
    oracle::arr_coc_0_1(&image, &weights.head(), Some(&weights.balancer()), &weights.query())
}

/// Checks that `order` is that of the reference's relevance, but for neighbors closer than 2e-5.
#[track_caller]
fn check_ranks(what: &str, order: &[i32], relevance: &[f64]) {
    let want = oracle::top(relevance, order.len());
    let mut differing = 0;
    for (rank, (&got, &want)) in order.iter().zip(&want).enumerate() {
        let (a, b) = (relevance[got as usize], relevance[want]);
        assert!((a - b).abs() < 2e-5, "{what}: rank {rank} is patch {got} of {a}, the reference {want} of {b}");
        differing += usize::from(got as usize != want);
    }
    let mut distinct = order.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), order.len(), "{what}: a patch has two ranks");
    println!("{what}: {differing} of {} ranks differ from the reference", order.len());
}

// --- the pipeline with a query
// -----------------------------------------------------------------------------

/// Checks the maps of a run with a query against the reference on the run's own features and
/// scores, and its sides.
#[track_caller]
fn check_run(what: &str, run: &TokenSet, params: &TokenParams, weights: &Weights, mix: Option<[f64; 3]>) {
    let participatory = oracle::participatory(&weights.head(), &weights.query(), &wide(&run.features));
    let condition = oracle::participatory_condition(&weights.head(), &wide(&run.features));
    let got = run.participatory.as_ref().unwrap();
    check_participatory(what, got, &participatory, &condition);
    // From here on its own scores: what is checked is the balance of them.
    let maps = [wide(&run.entropy), wide(&run.salience), wide(got)];
    let maps = [&maps[0][..], &maps[1], &maps[2]];
    let want = mix.unwrap_or_else(|| weights.mix(maps));
    assert_close(&format!("{what}: mix"), &run.mix.unwrap(), &want, 2e-6);
    let (relevance, spread) = oracle::relevance(&maps, &run.mix.unwrap().map(f64::from));
    assert_close(&format!("{what}: relevance"), &run.relevance, &relevance, relevance_error(spread));

    let sides = crate::run::reference_sides(run, params);
    assert_eq!(run.sides, sides.iter().map(|&n| n as i32).collect::<Vec<_>>(), "{what}: sides");
}

/// Within the bound of scores; beyond, only where the projection nearly cancels and f32 cannot know
/// better.
#[track_caller]
fn check_participatory(what: &str, got: &[f32], want: &[f64], condition: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let bound = (2e-7 * condition[i]).clamp(2e-6, 1.0);
        let error = (f64::from(got) - want).abs();
        assert!(
            error <= bound,
            "{what}: participatory[{i}] is {got}, the reference {want}: off by {error:e}, condition {}",
            condition[i]
        );
        assert!((0.0..=1.0).contains(&got));
    }
}

#[test]
fn chelsea_with_a_query() {
    let file = Tensors::read("tests/golden/chelsea-query.safetensors");
    let weights = Weights::golden();
    let (head, query) = weights.build(true);
    let image = given(&read_png("assets/photos/chelsea.png"));
    let map = |name: &str| wide(&file.f32(name).data);
    let mix = map("mix");
    let (entropy, salience, participatory) = (map("entropy"), map("salience"), map("participatory"));
    let (_, spread) = oracle::relevance(&[&entropy, &salience, &participatory], &mix);
    for &device in devices() {
        let what = format!("chelsea with a query on {device}");
        let pipeline = Pipeline::new(device, TokenParams::default()).unwrap().with_query(&head, &query).unwrap();
        // Twice, since the weights stay.
        for run in pipeline.run(&[image.clone(), image.clone()]) {
            let run = run.unwrap();
            for (name, values, bound) in [
                ("features", &run.features, SCORE_ERROR),
                ("entropy", &run.entropy, SCORE_ERROR),
                ("salience", &run.salience, SCORE_ERROR),
                ("participatory", run.participatory.as_ref().unwrap(), 2e-6),
                ("relevance", &run.relevance, relevance_error(spread)),
            ] {
                println!("{what}: {name} {:e}", max_error(values, &map(name)));
                assert_close(&format!("{what}: {name}"), values, &map(name), bound);
            }
            assert_close(&format!("{what}: mix"), &run.mix.unwrap(), &mix, 2e-6);
            check_run(&what, &run, pipeline.params(), weights, None);
            let same = run.sides == file.i32("sides").data;
            println!("{what}: sides as in the file: {same}");
            if same {
                assert_eq!(run.cu_seqlens, file.i32("cu_seqlens").data, "{what}: cu_seqlens");
                assert_eq!(run.patch_id, file.i32("patch_id").data, "{what}: patch_id");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn pipeline_with_a_query(
        spec in images(150),
        patch in prop_oneof![8u32..=40, Just(16384)],
        dimension in prop_oneof![1usize..=300, select(vec![1, 2, 64, 65, 66])],
        seed in any::<u64>(),
        mix in prop_oneof![
            Just(None),
            (0f32..1.0, 0f32..1.0, 0.01f32..1.0).prop_map(|(a, b, c)| Some([a, b, c])),
            Just(Some([0.0, 0.0, 1.0])),
        ],
        balancer in any::<bool>(),
        foveal_bias in prop_oneof![Just(0f32), 0f32..=1.0],
    ) {
        let weights = Weights::random(dimension, 0.0, seed);
        let (head, query) = weights.build(balancer);
        let params = TokenParams::default()
            .with_patch(patch)
            .with_budget(300)
            .with_sides(2..=5)
            .with_mix(mix)
            .with_foveal_bias(foveal_bias);
        let image = given(&spec.build());
        let expected = match mix {
            Some(mix) => Some(mix.map(f64::from)),
            None if balancer => None,
            None => Some([1.0 / 3.0; 3]),
        };
        for &device in devices() {
            let pipeline = Pipeline::new(device, params.clone()).unwrap().with_query(&head, &query).unwrap();
            let run = pipeline.run(std::slice::from_ref(&image)).remove(0).unwrap();
            check_run(&format!("{device}"), &run, &params, &weights, expected);
        }
    }
}

/// Whatever order the streams' work runs in, as long as events allow it: the same bits.
#[test]
fn every_schedule_gives_the_same() {
    let (head, query) = Weights::golden().build(true);
    let spec =
        |seed| oracle::ImageSpec { height: 70, width: 90, content: oracle::Content::Noise, saturated: false, seed };
    let images = [1, 2, 3].map(|seed| given(&spec(seed).build()));
    let run = |device: Device| -> (Vec<TokenSet>, Vec<arr_coc_0_1::Maps>) {
        let pipeline = Pipeline::new(device, TokenParams::default().with_budget(200)).unwrap();
        let sets = pipeline.with_query(&head, &query).unwrap().run(&images);
        let maps = arr_coc_0_1::Profile::new(device, &head, &query).unwrap().run(&images).unwrap();
        (sets.into_iter().map(Result::unwrap).collect(), maps)
    };
    let want = run(Device::cpu().unwrap());
    let device = Device::seeded_cpu(0).unwrap();
    for seed in 0..6 {
        device.reseed(seed);
        assert_eq!(run(device), want, "seed {seed}");
    }
}

// --- kernels
// ---------------------------------------------------------------------------------------------

/// What `participatory` and its followers computed.
struct Scores {
    participatory: Vec<f32>,
    /// As `participatory` leaves it.
    salient: Vec<f32>,
    summaries: Vec<f32>,
    mix: Vec<f32>,
    salience: Vec<f32>,
    relevance: Vec<f32>,
}

struct Inputs {
    /// Patches of each image.
    counts: Vec<usize>,
    edge: u32,
    least_peak: f32,
    bias: f32,
    features: Vec<f32>,
    entropy: Vec<f32>,
    shift: usize,
}

fn run_scores<S: LiveBrand>(
    stream: &Stream<S>,
    inputs: &Inputs,
    coupling: &[f32],
    predictor: (&[f32], bool),
) -> Scores {
    let (predictor, tensions) = predictor;
    let &Inputs { ref counts, edge, least_peak, bias, shift, .. } = inputs;
    // As of images of one row of patches of a pixel.
    let sizes: Vec<[u32; 2]> = counts.iter().map(|&n| [1, n as u32]).collect();
    let layout = kernels::BatchLayout::new(&sizes, 1).unwrap();
    let count = layout.patches() as usize;
    let pieces = count / 64 + counts.len();
    let table = Fenced::new(stream, layout.table(), 0);
    let features = Fenced::new(stream, &inputs.features, shift);
    let entropy = Fenced::new(stream, &inputs.entropy, shift);
    let coupling = Fenced::new(stream, coupling, 0);
    let predictor = Fenced::new(stream, predictor, shift);
    let mut participatory = Fenced::room(stream, count, shift);
    let mut salience = Fenced::room(stream, count, shift);
    let mut summaries = Fenced::room(stream, 12 * pieces, shift);
    let mut mix = Fenced::room(stream, 3 * counts.len(), shift);
    let mut relevance = Fenced::room(stream, count, shift);
    let batch = layout.batch(table.slice());
    let how = Salience { edge, least_peak, foveal_bias: bias };
    let out = ParticipatoryMut {
        participatory: participatory.slice_mut(),
        salience: salience.slice_mut(),
        summaries: summaries.slice_mut(),
    };
    kernels::participatory(stream, &batch, how, features.slice(), entropy.slice(), coupling.slice(), out).unwrap();
    let salient = salience.read();
    kernels::balance(stream, &batch, summaries.slice(), predictor.slice(), tensions, mix.slice_mut()).unwrap();
    let scores = kernels::Scores {
        entropy: entropy.slice(),
        participatory: participatory.slice(),
        summaries: summaries.slice(),
        mix: mix.slice(),
    };
    let out = RelevanceMut { salience: salience.slice_mut(), relevance: relevance.slice_mut() };
    kernels::relevance_with_query(stream, &batch, &scores, out).unwrap();
    Scores {
        participatory: participatory.read(),
        salient,
        summaries: summaries.read(),
        mix: mix.read(),
        salience: salience.read(),
        relevance: relevance.read(),
    }
}

/// Patches of an image: next to a block's 64, to where other blocks grow, and past the largest.
fn counts() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 1usize..300,
        8 => select(vec![1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257, 513]),
        1 => select(vec![2047, 2049, 8191, 8193]),
    ]
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn scores_balance_and_relevance(
        counts in prop::collection::vec(counts(), 1..6),
        dimension in prop_oneof![1usize..=300, select(vec![1, 2, 64, 65, 66])],
        share in select(vec![0.0, 0.0, 0.5, 1.0]),
        flat in any::<bool>(),
        edge in select(vec![8u32, 8, 7, 0]),
        least_peak in select(vec![0f32, 1.0]),
        bias in prop_oneof![Just(0f32), 0f32..=1.0],
        seed in any::<u64>(),
        shift in prop_oneof![Just(0), 0usize..9],
    ) {
        let weights = Weights::random(dimension, share, seed);
        let (head, query) = weights.build(true);
        let (coupling, predictor) = (head.projection(&query).unwrap(), head.balancer_weights(&query).unwrap().unwrap());
        let mut random = SplitMix(seed);
        let all = counts.iter().sum();
        let features: Vec<f32> = (0..all * PLANES).map(|_| random.unit() as f32).collect();
        let entropy: Vec<f32> = (0..all).map(|_| random.unit() as f32).collect();
        let inputs = Inputs { counts, edge, least_peak, bias, features, entropy, shift };
        let inputs = if flat {
            Inputs { features: [0.25; PLANES].repeat(all), entropy: vec![0.5; all], ..inputs }
        } else {
            inputs
        };
        let balancer = (&predictor[..], weights.tensions);
        on_each_device(|stream| check_scores(&inputs, &weights, &run_scores(stream, &inputs, &coupling, balancer)));
    }
}

/// Patches past the end of an image share a tile with the last ones, which their threads write. The
/// checked device reports a thread that reads a patch of another one.
#[test]
fn scores_of_images_that_end_within_a_tile() {
    let weights = Weights::random(64, 0.0, 3);
    let (head, query) = weights.build(true);
    let (coupling, predictor) = (head.projection(&query).unwrap(), head.balancer_weights(&query).unwrap().unwrap());
    for n in [8193, 9001, 10241] {
        let mut random = SplitMix(n as u64);
        let features = (0..n * PLANES).map(|_| random.unit() as f32).collect();
        let entropy = (0..n).map(|_| random.unit() as f32).collect();
        let inputs = Inputs { counts: vec![n], edge: 8, least_peak: 0.0, bias: 0.5, features, entropy, shift: 0 };
        let balancer = (&predictor[..], weights.tensions);
        on_each_device(|stream| check_scores(&inputs, &weights, &run_scores(stream, &inputs, &coupling, balancer)));
    }
}

#[track_caller]
fn check_scores(inputs: &Inputs, weights: &Weights, got: &Scores) {
    let &Inputs { edge, least_peak, bias, .. } = inputs;
    let features = wide(&inputs.features);
    let want = oracle::participatory(&weights.head(), &weights.query(), &features);
    let condition = oracle::participatory_condition(&weights.head(), &features);
    check_participatory("kernel", &got.participatory, &want, &condition);

    let (mut start, all) = (0, got.summaries.len() / 12);
    for (image, &n) in inputs.counts.iter().enumerate() {
        let (patches, piece) = (start..start + n, start / 64 + image);
        start += n;
        let feature = |plane: usize| -> Vec<f64> {
            features[patches.start * PLANES..patches.end * PLANES].chunks(PLANES).map(|f| f[plane]).collect()
        };
        let edges = feature(edge as usize);
        let salient: Vec<f64> =
            edges.iter().zip(feature(11)).map(|(edge, far)| edge * (1.0 - f64::from(bias) * far)).collect();
        assert_close("salient", &got.salient[patches.clone()], &salient, 2e-7);

        let entropy = wide(&inputs.entropy[patches.clone()]);
        let participatory = wide(&got.participatory[patches.clone()]);
        for (map, values) in [&entropy, &salient, &participatory, &edges].into_iter().enumerate() {
            for (block, values) in values.chunks(64).enumerate() {
                let sum: f64 = values.iter().sum();
                let mean = sum / values.len() as f64;
                let squares = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
                let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let most = if map == 3 { most.max(f64::from(least_peak)) } else { most };
                for (k, (want, bound)) in [(sum, 1e-5), (squares, 5e-6), (most, 2e-7)].into_iter().enumerate() {
                    let got = got.summaries[(map * 3 + k) * all + piece + block];
                    assert_close(&format!("summary {k} of map {map}"), &[got], &[want], bound);
                }
            }
        }

        let peak = edges.iter().copied().fold(f64::from(least_peak), f64::max);
        let salience: Vec<f64> = salient.iter().map(|s| if peak > 0.0 { s / peak } else { 0.0 }).collect();
        assert_close("salience", &got.salience[patches.clone()], &salience, 5e-7);
        let maps = [&entropy[..], &salience, &participatory];
        let mix = weights.mix(maps);
        let got_mix = &got.mix[3 * image..3 * image + 3];
        assert_close("mix", got_mix, &mix, 2e-6);
        let (relevance, spread) = oracle::relevance(&maps, &wide(got_mix));
        assert_close("relevance", &got.relevance[patches], &relevance, relevance_error(spread));
    }
}

/// Relevances of an image, some of them equal.
fn values(len: usize, seed: u64, levels: u64) -> Vec<f32> {
    let mut random = SplitMix(seed);
    (0..len).map(|_| (random.next() % levels) as f32 / levels as f32).collect()
}

fn run_top<S: LiveBrand>(stream: &Stream<S>, images: usize, k: usize, values: &[f32], shift: usize) -> Vec<i32> {
    let n = values.len() / images;
    let values = Fenced::new(stream, values, 0);
    let mut order = Fenced::room(stream, images * k, shift);
    kernels::top(stream, images as u32, n as u32, k as u32, values.slice(), order.slice_mut()).unwrap();
    order.read()
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn top(
        quarter in 1usize..300,
        images in 1usize..4,
        share in 0.0..=1.0,
        levels in select(vec![1u64, 3, 100, 1 << 30]),
        seed in any::<u64>(),
        shift in 0usize..9,
    ) {
        let n = 4 * quarter;
        let k = (n as f64 * share) as usize;
        let values = values(images * n, seed, levels);
        let want: Vec<i32> =
            values.chunks(n).flat_map(|values| oracle::top(values, k)).map(|i| i as i32).collect();
        on_each_device(|stream| assert_eq!(run_top(stream, images, k, &values, shift), want));
    }
}

/// Whatever the numbers are, ranks are a permutation; 0 and -0 are equal.
#[test]
fn top_of_anything() {
    let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, -1e-40];
    let values: Vec<f32> = odd.iter().cycle().copied().take(96).collect();
    on_each_device(|stream| {
        let mut order = run_top(stream, 1, 96, &values, 0);
        let zeros: Vec<i32> = order.iter().copied().filter(|&i| values[i as usize] == 0.0).collect();
        assert!(zeros.is_sorted(), "{zeros:?}");
        order.sort_unstable();
        assert!(order.iter().copied().eq(0..96));
    });
}

// --- the reference profile
// -------------------------------------------------------------------------------

/// Checks a run of the profile; `top` only as an order of its own relevance.
#[track_caller]
fn check_profile(what: &str, got: &arr_coc_0_1::Maps, want: &oracle::Profile, weights: &Weights, balancer: bool) {
    let part = |plane: usize| plane * 1024..(plane + 1) * 1024;
    for (plane, bound) in
        [0, 1, 2, 8, 9, 10].map(|plane| (plane, 2e-6)).into_iter().chain([3, 4, 12].map(|plane| (plane, 1e-5)))
    {
        assert_close(&format!("{what}: plane {plane}"), &got.textures[part(plane)], &want.textures[part(plane)], bound);
    }
    // What is scaled by its range, from what it is a range of: rounding grows as the range shrinks.
    for (plane, range) in [(5, want.ranges[0]), (6, want.ranges[1]), (7, want.ranges[2]), (11, want.ranges[2])] {
        let bound = (5e-7 / (range + 1e-8)).clamp(1e-6, 1.0);
        assert_close(&format!("{what}: plane {plane}"), &got.textures[part(plane)], &want.textures[part(plane)], bound);
    }
    assert_eq!(got.perspectival, got.textures[part(7)], "{what}: perspectival");

    let features: Vec<f64> =
        (0..1024).flat_map(|i| got.textures.iter().skip(i).step_by(1024).map(|&v| f64::from(v))).collect();
    let (information, range) = oracle::profile_information(&features);
    // Two entropies, of 13 terms and at most ln 13 each: twelve roundings of its sum are 7.6e-7.
    let bound = (1.6e-6 / (range + 1e-8)).clamp(2e-6, 1.0);
    assert_close(&format!("{what}: information"), &got.information, &information, bound);
    let participatory = oracle::participatory(&weights.head(), &weights.query(), &features);
    let condition = oracle::participatory_condition(&weights.head(), &features);
    check_participatory(what, &got.participatory, &participatory, &condition);

    let maps = [wide(&got.information), wide(&got.perspectival), wide(&got.participatory)];
    let maps = [&maps[0][..], &maps[1], &maps[2]];
    let mix = if balancer { oracle::balance(&weights.balancer(), maps, &weights.query()) } else { [1.0 / 3.0; 3] };
    assert_close(&format!("{what}: mix"), &got.mix, &mix, 2e-6);
    let (relevance, spread) = oracle::relevance(&maps, &got.mix.map(f64::from));
    assert_close(&format!("{what}: relevance"), &got.relevance, &relevance, relevance_error(spread));
    let order: Vec<i32> = oracle::top(&got.relevance, 200).into_iter().map(|i| i as i32).collect();
    assert_eq!(got.topk, order, "{what}: topk");
}

#[test]
fn arr_coc_0_1_of_chelsea() {
    let file = Tensors::read("tests/golden/arr-coc-0-1-chelsea.safetensors");
    let weights = Weights::golden();
    let (head, query) = weights.build(true);
    let image = read_png("assets/photos/chelsea.png");
    let want = golden_profile();
    for &device in devices() {
        let what = format!("arr-coc-0-1 on {device}");
        let profile = arr_coc_0_1::Profile::new(device, &head, &query).unwrap();
        let got = profile.run(&[given(&image)]).unwrap().remove(0);
        for (name, values) in [
            ("textures", &got.textures),
            ("information", &got.information),
            ("perspectival", &got.perspectival),
            ("participatory", &got.participatory),
            ("relevance", &got.relevance),
        ] {
            println!("{what}: {name} {:e}", max_error(values, &wide(&file.f32(name).data)));
            assert_close(&format!("{what}: {name}"), values, &wide(&file.f32(name).data), SCORE_ERROR);
        }
        println!("{what}: information {:e} from the reference", max_error(&got.information, &want.information));
        assert_close(&what, &got.information, &want.information, SCORE_ERROR);
        check_ranks(&what, &got.topk, &wide(&file.f32("relevance").data));
        check_ranks(&what, &got.topk, &want.relevance);
        check_profile(&what, &got, &want, weights, true);
    }
}

proptest! {
    #![proptest_config(cases(12))]

    /// Images of all sizes, side by side, one by one the same.
    #[test]
    fn profiles(specs in prop::collection::vec(images(200), 1..4), dimension in 1usize..=80, seed in any::<u64>()) {
        let weights = Weights::random(dimension, 0.0, seed);
        let (head, query) = weights.build(seed % 2 == 0);
        let images: Vec<Image> = specs.iter().map(|spec| spec.build()).collect();
        let given: Vec<thalweg_vision::Image> = images.iter().map(given).collect();
        let want: Vec<oracle::Profile> = images.iter().map(|image| {
            let balancer = weights.balancer();
            oracle::arr_coc_0_1(image, &weights.head(), (seed % 2 == 0).then_some(&balancer), &weights.query())
        }).collect();
        for &device in devices() {
            let profile = arr_coc_0_1::Profile::new(device, &head, &query).unwrap();
            let all = profile.run(&given).unwrap();
            assert_eq!(all.len(), given.len());
            for (i, (got, want)) in all.iter().zip(&want).enumerate() {
                check_profile(&format!("{device}, image {i}"), got, want, &weights, seed % 2 == 0);
                assert_eq!(*got, profile.run(&given[i..=i]).unwrap()[0], "{device}: image {i} alone");
            }
        }
    }
}

/// The largest and the thinnest images, and one larger than what the others are resized from.
#[test]
fn profiles_of_extreme_sizes() {
    let weights = Weights::random(5, 0.0, 1);
    let (head, query) = weights.build(false);
    for (height, width) in [(1, 1), (1, 16384), (16384, 1), (16384, 3), (512, 512), (1024, 513), (511, 1500)] {
        let mut random = SplitMix(height as u64);
        let image = Image { height, width, rgb: (0..3 * height * width).map(|_| random.byte()).collect() };
        let want = oracle::arr_coc_0_1(&image, &weights.head(), None, &weights.query());
        for &device in devices() {
            let profile = arr_coc_0_1::Profile::new(device, &head, &query).unwrap();
            let got = profile.run(&[given(&image)]).unwrap().remove(0);
            check_profile(&format!("{height} x {width} on {device}"), &got, &want, &weights, false);
        }
    }
}

/// One image more than a launch takes is refused, before anything is allocated or launched.
#[test]
fn a_profile_of_too_many_images() {
    let (head, query) = Weights::golden().build(true);
    on_each_device(|stream| {
        let profile = arr_coc_0_1::Profile::new(stream.device(), &head, &query).unwrap();
        let message = "batch is 65536 images, expected at most 65535";
        assert_eq!(profile.alloc(stream, 65536).err().unwrap().to_string(), message);
        let table = stream.alloc_zeroed(3 * 65536).unwrap();
        let rgb = stream.alloc_zeroed(3).unwrap();
        let mut maps = profile.alloc(stream, 1).unwrap();
        assert_eq!(profile.enqueue(stream, &table, &rgb, &mut maps).unwrap_err().to_string(), message);
        assert!(matches!(profile.alloc(stream, usize::MAX), Err(Error::Parameter { name: "batch", .. })));
    });
}

#[test]
fn a_profile_of_no_images() {
    let (head, query) = Weights::golden().build(true);
    let profile = arr_coc_0_1::Profile::new(Device::best().unwrap(), &head, &query).unwrap();
    assert_eq!(profile.run(&[]).unwrap(), []);
}

proptest! {
    #![proptest_config(cases(24))]

    /// Whatever the buffers hold: nothing outside is read or written, and the launch succeeds.
    #[test]
    fn garbage_stays_inside(n in 1usize..200, images in 1usize..3, seed in any::<u64>(), shift in 0usize..9) {
        let mut random = SplitMix(seed);
        let mut garbage = |len: usize| -> Vec<f32> {
            let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 0.0, -0.0, 1e-40, 1.0];
            (0..len).map(|_| match random.next() % 16 {
                i @ 0..8 => odd[i as usize],
                _ => f32::from_bits(random.next() as u32),
            }).collect()
        };
        let inputs = Inputs {
            counts: vec![n; images], edge: (seed % 13) as u32, least_peak: 0.0, bias: 0.5,
            features: garbage(images * n * PLANES), entropy: garbage(images * n), shift,
        };
        let (coupling, predictor, numbers) = (garbage(3400), garbage(18179), garbage(4 * n * images));
        let planes = garbage(images * 13 * 1024);
        // Mostly numbers that nearly make sense.
        let bytes: Vec<u8> = (0..3 * n).map(|_| random.byte()).collect();
        let table: Vec<u32> = (0..3 * images).map(|_| match random.next() % 4 {
            0 => random.next() as u32,
            1 => u32::MAX - (random.next() % 3) as u32,
            _ => (random.next() % (n as u64 / 2 + 3)) as u32,
        }).collect();
        on_each_device(|stream| {
            run_scores(stream, &inputs, &coupling, (&predictor, (seed & 1) == 1));
            let mut order = run_top(stream, images, 4 * n, &numbers, shift);
            order.chunks_mut(4 * n).for_each(|order| order.sort_unstable());
            assert!(order.chunks(4 * n).all(|order| order.iter().copied().eq(0..4 * n as i32)));

            let (count, bytes_len) = (images as u32, bytes.len() as u32);
            let table = Fenced::new(stream, &table, shift);
            let rgb = Fenced::new(stream, &bytes, shift);
            let mut textures = Fenced::room(stream, images * 13 * 1024, shift);
            kernels::profile_sample(stream, count, bytes_len, table.slice(), rgb.slice(), textures.slice_mut()).unwrap();
            let sampled = textures.read();
            for image in sampled.chunks(13 * 1024) {
                let range = -2e-5..=1.0 + 2e-5; // the planes' error
                assert!(image[..5 * 1024].iter().all(|v| range.contains(v)), "a plane is no mean of the image");
                assert!(image[8 * 1024..].iter().all(|v| same(v, &<f32 as testkit::fence::Fence>::FENCE)));
            }
            let mut textures = Fenced::new(stream, &planes, shift);
            let mut features = Fenced::room(stream, images * 13 * 1024, shift);
            let mut information = Fenced::room(stream, images * 1024, shift);
            kernels::profile_scale(stream, count, textures.slice_mut(), features.slice_mut(), information.slice_mut())
                .unwrap();
            textures.read();
            features.read();
            information.read();
        });
    }
}

// --- what is refused
// -------------------------------------------------------------------------------------

#[track_caller]
fn refused<T: std::fmt::Debug>(result: thalweg_vision::Result<T>, tensor: &str, words: &[&str]) {
    let error = result.expect_err("it is refused");
    assert!(matches!(error, thalweg_vision::Error::Tensor { name, .. } if name == tensor), "{error:?}");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "no {word:?} in {message:?}");
    }
}

#[test]
fn weights_of_other_shapes_are_refused() {
    let weights = Weights::random(7, 0.0, 3);
    let [hidden, projection] = weights.head.each_ref().map(Numbers::layer);
    let name = "participatory_scorer.texture_proj.0.weight";
    refused(Head::new(Layer { weight: &hidden.weight[1..], ..hidden }, projection), name, &["831 numbers", "[64, 13]"]);
    let name = "participatory_scorer.texture_proj.0.bias";
    refused(Head::new(Layer { bias: &[0.0; 65], ..hidden }, projection), name, &["65 numbers", "[64]"]);
    let name = "participatory_scorer.texture_proj.2.weight";
    refused(Head::new(hidden, Layer { bias: &[0.0; 6], ..projection }), name, &["448 numbers", "[6, 64]"]);
    let name = "participatory_scorer.texture_proj.2.bias";
    refused(Head::new(hidden, Layer { bias: &[], ..projection }), name, &["empty"]);
    let mut broken = weights.head[1].clone();
    broken.weight[70] = f32::NAN;
    let name = "participatory_scorer.texture_proj.2.weight";
    refused(Head::new(hidden, broken.layer()), name, &["NaN at element 70", "finite"]);

    let (head, query) = weights.build(false);
    let layers = weights.balancer.each_ref().map(Numbers::layer);
    let name = "balancer.weight_predictor.0.weight";
    let mut wrong = layers;
    wrong[0].weight = &layers[0].weight[..128 * 15];
    refused(head.clone().with_balancer(wrong), name, &["1920 numbers", "[128, 16]"]);
    let mut wrong = layers;
    wrong[2].bias = &[0.0, f32::INFINITY, 0.0];
    refused(head.clone().with_balancer(wrong), "balancer.weight_predictor.4.bias", &["inf at element 1"]);

    refused(Query::new(&[]), "query", &["empty"]);
    refused(Query::new(&[1.0, f32::NEG_INFINITY]), "query", &["-inf at element 1"]);
    let other = Query::new(&[1.0; 8]).unwrap();
    refused(head.projection(&other), "query", &["[8]", "[7], the dimension of the head"]);
    refused(head.balancer_weights(&other), "query", &["[8]"]);
    let pipeline = || Pipeline::new(Device::best().unwrap(), TokenParams::default()).unwrap();
    refused(pipeline().with_query(&head, &other), "query", &["[8]"]);
    refused(arr_coc_0_1::Profile::new(Device::best().unwrap(), &head, &other), "query", &["[8]"]);
    assert!(pipeline().with_query(&head, &query).is_ok());
}

#[test]
fn a_weight_for_a_query_that_is_not_there_is_refused() {
    let image = thalweg_vision::Image::new(1, 1, vec![1, 2, 3]).unwrap();
    let params = |mix| TokenParams::default().with_mix(Some(mix));
    let pipeline = Pipeline::new(Device::best().unwrap(), params([0.5, 0.4, 0.1])).unwrap();
    let error = pipeline.run(std::slice::from_ref(&image)).remove(0).unwrap_err();
    assert!(error.to_string().contains("mix is 0.1 for the participatory score, expected 0"), "{error}");
    let pipeline = Pipeline::new(Device::best().unwrap(), params([0.5, 0.4, 0.0])).unwrap();
    let run = pipeline.run(std::slice::from_ref(&image)).remove(0).unwrap();
    assert_eq!((run.participatory, run.mix), (None, None));
    for mix in [[0.0; 3], [1.0, -1.0, 1.0], [f32::NAN, 1.0, 1.0], [f32::INFINITY, 0.0, 0.0]] {
        assert!(matches!(params(mix).validate(), Err(Error::Parameter { name: "mix", .. })), "{mix:?}");
    }
}

/// Nobody's query is left out without a word.
#[test]
fn a_pipeline_without_a_query_takes_none_later() {
    let (head, query) = Weights::random(8, 0.0, 5).build(false);
    on_each_device(|stream| {
        let pipeline = Pipeline::new(stream.device(), TokenParams::default()).unwrap();
        let mut workspace = pipeline.workspace(stream, &[thalweg::Size::new(64, 64)]).unwrap();
        for found in [
            workspace.set_query(stream, &head, &query),
            workspace.set_queries(stream, &head, &[]),
            workspace.set_queries(stream, &head, std::slice::from_ref(&query)),
        ] {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("the pipeline was made without a query"), "{error}");
        }
    });
}

#[test]
fn refused_launches_say_why() {
    on_each_device(|stream| {
        let coupling = stream.alloc_zeroed::<f32>(3401).unwrap();
        let features = stream.alloc_zeroed::<f32>(13 * 4).unwrap();
        let maps = stream.alloc_zeroed::<f32>(4).unwrap();
        let (mut a, mut b) = (stream.alloc_zeroed::<f32>(4).unwrap(), stream.alloc_zeroed::<f32>(4).unwrap());
        let mut summaries = stream.alloc_zeroed::<f32>(12).unwrap();
        let table = stream.alloc_zeroed::<u32>(8).unwrap();
        let mut couple = |n, edge, coupling| {
            let batch = BatchTable { images: 1, patches: n, largest: n, table: &table };
            let how = Salience { edge, least_peak: 0.0, foveal_bias: 0.0 };
            let out = ParticipatoryMut { participatory: &mut a, salience: &mut b, summaries: &mut summaries };
            kernels::participatory(stream, &batch, how, &features, &maps, coupling, out)
        };
        let message = |result: thalweg::Result<()>| match result {
            Err(error @ Error::Launch(_)) => error.to_string(),
            other => panic!("expected Error::Launch, found {other:?}"),
        };
        couple(4, 8, coupling.slice(..3400).unwrap()).unwrap();
        for (result, requirement) in [
            (couple(0, 8, coupling.slice(..3400).unwrap()), "(1..=268435456).contains(&patches)"),
            (couple(4, 13, coupling.slice(..3400).unwrap()), "edge < 13"),
            (couple(5, 8, coupling.slice(..3400).unwrap()), "features.len() == 13 * patches"),
            (couple(4, 8, &coupling), "coupling.len() == 3400 * queries"),
            (couple(4, 8, coupling.slice(1..).unwrap()), "coupling.is_aligned(16)"),
        ] {
            let message = message(result);
            assert!(message.contains(&format!("`participatory` requires `{requirement}`")), "{message}");
        }
        let mut order = stream.alloc_zeroed::<i32>(4).unwrap();
        for (n, k, requirement) in [(4, 5, "k <= n"), (3, 2, "n.is_multiple_of(4)"), (65540, 2, "n <= 65536")] {
            let message = message(kernels::top(stream, 1, n, k, &maps, &mut order));
            assert!(message.contains(&format!("`top` requires `{requirement}`")), "{message}");
        }
        stream.synchronize().unwrap();
    });
}

// --- files
// -----------------------------------------------------------------------------------------------

mod files {
    use super::*;
    use safetensors::tensor::TensorView;
    use safetensors::{Dtype, serialize};

    /// A tensor: name, type, shape, bytes.
    type Raw = (&'static str, Dtype, Vec<usize>, Vec<u8>);

    fn file(tensors: &[Raw]) -> Vec<u8> {
        let views = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
        serialize(views, None).unwrap()
    }

    fn f32(name: &'static str, shape: &[usize], values: &[f32]) -> Raw {
        (name, Dtype::F32, shape.to_vec(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Head and balancer with D = 2.
    fn tensors(weights: &Weights) -> Vec<Raw> {
        let [hidden, projection] = &weights.head;
        let [first, second, third] = &weights.balancer;
        vec![
            f32("participatory_scorer.texture_proj.0.weight", &[64, 13, 1, 1], &hidden.weight),
            f32("participatory_scorer.texture_proj.0.bias", &[64], &hidden.bias),
            f32("participatory_scorer.texture_proj.2.weight", &[2, 64], &projection.weight),
            f32("participatory_scorer.texture_proj.2.bias", &[2], &projection.bias),
            f32("balancer.weight_predictor.0.weight", &[128, 11], &first.weight),
            f32("balancer.weight_predictor.0.bias", &[128], &first.bias),
            f32("balancer.weight_predictor.2.weight", &[128, 128], &second.weight),
            f32("balancer.weight_predictor.2.bias", &[128], &second.bias),
            f32("balancer.weight_predictor.4.weight", &[3, 128], &third.weight),
            f32("balancer.weight_predictor.4.bias", &[3], &third.bias),
            f32("something.else", &[1], &[f32::NAN]),
        ]
    }

    #[test]
    fn golden_files_are_what_they_hold() {
        let read = |name: &str| std::fs::read(repository(format!("tests/golden/{name}.safetensors"))).unwrap();
        let head = Head::from_safetensors(&read("head-weights")).unwrap();
        let query = Query::from_safetensors(&read("query")).unwrap();
        let (want, want_query) = Weights::golden().build(true);
        assert_eq!(query, want_query);
        assert_eq!(head.projection(&query).unwrap(), want.projection(&query).unwrap());
        assert_eq!(head.balancer_weights(&query).unwrap(), want.balancer_weights(&query).unwrap());
    }

    #[test]
    fn shapes_types_and_names() {
        let weights = Weights::random(2, 0.0, 9);
        let all = tensors(&weights);
        let (want, query) = weights.build(true);
        let head = Head::from_safetensors(&file(&all)).unwrap();
        assert_eq!(head.balancer_weights(&query).unwrap(), want.balancer_weights(&query).unwrap());
        assert!(!Head::from_safetensors(&file(&all[..4])).unwrap().has_balancer());

        for i in 0..10 {
            let name = all[i].0;
            let mut some = all.clone();
            some.remove(i);
            refused(Head::from_safetensors(&file(&some)), name, &["is missing"]);
            let mut some = all.clone();
            some[i].2.insert(0, 1);
            refused(Head::from_safetensors(&file(&some)), name, &[]);
            let mut some = all.clone();
            some[i].1 = Dtype::I32;
            refused(Head::from_safetensors(&file(&some)), name, &["I32, expected F32, F16 or BF16"]);
            let mut some = all.clone();
            some[i].3[..4].copy_from_slice(&f32::NAN.to_le_bytes());
            refused(Head::from_safetensors(&file(&some)), name, &["NaN at element 0"]);
        }
        let mut some = all.clone();
        some[4] = f32("balancer.weight_predictor.0.weight", &[128, 12], &[0.0; 128 * 12]);
        let words = ["[128, 12], expected [128, 11] or [128, 11, 1, 1]"];
        refused(Head::from_safetensors(&file(&some)), "balancer.weight_predictor.0.weight", &words);

        for bytes in [&b""[..], b"no such file", &file(&all)[..5000]] {
            let error = Head::from_safetensors(bytes).unwrap_err().to_string();
            assert!(error.starts_with("weights is unreadable") && error.ends_with("a safetensors file"), "{error}");
        }
        refused(Query::from_safetensors(&file(&all)), "query", &["missing"]);
        refused(
            Query::from_safetensors(&file(&[f32("query", &[2, 1], &[0.0; 2])])),
            "query",
            &["[2, 1], expected [D]"],
        );
    }

    #[test]
    fn halves() {
        let halves = |bits: [u16; 3]| bits.into_iter().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        for (dtype, bits) in [(Dtype::F16, [0x3c00, 0xc100, 0x3800]), (Dtype::BF16, [0x3f80, 0xc020, 0x3f00])] {
            let query = Query::from_safetensors(&file(&[("query", dtype, vec![3], halves(bits))])).unwrap();
            assert_eq!(query, Query::new(&[1.0, -2.5, 0.5]).unwrap());
        }
    }
}
