//! Properties of every processor: batches, identity, constants, rounding, counts, and errors of one
//! image.

use proptest::prelude::*;
use testkit::cases;
use thalweg::Size;
use thalweg::simt::{bf16, f16};
use thalweg_processor::grids::WindowIndex;
use thalweg_processor::{
    AxisCoefficients, InputFormat, Processor, ProcessorParams, ResampleFilter, Resampler, RgbImage, Style, resize,
};

use crate::files::{Photo, views};

pub(crate) const FILTERS: [ResampleFilter; 5] = [
    ResampleFilter::Box,
    ResampleFilter::Bilinear,
    ResampleFilter::Hamming,
    ResampleFilter::Bicubic,
    ResampleFilter::Lanczos,
];
pub(crate) const RESAMPLERS: [Resampler; 4] = [Resampler::Pil, Resampler::Pil12_2, Resampler::Pil13, Resampler::Aten];

/// Processors of every format, with small numbers.
pub(crate) fn processors() -> Vec<Processor> {
    let canvases = (1..4).flat_map(|a| (1..4).map(move |b| Size::new(12 * a, 12 * b))).collect();
    let with = |params: ProcessorParams, format| params.with_format(format);
    let params = [
        with(ProcessorParams::qwen2_vl(), InputFormat::Qwen { patch: 5, merge: 2, min_pixels: 300, max_pixels: 4000 }),
        with(
            ProcessorParams::qwen3_vl().with_resampler(Resampler::Pil13),
            InputFormat::Qwen { patch: 4, merge: 3, min_pixels: 145, max_pixels: 2000 },
        ),
        with(ProcessorParams::siglip2_naflex(1), InputFormat::NaFlex { patch: 6, max_patches: 20, packed: false }),
        with(
            ProcessorParams::siglip2_naflex(1).with_resampler(Resampler::Pil12_2),
            InputFormat::NaFlex { patch: 7, max_patches: 33, packed: true },
        ),
        with(ProcessorParams::internvl(), InputFormat::Tiles { tile: 20, min_tiles: 1, max_tiles: 6 }),
        with(ProcessorParams::llava_onevision().with_style(Style::Slow), InputFormat::AnyRes { tile: 12, canvases }),
        with(ProcessorParams::clip(1), InputFormat::Crop { edge: 24, crop: 17 }),
        with(
            ProcessorParams::siglip(1).with_resampler(Resampler::Pil).with_filter(ResampleFilter::Lanczos),
            InputFormat::Square { size: 40 },
        ),
        // Units of an even side, which warps make: with weights of two bytes and of three.
        with(ProcessorParams::qwen2_vl(), InputFormat::Qwen { patch: 4, merge: 2, min_pixels: 300, max_pixels: 4000 }),
        with(
            ProcessorParams::qwen2_vl().with_resampler(Resampler::Pil),
            InputFormat::Qwen { patch: 6, merge: 2, min_pixels: 300, max_pixels: 4000 },
        ),
        with(ProcessorParams::clip(1), InputFormat::Crop { edge: 21, crop: 14 }),
    ];
    params.into_iter().map(|params| Processor::new(params).unwrap()).collect()
}

/// An image of noise, which has levels of every size beside one another.
pub(crate) fn noise(size: [u32; 2], seed: u32) -> Photo {
    let mut state = u64::from(seed) * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    Photo { size, rgb: (0..3 * size[0] * size[1]).map(|_| next()).collect() }
}

/// Images of unlike sizes, among them narrow ones.
pub(crate) fn images() -> Vec<Photo> {
    let sizes = [[33, 50], [1, 1], [90, 3], [2, 70], [40, 40], [12, 120], [64, 31]];
    (0..).zip(sizes).map(|(i, size)| noise(size, i)).collect()
}

#[test]
fn a_batch_equals_its_images() {
    for processor in processors() {
        let images = images();
        let batch = processor.process::<f32>(&views(&images)).unwrap();
        assert_eq!(batch.layout.len(), images.len());
        let len = batch.pixel_values.len() / images.len();
        let mut start = 0;
        for (i, image) in images.iter().enumerate() {
            let alone = processor.process::<f32>(&[image.view()]).unwrap();
            // Each image of LLaVA-OneVision has room for the most tiles of one.
            let room = if matches!(processor.params().format, InputFormat::AnyRes { .. }) {
                len
            } else {
                alone.pixel_values.len()
            };
            let own = &batch.pixel_values[start..start + room];
            assert!(own[..alone.pixel_values.len()] == alone.pixel_values, "image {i} of {:?}", processor.params());
            assert!(own[alone.pixel_values.len()..].iter().all(|v| *v == 0.0));
            start += room;
        }
        assert_eq!(start, batch.pixel_values.len());
    }
}

#[test]
fn an_error_is_of_its_image_only() {
    for processor in processors() {
        let images = images();
        let good = processor.process::<f32>(&views(&images)).unwrap();
        let mut all = views(&images);
        all.insert(3, RgbImage { height: 4, width: 4, rgb: &[0; 47] });
        all.insert(0, RgbImage { height: 0, width: 9, rgb: &[] });
        let mixed = processor.process::<f32>(&all).unwrap();
        let errors: Vec<_> =
            mixed.layout.errors().iter().map(|refused| (refused.index, refused.error.to_string())).collect();
        let expected =
            ["an image of 0 x 9, expected 1 to 16384 pixels a side", "an image of 4 x 4 has 47 bytes, expected 48"];
        assert_eq!(errors, [(0, expected[0].into()), (4, expected[1].into())]);
        assert_eq!(mixed.layout.images(), [1, 2, 3, 5, 6, 7, 8]);
        assert!(mixed.pixel_values == good.pixel_values && mixed.layout.shape() == good.layout.shape());
    }
}

