//! Images that need no decoder.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;

use crate::DecodeError;
use crate::error::SampleError;
use crate::image_sink::ImageSink;
use crate::staging;

/// Reads a binary PPM (`P6`, 8 bits). It is a header of text and the pixels, which go straight from
/// the file into page-locked memory.
///
/// # Errors
/// The file cannot be read, is not such a PPM, or ends before its pixels do.
pub fn read_ppm(path: &Path, sink: &mut ImageSink<'_>) -> Result<(), DecodeError> {
    let (mut file, height, width) = open_ppm(path)?;
    // Without this check, a broken header could ask for memory that no pixels fill. The file may be
    // a pipe, which has no position, so it counts from the beginning and not from the pixels.
    let failed = SampleError::file("read its pixels");
    staging::reaches(file.get_ref(), 0, ImageSink::bytes(height, width)?).map_err(failed)?;
    // This takes what is buffered, and reads the rest from the file without another copy.
    Ok(file.read_exact(sink.rgb(height, width)?).map_err(failed)?)
}

/// Reads the header of a binary PPM, and leaves its pixels to the upload. They go from the file to
/// the device in pieces, and the batch has none on the host: see [`ImageSink::rgb_in_file`].
///
/// # Errors
/// The file cannot be read, is not such a PPM, or ends before its pixels do.
pub fn upload_ppm(path: &Path, sink: &mut ImageSink<'_>) -> Result<(), DecodeError> {
    let (mut file, height, width) = open_ppm(path)?;
    let at = file.stream_position().map_err(SampleError::file("read it"))?;
    sink.rgb_in_file(height, width, file.into_inner(), at)
}

/// Opens a PPM. Returns the file, positioned at its pixels, and their height and width.
fn open_ppm(path: &Path) -> Result<(BufReader<File>, u32, u32), DecodeError> {
    let mut file = BufReader::with_capacity(4096, File::open(path).map_err(SampleError::file("open it"))?);
    let (height, width) = ppm_header(&mut file)?;
    Ok((file, height, width))
}

/// Reads height and width, and leaves the reader at the pixels.
fn ppm_header(file: &mut impl BufRead) -> Result<(u32, u32), DecodeError> {
    let broken = || SampleError::Format("not a binary PPM of 8 bits: expected `P6`, width, height and 255".into());
    let mut words = Vec::new();
    while words.len() < 4 {
        let mut word = Vec::new();
        loop {
            let mut byte = [0];
            file.read_exact(&mut byte).map_err(|_| broken())?;
            match byte[0] {
                b'#' => drop(file.skip_until(b'\n')?), // a comment
                b if b.is_ascii_whitespace() => {
                    if !word.is_empty() {
                        break;
                    }
                }
                _ if word.len() == 10 => return Err(broken().into()),
                b => word.push(b),
            }
        }
        words.push(word);
    }
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u32>().ok();
    match (&words[0][..], number(&words[1]), number(&words[2]), &words[3][..]) {
        (b"P6", Some(width), Some(height), b"255") => Ok((height, width)),
        _ => Err(broken().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::ppm_header;

    #[test]
    fn headers() {
        let mut text = &b"P6\n# a comment\n3  2\n255\nabc"[..];
        assert_eq!(ppm_header(&mut text).unwrap(), (2, 3));
        assert_eq!(text, b"abc");
        for wrong in ["", "P6", "P5 1 1 255 ", "P6 1 1 65535 ", "P6 -1 1 255 ", "P6 1 1 255", "P6 99999999999 1 255 "] {
            assert!(ppm_header(&mut wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
