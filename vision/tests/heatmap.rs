//! The picture of an allocation: what it shows, and tokens of another image are refused.

use thalweg::{Device, Error, Size};
use thalweg_vision::{Image, Pipeline, TokenParams, TokenSet};

fn params() -> TokenParams {
    TokenParams::default().with_patch(16).with_budget(64).with_sides(4..=8)
}

/// A gray image with noise in its first patch.
fn image() -> Image {
    let noise = |y: usize, x: usize| if y < 16 && x < 16 { (y * 83 + x * 157) * (x + 7) % 256 } else { 128 };
    let pixels = (0..48 * 64).flat_map(|i| [noise(i / 64, i % 64) as u8; 3]).collect();
    Image::new(48, 64, pixels).unwrap()
}

fn tokens() -> TokenSet {
    Pipeline::new(Device::cpu().unwrap(), params()).unwrap().run(&[image()]).remove(0).unwrap()
}

#[test]
fn a_patch_with_tokens_is_colored_and_one_without_is_dim() {
    let set = tokens();
    assert!(set.sides[0] > 0 && set.sides[1..].iter().all(|&side| side == 0), "{:?}", set.sides);
    let png = set.heatmap_png(&image(), &params()).unwrap();
    let mut decoder = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; decoder.output_buffer_size().unwrap()];
    let info = decoder.next_frame(&mut pixels).unwrap();
    // A cell of 2 pixels has 10 in the picture, which is in the middle of a page.
    assert!(info.width == 640 && info.height > 5 * 48, "{info:?}");
    let (scale, left) = (5, (640 - 5 * 64) / 2);
    let saturation = |row: usize, column: usize| {
        let (y, x) = ((row * 16 + 8) * scale, left + (column * 16 + 8) * scale);
        let pixel = &pixels[3 * (y * info.width as usize + x)..][..3];
        (pixel.iter().max().unwrap() - pixel.iter().min().unwrap(), pixel[0])
    };
    assert!(saturation(0, 0).0 > 20);
    for (row, column) in [(0, 1), (1, 0), (2, 3)] {
        let (saturation, level) = saturation(row, column);
        assert!(saturation < 3 && level < 80, "{row}, {column}: {saturation}, {level}");
    }
}

#[test]
fn tokens_of_another_image_are_refused() {
    let refused = |set: &TokenSet, params: &TokenParams, what: &str| match set.heatmap_png(&image(), params) {
        Err(Error::Parameter { name, .. }) => assert_eq!(name, what),
        other => panic!("{what}: {:?}", other.map(|png| png.len())),
    };
    refused(&tokens(), &params().with_patch(0), "patch");
    type Change = fn(&mut TokenSet);
    let changes: [(&str, Change); 8] = [
        ("image size", |set| set.height = 47),
        ("tokens", |set| set.patch = 0),
        ("tokens", |set| set.patch = 33),
        ("tokens", |set| set.grid = Size::new(4, 3)),
        ("tokens", |set| set.sides = vec![8; 11]),
        ("tokens", |set| set.sides[3] = 9),
        ("tokens", |set| set.sides[3] = 3),
        ("tokens", |set| set.sides[3] = -1),
    ];
    for (what, change) in changes {
        let mut set = tokens();
        change(&mut set);
        refused(&set, &params(), what);
    }
}
