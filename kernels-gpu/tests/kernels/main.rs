//! Every kernel on the CPU device, between canaries, against its oracle in f64.

mod device;
mod fused;
mod oracle;

use device::{Buffer, Cpu, Error, Random};
use thalweg_kernels::vision::{
    Batch, Budget, Layout, RelevanceMut, Selection, SelectionMut, TokensMut, allocate, compress, entropy, features,
    gains, relevance, textures,
};
use thalweg_simt::host::LaunchError;

/// Heights and widths that hurt: 1, and one beside what a thread, a warp or a block covers.
const SIZES: [(u32, u32); 14] = [
    (1, 1),
    (1, 5),
    (5, 1),
    (2, 4),
    (7, 3),
    (8, 8),
    (9, 31),
    (16, 128),
    (17, 129),
    (3, 260),
    (33, 32),
    (40, 127),
    (67, 97),
    (131, 68),
];

/// SPEC's bound on each plane.
const BOUNDS: [f64; 13] = [2e-6, 2e-6, 2e-6, 2e-5, 2e-5, 2e-5, 2e-5, 2e-5, 2e-5, 2e-6, 2e-6, 2e-6, 2e-5];

/// The largest distance between two arrays.
fn distance(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
}

fn patches(height: u32, width: u32, patch: u32) -> usize {
    (height.div_ceil(patch) * width.div_ceil(patch)) as usize
}

/// Noise, a smooth ramp, two colours or one, so that contrast and edges take all their values.
fn picture(random: &mut Random, height: u32, width: u32) -> Vec<u8> {
    let kind = random.below(4);
    let (p, q) = (random.bytes(3), random.bytes(3));
    (0..height * width)
        .flat_map(|i| match kind {
            0 => random.bytes(3),
            1 => [i / width, i % width, i].map(|v| v as u8).to_vec(),
            2 => if random.below(2) == 0 { &p } else { &q }.clone(),
            _ => p.clone(),
        })
        .collect()
}

#[test]
fn textures_are_within_bounds_at_any_size_and_alignment() {
    let (cpu, mut random) = (Cpu::default(), Random(1));
    let mut worst = [0.0f64; 13];
    for (height, width) in SIZES {
        for round in 0..8 {
            let (fy, fx) = if round < 4 { (0.5, 0.5) } else { (random.unit(), random.unit()) };
            let pixels = picture(&mut random, height, width);
            let rgb = Buffer::new(&pixels, round % 2, 0xcd);
            let size = (height * width) as usize;
            let mut planes = Buffer::new(&vec![-777.0; 13 * size], round / 2 % 2, -777.0);
            textures(&cpu, height, width, fy, fx, rgb.slice(), planes.slice_mut()).unwrap();
            let expected = oracle::textures(height as usize, width as usize, (fy.into(), fx.into()), &pixels);
            for (k, (got, expected)) in planes.read().chunks(size).zip(&expected).enumerate() {
                worst[k] = worst[k].max(distance(got, expected));
            }
        }
    }
    println!("largest errors by plane: {worst:?}");
    assert!(worst.iter().zip(BOUNDS).all(|(e, bound)| *e <= bound), "{worst:?}");
}

#[test]
fn every_colour_is_within_bounds() {
    let cpu = Cpu::default();
    let mut worst = [0.0f64; 6];
    let mut planes = Buffer::floats(13 << 16);
    for r in 0..=255u8 {
        let pixels: Vec<u8> = (0..1 << 16).flat_map(|i: u32| [r, (i >> 8) as u8, i as u8]).collect();
        textures(&cpu, 256, 256, 0.5, 0.5, Buffer::new(&pixels, 0, 0).slice(), planes.slice_mut()).unwrap();
        let planes = planes.read();
        for (i, c) in pixels.chunks(3).enumerate() {
            let (l, a, b) = oracle::lab(c[0], c[1], c[2]);
            let rgb = [c[0], c[1], c[2]].map(|v| f64::from(v) / 255.0);
            let expected = [rgb[0], rgb[1], rgb[2], l / 100.0, (a + 128.0) / 255.0, (b + 128.0) / 255.0];
            for (k, expected) in expected.into_iter().enumerate() {
                worst[k] = worst[k].max((f64::from(planes[(k << 16) + i]) - expected).abs());
            }
        }
    }
    println!("largest errors of R, G, B, L, a, b over all colours: {worst:?}");
    assert!(worst.iter().zip(BOUNDS).all(|(e, bound)| *e <= bound), "{worst:?}");
}

