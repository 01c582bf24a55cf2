//! JPEG files that the device decodes, beside the host's decoder.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use testkit::devices::{alone, devices};
use testkit::files::repository;
use thalweg::{AnyStream, Device, DeviceKind, QueryResult, Size};
use thalweg_loader::{DecodeBackend, Loader, LoaderOptions, Source, UploadMode, byte_ranges, read_photo};
use thalweg_vision::{Image, Pipeline, PipelineOptions as TokenOptions, TokenParams};

use crate::all_returned;
use crate::files::Folder;

/// What a consumer gets of a sample: its index, its name without the folder, its size and its
/// pixels.
type Got = (u64, String, Size, Vec<u8>);

/// What a consumer gets, in order: an error or a batch, and the indices of what failed in it.
type Item = std::result::Result<(Vec<Got>, Vec<u64>), String>;

/// Writes files of all kinds, some of which no decoder takes.
fn files(folder: &Folder) -> Vec<PathBuf> {
    let read = |path: &str| std::fs::read(repository(path)).unwrap();
    let golden = |name: &str| read(&format!("tests/golden/jpeg/{name}.jpg"));
    let good = golden("eye-420-q75");
    let mut broken = golden("row-444-q95");
    let from = broken.len() / 2;
    broken[from..from + 40].fill(0xAA);
    let mut odd_restart = golden("eye-444-restart-3");
    let at = odd_restart.windows(2).rposition(|w| w[0] == 0xFF && (0xD0..0xD8).contains(&w[1])).unwrap();
    odd_restart[at + 1] ^= 1;
    let all = [
        ("good", good.clone()),
        ("progressive", golden("eye-progressive")),
        ("truncated", good[..good.len() * 2 / 3].to_vec()),
        ("cmyk", read("loader/tests/images/cmyk.jpg")),
        ("text", b"no photograph at all".to_vec()),
        ("gray", golden("row-gray-q85")),
        ("turned", golden("exif6")),
        ("broken", broken),
        ("empty", Vec::new()),
        ("restart", golden("eye-420-restart-row")),
        ("odd-restart", odd_restart),
        ("png", read("assets/photos/row.png")),
        ("head", good[..3].to_vec()),
        ("arithmetic", golden("eye-arithmetic")),
        ("tiny", golden("tiny17x2-420")),
        ("webp", read("loader/tests/images/lossy.webp")),
        ("no-end", good[..good.len() - 2].to_vec()),
        ("last", golden("eye-422-q85")),
    ];
    let write = |(name, bytes): &(&str, Vec<u8>)| {
        let path = folder.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    all.iter().map(write).collect()
}

fn options(decode: DecodeBackend, batch: usize, upload: UploadMode) -> LoaderOptions {
    LoaderOptions::default().with_decode(decode).with_batch_size(batch).with_upload(upload).with_decode_threads(3)
}

/// Loads the files, and returns what the consumer gets and how many batches the device decoded.
fn load(device: Device, paths: &[PathBuf], options: LoaderOptions) -> (Vec<Item>, u64) {
    let mut loader = Loader::new(device, Source::files(paths, read_photo), options).unwrap();
    let folder = format!("{}/", paths[0].parent().unwrap().display());
    let mut items = Vec::new();
    while let Some(item) = loader.next() {
        items.push(item.map_err(|e| e.to_string().replace(&folder, "")).map(|batch| {
            let read = device.per_thread(|s| {
                let batch = s.wait(batch)?;
                let bytes = s.read_blocking(&batch.rgb)?;
                let ranges = byte_ranges(&batch.sizes).into_iter();
                let pixels: Vec<Vec<u8>> = ranges.map(|range| bytes[range].to_vec()).collect();
                let about = batch.indices.iter().zip(&batch.names).zip(&batch.sizes).zip(pixels);
                let got = about.map(|(((i, name), size), pixels)| (*i, name.replace(&folder, ""), *size, pixels));
                let mut failed = batch.failed.clone();
                failed.sort_unstable();
                let got = (got.collect(), failed);
                loader.recycle(s.record(batch)?);
                Ok::<_, thalweg::Error>(got)
            });
            read.unwrap().unwrap()
        }));
    }
    let (decoded, pool) = (loader.stats().device_decoding.count, loader.pinned_pool());
    drop(loader);
    all_returned(&pool);
    (items, decoded)
}

/// Whatever the device cannot decode, the consumer gets what it gets without the device, in its
/// place.
#[test]
fn every_file_is_where_the_host_has_it() {
    let _alone = alone();
    let folder = Folder::new("jpeg");
    let paths = files(&folder);
    for &device in devices() {
        for (batch, upload) in
            [(18, UploadMode::Sequential), (18, UploadMode::Streams), (5, UploadMode::Streams), (1, UploadMode::Auto)]
        {
            let (host, none) = load(device, &paths, options(DecodeBackend::Host, batch, upload));
            let (got, decoded) = load(device, &paths, options(DecodeBackend::Device, batch, upload));
            assert!(none == 0 && decoded > 0, "{none} and {decoded} batches on the device");
            assert_eq!(got.len(), host.len());
            for (got, host) in got.iter().zip(&host) {
                let ((got, failed), (host, lost)) = match (got, host) {
                    (Ok(got), Ok(host)) => (got, host),
                    (Err(got), Err(host)) => {
                        assert_eq!(got, host);
                        continue;
                    }
                    (got, host) => panic!("{got:?} on the device, {host:?} on the host"),
                };
                assert_eq!(failed, lost);
                let about = |(i, name, size, pixels): &Got| (*i, name.clone(), *size, pixels.len());
                assert_eq!(got.iter().map(about).collect::<Vec<_>>(), host.iter().map(about).collect::<Vec<_>>());
                for ((_, name, _, got), (.., host)) in got.iter().zip(host) {
                    assert!(got == host, "{name} on {device}");
                }
            }
        }
        let errors = load(device, &paths, options(DecodeBackend::Device, 18, UploadMode::Auto)).0;
        let text: Vec<_> = errors.iter().filter_map(|item| item.as_ref().err()).collect();
        for (name, what) in [
            ("truncated", "file ends before"),
            ("text", "not an image"),
            ("no-end", "file ends before"),
            ("broken", "broken JPEG file: its coded data"),
            ("odd-restart", "a restart marker is missing"),
            ("arithmetic", "arithmetic coding"),
        ] {
            assert!(text.iter().any(|e| e.contains(name) && e.contains(what)), "{name}: {text:?}");
        }
    }
}

/// Golden files come with the golden pixels, which are libjpeg-turbo's. A file of which little more
/// than the header is there costs nothing but itself.
#[test]
fn the_device_gives_the_pixels_of_libjpeg_turbo() {
    let _alone = alone();
    let folder = Folder::new("jpeg-golden");
    let good = std::fs::read(repository("tests/golden/jpeg/eye-420-q75.jpg")).unwrap();
    let scan = good.windows(2).rposition(|w| w == [0xFF, 0xDA]).unwrap();
    std::fs::write(folder.0.join("cut"), &good[..scan + 30]).unwrap();
    let names = ["eye-420-q75", "eye-progressive", "row-gray-q85", "exif6", "eye-444-restart-3", "tiny3x18-420"];
    let mut paths = names.map(|name| repository(format!("tests/golden/jpeg/{name}.jpg"))).to_vec();
    paths.insert(2, folder.0.join("cut"));
    for &device in devices() {
        let (items, _) = load(device, &paths, options(DecodeBackend::Device, 7, UploadMode::Auto));
        let [Err(error), Ok((images, _))] = &items[..] else { panic!("{items:?}") };
        assert!(error.contains("cut): truncated"), "{error}");
        for (name, (.., Size { height, width }, pixels)) in names.iter().zip(images) {
            let file = std::fs::read(repository(format!("tests/golden/jpeg/{name}.safetensors"))).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
            let rgb = tensors.tensor("rgb").unwrap();
            assert_eq!(rgb.shape(), [*height as usize, *width as usize, 3]);
            assert!(rgb.data() == pixels, "{name} on {device}");
        }
    }
}

/// With little page-locked memory, files wait for it or fail, as images do, and nothing hangs.
#[test]
fn a_budget_bounds_the_files() {
    let _alone = alone();
    let folder = Folder::new("jpeg-budget");
    let paths = files(&folder);
    for &device in devices() {
        let (host, _) = load(device, &paths, options(DecodeBackend::Device, 2, UploadMode::Auto));
        let budget = options(DecodeBackend::Device, 2, UploadMode::Auto).with_pinned_budget(1 << 20);
        assert!(load(device, &paths, budget).0 == host);
    }
}

/// The device decodes the next batches while the consumer's work on the first one is not done: a
/// gate holds that work back until they are there.
#[test]
fn the_device_decodes_while_the_consumer_works() {
    let _alone = alone();
    let paths =
        ["eye-420-q75", "row-444-q95", "eye-422-q85"].map(|name| repository(format!("tests/golden/jpeg/{name}.jpg")));
    for &device in devices() {
        let options = options(DecodeBackend::Device, 1, UploadMode::Streams);
        let mut loader = Loader::new(device, Source::files(&paths, read_photo), options).unwrap();
        let consumer = AnyStream::new(device).unwrap();
        let (open, gate) = mpsc::channel::<()>();
        let first = loader.next().unwrap().unwrap();
        let mut first = consumer.enter(|s| {
            let batch = s.wait(first).unwrap();
            s.launch_host(move || _ = gate.recv_timeout(Duration::from_secs(20))).unwrap();
            s.record(batch).unwrap()
        });
        for number in 1..paths.len() {
            let batch = loader.next().unwrap().unwrap().synchronize().unwrap();
            assert_eq!(batch.indices, [number as u64]);
            first = match first.query().unwrap() {
                QueryResult::Pending(first) => first,
                QueryResult::Ready(_) => panic!("batch {number} came after the consumer's work on {device}"),
            };
        }
        assert_eq!(loader.stats().device_decoding.count, 3);
        open.send(()).unwrap();
        first.synchronize().unwrap();
    }
}

#[test]
fn auto_decodes_on_gpus_only() {
    for &device in devices() {
        let loader = |decode, upload| {
            Loader::new(
                device,
                Source::files([repository("tests/golden/jpeg/exif6.jpg")], read_photo),
                options(decode, 1, upload),
            )
        };
        let on_device = |decode, upload| loader(decode, upload).unwrap().decodes_on_device();
        assert_eq!(on_device(DecodeBackend::Auto, UploadMode::Auto), device.kind() == DeviceKind::Cuda);
        assert!(
            on_device(DecodeBackend::Device, UploadMode::Auto) && !on_device(DecodeBackend::Host, UploadMode::Auto)
        );
        assert!(!on_device(DecodeBackend::Device, UploadMode::Off), "nothing is uploaded");
    }
    assert!("gpu".parse::<DecodeBackend>().is_err());
}

/// The tokens of a photograph are those of the host's decoder, bit by bit.
#[test]
fn tokens_are_those_of_the_host() {
    let _alone = alone();
    let paths =
        ["eye-420-q75", "row-444-q95", "eye-422-q85"].map(|name| repository(format!("tests/golden/jpeg/{name}.jpg")));
    for &device in devices() {
        let sets = [DecodeBackend::Host, DecodeBackend::Device].map(|decode| {
            let (items, _) = load(device, &paths, options(decode, 3, UploadMode::Auto));
            let images = items.into_iter().flat_map(|item| item.unwrap().0);
            let images: Vec<_> =
                images.map(|(.., Size { height, width }, pixels)| Image::new(height, width, pixels).unwrap()).collect();
            let pipeline = Pipeline::with_options(device, TokenParams::default(), TokenOptions::default()).unwrap();
            pipeline.run(&images).into_iter().map(|set| set.unwrap()).collect::<Vec<_>>()
        });
        for (host, got) in sets[0].iter().zip(&sets[1]) {
            assert!(!host.tokens.is_empty() && host.patch_id == got.patch_id);
            let bits = |tokens: &[f32]| tokens.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert!(bits(&host.tokens) == bits(&got.tokens), "{device}");
        }
    }
}

/// The statistics say who decoded each JPEG file, and why one left the device.
#[test]
fn who_decoded_is_counted() {
    let _alone = alone();
    let folder = Folder::new("jpeg-counted");
    let paths = files(&folder);
    for &device in devices() {
        for (decode, batch, expected) in
            [(DecodeBackend::Device, 18, [7, 1]), (DecodeBackend::Device, 2, [7, 1]), (DecodeBackend::Host, 5, [0, 8])]
        {
            let options = options(decode, batch, UploadMode::Auto).with_skip_errors(true);
            let mut loader = Loader::new(device, Source::files(&paths, read_photo), options).unwrap();
            loader.by_ref().for_each(|batch| drop(batch.unwrap()));
            let stats = loader.stats();
            assert_eq!([stats.jpeg_on_device, stats.jpeg_on_host], expected, "{device}, batches of {batch}");
            let left = if decode == DecodeBackend::Device { vec![("CMYK or YCCK".to_owned(), 1)] } else { vec![] };
            assert_eq!(loader.left_device().into_iter().collect::<Vec<_>>(), left);
            assert!(stats.to_string().contains(&format!("JPEG files: {} decoded on the device", expected[0])));
        }
    }
}

/// An image of too many pixels, or that needs too much memory, is an error that says which option
/// decides. It is told before memory is taken for it.
#[test]
fn limits_of_pixels_and_of_memory_are_errors() {
    let _alone = alone();
    let names = [
        "tests/golden/jpeg/eye-420-q75.jpg",
        "tests/golden/jpeg/eye-progressive.jpg",
        "loader/tests/images/lossless.webp",
    ];
    let mut paths: Vec<_> = names.iter().map(repository).collect();
    paths.push(repository("assets/photos/row.png"));
    for &device in devices() {
        for decode in [DecodeBackend::Host, DecodeBackend::Device] {
            let errors = |options: LoaderOptions| -> Vec<String> {
                let items = load(device, &paths, options).0;
                items.into_iter().filter_map(|item| item.err()).collect()
            };
            let few = errors(options(decode, 4, UploadMode::Auto).with_pixel_limit(60));
            assert_eq!(few.len(), 4, "{few:?}");
            assert!(few.iter().all(|e| e.contains("megapixels; the limit (`pixel_limit`)")), "{few:?}");
            // The device needs none of this memory.
            let little = errors(options(decode, 4, UploadMode::Auto).with_scratch_budget(30_000));
            let expected = if decode == DecodeBackend::Host { 1 } else { 0 };
            assert_eq!(little.len(), expected, "{little:?}");
            assert!(little.iter().all(|e| e.contains("progressive") && e.contains("`scratch_budget`")), "{little:?}");
        }
    }
}

/// Where a device has too little memory to decode a whole batch at once, it decodes parts of it,
/// and the batch is the same.
#[test]
fn with_little_memory_a_batch_is_decoded_in_parts() {
    let paths = vec![repository("tests/golden/jpeg/eye-420-q75.jpg"); 16];
    let cpu = Device::new_cpu().unwrap();
    let options = || options(DecodeBackend::Device, 8, UploadMode::Sequential);
    let (whole, calls) = load(cpu, &paths, options());
    assert_eq!((whole.len(), calls), (2, 2), "a call for each batch");
    let (mut limit, mut in_parts) = (64 << 20, 0);
    loop {
        let cpu = Device::new_cpu().unwrap();
        cpu.limit_memory(Some(limit));
        let (got, calls) = load(cpu, &paths, options());
        if got.iter().any(Result::is_err) {
            break;
        }
        assert_eq!(got, whole, "{limit} bytes");
        in_parts += usize::from(calls > 2);
        limit -= limit / 16;
    }
    assert!(in_parts >= 3, "{in_parts} limits below which a whole batch cannot be decoded at once");
}
