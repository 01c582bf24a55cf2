//! Augmentation on every device: the golden files, the f64 reference over random batches, and what
//! happens to broken records, sizes and options.
//!
//! `THALWEG_CASES=20000 cargo test --test augment` runs each property that often.

use std::fs;

use proptest::prelude::*;
use testkit::cases;
use testkit::devices::{alone, devices, on_each_device};
use testkit::fence::{Fenced, same};
use testkit::files::{Tensors, read_png, repository};
use testkit::images::{images, side};
use testkit::oracle::{self, Augmented, Content, Image, ImageSpec, SplitMix};
use thalweg::{Device, DeviceKind, Error, LiveBrand, Stream, kernel, stream_tags};
use thalweg_simt::bf16;
use thalweg_vision::augment::{
    AugmentInput, Augmentation, Crop, Erased, Normalization, Parameters, RandomBlur, RandomCrop, RandomErasing,
    RandomMixup, kernels,
};

stream_tags!(Work);

/// What an element may be off, before it is normalized.
const ERROR: f64 = 2e-5;

/// Without normalization, so that elements are from 0 to 1.
fn plain() -> Augmentation {
    Augmentation::default().with_normalize(None)
}

/// Lays images one after another, each `gap` bytes after the last one.
fn lay(images: &[Image], parameters: &[Parameters], gap: usize) -> (Vec<u8>, Vec<AugmentInput>) {
    let (mut rgb, mut samples) = (vec![], vec![]);
    for (image, &parameters) in images.iter().zip(parameters) {
        rgb.extend(std::iter::repeat_n(0xee, gap));
        let (height, width) = (image.height as u32, image.width as u32);
        samples.push(AugmentInput { start: rgb.len(), height, width, parameters });
        rgb.extend(&image.rgb);
    }
    (rgb, samples)
}

/// Augments images on a device, as f32, and as bf16, which must be the same numbers rounded.
fn run<S: LiveBrand>(
    stream: &Stream<S>,
    augmentation: &Augmentation,
    size: usize,
    images: &[Image],
    parameters: &[Parameters],
) -> Vec<f32> {
    let (rgb, samples) = lay(images, parameters, 5);
    let rgb = stream.upload_blocking(&rgb).unwrap();
    let mut augmenter = augmentation.augmenter(stream, size as u32, images.len()).unwrap();
    augmenter.prepare(stream, &samples).unwrap();
    let len = images.len() * 3 * size * size;
    let mut out = Fenced::<_, f32>::room(stream, len, 1);
    augmenter.launch(stream, &rgb, out.slice_mut()).unwrap();
    let out = out.read();
    let mut half = Fenced::<_, bf16>::room(stream, len, 3);
    augmenter.launch(stream, &rgb, half.slice_mut()).unwrap();
    for (i, (half, v)) in half.read().into_iter().zip(&out).enumerate() {
        assert!(same(&half, &bf16::from_f32(*v)), "element {i} is {v} as f32 and {} as bf16", half.to_f32());
    }
    out
}

fn reference(image: &Image, p: Parameters, size: usize, options: &Augmentation) -> Vec<f64> {
    let Crop { top, left, height, width } = p.crop;
    let how = Augmented {
        crop: [top, left, height, width].map(|n| n as usize),
        flip: p.flip,
        brightness: p.brightness,
        contrast: p.contrast,
        saturation: p.saturation,
        grayscale: p.grayscale,
        sigma: p.sigma,
    };
    oracle::augment(image, how, size, options.luma, options.blur.as_ref().map_or(1, |blur| blur.taps as usize))
}

/// The images of a batch after the steps of the second kernel.
fn finished(images: &[Vec<f64>], parameters: &[Parameters], size: usize, fill: [f64; 3]) -> Vec<Vec<f64>> {
    let own: Vec<Vec<f64>> = images
        .iter()
        .zip(parameters)
        .map(|(image, p)| {
            let Parameters { flip_vertical, angle, hue, .. } = *p;
            let erased = p.erased.map(|Erased { top, left, height, width }| [top, left, height, width]);
            oracle::finish(image, oracle::Finished { flip_vertical, angle, hue, erased, fill }, size)
        })
        .collect();
    let mixed = |i: usize| {
        let (a, b, mix) = (&own[i], &own[(i + 1) % own.len()], parameters[i].mix);
        a.iter().zip(b).map(|(a, b)| mix * a + (1.0 - mix) * b).collect()
    };
    (0..own.len()).map(mixed).collect()
}

/// Options with every step, as those of the golden files have them.
fn everything() -> Augmentation {
    let erasing = RandomErasing::default().with_probability(0.6);
    let mixup = RandomMixup::default().with_probability(0.8).with_alpha(0.4);
    Augmentation::default()
        .with_flip_vertical(0.5)
        .with_rotation(30.0)
        .with_hue(0.3)
        .with_erasing(Some(erasing))
        .with_mixup(Some(mixup))
}

