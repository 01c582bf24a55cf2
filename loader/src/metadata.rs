//! The orientation of a PNG and of a WebP, where Pillow looks for it.

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use thalweg_jpeg::orientation;

/// The most bytes of a compressed text. Pillow refuses larger ones.
const MAX_TEXT: usize = 1 << 20;

/// Returns the orientation of a PNG, 1 to 8. It is in a chunk `eXIf`, which may stand anywhere, or
/// in a text that ImageMagick makes of it, or else in XMP.
pub(crate) fn of_png(file: &[u8]) -> u32 {
    let (mut exif, mut raw, mut xmp) = (None, None, None);
    for (kind, content) in png_chunks(file) {
        if kind == b"eXIf" {
            exif = Some(content.to_vec());
            continue;
        }
        let Some((key, text)) = text(kind, content) else { continue };
        match key {
            b"Raw profile type exif" => raw = Some(text),
            b"XML:com.adobe.xmp" => xmp = Some(text),
            _ => {}
        }
    }
    let exif = exif.or_else(|| raw.as_deref().and_then(from_hex));
    orientation::of(exif.as_deref(), xmp.as_deref())
}

/// The chunks of a PNG: the kind and the content of each.
fn png_chunks(file: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    let mut rest = file.get(8..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (kind, after) = after.split_first_chunk::<4>()?;
        let (content, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        rest = after.get(4..)?;
        Some((kind, content))
    })
}

/// The key and the text of a chunk that has some.
fn text<'a>(kind: &[u8; 4], content: &'a [u8]) -> Option<(&'a [u8], Vec<u8>)> {
    let split = |bytes: &'a [u8]| -> Option<(&'a [u8], &'a [u8])> {
        let end = bytes.iter().position(|byte| *byte == 0)?;
        Some((&bytes[..end], &bytes[end + 1..]))
    };
    let inflate = |bytes: &[u8]| decompress_to_vec_zlib_with_limit(bytes, MAX_TEXT).ok();
    let (key, rest) = split(content)?;
    let text = match kind {
        b"tEXt" => rest.to_vec(),
        b"zTXt" => inflate(rest.strip_prefix(&[0])?)?,
        b"iTXt" => {
            let (&[compressed, 0], rest) = rest.split_first_chunk::<2>()? else { return None };
            let (_language, rest) = split(rest)?;
            let (_translated, rest) = split(rest)?;
            if compressed == 0 { rest.to_vec() } else { inflate(rest)? }
        }
        _ => return None,
    };
    Some((key, text))
}

