//! Sizes, ratios and parameters at the ends of their ranges and past them.

use thalweg::Size;
use thalweg_processor::grids::PatchGrid;
use thalweg_processor::sizes::shortest_edge;
use thalweg_processor::{
    Error, HALF, InputFormat, InterpolatedPlaces, Processor, ProcessorParams, RefusedImage, ResampleFilter, Resampler,
    RgbImage, RopePositions, TokenSequences, TransformersVersion, pack, resize, siglip2_positions,
};

/// One column or row of the largest length, and one pixel, in every layout.
#[test]
fn extreme_sizes() {
    let processors = [
        Processor::qwen2_5_vl(),
        Processor::qwen3_vl(),
        Processor::siglip2_naflex(256).unwrap(),
        Processor::internvl(),
        Processor::llava_onevision(),
        Processor::siglip(64).unwrap(),
    ];
    for processor in processors {
        for [height, width] in [[1, 1], [1, 16384], [16384, 1], [200, 1], [3, 600]] {
            let rgb: Vec<u8> = (0..3 * height * width).map(|i| (i * 7) as u8).collect();
            let inputs = processor.process::<f32>(&[RgbImage { height, width, rgb: &rgb }]).unwrap();
            match (&processor.params().format, inputs.layout.errors()) {
                (_, []) => assert!(inputs.pixel_values.iter().all(|v| v.is_finite()) && inputs.layout.len() == 1),
                (InputFormat::Qwen { .. }, [RefusedImage { index: 0, error: Error::Ratio { ratio } }]) => {
                    assert_eq!(*ratio, 16384.0)
                }
                (format, errors) => panic!("{height} x {width}, {format:?}: {errors:?}"),
            }
        }
    }
}

#[test]
fn refused_sizes() {
    let qwen = Processor::qwen2_vl();
    assert_eq!(qwen.patch_grid(Size::new(1, 200)).unwrap(), Size::new(2, 58));
    let error = qwen.patch_grid(Size::new(1, 201)).unwrap_err();
    assert_eq!(error.to_string(), "the long side of an image is 201 times the short one, expected at most 200");
    for size in [[0, 1], [1, 16385], [u32::MAX; 2]] {
        assert!(matches!(qwen.patch_grid(size.into()), Err(Error::ImageSize { .. })));
    }
    for size in [[0, 9], [9, 0], [0, 0]] {
        assert!(matches!(shortest_edge(size.into(), 224), Err(Error::ResizedSize { .. })));
    }
    let clip = Processor::clip(224).unwrap();
    let error = clip.patch_grid(Size::new(1, 16384)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "an image of 1 x 16384 would become one of 224 x 3670016, expected 1 to 65535 a side"
    );
    let huge = InputFormat::NaFlex { patch: 256, max_patches: 1 << 24, packed: true };
    let huge = Processor::new(ProcessorParams::siglip2_naflex(1).with_format(huge)).unwrap();
    assert!(matches!(huge.patch_grid(Size::new(16384, 16384)), Err(Error::ResizedSize { .. })));
    let max_pixels = u64::from(u32::MAX);
    let small = InputFormat::Qwen { patch: 1, merge: 1, min_pixels: max_pixels - 10, max_pixels };
    let small = Processor::new(ProcessorParams::qwen2_vl().with_format(small)).unwrap();
    assert!(small.patch_grid(Size::new(5000, 5000)).is_err(), "more than 2^31 - 1 patches");
    let tiny = InputFormat::Qwen { patch: 1, merge: 1, min_pixels: 1 << 30, max_pixels: 1 << 31 };
    let tiny = Processor::new(ProcessorParams::qwen2_vl().with_format(tiny)).unwrap();
    assert!(tiny.layout(&[Size::new(100, 100)]).is_ok());
    assert!(matches!(tiny.layout(&[Size::new(100, 100); 2]), Err(Error::Capacity { given: 2_147_483_648, .. })));
}

#[test]
fn one_block_at_least() {
    let format = InputFormat::Qwen { patch: 14, merge: 2, min_pixels: 0, max_pixels: 1 };
    let processor = Processor::new(ProcessorParams::qwen2_vl().with_format(format)).unwrap();
    assert_eq!(processor.patch_grid(Size::new(3000, 4000)).unwrap(), Size::new(2, 2));
}