#[test]
fn features_are_means() {
    let (cpu, mut random) = (Cpu::default(), Random(2));
    let mut worst = 0.0f64;
    for (height, width) in SIZES {
        for patch in [1, 5, 8, 32, 33, 64, 100, 16384] {
            let size = (height * width) as usize;
            let values: Vec<f32> = random.units(13 * size).iter().map(|v| v * 1.5 - 0.5).collect();
            let planes = Buffer::new(&values, 0, 1e30);
            let mut out = Buffer::floats(13 * patches(height, width, patch));
            features(&cpu, height, width, patch, planes.slice(), out.slice_mut()).unwrap();
            for (n, (rows, columns)) in
                oracle::patches(height as usize, width as usize, patch as usize).into_iter().enumerate()
            {
                let expected: Vec<f64> = values
                    .chunks(size)
                    .map(|plane| oracle::mean(plane, width as usize, rows.clone(), columns.clone()))
                    .collect();
                worst = worst.max(distance(&out.read()[13 * n..][..13], &expected));
            }
        }
    }
    println!("largest error of a feature: {worst:.2e}");
    assert!(worst <= 1e-6);
}

/// Adding a tenth to a large sum rounds the same way a million times over.
#[test]
fn features_of_a_large_constant_plane_do_not_drift() {
    let (cpu, side) = (Cpu::default(), 1024);
    let planes = Buffer::new(&vec![0.1; 13 << 20], 0, 1e30);
    let mut out = Buffer::floats(13);
    features(&cpu, side, side, side, planes.slice(), out.slice_mut()).unwrap();
    assert!(distance(out.read(), &[f64::from(0.1f32); 13]) <= 2e-8, "{:?}", out.read());
}

#[test]
fn entropy_is_that_of_the_histogram() {
    let (cpu, mut random) = (Cpu::default(), Random(3));
    let mut worst = 0.0f64;
    for (height, width) in SIZES {
        for patch in [1, 5, 16, 32, 50, 100, 16384] {
            let pixels = picture(&mut random, height, width);
            let rgb = Buffer::new(&pixels, 1, 0xcd);
            let mut out = Buffer::floats(patches(height, width, patch));
            entropy(&cpu, height, width, patch, rgb.slice(), out.slice_mut()).unwrap();
            let expected = oracle::entropy(height as usize, width as usize, patch as usize, &pixels);
            worst = worst.max(distance(out.read(), &expected));
            let constant = expected.iter().zip(out.read()).filter(|(e, _)| **e == 0.0);
            assert!(constant.into_iter().all(|(_, v)| *v == 0.0), "a constant patch has no information");
        }
    }
    println!("largest error of an entropy: {worst:.2e}");
    assert!(worst <= 1e-6);
}

/// All 256 bins full: 8 bits, and not a rounding more.
#[test]
fn entropy_reaches_one() {
    let cpu = Cpu::default();
    let pixels: Vec<u8> = (0..=255u8).flat_map(|v| [v; 3]).collect();
    let mut out = Buffer::floats(1);
    entropy(&cpu, 16, 16, 16, Buffer::new(&pixels, 0, 0).slice(), out.slice_mut()).unwrap();
    assert_eq!(out.read(), [1.0]);
}

