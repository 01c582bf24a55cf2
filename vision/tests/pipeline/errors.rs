//! Tests of how the pipeline fails, and that it goes on afterwards.

use testkit::devices::{alone, devices, report};
use thalweg::{Device, Error, Size};
use thalweg_vision::{Image, Pipeline, PipelineOptions, TokenParams};

use crate::run::given;
use crate::{allocate, deep, mixed, noise, pipeline, small_params};

/// One image whose tokens could pass 2^31 fails; those around it do not.
#[test]
fn an_image_that_fails_leaves_the_others_alone() {
    let _alone = alone();
    let params = TokenParams::default().with_patch(1).with_sides(255..=255).with_budget(u64::MAX);
    let [small, large, other] = [noise(1, 2), noise(190, 190), noise(2, 1)].map(|image| given(&image));
    for &device in devices() {
        let pipeline = Pipeline::new(device, params.clone()).unwrap();
        let batch = [&large, &small, &large, &large, &other, &large].map(Clone::clone);
        let mut results = pipeline.run(&batch);
        for i in [5, 3, 2, 0] {
            let Err(error @ Error::Parameter { name: "budget", .. }) = results.remove(i) else {
                panic!("image {i} needs too many tokens")
            };
            assert!(error.to_string().contains("at most 2147483647 tokens for all images"), "{error}");
        }
        for (image, result) in [small.clone(), other.clone()].iter().zip(results) {
            let run = result.unwrap();
            assert_eq!((run.height, run.width, run.len()), (image.height(), image.width(), 2 * 255 * 255));
        }
    }
}

/// If memory runs out in the middle of an image, the image gets a typed error, and the pipeline
/// works on.
#[test]
fn running_out_of_memory_is_an_error_and_no_end() {
    let _alone = alone();
    // Up to 2^31 tokens, of 52 bytes each.
    let params = TokenParams::default().with_patch(1).with_sides(255..=255).with_budget(u64::MAX);
    let [small, large] = [noise(1, 2), noise(181, 182)].map(|image| given(&image));
    for &device in devices() {
        if device.free_memory().unwrap() > 100 << 30 {
            report(&format!("NOT COVERED on {device}: running out of memory, because it has room for everything"));
            continue;
        }
        let pipeline = Pipeline::new(device, params.clone()).unwrap();
        let results = pipeline.run(&[small.clone(), large.clone(), small.clone()]);
        let [first, failed, last] = <[_; 3]>::try_from(results).unwrap();
        let Err(Error::OutOfMemory { wanted, .. }) = failed else {
            panic!("{device} has no room for 110 GB of tokens")
        };
        assert!(wanted >= 181 * 182 * 255 * 255 * 13 * 4, "{wanted}");
        assert!(first.unwrap() == last.unwrap());
    }
}

#[test]
fn an_image_is_as_large_as_it_says() {
    let _alone = alone();
    for (height, width, bytes) in
        [(0, 5, 0), (5, 0, 0), (16385, 1, 3 * 16385), (1, u32::MAX, 3), (2, 3, 17), (2, 3, 19)]
    {
        let error = Image::new(height, width, vec![0; bytes]).unwrap_err();
        let Error::Parameter { name, .. } = &error else { panic!("{error:?}") };
        assert!(["image", "image size"].contains(name), "{error}");
        for &device in devices() {
            let pipeline = pipeline(device, small_params());
            if bytes == 0 || height.max(width) > 16384 {
                assert!(pipeline.frame(&[Size::new(height, width)]).is_err());
            }
            assert!(pipeline.run(&mixed()[..1]).remove(0).is_ok());
        }
    }
    let pipeline = pipeline(devices()[0], small_params());
    let refused = |sizes: &[Size]| pipeline.try_frame(sizes).unwrap_err().to_string();
    let message = "image size is 20000 x 40 for image 1, expected 1 to 16384 pixels a side";
    assert_eq!(refused(&[Size::new(1, 1), Size::new(20000, 40)]), message);
    assert_eq!(refused(&[]), "batch is 0 images, expected 1 to 65535");
    let error = Image::new(2, 3, vec![0; 17]).unwrap_err().to_string();
    assert_eq!(error, "image is 17 bytes, expected 18 bytes, 3 for each of 2 x 3 pixels");
    assert!(Image::new(16384, 1, vec![0; 3 * 16384]).is_ok());
}

