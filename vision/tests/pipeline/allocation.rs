//! Tests of allocation by a map of one's own.

use proptest::prelude::*;
use proptest::sample::select;
use testkit::cases;
use testkit::devices::{alone, devices};
use testkit::oracle;
use thalweg::Error;
use thalweg_vision::TokenParams;

use crate::{allocate, params};

proptest! {
    #![proptest_config(cases(192))]

    #[test]
    fn allocation_of_a_map(
        map in prop::collection::vec(prop_oneof![-0.1f32..=1.1, select(vec![0.0, 0.5, 1.0])], 0..200),
        params in params(),
        rich in any::<bool>(),
    ) {
        let budget = if rich { u64::MAX } else { params.budget };
        let _alone = alone();
        let params = params.with_budget(budget);
        let (lo, hi) = (*params.sides.start(), *params.sides.end());
        let sides = oracle::allocate(&map, lo, hi, params.budget, params.focus);
        for &device in devices() {
            let got = allocate(device, &map, &params).unwrap();
            assert_eq!(got.sides, sides.iter().map(|&n| n as i32).collect::<Vec<_>>());
            let selected = (0i32..).zip(&sides).filter(|(_, n)| **n > 0);
            assert_eq!(got.patch_id, selected.clone().map(|(i, _)| i).collect::<Vec<_>>());
            let mut offsets = vec![0];
            offsets.extend(selected.scan(0, |total, (_, n)| {
                *total += (n * n) as i32;
                Some(*total)
            }));
            assert_eq!(got.cu_seqlens, offsets);
        }
    }
}

#[test]
fn a_relevance_that_is_no_number_is_refused() {
    let _alone = alone();
    for &device in devices() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = allocate(device, &[0.5, 1.0, bad, 0.1], &TokenParams::default()).unwrap_err();
            let message = error.to_string();
            assert!(matches!(error, Error::Parameter { name: "relevance", .. }), "{error:?}");
            assert!(message.contains("patch 2") && message.contains("expected finite numbers"), "{message}");
        }
        let none = allocate(device, &[], &TokenParams::default()).unwrap();
        assert_eq!((none.sides, none.cu_seqlens, none.patch_id), (vec![], vec![0], vec![]));
        let many = vec![1.0; 40_000];
        let error = allocate(device, &many, &TokenParams::default().with_sides(255..=255).with_budget(u64::MAX));
        assert!(matches!(error, Err(Error::Parameter { name: "budget", .. })), "{error:?}");
    }
}