/// The table of one image of `n` patches.
fn line(n: usize) -> Buffer<u32> {
    Buffer::new(&[1, n as u32, 0, 0, 0, 0, 3 * n as u32, n as u32], 0, 0xdead_beef)
}

/// The table of one image.
fn single(height: u32, width: u32, patch: u32) -> Buffer<u32> {
    Buffer::new(Layout::new(&[[height, width]], patch).unwrap().table(), 0, 0xdead_beef)
}

#[test]
fn relevance_balances_and_scales() {
    let (cpu, mut random) = (Cpu::default(), Random(4));
    let (mut worst, mut worst_scaled) = (0.0f64, 0.0f64);
    for n in [1, 2, 31, 32, 33, 255, 256, 257, 1000, 8160, 9000] {
        for round in 0..6 {
            let bias = [0.0, 0.5, 1.0][round % 3];
            let mix = [(0.5, 0.5), (0.2, 0.8)][round % 2];
            // Flat scores in round 4, no edges in round 5.
            let mut f: Vec<f32> = random.units(13 * n).iter().map(|v| v * 0.3).collect();
            let mut e = random.units(n);
            if round >= 4 {
                (0..n).for_each(|i| f[i * 13 + 8] = if round == 4 { 0.25 } else { 0.0 });
                (0..n).for_each(|i| f[i * 13 + 11] = 0.5);
                if round == 4 {
                    e.fill(0.75);
                }
            }
            let (mut salience, mut scaled) = (Buffer::floats(n), Buffer::floats(n));
            let (table, features, entropy) = (line(n), Buffer::new(&f, 0, 1e30), Buffer::new(&e, 0, 1e30));
            let batch = Batch { images: 1, patches: n as u32, largest: n as u32, table: table.slice() };
            let out = RelevanceMut { salience: salience.slice_mut(), relevance: scaled.slice_mut() };
            relevance(&cpu, &batch, bias, [mix.0, mix.1], features.slice(), entropy.slice(), out).unwrap();
            let (s, r, range) = oracle::relevance(&f, &e, bias.into(), (mix.0.into(), mix.1.into()));
            worst = worst.max(distance(salience.read(), &s));
            worst_scaled = worst_scaled.max(distance(scaled.read(), &r) * range);
            if n == 1 || round == 4 {
                assert!(scaled.read().iter().all(|v| *v == 1.0), "flat scores are all relevant");
            }
        }
    }
    println!("largest error of a salience: {worst:.2e}, of a relevance times the range: {worst_scaled:.2e}");
    assert!(worst <= 2e-6 && worst_scaled <= 2e-6);
}

#[test]
fn gains_are_those_of_the_specification() {
    let expected = [65535, 51165, 48940, 47020, 45341, 43854, 42525, 41327, 40239, 39245, 38333, 37490, 36709];
    assert_eq!(gains(8, 20, 0.8), expected);
    for focus in [1e-6, 0.01, 0.5, 0.99, 1.0 - 1e-9] {
        for (lo, hi) in [(1, 255), (1, 1), (255, 255), (3, 7)] {
            let gains = gains(lo, hi, focus);
            assert_eq!(gains.len() as u32, hi - lo + 1);
            assert!(gains.is_sorted_by(|a, b| a >= b) && gains[0] == 65535);
        }
    }
}

/// What `allocate` left, unpacked.
struct Allocation {
    sides: Vec<i32>,
    cu_seqlens: Vec<i32>,
    patch_id: Vec<i32>,
    counts: [u32; 2],
}

