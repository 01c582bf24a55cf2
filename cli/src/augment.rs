//! The subcommand `thalweg augment`.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder, RgbImage};
use thalweg::{Device, Stream, stream_tags};
use thalweg_loader::{DecodeBackend, PhotoOptions};
use thalweg_vision::Image;
use thalweg_vision::augment::{AugmentInput, Augmentation, Crop, Erased, Parameters};

use crate::args::{AugmentArgs, DecodeArg, PIXEL_LIMIT};
use crate::inputs;
use crate::output::Data::{F32, F64, I32};
use crate::output::{self, say};
use crate::photos::Photos;

stream_tags!(Work);

/// The pixels between two pictures of a contact sheet.
const GAP: u32 = 4;
/// The most pixels of a contact sheet.
const MOST: u64 = 1 << 28;

/// Runs the subcommand.
pub(crate) fn run(args: &AugmentArgs) -> Result<ExitCode, String> {
    let single = args.out.extension().is_some_and(|ending| ending == "safetensors");
    if single && args.images.len() > 1 {
        return Err(format!(
            "--out {}: one result is of one image, and there are {}; a name that ends with .png takes them all",
            args.out.display(),
            args.images.len()
        ));
    }
    let place = args.out.canonicalize().ok();
    if let Some(image) = args.images.iter().find(|image| place.is_some() && image.canonicalize().ok() == place) {
        return Err(format!("--out {}: it would replace the input {}", args.out.display(), image.display()));
    }
    let augmentation = options(args)?;
    let (device, note) = args.device.open()?;
    if let Some(note) = note {
        say(format_args!("thalweg: {note}"));
    }
    output::finish_writing_on_interrupt()?;
    output::can_write(&args.out)?;
    let images = read(args, device)?;
    if single {
        write_one(args, &augmentation, device, &images[0])?;
    } else {
        write_sheet(args, augmentation, device, &images)?;
    }
    output::print(&format!("{}\n", args.out.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the options of the augmentation.
fn options(args: &AugmentArgs) -> Result<Augmentation, String> {
    let augmentation = match &args.options {
        None => Augmentation::default(),
        Some(path) => {
            let wrong = |what: String| format!("--options {}: {what}", path.display());
            let text = fs::read_to_string(path).map_err(|e| wrong(format!("cannot read it: {e}")))?;
            serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?
        }
    };
    // The defaults are valid, so what is wrong comes from the file.
    let file = args.options.as_deref().unwrap_or(Path::new("")).display();
    augmentation.validate().map_err(|e| format!("--options {file}: {e}"))?;
    Ok(augmentation)
}

/// Decodes all images. One that cannot be decoded is an error.
fn read(args: &AugmentArgs, device: Device) -> Result<Vec<Image>, String> {
    let mut photos = Photos::open(
        device,
        &args.images,
        &DecodeArg { place: DecodeBackend::Host, max_pixels: PIXEL_LIMIT, photo: PhotoOptions::default() },
    )?;
    let mut images = Vec::new();
    while let Some(chunk) = photos.next_chunk(3)? {
        if let Some((index, error)) = chunk.failures.into_iter().next() {
            return Err(format!("{}: {error}", inputs::name(&args.images[index]).display()));
        }
        images.extend(chunk.pixels.into_images().map_err(|e| e.to_string())?);
    }
    Ok(images)
}

/// Returns the results of an image in some epochs, and what happened to it in each: numbers
/// [epochs, 3, N, N].
fn results(
    args: &AugmentArgs,
    augmentation: &Augmentation,
    stream: &Stream<Work>,
    image: &Image,
    all: &[Parameters],
) -> thalweg::Result<Vec<f32>> {
    let (height, width) = (image.height(), image.width());
    let samples: Vec<_> = all.iter().map(|&parameters| AugmentInput { start: 0, height, width, parameters }).collect();
    let rgb = stream.upload_blocking(image.rgb())?;
    let mut augmenter = augmentation.augmenter(stream, args.size, samples.len())?;
    augmenter.prepare(stream, &samples)?;
    let mut out = stream.alloc::<f32>(3 * all.len() * (args.size * args.size) as usize)?;
    augmenter.launch(stream, &rgb, &mut out)?;
    stream.read_blocking(&out)
}

fn write_one(args: &AugmentArgs, augmentation: &Augmentation, device: Device, image: &Image) -> Result<(), String> {
    let stream = device.stream::<Work>().map_err(|e| e.to_string())?;
    let drawn = augmentation.parameters(args.seed, args.epoch, args.index, image.width(), image.height());
    let p = drawn.map_err(|e| e.to_string())?;
    let result = results(args, augmentation, &stream, image, &[p]).map_err(|e| e.to_string())?;
    let Crop { top, left, height, width } = p.crop;
    let crop = [top, left, height, width].map(|n| n as i32);
    let factors = [f64::from(p.flip), p.brightness, p.contrast, p.saturation, f64::from(p.grayscale), p.sigma];
    let size = args.size as usize;
    let none = Erased { top: 0.0, left: 0.0, height: 0.0, width: 0.0 };
    let Erased { top, left, height, width } = p.erased.unwrap_or(none);
    let changes = [f64::from(p.flip_vertical), p.angle, p.hue, top, left, height, width, p.mix];
    let mut tensors = vec![
        ("crop", I32(&crop), vec![4]),
        ("factors", F64(&factors), vec![6]),
        ("image", F32(&result), vec![3, size, size]),
    ];
    let Augmentation { flip_vertical, rotation, hue, erasing, mixup, .. } = augmentation;
    if [*flip_vertical, *rotation, *hue] != [0.0; 3] || erasing.is_some() || mixup.is_some() {
        tensors.push(("changes", F64(&changes), vec![8]));
    }
    let about = [
        ("format", "thalweg-augment".to_owned()),
        ("thalweg", env!("CARGO_PKG_VERSION").to_owned()),
        ("device", format!("{device} ({})", device.name())),
        ("seed", args.seed.to_string()),
        ("epoch", args.epoch.to_string()),
        ("index", args.index.to_string()),
    ];
    let metadata = about.map(|(key, value)| (key.to_owned(), value)).into();
    output::write((&args.out, &tensors, &metadata), None)
}

fn write_sheet(args: &AugmentArgs, augmentation: Augmentation, device: Device, images: &[Image]) -> Result<(), String> {
    let stream = device.stream::<Work>().map_err(|e| e.to_string())?;
    let augmentation = augmentation.with_normalize(None);
    let pitch = args.size + GAP;
    let (columns, rows) = (args.count + 1, images.len() as u32);
    let pixels = u64::from(columns) * u64::from(rows) * u64::from(pitch) * u64::from(pitch);
    if pixels > MOST {
        return Err(format!(
            "the contact sheet of {rows} x {columns} pictures of {0} x {0} pixels is too large; use a smaller --size or fewer images",
            args.size
        ));
    }
    let mut sheet = RgbImage::from_pixel(columns * pitch + GAP, rows * pitch + GAP, image::Rgb([24, 25, 28]));
    for (row, image) in (0..).zip(images) {
        let (width, height) = (image.width(), image.height());
        let drawn = (0..args.count).map(|i| {
            let (epoch, index) = (args.epoch.wrapping_add(i), args.index.wrapping_add(u64::from(row)));
            augmentation.parameters(args.seed, epoch, index, width, height)
        });
        let all: thalweg::Result<Vec<_>> =
            std::iter::once(Ok(Parameters::identity(width, height))).chain(drawn).collect();
        let all = all.map_err(|e| e.to_string())?;
        let numbers = results(args, &augmentation, &stream, image, &all).map_err(|e| e.to_string())?;
        let plane = (args.size * args.size) as usize;
        for (column, picture) in (0..).zip(numbers.chunks_exact(3 * plane)) {
            for i in 0..plane {
                let color = [0, 1, 2].map(|c| (255.0 * picture[c * plane + i]).round() as u8);
                let (y, x) = (i as u32 / args.size, i as u32 % args.size);
                sheet.put_pixel(GAP + column * pitch + x, GAP + row * pitch + y, image::Rgb(color));
            }
        }
    }
    let mut bytes = Vec::new();
    PngEncoder::new_with_quality(&mut bytes, CompressionType::Fast, FilterType::Adaptive)
        .write_image(sheet.as_raw(), sheet.width(), sheet.height(), ExtendedColorType::Rgb8)
        .map_err(|e| format!("cannot encode the contact sheet: {e}"))?;
    output::write_bytes(&args.out, &bytes)
}
