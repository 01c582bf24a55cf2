//! Draws the few characters that a legend needs. A character consists of strokes, which are lines
//! and elliptic arcs with round ends and smooth edges, so it can have any size.

use image::{Rgb, RgbImage};

/// A stroke of a character. A digit is 10 units high, y grows downwards from its top, and the
/// baseline is at 10.
enum Stroke {
    /// A line through these points (x, y).
    Line(&'static [[f64; 2]]),
    /// An arc: its center, its radii, and the angles of its ends in degrees. The angle 0 points
    /// right, and 90 points down.
    Arc([f64; 2], [f64; 2], [f64; 2]),
}
use Stroke::{Arc, Line};

/// Returns the width and the strokes of a character.
fn glyph(c: char) -> (f64, &'static [Stroke]) {
    match c {
        '0' => (5.6, &[Arc([2.8, 5.0], [2.8, 5.0], [0.0, 360.0])]),
        '1' => (5.6, &[Line(&[[0.8, 2.0], [3.2, 0.0], [3.2, 10.0]])]),
        '2' => (5.6, &[Arc([2.8, 2.8], [2.7, 2.8], [195.0, 395.0]), Line(&[[5.0, 4.4], [0.1, 10.0], [5.6, 10.0]])]),
        '3' => (5.6, &[Arc([2.6, 2.4], [2.5, 2.4], [205.0, 450.0]), Arc([2.6, 7.4], [2.8, 2.6], [270.0, 515.0])]),
        '4' => (5.6, &[Line(&[[4.3, 10.0], [4.3, 0.0], [0.0, 7.0], [5.8, 7.0]])]),
        '5' => (5.6, &[Line(&[[5.0, 0.0], [0.9, 0.0], [0.6, 4.7]]), Arc([2.6, 6.7], [2.8, 3.3], [225.0, 510.0])]),
        '6' => (5.6, &[Arc([2.8, 6.9], [2.8, 3.1], [0.0, 360.0]), Arc([4.6, 6.9], [4.6, 6.9], [180.0, 265.0])]),
        '7' => (5.6, &[Line(&[[0.0, 0.0], [5.6, 0.0], [1.9, 10.0]])]),
        '8' => (5.6, &[Arc([2.8, 2.4], [2.4, 2.4], [0.0, 360.0]), Arc([2.8, 7.4], [2.8, 2.6], [0.0, 360.0])]),
        '9' => (5.6, &[Arc([2.8, 3.1], [2.8, 3.1], [0.0, 360.0]), Arc([1.0, 3.1], [4.6, 6.9], [0.0, 85.0])]),
        'a' => (5.2, &[Arc([2.6, 6.5], [2.6, 3.5], [0.0, 360.0]), Line(&[[5.2, 3.0], [5.2, 10.0]])]),
        'c' => (4.6, &[Arc([2.6, 6.5], [2.6, 3.5], [45.0, 315.0])]),
        'e' => (5.2, &[Arc([2.6, 6.5], [2.6, 3.5], [42.0, 360.0]), Line(&[[0.0, 6.5], [5.2, 6.5]])]),
        'f' => (
            3.4,
            &[
                Arc([3.4, 2.2], [2.1, 2.2], [180.0, 275.0]),
                Line(&[[1.3, 2.2], [1.3, 10.0]]),
                Line(&[[0.0, 3.2], [3.4, 3.2]]),
            ],
        ),
        'h' => (
            4.8,
            &[
                Line(&[[0.0, 0.0], [0.0, 10.0]]),
                Arc([2.4, 5.5], [2.4, 2.5], [180.0, 360.0]),
                Line(&[[4.8, 5.5], [4.8, 10.0]]),
            ],
        ),
        'i' => (0.2, &[Line(&[[0.1, 3.0], [0.1, 10.0]]), Line(&[[0.1, 0.4], [0.1, 0.5]])]),
        'k' => (
            4.6,
            &[Line(&[[0.0, 0.0], [0.0, 10.0]]), Line(&[[4.2, 3.0], [0.0, 7.2]]), Line(&[[1.7, 5.6], [4.6, 10.0]])],
        ),
        'n' => (
            4.8,
            &[
                Line(&[[0.0, 3.0], [0.0, 10.0]]),
                Arc([2.4, 5.5], [2.4, 2.5], [180.0, 360.0]),
                Line(&[[4.8, 5.5], [4.8, 10.0]]),
            ],
        ),
        'o' => (5.2, &[Arc([2.6, 6.5], [2.6, 3.5], [0.0, 360.0])]),
        'p' => (5.2, &[Arc([2.6, 6.5], [2.6, 3.5], [0.0, 360.0]), Line(&[[0.0, 3.0], [0.0, 13.0]])]),
        'r' => (3.2, &[Line(&[[0.0, 3.0], [0.0, 10.0]]), Arc([2.6, 5.6], [2.6, 2.6], [180.0, 285.0])]),
        's' => (4.2, &[Arc([2.1, 4.75], [1.9, 1.75], [-30.0, -270.0]), Arc([2.1, 8.25], [2.1, 1.75], [-90.0, 155.0])]),
        't' => (
            3.6,
            &[
                Line(&[[1.4, 0.8], [1.4, 8.0]]),
                Arc([3.4, 8.0], [2.0, 2.0], [180.0, 80.0]),
                Line(&[[0.0, 3.2], [3.6, 3.2]]),
            ],
        ),
        _ => (3.0, &[]),
    }
}

/// The space between two characters.
const GAP: f64 = 2.4;

/// Returns the width of a text whose digits are `size` high.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let units: f64 = text.chars().map(|c| glyph(c).0 + GAP).sum();
    (units - GAP).max(0.0) * size / 10.0
}

