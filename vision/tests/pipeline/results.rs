//! Tests of what the pipeline computes: for one image or many, in full and half precision, under
//! any schedule.

use std::thread;

use proptest::prelude::*;
use testkit::cases;
use testkit::devices::{alone, devices};
use testkit::images::images;
use testkit::oracle::{Content, ImageSpec, PLANES};
use thalweg::Device;
use thalweg_vision::{Image, Pipeline, PipelineOptions, TokenParams, TokenPrecision, TokenSet, TokenValues};

use crate::run::{check_run, given};
use crate::{deep, finish, frame, mixed, params, pipeline, pipeline_with, small_params, submit, unwrap_all};

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn any_image_any_parameters(spec in images(130), params in params()) {
        let _alone = alone();
        let image = spec.build();
        for &device in devices() {
            let run = pipeline(device, params.clone()).run(&[given(&image)]).remove(0).unwrap();
            check_run(&device.to_string(), &image, &params, &run);
        }
    }
}

/// These images have more patches than the threads of a block hold in registers.
#[test]
fn images_of_many_patches() {
    let _alone = alone();
    let params = TokenParams::default().with_patch(1).with_budget(64);
    for (height, width) in [(64, 128), (73, 127), (128, 129), (129, 127), (250, 131)] {
        let image = ImageSpec { height, width, content: Content::Gradient, saturated: false, seed: 0 }.build();
        for &device in devices() {
            let run = pipeline(device, params.clone()).run(&[given(&image)]).remove(0).unwrap();
            check_run(&format!("{height} x {width} on {device}"), &image, &params, &run);
        }
    }
}

#[test]
fn a_batch_equals_its_images_one_by_one() {
    let _alone = alone();
    for &device in devices() {
        let images = mixed();
        let one = pipeline(device, small_params());
        let batch = unwrap_all(one.run(&images));
        for (image, run) in images.iter().zip(&batch) {
            let alone = pipeline(device, small_params()).run(std::slice::from_ref(image)).remove(0).unwrap();
            assert!(alone == *run, "{image:?} on {device}, alone and in a batch");
        }
        assert!(unwrap_all(one.run(&images)) == batch, "a second time on {device}");
        assert!(one.run(&[]).is_empty());

        let batch_with_textures = batch.clone();
        let without = Pipeline::new(device, small_params()).unwrap();
        for (mut run, other) in batch.into_iter().zip(unwrap_all(without.run(&images))) {
            run.textures = None;
            assert!(run == other, "without textures on {device}");
        }
        assert_eq!(one.stages(), Default::default(), "not measured on {device}");
        let measured = pipeline_with(device, small_params(), PipelineOptions::default().with_stages(true));
        assert!(unwrap_all(measured.run(&images)) == batch_with_textures, "measured on {device}");
        let stages = measured.stages();
        println!("{device}: {stages:?}");
        assert!(stages.named().iter().all(|(_, time)| !time.is_zero()), "{stages:?}");
        let measured = Pipeline::with_options(device, small_params(), PipelineOptions::default().with_stages(true));
        let measured = measured.unwrap();
        unwrap_all(measured.run(&images));
        let none: Vec<_> = measured.stages().named().into_iter().filter(|(_, time)| time.is_zero()).collect();
        assert_eq!(none, [("textures", Default::default())], "the stages without time on {device}");
    }
}