#[track_caller]
fn assert_near(what: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= ERROR, "{what}: element {i} is {got} instead of {want}, off by {error:e}");
    }
}

// --- the golden files ----------------------------------------------------------------------------

/// The name of a golden file without its ending says how it was made:
/// `NAME-sSEED-eEPOCH-iINDEX-SIZE`.
fn golden(folder: &str) -> Vec<(String, [u64; 4])> {
    let mut found = Vec::new();
    for entry in fs::read_dir(repository(folder)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = name.strip_suffix(".safetensors").expect("a safetensors file").to_owned();
        let number = |part: &str| part.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().unwrap();
        let numbers: Vec<u64> = name.split('-').skip(1).map(number).collect();
        found.push((name, numbers.try_into().unwrap()));
    }
    found.sort();
    found
}

#[test]
fn golden_files() {
    let golden = golden("tests/golden/augment");
    assert_eq!(golden.len(), 8, "files are missing");
    let augmentation = Augmentation::default();
    let Normalization { mean, std, .. } = Normalization::default();
    let (mut flips, mut blurs, mut grays) = (0, 0, 0);
    for (name, [seed, epoch, index, size]) in golden {
        let photo = name.split('-').next().unwrap();
        let image = read_png(format!("assets/photos/{photo}.png"));
        let want = Tensors::read(format!("tests/golden/augment/{name}.safetensors"));
        let [height, width] = [image.height, image.width].map(|n| n as u32);
        let p = augmentation.parameters(seed, epoch as u32, index, width, height).unwrap();
        let crop = [p.crop.top, p.crop.left, p.crop.height, p.crop.width].map(|n| n as i32);
        assert_eq!(want.i32("crop").data, crop, "{name}");
        let factors = [f64::from(p.flip), p.brightness, p.contrast, p.saturation, f64::from(p.grayscale), p.sigma];
        for (want, got) in want.f64("factors").data.iter().zip(factors) {
            assert!((want - got).abs() < 1e-15, "{name}: {got} instead of {want}");
        }
        (flips, blurs, grays) =
            (flips + i32::from(p.flip), blurs + i32::from(p.sigma > 0.0), grays + i32::from(p.grayscale));

        let size = size as usize;
        let scaled = want.f32("image").data.iter().zip((0..3).flat_map(|c| std::iter::repeat_n(c, size * size)));
        let expected: Vec<f64> = scaled.map(|(v, c)| f64::from(*v) * std[c] + mean[c]).collect();
        let by_reference = reference(&image, p, size, &augmentation);
        for (a, b) in by_reference.iter().zip(&expected) {
            assert!((a - b).abs() < 2e-7, "{name}: the reference has {a} instead of {b}");
        }
        on_each_device(|stream| {
            let got = run(stream, &plain(), size, std::slice::from_ref(&image), &[p]);
            assert_near(&name, &got, &expected);
            let got = run(stream, &augmentation, size, std::slice::from_ref(&image), &[p]);
            let got: Vec<f32> = got
                .iter()
                .enumerate()
                .map(|(i, v)| v * std[i / size / size] as f32 + mean[i / size / size] as f32)
                .collect();
            assert_near(&format!("{name}, normalized"), &got, &expected);
        });
    }
    assert!(flips > 0 && blurs > 0 && grays > 0, "the files cover each step");
}

/// The files with the steps that are off by default: two images of a batch, which are the same
/// photograph with successive numbers.
#[test]
fn golden_files_with_more_steps() {
    let golden = golden("tests/golden/augment-more");
    assert_eq!(golden.len(), 5, "files are missing");
    let options = everything();
    let Normalization { mean, std, .. } = Normalization::default();
    let (mut flips, mut erased, mut mixed) = ([false; 2], [false; 2], [false; 2]);
    for (name, [seed, epoch, index, size]) in golden {
        let image = read_png(format!("assets/photos/{}.png", name.split('-').next().unwrap()));
        let want = Tensors::read(format!("tests/golden/augment-more/{name}.safetensors"));
        let [height, width] = [image.height, image.width].map(|n| n as u32);
        let both = [index, index + 1].map(|i| options.parameters(seed, epoch as u32, i, width, height).unwrap());
        let p = both[0];
        let Erased { top, left, height, width } =
            p.erased.unwrap_or(Erased { top: 0.0, left: 0.0, height: 0.0, width: 0.0 });
        let changes = [f64::from(p.flip_vertical), p.angle, p.hue, top, left, height, width, p.mix];
        for (want, got) in want.f64("changes").data.iter().zip(changes) {
            assert!((want - got).abs() < 1e-14, "{name}: {got} instead of {want}");
        }
        flips[usize::from(p.flip_vertical)] = true;
        erased[usize::from(p.erased.is_some())] = true;
        mixed[usize::from(p.mix < 1.0)] = true;
        let size = size as usize;
        let scaled = want.f32("image").data.iter().zip((0..3).flat_map(|c| std::iter::repeat_n(c, size * size)));
        let expected: Vec<f64> = scaled.map(|(v, c)| f64::from(*v) * std[c] + mean[c]).collect();
        on_each_device(|stream| {
            let images = [image.clone(), image.clone()];
            let got = run(stream, &options.clone().with_normalize(None), size, &images, &both);
            assert_near(&name, &got[..expected.len()], &expected);
            let got = run(stream, &options, size, &images, &both);
            let got = got[..expected.len()].iter().enumerate();
            let got = got.map(|(i, v)| v * std[i / size / size] as f32 + mean[i / size / size] as f32);
            assert_near(&format!("{name}, normalized"), &got.collect::<Vec<_>>(), &expected);
        });
    }
    assert_eq!([flips, erased, mixed], [[true; 2]; 3], "the files cover each step");
}

