//! The command turns every kind of PNG and JPEG into the pixels that its help promises.

use image::{DynamicImage, ImageBuffer, Luma, LumaA, Rgb, Rgba};

use crate::support::{Bench, jpeg, pattern, png, thalweg};

/// Rounds a 16-bit sample as the help says.
fn narrow(v: u16) -> u8 {
    ((u32::from(v) * 255 + 32767) / 65535) as u8
}

/// Returns 16-bit values around the steps of the rounding, and the smallest and largest value.
fn wide(i: u32) -> u16 {
    [0, 127, 128, 129, 256, 257, 385, 386, 32639, 32640, 32767, 32768, 65406, 65407, 65535][i as usize % 15]
}

#[test]
fn rgb_is_taken_as_it_is() {
    let bench = Bench::new();
    let image = pattern(9, 5);
    let (height, width, pixels) = bench.pixels(&bench.file("rgb.png", png(image.clone())));
    assert_eq!((height, width), (5, 9));
    assert_eq!(pixels, image.pixels().map(|p| p.0).collect::<Vec<_>>());
}

#[test]
fn gray_is_replicated() {
    let bench = Bench::new();
    let gray = ImageBuffer::from_fn(16, 16, |x, y| Luma([(x * 16 + y) as u8]));
    let expected: Vec<_> = gray.pixels().map(|p| [p.0[0]; 3]).collect();
    assert_eq!(bench.pixels(&bench.file("png.png", png(gray))).2, expected);

    let flat = ImageBuffer::from_pixel(16, 8, Luma([77u8]));
    assert_eq!(bench.pixels(&bench.file("jpeg.jpg", jpeg(flat))).2, vec![[77; 3]; 128]);
}

#[test]
fn alpha_is_dropped_not_blended() {
    let bench = Bench::new();
    let rgba = ImageBuffer::from_fn(8, 8, |x, y| Rgba([200, (x * 8) as u8, 3, (y * 36) as u8]));
    let expected: Vec<_> = rgba.pixels().map(|p| [p.0[0], p.0[1], p.0[2]]).collect();
    assert_eq!(bench.pixels(&bench.file("rgba.png", png(rgba))).2, expected);

    let la = ImageBuffer::from_fn(8, 8, |x, y| LumaA([(x * 30) as u8, (y * 36) as u8]));
    let expected: Vec<_> = la.pixels().map(|p| [p.0[0]; 3]).collect();
    assert_eq!(bench.pixels(&bench.file("la.png", png(la))).2, expected);
}

#[test]
fn sixteen_bits_are_rounded_to_eight() {
    let bench = Bench::new();
    let rgb = ImageBuffer::from_fn(15, 3, |x, y| Rgb([wide(x), wide(x + y), wide(x + 7)]));
    let expected: Vec<_> = rgb.pixels().map(|p| p.0.map(narrow)).collect();
    assert_eq!(bench.pixels(&bench.file("rgb.png", png(DynamicImage::ImageRgb16(rgb)))).2, expected);

    let rgba = ImageBuffer::from_fn(15, 3, |x, y| Rgba([wide(x), wide(x + y), wide(x + 7), wide(y)]));
    let expected: Vec<_> = rgba.pixels().map(|p| [p.0[0], p.0[1], p.0[2]].map(narrow)).collect();
    assert_eq!(bench.pixels(&bench.file("rgba.png", png(DynamicImage::ImageRgba16(rgba)))).2, expected);

    let gray = ImageBuffer::from_fn(15, 3, |x, y| Luma([wide(x + y)]));
    let expected: Vec<_> = gray.pixels().map(|p| [narrow(p.0[0]); 3]).collect();
    assert_eq!(bench.pixels(&bench.file("gray.png", png(DynamicImage::ImageLuma16(gray)))).2, expected);

    let la = ImageBuffer::from_fn(15, 3, |x, y| LumaA([wide(x + y), wide(y)]));
    let expected: Vec<_> = la.pixels().map(|p| [narrow(p.0[0]); 3]).collect();
    assert_eq!(bench.pixels(&bench.file("la.png", png(DynamicImage::ImageLumaA16(la)))).2, expected);
}

