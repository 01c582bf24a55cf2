//! PNG, JPEG and WebP files to upright 8-bit RGB.
//!
//! - The content decides the format, never the extension.
//! - Gray is replicated and a palette is looked up. Alpha is dropped, not blended, so the color
//!   under transparent pixels counts.
//! - 16-bit samples become `(v * 255 + 32767) / 65535` in integers, the nearest 8-bit value.
//! - `PhotoOptions` has other rules for alpha, for samples of 16 bits and for orientations.
//! - A JPEG has the pixels of libjpeg-turbo, and CMYK and YCCK become RGB as Pillow converts them.
//!   ICC profiles, gamma and chromaticities are ignored: samples are taken as sRGB.
//! - The orientation of EXIF, or else that of XMP, is applied, wherever Pillow finds it in a JPEG,
//!   a PNG or a WebP.
//! - Of a WebP that moves, the first frame counts.
//! - A broken file, and one that stops before its end marker, is an error, even if a viewer would
//!   show a part of it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use image::codecs::{png::PngDecoder, webp::WebPDecoder};
use image::{ColorType, ExtendedColorType, ImageDecoder, ImageError, ImageFormat, Limits};
use thalweg::Size;
use thalweg_jpeg::clear_orientation;
use thalweg_jpeg::orientation::place;

use crate::error::SampleError;
use crate::image_sink::{ImageSink, Pixels, zeros};
use crate::scratch::Scratch;
use crate::{AlphaRule, DecodeError, DepthRule, LoaderOptions, OrientationRule, metadata};

/// The largest height and width.
const MAX_SIDE: u32 = 16384;

/// The most bytes to read of a file. No image of that size needs more: 16384 x 16384 pixels of 8
/// bytes are half of it, and the rest is for metadata.
pub(crate) const MAX_FILE: u64 = 4 << 30;

/// The most memory that the PNG decoder may allocate beside the image: rows, a palette, a color
/// profile.
const MAX_SCRATCH: u64 = 64 << 20;

/// The bytes of its own that the WebP decoder has for each pixel: a frame of a file that moves has
/// 4, and the planes of a lossy one have 1.5.
const WEBP_BYTES: usize = 6;

/// Reads and decodes one photograph to upright 8-bit RGB: a PNG, a JPEG or a WebP, whatever its
/// extension, of 1 to 16384 pixels a side.
///
/// Gray is replicated, alpha is dropped, 16-bit samples are rounded to 8 bits, and the EXIF
/// orientation is applied, unless [`PhotoOptions`](crate::PhotoOptions) say otherwise. Color
/// profiles and gamma are ignored. A JPEG, and any image that is
/// upright 8-bit RGB already, is decoded straight into the sink. With the feature `jpeg-device`,
/// the device may decode JPEG files, to the same bits: see
/// [`LoaderOptions::decode`](crate::LoaderOptions).
///
/// # Errors
/// The file cannot be read, is not a PNG, a JPEG or a WebP, is broken, or ends early (even if a
/// viewer would show the part that is there). Or it has more pixels, or decoding it needs more
/// memory, than [`LoaderOptions`](crate::LoaderOptions) allow.
pub fn read_photo(path: &Path, sink: &mut ImageSink<'_>) -> Result<(), DecodeError> {
    let mut file = File::open(path).map_err(SampleError::file("open it"))?;
    if file.metadata().is_ok_and(|data| data.is_dir()) {
        return Err(SampleError::Format("this is a folder; expected a PNG, JPEG or WebP file".into()).into());
    }
    let mut bytes = Vec::new();
    // The first bytes decide the format, so that a device or a film is not read into memory.
    let failed = SampleError::file("read it");
    (&mut file).take(64).read_to_end(&mut bytes).map_err(failed)?;
    let format = format(&bytes)?;
    #[cfg(feature = "jpeg-device")]
    if format == ImageFormat::Jpeg
        && let Some(bytes) = sink.jpeg_in_file(&file)?
    {
        // Without bytes, the sink keeps the file for the device.
        return if bytes.is_empty() { Ok(()) } else { decode(format, &bytes, sink) };
    }
    file.take(MAX_FILE).read_to_end(&mut bytes).map_err(failed)?;
    decode(format, &bytes, sink)
}

