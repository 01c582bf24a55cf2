//! Tests of files: folders, formats, and pixels that go to the device straight from where they lie.

use std::fs::File;
use std::path::{Path, PathBuf};

use testkit::devices::{devices, report};
use testkit::files::{read_png, repository};
use testkit::oracle::SplitMix;
use thalweg::{Device, Event, Size};
use thalweg_loader::{
    Error, ImageSink, Loader, Sample, SampleError, Source, UploadMode, byte_ranges, read_ppm, upload_ppm,
};

use crate::{all_returned, draw, options, pixels, size};

#[test]
fn files_and_folders() {
    let made = Folder::new("folder");
    let folder = &made.0;
    std::fs::create_dir_all(folder.join("below.ppm")).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    for index in [2u64, 0, 1] {
        let [height, width] = size(index);
        let head = format!("P6\n# image {index}\n{width} {height}\n255\n");
        write(&format!("{index}.PPM"), &[head.as_bytes(), &pixels(index)].concat());
    }
    write("3.ppm", b"P6 2 2 255 short");
    write("4.ppm", b"P3 2 2 255 1 2 3");
    write("5.ppm", b"P6 1000000 100000000 255 few");
    write(".hidden.ppm", b"");
    write("notes.txt", b"");
    for &device in devices() {
        let samples = Source::folder(folder, &["ppm"], read_ppm).unwrap();
        let mut loader = Loader::new(device, samples, options(8, 2, UploadMode::Auto)).unwrap();
        let wrong = [
            ("3.ppm", "cannot read its pixels"),
            ("4.ppm", "not a binary PPM"),
            ("5.ppm", "cannot read its pixels: the file ends before the image does"),
        ];
        for (name, message) in wrong {
            let error = loader.next().unwrap().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(message), "{error}");
        }
        let batch = loader.next().unwrap().unwrap().synchronize().unwrap();
        assert_eq!(batch.meta, ["0.PPM", "1.PPM", "2.PPM"].map(|name| folder.join(name)));
        for index in 0..3 {
            assert_eq!(batch.pixels(index as usize), pixels(index));
        }
        let samples = Source::folder(folder, &["ppm"], upload_ppm).unwrap();
        let mut loader = Loader::new(device, samples, options(8, 2, UploadMode::Auto)).unwrap();
        assert_eq!(loader.by_ref().take(3).filter(Result::is_err).count(), 3);
        let batch = device.per_thread(|s| {
            let batch = s.wait(loader.next().unwrap().unwrap()).unwrap();
            (s.read_blocking(&batch.rgb).unwrap(), byte_ranges(&batch.sizes))
        });
        let (bytes, ranges) = batch.unwrap();
        assert!((0..3).zip(ranges).all(|(index, range)| bytes[range] == pixels(index)));
        let missing = Source::files([folder.join("missing.ppm")], read_ppm);
        let error = Loader::new(device, missing, options(1, 1, UploadMode::Auto)).unwrap().next().unwrap().unwrap_err();
        assert!(error.to_string().contains("missing.ppm"), "{error}");
        let Error::Sample { cause, .. } = error else { panic!("{error}") };
        let Some(SampleError::File { step: "open it", source }) = cause.downcast_ref() else { panic!("{cause}") };
        assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
    }
    assert!(Source::folder(folder, &["gif"], read_ppm).unwrap_err().to_string().contains("*.gif"));
    assert!(Source::folder(folder.join("nowhere"), &["ppm"], read_ppm).is_err());
}

/// A folder that is removed when the test ends, even if it fails.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("thalweg-loader-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Smaller than a piece, a piece and a part, whole pieces exactly, and several pieces and a part.
const IN_FILES: [[u32; 2]; 4] = [[3, 5], [1200, 1301], [2048, 2048], [1400, 3203]];

fn in_file(index: u64) -> ([u32; 2], u64, Vec<u8>) {
    let [height, width] = IN_FILES[index as usize % 4];
    let mut bytes = vec![0; 3 * (height * width) as usize];
    let mut random = SplitMix(index);
    bytes.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.next().to_le_bytes()[..bytes.len()]));
    ([height, width], 4090 + 7 * index, bytes)
}

