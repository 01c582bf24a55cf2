//! A small set of images with three classes, and what a run of `thalweg train` reports.

use std::fs;
use std::path::{Path, PathBuf};

use image::{Rgb, RgbImage};
use serde_json::Value;

use super::{Bench, png};

/// Bars that lie, stand or are missing, at random places and in random colors.
pub(crate) fn picture(class: usize, seed: u32) -> RgbImage {
    let noise = |i: u32| (seed.wrapping_mul(2_654_435_761).wrapping_add(i.wrapping_mul(40503)) >> 7) % 64;
    let place = 4 + noise(1) % 20;
    let bright = 150 + noise(2) as u8;
    RgbImage::from_fn(32, 32, |x, y| {
        let on = match class {
            0 => (place..place + 6).contains(&y),
            1 => (place..place + 6).contains(&x),
            _ => false,
        };
        let v = if on { bright } else { 20 + (noise(x * 37 + y * 101 + 3) / 4) as u8 };
        Rgb([v, v, v])
    })
}

pub(crate) const CLASSES: [&str; 3] = ["lying", "standing", "without"];

/// Writes a folder with a folder for each class.
pub(crate) fn data(bench: &Bench, name: &str, count: u32, first: u32) -> PathBuf {
    let root = bench.input(name);
    for (class, folder) in CLASSES.iter().enumerate() {
        fs::create_dir_all(root.join(folder)).expect("a folder");
        for i in 0..count {
            fs::write(root.join(folder).join(format!("{i:03}.png")), png(picture(class, first + i))).expect("a file");
        }
    }
    root
}

/// A small model and few epochs.
pub(crate) const SMALL: [&str; 8] = ["--width", "16", "--heads", "2", "--depth", "1", "--lr", "0.01"];

/// Returns the lines of a report.
pub(crate) fn report(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a report");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON in each line")).collect()
}