/// Decodes one photograph from memory, as [`read_photo`] does from a file.
///
/// # Errors
/// The bytes are not a PNG, a JPEG or a WebP, are broken, or end early.
pub fn decode_photo(bytes: &[u8], sink: &mut ImageSink<'_>) -> Result<(), DecodeError> {
    decode(format(bytes)?, bytes, sink)
}

/// Decodes one photograph from memory to upright 8-bit RGB, as [`decode_photo`] does with the
/// default [`LoaderOptions`](crate::LoaderOptions). Returns the size and the pixels, [H, W, 3].
///
/// ```
/// let error = thalweg_loader::decode_photo_to_vec(b"no photograph").unwrap_err();
/// assert!(error.to_string().contains("expected PNG, JPEG or WebP"));
/// ```
///
/// # Errors
/// The errors of [`decode_photo`].
pub fn decode_photo_to_vec(bytes: &[u8]) -> Result<(Size, Vec<u8>), DecodeError> {
    let scratch = Scratch::new(&LoaderOptions::default());
    let mut sink = ImageSink::new(&scratch, true, |bytes| zeros(bytes).map(Pixels::Pageable));
    decode_photo(bytes, &mut sink)?;
    match sink.into_image() {
        Some((size, Pixels::Pageable(pixels))) => Ok((size, pixels)),
        _ => Err(SampleError::NoImage.into()),
    }
}

fn format(bytes: &[u8]) -> Result<ImageFormat, SampleError> {
    let found = match image::guess_format(bytes) {
        Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) => return Ok(format),
        Ok(other) => format!("this is a {} file", other.extensions_str().join("/").to_uppercase()),
        Err(_) if bytes.is_empty() => "the file is empty".to_owned(),
        Err(_) => "not an image this program reads".to_owned(),
    };
    Err(SampleError::Format(format!("{found}; expected PNG, JPEG or WebP")))
}

fn decode(format: ImageFormat, bytes: &[u8], sink: &mut ImageSink<'_>) -> Result<(), DecodeError> {
    let truncated = |format| Err(SampleError::Truncated { format }.into());
    match format {
        ImageFormat::Png if !png_is_whole(bytes) => truncated("PNG"),
        ImageFormat::Png => {
            let mut limits = Limits::no_limits();
            limits.max_alloc = Some(MAX_SCRATCH);
            let decoder = PngDecoder::with_limits(Cursor::new(bytes), limits).map_err(broken)?;
            upright(decoder, metadata::of_png(bytes), 0, sink)
        }
        ImageFormat::WebP if !webp_is_whole(bytes) => truncated("WebP"),
        ImageFormat::WebP => {
            let decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(broken)?;
            upright(decoder, metadata::of_webp(bytes), WEBP_BYTES, sink)
        }
        _ => jpeg(bytes, sink),
    }
}

fn broken(error: ImageError) -> SampleError {
    SampleError::Broken(error.to_string().trim_end().to_owned())
}

/// Decodes a JPEG into the sink.
fn jpeg(bytes: &[u8], sink: &mut ImageSink<'_>) -> Result<(), DecodeError> {
    let mut bytes = Cow::Borrowed(bytes);
    let scratch = sink.scratch;
    if scratch.photo.orientation == OrientationRule::Stored {
        clear_orientation(bytes.to_mut());
    }
    let outline = thalweg_jpeg::outline(&bytes).map_err(SampleError::from)?;
    scratch.allow(outline.height, outline.width)?;
    let pixels = sink.rgb(outline.height, outline.width)?;
    let _share = scratch.take(outline.scratch)?;
    scratch.jpeg(|decoder| decoder.decode(&bytes, pixels)).map_err(SampleError::from)?;
    sink.host_jpeg = true;
    Ok(())
}

