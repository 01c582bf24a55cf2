//! The reference itself, against the golden files and against the letter of the allocation rule.
//!
//! A golden file is float64 work rounded once to f32, so the reference owes it half a unit in the
//! last place: far less than what the kernels are allowed.

use proptest::prelude::*;
use testkit::cases;
use testkit::files::{Tensors, read_png};
use testkit::images::images;
use testkit::oracle::{self, Image, PLANES, allocate, assert_close, gains, max_error, quantize};

/// Half a unit in the last place of an f32 just below 1, 2^-25, and a little for float64's own
/// rounding.
const ROUNDING: f64 = 3e-8;

/// The parameters of a run.
struct Parameters {
    patch: usize,
    lo: u32,
    hi: u32,
    budget: u64,
    focus: f64,
    fixation: [f64; 2],
    foveal_bias: f64,
}

const DEFAULTS: Parameters =
    Parameters { patch: 32, lo: 8, hi: 20, budget: 4096, focus: 0.8, fixation: [0.5, 0.5], foveal_bias: 0.0 };

/// Checks every tensor of a golden file, and that the file holds exactly `tensors`.
fn check(golden: &str, photo: &str, parameters: &Parameters, tensors: &[&str]) {
    let p = parameters;
    let file = Tensors::read(format!("tests/golden/{golden}.safetensors"));
    let image = read_png(format!("assets/photos/{photo}.png"));
    let (h, w) = (image.height, image.width);
    let (gh, gw) = oracle::grid(h, w, p.patch);

    let mut names = file.names();
    names.sort_unstable();
    assert_eq!(names, tensors, "{golden}: tensors");

    let planes = oracle::textures(&image, p.fixation);
    let features = oracle::features(&planes, h, w, p.patch);
    let entropy = oracle::entropy(&image, p.patch);
    let salience = oracle::salience(&features, p.foveal_bias);
    let (relevance, spread) = oracle::relevance(&[&entropy, &salience], &[0.5, 0.5]);
    let own_relevance = &file.f32("relevance").data;
    let sides = allocate(own_relevance, p.lo, p.hi, p.budget, p.focus);
    let packed = oracle::compress(&planes, h, w, p.patch, &sides);
    let count = packed.patch_id.len();
    let total = packed.tokens.len() / PLANES;
    println!("{golden}: {count} patches, {total} tokens, spread {spread:.4}");

    let float = |name: &str, shape: &[usize], want: &[f64]| {
        let tensor = file.f32(name);
        assert_eq!(tensor.shape, shape, "{golden}: {name}");
        println!("  {name:<10} {:.2e}", max_error(&tensor.data, want));
        assert_close(&format!("{golden}: {name}"), &tensor.data, want, ROUNDING);
    };
    let exact = |name: &str, shape: &[usize], want: &[i32]| {
        let tensor = file.i32(name);
        assert_eq!(tensor.shape, shape, "{golden}: {name}");
        assert_eq!(tensor.data, want, "{golden}: {name}");
    };
    float("features", &[gh * gw, PLANES], &features);
    float("entropy", &[gh, gw], &entropy);
    float("salience", &[gh, gw], &salience);
    float("relevance", &[gh, gw], &relevance);
    exact("sides", &[gh, gw], &sides.iter().map(|&n| n as i32).collect::<Vec<_>>());
    exact("cu_seqlens", &[count + 1], &packed.cu_seqlens);
    exact("patch_id", &[count], &packed.patch_id);
    if tensors.contains(&"tokens") {
        float("tokens", &[total, PLANES], &packed.tokens);
        float("position", &[total, 2], &packed.position);
    }
    if tensors.contains(&"textures") {
        float("textures", &[PLANES, h, w], &planes);
    }
}

const MAPS: [&str; 7] = ["cu_seqlens", "entropy", "features", "patch_id", "relevance", "salience", "sides"];
const MAPS_TOKENS: [&str; 9] =
    ["cu_seqlens", "entropy", "features", "patch_id", "position", "relevance", "salience", "sides", "tokens"];
