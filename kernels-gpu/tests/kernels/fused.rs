//! The fused path and halves: against the oracle, and against the materialised path.

use thalweg_kernels::vision::{
    Batch, Layout, Pixels, Selection, TokensMut, analyze, compress, compress_fused, compress_fused_bf16,
    compress_fused_f16, entropy, features, gains, textures, textures_f16,
};

use super::device::{Buffer, Cpu, Error, Random};
use super::{SIZES, distance, oracle, patches, picture, refused, run_allocate, single};

/// Heights and widths of which some patches are whole quads of pixels, and some in part.
const QUADS: [(u32, u32); 9] =
    [(1, 4), (5, 8), (2, 128), (33, 32), (40, 124), (67, 96), (131, 68), (64, 256), (300, 400)];

/// The largest distance between two arrays of floats.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    distance(a, &b.iter().map(|v| f64::from(*v)).collect::<Vec<_>>())
}

fn fixation(random: &mut Random) -> (f32, f32) {
    if random.below(2) == 0 { (0.5, 0.5) } else { (random.unit(), random.unit()) }
}

/// [`analyze`] of one image, of which `rgb` holds no more.
fn run_analyze(
    cpu: &Cpu,
    (height, width): (u32, u32),
    patch: u32,
    (fy, fx): (f32, f32),
    rgb: &Buffer<u8>,
    out: &mut Buffer<f32>,
    bits: &mut Buffer<f32>,
) -> Result<(), Error> {
    let layout = Layout::new(&[[height, width]], patch).unwrap();
    let table = single(height, width, patch);
    let pixels = Pixels { bytes: 3 * height * width, ..layout.pixels(rgb.slice(), [fy, fx]) };
    analyze(cpu, &layout.batch(table.slice()), &pixels, out.slice_mut(), bits.slice_mut())
}

/// Features and entropy, and those of the materialised path, in units that were all written.
fn check_analyze(sizes: &[(u32, u32)], sides: &[u32]) {
    let (cpu, mut random) = (Cpu::default(), Random(11));
    let (mut worst, mut worst_entropy, mut worst_twin) = (0.0f64, 0.0f64, 0.0f64);
    for &(height, width) in sizes {
        for &patch in sides {
            let (fy, fx) = fixation(&mut random);
            let pixels = picture(&mut random, height, width);
            let rgb = Buffer::new(&pixels, random.below(8).saturating_sub(4) as usize, 0xcd);
            let (h, w, n) = (height as usize, width as usize, patches(height, width, patch));
            let (mut out, mut bits) = (Buffer::floats(13 * n), Buffer::floats(n));
            run_analyze(&cpu, (height, width), patch, (fy, fx), &rgb, &mut out, &mut bits).unwrap();

            let planes = oracle::textures(h, w, (fy.into(), fx.into()), &pixels);
            let means: Vec<f64> = oracle::patches(h, w, patch as usize)
                .into_iter()
                .flat_map(|(rows, columns)| {
                    let area = (rows.len() * columns.len()) as f64;
                    let pixels: Vec<usize> = rows.flat_map(|y| columns.clone().map(move |x| y * w + x)).collect();
                    planes
                        .iter()
                        .map(move |plane| pixels.iter().map(|i| plane[*i]).sum::<f64>() / area)
                        .collect::<Vec<_>>()
                })
                .collect();
            worst = worst.max(distance(out.read(), &means));
            let information = oracle::entropy(h, w, patch as usize, &pixels);
            worst_entropy = worst_entropy.max(distance(bits.read(), &information));
            assert!(information.iter().zip(bits.read()).all(|(e, v)| *e > 0.0 || *v == 0.0), "no information is none");

            let (mut materialised, mut twin) = (Buffer::floats(13 * h * w), Buffer::floats(13 * n));
            textures(&cpu, height, width, fy, fx, rgb.slice(), materialised.slice_mut()).unwrap();
            features(&cpu, height, width, patch, materialised.slice(), twin.slice_mut()).unwrap();
            worst_twin = worst_twin.max(apart(out.read(), twin.read()));
            entropy(&cpu, height, width, patch, rgb.slice(), twin.slice_mut().slice_mut(..n).unwrap()).unwrap();
            worst_twin = worst_twin.max(apart(bits.read(), &twin.read()[..n]));
        }
    }
    println!("largest errors: features {worst:.1e}, entropy {worst_entropy:.1e}; fused and not: {worst_twin:.1e}");
    assert!(worst <= 2e-6 && worst_entropy <= 1e-6 && worst_twin <= 1e-6);
}

