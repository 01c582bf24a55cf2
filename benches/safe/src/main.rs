//! Times kernels without `unsafe` and their twins, and checks that both forms compute the same.
//!
//! `cargo run --release --manifest-path benches/safe/Cargo.toml`. With a number, the buffers have
//! so many elements.

use safe_kernels::{safe, twin};
use thalweg::{Device, DeviceBuffer, DeviceCopy, Error, On, Stream, stream_tags};
use thalweg_kernels::vision;

stream_tags!(Work);
type Buffer<T> = On<Work, DeviceBuffer<T>>;
type Launch<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// Launches between two events, so that the events cost little.
const LAUNCHES: u32 = 20;
/// Measurements of each form. The forms take turns, and the median counts.
const ROUNDS: usize = 15;

/// Returns the microseconds for a launch.
fn time(on: Stream<Work>, launch: Launch<'_>) -> Result<f64, Error> {
    let start = on.timestamp()?;
    for _ in 0..LAUNCHES {
        launch()?;
    }
    let end = on.timestamp()?;
    end.synchronize()?;
    let elapsed = end.elapsed(&start)?.expect("both events are complete");
    Ok(elapsed.as_secs_f64() * 1e6 / f64::from(LAUNCHES))
}

/// Times both forms and prints a row.
fn row(on: Stream<Work>, name: &str, safe: Launch<'_>, raw: Launch<'_>) -> Result<(), Error> {
    let mut times = [vec![], vec![]];
    // The first launch loads the kernel.
    safe()?;
    raw()?;
    for _ in 0..ROUNDS {
        times[0].push(time(on, safe)?);
        times[1].push(time(on, raw)?);
    }
    let [safe, raw] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    println!("| {name} | {safe:.2} | {raw:.2} | {:.3} |", safe / raw);
    Ok(())
}

/// Checks that two buffers hold the same.
fn same<T: DeviceCopy + PartialEq>(on: Stream<Work>, name: &str, a: &Buffer<T>, b: &Buffer<T>) -> Result<(), Error> {
    assert!(on.read_blocking(a)? == on.read_blocking(b)?, "{name}: the two forms differ");
    Ok(())
}

/// Makes a buffer of `n` zeros for each form.
fn pair<T: DeviceCopy + Default>(on: Stream<Work>, n: u32) -> Result<[Buffer<T>; 2], Error> {
    let zeros = vec![T::default(); n as usize];
    Ok([on.upload_blocking(&zeros)?, on.upload_blocking(&zeros)?])
}

