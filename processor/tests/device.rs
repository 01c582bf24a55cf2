//! The device against the host, bit for bit, and against the golden files.

use proptest::prelude::*;
use testkit::cases;
use testkit::devices::devices;
use thalweg::simt::{bf16, f16};
use thalweg::{AnyStream, Device, Event, LiveBrand, Scoped, Stream, stream_tags};
use thalweg_processor::{
    DeviceImage, DeviceProcessor, Error, HostInputs, InputElement, InputFormat, Processor, ProcessorParams, Resampler,
    Style,
};

use crate::files::{Bytes, Golden, Photo, digest, views};
use crate::golden::{LAYOUTS, assert_entry, digests, named, params};
use crate::properties::{FILTERS, RESAMPLERS, images, noise, processors};

stream_tags!(Process);

/// The images one after another with `gap` bytes before each, and a multiple of 4 bytes.
fn packed(images: &[Photo], gap: usize) -> (Vec<u8>, Vec<DeviceImage>) {
    let (mut rgb, mut places) = (Vec::new(), Vec::new());
    for Photo { size: [height, width], rgb: own } in images {
        rgb.resize(rgb.len() + gap, 255);
        places.push(DeviceImage { start: rgb.len(), height: *height, width: *width });
        rgb.extend_from_slice(own);
    }
    rgb.resize(rgb.len().next_multiple_of(4), 255);
    (rgb, places)
}

/// Runs a test on a stream of each device.
fn on_each_device(test: impl for<'s> Fn(Device, &Stream<Scoped<'s>>)) {
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|stream| test(device, stream));
    }
}

/// Processes images on a device, with `gap` bytes before each.
fn on<S: LiveBrand, E: InputElement>(
    stream: &Stream<S>,
    processor: &mut DeviceProcessor<E>,
    images: &[Photo],
    gap: usize,
) -> HostInputs<E> {
    let (rgb, places) = packed(images, gap);
    let rgb = stream.upload_blocking(&rgb).unwrap();
    let inputs = processor.process(stream, &rgb, &places).unwrap();
    let inputs = stream.wait(inputs).unwrap();
    let pixel_values = stream.read_blocking(&inputs.pixel_values).unwrap();
    let layout = inputs.layout.clone();
    processor.recycle(stream.record(inputs).unwrap());
    HostInputs { pixel_values, layout }
}

/// Asserts that a device makes the same bits as the host.
#[track_caller]
fn assert_equals_host<E: InputElement>(device: Device, processor: &Processor, images: &[Photo], gap: usize) {
    let own = AnyStream::new(device).unwrap();
    let made = own.enter(|s| on::<_, E>(s, &mut DeviceProcessor::new(processor.clone()), images, gap));
    let host = processor.process::<E>(&views(images)).unwrap();
    assert_eq!((made.layout.shape(), made.layout.images()), (host.layout.shape(), host.layout.images()));
    let differ = made.pixel_values.iter().zip(&host.pixel_values).position(|(a, b)| a.bits() != b.bits());
    let sizes: Vec<_> = images.iter().map(|image| image.size).collect();
    assert_eq!(differ, None, "{device}: {sizes:?}, {:?}", processor.params());
}

#[test]
fn every_format_equals_the_host() {
    for device in devices() {
        for processor in processors() {
            assert_equals_host::<f32>(*device, &processor, &images(), 0);
            assert_equals_host::<f16>(*device, &processor, &images(), 1);
            assert_equals_host::<bf16>(*device, &processor, &images(), 16);
        }
    }
}

