//! A test of the largest image that a device has room for.

use std::ops::Range;

use testkit::devices::{alone, devices, report};
use testkit::oracle::{self, PLANES, SCORE_ERROR, SplitMix, assert_close};
use thalweg::{Device, DeviceKind};
use thalweg_vision::{Image, Pipeline, TokenParams};

use crate::run::reference_sides;

/// The image has more elements than 32 bits count. A few of its patches are rich; their features
/// and tokens must be those of a small image cut out around them.
#[test]
fn the_largest_image() {
    let _alone = alone();
    for &device in devices() {
        let room = device.kind() == DeviceKind::Cuda && device.free_memory().unwrap() > 32 << 30;
        let (h, w) = if room { (16384, 16384) } else { (1000, 1490) };
        if !room {
            report(&format!("NOT COVERED on {device}: an image of 16384 x 16384, which takes a GPU with 32 GiB"));
        }
        check_large(device, h, w);
    }
}

fn check_large(device: Device, h: usize, w: usize) {
    const P: usize = 32;
    let (gh, gw) = oracle::grid(h, w, P);
    let rich = [(0, 0), (0, gw - 1), (gh / 2, gw / 3), (gh - 1, 0), (gh - 1, gw - 1)];
    let in_rich = |y: usize, x: usize| rich.contains(&(y / P, x / P));
    let cut = |rows: Range<usize>, columns: Range<usize>| {
        let mut rgb = Vec::with_capacity(3 * rows.len() * columns.len());
        for y in rows.clone() {
            for x in columns.clone() {
                let any = SplitMix((y * w + x) as u64).next();
                let any = if in_rich(y, x) { any } else { 0x7070_7070 | any & 0x0707_0707 };
                rgb.extend([any as u8, (any >> 8) as u8, (any >> 16) as u8]);
            }
        }
        oracle::Image { height: rows.len(), width: columns.len(), rgb }
    };

    let params = TokenParams::default();
    let whole = cut(0..h, 0..w);
    let image = Image::new(h as u32, w as u32, whole.rgb).unwrap();
    let run = Pipeline::new(device, params.clone()).unwrap().run(&[image]).remove(0).unwrap();
    let sides = reference_sides(&run, &params);
    assert_eq!(run.sides, sides.iter().map(|&n| n as i32).collect::<Vec<_>>(), "sides on {device}");
    assert_eq!(run.features.len(), PLANES * gh * gw);

    for (py, px) in rich {
        let what = format!("patch ({py}, {px}) of {h} x {w} on {device}");
        // The patch, and the patches around it, whose pixels its borders read.
        let rows = py.saturating_sub(1) * P..((py + 2) * P).min(h);
        let columns = px.saturating_sub(1) * P..((px + 2) * P).min(w);
        let around = cut(rows.clone(), columns.clone());
        let (ch, cw) = (around.height, around.width);
        let index = py.min(1) * oracle::grid(ch, cw, P).1 + px.min(1);
        let patch = py * gw + px;

        // Position and eccentricity count in the whole image, not in the cut-out one.
        let mut planes = oracle::textures(&around, [0.5, 0.5]);
        for (i, y) in rows.clone().enumerate() {
            for (j, x) in columns.clone().enumerate() {
                let (y, x) = (y as f64 / (h - 1) as f64, x as f64 / (w - 1) as f64);
                planes[(9 * ch + i) * cw + j] = y;
                planes[(10 * ch + i) * cw + j] = x;
                planes[(11 * ch + i) * cw + j] = (y - 0.5).hypot(x - 0.5) / 0.5f64.hypot(0.5);
            }
        }
        let features = oracle::features(&planes, ch, cw, P);
        let got = &run.features[PLANES * patch..PLANES * (patch + 1)];
        assert_close(&format!("{what}: features"), got, &features[PLANES * index..PLANES * (index + 1)], SCORE_ERROR);
        let entropy = oracle::entropy(&around, P)[index];
        assert_close(&format!("{what}: entropy"), &run.entropy[patch..=patch], &[entropy], SCORE_ERROR);

        assert!(sides[patch] > 0, "{what} is selected");
        let mut only = vec![0; oracle::grid(ch, cw, P).0 * oracle::grid(ch, cw, P).1];
        only[index] = sides[patch];
        let want = oracle::compress(&planes, ch, cw, P, &only);
        let k = run.patch_id.iter().position(|&id| id as usize == patch).unwrap();
        let (start, end) = (run.cu_seqlens[k] as usize, run.cu_seqlens[k + 1] as usize);
        assert_close(&format!("{what}: tokens"), &run.tokens[PLANES * start..PLANES * end], &want.tokens, SCORE_ERROR);
        let place = |(i, v): (usize, &f64)| {
            let (from, extent, all) = if i % 2 == 0 { (rows.start, ch, h) } else { (columns.start, cw, w) };
            (from as f64 + v * extent as f64) / all as f64
        };
        let position: Vec<f64> = want.position.iter().enumerate().map(place).collect();
        assert_close(&format!("{what}: position"), &run.position[2 * start..2 * end], &position, 2e-6);
    }
}
