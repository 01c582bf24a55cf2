//! Turns photographs into tokens with one library call, as input for a vision-language model.
//!
//! ```text
//! cargo run --release --example tokens
//! ```

#[path = "support/mod.rs"]
mod support;

use thalweg::{Error, Size};
use thalweg_vision::{Image, Pipeline, PipelineOptions, TokenParams};

fn main() -> Result<(), Error> {
    let device = support::device("Turns photographs into tokens with one library call.")?;
    // Two pictures that need no decoder: a disc on a gradient, and stripes.
    let disc = picture(240, 320, |y, x| {
        let inside = (y - 120.0).hypot(x - 200.0) < 60.0;
        if inside { [230.0, 80.0 + y / 3.0, 40.0] } else { [x / 2.0, y / 2.0, 120.0] }
    })?;
    let stripes = picture(97, 201, |_, x| [127.0 + 127.0 * (x / 4.0).sin(); 3])?;

    let params = TokenParams::default().with_budget(1500).with_fixation([0.5, 0.6]).with_foveal_bias(0.3);
    let options = PipelineOptions::default().with_stages(true);
    let pipeline = Pipeline::with_options(device, params, options)?;
    for tokens in pipeline.run(&[disc, stripes]) {
        let tokens = tokens?;
        let Size { height: rows, width: columns } = tokens.grid;
        println!(
            "{} x {} pixels: {} tokens in {} of {} patches, longest {}",
            tokens.height,
            tokens.width,
            tokens.len(),
            tokens.patch_id.len(),
            rows * columns,
            tokens.cu_seqlens.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0),
        );
        for row in tokens.sides.chunks(columns as usize) {
            println!(
                "  {}",
                row.iter().map(|n| if *n == 0 { "  .".into() } else { format!("{n:3}") }).collect::<String>()
            );
        }
        assert!(tokens.len() <= 1500 && tokens.tokens.len() == 13 * tokens.len());
    }
    for (stage, time) in pipeline.stages().named().into_iter().filter(|(_, time)| !time.is_zero()) {
        println!("{stage}: {time:.1?} of the device");
    }
    Ok(())
}

fn picture(height: u32, width: u32, color: impl Fn(f32, f32) -> [f32; 3]) -> Result<Image, Error> {
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (y as f32, x as f32)));
    Image::new(height, width, pixels.flat_map(|(y, x)| color(y, x).map(|v| v.round() as u8)).collect())
}