/// Writes a text. `(y, x)` is the upper left corner of its first digit.
pub(super) fn write(picture: &mut RgbImage, [y, x]: [f64; 2], size: f64, text: &str, ink: [f32; 3]) {
    let unit = size / 10.0;
    let weight = size / 9.0;
    let mut pen = x;
    for c in text.chars() {
        let (width, strokes) = glyph(c);
        let segments: Vec<[[f64; 2]; 2]> =
            strokes.iter().flat_map(segments).map(|ends| ends.map(|p| [pen + p[0] * unit, y + p[1] * unit])).collect();
        let reach = weight + 1.0;
        let across = (pen - reach) as u32..(pen + width * unit + reach) as u32 + 1;
        for py in (y - reach) as u32..(y + 13.0 * unit + reach) as u32 + 1 {
            for px in across.clone() {
                let at = [f64::from(px) + 0.5, f64::from(py) + 0.5];
                let near = segments.iter().map(|s| distance(at, s)).fold(f64::INFINITY, f64::min);
                let cover = (weight / 2.0 + 0.5 - near).clamp(0.0, 1.0) as f32;
                if let Some(Rgb(pixel)) = picture.get_pixel_mut_checked(px, py) {
                    *pixel = [0, 1, 2]
                        .map(|c| (f32::from(pixel[c]) + (ink[c] * 255.0 - f32::from(pixel[c])) * cover).round() as u8);
                }
            }
        }
        pen += (width + GAP) * unit;
    }
}

fn segments(stroke: &Stroke) -> Vec<[[f64; 2]; 2]> {
    let points: Vec<[f64; 2]> = match *stroke {
        Line(points) => points.to_vec(),
        Arc(center, radii, [from, to]) => (0..=24)
            .map(|i| (from + (to - from) * f64::from(i) / 24.0).to_radians().sin_cos())
            .map(|(sin, cos)| [center[0] + radii[0] * cos, center[1] + radii[1] * sin])
            .collect(),
    };
    points.windows(2).map(|pair| [pair[0], pair[1]]).collect()
}

/// Returns the distance from a point to a line segment.
fn distance(p: [f64; 2], [a, b]: &[[f64; 2]; 2]) -> f64 {
    let (ab, ap) = ([b[0] - a[0], b[1] - a[1]], [p[0] - a[0], p[1] - a[1]]);
    let along = ((ap[0] * ab[0] + ap[1] * ab[1]) / (ab[0] * ab[0] + ab[1] * ab[1])).clamp(0.0, 1.0);
    (ap[0] - along * ab[0]).hypot(ap[1] - along * ab[1])
}
