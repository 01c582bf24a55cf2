//! Resizes images on the host, for programs that compare it with another library: `.ci/resize.py`
//! does so with Pillow.
//!
//! With the argument `-`, standard input has a case after another: a line `HEIGHT WIDTH ROWS
//! COLUMNS FILTER RESAMPLER`, and then the pixels, [height, width, 3]. The pixels of each result go
//! to standard output. FILTER and RESAMPLER have the names of this crate, such as `Bicubic` and
//! `Pil12_2`. Without it, the program resizes one image.

#[path = "../../examples/support/command_line.rs"]
mod command_line;

use std::error::Error;
use std::io::{BufRead, Read, Write, stdin, stdout};

use thalweg::Size;
use thalweg_processor::{ResampleFilter, Resampler, RgbImage, resize};

use command_line::CommandLine;

fn main() -> Result<(), Box<dyn Error>> {
    let cases = ("-", "resize the cases on standard input");
    if !CommandLine::parse("Resizes an image of two pixels, or cases.", &[], &[cases]).has("-") {
        let image = RgbImage { height: 1, width: 2, rgb: &[0, 0, 0, 200, 100, 50] };
        let row = resize(image, [1, 4].into(), ResampleFilter::Bilinear, Resampler::Pil)?;
        println!("black and orange, enlarged to four pixels: {row:?}");
        return Ok(());
    }
    let (mut input, mut output) = (stdin().lock(), stdout().lock());
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [height, width, rows, columns, filter, resampler] = fields[..] else {
            return Err(format!("{line:?}: expected six fields").into());
        };
        let filter = match filter {
            "Box" => ResampleFilter::Box,
            "Bilinear" => ResampleFilter::Bilinear,
            "Hamming" => ResampleFilter::Hamming,
            "Bicubic" => ResampleFilter::Bicubic,
            "Lanczos" => ResampleFilter::Lanczos,
            _ => return Err(format!("{filter:?}: no such filter").into()),
        };
        let resampler = match resampler {
            "Pil" => Resampler::Pil,
            "Pil12_2" => Resampler::Pil12_2,
            "Pil13" => Resampler::Pil13,
            "Aten" => Resampler::Aten,
            _ => return Err(format!("{resampler:?}: no such resampler").into()),
        };
        let (height, width) = (height.parse()?, width.parse()?);
        let mut rgb = vec![0; 3 * height as usize * width as usize];
        input.read_exact(&mut rgb)?;
        let image = RgbImage { height, width, rgb: &rgb };
        output.write_all(&resize(image, Size::new(rows.parse()?, columns.parse()?), filter, resampler)?)?;
        line.clear();
    }
    Ok(())
}