#[test]
fn a_pipeline_of_no_depth_is_refused() {
    let options = PipelineOptions::default().with_depth(0);
    let error = Pipeline::with_options(Device::cpu().unwrap(), TokenParams::default(), options).unwrap_err();
    assert_eq!(error.to_string(), "depth is 0, expected at least 1");
}

/// What a program logs of a pipeline, or of what it makes, are a few lines and no weights.
#[test]
fn debug_output_is_short() {
    let _alone = alone();
    let pipeline = deep(Device::cpu().unwrap(), small_params(), 2);
    let sizes = [Size::new(40, 50), Size::new(3, 4)];
    let frame = pipeline.frame(&sizes).unwrap();
    assert_eq!(format!("{frame:?}"), "Frame([[40, 50], [3, 4]])");
    let future = format!("{:?}", pipeline.frame_async(&sizes));
    let tokens = pipeline.submit(frame).unwrap().synchronize().unwrap();
    let (images, selected, len) = (tokens.images(), tokens.selected(), tokens.len());
    let numbers = format!("Tokens {{ images: {images}, selected: {selected}, tokens: {len}, .. }}");
    assert_eq!(format!("{tokens:?}"), numbers);
    pipeline.recycle(tokens);
    let text = format!("{pipeline:?}");
    for word in ["Device(cpu)", "patch: 16", "depth: 2", "textures: true", "has_query: false"] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    for text in [text, future] {
        assert!(text.len() < 600, "{} bytes: {text}", text.len());
    }
}

#[test]
fn nonsense_parameters_are_refused_by_name() {
    let _alone = alone();
    let default = TokenParams::default;
    #[expect(clippy::reversed_empty_ranges, reason = "that is the nonsense")]
    let nonsense = [
        ("patch", default().with_patch(0)),
        ("patch", default().with_patch(16385)),
        ("sides", default().with_sides(0..=5)),
        ("sides", default().with_sides(9..=8)),
        ("sides", default().with_sides(8..=256)),
        ("sides", default().with_sides(70000..=70001)),
        ("sides", default().with_sides(0..=u32::MAX)),
        ("budget", default().with_budget(63)),
        ("budget", default().with_budget(0)),
        ("budget", default().with_sides(255..=255).with_budget(65024)),
        ("focus", default().with_focus(0.0)),
        ("focus", default().with_focus(1.0)),
        ("focus", default().with_focus(-0.5)),
        ("focus", default().with_focus(f64::NAN)),
        ("focus", default().with_focus(f64::INFINITY)),
        ("fixation", default().with_fixation([-0.01, 0.5])),
        ("fixation", default().with_fixation([0.5, 1.01])),
        ("fixation", default().with_fixation([f32::NAN, 0.5])),
        ("foveal_bias", default().with_foveal_bias(-0.01)),
        ("foveal_bias", default().with_foveal_bias(1.01)),
        ("foveal_bias", default().with_foveal_bias(f32::NAN)),
        ("mix", default().with_mix(Some([0.0, 0.0, 0.0]))),
        ("mix", default().with_mix(Some([-0.1, 1.0, 0.0]))),
        ("mix", default().with_mix(Some([f32::NAN, 1.0, 0.0]))),
        ("mix", default().with_mix(Some([1.0, f32::INFINITY, 0.0]))),
        ("mix", default().with_mix(Some([f32::MAX, f32::MAX, 0.0]))),
    ];
    let cpu = Device::cpu().unwrap();
    for (what, params) in nonsense {
        let error = params.validate().expect_err(what);
        let Error::Parameter { name, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*name, what, "{error}");
        assert!(error.to_string().contains(", expected "), "{error}");
        assert!(Pipeline::new(cpu, params.clone()).is_err());
        assert!(allocate(cpu, &[1.0], &params).is_err());
    }
    let error = default().with_budget(63).validate().unwrap_err().to_string();
    assert_eq!(error, "budget is 63, expected at least 64 tokens, the smallest share of a patch");
    for params in [
        default(),
        default().with_patch(1).with_sides(1..=255).with_budget(1).with_focus(1e-12),
        default().with_patch(16384).with_sides(255..=255).with_budget(u64::MAX).with_focus(1.0 - 1e-12),
        default().with_fixation([0.0, 1.0]).with_foveal_bias(1.0).with_mix(Some([0.0, 1.0, 0.0])),
    ] {
        params.validate().unwrap();
    }
}
