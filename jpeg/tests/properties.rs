//! Random images through an encoder.

use proptest::prelude::*;

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