/// Pixels in files reach the device with no memory of their own on the host, whatever memory there
/// is for slots, beside images that are decoded.
#[test]
fn pixels_in_files_reach_the_device() {
    let folder = Folder::new("in-files");
    let path = |index: u64| folder.0.join(index.to_string());
    for index in 0..10 {
        let (_, at, bytes) = in_file(index);
        std::fs::write(path(index), [vec![0xee; at as usize], bytes, vec![0xdd; 9]].concat()).unwrap();
    }
    let decoded = |index: u64| index % 3 == 2;
    let buffered = |path: &Path| File::open(path);
    type Open = fn(&Path) -> std::io::Result<File>;
    let mut opens: Vec<(bool, Open)> = vec![(false, buffered)];
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let direct: Open = |path| File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
        match direct(&path(0)) {
            Ok(_) => opens.push((true, direct)),
            Err(error) => report(&format!("NOT COVERED: direct I/O ({error})")),
        }
    }
    for &device in devices() {
        for &(direct, open) in &opens {
            for upload in [UploadMode::Streams, UploadMode::Sequential, UploadMode::Off] {
                // Room for as many slots as the loader likes, for two, and for none.
                for pinned_budget in [usize::MAX, 34 << 20, 1 << 20] {
                    if upload == UploadMode::Off && (direct || pinned_budget < usize::MAX) {
                        continue; // it reads all of an image into memory, wherever the blocks of the file begin
                    }
                    let folder = folder.0.clone();
                    let samples = Source::indexed(10, move |index| {
                        let path = folder.join(index.to_string());
                        Sample::new(format!("image {index}"), index, move |sink| {
                            if decoded(index) {
                                return draw(index, sink);
                            }
                            let ([height, width], at, _) = in_file(index);
                            sink.rgb_in_file(height, width, open(&path)?, at)
                        })
                    });
                    let options = options(4, 3, upload).with_pinned_budget(pinned_budget);
                    let mut loader = Loader::new(device, samples, options).unwrap();
                    let pool = loader.pinned_pool();
                    let mut seen = Vec::new();
                    while let Some(batch) = loader.next() {
                        let batch = device
                            .per_thread(|s| {
                                let batch = s.wait(batch.unwrap()).unwrap();
                                let bytes = s.read_blocking(&batch.rgb).unwrap();
                                for ((&index, range), size) in
                                    batch.indices.iter().zip(byte_ranges(&batch.sizes)).zip(&batch.sizes)
                                {
                                    let (expected_size, _, expected) = in_file(index);
                                    let (expected_size, expected) = match decoded(index) {
                                        true => (self::size(index), pixels(index)),
                                        false => (expected_size, expected),
                                    };
                                    assert_eq!(size.sides(), expected_size);
                                    let same = upload == UploadMode::Off || bytes[range] == expected;
                                    assert!(same, "image {index} on {device}, {upload:?}, budget {pinned_budget}");
                                }
                                s.record(batch).unwrap().synchronize().unwrap()
                            })
                            .unwrap();
                        for (i, &index) in batch.indices.iter().enumerate() {
                            let expected = match (decoded(index), upload) {
                                (true, _) => pixels(index),
                                (false, UploadMode::Off) => in_file(index).2,
                                (false, _) => Vec::new(),
                            };
                            assert!(batch.pixels(i) == expected, "image {index} on the host");
                        }
                        seen.extend(batch.indices.clone());
                        loader.recycle(Event::ready(batch));
                    }
                    assert_eq!(seen, (0..10).collect::<Vec<_>>());
                    assert!(pool.in_use() + pool.cached() <= pinned_budget);
                    if upload != UploadMode::Off {
                        // Slots for three threads, and pages of what is decoded.
                        assert!(pool.in_use() + pool.cached() < 32 << 20, "{} bytes are locked", pool.in_use());
                    }
                    let all = |index| match decoded(index) {
                        true => pixels(index).len(),
                        false => in_file(index).2.len(),
                    };
                    assert_eq!(loader.stats().bytes, (0..10).map(|index| all(index) as u64).sum::<u64>());
                    let stats = loader.stats();
                    let in_files = (0..10).filter(|index| !decoded(*index)).map(|index| all(index) as u64);
                    let read = if upload == UploadMode::Off { 0 } else { in_files.sum() };
                    assert_eq!(stats.reading.bytes, read);
                    assert!(stats.reading.max <= stats.reading.total && (stats.reading.count > 7 || read == 0));
                    assert_eq!((stats.decoding.count, stats.uploading.count, stats.ready.count), (10, 3, 3));
                    assert_eq!(stats.uploading.bytes, stats.bytes);
                    assert_eq!(stats.ready.bytes, stats.bytes);
                    assert_eq!(stats.memory.count, if upload == UploadMode::Off { 10 } else { 3 });
                    assert!(stats.decoding.total + stats.memory.total + stats.reading.total <= stats.decode);
                    drop(loader);
                    all_returned(&pool);
                }
            }
        }
    }
}