// --- random batches ------------------------------------------------------------------------------

/// Any parameters of an image, with a crop of any size inside it.
fn parameters(image: &ImageSpec, size: usize) -> impl Strategy<Value = Parameters> + use<> {
    let axis = |all: usize| {
        (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()).prop_map(
            move |(len, start, whole)| {
                let len = if whole { all } else { 1 + len.index(all) };
                (start.index(all - len + 1) as u32, len as u32)
            },
        )
    };
    let factor = || prop_oneof![Just(1.0), 0.0..2.0f64];
    let sigma = if size >= 7 { prop_oneof![Just(0.0), 0.1..3.0f64].boxed() } else { Just(0.0).boxed() };
    (axis(image.height), axis(image.width), any::<[bool; 2]>(), [factor(), factor(), factor()], sigma).prop_map(
        |((top, height), (left, width), [flip, grayscale], [brightness, contrast, saturation], sigma)| Parameters {
            crop: Crop { top, left, height, width },
            flip,
            brightness,
            contrast,
            saturation,
            grayscale,
            sigma,
            ..Parameters::identity(1, 1)
        },
    )
}

/// Any numbers for the steps that are off by default, of an image of 40 x 50 pixels.
fn more() -> impl Strategy<Value = Parameters> {
    let angle = prop_oneof![Just(0.0), Just(90.0), Just(180.0), -360.0..360.0f64];
    let hue = prop_oneof![Just(0.0), -1.0..1.0f64];
    let erased = prop::option::of([0.0..1.0f64, 0.0..1.0f64, 0.0..1.0f64, 0.0..1.0f64]);
    (any::<bool>(), angle, hue, erased, prop_oneof![Just(1.0), 0.0..1.0f64]).prop_map(
        |(flip_vertical, angle, hue, erased, mix)| Parameters {
            flip_vertical,
            angle,
            hue,
            erased: erased.map(|[top, left, height, width]| Erased { top, left, height, width }),
            mix,
            ..Parameters::identity(50, 40)
        },
    )
}

type Batch = (usize, Vec<(ImageSpec, Parameters)>, u32, [f64; 3]);

fn batches() -> impl Strategy<Value = Batch> {
    let sizes =
        prop_oneof![1usize..7, 7usize..=64, prop::sample::select(vec![7, 8, 31, 32, 33, 56, 57, 63, 64, 65, 113])];
    sizes.prop_flat_map(|size| {
        let one = images(300).prop_flat_map(move |image| (Just(image), parameters(&image, size)));
        let luma = prop_oneof![3 => Just([0.299, 0.587, 0.114]), 1 => [0.0..1.0f64, 0.0..1.0f64, 0.0..1.0f64]];
        (Just(size), prop::collection::vec(one, 1..4), prop::sample::select(vec![1, 3, 5, 7]), luma)
    })
}