#[test]
fn refused_parameters() {
    let qwen = |patch, merge, min_pixels, max_pixels| InputFormat::Qwen { patch, merge, min_pixels, max_pixels };
    let formats = [
        (qwen(0, 2, 0, 9), "patch"),
        (qwen(14, 0, 0, 9), "merge"),
        (qwen(14, 2, 10, 9), "min_pixels"),
        (qwen(14, 2, 0, 0), "max_pixels"),
        (qwen(u32::MAX, u32::MAX, u64::MAX, u64::MAX), "patch"),
        (InputFormat::NaFlex { patch: 16, max_patches: 0, packed: false }, "max_patches"),
        (InputFormat::Tiles { tile: 0, min_tiles: 1, max_tiles: 2 }, "tile"),
        (InputFormat::Tiles { tile: 4, min_tiles: 3, max_tiles: 2 }, "min_tiles"),
        (InputFormat::AnyRes { tile: 4, canvases: vec![] }, "canvases"),
        (InputFormat::AnyRes { tile: 4, canvases: vec![Size::new(4, 6)] }, "canvas modulo tile"),
        (InputFormat::AnyRes { tile: 4, canvases: vec![Size::new(0, 4)] }, "canvas"),
        (InputFormat::Crop { edge: 8, crop: 9 }, "crop"),
        (InputFormat::Square { size: 0 }, "size"),
    ];
    for (format, expected) in formats {
        let params = ProcessorParams::default().with_format(format.clone());
        let Err(Error::Parameter { name, .. }) = Processor::new(params) else { panic!("{format:?}") };
        assert_eq!(name, expected, "{format:?}");
    }
    for statistics in [[[f64::NAN; 3], [1.0; 3]], [[0.0; 3], [0.0; 3]], [[0.0; 3], [f64::INFINITY; 3]]] {
        assert!(Processor::new(ProcessorParams::default().with_statistics(statistics)).is_err());
    }
    for filter in [ResampleFilter::Box, ResampleFilter::Hamming] {
        assert!(Processor::new(ProcessorParams::default().with_filter(filter)).is_err());
        assert!(Processor::new(ProcessorParams::default().with_filter(filter).with_resampler(Resampler::Pil)).is_ok());
    }
    assert!(Processor::new(ProcessorParams::default().with_statistics(HALF)).is_ok());
    let image = RgbImage { height: 1, width: 1, rgb: &[1, 2, 3] };
    assert!(resize(image, Size::new(0, 1), ResampleFilter::Box, Resampler::Pil).is_err());
    assert!(resize(image, Size::new(1, 65536), ResampleFilter::Box, Resampler::Pil).is_err());
}

#[test]
fn memory_of_the_caller() {
    let processor = Processor::siglip(8).unwrap();
    let rgb = [9; 12];
    let image = RgbImage { height: 2, width: 2, rgb: &rgb };
    let layout = processor.layout(&[Size::new(2, 2)]).unwrap();
    let mut memory = vec![7f32; layout.elements()];
    assert!(matches!(processor.process_into(&layout, &[image], &mut memory[1..]), Err(Error::Capacity { .. })));
    let other = RgbImage { height: 1, width: 4, rgb: &rgb };
    assert!(processor.process_into(&layout, &[other], &mut memory).is_err());
    assert!(processor.process_into(&layout, &[], &mut memory).is_err());
    assert!(memory.iter().all(|v| *v == 7.0));
    processor.process_into(&layout, &[image], &mut memory).unwrap();
    assert_eq!(memory, processor.process::<f32>(&[image]).unwrap().pixel_values);
    let empty = processor.process::<f32>(&[]).unwrap();
    assert_eq!((empty.pixel_values.len(), empty.layout.shape()), (0, vec![0, 3, 8, 8]));
}

#[test]
fn sequences_without_their_images() {
    let grid = PatchGrid { frames: 1, rows: 4, columns: 4 };
    let tokens = |input_ids, length| TokenSequences { input_ids, length, attention_mask: None, image_token: 9 };
    let ids = [1, 9, 9, 9, 2, 2];
    let of = |tokens, grids: &[PatchGrid]| RopePositions::new(tokens, grids, 2, TransformersVersion::V5);
    assert!(matches!(of(tokens(&ids, 6), &[grid]), Err(Error::Sequence { .. })), "three tokens of four");
    assert!(matches!(of(tokens(&ids[4..], 2), &[grid]), Err(Error::Sequence { .. })), "an image fewer");
    assert!(matches!(of(tokens(&ids, 6), &[]), Err(Error::Sequence { .. })), "no grid");
    assert!(matches!(of(tokens(&ids, 0), &[]), Err(Error::Sequence { .. })));
    assert!(matches!(of(tokens(&ids, 4), &[]), Err(Error::Sequence { .. })));
    let masked = TokenSequences { attention_mask: Some(&[false, true, true, false]), ..tokens(&[5; 4], 2) };
    let [four, five] = [TransformersVersion::V4, TransformersVersion::V5]
        .map(|version| RopePositions::new(masked, &[], 2, version).unwrap());
    assert_eq!(four.position_ids, [1, 0, 0, 1].repeat(3));
    assert_eq!(five.position_ids, [0; 12]);
    assert_eq!((four.rope_deltas, five.rope_deltas), (vec![-1, -1], vec![0, 0]));
}

#[test]
fn tables_and_budgets() {
    let places =
        InterpolatedPlaces::new(&[PatchGrid { frames: 1, rows: 2, columns: 2 }], 4, 2, Default::default()).unwrap();
    assert!(places.embeddings(&[0f32; 31], 2).is_err());
    assert_eq!(places.embeddings(&[1f32; 32], 2).unwrap(), [1.0; 8]);
    assert!(InterpolatedPlaces::new(&[], 0, 2, Default::default()).is_err());
    assert!(siglip2_positions(&[0.0; 12], 2, &[Size::new(1, 1)], 4).is_err(), "no square");
    assert!(siglip2_positions(&[0.0; 8], 2, &[Size::new(1, 5)], 4).is_err(), "too many patches");
    assert!(matches!(pack(&[3, 5, 9], 4), Err(Error::Budget { index: 1, cost: 5, budget: 4 })));
    assert!(pack(&[], 0).unwrap().is_empty());
}

/// Qwen rounds a side to 0 if the bounds do not forbid it, and then cannot resize.
#[test]
fn a_side_that_is_rounded_to_nothing() {
    let format = InputFormat::Qwen { patch: 14, merge: 2, min_pixels: 0, max_pixels: 1 << 20 };
    let processor = Processor::new(ProcessorParams::qwen2_vl().with_format(format)).unwrap();
    assert!(matches!(processor.patch_grid(Size::new(14, 300)), Err(Error::ResizedSize { resized: [0, 308], .. })));
}