/// A file that is cut short once its size is known costs its sample alone.
#[test]
fn a_file_that_cannot_be_read_any_more_costs_its_sample_alone() {
    let folder = Folder::new("cut");
    for &device in devices() {
        for upload in [UploadMode::Streams, UploadMode::Sequential] {
            for index in 0..8 {
                let (_, at, bytes) = in_file(index);
                std::fs::write(folder.0.join(index.to_string()), [vec![0; at as usize], bytes].concat()).unwrap();
            }
            let cut = |index: u64| [1, 2, 4, 5, 6, 7].contains(&index);
            let path = folder.0.clone();
            let samples = Source::indexed(8, move |index| {
                let path = path.join(index.to_string());
                Sample::new(format!("image {index}"), format!("label {index}"), move |sink| {
                    let ([height, width], at, bytes) = in_file(index);
                    let file = File::options().read(true).write(true).open(path)?;
                    let handle = file.try_clone()?;
                    sink.rgb_in_file(height, width, file, at)?;
                    if cut(index) {
                        handle.set_len(at + bytes.len() as u64 - 1)?;
                    }
                    Ok(())
                })
            });
            let options = options(4, 2, upload).with_drop_last(true);
            let mut loader = Loader::new(device, samples, options).unwrap();
            for expected in [vec![1, 2], vec![4, 5, 6, 7]] {
                for index in &expected {
                    let Some(Err(error @ Error::Sample { .. })) = loader.next() else { panic!("an error was due") };
                    let message = format!("sample {index} (image {index}): cannot read its pixels: the file ends");
                    assert!(error.to_string().starts_with(&message), "{error}");
                }
                let batch = loader.next().unwrap().unwrap();
                let bytes = device.per_thread(|s| {
                    let batch = s.wait(batch).unwrap();
                    assert_eq!(batch.failed, expected);
                    (s.read_blocking(&batch.rgb).unwrap(), byte_ranges(&batch.sizes), batch.indices.clone())
                });
                let (bytes, ranges, indices) = bytes.unwrap();
                assert_eq!(indices.len(), 4 - expected.len());
                assert!(indices.iter().zip(ranges).all(|(&index, range)| bytes[range] == in_file(index).2));
            }
            assert!(loader.next().is_none());
            assert_eq!((loader.stats().images, loader.stats().failed), (2, 6));
        }
    }
}

