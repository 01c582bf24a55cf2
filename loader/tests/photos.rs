//! Photographs that are not upright, opaque and of 8 bits, under each rule.

use std::path::Path;

use png::{BitDepth, ColorType};
use testkit::devices::devices;
use testkit::files::repository;
use thalweg::{Device, Size};
use thalweg_loader::{
    AlphaRule, DecodeBackend, DepthRule, Error, Loader, LoaderOptions, OrientationRule, PhotoOptions, Sample,
    SampleError, Source, UploadMode, decode_photo, read_photo,
};

use crate::files::Folder;
use crate::options;

/// Decodes a file with and without an upload, and returns its size and pixels.
fn decode(device: Device, path: &Path, photo: PhotoOptions) -> (Size, Vec<u8>) {
    let load = |upload, decode| {
        let options = LoaderOptions::default().with_upload(upload).with_decode(decode).with_photo(photo);
        let mut loader = Loader::new(device, Source::files([path], read_photo), options).expect("a loader");
        let batch = loader.next().expect("a batch").expect("no failure").synchronize().expect("it ends");
        let bytes = 3 * batch.sizes[0].area() as usize;
        let pixels = match upload {
            UploadMode::Off => batch.pixels(0).to_vec(),
            _ => device
                .per_thread(|stream| {
                    let rgb = stream.bind(batch.rgb)?;
                    stream.read_blocking(rgb.slice(..bytes)?)
                })
                .expect("a stream")
                .expect("pixels"),
        };
        (batch.sizes[0], pixels)
    };
    let on_host = load(UploadMode::Off, DecodeBackend::Host);
    assert!(load(UploadMode::Sequential, DecodeBackend::Device) == on_host, "{}", path.display());
    on_host
}

fn cpu() -> Device {
    Device::cpu().expect("a CPU")
}

/// Writes a PNG of one row.
fn row(path: &Path, color: ColorType, depth: BitDepth, samples: &[u8]) {
    let of_pixel = color.samples() * if depth == BitDepth::Sixteen { 2 } else { 1 };
    let file = std::fs::File::create(path).expect("a file");
    let mut encoder = png::Encoder::new(file, (samples.len() / of_pixel) as u32, 1);
    encoder.set_color(color);
    encoder.set_depth(depth);
    encoder.write_header().expect("a header").write_image_data(samples).expect("pixels");
}

/// What Pillow 12.3 makes of these samples.
#[test]
fn samples_of_16_bits_are_those_of_pillow() {
    const SAMPLES: [u16; 12] = [0, 100, 255, 256, 300, 1000, 32767, 32768, 65535, 127, 128, 129];
    let folder = Folder::new("depth");
    let path = folder.0.join("row.png");
    let bytes: Vec<u8> = SAMPLES.iter().flat_map(|v| v.to_be_bytes()).collect();
    let gray = |levels: &[u8]| levels.iter().flat_map(|v| [*v; 3]).collect::<Vec<_>>();
    let cases = [
        (ColorType::Grayscale, gray(&[0, 100, 255, 255, 255, 255, 255, 255, 255, 127, 128, 129])),
        (ColorType::Rgb, vec![0, 0, 0, 1, 1, 3, 127, 128, 255, 0, 0, 0]),
        (ColorType::GrayscaleAlpha, gray(&[0, 0, 1, 127, 255, 0])),
        (ColorType::Rgba, vec![0, 0, 0, 1, 3, 127, 255, 0, 0]),
    ];
    for (color, expected) in cases {
        row(&path, color, BitDepth::Sixteen, &bytes);
        let pillow = PhotoOptions::default().with_depth(DepthRule::Pillow);
        assert_eq!(decode(cpu(), &path, pillow).1, expected, "{color:?}");
        let rounded = decode(cpu(), &path, PhotoOptions::default()).1;
        let nearest = |v: u16| ((u32::from(v) * 255 + 32767) / 65535) as u8;
        assert_eq!(rounded[0], nearest(SAMPLES[0]), "{color:?}");
        assert_ne!(rounded, expected, "{color:?}");
    }
}

