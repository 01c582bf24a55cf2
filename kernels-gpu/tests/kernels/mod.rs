//! The kernels that stand for others: the fused ones are within a rounding of those that go by way
//! of planes, and halves are exactly the rounded floats. They run on a CPU device of a few lines,
//! in buffers between canaries, because a GPU may round otherwise in each of two kernels.
//!
//! The root package tests every kernel on every device, against the same reference:
//! `vision/tests/kernels.rs`, `vision/tests/batch.rs` and `vision/tests/query.rs`.

mod device;

use device::{Buffer, Cpu, Error};
use half::{bf16, f16};
use testkit::oracle::{self, Content, Image, ImageSpec, SplitMix, max_error, wide};
use thalweg_kernels::vision::{
    BatchLayout, BatchTable, Pixels, Selection, TokensMut, analyze, compress, compress_fused, compress_fused_bf16,
    compress_fused_f16, entropy, features, textures,
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

/// Heights and widths of which some patches are whole quads of pixels, and some in part.
const QUADS: [(u32, u32); 8] = [(1, 4), (5, 8), (2, 128), (33, 32), (40, 124), (67, 96), (131, 68), (64, 256)];

/// An image of many blocks, which takes the time of all others together.
const LARGE: [(u32, u32); 1] = [(300, 400)];

fn patches(height: u32, width: u32, patch: u32) -> usize {
    (height.div_ceil(patch) * width.div_ceil(patch)) as usize
}

fn below(random: &mut SplitMix, n: u64) -> u64 {
    random.next() % n
}

/// An image of any content, so that contrast and edges take all their values.
fn picture(random: &mut SplitMix, height: u32, width: u32) -> Image {
    let contents = [Content::Constant, Content::Gradient, Content::Smooth, Content::TwoValued, Content::Noise];
    let content = contents[below(random, 5) as usize];
    let (saturated, seed) = (below(random, 4) == 0, random.next());
    ImageSpec { height: height as usize, width: width as usize, content, saturated, seed }.build()
}

fn fixation(random: &mut SplitMix) -> [f32; 2] {
    if below(random, 2) == 0 { [0.5, 0.5] } else { [random.unit() as f32, random.unit() as f32] }
}

/// The layout of one image, and its table.
fn single(height: u32, width: u32, patch: u32) -> (BatchLayout, Buffer<u32>) {
    let layout = BatchLayout::new(&[[height, width]], patch).unwrap();
    let table = Buffer::new(layout.table(), 0, 0xdead_beef);
    (layout, table)
}

/// [`analyze`] of one image, of which `rgb` holds no more.
fn run_analyze(
    cpu: &Cpu,
    (height, width): (u32, u32),
    patch: u32,
    [fy, fx]: [f32; 2],
    rgb: &Buffer<u8>,
    out: &mut Buffer<f32>,
    bits: &mut Buffer<f32>,
) -> Result<(), Error> {
    let (layout, table) = single(height, width, patch);
    let pixels = Pixels { bytes: 3 * height * width, ..layout.pixels(rgb.slice(), [fy, fx]) };
    analyze(cpu, &layout.batch(table.slice()), &pixels, out.slice_mut(), bits.slice_mut())
}

/// Compares features and entropy with the reference, and with those that go by way of planes.
fn check_analyze(sizes: &[(u32, u32)], sides: &[u32]) {
    let (cpu, mut random) = (Cpu::default(), SplitMix(11));
    let (mut worst, mut worst_entropy, mut worst_twin) = (0.0f64, 0.0f64, 0.0f64);
    for &(height, width) in sizes {
        for &patch in sides {
            let [fy, fx] = fixation(&mut random);
            let image = picture(&mut random, height, width);
            let rgb = Buffer::new(&image.rgb, below(&mut random, 8).saturating_sub(4) as usize, 0xcd);
            let (h, w, n) = (image.height, image.width, patches(height, width, patch));
            let (mut out, mut bits) = (Buffer::floats(13 * n), Buffer::floats(n));
            run_analyze(&cpu, (height, width), patch, [fy, fx], &rgb, &mut out, &mut bits).unwrap();

            let planes = oracle::textures(&image, [fy, fx].map(f64::from));
            worst = worst.max(max_error(out.read(), &oracle::features(&planes, h, w, patch as usize)));
            let information = oracle::entropy(&image, patch as usize);
            worst_entropy = worst_entropy.max(max_error(bits.read(), &information));
            assert!(information.iter().zip(bits.read()).all(|(e, v)| *e > 0.0 || *v == 0.0), "no information is none");

            let (mut materialised, mut twin) = (Buffer::floats(13 * h * w), Buffer::floats(13 * n));
            textures(&cpu, height, width, fy, fx, rgb.slice(), materialised.slice_mut()).unwrap();
            features(&cpu, height, width, patch, materialised.slice(), twin.slice_mut()).unwrap();
            worst_twin = worst_twin.max(max_error(out.read(), &wide(twin.read())));
            entropy(&cpu, height, width, patch, rgb.slice(), twin.slice_mut().slice_mut(..n).unwrap()).unwrap();
            worst_twin = worst_twin.max(max_error(bits.read(), &wide(&twin.read()[..n])));
        }
    }
    println!("largest errors: features {worst:.1e}, entropy {worst_entropy:.1e}; fused and not: {worst_twin:.1e}");
    assert!(worst <= 2e-6 && worst_entropy <= 1e-6 && worst_twin <= 1e-6);
}

#[test]
fn analysis_of_quads_is_that_of_planes() {
    check_analyze(&QUADS, &[4, 8, 12, 16, 20, 24, 28, 32]);
    check_analyze(&LARGE, &[4, 28]);
}

#[test]
fn analysis_is_that_of_planes_at_any_size_patch_and_alignment() {
    check_analyze(&SIZES, &[1, 3, 5, 8, 31, 32, 33, 64, 100, 16384]);
    check_analyze(&QUADS, &[33, 40, 64, 91, 128, 200]);
    check_analyze(&LARGE, &[91]);
}

#[test]
fn analysis_of_a_large_constant_patch_does_not_drift() {
    let cpu = Cpu::default();
    let (side, color) = (1024, [37, 120, 201]);
    let pixels = color.repeat((side * side) as usize);
    // Every pixel has the first nine planes of an image of that one.
    let pixel = oracle::textures(&Image { height: 1, width: 1, rgb: color.into() }, [0.5, 0.5]);
    for shift in [0, 1] {
        let rgb = Buffer::new(&pixels, shift, 0);
        let (mut out, mut bits) = (Buffer::floats(13), Buffer::floats(1));
        run_analyze(&cpu, (side, side), side, [0.5, 0.5], &rgb, &mut out, &mut bits).unwrap();
        assert!(max_error(&out.read()[..9], &pixel[..9]) <= 1e-6);
        assert_eq!((out.read()[12], bits.read()[0]), (0.0, 0.0));
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
fn analysis_refuses_what_would_not_fit() {
    let cpu = Cpu::default();
    let (rgb, table) = (Buffer::new(&[0u8; 3 * 64], 0, 0), Buffer::new(&[8, 8, 0, 0, 0, 0, 192, 1, 0], 0, 0));
    let (mut out, mut bits) = (Buffer::floats(13), Buffer::floats(1));
    let mut run = |images, patches, bytes, patch, table| {
        let batch = BatchTable { images, patches, largest: patches, table };
        let pixels = Pixels { rgb: rgb.slice(), bytes, patch, fixation: [0.5; 2] };
        analyze(&cpu, &batch, &pixels, out.slice_mut(), bits.slice_mut())
    };
    let whole = table.slice().slice(..8).unwrap();
    assert!(run(1, 1, 192, 8, whole).is_ok() && run(1, 1, 192, 100, whole).is_ok());
    for patch in [8, 100] {
        for (images, patches, bytes, requirement) in [
            (0, 1, 192, "(1..=65535).contains(&images)"),
            (65536, 1, 192, "(1..=65535).contains(&images)"),
            (2, 1, 192, "table.len() == 4 * (images + 1)"),
            (1, 0, 192, "(1..=268435456).contains(&patches)"),
            (1, 2, 192, "features.len() == 13 * patches"),
            (1, 1, 191, "rgb.len() == bytes"),
        ] {
            assert_eq!(refused(run(images, patches, bytes, patch, whole)), requirement);
        }
        let odd = table.slice().slice(1..).unwrap();
        assert_eq!(refused(run(1, 1, 192, patch, odd)), "table.is_aligned(16)");
    }
    assert_eq!(refused(run(1, 1, 192, 0, whole)), "(1..=32).contains(&patch)");
    assert_eq!(refused(run(1, 1, 192, 16385, whole)), "(1..=16384).contains(&patch)");
}

#[test]
fn fused_tokens_are_those_of_planes() {
    let (cpu, mut random) = (Cpu::default(), SplitMix(13));
    let (mut worst, mut worst_twin) = (0.0f64, 0.0f64);
    for (height, width) in SIZES {
        for patch in [1, 5, 16, 32, 100] {
            let [fy, fx] = fixation(&mut random);
            let image = picture(&mut random, height, width);
            let rgb = Buffer::new(&image.rgb, below(&mut random, 4) as usize, 0xcd);
            let n = patches(height, width, patch);
            let lo = 1 + below(&mut random, 9) as u32;
            let hi = lo + below(&mut random, u64::from(21 - lo)) as u32;
            let budget = u64::from(lo * lo) + below(&mut random, 2000);
            let relevance: Vec<f32> = (0..n).map(|_| random.unit() as f32).collect();

            // What `allocate` leaves: unused places hold the number of tokens, and -1.
            let sides = oracle::allocate(&relevance, lo, hi, budget, 0.8);
            let planes = oracle::textures(&image, [fy, fx].map(f64::from));
            let packed = oracle::compress(&planes, image.height, image.width, patch as usize, &sides);
            let selected = n.min((budget / u64::from(lo * lo)) as usize);
            let (used, capacity) = (packed.tokens.len(), budget as u32);
            let total = used / 13;
            let (mut cu_seqlens, mut patch_id) = (packed.cu_seqlens, packed.patch_id);
            let counts = Buffer::new(&[total as u32, patch_id.len() as u32], 0, 1);
            cu_seqlens.resize(selected + 1, total as i32);
            patch_id.resize(selected, -1);
            let sides: Vec<i32> = sides.into_iter().map(|n| n as i32).collect();
            let [sides, cu_seqlens, patch_id] = [sides, cu_seqlens, patch_id].map(|v| Buffer::new(&v, 0, 1));

            let mut planes = Buffer::floats((13 * height * width) as usize);
            textures(&cpu, height, width, fy, fx, rgb.slice(), planes.slice_mut()).unwrap();
            let (rows, numbers) = (capacity as usize, 13 * capacity as usize);
            let (mut twin, mut twin_position) = (Buffer::floats(numbers), Buffer::floats(2 * rows));
            let selection = Selection {
                sides: sides.slice(),
                cu_seqlens: cu_seqlens.slice(),
                patch_id: patch_id.slice(),
                counts: counts.slice(),
                most: selected as u32,
            };
            let out = TokensMut { tokens: twin.slice_mut(), position: twin_position.slice_mut(), capacity };
            compress(&cpu, height, width, patch, planes.slice(), &selection, out).unwrap();
            let (mut tokens, mut position) = (Buffer::floats(numbers), Buffer::floats(2 * rows));
            let (layout, table) = single(height, width, patch);
            let batch = layout.batch(table.slice());
            let pixels = Pixels { bytes: 3 * height * width, ..layout.pixels(rgb.slice(), [fy, fx]) };
            let out = TokensMut { tokens: tokens.slice_mut(), position: position.slice_mut(), capacity };
            compress_fused(&cpu, &batch, &pixels, &selection, out).unwrap();
            worst = worst.max(max_error(&tokens.read()[..used], &packed.tokens));
            worst_twin = worst_twin.max(max_error(tokens.read(), &wide(twin.read())));
            assert!(tokens.read()[used..].iter().all(|v| *v == -777.0), "rows past the last token are left alone");
            assert_eq!(position.read(), twin_position.read());

            for brain in [false, true] {
                let mut halves = Buffer::filled(numbers, 0xabcd);
                let run = if brain { compress_fused_bf16 } else { compress_fused_f16 };
                let out = TokensMut { tokens: halves.slice_mut(), position: position.slice_mut(), capacity };
                run(&cpu, &batch, &pixels, &selection, out).unwrap();
                let round = |v: &f32| if brain { bf16::from_f32(*v).to_bits() } else { f16::from_f32(*v).to_bits() };
                let want: Vec<u16> = tokens.read()[..used].iter().map(round).collect();
                assert!(halves.read()[..used] == want);
                assert!(halves.read()[used..].iter().all(|v| *v == 0xabcd), "rows past the last token are left alone");
                assert_eq!(position.read(), twin_position.read());
            }
        }
    }
    println!("largest errors of fused tokens: {worst:.1e}; fused and not: {worst_twin:.1e}");
    assert!(worst <= 2e-6 && worst_twin <= 1e-6);
}

/// Offsets, ids, sides and counts of noise: any values, but no access outside the buffers.
#[test]
fn fused_compression_survives_any_contents() {
    let (cpu, mut random) = (Cpu::default(), SplitMix(14));
    let (height, width, patch) = (45, 70, 16);
    // Next to the image are bytes that would show: inside it red is 0.
    let pixels: Vec<u8> = (0..45 * 70).flat_map(|_| [0, random.byte(), random.byte()]).collect();
    let rgb = Buffer::new(&pixels, 0, 0xff);
    for _ in 0..200 {
        let mut noise = |n: usize| -> Vec<i32> {
            let shift = below(&mut random, 32);
            (0..n).map(|_| random.next() as i32 >> shift).collect()
        };
        let sides = Buffer::new(&noise(patches(height, width, patch)), 0, 1);
        let (cu_seqlens, patch_id) = (Buffer::new(&noise(8), 0, 1), Buffer::new(&noise(7), 0, 1));
        let counts: Vec<u32> = noise(2).iter().map(|v| *v as u32).collect();
        let (mut tokens, mut position) = (Buffer::floats(13 * 40), Buffer::floats(2 * 40));
        let (layout, table) = single(height, width, patch);
        let pixels = Pixels { bytes: 3 * height * width, ..layout.pixels(rgb.slice(), [0.5; 2]) };
        let counts = Buffer::new(&counts, 0, 1);
        let selection = Selection {
            sides: sides.slice(),
            cu_seqlens: cu_seqlens.slice(),
            patch_id: patch_id.slice(),
            counts: counts.slice(),
            most: 7,
        };
        let out = TokensMut { tokens: tokens.slice_mut(), position: position.slice_mut(), capacity: 40 };
        compress_fused(&cpu, &layout.batch(table.slice()), &pixels, &selection, out).unwrap();
        position.read();
        for token in tokens.read().chunks(13) {
            let written = token.iter().all(|v| (-1.0..=1.0).contains(v)) && token[0] == 0.0;
            assert!(written || token.iter().all(|v| *v == -777.0), "a pixel from nowhere: {token:?}");
        }
    }
}
