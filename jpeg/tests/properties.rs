//! Random images through an encoder.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use proptest::prelude::*;
use thalweg::PinnedPool;
use thalweg_jpeg::{Decoder, HostDecoder, JpegError};

use crate::encoder::{Kind, encode};
use crate::support::{decode, decode_on_host, on_each_device};

/// Sampling factors of three components whose ratios are whole, with at most 10 blocks in a unit.
fn factors() -> impl Strategy<Value = Vec<[u8; 2]>> {
    let component = || [1..=4u8, 1..=4u8];
    let three = [component(), component(), component()].prop_map(|f| f.to_vec());
    let allowed = |f: &Vec<[u8; 2]>| {
        let most = |axis: usize| f.iter().map(|c| c[axis]).max().unwrap();
        f.iter().all(|c| most(0) % c[0] == 0 && most(1) % c[1] == 0) && f.iter().map(|c| c[0] * c[1]).sum::<u8>() <= 10
    };
    prop_oneof![
        1 => Just(vec![[1, 1]]),
        4 => prop::sample::select(vec![[1, 1], [2, 1], [1, 2], [2, 2], [4, 1], [4, 2]]).prop_map(|y| vec![y, [1, 1], [1, 1]]),
        2 => three.prop_filter("whole ratios", allowed),
    ]
}

prop_compose! {
    fn kinds(most: u16)(
        height in 1..=most, width in 1..=most, factors in factors(), restart in prop_oneof![Just(0), 1..40u16],
        coefficients in 1..40u32, rgb in prop::bool::weighted(0.1), seed: u64,
    ) -> Kind {
        Kind { height, width, factors, restart, coefficients, rgb, seed }
    }
}

fn kind(height: u16, width: u16, factors: &[[u8; 2]], coefficients: u32) -> Kind {
    Kind { height, width, factors: factors.to_vec(), restart: 0, coefficients, rgb: false, seed: 1 }
}

const YCC_420: [[u8; 2]; 3] = [[2, 2], [1, 1], [1, 1]];

proptest! {
    #[test]
    fn batches_equal_the_reference(kinds in prop::collection::vec(kinds(300), 1..6)) {
        let files: Vec<_> = kinds.iter().map(encode).collect();
        let expected: Vec<_> = files.iter().map(|file| crate::reference::decode(file)).collect();
        let files: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        let mut host = HostDecoder::new();
        for (i, (file, (height, width, rgb))) in files.iter().zip(&expected).enumerate() {
            let (size, bytes) = decode_on_host(&mut host, file).unwrap();
            assert_eq!(size.map(|side| side as usize), [*height, *width]);
            assert!(bytes == *rgb, "image {i} of {height} x {width} on the host");
        }
        on_each_device(|stream| {
            for (i, (decoded, (height, width, rgb))) in decode(stream, &files).into_iter().zip(&expected).enumerate() {
                let (image, bytes) = decoded.unwrap();
                assert_eq!([image.height as usize, image.width as usize], [*height, *width]);
                assert!(bytes == *rgb, "image {i} of {height} x {width}");
            }
        });
    }
}

/// One image with hundreds of blocks of pieces, so that `settle` has work, beside a small one.
#[test]
fn a_large_image_equals_the_reference() {
    let large = encode(&kind(1000, 1500, &YCC_420, 40));
    let small = encode(&kind(40, 30, &[[1, 1]], 10));
    assert!(large.len() > 3 * 128 * 128, "there are more pieces than a block has");
    let expected = [&large, &small].map(|file| crate::reference::decode(file).2);
    on_each_device(|stream| {
        let decoded = decode(stream, &[&large, &small]);
        for (decoded, expected) in decoded.into_iter().zip(&expected) {
            assert!(decoded.unwrap().1 == *expected);
        }
    });
}

/// An image, and how an encoder for photographs writes it. That encoder is another crate's.
#[derive(Clone, Debug)]
struct Photograph {
    height: u16,
    width: u16,
    gray: bool,
    quality: u8,
    sampling: SamplingFactor,
    restart: u16,
    optimized: bool,
    scans: u8,
    seed: u64,
}

prop_compose! {
    fn photographs(most: u16)(
        height in 1..=most, width in 1..=most, gray in prop::bool::weighted(0.2), quality in 1..=100u8,
        sampling in prop::sample::select(vec![
            SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_1_2, SamplingFactor::F_2_2,
        ]),
        restart in prop_oneof![Just(0), 1..20u16], optimized: bool, scans in 2..=20u8, seed: u64,
    ) -> Photograph {
        Photograph { height, width, gray, quality, sampling, restart, optimized, scans, seed }
    }
}