/// Makes a baseline JPEG of one color, with four components and Adobe's marker for CMYK. With this
/// marker, a component is 255 minus the ink.
fn cmyk(width: u16, height: u16, stored: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0xFF, 0xD8];
    let mut segment = |marker: u8, body: &[u8]| {
        bytes.extend([0xFF, marker]);
        bytes.extend((body.len() as u16 + 2).to_be_bytes());
        bytes.extend(body);
    };
    segment(0xEE, b"Adobe\x00\x64\x00\x00\x00\x00\x00"); // the last byte: no color transform
    segment(0xDB, &[&[0][..], &[8; 64]].concat()); // one quantization table, all 8
    let [h, w] = [height, width].map(u16::to_be_bytes);
    let components = (1..=4).flat_map(|id| [id, 0x11, 0]);
    segment(0xC0, &[8, h[0], h[1], w[0], w[1], 4].into_iter().chain(components).collect::<Vec<_>>());
    // The DC table has 12 codes of 4 bits, for 12 sizes. The AC table has one code of 1 bit, for
    // the end of the block.
    let lengths = |at: usize, count: u8| (1..=16).map(move |length| if length == at { count } else { 0 });
    segment(0xC4, &[0].into_iter().chain(lengths(4, 12)).chain(0..12).collect::<Vec<_>>());
    segment(0xC4, &[0x10].into_iter().chain(lengths(1, 1)).chain([0]).collect::<Vec<_>>());
    segment(0xDA, &[4, 1, 0, 2, 0, 3, 0, 4, 0, 0, 63, 0]);

    let mut bits = Vec::new();
    let mut push = |value: u32, count: u32| bits.extend((0..count).rev().map(|i| value >> i & 1 == 1));
    for block in 0..width.div_ceil(8) * height.div_ceil(8) {
        for level in stored {
            // The DC term of a flat block is 8 (level - 128), and the quantization table divides it
            // by 8. The following blocks store the difference, which is zero.
            let difference = if block == 0 { i32::from(level) - 128 } else { 0 };
            let size = difference.unsigned_abs().checked_ilog2().map_or(0, |log| log + 1);
            push(size, 4);
            push((if difference < 0 { difference - 1 } else { difference }) as u32 & ((1 << size) - 1), size);
            push(0, 1);
        }
    }
    while bits.len() % 8 != 0 {
        bits.push(true);
    }
    for byte in bits.chunks(8).map(|bits| bits.iter().fold(0, |byte, &bit| byte << 1 | u8::from(bit))) {
        bytes.push(byte);
        if byte == 0xFF {
            bytes.push(0);
        }
    }
    bytes.extend([0xFF, 0xD9]);
    bytes
}

#[test]
fn cmyk_is_converted() {
    let bench = Bench::new();
    for (i, [c, m, y, k]) in
        [[255, 255, 255, 255], [0, 255, 255, 255], [200, 100, 50, 255], [240, 120, 60, 128]].into_iter().enumerate()
    {
        let (height, width, pixels) = bench.pixels(&bench.file(&format!("cmyk{i}.jpg"), cmyk(24, 16, [c, m, y, k])));
        assert_eq!((height, width), (16, 24));
        let expected = [c, m, y].map(|ink: u8| f64::from(ink) * f64::from(k) / 255.0);
        for pixel in pixels {
            assert_eq!(pixel.map(f64::from), expected.map(f64::round));
        }
    }
}

/// Inserts an EXIF block with an orientation after the first marker of a JPEG.
fn oriented(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let tiff = [b"MM\0\x2A\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".as_slice(), &[orientation], &[0; 6]].concat();
    let length = (2 + 6 + tiff.len() as u16).to_be_bytes();
    [&jpeg[..2], &[0xFF, 0xE1], &length, b"Exif\0\0", &tiff, &jpeg[2..]].concat()
}