const EVERYTHING: [&str; 10] = [
    "cu_seqlens",
    "entropy",
    "features",
    "patch_id",
    "position",
    "relevance",
    "salience",
    "sides",
    "textures",
    "tokens",
];

#[test]
fn eye() {
    let parameters = Parameters { budget: 1024, ..DEFAULTS };
    check("eye", "eye", &parameters, &EVERYTHING);
}

#[test]
fn chelsea() {
    check("chelsea", "chelsea", &DEFAULTS, &MAPS_TOKENS);
}

#[test]
fn coffee() {
    let parameters = Parameters { budget: 10000, focus: 0.5, ..DEFAULTS };
    check("coffee-budget10000-focus0.5", "coffee", &parameters, &MAPS);
}

#[test]
fn eye_options() {
    let parameters =
        Parameters { patch: 24, lo: 4, hi: 12, budget: 300, fixation: [0.2, 0.8], foveal_bias: 0.5, ..DEFAULTS };
    check("eye-options", "eye", &parameters, &EVERYTHING);
}

#[test]
fn row() {
    let parameters = Parameters { patch: 16, budget: 200, ..DEFAULTS };
    check("row", "row", &parameters, &EVERYTHING);
}

/// The query changes only the relevance, so its file checks the allocation once more.
#[test]
fn chelsea_query_sides() {
    let file = Tensors::read("tests/golden/chelsea-query.safetensors");
    let sides = allocate(&file.f32("relevance").data, 8, 20, 4096, 0.8);
    assert_eq!(file.i32("sides").data, sides.iter().map(|&n| n as i32).collect::<Vec<_>>());
}

#[test]
fn gains_of_the_defaults() {
    let expected = [65535, 51165, 48940, 47020, 45341, 43854, 42525, 41327, 40239, 39245, 38333, 37490, 36709];
    assert_eq!(gains(8, 20, 0.8), expected);
}

/// The allocation rule as it is written, with thresholds: `thresholds` holds t = 1, 2, ... or those
/// of them at which a side can change.
fn allocate_by_threshold(
    relevance: &[f32],
    (lo, hi): (u32, u32),
    budget: u64,
    focus: f64,
    mut thresholds: impl Iterator<Item = u32>,
) -> Vec<u32> {
    let gains = gains(lo, hi, focus);
    let side = |i: usize, t: u32| {
        let mut highest = 0;
        for (n, gain) in (lo..=hi).zip(&gains) {
            if quantize(relevance[i]) * gain < t {
                break;
            }
            highest = n;
        }
        highest
    };
    let cost = |t| (0..relevance.len()).map(|i| u64::from(side(i, t).pow(2))).sum::<u64>();
    let t = thresholds.find(|&t| cost(t) <= budget).expect("no key is greater than all thresholds");

    let mut sides: Vec<u32> = (0..relevance.len()).map(|i| side(i, t)).collect();
    let mut left = budget - cost(t);
    if t == 1 {
        return sides;
    }
    for i in 0..relevance.len() {
        while sides[i] < side(i, t - 1) {
            let next = if sides[i] == 0 { lo } else { sides[i] + 1 };
            let more = u64::from(next.pow(2) - sides[i].pow(2));
            if more > left {
                return sides;
            }
            left -= more;
            sides[i] = next;
        }
    }
    sides
}

/// Thresholds at which a side changes, ascending: 1, and each key plus 1.
fn changes(relevance: &[f32], lo: u32, hi: u32, focus: f64) -> Vec<u32> {
    let mut all = vec![1];
    for &r in relevance {
        for gain in gains(lo, hi, focus) {
            all.push(quantize(r) * gain + 1);
        }
    }
    all.sort_unstable();
    all
}

