//! From levels to numbers: a table for each channel.

use crate::Style;

/// The numbers of the 256 levels of red, green and blue.
pub(crate) type Table<E> = [[E; 256]; 3];

/// Computes the table: `(level / 255 - mean) / deviation`, rounded as the library does.
pub(crate) fn table(mean: [f64; 3], deviation: [f64; 3], style: Style) -> Table<f32> {
    std::array::from_fn(|c| {
        let (m, d) = (mean[c] as f32, deviation[c] as f32);
        std::array::from_fn(|v| number(v as f32, m, d, style))
    })
}

fn number(v: f32, mean: f32, deviation: f32, style: Style) -> f32 {
    match style {
        Style::Slow => ((f64::from(v) * (1.0 / 255.0)) as f32 - mean) / deviation,
        Style::Fast => (v - mean * 255.0) / (deviation * 255.0),
        Style::ToTensor => (v / 255.0 - mean) / deviation,
    }
}