/// Blocks that need more rows than their window has take them in parts, and these sizes have
/// batches that are enlarged and reduced by much.
#[test]
fn long_images_equal_the_host() {
    let images = [noise([4000, 9], 1), noise([9, 4000], 2), noise([700, 900], 3), noise([1, 1], 4), noise([3, 1], 5)];
    for device in devices() {
        for resampler in RESAMPLERS {
            let square = ProcessorParams::siglip(37).with_resampler(resampler);
            assert_equals_host::<f32>(*device, &Processor::new(square).unwrap(), &images, 0);
            let patches = ProcessorParams::siglip2_naflex(16).with_resampler(resampler);
            assert_equals_host::<bf16>(*device, &Processor::new(patches).unwrap(), &images, 0);
        }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn random_images_equal_the_host(
        sizes in proptest::collection::vec([1u32..90, 1u32..90], 1..4),
        of in 0usize..11,
        filter in 0usize..5,
        resampler in 0usize..4,
        style in 0usize..3,
        gap in 0usize..5,
        seed in any::<u32>(),
    ) {
        let photos: Vec<_> = (seed..).zip(sizes).map(|(seed, size)| noise(size, seed)).collect();
        let resampler = RESAMPLERS[resampler];
        let filter = if resampler == Resampler::Aten { FILTERS[[1, 3, 4][filter % 3]] } else { FILTERS[filter] };
        let style = [Style::Slow, Style::Fast, Style::ToTensor][style];
        let params = processors()[of].params().clone();
        let params = params.with_filter(filter).with_resampler(resampler).with_style(style);
        let processor = Processor::new(params).unwrap();
        for device in devices() {
            assert_equals_host::<f32>(*device, &processor, &photos, gap);
        }
    }
}

#[test]
fn golden_layouts() {
    on_each_device(|_, stream| {
        for name in LAYOUTS {
            let golden = Golden::read(name);
            let (params, images) = (params(name, &golden), golden.images());
            let mut processor = DeviceProcessor::<f32>::new(Processor::new(params.clone()).unwrap());
            let HostInputs { pixel_values, layout } = on(stream, &mut processor, &images, 0);
            golden.assert_equal("pixel_values", &layout.shape(), &pixel_values);
            if let Some(expected) = golden.meta.get("sha256.pixel_values.fast") {
                let fast = Processor::new(params.with_style(Style::Fast).with_resampler(Resampler::Aten)).unwrap();
                let made = on(stream, &mut DeviceProcessor::<f32>::new(fast), &images, 0);
                assert_eq!(digest(&made.pixel_values.bytes()), *expected, "{name}, fast");
            }
        }
    });
}

/// The CPU device takes every fifth digest, because it runs each thread of a kernel by turns.
#[test]
fn digests_of_whole_photographs() {
    on_each_device(|device, stream| {
        let step = if device.kind() == thalweg::DeviceKind::Cuda { 1 } else { 5 };
        let mut count = 0;
        for (photo, entries) in digests() {
            let image = Photo::read(&photo);
            for (name, tensors) in entries.into_iter().step_by(step) {
                let processor = Processor::new(named(&name)).unwrap();
                let made = on(stream, &mut DeviceProcessor::<f32>::new(processor), std::slice::from_ref(&image), 0);
                let what = format!("{device}: {photo}.{name}");
                assert_entry(&tensors["pixel_values"], &what, &made.layout.shape(), &made.pixel_values);
                count += 1;
            }
        }
        assert!(count > 10, "{count}");
    });
}

/// The second batch has the memory of the first one, whose numbers must not shine through.
#[test]
fn batches_share_memory_and_not_numbers() {
    on_each_device(|_, stream| {
        for processor in processors() {
            let mut shared = DeviceProcessor::<f32>::new(processor.clone());
            let sets = [images(), images().into_iter().rev().collect(), vec![noise([50, 60], 9)]];
            for images in &sets {
                let made = on(stream, &mut shared, images, 0);
                assert!(made.pixel_values == processor.process::<f32>(&views(images)).unwrap().pixel_values);
            }
        }
    });
}

#[test]
fn an_error_is_of_its_image_only() {
    on_each_device(|_, stream| {
        let (rgb, mut places) = packed(&images(), 0);
        let rgb = stream.upload_blocking(&rgb).unwrap();
        places.insert(2, DeviceImage { start: 0, height: 0, width: 5 });
        let mut processor = DeviceProcessor::<f32>::new(processors()[0].clone());
        let inputs = processor.process(stream, &rgb, &places).unwrap();
        let inputs = inputs.synchronize().unwrap();
        assert_eq!(inputs.layout.errors()[0].index, 2);
        let good = processors()[0].process::<f32>(&views(&images())).unwrap();
        let inputs = stream.wait(Event::ready(inputs)).unwrap();
        assert!(stream.read_blocking(&inputs.pixel_values).unwrap() == good.pixel_values);
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    let stream = Device::cpu().unwrap().stream::<Process>().unwrap();
    let mut processor = DeviceProcessor::<f32>::new(Processor::siglip(8).unwrap());
    let rgb = stream.upload_blocking(&[7u8; 30]).unwrap();
    let image = |start| DeviceImage { start, height: 3, width: 3 };
    let refused = processor.process(&stream, &rgb, &[image(3)]).unwrap_err().to_string();
    assert_eq!(refused, "`rgb` is 30 bytes, expected 30 for image 0, and up to 3 more, to a multiple of 4");
    let layout = processor.processor().layout(&[[3, 3].into()]).unwrap();
    let mut to = stream.alloc::<f32>(191).unwrap();
    let refused = processor.process_into(&stream, &layout, &rgb, &[image(0)], &mut to);
    assert!(matches!(refused, Err(Error::Capacity { given: 192, room: 191, .. })));
    let mut to = stream.alloc::<f32>(192).unwrap();
    let other = DeviceImage { start: 0, height: 2, width: 3 };
    assert!(processor.process_into(&stream, &layout, &rgb, &[other], &mut to).is_err());
    assert!(processor.process_into(&stream, &layout, &rgb, &[], &mut to).is_err());
    let other = Processor::siglip(9).unwrap().layout(&[[3, 3].into()]).unwrap();
    assert!(processor.process_into(&stream, &other, &rgb, &[image(0)], &mut to).is_err());
    processor.process_into(&stream, &layout, &rgb, &[image(0)], &mut to).unwrap();
    let empty = processor.process(&stream, &rgb, &[]).unwrap().synchronize().unwrap();
    assert!(empty.layout.is_empty() && empty.pixel_values.is_empty());
    let format = InputFormat::Square { size: 8 };
    assert_eq!(processor.processor().params().format, format);
}
