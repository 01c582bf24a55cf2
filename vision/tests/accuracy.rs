//! How far the kernels are from f64, over every color there is; the numbers are in `docs/spec.md`.

use testkit::devices::devices;
use testkit::oracle::{self, Image};
use thalweg_vision::kernels;

/// Side of the images that hold 2^24 colors between them, as parts of one of 4096 x 4096.
const SIDE: usize = 512;

/// What each of R, G, B, L* / 100, (a* + 128) / 255 and (b* + 128) / 255 may be off, on any device.
const BOUNDS: [f64; 6] = [1.2e-7, 1.2e-7, 1.2e-7, 2e-6, 5e-6, 3e-6];

#[test]
fn every_color() {
    let mut worst = vec![[0.0f64; 6]; devices().len()];
    for part in 0..(1 << 24) / (SIDE * SIDE) {
        let colors = part * SIDE * SIDE..(part + 1) * SIDE * SIDE;
        let rgb: Vec<u8> = colors.flat_map(|i| [(i >> 16) as u8, (i >> 8) as u8, i as u8]).collect();
        let image = Image { height: SIDE, width: SIDE, rgb };
        let want = oracle::textures(&image, [0.5, 0.5]);
        for (device, worst) in devices().iter().zip(&mut worst) {
            let got = device
                .per_thread(|stream| {
                    let rgb = stream.upload_blocking(&image.rgb).unwrap();
                    let mut planes = stream.alloc(13 * SIDE * SIDE).unwrap();
                    kernels::textures(stream, SIDE as u32, SIDE as u32, 0.5, 0.5, &rgb, &mut planes).unwrap();
                    stream.read_blocking(planes.slice(..6 * SIDE * SIDE).unwrap()).unwrap()
                })
                .unwrap();
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let error = (f64::from(*got) - want).abs();
                let worst = &mut worst[i / (SIDE * SIDE)];
                *worst = if error.is_nan() { f64::INFINITY } else { error.max(*worst) };
            }
        }
    }
    for (device, worst) in devices().iter().zip(&worst) {
        println!("{device}: largest errors of R, G, B, L*, a*, b* over all colors: {worst:?}");
        assert!(worst.iter().zip(BOUNDS).all(|(error, bound)| *error <= bound), "{device}: {worst:?}");
    }
}