proptest! {
    #![proptest_config(cases(48))]

    /// Images of any sizes in one launch equal the reference, and an image has the same bits alone.
    #[test]
    fn batches_equal_the_reference((size, batch, taps, luma) in batches()) {
        let blur = (size >= 7).then(|| RandomBlur::default().with_taps(taps));
        let options = plain().with_blur(blur).with_luma(luma);
        let images: Vec<Image> = batch.iter().map(|(spec, _)| spec.build()).collect();
        let parameters: Vec<Parameters> = batch.iter().map(|(_, p)| *p).collect();
        let want: Vec<Vec<f64>> =
            images.iter().zip(&parameters).map(|(image, p)| reference(image, *p, size, &options)).collect();
        on_each_device(|stream| {
            let got = run(stream, &options, size, &images, &parameters);
            for (i, want) in want.iter().enumerate() {
                let own = &got[i * 3 * size * size..][..3 * size * size];
                assert_near(&format!("image {i} as {size} x {size}"), own, want);
            }
            let last = images.len() - 1;
            let alone = run(stream, &options, size, &images[last..], &parameters[last..]);
            assert!(alone.iter().zip(&got[last * 3 * size * size..]).all(|(a, b)| same(a, b)), "depends on the batch");
        });
    }

    /// The steps that are off by default equal the reference, in any combination.
    #[test]
    fn more_steps_equal_the_reference(
        size in prop_oneof![1usize..7, prop::sample::select(vec![8, 33, 64, 65])],
        steps in prop::collection::vec(more(), 1..4),
        fill in [0.0..1.0f64, 0.0..1.0f64, 0.0..1.0f64],
        seed: u64,
    ) {
        let options = plain()
            .with_blur(None)
            .with_hue(0.5)
            .with_erasing(Some(RandomErasing::default().with_fill(fill)));
        let spec = |seed| ImageSpec { height: 40, width: 50, content: Content::Noise, saturated: false, seed };
        let images: Vec<Image> = (0..steps.len() as u64).map(|i| spec(seed ^ i).build()).collect();
        let plain: Vec<Vec<f64>> =
            images.iter().zip(&steps).map(|(image, p)| reference(image, *p, size, &options)).collect();
        let want = finished(&plain, &steps, size, fill.map(|v| f64::from(v as f32))).concat();
        on_each_device(|stream| {
            assert_near(&format!("{steps:?} of {size}"), &run(stream, &options, size, &images, &steps), &want);
        });
    }

    /// Whatever the table of records holds, the kernels stay inside their buffers.
    #[test]
    fn broken_records_stay_inside(seed: u64, size in side(70), flips in 0usize..6) {
        let mut random = SplitMix(seed);
        let bytes = 3 * 40 * 50;
        let size = size as u32;
        let mut records = Vec::new();
        for _ in 0..2 {
            let mut words = [0, 0, 50, 3, 4, 20, 30, 7, 0x3f80_0000, 0x3f00_0000, 0x3f80_0000, 0x3f00_0000, 0, 0, 0, 0];
            for _ in 0..flips {
                let bits = [u32::MAX, 1 << 14, (1 << 14) + 1, 1 << 31, random.next() as u32, 41, 0];
                words[random.next() as usize % 16] = bits[random.next() as usize % bits.len()];
            }
            records.extend(words);
        }
        on_each_device_try(|stream| {
            let records = stream.upload_blocking(&records).unwrap();
            let rgb = Fenced::new(stream, &vec![100u8; bytes], 3);
            let tiles = size.div_ceil(kernels::SUM_COLUMNS) * size.div_ceil(kernels::ROWS);
            let mut sums = Fenced::<_, f32>::room(stream, 2 * tiles as usize, 0);
            let mut out = Fenced::<_, f32>::room(stream, 2 * 3 * (size * size) as usize, 0);
            let (luma, scale, shift) = ([0.3, 0.6, 0.1], [1.0; 3], [0.0; 3]);
            kernels::measure(stream, 2, size, bytes as u64, luma, &records, rgb.slice(), sums.slice_mut()).unwrap();
            let blurs = size >= 7;
            kernels::augment_f32(
                stream, 2, size, bytes as u64, true, blurs, luma, scale, shift, &records, rgb.slice(), sums.slice(), out.slice_mut(),
            ).unwrap();
            let (sums, out) = (sums.read(), out.read());
            prop_assert_eq!(sums.len(), 2 * tiles as usize);
            if flips == 0 {
                // The only weight of the blur is 0.5, and it counts down and across.
                let want = if blurs { 0.25 * 100.0 / 255.0 } else { 100.0 / 255.0 };
                prop_assert!(out.iter().all(|v| (v - want).abs() < 1e-5), "{:?}", out.first());
            }
            Ok(())
        })?;
    }
}

/// Runs a check that may fail on each device.
fn on_each_device_try(
    mut check: impl for<'l> FnMut(&Stream<thalweg::PerThread<'l>>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut result = Ok(());
    on_each_device(|stream| {
        if result.is_ok() {
            result = check(stream);
        }
    });
    result
}

/// The longest rows and columns, reduced and enlarged.
#[test]
fn extreme_sizes_equal_the_reference() {
    let spec = |height, width| ImageSpec { height, width, content: Content::TwoValued, saturated: false, seed: 5 };
    for (height, width, size) in
        [(1, 16384, 7), (16384, 1, 224), (2, 16384, 64), (5000, 3, 1), (3, 2, 300), (700, 900, 224)]
    {
        let image = spec(height, width).build();
        let sigma = if size >= 7 { 1.3 } else { 0.0 };
        let p =
            Parameters { brightness: 1.3, contrast: 0.7, sigma, ..Parameters::identity(width as u32, height as u32) };
        let options = if size >= 7 { plain() } else { plain().with_blur(None) };
        let want = reference(&image, p, size, &options);
        on_each_device(|stream| {
            let got = run(stream, &options, size, std::slice::from_ref(&image), &[p]);
            assert_near(&format!("{height} x {width} as {size} x {size}"), &got, &want);
        });
    }
}