/// A size that its file cannot have is found before the batch asks for memory, so it costs its
/// sample alone.
#[test]
fn a_file_too_short_for_its_size_costs_its_sample_alone() {
    let folder = Folder::new("sizes");
    let path = folder.0.join("pixels");
    std::fs::write(&path, vec![7; 3 * 2 * 5 + 4]).unwrap();
    // Height, width, and where the pixels begin. The first and the last fit exactly.
    let claims: Vec<(u32, u32, u64)> = [
        vec![(2, 5, 4), (1 << 20, 1 << 20, 0)],
        vec![(1 << 30, 1 << 30, 0); 7], // so many together that their sum overflows
        vec![(2, 5, 5), (1, 1, u64::MAX - 1), (2, 5, u64::MAX), (2, 5, 0)],
    ]
    .concat();
    let last = claims.len() as u64 - 1;
    for &device in devices() {
        for upload in [UploadMode::Streams, UploadMode::Sequential, UploadMode::Off] {
            let (claims, path) = (claims.clone(), path.clone());
            let samples = Source::indexed(last + 1, move |index| {
                let ((height, width, at), path) = (claims[index as usize], path.clone());
                let decode = move |sink: &mut ImageSink<'_>| sink.rgb_in_file(height, width, File::open(path)?, at);
                Sample::new(format!("image {index}"), index, decode)
            });
            let mut loader = Loader::new(device, samples, options(16, 3, upload)).unwrap();
            for index in 1..last {
                let Some(Err(error @ Error::Sample { .. })) = loader.next() else { panic!("an error was due") };
                let cause = "cannot read its pixels: the file ends before the image does";
                assert_eq!(error.to_string(), format!("sample {index} (image {index}): {cause}"));
            }
            let batch = loader.next().unwrap().unwrap().synchronize().unwrap();
            assert_eq!((batch.meta, batch.failed.len() as u64), (vec![0, last], last - 1));
            assert!(loader.next().is_none());
        }
    }
}

