//! Measures what the machine itself can do. All other times are compared with these limits.

use std::time::Instant;

use thalweg::{DeviceBuffer, On, stream_tags};
use thalweg_vision::kernels;

use crate::Result;
use crate::bencher::{Bencher, Time, median, micros};
use crate::images::Size;
use crate::record::{Limit, Row};

stream_tags!(Back);

/// The bytes of a transfer between host and device, which are those of a 4K frame.
const FRAME: usize = 3 * 2160 * 3840;
/// The number of transfers or launches in a sample.
const MANY: usize = 20;

/// The rate of an upload, with which the rows of the pipeline are compared.
pub(crate) struct Limits {
    pub(crate) upload_us_per_byte: f64,
}

impl Limits {
    /// Returns the time of an upload of `bytes` bytes.
    pub(crate) fn upload(&self, bytes: usize) -> Limit {
        Limit { name: "H2D".into(), us: self.upload_us_per_byte * bytes as f64, us_in_a_row: None }
    }
}

pub(crate) fn measure(bench: &mut Bencher, sizes: &[Size]) -> Result<Limits> {
    for size in sizes {
        // These are the bytes per pixel that `textures` moves, and those of an image.
        for bytes in [55, 3].map(|bytes| bytes * size.pixels()) {
            let copy = bench.copy(bytes)?;
            row(bench, "copy (read + write)", size.name, copy, bytes);
        }
        let mut buffers = bench.sets::<f32>(13 * size.pixels())?;
        let (sets, stream) = (buffers.len(), bench.stream);
        let fill = bench.time(1, |i| Ok(stream.zero(&mut buffers[i % sets])?))?;
        row(bench, "fill", size.name, fill, 52 * size.pixels());
    }
    if !bench.is_gpu() {
        let time = memcpy(bench.device.multiprocessors() as usize);
        row(bench, "memcpy, all threads (read + write)", "", Time { one: time, row: time }, 2 * FRAME);
    }

    let (stream, device) = (bench.stream, bench.device);
    let from = stream.bind(device.pinned_from(&vec![1u8; FRAME])?)?;
    let mut to = stream.alloc::<u8>(FRAME)?;
    let upload = bench.time(1, |_| Ok(stream.copy_to_device(&from, &mut to)?))?;
    row(bench, "H2D, pinned", "", upload, FRAME);
    let mut back = stream.bind(device.pinned::<u8>(FRAME)?)?;
    let download = bench.time(1, |_| Ok(stream.copy_to_host(&to, &mut back)?))?;
    row(bench, "D2H, pinned", "", download, FRAME);
    drop(from);
    let both = both_ways(bench, to, back)?;
    row(bench, "H2D and D2H at once", "", Time { one: both, row: both }, 2 * FRAME);

    // This launch does almost no work.
    let (rgb, mut planes) = (stream.alloc_zeroed(12)?, stream.alloc(52)?);
    let mut launch = || Ok(kernels::textures(&stream, 1, 4, 0.5, 0.5, &rgb, &mut planes)?);
    let device_time = bench.time(1, |_| launch())?;
    let mut host_times = vec![];
    for _ in 0..MANY {
        stream.synchronize()?;
        let start = Instant::now();
        (0..MANY).try_for_each(|_| launch())?;
        host_times.push(micros(Some(start.elapsed())) / MANY as f64);
    }
    stream.synchronize()?;
    let host_time = median(host_times);
    row(bench, "launch, on the host", "", Time { one: host_time, row: host_time }, 0);
    row(bench, "launch, on the device", "", device_time, 0);
    Ok(Limits { upload_us_per_byte: upload.row / FRAME as f64 })
}

fn row(bench: &mut Bencher, name: &str, size: &str, time: Time, bytes: usize) {
    bench.record.push(Row {
        section: "limits".into(),
        name: name.into(),
        by: "machine".into(),
        content: String::new(),
        size: size.into(),
        us: time.one,
        us_in_a_row: Some(time.row),
        bytes: (bytes > 0).then_some(bytes as f64),
        limit: None,
        images: None,
    });
}

/// Returns the microseconds of an upload and a download that run at once, as the mean of many of
/// each.
fn both_ways(
    bench: &Bencher,
    to: On<crate::bencher::Bench, DeviceBuffer<u8>>,
    back: On<crate::bencher::Bench, thalweg::PinnedBuffer<u8>>,
) -> Result<f64> {
    let (up, down) = (bench.stream, bench.device.stream::<Back>()?);
    let from = up.bind(bench.device.pinned_from(&vec![2u8; FRAME])?)?;
    let mut target = up.alloc::<u8>(FRAME)?;
    let start = up.timestamp()?;
    let (to, mut back) = up.hand_off((to, back), &down)?;
    for _ in 0..MANY {
        up.copy_to_device(&from, &mut target)?;
        down.copy_to_host(&to, &mut back)?;
    }
    let ends = [up.timestamp()?, down.timestamp()?];
    up.synchronize()?;
    down.synchronize()?;
    let mut longest = 0.0;
    for end in ends {
        longest = micros(end.elapsed(&start)?).max(longest);
    }
    Ok(longest / MANY as f64)
}

/// Returns the microseconds in which `threads` threads together copy the bytes of a frame.
fn memcpy(threads: usize) -> f64 {
    let (from, mut to) = (vec![1u8; FRAME], vec![0u8; FRAME]);
    let share = FRAME.div_ceil(threads);
    let once = |to: &mut [u8]| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (from, to) in from.chunks(share).zip(to.chunks_mut(share)) {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
        micros(Some(start.elapsed()))
    };
    let times = (0..MANY).map(|_| once(&mut to)).collect();
    assert_eq!(from, to);
    median(times)
}