/// A crop that has the size already is taken as it is.
#[test]
fn a_crop_of_the_size_is_not_resampled() {
    let image = ImageSpec { height: 70, width: 80, content: Content::Noise, saturated: false, seed: 1 }.build();
    let p = Parameters { crop: Crop { top: 3, left: 9, height: 61, width: 61 }, ..Parameters::identity(80, 70) };
    on_each_device(|stream| {
        let got = run(stream, &plain().with_contrast(0.0).with_blur(None), 61, std::slice::from_ref(&image), &[p]);
        for (i, v) in got.iter().enumerate() {
            let (c, y, x) = (i / 61 / 61, i / 61 % 61, i % 61);
            let want = f32::from(image.pixel(3 + y, 9 + x)[c]) / 255.0;
            assert!((v - want).abs() < 2e-7, "{v} instead of {want}");
        }
    });
}

// --- parameters ----------------------------------------------------------------------------------

/// The parameters do what the options say, over many images.
#[test]
fn parameters_are_distributed_as_the_options_say() {
    let options = Augmentation::default();
    let all: Vec<Parameters> = (0..4000).map(|i| options.parameters(3, 1, i, 640, 480).unwrap()).collect();
    let share = |of: &dyn Fn(&Parameters) -> bool| all.iter().filter(|p| of(p)).count() as f64 / 4000.0;
    assert!((share(&|p| p.flip) - 0.5).abs() < 0.03);
    assert!((share(&|p| p.grayscale) - 0.1).abs() < 0.02);
    assert!((share(&|p| p.sigma > 0.0) - 0.5).abs() < 0.03);
    for p in &all {
        let Crop { top, left, height, width } = p.crop;
        assert!(top + height <= 480 && left + width <= 640 && height > 0 && width > 0, "{p:?}");
        let (area, ratio) = (f64::from(width * height) / (640.0 * 480.0), f64::from(width) / f64::from(height));
        assert!((0.078..=1.0).contains(&area) && (0.74..=1.35).contains(&ratio), "{p:?}");
        for factor in [p.brightness, p.contrast, p.saturation] {
            assert!((0.6..=1.4).contains(&factor), "{p:?}");
        }
        assert!(p.sigma == 0.0 || (0.1..=2.0).contains(&p.sigma), "{p:?}");
    }
    let mean = all.iter().map(|p| p.brightness).sum::<f64>() / 4000.0;
    assert!((mean - 1.0).abs() < 0.02);
    // The draws of an image depend on the seed, the epoch and the index.
    let same = |seed, epoch, index| options.parameters(seed, epoch, index, 640, 480).unwrap();
    assert_eq!(same(3, 1, 0), all[0]);
    for other in [same(4, 1, 0), same(3 + (1 << 32), 1, 0), same(3, 2, 0), same(3, 1, 1 << 32)] {
        assert_ne!(other, all[0]);
    }
}

/// A step that is switched off does nothing, and leaves the draws of the others as they are.
#[test]
fn each_step_can_be_switched_off() {
    let whole = Augmentation::default();
    for index in 0..50 {
        let of = |options: &Augmentation| options.parameters(9, 0, index, 90, 70).unwrap();
        let all = of(&whole);
        let whole_image = Crop { top: 0, left: 0, height: 70, width: 90 };
        assert_eq!(of(&whole.clone().with_crop(None)), Parameters { crop: whole_image, ..all });
        assert_eq!(of(&whole.clone().with_flip(0.0)), Parameters { flip: false, ..all });
        assert_eq!(of(&whole.clone().with_brightness(0.0)), Parameters { brightness: 1.0, ..all });
        assert_eq!(of(&whole.clone().with_contrast(0.0)), Parameters { contrast: 1.0, ..all });
        assert_eq!(of(&whole.clone().with_saturation(0.0)), Parameters { saturation: 1.0, ..all });
        assert_eq!(of(&whole.clone().with_grayscale(0.0)), Parameters { grayscale: false, ..all });
        assert_eq!(of(&whole.clone().with_blur(None)), Parameters { sigma: 0.0, ..all });
        assert_eq!(of(&Augmentation::none()), Parameters::identity(90, 70));
    }
}