#[test]
fn analysis_of_quads_is_that_of_planes() {
    check_analyze(&QUADS, &[4, 8, 12, 16, 20, 24, 28, 32]);
}

#[test]
fn analysis_is_that_of_planes_at_any_size_patch_and_alignment() {
    check_analyze(&SIZES, &[1, 3, 5, 8, 31, 32, 33, 64, 100, 16384]);
    check_analyze(&QUADS, &[33, 40, 64, 91, 128, 200]);
}

#[test]
fn analysis_of_a_large_constant_patch_does_not_drift() {
    let cpu = Cpu::default();
    let side = 1024;
    let pixels = [37, 120, 201].repeat((side * side) as usize);
    for shift in [0, 1] {
        let rgb = Buffer::new(&pixels, shift, 0);
        let (mut out, mut bits) = (Buffer::floats(13), Buffer::floats(1));
        run_analyze(&cpu, (side, side), side, (0.5, 0.5), &rgb, &mut out, &mut bits).unwrap();
        let (l, a, b) = oracle::lab(37, 120, 201);
        let rgb = [37.0, 120.0, 201.0].map(|v| v / 255.0);
        let want = [rgb[0], rgb[1], rgb[2], l / 100.0, (a + 128.0) / 255.0, (b + 128.0) / 255.0, 0.0, 0.0, 0.0];
        assert!(distance(&out.read()[..9], &want) <= 1e-6);
        assert_eq!((out.read()[12], bits.read()[0]), (0.0, 0.0));
    }
}

