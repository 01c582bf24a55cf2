//! PNG, JPEG and WebP files to upright 8-bit RGB.
//!
//! - The content decides the format, never the extension.
//! - Gray is replicated and a palette is looked up. Alpha is dropped, not blended, so the colour
//!   under transparent pixels counts.
//! - 16-bit samples become `(v * 255 + 32767) / 65535` in integers, the nearest 8-bit value.
//! - CMYK and YCCK become RGB by the JPEG decoder's own formula. ICC profiles, gamma and
//!   chromaticities are ignored: samples are taken as sRGB.
//! - The EXIF orientation (of a JPEG, or of the chunk `eXIf` of a PNG or `EXIF` of a WebP) is
//!   applied.
//! - Of a WebP that moves, the first frame counts.
//! - A file that stops before its end marker is an error, even if a viewer would show the part that
//!   is there.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use image::codecs::{jpeg::JpegDecoder, png::PngDecoder, webp::WebPDecoder};
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageError, ImageFormat, Limits, RgbImage};

use crate::DecodeError;
use crate::canvas::{Canvas, room, zeros};

/// The largest height and width.
const MAX_SIDE: u32 = 16384;

/// The most bytes to read of a file. No image of that size needs more: 16384 x 16384 pixels of 8
/// bytes are half of it, and the rest is for metadata.
pub(crate) const MAX_FILE: u64 = 4 << 30;

/// The most memory that the PNG decoder may allocate beside the image: rows, a palette, a colour
/// profile.
const MAX_SCRATCH: u64 = 64 << 20;

/// Reads and decodes one photograph to upright 8-bit RGB: a PNG, a JPEG or a WebP, whatever its
/// extension, of 1 to 16384 pixels a side.
///
/// Gray is replicated, alpha is dropped, 16-bit samples are rounded to 8 bits, and the EXIF
/// orientation is applied. Colour profiles and gamma are ignored. An image that is upright 8-bit
/// RGB already is decoded straight into the canvas. With the feature `jpeg-device`, the device may
/// decode JPEG files: see [`Options::decode`](crate::Options).
///
/// # Errors
/// The file cannot be read, is not a PNG, a JPEG or a WebP, is broken, or ends early (even if a viewer
/// would show the part that is there).
pub fn read_photo(path: &Path, canvas: &mut Canvas<'_>) -> Result<(), DecodeError> {
    let mut file = File::open(path).map_err(|e| format!("cannot open it: {e}"))?;
    if file.metadata().is_ok_and(|data| data.is_dir()) {
        return Err("this is a folder; expected a PNG, JPEG or WebP file".into());
    }
    let mut bytes = Vec::new();
    // The first bytes decide the format, so that a device or a film is not read into memory.
    let failed = |e| format!("cannot read it: {e}");
    (&mut file).take(64).read_to_end(&mut bytes).map_err(failed)?;
    let format = format(&bytes)?;
    #[cfg(feature = "jpeg-device")]
    if format == ImageFormat::Jpeg
        && let Some(bytes) = canvas.jpeg_in_file(&file)?
    {
        // Without bytes, the canvas keeps the file for the device.
        return if bytes.is_empty() { Ok(()) } else { decode(format, &bytes, canvas) };
    }
    file.take(MAX_FILE).read_to_end(&mut bytes).map_err(failed)?;
    decode(format, &bytes, canvas)
}

/// Decodes one photograph from memory, as [`read_photo`] does from a file.
///
/// # Errors
/// The bytes are not a PNG, a JPEG or a WebP, are broken, or end early.
pub fn decode_photo(bytes: &[u8], canvas: &mut Canvas<'_>) -> Result<(), DecodeError> {
    decode(format(bytes)?, bytes, canvas)
}

fn format(bytes: &[u8]) -> Result<ImageFormat, DecodeError> {
    if bytes.is_empty() {
        return Err("the file is empty; expected a PNG, JPEG or WebP image".into());
    }
    match image::guess_format(bytes) {
        Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) => Ok(format),
        Ok(other) => {
            let name = other.extensions_str().join("/").to_uppercase();
            Err(format!("this is a {name} file; expected PNG, JPEG or WebP").into())
        }
        Err(_) => Err("not an image this program reads; expected PNG, JPEG or WebP".into()),
    }
}