/// Where no attempt fits, the central crop is taken, and it has an allowed ratio.
/// A crop of fixed size has the place that the specification says, and each place is as likely. A
/// side that is longer than the image is that of the image.
#[test]
fn a_crop_of_fixed_size_is_anywhere() {
    let crop = |size| Augmentation::none().with_crop(Some(RandomCrop::default().with_size(Some(size))));
    let options = crop([5, 4]);
    let mut counts = std::collections::BTreeMap::new();
    for index in 0..6000u64 {
        let p = options.parameters(7 << 40 | 3, 2, index, 6, 6).unwrap();
        let words = thalweg_vision::augment::philox([index as u32, 0, 2, 2], [3, 7 << 8]);
        let [_, _, top, left] = words.map(|word| f64::from(word >> 8) / f64::from(1 << 24));
        let (top, left) = ((top * 2.0) as u32, (left * 3.0) as u32);
        assert_eq!(p, Parameters { crop: Crop { top, left, height: 5, width: 4 }, ..Parameters::identity(6, 6) });
        *counts.entry([top, left]).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 6);
    assert!(counts.values().all(|n| (850..1150).contains(n)), "{counts:?}");
    let whole = crop([100, 3]).parameters(1, 0, 0, 8, 6).unwrap().crop;
    assert_eq!((whole.top, whole.height, whole.width), (0, 6, 3));
    for size in [[0, 4], [4, 1 << 15]] {
        refused(crop(size).parameters(1, 0, 0, 8, 8), "crop size");
    }
}

#[test]
fn long_images_get_the_central_crop() {
    let options = Augmentation::default();
    let crop = |width, height| options.parameters(1, 0, 0, width, height).unwrap().crop;
    assert_eq!(crop(97, 1), Crop { top: 0, left: 48, height: 1, width: 1 });
    assert_eq!(crop(3, 900), Crop { top: 448, left: 0, height: 4, width: 3 });
    let none = options.with_crop(Some(RandomCrop::default().with_attempts(0)));
    assert_eq!(none.parameters(1, 0, 0, 100, 90).unwrap().crop, Crop { top: 0, left: 0, height: 90, width: 100 });
}

/// The new steps leave the draws of the old ones, and are distributed as their options say.
#[test]
fn more_steps_have_draws_of_their_own() {
    let (default, options) = (Augmentation::default(), everything().with_rotation(90.0));
    let all: Vec<Parameters> = (0..4000).map(|i| options.parameters(3, 1, i, 640, 480).unwrap()).collect();
    for (i, p) in (0..).zip(&all) {
        let same = Parameters { flip_vertical: false, angle: 0.0, hue: 0.0, erased: None, mix: 1.0, ..*p };
        assert_eq!(default.parameters(3, 1, i, 640, 480).unwrap(), same);
        assert!(p.angle.abs() <= 90.0 && p.hue.abs() <= 0.3 && (0.0..=1.0).contains(&p.mix), "{p:?}");
        if let Some(Erased { top, left, height, width }) = p.erased {
            assert!(top >= 0.0 && left >= 0.0 && top + height <= 1.0 + 1e-12 && left + width <= 1.0 + 1e-12);
            assert!((0.0199..0.3301).contains(&(height * width)) && (0.2999..3.3001).contains(&(width / height)));
        }
    }
    let mean = |of: &dyn Fn(&Parameters) -> f64| all.iter().map(of).sum::<f64>() / 4000.0;
    assert!((mean(&|p| f64::from(p.flip_vertical)) - 0.5).abs() < 0.03);
    assert!((mean(&|p| f64::from(p.erased.is_some())) - 0.6).abs() < 0.03);
    assert!((mean(&|p| f64::from(p.mix < 1.0)) - 0.8).abs() < 0.03);
    assert!((mean(&|p| p.angle.abs()) - 45.0).abs() < 1.5 && mean(&|p| p.angle).abs() < 3.0);
    assert!((mean(&|p| p.hue.abs()) - 0.15).abs() < 0.005);
    // The variance of the beta distribution is 1 / (4 (2 alpha + 1)).
    for alpha in [0.2, 0.4, 1.0] {
        let options = Augmentation::none().with_mixup(Some(RandomMixup::default().with_alpha(alpha)));
        let all = (0..4000).map(|i| options.parameters(5, 0, i, 9, 9).unwrap().mix - 0.5);
        let variance = all.map(|v| v * v).sum::<f64>() / 4000.0;
        assert!((variance - 0.25 / (2.0 * alpha + 1.0)).abs() < 0.006, "{variance} at {alpha}");
    }
}

kernel! {
    /// Halves each element.
    fn halve(t: impl Simt, n: u32, x: InOut<f32>[n] by [x])
    grid(n.div_ceil(256)) block(256)
    {
        if let Some(x) = x.cell(t) {
            x.set(0.5 * x.get());
        }
    }
}