#[test]
fn halves_are_rounded_floats() {
    for processor in processors() {
        let images = images();
        let floats = processor.process::<f32>(&views(&images)).unwrap().pixel_values;
        let halves = processor.process::<f16>(&views(&images)).unwrap().pixel_values;
        let brains = processor.process::<bf16>(&views(&images)).unwrap().pixel_values;
        assert!(floats.iter().zip(&halves).all(|(v, half)| f16::from_f32(*v).to_bits() == half.to_bits()));
        assert!(floats.iter().zip(&brains).all(|(v, half)| bf16::from_f32(*v).to_bits() == half.to_bits()));
    }
}

#[test]
fn counts_agree() {
    for processor in processors() {
        let sizes: Vec<_> = images().iter().map(|image| image.size.into()).collect();
        let layout = processor.layout(&sizes).unwrap();
        assert_eq!(layout.shape().iter().product::<usize>(), layout.elements());
        if let (Some(grids), Some(ends)) = (layout.image_grid_thw(), layout.cu_seqlens()) {
            let n: i64 = grids.iter().map(|grid| grid.iter().product::<i64>()).sum();
            assert_eq!((layout.shape()[0] as i64, i64::from(ends[ends.len() - 1])), (n, n));
            assert_eq!(layout.vision_position_ids().unwrap().len() as i64, n);
            let WindowIndex { mut order, cu_seqlens: windows } = layout.window_index(16).unwrap();
            assert_eq!(i64::from(windows[windows.len() - 1]), n);
            order.sort_unstable();
            assert!(order.iter().zip(0..).all(|(a, b)| *a == b), "a permutation");
        }
    }
}

fn side() -> impl Strategy<Value = u32> {
    prop_oneof![1u32..5, 1u32..40, 30u32..90]
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn a_constant_image_stays_constant(h in side(), w in side(), to in [side(), side()], level: u8, f in 0..5usize, r in 0..4usize) {
        let (filter, resampler) = (FILTERS[f], RESAMPLERS[r]);
        let rgb = vec![level; (3 * h * w) as usize];
        let image = RgbImage { height: h, width: w, rgb: &rgb };
        if let Ok(resized) = resize(image, to.into(), filter, resampler) {
            prop_assert!(resized.len() == (3 * to[0] * to[1]) as usize && resized.iter().all(|v| *v == level));
        } else {
            prop_assert!(resampler == Resampler::Aten);
        }
    }

    #[test]
    fn a_size_that_stays_gives_the_same_levels(h in side(), w in side(), f in 0..5usize, seed: u16) {
        let image = noise([h, w], seed.into());
        prop_assert!(resize(image.view(), Size::new(h, w), FILTERS[f], Resampler::Pil).unwrap() == image.rgb);
    }

    /// The plain sums of the definition, pixel by pixel.
    #[test]
    fn a_resize_is_two_rounded_sums(h in side(), w in side(), to in [side(), side()], f in 0..5usize, r in 0..4usize, seed: u16) {
        let (filter, resampler) = (FILTERS[f], RESAMPLERS[r]);
        let image = noise([h, w], seed.into());
        if let Ok(resized) = resize(image.view(), to.into(), filter, resampler) {
            prop_assert!(resized == plain(&image, to, filter, resampler));
        }
    }

    #[test]
    fn samples_are_inside(samples in 1u32..20000, outputs in 1u32..3000, f in 0..5usize) {
        let axis = AxisCoefficients::new(samples, outputs, FILTERS[f], Resampler::Pil).unwrap();
        for i in 0..axis.outputs() {
            let [first, count] = axis.bounds(i);
            prop_assert!(count > 0 && first + count <= samples && axis.weights(i).len() == count as usize);
        }
    }
}

fn plain(image: &Photo, to: [u32; 2], filter: ResampleFilter, resampler: Resampler) -> Vec<u8> {
    let pass = |image: &Photo, axis: usize| {
        if image.size[axis] == to[axis] {
            return image.clone();
        }
        let weights = AxisCoefficients::new(image.size[axis], to[axis], filter, resampler).unwrap();
        let mut size = image.size;
        size[axis] = to[axis];
        let mut rgb = Vec::new();
        for (y, x, c) in (0..size[0]).flat_map(|y| (0..size[1]).flat_map(move |x| (0..3).map(move |c| (y, x, c)))) {
            let i = [y, x][axis] as usize;
            let samples = weights.bounds(i)[0]..;
            let at = |n: u32| if axis == 0 { [n, x] } else { [y, n] };
            let level = |[y, x]: [u32; 2]| i64::from(image.rgb[(3 * (y * image.size[1] + x) + c) as usize]);
            let sum: i64 = samples.zip(weights.weights(i)).map(|(n, k)| i64::from(*k) * level(at(n))).sum();
            let half = 1i64 << (weights.shift() - 1);
            rgb.push(((sum + half) >> weights.shift()).clamp(0, 255) as u8);
        }
        Photo { size, rgb }
    };
    let order = if resampler.vertical_first(image.size.into(), to.into()) { [0, 1] } else { [1, 0] };
    order.into_iter().fold(image.clone(), |image, axis| pass(&image, axis)).rgb
}