fn run_allocate(cpu: &Cpu, scores: &[f32], gains: &[u32], lo: u32, budget: u64) -> Allocation {
    let n = scores.len();
    let most = n.min((budget / u64::from(lo * lo)) as usize);
    let mut sides = Buffer::filled(n, -5);
    let (mut cu_seqlens, mut patch_id) = (Buffer::filled(most + 1, -5), Buffer::filled(most, -5));
    let mut counts = Buffer::filled(2, 5u32);
    let (mut tokens, mut selected) = (Buffer::filled(2, -5), Buffer::filled(2, -5));
    let (table, scores) = (line(n), Buffer::new(scores, 0, 1e30));
    let batch = Batch { images: 1, patches: n as u32, largest: n as u32, table: table.slice() };
    let budget = Budget { lo, hi: lo + gains.len() as u32 - 1, tokens: budget };
    let out = SelectionMut {
        sides: sides.slice_mut(),
        cu_seqlens: cu_seqlens.slice_mut(),
        patch_id: patch_id.slice_mut(),
        counts: counts.slice_mut(),
        image_cu_seqlens: tokens.slice_mut(),
        image_cu_patches: selected.slice_mut(),
    };
    allocate(cpu, &batch, budget, scores.slice(), Buffer::new(gains, 0, 1).slice(), out).unwrap();
    assert_eq!((tokens.read()[0], tokens.read()[1] as u32), (0, counts.read()[0]));
    assert_eq!((selected.read()[0], selected.read()[1] as u32), (0, counts.read()[1]));
    Allocation {
        sides: sides.read().to_vec(),
        cu_seqlens: cu_seqlens.read().to_vec(),
        patch_id: patch_id.read().to_vec(),
        counts: [counts.read()[0], counts.read()[1]],
    }
}

impl Allocation {
    /// The packed order follows from the sides, and everything stays within the budget.
    fn check(&self, budget: u64) {
        let selected = self.sides.iter().enumerate().filter(|(_, side)| **side > 0);
        let (mut offsets, mut ids) = (vec![0], vec![]);
        for (i, side) in selected {
            offsets.push(offsets.last().unwrap() + side * side);
            ids.push(i as i32);
        }
        let total = *offsets.last().unwrap();
        assert!(total as u64 <= budget);
        assert_eq!(self.counts, [total as u32, ids.len() as u32]);
        offsets.resize(self.cu_seqlens.len(), total);
        ids.resize(self.patch_id.len(), -1);
        assert_eq!(self.cu_seqlens, offsets);
        assert_eq!(self.patch_id, ids);
    }
}

#[test]
fn allocation_is_the_greedy_one() {
    let (cpu, mut random) = (Cpu::default(), Random(5));
    for round in 0..3000 {
        let n = match round {
            0..100 => random.between(1, 4),
            2990.. => random.between(8000, 9000),
            _ => random.between(1, 600),
        };
        let (lo, hi) = match random.below(4) {
            0 => (8, 20),
            1 => (1, 255),
            _ => {
                let lo = random.between(1, 40);
                (lo, random.between(lo, 60))
            }
        };
        let focus = [1e-3, 0.3, 0.8, 0.999][random.below(4) as usize];
        // Few distinct values make many ties; some rounds have none.
        let levels = [2, 5, 50, 1 << 24][random.below(4) as usize];
        let scores: Vec<f32> = (0..n).map(|_| random.below(levels) as f32 / (levels - 1) as f32).collect();
        let (least, demand) = (u64::from(lo * lo), u64::from(n) * u64::from(hi * hi));
        let budget = match random.below(6) {
            0 => least,
            1 => demand.max(least),
            2 => (demand + 1000).max(least),
            3 => least + random.below(10 * least),
            _ => least + random.below(demand),
        };
        let gains = gains(lo, hi, focus);
        let allocation = run_allocate(&cpu, &scores, &gains, lo, budget);
        let expected = oracle::allocate(&scores, &gains, lo, budget);
        assert!(
            allocation.sides.iter().zip(&expected).all(|(a, b)| *a as u32 == *b),
            "round {round}: n = {n}, sides {lo}..{hi}, focus {focus}, {levels} levels, budget {budget}"
        );
        allocation.check(budget);
    }
}

