//! Tests of files: folders, formats, and pixels that go to the device straight from where they lie.

use std::fs::File;
use std::path::{Path, PathBuf};

use oracle::SplitMix;
use thalweg::{Error, Event};
use thalweg_loader::{Loader, Options, Sample, Source, Upload, byte_ranges, read_ppm, upload_ppm};

use crate::support::devices::{devices, report};
use crate::support::files::read_png;
use crate::{all_returned, draw, options, pixels, size};

#[test]
fn files_and_folders() {
    let folder = std::env::temp_dir().join(format!("thalweg-loader-{}", std::process::id()));
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
        let samples = Source::folder(&folder, &["ppm"], read_ppm).unwrap();
        let mut loader = Loader::new(device, samples, options(8, 2, Upload::Auto)).unwrap();
        let wrong = [("3.ppm", "cannot read its pixels"), ("4.ppm", "not a binary PPM"), ("5.ppm", "truncated")];
        for (name, message) in wrong {
            let error = loader.next().unwrap().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(message), "{error}");
        }
        let batch = loader.next().unwrap().unwrap().synchronize().unwrap();
        assert_eq!(batch.meta, ["0.PPM", "1.PPM", "2.PPM"].map(|name| folder.join(name)));
        for index in 0..3 {
            assert_eq!(batch.pixels(index as usize), pixels(index));
        }
        let samples = Source::folder(&folder, &["ppm"], upload_ppm).unwrap();
        let mut loader = Loader::new(device, samples, options(8, 2, Upload::Auto)).unwrap();
        assert_eq!(loader.by_ref().take(3).filter(Result::is_err).count(), 3);
        let batch = device.per_thread(|s| {
            let batch = s.wait(loader.next().unwrap().unwrap()).unwrap();
            (s.read_blocking(&batch.rgb).unwrap(), byte_ranges(&batch.sizes))
        });
        let (bytes, ranges) = batch.unwrap();
        assert!((0..3).zip(ranges).all(|(index, range)| bytes[range] == pixels(index)));
        let missing = Source::files([folder.join("missing.ppm")], read_ppm);
        let error = Loader::new(device, missing, options(1, 1, Upload::Auto)).unwrap().next().unwrap().unwrap_err();
        assert!(error.to_string().contains("missing.ppm") && error.to_string().contains("cannot open it"), "{error}");
    }
    assert!(Source::folder(&folder, &["gif"], read_ppm).unwrap_err().to_string().contains("*.gif"));
    assert!(Source::folder(folder.join("nowhere"), &["ppm"], read_ppm).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
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
            for upload in [Upload::Streams, Upload::Sequential, Upload::Off] {
                // Room for as many slots as the loader likes, for two, and for none.
                for pinned_budget in [usize::MAX, 34 << 20, 1 << 20] {
                    if upload == Upload::Off && (direct || pinned_budget < usize::MAX) {
                        continue; // it reads all of an image into memory, wherever the blocks of the file begin
                    }
                    let folder = folder.0.clone();
                    let samples = Source::indexed(10, move |index| {
                        let path = folder.join(index.to_string());
                        Sample::new(format!("image {index}"), index, move |canvas| {
                            if decoded(index) {
                                return draw(index, canvas);
                            }
                            let ([height, width], at, _) = in_file(index);
                            canvas.rgb_in_file(height, width, open(&path)?, at)
                        })
                    });
                    let options = Options { pinned_budget, ..options(4, 3, upload) };
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
                                    assert_eq!(*size, expected_size);
                                    let same = upload == Upload::Off || bytes[range] == expected;
                                    assert!(same, "image {index} on {device}, {upload:?}, budget {pinned_budget}");
                                }
                                s.record(batch).unwrap().synchronize().unwrap()
                            })
                            .unwrap();
                        for (i, &index) in batch.indices.iter().enumerate() {
                            let expected = match (decoded(index), upload) {
                                (true, _) => pixels(index),
                                (false, Upload::Off) => in_file(index).2,
                                (false, _) => Vec::new(),
                            };
                            assert!(batch.pixels(i) == expected, "image {index} on the host");
                        }
                        seen.extend(batch.indices.clone());
                        loader.recycle(Event::ready(batch));
                    }
                    assert_eq!(seen, (0..10).collect::<Vec<_>>());
                    assert!(pool.in_use() + pool.cached() <= pinned_budget);
                    if upload != Upload::Off {
                        // Slots for three threads, and pages of what is decoded.
                        assert!(pool.in_use() + pool.cached() < 32 << 20, "{} bytes are locked", pool.in_use());
                    }
                    let all = |index| match decoded(index) {
                        true => pixels(index).len(),
                        false => in_file(index).2.len(),
                    };
                    assert_eq!(loader.stats().bytes, (0..10).map(|index| all(index) as u64).sum::<u64>());
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
        for upload in [Upload::Streams, Upload::Sequential] {
            for index in 0..8 {
                let (_, at, bytes) = in_file(index);
                std::fs::write(folder.0.join(index.to_string()), [vec![0; at as usize], bytes].concat()).unwrap();
            }
            let cut = |index: u64| [1, 2, 4, 5, 6, 7].contains(&index);
            let path = folder.0.clone();
            let samples = Source::indexed(8, move |index| {
                let path = path.join(index.to_string());
                Sample::new(format!("image {index}"), format!("label {index}"), move |canvas| {
                    let ([height, width], at, bytes) = in_file(index);
                    let file = File::options().read(true).write(true).open(path)?;
                    if cut(index) {
                        file.set_len(at + bytes.len() as u64 - 1)?;
                    }
                    canvas.rgb_in_file(height, width, file, at)
                })
            });
            let options = Options { drop_last: true, ..options(4, 2, upload) };
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

#[test]
fn photographs_decode_as_another_decoder_says() {
    use thalweg_loader::read_photo;

    for &device in devices() {
        let samples = Source::folder("assets/photos", &["png"], read_photo).unwrap();
        let mut loader = Loader::new(device, samples, options(2, 2, Upload::Streams)).unwrap();
        let mut photos = 0;
        for batch in loader.by_ref() {
            let batch = batch.unwrap().synchronize().unwrap();
            for (i, path) in batch.meta.iter().enumerate() {
                let expected = read_png(path);
                assert_eq!(batch.sizes[i].map(|n| n as usize), [expected.height, expected.width]);
                assert_eq!(batch.pixels(i), expected.rgb);
                photos += 1;
            }
        }
        assert_eq!(photos, 5);
    }
}