/// What Pillow 12.3 pastes over white with the alpha of the image as mask.
#[test]
fn alpha_over_white_is_that_of_pillow() {
    let folder = Folder::new("alpha");
    let path = folder.0.join("row.png");
    let samples = [200, 100, 50, 0, 200, 100, 50, 255, 200, 100, 50, 128, 7, 13, 255, 1, 0, 254, 3, 77];
    row(&path, ColorType::Rgba, BitDepth::Eight, &samples);
    let white = PhotoOptions::default().with_alpha(AlphaRule::White);
    let expected = [255, 255, 255, 200, 100, 50, 227, 177, 152, 254, 254, 255, 178, 255, 179];
    assert_eq!(decode(cpu(), &path, white).1, expected);
    let dropped: Vec<u8> = samples.as_chunks::<4>().0.iter().flat_map(|[r, g, b, _]| [*r, *g, *b]).collect();
    assert_eq!(decode(cpu(), &path, PhotoOptions::default()).1, dropped);
    // A gray image has an alpha too. Pillow gives the nearest level for each sample and alpha.
    row(&path, ColorType::GrayscaleAlpha, BitDepth::Eight, &[200, 128, 9, 255]);
    assert_eq!(decode(cpu(), &path, white).1, [227, 227, 227, 9, 9, 9]);
    for first in (0..=255).step_by(32) {
        let pairs = (first..first + 32).flat_map(|alpha| (0..=255).map(move |v| [v, alpha]));
        let pairs: Vec<[u32; 2]> = pairs.collect();
        let samples: Vec<u8> = pairs.as_flattened().iter().map(|v| *v as u8).collect();
        row(&path, ColorType::GrayscaleAlpha, BitDepth::Eight, &samples);
        let made = decode(cpu(), &path, white).1;
        for ([v, alpha], pixel) in pairs.iter().zip(made.as_chunks::<3>().0) {
            let nearest = (f64::from(v * alpha + 255 * (255 - alpha)) / 255.0).round() as u8;
            assert_eq!(*pixel, [nearest; 3], "{v} with alpha {alpha}");
        }
    }
    // An opaque image stays.
    row(&path, ColorType::Rgb, BitDepth::Eight, &[1, 2, 3]);
    assert_eq!(decode(cpu(), &path, white).1, [1, 2, 3]);
}

/// An upright image has the pixels of the stored one at other places, in every format, whoever
/// decodes it.
#[test]
fn stored_rows_stay_where_they_are() {
    let mut files: Vec<_> =
        (2..=8).map(|turn| (turn, repository(format!("tests/golden/jpeg/exif{turn}.jpg")))).collect();
    files.push((6, repository("tests/golden/jpeg/progressive-exif6.jpg")));
    files.push((6, repository("loader/tests/images").join("turned.webp")));
    for &device in devices() {
        for &(turn, ref path) in &files {
            let (upright, applied) = decode(device, path, PhotoOptions::default());
            let stored_rule = PhotoOptions::default().with_orientation(OrientationRule::Stored);
            let (size, stored) = decode(device, path, stored_rule);
            let turned = if turn >= 5 { Size::new(size.width, size.height) } else { size };
            assert_eq!(turned, upright, "{}", path.display());
            let [height, width] = size.sides().map(|side| side as usize);
            let columns = upright.width as usize;
            let expected: Vec<u8> = (0..height * width)
                .flat_map(|i| {
                    let (y, x) = (i / columns, i % columns);
                    // Where the pixel of the upright image is stored, as EXIF defines it.
                    let (y, x) = match turn {
                        2 => (y, width - 1 - x),
                        3 => (height - 1 - y, width - 1 - x),
                        4 => (height - 1 - y, x),
                        5 => (x, y),
                        6 => (height - 1 - x, y),
                        7 => (height - 1 - x, width - 1 - y),
                        _ => (x, width - 1 - y),
                    };
                    let at = 3 * (y * width + x);
                    [stored[at], stored[at + 1], stored[at + 2]]
                })
                .collect();
            assert!(expected == applied, "{}", path.display());
            assert!(stored != applied, "{}", path.display());
        }
    }
}

/// A decoder may be content with what there is, or find another fault in it.
#[test]
fn a_webp_that_breaks_off_is_truncated() {
    for name in ["lossy.webp", "lossless.webp", "alpha.webp"] {
        let whole = std::fs::read(repository("loader/tests/images").join(name)).expect("a file");
        let bytes = whole.clone();
        // From the end of its signature on it is known to be one.
        let source = Source::indexed(whole.len() as u64 - 11, move |index| {
            let part = bytes[..index as usize + 12].to_vec();
            Sample::new("part", (), move |sink| decode_photo(&part, sink))
        });
        for (item, end) in Loader::new(cpu(), source, options(1, 2, UploadMode::Off)).expect("a loader").zip(12..) {
            match item {
                Ok(_) => assert_eq!(end, whole.len(), "{name}"),
                Err(Error::Sample { cause, .. }) if end < whole.len() => {
                    let truncated = matches!(cause.downcast_ref(), Some(SampleError::Truncated { format: "WebP" }));
                    assert!(truncated, "{name} until {end}: {cause}");
                }
                Err(error) => panic!("{name} until {end}: {error}"),
            }
        }
    }
}