/// Every way through the search: few candidates and many, listed or too many for a warp's list; ties where the first bound falls, at the
/// threshold, everywhere; one tile a warp and several.
#[test]
fn allocation_takes_every_path() {
    let (cpu, mut random) = (Cpu::default(), Random(15));
    for n in [255u32, 256, 257, 8191, 8192, 8193, 20000] {
        let noise = random.units(n as usize);
        let step = |levels: f32| noise.iter().map(|v| (v * levels).floor() / levels).collect::<Vec<f32>>();
        let maps = [
            noise.clone(),
            // One far above the rest, which share few bins.
            noise.iter().enumerate().map(|(i, v)| if i == 100 { 1.0 } else { v * v * 0.01 }).collect(),
            // The relevant ones are neighbours, so one warp has them all.
            (0..n)
                .map(|i| if (200..700).contains(&i) { 1.0 - i as f32 / 1e4 } else { noise[i as usize] * 0.5 })
                .collect(),
            step(300.0),
            step(3.0),
            vec![1.0; n as usize],
            vec![0.0; n as usize],
        ];
        for (map, scores) in maps.iter().enumerate() {
            for (lo, hi) in [(8, 20), (8, 8), (3, 255)] {
                let least = u64::from(lo * lo);
                let all = u64::from(n) * least;
                for budget in [least, 64 * least, 64 * least + 17, all / 5, all, 2 * all, i32::MAX as u64] {
                    // Long lists of steps take the oracle seconds.
                    if (hi == 255 && n > 300) || budget < least {
                        continue;
                    }
                    let gains = gains(lo, hi, 0.8);
                    let allocation = run_allocate(&cpu, scores, &gains, lo, budget);
                    let expected = oracle::allocate(scores, &gains, lo, budget);
                    assert!(
                        allocation.sides.iter().zip(&expected).all(|(a, b)| *a as u32 == *b),
                        "n = {n}, map {map}, sides {lo}..{hi}, budget {budget}"
                    );
                    allocation.check(budget);
                }
            }
        }
    }
}

/// More neighbours for a warp than 16 bits tell apart.
#[test]
fn allocation_of_two_million_patches() {
    let scores = Random(16).units((1 << 21) + 1000);
    let allocation = run_allocate(&Cpu::default(), &scores, &gains(8, 9, 0.8), 8, 4096);
    let expected = oracle::allocate(&scores, &gains(8, 9, 0.8), 8, 4096);
    assert!(allocation.sides.iter().zip(&expected).all(|(a, b)| *a as u32 == *b));
    allocation.check(4096);
}

/// Gains that rise or overflow, relevance that is no number: still within the budget and the buffers.
#[test]
fn allocation_survives_any_contents() {
    let (cpu, mut random) = (Cpu::default(), Random(6));
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 2.0, 1e-40, 0.0, -0.0, f32::MAX, f32::MIN_POSITIVE];
    for _ in 0..300 {
        let n = random.between(1, 400) as usize;
        let scores: Vec<f32> = (0..n)
            .map(|_| {
                if random.below(2) == 0 { odd[random.below(10) as usize] } else { f32::from_bits(random.next() as u32) }
            })
            .collect();
        let lo = random.between(1, 20);
        let gains: Vec<u32> = (0..random.between(1, 30)).map(|_| random.next() as u32 >> random.below(32)).collect();
        let scale = 1 << random.below(31);
        let budget = (u64::from(lo * lo) + random.below(scale)).min(i32::MAX as u64);
        run_allocate(&cpu, &scores, &gains, lo, budget).check(budget);
    }
}