/// Decodes to RGB and applies the orientation. For each pixel the decoder has so many bytes of its
/// own.
fn upright(
    decoder: impl ImageDecoder,
    orientation: u32,
    own: usize,
    sink: &mut ImageSink<'_>,
) -> Result<(), DecodeError> {
    let (width, height) = decoder.dimensions();
    let allowed = 1..=MAX_SIDE;
    if !allowed.contains(&width) || !allowed.contains(&height) {
        return Err(SampleError::Side { height, width, most: MAX_SIDE }.into());
    }
    let scratch = sink.scratch;
    scratch.allow(height, width)?;
    let rules = scratch.photo;
    let orientation = if rules.orientation == OrientationRule::Stored { 1 } else { orientation };
    let (color, stored) = (decoder.color_type(), decoder.original_color_type());
    let [rows, columns] = if orientation >= 5 { [width, height] } else { [height, width] };
    // First of all: a pinned budget refuses an image before the decoder takes memory for it.
    let pixels = sink.rgb(rows, columns)?;
    let size = [height, width].map(|side| side as usize);
    let own = own * size[0] * size[1];
    if color == ColorType::Rgb8 && orientation <= 1 {
        let _share = scratch.take(own)?;
        decoder.read_image(pixels).map_err(broken)?;
        return Ok(());
    }
    // The cast keeps the value: a side is at most 2^14, and a pixel has at most 8 bytes.
    let bytes = decoder.total_bytes() as usize;
    let _share = scratch.take(own + bytes)?;
    let mut samples = zeros(bytes)?;
    decoder.read_image(&mut samples).map_err(broken)?;
    let narrow = |pair: [u8; 2]| {
        let v = u32::from(u16::from_ne_bytes(pair));
        match (rules.depth, stored) {
            (DepthRule::Rounded, _) => ((v * 255 + 32767) / 65535) as u8,
            (DepthRule::Pillow, ExtendedColorType::L16) => v.min(255) as u8,
            (DepthRule::Pillow, _) => (v >> 8) as u8,
        }
    };
    let (gray, step, is_wide) = match color {
        ColorType::L8 => (true, 1, false),
        ColorType::La8 => (true, 2, false),
        ColorType::Rgb8 => (false, 3, false),
        ColorType::Rgba8 => (false, 4, false),
        ColorType::L16 => (true, 1, true),
        ColorType::La16 => (true, 2, true),
        ColorType::Rgb16 => (false, 3, true),
        ColorType::Rgba16 => (false, 4, true),
        other => {
            let found = format!("pixels of type {other:?}; expected gray or RGB of 8 or 16 bits");
            return Err(SampleError::Format(found).into());
        }
    };
    let to = pixels.as_chunks_mut::<3>().0;
    for y in 0..size[0] {
        for x in 0..size[1] {
            let first = step * (y * size[1] + x);
            let sample = |at: usize| match is_wide {
                false => samples[at],
                true => narrow([samples[2 * at], samples[2 * at + 1]]),
            };
            let mut rgb = [0, 1, 2].map(|i| sample(if gray { first } else { first + i }));
            if rules.alpha == AlphaRule::White && matches!(step, 2 | 4) {
                rgb = rgb.map(|v| over_white(v, sample(first + step - 1)));
            }
            to[place(orientation, size, y, x)] = rgb;
        }
    }
    Ok(())
}

/// Blends a sample over white.
fn over_white(v: u8, alpha: u8) -> u8 {
    let (v, alpha) = (u32::from(v), u32::from(alpha));
    let sum = v * alpha + 255 * (255 - alpha) + 128;
    (((sum >> 8) + sum) >> 8) as u8
}

/// Whether the chunks of a PNG reach `IEND`. The decoder does not check this: it stops once it has
/// all pixels.
fn png_is_whole(bytes: &[u8]) -> bool {
    let mut rest = bytes.get(8..).unwrap_or_default();
    while let Some((head, body)) = rest.split_at_checked(8) {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(next) = body.get(length.saturating_add(4)..) else { return false };
        if &head[4..] == b"IEND" {
            return true;
        }
        rest = next;
    }
    false
}

/// Whether the file is as long as its header says.
fn webp_is_whole(bytes: &[u8]) -> bool {
    let said = bytes.get(4..8).map(|b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    said.is_some_and(|said| bytes.len() as u64 >= said + 8)
}