#[test]
fn analysis_refuses_what_would_not_fit() {
    let cpu = Cpu::default();
    let (rgb, table) = (Buffer::new(&[0u8; 3 * 64], 0, 0), Buffer::new(&[8, 8, 0, 0, 0, 0, 192, 1, 0], 0, 0));
    let (mut out, mut bits) = (Buffer::floats(13), Buffer::floats(1));
    let mut run = |images, patches, bytes, patch, table| {
        let batch = Batch { images, patches, largest: patches, table };
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
fn half_planes_are_the_planes_rounded() {
    let (cpu, mut random) = (Cpu::default(), Random(12));
    for (height, width) in SIZES {
        for round in 0..4 {
            let (fy, fx) = fixation(&mut random);
            let rgb = Buffer::new(&picture(&mut random, height, width), round % 2, 0xcd);
            let len = (13 * height * width) as usize;
            let mut planes = Buffer::floats(len);
            let mut halves = Buffer::new(&vec![0xabcd; len], round / 2, 0xabcd);
            textures(&cpu, height, width, fy, fx, rgb.slice(), planes.slice_mut()).unwrap();
            textures_f16(&cpu, height, width, fy, fx, rgb.slice(), halves.slice_mut()).unwrap();
            assert!(halves.read().iter().zip(planes.read()).all(|(half, v)| oracle::is_half_of(*half, *v)));
        }
    }
}

#[test]
fn fused_tokens_are_those_of_planes() {
    let (cpu, mut random) = (Cpu::default(), Random(13));
    let mut worst = 0.0f64;
    for (height, width) in SIZES {
        for patch in [1, 5, 16, 32, 100] {
            let (fy, fx) = fixation(&mut random);
            let rgb = Buffer::new(&picture(&mut random, height, width), random.below(4) as usize, 0xcd);
            let lo = random.between(1, 9);
            let gains = gains(lo, random.between(lo, 20), 0.8);
            let budget = u64::from(lo * lo) + random.below(2000);
            let a = run_allocate(&cpu, &random.units(patches(height, width, patch)), &gains, lo, budget);
            let (capacity, selected) = (budget as u32, a.patch_id.len() as u32);
            let [sides, cu_seqlens, patch_id] = [a.sides, a.cu_seqlens, a.patch_id].map(|v| Buffer::new(&v, 0, 1));
            let counts = Buffer::new(&a.counts, 0, 1);
            let mut planes = Buffer::floats((13 * height * width) as usize);
            textures(&cpu, height, width, fy, fx, rgb.slice(), planes.slice_mut()).unwrap();

            let (rows, n) = (capacity as usize, 13 * capacity as usize);
            let (mut twin, mut twin_position) = (Buffer::floats(n), Buffer::floats(2 * rows));
            let selection = Selection {
                sides: sides.slice(),
                cu_seqlens: cu_seqlens.slice(),
                patch_id: patch_id.slice(),
                counts: counts.slice(),
                most: selected,
            };
            let out = TokensMut { tokens: twin.slice_mut(), position: twin_position.slice_mut(), capacity };
            compress(&cpu, height, width, patch, planes.slice(), &selection, out).unwrap();
            let (mut tokens, mut position) = (Buffer::floats(n), Buffer::floats(2 * rows));
            let (layout, table) = (Layout::new(&[[height, width]], patch).unwrap(), single(height, width, patch));
            let batch = layout.batch(table.slice());
            let pixels = Pixels { bytes: 3 * height * width, ..layout.pixels(rgb.slice(), [fy, fx]) };
            let out = TokensMut { tokens: tokens.slice_mut(), position: position.slice_mut(), capacity };
            compress_fused(&cpu, &batch, &pixels, &selection, out).unwrap();
            worst = worst.max(apart(tokens.read(), twin.read()));
            assert_eq!(position.read(), twin_position.read());

            let used = 13 * a.counts[0] as usize;
            for bf16 in [false, true] {
                let mut halves = Buffer::filled(n, 0xabcd);
                let run = if bf16 { compress_fused_bf16 } else { compress_fused_f16 };
                let out = TokensMut { tokens: halves.slice_mut(), position: position.slice_mut(), capacity };
                run(&cpu, &batch, &pixels, &selection, out).unwrap();
                let rounded = if bf16 { oracle::is_bfloat_of } else { oracle::is_half_of };
                assert!(halves.read()[..used].iter().zip(tokens.read()).all(|(half, v)| rounded(*half, *v)));
                assert!(halves.read()[used..].iter().all(|v| *v == 0xabcd), "rows past the last token are left alone");
                assert_eq!(position.read(), twin_position.read());
            }
        }
    }
    println!("largest distance of fused tokens: {worst:.1e}");
    assert!(worst <= 1e-6);
}

/// Offsets, ids, sides and counts of noise: any values, but no access outside the buffers.
#[test]
fn fused_compression_survives_any_contents() {
    let (cpu, mut random) = (Cpu::default(), Random(14));
    let (height, width, patch) = (45, 70, 16);
    // Next to the image are bytes that would show: inside it red is 0.
    let pixels: Vec<u8> = random.bytes(2 * 45 * 70).chunks(2).flat_map(|gb| [0, gb[0], gb[1]]).collect();
    let rgb = Buffer::new(&pixels, 0, 0xff);
    for _ in 0..200 {
        let mut noise = |n: usize| -> Vec<i32> {
            let shift = random.below(32);
            (0..n).map(|_| random.next() as i32 >> shift).collect()
        };
        let sides = Buffer::new(&noise(patches(height, width, patch)), 0, 1);
        let (cu_seqlens, patch_id) = (Buffer::new(&noise(8), 0, 1), Buffer::new(&noise(7), 0, 1));
        let counts: Vec<u32> = noise(2).iter().map(|v| *v as u32).collect();
        let (mut tokens, mut position) = (Buffer::floats(13 * 40), Buffer::floats(2 * 40));
        let (layout, table) = (Layout::new(&[[height, width]], patch).unwrap(), single(height, width, patch));
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