fn main() -> Result<(), Error> {
    let device = Device::best()?;
    let on = device.stream::<Work>()?;
    let n: u32 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1 << 26);
    let (side, blocks) = (n.isqrt(), 1056);
    println!("{}, {n} elements: us for a launch, median of {ROUNDS} measurements of {LAUNCHES}", device.name());
    println!("| kernel | safe | unsafe | ratio |\n|---|---|---|---|");

    let floats: Vec<f32> = (0..n).map(|i| (i % 31) as f32).collect();
    let words: Vec<u32> = (0..n).map(|i: u32| i.wrapping_mul(2654435761) % n).collect();
    let (x, w) = (on.upload_blocking(&floats)?, on.upload_blocking(&words)?);
    let square = side * side;
    let image = &x.slice(..square as usize)?;

    let [mut a, mut b] = pair::<f32>(on, n)?;
    row(on, "saxpy", &mut || safe::saxpy(&on, n, 0.5, &x, &mut a), &mut || twin::raw_saxpy(&on, n, 0.5, &x, &mut b))?;
    same(on, "saxpy", &a, &b)?;
    row(on, "double", &mut || safe::double(&on, n, blocks, &mut a), &mut || twin::raw_double(&on, n, blocks, &mut b))?;
    row(on, "gather", &mut || safe::gather(&on, n, n, &w, &x, &mut a), &mut || {
        twin::raw_gather(&on, n, n, &w, &x, &mut b)
    })?;
    same(on, "gather", &a, &b)?;

    let [mut a, mut b] = pair::<f32>(on, square)?;
    row(on, "blur", &mut || safe::blur(&on, side, side, image, &mut a), &mut || {
        twin::raw_blur(&on, side, side, image, &mut b)
    })?;
    same(on, "blur", &a, &b)?;
    row(on, "transpose", &mut || safe::transpose(&on, side, side, image, &mut a), &mut || {
        twin::raw_transpose(&on, side, side, image, &mut b)
    })?;
    same(on, "transpose", &a, &b)?;

    let [mut a, mut b] = pair::<f32>(on, blocks)?;
    row(on, "reduce", &mut || safe::reduce(&on, n, blocks, &x, &mut a), &mut || {
        twin::raw_reduce(&on, n, blocks, &x, &mut b)
    })?;
    same(on, "reduce", &a, &b)?;

    let ([mut a, mut b], [mut ta, mut tb]) = (pair::<u32>(on, blocks * 256)?, pair::<u32>(on, 256)?);
    row(on, "histogram", &mut || safe::histogram(&on, n, blocks, &w, &mut a, &mut ta), &mut || {
        twin::raw_histogram(&on, n, blocks, &w, &mut b, &mut tb)
    })?;
    same(on, "histogram", &a, &b)?;
    same(on, "histogram", &ta, &tb)?;

    let k = 2048.min(side);
    let [mut a, mut b] = pair::<f32>(on, k * k)?;
    let left = &x.slice(..(k * k) as usize)?;
    row(on, "product", &mut || safe::product(&on, k, k, k, left, left, &mut a), &mut || {
        twin::raw_product(&on, k, k, k, left, left, &mut b)
    })?;
    same(on, "product", &a, &b)?;

    // An image, its planes, and each patch of 32 x 32 selected with 16 x 16 tokens.
    let (h, w, patch) = (side / 4 / 32 * 32, side / 4 / 32 * 32, 32);
    let patches = h / patch * (w / patch);
    let rgb: Vec<u8> = (0..3 * h * w).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8).collect();
    let rgb = on.upload_blocking(&rgb)?;
    let planes = &x.slice(..(13 * h * w) as usize)?;
    let [mut a, mut b] = pair::<f32>(on, patches)?;
    row(on, "entropy", &mut || safe::entropy(&on, h, w, patch, &rgb, &mut a), &mut || {
        vision::entropy(&on, h, w, patch, &rgb, &mut b)
    })?;
    same(on, "entropy", &a, &b)?;
    // The same of an image that the L2 does not hold.
    let large = side / 32 * 32;
    let bytes: Vec<u8> = (0..3 * large * large).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8).collect();
    let bytes = on.upload_blocking(&bytes)?;
    let [mut a, mut b] = pair::<f32>(on, (large / patch).pow(2))?;
    row(on, "entropy, large image", &mut || safe::entropy(&on, large, large, patch, &bytes, &mut a), &mut || {
        vision::entropy(&on, large, large, patch, &bytes, &mut b)
    })?;
    same(on, "entropy, large image", &a, &b)?;
    let [mut a, mut b] = pair::<f32>(on, 13 * h * w)?;
    row(on, "textures", &mut || safe::textures(&on, h, w, 0.5, 0.5, &rgb, &mut a), &mut || {
        vision::textures(&on, h, w, 0.5, 0.5, &rgb, &mut b)
    })?;
    same(on, "textures", &a, &b)?;
    let [mut a, mut b] = pair::<f32>(on, patches * 13)?;
    row(on, "features", &mut || vision::features(&on, h, w, patch, planes, &mut a), &mut || {
        twin::raw_features(&on, h, w, patch, planes, &mut b)
    })?;
    same(on, "features", &a, &b)?;
    row(on, "features, both with bounds", &mut || vision::features(&on, h, w, patch, planes, &mut a), &mut || {
        twin::raw_features_bounds(&on, h, w, patch, planes, &mut b)
    })?;
    same(on, "features, both with bounds", &a, &b)?;

    let capacity = patches * 256;
    let sides = on.upload_blocking(&vec![16i32; patches as usize])?;
    let ends: Vec<i32> = (0..=patches as i32).map(|k| k * 256).collect();
    let ends = on.upload_blocking(&ends)?;
    let ids: Vec<i32> = (0..patches as i32).collect();
    let ids = on.upload_blocking(&ids)?;
    let counts = on.upload_blocking(&[capacity, patches])?;
    let ([mut a, mut b], [mut pa, mut pb]) = (pair::<f32>(on, capacity * 13)?, pair::<f32>(on, capacity * 2)?);
    row(
        on,
        "compress",
        &mut || {
            let selection =
                vision::Selection { sides: &sides, cu_seqlens: &ends, patch_id: &ids, counts: &counts, most: patches };
            let out = vision::TokensMut { tokens: &mut a, position: &mut pa, capacity };
            vision::compress(&on, h, w, patch, planes, &selection, out)
        },
        &mut || {
            twin::raw_compress(
                &on, h, w, patch, patches, capacity, planes, &sides, &ends, &ids, &counts, &mut b, &mut pb,
            )
        },
    )?;
    same(on, "compress", &a, &b)?;
    same(on, "compress", &pa, &pb)
}
