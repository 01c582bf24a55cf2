//! Measures what each kind of host memory costs: to make, to write and read on the host, to copy
//! from and to, and to be read by a kernel in place.
//!
//! ```text
//! cargo bench --bench pinned
//! ```
//!
//! Runs on the first GPU, if there is one, and on the CPU device, where all kinds are alike. Each
//! number is the median of several runs, and what is copied and computed is checked.

mod support;

use std::time::Instant;

use thalweg::{AnyStream, Device, DeviceKind, Error, LiveBrand, PinnedBuffer, PinnedPool, Stream};
use thalweg_vision::kernels::entropy;

/// Rows and columns of the image, whose bytes are the buffer. On the CPU device it is smaller.
const GPU: [u32; 2] = [2160, 3840];
const CPU: [u32; 2] = [540, 960];
/// The side of a patch.
const PATCH: u32 = 32;
/// Runs of each measurement.
const RUNS: usize = 15;

/// The median of the seconds that `run` takes. The first run does not count.
fn seconds(mut run: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut times = Vec::new();
    for _ in 0..=RUNS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    let mut times = times.split_off(1);
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

/// The byte at a place of the image.
fn byte(i: usize) -> u8 {
    (i.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// The seconds that the host takes to write the image from front to back, and to read it.
fn on_the_host(image: &mut [u8]) -> Result<[f64; 2], Error> {
    let written = seconds(|| {
        image.iter_mut().enumerate().for_each(|(i, to)| *to = byte(i));
        Ok(())
    })?;
    let mut sum = 0u64;
    let read = seconds(|| {
        sum = std::hint::black_box(&*image).iter().map(|&v| u64::from(v)).sum();
        Ok(())
    })?;
    assert_eq!(sum, (0..image.len()).map(|i| u64::from(byte(i))).sum::<u64>());
    Ok([written, read])
}

fn ordinary<S: LiveBrand>(s: &Stream<S>, [height, width]: [u32; 2]) -> Result<Vec<f32>, Error> {
    let bytes = 3 * (height * width) as usize;
    let gbs = |seconds: f64| bytes as f64 / seconds / 1e9;
    let mut image = vec![0u8; bytes];
    let made = seconds(|| {
        image = vec![1u8; bytes];
        Ok(())
    })?;
    let [written, read] = on_the_host(&mut image)?;
    let mut x = s.alloc::<u8>(bytes)?;
    let up = seconds(|| s.write_blocking(&image, &mut x))?;
    let down = seconds(|| s.read_blocking(&x).map(drop))?;
    let patches = (height.div_ceil(PATCH) * width.div_ceil(PATCH)) as usize;
    let mut out = s.alloc::<f32>(patches)?;
    let kernel = seconds(|| {
        s.write_blocking(&image, &mut x)?;
        entropy(s, height, width, PATCH, &x, &mut out)?;
        s.synchronize()
    })?;
    row("ordinary (a Vec)", made, [gbs(written), gbs(read), gbs(up), gbs(down)], kernel, None);
    s.read_blocking(&out)
}

fn row(name: &str, made: f64, [written, read, up, down]: [f64; 4], copied: f64, in_place: Option<f64>) {
    let in_place = in_place.map_or("-".into(), |seconds| format!("{:.1}", seconds * 1e6));
    println!(
        "  {name:18} {:>9.2} {written:>9.2} {read:>9.2} {up:>9.2} {down:>9.2} {:>12.1} {in_place:>12}",
        made * 1e3,
        copied * 1e6
    );
}

/// Measures a kind of page-locked memory. `make` makes a buffer of so many bytes.
fn locked<S: LiveBrand>(
    s: &Stream<S>,
    [height, width]: [u32; 2],
    name: &str,
    want: &[f32],
    mut make: impl FnMut(usize) -> Result<PinnedBuffer<u8>, Error>,
) -> Result<(), Error> {
    let bytes = 3 * (height * width) as usize;
    let gbs = |seconds: f64| bytes as f64 / seconds / 1e9;
    let made = seconds(|| make(bytes).map(drop))?;
    let mut image = make(bytes)?;
    let [written, read] = on_the_host(&mut image)?;
    let mut host = s.bind(image)?;
    let mut x = s.alloc::<u8>(bytes)?;
    let mut out = s.alloc::<f32>(want.len())?;
    let up = seconds(|| {
        s.copy_to_device(&host, &mut x)?;
        s.synchronize()
    })?;
    let down = seconds(|| {
        s.copy_to_host(&x, &mut host)?;
        s.synchronize()
    })?;
    let copied = seconds(|| {
        s.copy_to_device(&host, &mut x)?;
        entropy(s, height, width, PATCH, &x, &mut out)?;
        s.synchronize()
    })?;
    assert_eq!(s.read_blocking(&out)?, want, "{name}: after a copy");
    s.zero(&mut out)?;
    let in_place = seconds(|| {
        entropy(s, height, width, PATCH, host.mapped()?, &mut out)?;
        s.synchronize()
    })?;
    assert_eq!(s.read_blocking(&out)?, want, "{name}: in place");
    row(name, made, [gbs(written), gbs(read), gbs(up), gbs(down)], copied, Some(in_place));
    Ok(())
}

fn measure(device: Device) -> Result<(), Error> {
    let size = if device.kind() == DeviceKind::Cuda { GPU } else { CPU };
    println!("{device}: {}; an image of {} x {}, {} bytes", device.name(), size[0], size[1], 3 * size[0] * size[1]);
    println!(
        "  {:18} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12} {:>12}",
        "host memory", "make", "write", "read", "upload", "download", "copy+entropy", "in place"
    );
    println!(
        "  {:18} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12} {:>12}",
        "", "ms", "GB/s", "GB/s", "GB/s", "GB/s", "us", "us"
    );
    AnyStream::new(device)?.enter(|s| {
        let want = ordinary(s, size)?;
        locked(s, size, "page-locked, kept", &want, |bytes| device.pinned(bytes))?;
        locked(s, size, "page-locked, new", &want, |bytes| {
            device.trim()?;
            device.pinned(bytes)
        })?;
        // A pool for each buffer, or the buffers would be kept.
        locked(s, size, "write-combined", &want, |bytes| PinnedPool::write_combined(device, bytes + 4096).take(bytes))?;
        locked(s, size, "registered", &want, |bytes| Ok(device.register(vec![1u8; bytes])?))
    })
}

fn main() -> Result<(), Error> {
    support::on_each_device(measure)
}