fn decode(format: ImageFormat, bytes: &[u8], canvas: &mut Canvas<'_>) -> Result<(), DecodeError> {
    let (name, whole) = match format {
        ImageFormat::Png => ("PNG", png_is_whole(bytes)),
        ImageFormat::WebP => ("WebP", webp_is_whole(bytes)),
        _ => ("JPEG", jpeg_is_whole(bytes)),
    };
    if !whole {
        return Err(format!("truncated: the file ends before the {name} image does").into());
    }
    match format {
        ImageFormat::Png => {
            let mut limits = Limits::no_limits();
            limits.max_alloc = Some(MAX_SCRATCH);
            upright(PngDecoder::with_limits(Cursor::new(bytes), limits).map_err(broken)?, canvas)
        }
        ImageFormat::WebP => upright(WebPDecoder::new(Cursor::new(bytes)).map_err(broken)?, canvas),
        _ => upright(JpegDecoder::new(Cursor::new(bytes)).map_err(broken)?, canvas),
    }
}

fn broken(error: ImageError) -> String {
    format!("broken image: {error}")
}

/// Decodes to RGB and applies the EXIF orientation.
fn upright(mut decoder: impl ImageDecoder, canvas: &mut Canvas<'_>) -> Result<(), DecodeError> {
    let (width, height) = decoder.dimensions();
    let allowed = 1..=MAX_SIDE;
    if !allowed.contains(&width) || !allowed.contains(&height) {
        return Err(format!("{width} x {height} pixels; expected 1 to {MAX_SIDE} a side").into());
    }
    let orientation = decoder.orientation().map_err(broken)?;
    let color = decoder.color_type();
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    let turned = matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH);
    let [rows, columns] = if turned { [width, height] } else { [height, width] };
    // First of all: a pinned budget refuses an image before the decoder takes memory for it.
    let pixels = canvas.rgb(rows, columns)?;
    if color == ColorType::Rgb8 && orientation == Orientation::NoTransforms {
        decoder.read_image(pixels).map_err(broken)?;
        return Ok(());
    }
    // The cast keeps the value: a side is at most 2^14, and a pixel has at most 8 bytes.
    let mut samples = zeros(decoder.total_bytes() as usize)?;
    decoder.read_image(&mut samples).map_err(broken)?;
    let narrow = |pair: &[u8]| {
        let v = u32::from(u16::from_ne_bytes([pair[0], pair[1]]));
        ((v * 255 + 32767) / 65535) as u8
    };
    let mut rgb = room(if color == ColorType::Rgb8 { 0 } else { pixels.len() })?;
    match color {
        ColorType::Rgb8 => rgb = samples,
        ColorType::Rgba8 => rgb.extend(samples.chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]])),
        ColorType::L8 => rgb.extend(samples.iter().flat_map(|&v| [v; 3])),
        ColorType::La8 => rgb.extend(samples.chunks_exact(2).flat_map(|p| [p[0]; 3])),
        ColorType::Rgb16 => rgb.extend(samples.chunks_exact(2).map(narrow)),
        ColorType::Rgba16 => {
            rgb.extend(samples.chunks_exact(8).flat_map(|p| [narrow(p), narrow(&p[2..]), narrow(&p[4..])]));
        }
        ColorType::L16 => rgb.extend(samples.chunks_exact(2).flat_map(|p| [narrow(p); 3])),
        ColorType::La16 => rgb.extend(samples.chunks_exact(4).flat_map(|p| [narrow(p); 3])),
        other => return Err(format!("pixels of type {other:?}; expected gray or RGB of 8 or 16 bits").into()),
    }
    let mut image = RgbImage::from_raw(width, height, rgb).map(DynamicImage::ImageRgb8).ok_or("too few pixels")?;
    image.apply_orientation(orientation);
    pixels.copy_from_slice(image.into_rgb8().as_raw());
    Ok(())
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

/// Whether the segments of a JPEG reach the end-of-image marker. The decoder does not check this:
/// it fills what is missing with gray. Within coded data a byte 0xFF is followed by 0 or a restart
/// marker, so any other marker ends the data.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(found) =
        bytes.get(at..).and_then(|rest| rest.windows(2).position(|w| w[0] == 0xFF && !matches!(w[1], 0 | 0xFF)))
    {
        let marker = bytes[at + found + 1];
        at += found + 2;
        match marker {
            0xD9 => return true,
            0x01 | 0xD0..=0xD8 => {} // without a segment
            _ => {
                let Some(length) = bytes.get(at..at + 2) else { return false };
                at += usize::from(u16::from_be_bytes([length[0], length[1]]));
            }
        }
    }
    false
}

/// Whether the file is as long as its header says.
fn webp_is_whole(bytes: &[u8]) -> bool {
    let said = bytes.get(4..8).map(|b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    said.is_some_and(|said| bytes.len() as u64 >= said + 8)
}