/// Images of mixed sizes are submitted together, several times. The first batch is enqueued call by
/// call, the second is captured, and the later ones are replayed. All give what each image gives
/// alone.
#[test]
fn a_submission_equals_its_images_one_by_one() {
    let _alone = alone();
    let mut all = devices().to_vec();
    all.push(Device::seeded_cpu(7).unwrap());
    for device in all {
        let images = mixed();
        let shifted: Vec<Image> = images
            .iter()
            .map(|i| Image::new(i.height(), i.width(), i.rgb().iter().map(|v| v.wrapping_add(77)).collect()).unwrap())
            .collect();
        let pipeline = deep(device, small_params(), 2);
        let [want, other] = [&images, &shifted].map(|images| unwrap_all(pipeline.run(images)));
        for (round, (images, want)) in [(&images, &want), (&shifted, &other)].into_iter().cycle().take(6).enumerate() {
            let tokens = pipeline.submit(frame(&pipeline, images).unwrap()).unwrap().synchronize().unwrap();
            assert_eq!(tokens.images(), images.len());
            for (i, want) in want.iter().enumerate() {
                assert!(tokens.set(i) == *want, "image {i} of submission {round} on {device}");
            }
            let ends = |counts: Vec<usize>| {
                let sums = counts.iter().scan(0, |sum, n| {
                    *sum += *n as i32;
                    Some(*sum)
                });
                std::iter::once(0).chain(sums).collect::<Vec<_>>()
            };
            assert_eq!(tokens.image_cu_seqlens(), ends(want.iter().map(TokenSet::len).collect()));
            assert_eq!(tokens.image_cu_patches(), ends(want.iter().map(|set| set.patch_id.len()).collect()));
            assert_eq!(tokens.cu_seqlens().last(), tokens.image_cu_seqlens().last());
            pipeline.recycle(tokens);
        }
    }
}

/// Halves are the rounded floats, and everything else is the same.
#[test]
fn tokens_in_half_precision() {
    let _alone = alone();
    for &device in devices() {
        let images = mixed();
        let want = unwrap_all(pipeline(device, small_params()).run(&images));
        for (precision, bound) in [(TokenPrecision::F16, 2f32.powi(-11)), (TokenPrecision::Bf16, 2f32.powi(-8))] {
            let pipeline = pipeline_with(device, small_params(), PipelineOptions::default().with_precision(precision));
            for (want, mut got) in want.iter().zip(unwrap_all(pipeline.run(&images))) {
                assert_eq!(got.tokens.len(), want.tokens.len());
                for (got, want) in got.tokens.iter().zip(&want.tokens) {
                    // Half an ulp of the value, or of the smallest normal half.
                    let ulp = bound * want.abs().max(2f32.powi(-14));
                    assert!((got - want).abs() <= ulp, "{got} for {want} in {precision:?} on {device}");
                }
                assert_eq!(got.halves.take().unwrap().len(), want.tokens.len());
                got.tokens.clone_from(&want.tokens);
                assert!(got == *want);
            }
            let tokens = pipeline.submit(frame(&pipeline, &images).unwrap()).unwrap().synchronize().unwrap();
            let numbers = match tokens.tokens() {
                TokenValues::F16(values) if precision == TokenPrecision::F16 => values.len(),
                TokenValues::Bf16(values) if precision == TokenPrecision::Bf16 => values.len(),
                other => panic!("{other:?} of {precision:?}"),
            };
            assert_eq!(numbers, PLANES * tokens.len());
        }
    }
}

/// A seeded device runs work late and out of order, as far as the pipeline's events allow it. The
/// results stay the same.
#[test]
fn no_schedule_changes_the_result() {
    let _alone = alone();
    let images = &mixed()[..6];
    let want = unwrap_all(pipeline(Device::cpu().unwrap(), small_params()).run(images));
    let seeded = Device::seeded_cpu(0).unwrap();
    let pipeline = deep(seeded, small_params(), images.len());
    for seed in 0..u64::from(cases(60).cases) {
        seeded.reseed(seed);
        let got = unwrap_all(pipeline.run(images));
        assert!(got == want, "seed {seed}");
        let submitted: Vec<_> = images.iter().map(|image| submit(&pipeline, image).unwrap()).collect();
        for (submitted, want) in submitted.into_iter().zip(&want).rev() {
            assert!(finish(&pipeline, submitted) == *want, "seed {seed}, last first");
        }
    }
}

#[test]
fn pipelines_run_side_by_side() {
    let _alone = alone();
    let mut all = devices().to_vec();
    all.extend([Device::new_cpu().unwrap(), Device::new_cpu().unwrap()]);
    let images = mixed();
    let wants: Vec<_> = all.iter().map(|&device| unwrap_all(pipeline(device, small_params()).run(&images))).collect();
    thread::scope(|threads| {
        for (&device, want) in all.iter().zip(&wants) {
            for _ in 0..2 {
                let images = &images;
                threads.spawn(move || {
                    let pipeline = pipeline(device, small_params());
                    for _ in 0..3 {
                        assert!(unwrap_all(pipeline.run(images)) == *want, "on {device}");
                    }
                });
            }
        }
    });
}
