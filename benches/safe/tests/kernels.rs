//! Each kernel against a plain reference, on every device of the machine.

use safe_kernels::safe::*;
use thalweg::{Device, DeviceBuffer, DeviceCopy, Error, LiveBrand, On, PerThread, Stream, stream_tags};

stream_tags!(Work, Alone);

/// Runs `check` on every device. Streams of a device's own thread have a tag for each device.
fn everywhere(check: impl for<'l> Fn(&Stream<PerThread<'l>>)) {
    for device in Device::all() {
        eprintln!("covered: {device}");
        device.per_thread(&check).unwrap();
    }
}

fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7 % 31) as f32).collect()
}

fn words(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i.wrapping_mul(2654435761) >> 13).collect()
}

/// A buffer whose elements no kernel computes.
fn unwritten<S: LiveBrand, T: DeviceCopy>(on: &Stream<S>, n: usize, v: T) -> On<S, DeviceBuffer<T>> {
    on.upload_blocking(&vec![v; n]).unwrap()
}

/// Returns the error of a launch on a CPU device of its own. After it the device is not usable. On
/// a GPU a report takes the context with all its memory, so it is made on the CPU device only.
fn reported(launch: impl FnOnce(&Stream<Alone>) -> Result<(), Error>) -> String {
    let device = Device::seeded_cpu(0).unwrap();
    let on = device.stream::<Alone>().unwrap();
    match launch(&on).and_then(|()| on.synchronize()) {
        Ok(()) => "nothing".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn maps() {
    everywhere(|on| {
        for n in [0, 1, 255, 256, 257, 5000] {
            let x = floats(n);
            let (dx, mut y) = (on.upload_blocking(&x).unwrap(), on.upload_blocking(&floats(n)).unwrap());
            saxpy(on, n as u32, 2.0, &dx, &mut y).unwrap();
            assert_eq!(on.read_blocking(&y).unwrap(), x.iter().map(|v| 3.0 * v).collect::<Vec<_>>());
            double(on, n as u32, 3, &mut y).unwrap();
            assert_eq!(on.read_blocking(&y).unwrap(), x.iter().map(|v| 6.0 * v).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_stencil() {
    everywhere(|on| {
        for (h, w) in [(1, 1), (1, 40), (7, 37), (33, 32)] {
            let x = floats(h * w);
            let mut y = unwritten(on, h * w, -1.0f32);
            blur(on, h as u32, w as u32, &on.upload_blocking(&x).unwrap(), &mut y).unwrap();
            let at = |r: i64, c: i64| x[r.clamp(0, h as i64 - 1) as usize * w + c.clamp(0, w as i64 - 1) as usize];
            for (i, v) in on.read_blocking(&y).unwrap().into_iter().enumerate() {
                let (r, c) = ((i / w) as i64, (i % w) as i64);
                let sum: f32 = (0..9).map(|k| at(r + k / 3 - 1, c + k % 3 - 1)).sum();
                assert!((v - sum / 9.0).abs() <= 1e-5 * sum.abs(), "{h} x {w}, element {i}: {v}");
            }
        }
    });
}

#[test]
fn a_gather() {
    everywhere(|on| {
        let (n, m) = (1000, 77);
        let index: Vec<u32> = words(n).into_iter().map(|v| v % m as u32).collect();
        let (x, mut y) = (floats(m), unwritten(on, n, -1.0f32));
        let (dx, di) = (on.upload_blocking(&x).unwrap(), on.upload_blocking(&index).unwrap());
        gather(on, n as u32, m as u32, &di, &dx, &mut y).unwrap();
        assert_eq!(on.read_blocking(&y).unwrap(), index.iter().map(|&i| x[i as usize]).collect::<Vec<_>>());
    });
}

#[test]
fn sums() {
    everywhere(|on| {
        for (n, blocks) in [(1, 1), (300, 4), (10_000, 3)] {
            let x = floats(n);
            let mut sums = unwritten(on, blocks, -1.0f32);
            reduce(on, n as u32, blocks as u32, &on.upload_blocking(&x).unwrap(), &mut sums).unwrap();
            // The terms are small integers, so every order of additions is exact.
            assert_eq!(on.read_blocking(&sums).unwrap().iter().sum::<f32>(), x.iter().sum::<f32>());
        }
    });
}

#[test]
fn scans() {
    everywhere(|on| {
        for n in [1, 256, 700] {
            let x = words(n);
            let mut y = unwritten(on, n, 7u32);
            scan(on, n as u32, &on.upload_blocking(&x).unwrap(), &mut y).unwrap();
            let sums = x.chunks(256).flat_map(|part| {
                part.iter().scan(0u32, |sum, v| {
                    *sum = sum.wrapping_add(*v);
                    Some(*sum)
                })
            });
            assert_eq!(on.read_blocking(&y).unwrap(), sums.collect::<Vec<_>>());
        }
    });
}

#[test]
fn histograms() {
    everywhere(|on| {
        let (n, blocks) = (5000, 3);
        let x = words(n);
        let (mut part, mut total) = (unwritten(on, blocks * 256, 9u32), unwritten(on, 256, 0u32));
        histogram(on, n as u32, blocks as u32, &on.upload_blocking(&x).unwrap(), &mut part, &mut total).unwrap();
        let want: Vec<u32> = (0..256).map(|bin| x.iter().filter(|v| **v & 255 == bin).count() as u32).collect();
        assert_eq!(on.read_blocking(&total).unwrap(), want);
        let part = on.read_blocking(&part).unwrap();
        assert_eq!((0..256).map(|bin| part.iter().skip(bin).step_by(256).sum::<u32>()).collect::<Vec<_>>(), want);
    });
}

#[test]
fn tiles() {
    everywhere(|on| {
        for (h, w) in [(1, 1), (32, 32), (45, 70)] {
            let x = floats(h * w);
            let mut y = unwritten(on, h * w, -1.0f32);
            transpose(on, h as u32, w as u32, &on.upload_blocking(&x).unwrap(), &mut y).unwrap();
            let want: Vec<f32> = (0..h * w).map(|i| x[i % h * w + i / h]).collect();
            assert_eq!(on.read_blocking(&y).unwrap(), want);
        }
        for (m, n, k) in [(1, 1, 1), (64, 64, 16), (70, 130, 37)] {
            let (a, c) = (floats(m * k), floats(k * n));
            let mut z = unwritten(on, m * n, -1.0f32);
            let (da, dc) = (on.upload_blocking(&a).unwrap(), on.upload_blocking(&c).unwrap());
            product(on, m as u32, n as u32, k as u32, &da, &dc, &mut z).unwrap();
            // Sums of small integers are exact in any order.
            let want = |i: usize| (0..k).map(|j| a[i / n * k + j] * c[j * n + i % n]).sum::<f32>();
            assert_eq!(on.read_blocking(&z).unwrap(), (0..m * n).map(want).collect::<Vec<_>>());
        }
    });
}

#[test]
fn barriers_whose_number_depends_on_data() {
    everywhere(|on| {
        let mut y = on.upload_blocking(&[5.0f32, 0.5, 40.0]).unwrap();
        let mut turns = unwritten(on, 1, 9u32);
        until(on, 3, &mut y, &mut turns).unwrap();
        assert_eq!(on.read_blocking(&y).unwrap(), [0.625, 0.5, 0.625]);
        assert_eq!(on.read_blocking(&turns).unwrap(), [6]);
    });
}

#[test]
fn launches_are_refused() {
    let on = Device::cpu().unwrap().stream::<Work>().unwrap();
    let (short, mut y) = (unwritten(&on, 9, 0.0f32), unwritten(&on, 10, 0.0f32));
    let error = saxpy(&on, 10, 1.0, &short, &mut y).unwrap_err().to_string();
    assert!(error.contains("declares `x` with extents [10], but was given 9 elements"), "{error}");
    let error = blur(&on, 1 << 31, 2, &short, &mut y).unwrap_err().to_string();
    assert!(error.contains("extents [2147483648, 2]"), "{error}");
    let error = double(&on, 10, 0, &mut y).unwrap_err().to_string();
    assert!(error.contains("requires `(1..=65535).contains(&blocks)`"), "{error}");
}

#[test]
fn an_index_from_memory_is_checked() {
    let report = reported(|on| {
        let (index, x) = (on.upload_blocking(&[0u32, 3]).unwrap(), on.upload_blocking(&[1.0f32; 3]).unwrap());
        gather(on, 2, 3, &index, &x, &mut on.upload_blocking(&[0.0f32; 2]).unwrap())
    });
    assert!(report.contains("read element [3] of a buffer with extents [3]"), "{report}");
    assert!(report.contains("thread [1, 0, 0]"), "{report}");
}