/// A device file has no length to check. Images that claim more bytes than a sum can hold cost
/// their batch, and the next batch still comes.
#[cfg(unix)]
#[test]
fn sizes_whose_sum_overflows_cost_their_batch_alone() {
    let cpu = Device::new_cpu().unwrap();
    for upload in [UploadMode::Streams, UploadMode::Sequential] {
        let samples = Source::indexed(10, |index| {
            Sample::new(format!("image {index}"), index, move |sink| {
                let side = if index < 8 { 1 << 30 } else { 2 };
                sink.rgb_in_file(side, side, File::open("/dev/zero")?, 0)
            })
        });
        let mut loader = Loader::new(cpu, samples, options(8, 2, upload)).unwrap();
        let (mut seen, mut errors) = (Vec::new(), 0);
        for batch in loader.by_ref() {
            match batch {
                Ok(batch) => seen.extend(batch.synchronize().unwrap().meta),
                Err(Error::Device(thalweg::Error::OutOfMemory { .. } | thalweg::Error::TooLarge { .. })) => errors += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((seen, errors, loader.stats().failed), (vec![8, 9], 2, 8), "{upload:?}");
    }
}

#[test]
fn photographs_decode_as_another_decoder_says() {
    use thalweg_loader::read_photo;

    for &device in devices() {
        let samples = Source::folder(repository("assets/photos"), &["png"], read_photo).unwrap();
        let mut loader = Loader::new(device, samples, options(2, 2, UploadMode::Streams)).unwrap();
        let mut photos = 0;
        for batch in loader.by_ref() {
            let batch = batch.unwrap().synchronize().unwrap();
            for (i, path) in batch.meta.iter().enumerate() {
                let expected = read_png(path);
                assert_eq!(batch.sizes[i].sides().map(|n| n as usize), [expected.height, expected.width]);
                assert_eq!(batch.pixels(i), expected.rgb);
                photos += 1;
            }
        }
        assert_eq!(photos, 5);
    }
}

/// `images` has WebP files that Pillow wrote from the pixels of this formula.
fn webp_pixel(x: u32, y: u32) -> [u8; 3] {
    [37 * x + 11 * y, 5 * x + 90 * y, 13 * x * y + 7].map(|v| v as u8)
}

#[test]
fn webp_decodes_to_the_pixels_it_was_made_from() {
    use thalweg_loader::{decode_photo, read_photo};

    let (height, width) = (6, 11);
    let upright = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    // Its orientation says that the first row is the right side, so columns come from below.
    let turned = (0..width).flat_map(|y| (0..height).map(move |x| (y, height - 1 - x)));
    let pixels =
        |places: &mut dyn Iterator<Item = (u32, u32)>| places.flat_map(|(x, y)| webp_pixel(x, y)).collect::<Vec<u8>>();
    let (upright, turned) = (pixels(&mut upright.into_iter()), pixels(&mut turned.into_iter()));
    let images = repository("loader/tests/images");
    let cpu = Device::cpu().unwrap();
    let paths = ["lossless", "alpha", "turned", "moving"].map(|name| images.join(name).with_extension("webp"));
    let mut loader = Loader::new(cpu, Source::files(paths, read_photo), options(4, 2, UploadMode::Off)).unwrap();
    let batch = loader.next().unwrap().unwrap().synchronize().unwrap();
    assert_eq!(batch.sizes, [[height, width], [height, width], [width, height], [height, width]].map(Size::from));
    for (image, expected) in [&upright, &upright, &turned, &upright].into_iter().enumerate() {
        assert_eq!(batch.pixels(image), expected, "{}", batch.names[image]);
    }

    // Every part of a file is an error, also without its last byte, and never a panic.
    for name in ["lossless.webp", "alpha.webp", "turned.webp", "moving.webp", "lossy.webp"] {
        let bytes = std::fs::read(images.join(name)).unwrap();
        let cuts = 1..bytes.len() as u64;
        let samples = Source::indexed(cuts.end, move |index| {
            let bytes = bytes[..index as usize].to_vec();
            Sample::new("cut", (), move |sink| decode_photo(&bytes, sink))
        });
        let loader = Loader::new(cpu, samples, options(64, 2, UploadMode::Off)).unwrap();
        let causes: Vec<_> = loader.map(|item| item.unwrap_err().to_string()).collect();
        assert_eq!(causes.len() as u64, cuts.end);
        assert!(causes.iter().skip(12).all(|cause| cause.contains("truncated: the file ends before the WebP")));
        assert!(causes.iter().all(|cause| !cause.contains("panicked")));
    }
    let lossy = Source::files([images.join("lossy.webp")], read_photo);
    let batch = Loader::new(cpu, lossy, options(1, 1, UploadMode::Off)).unwrap().next().unwrap().unwrap();
    assert_eq!(batch.synchronize().unwrap().sizes, [Size::new(32, 32)]);
}

/// What is found when a batch is uploaded comes in the place of its sample, beside what the decoder
/// found.
#[test]
fn errors_come_in_the_order_of_their_samples() {
    let folder = Folder::new("order");
    for &device in devices() {
        for index in [0, 2, 3] {
            let (_, at, bytes) = in_file(index);
            std::fs::write(folder.0.join(index.to_string()), [vec![0; at as usize], bytes].concat()).unwrap();
        }
        let path = folder.0.clone();
        let samples = Source::indexed(4, move |index| {
            let path = path.join(index.to_string());
            Sample::new(format!("image {index}"), (), move |sink| {
                if index == 1 {
                    return Err("it is broken".into());
                }
                let ([height, width], at, bytes) = in_file(index);
                let file = File::options().read(true).write(true).open(path)?;
                let handle = file.try_clone()?;
                sink.rgb_in_file(height, width, file, at)?;
                if index != 2 {
                    handle.set_len(at + bytes.len() as u64 - 1)?;
                }
                Ok(())
            })
        });
        let mut loader = Loader::new(device, samples, options(4, 2, UploadMode::Sequential)).unwrap();
        let errors: Vec<_> = (0..3).map(|_| loader.next().unwrap().unwrap_err().to_string()).collect();
        let begin = ["sample 0 (image 0)", "sample 1 (image 1): it is broken", "sample 3 (image 3)"];
        assert!(errors.iter().zip(begin).all(|(error, begin)| error.starts_with(begin)), "{errors:?}");
        assert!(loader.next().unwrap().is_ok() && loader.next().is_none());
    }
}
