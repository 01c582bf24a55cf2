//! The orientation of an image. A JPEG, a PNG and a WebP say it in the same ways.

/// Returns the orientation that EXIF and XMP give an image, 1 to 8, as Pillow reads it: that of
/// EXIF counts, and that of XMP if EXIF has none. `exif` is a TIFF structure, before which
/// `Exif\\0\\0` may stand.
#[must_use]
pub fn of(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> u32 {
    let found = exif.and_then(in_exif).or_else(|| xmp.and_then(in_xmp));
    found.filter(|orientation| (1..=8).contains(orientation)).unwrap_or(1)
}

/// Returns the place of a pixel of an image in the upright image, counted in pixels row by row. The
/// image has this height and width before it is turned.
#[inline(always)]
#[must_use]
pub fn place(orientation: u32, [height, width]: [usize; 2], y: usize, x: usize) -> usize {
    match orientation {
        2 => y * width + width - 1 - x,
        3 => (height - 1 - y) * width + width - 1 - x,
        4 => (height - 1 - y) * width + x,
        5 => x * height + y,
        6 => x * height + height - 1 - y,
        7 => (width - 1 - x) * height + height - 1 - y,
        8 => (width - 1 - x) * height + y,
        _ => y * width + x,
    }
}

/// Finds the orientation in the first directory of a TIFF structure.
fn in_exif(mut tiff: &[u8]) -> Option<u32> {
    const ORIENTATION: u16 = 0x0112;
    for _ in 0..2 {
        tiff = tiff.strip_prefix(b"Exif\0\0").unwrap_or(tiff);
    }
    let big = match tiff.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let bytes = *tiff.get(at..)?.first_chunk()?;
        Some(if big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let long = |at: usize| -> Option<u32> {
        let bytes = *tiff.get(at..)?.first_chunk()?;
        Some(if big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    };
    let first = long(4)? as usize;
    let entries = usize::from(short(first)?);
    (0..entries).map(|i| first.saturating_add(2 + 12 * i)).find_map(|at| {
        let value = at.saturating_add(8);
        match (short(at)?, short(at.saturating_add(2))?, long(at.saturating_add(4))?) {
            (ORIENTATION, 1 | 6, 1) => tiff.get(value).map(|v| u32::from(*v)),
            (ORIENTATION, 3 | 8, 1) => short(value).map(u32::from),
            (ORIENTATION, 4 | 9, 1) => long(value),
            _ => None,
        }
    })
}

/// Finds the orientation in a packet of XMP: `tiff:Orientation="6"` or `<tiff:Orientation>6<`.
fn in_xmp(packet: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"tiff:Orientation";
    packet.windows(NAME.len() + 3).filter(|window| window.starts_with(NAME)).find_map(|window| {
        match window[NAME.len()..] {
            [b'=', b'"', digit @ b'0'..=b'9'] | [b'>', digit @ b'0'..=b'9', _] => Some(u32::from(digit - b'0')),
            _ => None,
        }
    })
}