#[test]
fn tokens_are_the_means_of_their_cells() {
    let (cpu, mut random) = (Cpu::default(), Random(7));
    let (mut worst, mut worst_position) = (0.0f64, 0.0f64);
    for (height, width) in SIZES {
        for patch in [1, 5, 16, 32, 100] {
            let (h, w, n) = (height as usize, width as usize, patches(height, width, patch));
            let values: Vec<f32> = random.units(13 * h * w).iter().map(|v| v * 1.5 - 0.5).collect();
            let lo = random.between(1, 9);
            let gains = gains(lo, random.between(lo, 20), 0.8);
            let budget = u64::from(lo * lo) + random.below(2000);
            let scores = random.units(n);
            let a = run_allocate(&cpu, &scores, &gains, lo, budget);
            let (capacity, selected) = (budget as usize, a.patch_id.len());
            let (mut tokens, mut position) = (Buffer::floats(13 * capacity), Buffer::floats(2 * capacity));
            let [sides, cu_seqlens, patch_id] =
                [&a.sides, &a.cu_seqlens, &a.patch_id].map(|elements| Buffer::new(elements, 0, 1));
            let counts = Buffer::new(&a.counts, 0, 1);
            let selection = Selection {
                sides: sides.slice(),
                cu_seqlens: cu_seqlens.slice(),
                patch_id: patch_id.slice(),
                counts: counts.slice(),
                most: selected as u32,
            };
            let out =
                TokensMut { tokens: tokens.slice_mut(), position: position.slice_mut(), capacity: capacity as u32 };
            let planes = Buffer::new(&values, 0, 1e30);
            compress(&cpu, height, width, patch, planes.slice(), &selection, out).unwrap();

            let patches = oracle::patches(h, w, patch as usize);
            let mut t = 0;
            for (id, side) in a.sides.iter().enumerate().filter(|(_, side)| **side > 0) {
                let (rows, columns) = patches[id].clone();
                let side = *side as usize;
                let cell = |i: usize, of: &std::ops::Range<usize>| {
                    of.start + i * of.len() / side..of.start + ((i + 1) * of.len()).div_ceil(side)
                };
                for (cy, cx) in (0..side).flat_map(|cy| (0..side).map(move |cx| (cy, cx))) {
                    let (rows, columns) = (cell(cy, &rows), cell(cx, &columns));
                    let means: Vec<f64> = values
                        .chunks(h * w)
                        .map(|plane| oracle::mean(plane, w, rows.clone(), columns.clone()))
                        .collect();
                    worst = worst.max(distance(&tokens.read()[13 * t..][..13], &means));
                    let middle = |r: &std::ops::Range<usize>, extent| (r.start + r.end) as f64 / 2.0 / extent as f64;
                    let centre = [middle(&rows, h), middle(&columns, w)];
                    worst_position = worst_position.max(distance(&position.read()[2 * t..][..2], &centre));
                    t += 1;
                }
            }
            assert_eq!(t as u32, a.counts[0]);
            assert!(tokens.read()[13 * t..].iter().chain(&position.read()[2 * t..]).all(|v| *v == -777.0));
        }
    }
    println!("largest error of a token: {worst:.2e}, of a position: {worst_position:.2e}");
    assert!(worst <= 1e-6 && worst_position <= 1e-6);
}

/// Offsets, ids, sides and counts of noise: any values, but no access outside the buffers.
#[test]
fn compression_survives_any_contents() {
    let (cpu, mut random) = (Cpu::default(), Random(8));
    let (height, width, patch) = (45, 70, 16);
    let planes = Buffer::new(&random.units(13 * 45 * 70), 0, 1e30);
    for _ in 0..200 {
        let mut noise = |n: usize| -> Vec<i32> {
            let shift = random.below(32);
            (0..n).map(|_| random.next() as i32 >> shift).collect()
        };
        let sides = Buffer::new(&noise(patches(height, width, patch)), 0, 1);
        let (cu_seqlens, patch_id) = (Buffer::new(&noise(8), 0, 1), Buffer::new(&noise(7), 0, 1));
        let counts: Vec<u32> = noise(2).iter().map(|v| *v as u32).collect();
        let (mut tokens, mut position) = (Buffer::floats(13 * 40), Buffer::floats(2 * 40));
        let counts = Buffer::new(&counts, 0, 1);
        let selection = Selection {
            sides: sides.slice(),
            cu_seqlens: cu_seqlens.slice(),
            patch_id: patch_id.slice(),
            counts: counts.slice(),
            most: 7,
        };
        let out = TokensMut { tokens: tokens.slice_mut(), position: position.slice_mut(), capacity: 40 };
        compress(&cpu, height, width, patch, planes.slice(), &selection, out).unwrap();
        assert!(tokens.read().iter().all(|v| *v == -777.0 || (0.0..=1.0).contains(v)), "a pixel from nowhere");
        position.read();
    }
}