/// A kernel of one's own sees colors from 0 to 1, and the steps after it see what it made.
#[test]
fn a_hook_is_between_resize_and_normalization() {
    let spec = |seed| ImageSpec { height: 30, width: 44, content: Content::Noise, saturated: false, seed };
    let images = [spec(1).build(), spec(2).build()];
    for options in [Augmentation::default(), everything()] {
        let parameters = [4, 5].map(|i| options.parameters(2, 0, i, 44, 30).unwrap());
        let plain: Vec<Vec<f64>> = images
            .iter()
            .zip(parameters)
            .map(|(image, p)| reference(image, p, 32, &options).into_iter().map(|v| 0.5 * v).collect())
            .collect();
        let want = finished(&plain, &parameters, 32, Normalization::default().mean).concat();
        let (rgb, samples) = lay(&images, &parameters, 5);
        let Normalization { mean, std, .. } = Normalization::default();
        let channel = |i: usize| i / (32 * 32) % 3;
        let stream = Device::cpu().unwrap().stream::<Work>().unwrap();
        let stream = &stream;
        let rgb = stream.upload_blocking(&rgb).unwrap();
        let mut augmenter = options.augmenter_with_hook(stream, 32, 2).unwrap();
        augmenter.prepare(stream, &samples).unwrap();
        let mut out = Fenced::<_, f32>::room(stream, 2 * 3 * 32 * 32, 1);
        let hook = |s: &Stream<_>, images: &mut thalweg::DeviceSlice<_, f32>| halve(s, images.len() as u32, images);
        augmenter.launch_with(stream, &rgb, out.slice_mut(), hook).unwrap();
        let got = out.read().into_iter().enumerate();
        let got: Vec<f32> = got.map(|(i, v)| v * std[channel(i)] as f32 + mean[channel(i)] as f32).collect();
        assert_near("a hook", &got, &want);
    }
    let stream = Device::cpu().unwrap().stream::<Work>().unwrap();
    let mut augmenter = Augmentation::default().augmenter(&stream, 32, 2).unwrap();
    let rgb = stream.upload_blocking(&[0u8; 30]).unwrap();
    let mut out = stream.alloc::<f32>(2 * 3 * 32 * 32).unwrap();
    refused(augmenter.launch_with(&stream, &rgb, &mut out, |_, _| Ok(())), "hook");
}

// --- errors --------------------------------------------------------------------------------------

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, which: &str) {
    match result {
        Err(Error::Parameter { name, .. }) if name == which => {}
        other => panic!("{other:?}, instead of an error about {which}"),
    }
}

#[test]
fn what_cannot_be_done_is_an_error() {
    let default = Augmentation::default();
    refused(default.parameters(0, 0, 0, 0, 5), "image size");
    refused(default.parameters(0, 0, 0, 5, 16385), "image size");
    let wide = RandomCrop::default().with_ratio(1e-3..=2e-3);
    refused(plain().with_crop(Some(wide)).parameters(0, 0, 0, 40, 1), "crop ratio");
    refused(plain().with_flip(1.5).validate(), "flip");
    refused(plain().with_contrast(f64::NAN).validate(), "contrast");
    refused(plain().with_flip_vertical(-0.1).validate(), "flip_vertical");
    refused(plain().with_rotation(181.0).validate(), "rotation");
    refused(plain().with_hue(0.6).validate(), "hue");
    let erasing = |erasing| plain().with_erasing(Some(erasing)).validate();
    refused(erasing(RandomErasing::default().with_area(0.0..=0.1)), "erasing area");
    refused(erasing(RandomErasing::default().with_fill([0.0, 2.0, 0.0])), "erasing fill");
    refused(plain().with_mixup(Some(RandomMixup::default().with_alpha(0.01))).validate(), "mixup alpha");
    let area = RandomCrop::default().with_area(0.5..=0.1);
    refused(plain().with_crop(Some(area)).validate(), "crop area");
    refused(plain().with_blur(Some(RandomBlur::default().with_taps(4))).validate(), "blur taps");
    let flat = Normalization::default().with_std([1.0, 0.0, 1.0]);
    refused(plain().with_normalize(Some(flat)).validate(), "normalize");

    on_each_device(|stream| {
        let make = |options: &Augmentation, size, images| options.augmenter(stream, size, images).map(drop);
        refused(make(&default, 0, 1), "size");
        refused(make(&default, 6, 1), "size");
        refused(make(&default, 16385, 1), "size");
        refused(make(&default, 7, 0), "images");
        make(&default, 7, 1).unwrap();
        make(&plain().with_blur(None), 1, 1).unwrap();
        make(&plain().with_blur(Some(RandomBlur::default().with_taps(3))), 3, 1).unwrap();

        let still = plain().with_contrast(0.0).with_blur(None);
        let mut augmenter = still.augmenter(stream, 8, 2).unwrap();
        let rgb = stream.upload_blocking(&[9u8; 3 * 4 * 5]).unwrap();
        let mut out = stream.alloc_zeroed::<f32>(3 * 8 * 8).unwrap();
        refused(augmenter.launch(stream, &rgb, &mut out), "samples");
        let good = AugmentInput { start: 0, height: 4, width: 5, parameters: Parameters::identity(5, 4) };
        let with = |change: &dyn Fn(&mut AugmentInput)| {
            let mut sample = good;
            change(&mut sample);
            sample
        };
        let mut prepare = |samples: &[AugmentInput]| augmenter.prepare(stream, samples);
        refused(prepare(&[]), "samples");
        refused(prepare(&[good; 3]), "samples");
        refused(prepare(&[with(&|s| s.height = 0)]), "image size");
        refused(prepare(&[with(&|s| s.parameters.crop.width = 0)]), "crop");
        refused(prepare(&[with(&|s| s.parameters.crop.left = 1)]), "crop");
        refused(prepare(&[with(&|s| s.parameters.crop.top = u32::MAX)]), "crop");
        refused(prepare(&[with(&|s| s.parameters.brightness = -1.0)]), "brightness");
        refused(prepare(&[with(&|s| s.parameters.saturation = f64::INFINITY)]), "saturation");
        refused(prepare(&[with(&|s| s.parameters.contrast = 0.5)]), "contrast");
        refused(prepare(&[with(&|s| s.parameters.sigma = 0.5)]), "sigma");
        refused(prepare(&[with(&|s| s.parameters.angle = f64::NAN)]), "angle");
        refused(prepare(&[with(&|s| s.parameters.hue = 2.0)]), "hue");
        refused(prepare(&[with(&|s| s.parameters.mix = -0.1)]), "mix");
        let outside = Erased { top: 0.0, left: 1.5, height: 0.1, width: 0.1 };
        refused(prepare(&[with(&|s| s.parameters.erased = Some(outside))]), "erased");
        refused(prepare(&[with(&|s| s.parameters.flip_vertical = true)]), "sample");
        prepare(&[good]).unwrap();
        augmenter.launch(stream, &rgb, &mut out).unwrap();
        refused(augmenter.launch(stream, rgb.slice(..59).unwrap(), &mut out), "rgb");
        let mut short = stream.alloc::<f32>(3 * 8 * 8 - 1).unwrap();
        assert!(matches!(augmenter.launch(stream, &rgb, &mut short), Err(Error::Launch(_))));
        refused(augmenter.prepare(stream, &[]), "samples");
        refused(augmenter.launch(stream, &rgb, &mut out), "samples");
    });
}