/// Reads what ImageMagick writes: an empty line, a name, a length, and then digits in lines.
fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let lines = text.split(|byte| *byte == b'\n').skip(3);
    let digits: Option<Vec<u8>> = lines
        .flatten()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| (*byte as char).to_digit(16).map(|digit| digit as u8))
        .collect();
    Some(digits?.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Returns the orientation of a WebP, 1 to 8. It is in a chunk that the header of the file
/// announces.
pub(crate) fn of_webp(file: &[u8]) -> u32 {
    const EXIF: u8 = 8;
    const XMP: u8 = 4;
    let (mut flags, mut exif, mut xmp) = (0, None, None);
    let mut rest = file.get(12..).unwrap_or_default();
    while let Some((kind, after)) = rest.split_first_chunk::<4>()
        && let Some((length, after)) = after.split_first_chunk::<4>()
        && let length = u32::from_le_bytes(*length) as usize
        && let Some(content) = after.get(..length)
    {
        match kind {
            b"VP8X" => flags = content.first().copied().unwrap_or(0),
            b"EXIF" => exif = exif.or(Some(content)),
            b"XMP " => xmp = xmp.or(Some(content)),
            _ => {}
        }
        rest = after.get(length.next_multiple_of(2)..).unwrap_or_default();
    }
    orientation::of(exif.filter(|_| flags & EXIF != 0), xmp.filter(|_| flags & XMP != 0))
}

#[cfg(test)]
mod tests {
    use super::{of_png, of_webp};

    /// A TIFF structure with this orientation, as a number of 16 bits.
    fn tiff(orientation: u8) -> Vec<u8> {
        [&b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0"[..], &[orientation, 0, 0, 0, 0, 0, 0]].concat()
    }

    fn png(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        for (kind, content) in chunks {
            file.extend((content.len() as u32).to_be_bytes());
            file.extend(*kind);
            file.extend(content);
            file.extend([0; 4]);
        }
        file
    }

    #[test]
    fn png_says_it_in_four_ways() {
        let xmp = |text: &str| [&b"XML:com.adobe.xmp\0\0\0\0\0"[..], text.as_bytes()].concat();
        let attribute = xmp("<x tiff:Orientation=\"6\" y=\"\"/>");
        let element = xmp("<tiff:Orientation>8</tiff:Orientation>");
        let hex: String = tiff(5).iter().map(|byte| format!("{byte:02x}")).collect();
        let raw = format!("\nexif\n      32\n{}\n{}\n", &hex[..20], &hex[20..]);
        let text = [b"Raw profile type exif\0", raw.as_bytes()].concat();
        let zlib = miniz_oxide::deflate::compress_to_vec_zlib(raw.as_bytes(), 6);
        let compressed = [b"Raw profile type exif\0\0", &zlib[..]].concat();
        let with_name = [b"Exif\0\0", &tiff(7)[..]].concat();
        type Case<'c> = (&'c [(&'c [u8; 4], Vec<u8>)], u32);
        let cases: [Case<'_>; 9] = [
            (&[(b"IDAT", vec![])], 1),
            (&[(b"IDAT", vec![]), (b"eXIf", tiff(3))], 3),
            (&[(b"eXIf", with_name)], 7),
            (&[(b"tEXt", text.clone())], 5),
            (&[(b"zTXt", compressed)], 5),
            (&[(b"iTXt", attribute.clone())], 6),
            (&[(b"iTXt", element)], 8),
            (&[(b"eXIf", tiff(2)), (b"tEXt", text), (b"iTXt", attribute.clone())], 2),
            // What EXIF says counts, even if it is no orientation.
            (&[(b"eXIf", tiff(9)), (b"iTXt", attribute)], 1),
        ];
        for (i, (chunks, expected)) in cases.into_iter().enumerate() {
            assert_eq!(of_png(&png(chunks)), expected, "case {i}");
        }
    }

    #[test]
    fn webp_says_it_with_and_without_a_name() {
        let file = |flags: u8, chunks: &[(&[u8; 4], Vec<u8>)]| {
            let mut file = b"RIFF\0\0\0\0WEBP".to_vec();
            let header = (b"VP8X", [&[flags][..], &[0; 9]].concat());
            for (kind, content) in [header].iter().chain(chunks) {
                file.extend(*kind);
                file.extend((content.len() as u32).to_le_bytes());
                file.extend(content);
                file.resize(file.len().next_multiple_of(2), 0);
            }
            file
        };
        let with_name = [b"Exif\0\0", &tiff(7)[..]].concat();
        let xmp = b"<x tiff:Orientation=\"4\"/>".to_vec();
        assert_eq!(of_webp(&file(8, &[(b"VP8 ", vec![1, 2, 3]), (b"EXIF", tiff(6))])), 6);
        assert_eq!(of_webp(&file(8, &[(b"EXIF", with_name.clone())])), 7);
        assert_eq!(of_webp(&file(0, &[(b"EXIF", with_name.clone())])), 1, "the header announces none");
        assert_eq!(of_webp(&file(4, &[(b"XMP ", xmp.clone())])), 4);
        assert_eq!(of_webp(&file(12, &[(b"XMP ", xmp), (b"EXIF", with_name)])), 7);
    }
}