/// The first predicate that an argument list fails.
fn refused(result: Result<(), Error>) -> &'static str {
    match result {
        Err(Error::Launch(LaunchError::Requirement { requirement, .. })) => requirement,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn launchers_refuse_what_would_not_fit() {
    let cpu = Cpu::default();
    let rgb = Buffer::new(&[0u8; 3 * 6], 0, 0);
    let mut planes = Buffer::floats(13 * 6);
    let mut short = Buffer::floats(13 * 6 - 1);
    let mut run = |h, w| textures(&cpu, h, w, 0.5, 0.5, rgb.slice(), planes.slice_mut());
    assert!(run(2, 3).is_ok());
    assert_eq!(refused(run(0, 3)), "(1..=16384).contains(&height)");
    assert_eq!(refused(run(2, u32::MAX)), "(1..=16384).contains(&width)");
    assert_eq!(refused(run(3, 3)), "rgb.len() == 3 * height * width");
    let result = textures(&cpu, 2, 3, 0.5, 0.5, rgb.slice(), short.slice_mut());
    assert_eq!(refused(result), "planes.len() == 13 * height * width");

    let mut out = Buffer::floats(1);
    let mut run = |patch| entropy(&cpu, 2, 3, patch, rgb.slice(), out.slice_mut());
    assert!(run(3).is_ok());
    assert_eq!(refused(run(0)), "(1..=16384).contains(&patch)");
    assert_eq!(refused(run(2)), "entropy.len() == height.div_ceil(patch) * width.div_ceil(patch)");
    assert_eq!(refused(run(u32::MAX)), "(1..=16384).contains(&patch)");

    let scores = Buffer::new(&[0.5f32; 4], 0, 0.0);
    let steps = Buffer::new(&[65535u32, 50000], 0, 0);
    let (mut sides, mut cu_seqlens, mut patch_id) = (Buffer::filled(4, 0), Buffer::filled(3, 0), Buffer::filled(2, 0));
    let mut counts = Buffer::filled(2, 0u32);
    let (mut tokens, mut selected, table) = (Buffer::filled(2, 0), Buffer::filled(2, 0), line(4));
    let mut run = |lo, hi, budget| {
        let batch = Batch { images: 1, patches: 4, largest: 4, table: table.slice() };
        let out = SelectionMut {
            sides: sides.slice_mut(),
            cu_seqlens: cu_seqlens.slice_mut(),
            patch_id: patch_id.slice_mut(),
            counts: counts.slice_mut(),
            image_cu_seqlens: tokens.slice_mut(),
            image_cu_patches: selected.slice_mut(),
        };
        allocate(&cpu, &batch, Budget { lo, hi, tokens: budget }, scores.slice(), steps.slice(), out)
    };
    assert!(run(2, 3, 11).is_ok());
    assert_eq!(refused(run(0, 1, 8)), "1 <= lo");
    assert_eq!(refused(run(3, 2, 9)), "lo <= hi");
    assert_eq!(refused(run(255, 256, 1 << 20)), "hi <= 255");
    assert_eq!(refused(run(4, 5, 15)), "lo * lo <= budget");
    assert_eq!(refused(run(2, 3, 1 << 31)), "budget <= 2147483647");
    assert_eq!(refused(run(2, 4, 8)), "gains.len() == hi - lo + 1");
    assert_eq!(refused(run(2, 3, 12)), "cu_seqlens.len() > patches.min(images * (budget / (lo * lo)))");
}