/// Few distinct values, so that keys are often equal and the raster order decides.
fn relevances() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![0f32..=1.0, prop::sample::select(vec![0.0, 0.25, 0.5, 1.0])];
    prop::collection::vec(value, 1..24)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn allocation_is_the_rule(
        relevance in relevances(),
        lo in 1u32..12,
        more in 0u32..12,
        slack in 0u64..6000,
        focus in 0.001..0.999,
    ) {
        let (hi, budget) = (lo + more, u64::from(lo * lo) + slack);
        let thresholds = changes(&relevance, lo, hi, focus);
        prop_assert_eq!(
            allocate(&relevance, lo, hi, budget, focus),
            allocate_by_threshold(&relevance, (lo, hi), budget, focus, thresholds.into_iter())
        );
    }

    /// Every threshold tried, with relevances so small that few are needed.
    #[test]
    fn allocation_is_the_rule_for_every_threshold(
        levels in prop::collection::vec(0u16..4, 1..4),
        lo in 1u32..4,
        more in 0u32..3,
        slack in 0u64..80,
        focus in 0.01..0.99,
    ) {
        let relevance: Vec<f32> = levels.iter().map(|&q| f32::from(q) / 65535.0).collect();
        let (hi, budget) = (lo + more, u64::from(lo * lo) + slack);
        prop_assert_eq!(
            allocate(&relevance, lo, hi, budget, focus),
            allocate_by_threshold(&relevance, (lo, hi), budget, focus, 1..)
        );
    }

    /// What holds for any image, so that a slip in the reference or in the generator shows.
    #[test]
    fn ranges_and_sums(spec in images(70), patch in 1usize..40, focus in 0.1..0.9) {
        let image = spec.build();
        prop_assert_eq!(&image, &spec.build());
        let Image { height: h, width: w, .. } = image;
        let planes = oracle::textures(&image, [0.5, 0.5]);
        for (plane, range) in [(0, 0.0..=1.0), (3, 0.0..=1.0), (6, -0.5..=0.5), (8, 0.0..=0.71), (12, 0.0..=1.0)] {
            for value in &planes[plane * h * w..(plane + 1) * h * w] {
                prop_assert!(range.contains(value), "plane {} holds {}", plane, value);
            }
        }
        let features = oracle::features(&planes, h, w, patch);
        let entropy = oracle::entropy(&image, patch);
        let salience = oracle::salience(&features, 0.5);
        let (relevance, _) = oracle::relevance(&[&entropy, &salience], &[0.5, 0.5]);
        for map in [&entropy, &salience, &relevance] {
            prop_assert!(map.iter().all(|v| (0.0..=1.0).contains(v)));
        }
        prop_assert_eq!(oracle::histograms(&image, patch).iter().sum::<u32>() as usize, h * w);

        let relevance: Vec<f32> = relevance.iter().map(|&r| r as f32).collect();
        let sides = allocate(&relevance, 2, 5, 100, focus);
        let packed = oracle::compress(&planes, h, w, patch, &sides);
        let total: u32 = sides.iter().map(|n| n * n).sum();
        prop_assert!(total <= 100);
        prop_assert_eq!(packed.tokens.len(), total as usize * PLANES);
        prop_assert_eq!(*packed.cu_seqlens.last().unwrap(), total as i32);
        prop_assert!(packed.position.iter().all(|v| (0.0..1.0).contains(v)));
    }
}

/// A key of 0 is below every threshold: the step is not taken however large the budget.
#[test]
fn steps_without_gain_are_not_taken() {
    let gains = gains(1, 255, 0.01);
    let last = gains.iter().filter(|&&g| g > 0).count() as u32;
    assert!(last < 255);
    assert_eq!(allocate(&[1.0], 1, 255, 1 << 40, 0.01), [last]);
}

/// An f32 just below a boundary, where f32 arithmetic, fused or not, rounds up to the next integer.
#[test]
fn relevance_is_quantized_exactly() {
    assert_eq!([0.0, 1.0].map(quantize), [1, 65535]);
    let r = 0.0015487907f32;
    assert_eq!((65535.0 * r + 0.5).floor(), 102.0);
    assert_eq!(r.mul_add(65535.0, 0.5).floor(), 102.0);
    assert_eq!(quantize(r), 101);
}
