//! Random images through an encoder, and broken files.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use thalweg_jpeg::JpegError;

mod encoder;
mod reference;
mod support;

use encoder::{Kind, encode};
use support::{decode, on_each_device};

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
    fn batches_equal_the_reference(kinds in prop::collection::vec(kinds(200), 1..6)) {
        let files: Vec<_> = kinds.iter().map(encode).collect();
        let expected: Vec<_> = files.iter().map(|file| reference::decode(file)).collect();
        let files: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
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
    let expected = [&large, &small].map(|file| reference::decode(file).2);
    on_each_device(|stream| {
        let decoded = decode(stream, &[&large, &small]);
        for (decoded, expected) in decoded.into_iter().zip(&expected) {
            assert!(decoded.unwrap().1 == *expected);
        }
    });
}

#[test]
fn a_file_cut_at_any_byte_is_an_error_and_its_neighbours_are_not() {
    let whole = encode(&Kind { restart: 3, ..kind(50, 70, &YCC_420, 10) });
    let expected = reference::decode(&whole).2;
    on_each_device(|stream| {
        for start in (0..whole.len()).step_by(64) {
            let cuts: Vec<usize> = (start..whole.len().min(start + 64)).collect();
            let mut files: Vec<&[u8]> = cuts.iter().map(|&cut| &whole[..cut]).collect();
            files.push(&whole);
            let mut decoded = decode(stream, &files);
            assert!(decoded.pop().unwrap().unwrap().1 == expected);
            for (cut, decoded) in cuts.iter().zip(decoded) {
                let error = decoded.err().unwrap_or_else(|| panic!("cut at {cut}: decoded"));
                assert!(matches!(error, JpegError::NotJpeg | JpegError::Truncated), "cut at {cut}: {error}");
            }
        }
    });
}

#[test]
fn data_that_ends_before_its_image_is_an_error() {
    for restart in [0, 3] {
        let whole = encode(&Kind { restart, ..kind(50, 70, &YCC_420, 10) });
        let end = whole.len() - 2;
        // The last block has 2 bits at least, and up to 7 bits of padding follow it.
        let files: Vec<Vec<u8>> = (2..40).map(|cut| [&whole[..end - cut], &[0xFF, 0xD9]].concat()).collect();
        let files: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        on_each_device(|stream| {
            for (i, decoded) in decode(stream, &files).into_iter().enumerate() {
                let error = decoded.err().unwrap_or_else(|| panic!("{} bytes less: decoded", i + 2));
                assert!(!matches!(error, JpegError::Unsupported(_) | JpegError::NotJpeg), "{error}");
            }
        });
    }
}

#[test]
fn sizes_that_lie_ask_for_no_memory() {
    let mut lying = encode(&kind(16, 16, &YCC_420, 10));
    let frame = lying.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    lying[frame + 5..frame + 9].copy_from_slice(&[0x40, 0x00, 0x40, 0x00]); // 16384 x 16384
    on_each_device(|stream| assert_eq!(decode(stream, &[&lying])[0], Err(JpegError::Truncated)));
}

/// Changes bytes of small files and decodes many at once: an error or pixels, and nothing else. The
/// environment variable `THALWEG_FUZZ` sets the number of files.
#[test]
fn broken_files_are_errors_or_pixels() {
    let total: u32 = std::env::var("THALWEG_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let mut state = 0x1234_5678_9abc_def0_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut runner = TestRunner::deterministic();
    let seeds: Vec<Vec<u8>> = (0..32).map(|_| encode(&kinds(64).new_tree(&mut runner).unwrap().current())).collect();
    let whole = &seeds[0];
    let expected = reference::decode(whole).2;
    on_each_device(|stream| {
        let mut done = 0;
        let mut pixels = 0;
        while done < total {
            let mut files: Vec<Vec<u8>> = (0..256)
                .map(|_| {
                    let mut file = seeds[random(seeds.len())].clone();
                    for _ in 0..1 + random(6) {
                        // Most of a small file is its header, so half of the changes are in the data.
                        let from = if random(2) == 0 { 0 } else { file.len() / 2 };
                        let at = from + random(file.len() - from);
                        match random(4) {
                            0 => file[at] = 0xFF,
                            1 => file[at] ^= 1 << random(8),
                            2 => file[at] = random(256) as u8,
                            _ if file.len() > 2 => drop(file.remove(at)),
                            _ => {}
                        }
                    }
                    file
                })
                .collect();
            files.push(whole.clone());
            let views: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
            let mut decoded = decode(stream, &views);
            assert!(decoded.pop().unwrap().unwrap().1 == expected, "a whole file suffers from its neighbours");
            pixels += decoded.iter().filter(|image| image.is_ok()).count();
            done += 256;
        }
        eprintln!("{pixels} of {done} broken files gave pixels");
        assert!(pixels > 0);
    });
}