impl Photograph {
    /// Encodes the image: slopes, and noise as strong as the seed says.
    fn encode(&self, progressive: bool) -> Vec<u8> {
        let (height, width) = (usize::from(self.height), usize::from(self.width));
        let channels = if self.gray { 1 } else { 3 };
        let mut noise = self.seed | 1;
        let pixels: Vec<u8> = (0..height * width * channels)
            .map(|i| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (y, x, c) = (i / channels / width, i / channels % width, i % channels);
                (2 * y + (c + 1) * x + (noise >> 33) as usize % (1 + self.seed as usize % 100)) as u8
            })
            .collect();
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, self.quality);
        encoder.set_sampling_factor(self.sampling);
        encoder.set_restart_interval(self.restart);
        if progressive {
            // In a baseline file it would write a scan for each component.
            // With restarts, its optimized tables lack codes.
            encoder.set_optimized_huffman_tables(self.optimized && self.restart == 0);
            encoder.set_progressive_scans(self.scans);
        }
        let color = if self.gray { ColorType::Luma } else { ColorType::Rgb };
        encoder.encode(&pixels, self.width, self.height, color).unwrap();
        file
    }
}

proptest! {
    /// The host decodes the scans of progressive files, and the device decodes baseline files with
    /// the same coefficients.
    #[test]
    fn progressive_files_have_the_pixels_of_baseline_files(photographs in prop::collection::vec(photographs(300), 1..4)) {
        let files: Vec<_> = photographs.iter().flat_map(|p| [p.encode(false), p.encode(true)]).collect();
        assert!(files.chunks(2).all(|f| !is_progressive(&f[0]) && is_progressive(&f[1])));
        let expected: Vec<_> = files.iter().step_by(2).map(|file| crate::reference::decode(file).2).collect();
        let files: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        let mut host = HostDecoder::new();
        for (i, (file, expected)) in files.iter().zip(expected.iter().flat_map(|rgb| [rgb, rgb])).enumerate() {
            assert!(decode_on_host(&mut host, file).unwrap().1 == *expected, "file {i} on the host");
        }
        on_each_device(|stream| {
            let decoded: Vec<_> = decode(stream, &files).into_iter().map(|image| image.unwrap().1).collect();
            for (i, (pair, expected)) in decoded.chunks(2).zip(&expected).enumerate() {
                assert!(pair[0] == *expected && pair[1] == *expected, "image {i}");
            }
        });
    }
}

/// Whether the frame header of a file is that of a progressive file.
fn is_progressive(file: &[u8]) -> bool {
    let mut at = 2;
    while !(0xC0..=0xC2).contains(&file[at + 1]) {
        at += 2 + usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]));
    }
    file[at + 1] == 0xC2
}

/// The coefficients of progressive files come out of the pool that they are to come from. A file
/// for which it has no memory fails alone.
#[test]
fn coefficients_stay_in_their_budget() {
    let photograph = |height, width| Photograph {
        height,
        width,
        gray: false,
        quality: 80,
        sampling: SamplingFactor::F_2_2,
        restart: 0,
        optimized: false,
        scans: 5,
        seed: 7,
    };
    let small = photograph(60, 70);
    let (baseline, large) = (photograph(300, 300).encode(false), photograph(300, 300).encode(true));
    let expected = [&baseline, &small.encode(false)].map(|file| crate::reference::decode(file).2);
    let small = small.encode(true);
    let files = [&baseline[..], &large, &small, &small];
    on_each_device(|stream| {
        // The large file needs 128 bytes for each of its 2166 blocks, and the small one for each
        // of 120.
        let pool = PinnedPool::new(stream.device(), 64 << 10);
        let mut decoder = Decoder::new(stream.device()).coefficients_from(pool.clone());
        let batch = decoder.read(&files).unwrap();
        assert!((2 * 120 * 128..=64 << 10).contains(&pool.in_use()), "{} bytes are in use", pool.in_use());
        let images = decoder.decode(stream, batch).unwrap().synchronize().unwrap();
        assert_eq!(images.image(1), Err(JpegError::NoMemory));
        let places = [0, 2, 3].map(|i| images.image(i).unwrap().bytes);
        let on = stream.bind(images.rgb).unwrap();
        let bytes = stream.read_blocking(&on).unwrap();
        assert!(places.iter().zip([0, 1, 1]).all(|(place, i)| bytes[place.clone()] == expected[i][..]));
        // All of it comes back once the device has read it.
        assert_eq!(pool.take::<u8>(64 << 10).unwrap().len(), 64 << 10);
    });
}