// --- the steady state ----------------------------------------------------------------------------

/// Nothing is allocated after the first batches. A captured launch augments what was prepared
/// before its replay.
#[test]
fn the_steady_state_allocates_nothing_and_can_be_captured() {
    let _alone = alone();
    let seeded = Device::seeded_cpu(1).unwrap();
    for device in devices().iter().copied().filter(|d| d.kind() == DeviceKind::Cuda).chain([seeded]) {
        device
            .per_thread(|stream| {
                let options = Augmentation::default();
                let image =
                    ImageSpec { height: 50, width: 60, content: Content::Noise, saturated: false, seed: 2 }.build();
                let sample = |index| {
                    let parameters = options.parameters(1, 0, index, 60, 50).unwrap();
                    [AugmentInput { start: 0, height: 50, width: 60, parameters }]
                };
                let rgb = stream.upload_blocking(&image.rgb).unwrap();
                let out = stream.alloc_zeroed::<f32>(3 * 32 * 32).unwrap();
                let mut augmenter = options.augmenter(stream, 32, 1).unwrap();
                augmenter.prepare(stream, &sample(0)).unwrap();
                let bundle = (augmenter, rgb, out);
                let (mut graph, mut bundle) =
                    stream.capture(bundle, |stream, (augmenter, rgb, out)| augmenter.launch(stream, rgb, out)).unwrap();
                for index in 1..4 {
                    bundle.0.prepare(stream, &sample(index)).unwrap();
                    bundle = stream.replay(&mut graph, bundle).unwrap();
                    stream.synchronize().unwrap();
                }
                if device.kind() == DeviceKind::Cpu {
                    device.limit_memory(Some(1)); // nothing more can be allocated
                }
                for index in 4..20 {
                    bundle.0.prepare(stream, &sample(index)).unwrap();
                    bundle = stream.replay(&mut graph, bundle).unwrap();
                    stream.synchronize().unwrap();
                }
                device.limit_memory(None);
                let by_graph = stream.read_blocking(&bundle.2).unwrap();
                let (augmenter, rgb, out) = &mut bundle;
                augmenter.launch(stream, rgb, out).unwrap();
                let by_call = stream.read_blocking(out).unwrap();
                assert!(by_graph.iter().zip(&by_call).all(|(a, b)| same(a, b)));
                let [AugmentInput { parameters, .. }] = sample(19);
                let want = run(stream, &options, 32, &[image], &[parameters]);
                assert!(by_call.iter().zip(&want).all(|(a, b)| same(a, b)));
            })
            .unwrap();
    }
}