#[test]
fn the_exif_orientation_is_applied() {
    let bench = Bench::new();
    // The image has four gray quadrants, a b above c d. Each has 16 x 8 pixels, which are whole
    // blocks of the JPEG.
    let [a, b, c, d] = [40, 100, 160, 220];
    let image = ImageBuffer::from_fn(32, 16, |x, y| Luma([[[a, b], [c, d]][(y / 8) as usize][(x / 16) as usize]]));
    let plain = jpeg(image);
    let upright = [
        (1, [a, b, c, d]), // as stored
        (2, [b, a, d, c]), // mirrored left to right
        (3, [d, c, b, a]), // upside down
        (4, [c, d, a, b]), // mirrored top to bottom
        (5, [a, c, b, d]), // transposed
        (6, [c, a, d, b]), // must be turned clockwise
        (7, [d, b, c, a]), // transposed along the other diagonal
        (8, [b, d, a, c]), // must be turned counter-clockwise
    ];
    for (orientation, expected) in upright {
        let path = bench.file(&format!("o{orientation}.jpg"), oriented(&plain, orientation));
        let (height, width, pixels) = bench.pixels(&path);
        assert_eq!((height, width), if orientation < 5 { (16, 32) } else { (32, 16) }, "orientation {orientation}");
        let center = |y: usize, x: usize| pixels[(height * (2 * y + 1) / 4) * width + width * (2 * x + 1) / 4][0];
        let seen = [center(0, 0), center(0, 1), center(1, 0), center(1, 1)];
        let near = seen.iter().zip(expected).all(|(&got, want)| got.abs_diff(want) <= 2);
        assert!(near, "orientation {orientation}: {seen:?}, expected {expected:?}");
    }
}

#[test]
fn the_content_decides_not_the_name() {
    let bench = Bench::new();
    let image = pattern(20, 10);
    let png_as_jpg = bench.file("a.jpg", png(image.clone()));
    let jpg_as_txt = bench.file("b.txt", jpeg(image.clone()));
    let unnamed = bench.file("c", png(image.clone()));
    bench.tokens([&png_as_jpg, &jpg_as_txt, &unnamed]).expect(0, &[]);
    assert_eq!(bench.results(), ["a.safetensors", "b.safetensors", "c.safetensors"]);
    assert_eq!(bench.pixels(&png_as_jpg).2, image.pixels().map(|p| p.0).collect::<Vec<_>>());
}

#[test]
fn a_folder_gives_its_images() {
    let bench = Bench::new();
    for name in ["b.PNG", "a.png", "d.Jpeg", "c.jpg", ".hidden.png", "a.heatmap.png", "notes.txt", "e.v2.png"] {
        let image = pattern(12, 12);
        bench.file(
            name,
            if name.to_lowercase().ends_with("g") && name.contains(".j") { jpeg(image) } else { png(image) },
        );
    }
    std::fs::create_dir(bench.input("folder.png")).unwrap();
    let run = bench.tokens([bench.folder.path().join("in")]).expect(0, &[]);
    assert_eq!(bench.results(), ["a", "b", "c", "d", "e.v2"].map(|stem| format!("{stem}.safetensors")));
    let order: Vec<_> = run.out.lines().skip(1).take(5).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(order, ["a.png", "b.PNG", "c.jpg", "d.Jpeg", "e.v2.png"]);
}

#[test]
fn sizes_up_to_the_limit() {
    let bench = Bench::new();
    let gray = |width, height| png(ImageBuffer::from_pixel(width, height, Luma([9u8])));
    let fine = [
        bench.file("wide.png", gray(16384, 1)),
        bench.file("tall.png", gray(1, 16384)),
        bench.file("dot.png", gray(1, 1)),
    ];
    bench.tokens(&fine).expect(0, &[]);
    let wide = bench.file("too-wide.png", gray(16385, 1));
    let tall = bench.file("too-tall.jpg", jpeg(ImageBuffer::from_pixel(1, 16385, Luma([9u8]))));
    bench.tokens([wide, tall]).expect(
        1,
        &[
            "too-wide.png: 16385 x 1 pixels; expected 1 to 16384 a side",
            "too-tall.jpg: 1 x 16385 pixels; expected 1 to 16384 a side",
        ],
    );
    // These few bytes claim to be an image that is 2^31 - 1 pixels wide.
    let mut bomb = gray(1, 1);
    bomb[16..24].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF, 0x7F, 0xFF, 0xFF, 0xFF]);
    let crc = crc32(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.to_be_bytes());
    bench.tokens([bench.file("bomb.png", bomb)]).expect(1, &["bomb.png: "]);
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[test]
fn the_bundled_photographs_all_pass() {
    let bench = Bench::new();
    let photos = crate::support::repository("assets/photos");
    let run =
        crate::support::Run::of(thalweg().arg("tokens").arg(photos).arg("--heatmap").arg("--out").arg(bench.out()))
            .expect(0, &[]);
    assert!(run.out.contains("images      5"), "{run:#?}");
    assert_eq!(bench.results().len(), 10);
}
