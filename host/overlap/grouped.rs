//! Enqueues all uploads, then all kernels, then all downloads; and chooses between this order and
//! [`interleaved`](fn@interleaved).
//!
//! ```text
//! first     | up 0 | up 1 | up 2 |
//! between          | kernel 0 | kernel 1 | kernel 2 |
//! last                           | down 0 |  | down 1 |  | down 2 |
//! ```
//!
//! A device with one copy engine runs copies in the order in which they were enqueued. In the
//! interleaved order, the download of a chunk is ahead of the next chunk's upload and waits for its
//! kernel, so nothing overlaps. In the grouped order, uploads go on during the kernels. With two
//! engines the grouped order gains nothing, and it needs device memory for all chunks at once.

use std::fmt;
use std::time::Duration;

use super::steps::{Steps, stream_of};
use super::{Chunks, Stage, interleaved, join, some_streams};
use crate::any_stream::AnyStream;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::memory::{DeviceCopy, PinnedBuffer};
use crate::runtime::device::Device;
use crate::timeline::Timeline;

/// Enqueues the uploads of all chunks, then `stage` for all, then all downloads.
///
/// Each stream does what it does in [`interleaved`](fn@interleaved): the first one uploads, the
/// last one downloads, and those between run `stage`. Every chunk has its own device buffers. The
/// host enqueues everything, and then waits for the results. Returns the input and the output.
///
/// # Errors
/// The same as for [`interleaved`](fn@interleaved).
pub fn grouped<T: DeviceCopy, U: DeviceCopy>(
    streams: &[AnyStream],
    input: PinnedBuffer<T>,
    chunks: Chunks,
    mut stage: impl Stage<T, U>,
    timeline: &Timeline,
) -> Result<(PinnedBuffer<T>, PinnedBuffer<U>)> {
    let device = some_streams(streams)?.device();
    let pieces = chunks.cut(input)?;
    let mut steps = Steps::new(streams, &pieces, pieces.len(), timeline);
    let (inputs, outputs): (Vec<_>, Vec<_>) = pieces.into_iter().unzip();
    let mut uploaded = Vec::with_capacity(inputs.len());
    for (i, input) in inputs.into_iter().enumerate() {
        uploaded.push(steps.upload(i, input)?);
    }
    let mut computed = Vec::with_capacity(uploaded.len());
    for (i, (chunk, output)) in uploaded.into_iter().zip(&outputs).enumerate() {
        computed.push(steps.compute(i, chunk, output.len(), &mut stage)?);
    }
    let mut done = Vec::with_capacity(computed.len());
    for (i, (chunk, output)) in computed.into_iter().zip(outputs).enumerate() {
        done.push(steps.download(i, chunk, output)?);
    }
    join(device, done, timeline)
}

/// The time that one chunk takes in each step when nothing else runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTimes {
    /// The copy from the host to the device.
    pub upload: Duration,
    /// The stage.
    pub kernel: Duration,
    /// The copy from the device to the host.
    pub download: Duration,
}

impl StageTimes {
    /// The time of the slowest step. With any overlap, the time per chunk is at least this.
    pub fn longest(&self) -> Duration {
        self.upload.max(self.kernel).max(self.download)
    }

    /// The time of all three steps, one after another.
    pub fn sum(&self) -> Duration {
        self.upload.saturating_add(self.kernel).saturating_add(self.download)
    }
}

impl fmt::Display for StageTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upload {:.2?}, kernel {:.2?}, download {:.2?}", self.upload, self.kernel, self.download)
    }
}

/// Runs the first chunk a few times on one stream, and returns the least time of each step and the
/// input. Waits.
///
/// # Errors
/// The count of chunks is 0, the input is not a whole number of items, there is not enough memory,
/// the device has failed, or `stage` returns an error.
pub fn measure_stages<T: DeviceCopy, U: DeviceCopy>(
    stream: &AnyStream,
    input: PinnedBuffer<T>,
    chunks: Chunks,
    mut stage: impl Stage<T, U>,
) -> Result<(StageTimes, PinnedBuffer<T>)> {
    let mut pieces = chunks.cut::<T, U>(input)?.into_iter();
    let mut times = StageTimes { upload: Duration::MAX, kernel: Duration::MAX, download: Duration::MAX };
    let mut measured = Vec::with_capacity(pieces.len());
    let Some((input, output)) = pieces.next() else {
        let zero = Duration::ZERO;
        return Ok((StageTimes { upload: zero, kernel: zero, download: zero }, stream.device().pinned(0)?));
    };
    measured.push(stream.enter(|s| {
        let (mut x, mut y) = (s.alloc(input.len())?, s.alloc(output.len())?);
        let (input, mut output) = s.bind((input, output))?;
        for run in 0..4 {
            let start = s.timestamp()?;
            s.copy_to_device(&input, &mut x)?;
            let uploaded = s.timestamp()?;
            stage(s, &x, &mut y)?;
            let computed = s.timestamp()?;
            s.copy_to_host(&y, &mut output)?;
            let downloaded = s.timestamp()?;
            s.synchronize()?;
            // The first run may still load the kernel.
            if run > 0 {
                let since = |end: &crate::TimedEvent, start| Ok::<_, Error>(end.elapsed(start)?.unwrap_or_default());
                times.upload = times.upload.min(since(&uploaded, &start)?);
                times.kernel = times.kernel.min(since(&computed, &uploaded)?);
                times.download = times.download.min(since(&downloaded, &computed)?);
            }
        }
        Ok::<_, Error>(s.record((input, output))?)
    })?);
    measured.extend(pieces.map(Event::ready));
    let (input, _) = join(stream.device(), measured, &Timeline::disabled())?;
    Ok((times, input))
}

/// The order in which the steps of all chunks are enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkOrder {
    /// The order of [`interleaved`](fn@interleaved).
    Interleaved,
    /// The order of [`grouped`](fn@grouped).
    Grouped,
}

/// The chosen order, and the reason, which `Display` writes as a line of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The order to use.
    pub order: ChunkOrder,
    /// The number of copy engines of the device.
    pub copy_engines: u32,
    /// The measured times of one chunk.
    pub times: StageTimes,
    /// The predicted time of [`interleaved`](fn@interleaved) for all chunks.
    pub interleaved: Duration,
    /// The predicted time of [`grouped`](fn@grouped) for all chunks.
    pub grouped: Duration,
}

/// Chooses the order that should take less time on `device`, for this number of chunks and streams.
/// It simulates both orders with the device's copy engines, the steps of each stream, and the times
/// of one chunk ([`measure_stages`]). If the two orders take the same time, it chooses the
/// interleaved one, which needs less memory.
///
/// ```
/// use std::time::Duration;
/// use thalweg::Device;
/// use thalweg::overlap::{StageTimes, choose};
///
/// let ms = Duration::from_millis(1);
/// println!("{}", choose(Device::best()?, 16, 3, StageTimes { upload: ms, kernel: ms, download: ms }));
/// # Ok::<(), thalweg::Error>(())
/// ```
pub fn choose(device: Device, chunks: usize, streams: usize, times: StageTimes) -> Choice {
    decide(device.copy_engines(), chunks, streams, times)
}

fn decide(copy_engines: u32, chunks: usize, streams: usize, times: StageTimes) -> Choice {
    let [interleaved, grouped] = [ChunkOrder::Interleaved, ChunkOrder::Grouped]
        .map(|order| predict(order, copy_engines, chunks, streams.max(1), times));
    let order = if grouped < interleaved { ChunkOrder::Grouped } else { ChunkOrder::Interleaved };
    Choice { order, copy_engines, times, interleaved, grouped }
}

/// The most chunks that a prediction follows one by one.
const SIMULATED: usize = 1 << 16;

/// Simulates all steps in the order in which they are enqueued, and returns their time. A step
/// starts once its engine and its stream have finished all earlier steps, and the chunk's previous
/// step is done. In reality an upload or a kernel also waits for a device buffer. That does not
/// change the total, because later steps wait for the same work anyway.
fn predict(order: ChunkOrder, copy_engines: u32, chunks: usize, streams: usize, times: StageTimes) -> Duration {
    if chunks > SIMULATED {
        // So many chunks have long been in a rhythm, so each further one takes as long as those of
        // the second half did.
        let [half, whole] = [SIMULATED / 2, SIMULATED].map(|n| predict(order, copy_engines, n, streams, times));
        let each = (whole - half).as_secs_f64() / (SIMULATED / 2) as f64;
        let rest = Duration::try_from_secs_f64(each * (chunks - SIMULATED) as f64);
        return whole.saturating_add(rest.unwrap_or(Duration::MAX));
    }
    // Further streams would get no chunk.
    let streams = streams.min(chunks + 2);
    // Pairs of a chunk and a step: 0 is the upload, 1 the kernel, 2 the download.
    let steps: Vec<_> = match order {
        ChunkOrder::Interleaved => (0..chunks).flat_map(|c| (0..3).map(move |step| (c, step))).collect(),
        ChunkOrder::Grouped => (0..3).flat_map(|step| (0..chunks).map(move |c| (c, step))).collect(),
    };
    let mut ready = vec![Duration::ZERO; chunks];
    let mut streams = vec![Duration::ZERO; streams];
    let mut engines = [Duration::ZERO; 3];
    for (chunk, step) in steps {
        let stream = stream_of(step, chunk, streams.len());
        let engine = if copy_engines < 2 && step == 2 { 0 } else { step };
        let start = engines[engine].max(streams[stream]).max(ready[chunk]);
        let end = start.saturating_add([times.upload, times.kernel, times.download][step]);
        (engines[engine], streams[stream], ready[chunk]) = (end, end, end);
    }
    streams.into_iter().max().unwrap_or_default()
}

impl Choice {
    /// Runs the chosen pattern.
    ///
    /// # Errors
    /// The same as for [`interleaved`](fn@interleaved).
    pub fn run<T: DeviceCopy, U: DeviceCopy>(
        &self,
        streams: &[AnyStream],
        input: PinnedBuffer<T>,
        chunks: Chunks,
        stage: impl Stage<T, U>,
        timeline: &Timeline,
    ) -> Result<(PinnedBuffer<T>, PinnedBuffer<U>)> {
        match self.order {
            ChunkOrder::Interleaved => interleaved(streams, input, chunks, stage, timeline),
            ChunkOrder::Grouped => grouped(streams, input, chunks, stage, timeline),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, why) = match self.order {
            ChunkOrder::Interleaved if self.interleaved < self.grouped => ("interleaved", "is predicted to be faster"),
            ChunkOrder::Interleaved => ("interleaved", "is predicted to be as fast, and needs less device memory"),
            ChunkOrder::Grouped => ("grouped", "is predicted to be faster"),
        };
        write!(
            f,
            "{name} {why}: {} copy engine(s); a chunk: {}; all chunks: interleaved {:.2?}, grouped {:.2?}",
            self.copy_engines, self.times, self.interleaved, self.grouped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(upload: u64, kernel: u64, download: u64) -> StageTimes {
        let [upload, kernel, download] = [upload, kernel, download].map(Duration::from_millis);
        StageTimes { upload, kernel, download }
    }

    #[test]
    fn one_copy_engine_wants_groups() {
        let choice = decide(1, 8, 8, ms(2, 2, 2));
        // In the interleaved order each upload waits for the download before it, which waits for
        // its kernel.
        assert_eq!((choice.order, choice.interleaved.as_millis()), (ChunkOrder::Grouped, 8 * 6));
        assert_eq!(choice.grouped.as_millis(), 8 * 2 + 8 * 2);
    }

    #[test]
    fn two_copy_engines_do_not() {
        let choice = decide(2, 8, 3, ms(2, 2, 2));
        // The time is one step of all chunks, and the other two steps of one chunk.
        assert_eq!((choice.order, choice.interleaved.as_millis()), (ChunkOrder::Interleaved, 8 * 2 + 4));
        assert_eq!(decide(2, 8, 8, ms(1, 5, 1)).interleaved.as_millis(), 8 * 5 + 2);
        assert_eq!(decide(3, 0, 0, ms(1, 5, 1)).interleaved, Duration::ZERO);
    }

    #[test]
    fn streams_limit_what_overlaps() {
        // On two streams a chunk's download is ahead of the next kernel. On one stream, no steps
        // overlap.
        assert_eq!(decide(2, 8, 2, ms(2, 2, 2)).interleaved.as_millis(), 2 + 8 * 4);
        assert_eq!(decide(2, 8, 1, ms(2, 2, 2)).interleaved.as_millis(), 8 * 6);
    }

    /// Absurd numbers took all memory, and long times overflowed.
    #[test]
    fn a_prediction_takes_any_numbers() {
        let longest = StageTimes { upload: Duration::MAX, kernel: Duration::MAX, download: Duration::MAX };
        assert_eq!(longest.sum(), Duration::MAX);
        let choice = decide(1, usize::MAX, usize::MAX, longest);
        assert_eq!((choice.interleaved, choice.grouped), (Duration::MAX, Duration::MAX));
        // Beyond the chunks that are simulated, each adds its share.
        for engines in [1, 2] {
            let of = |chunks, streams| decide(engines, chunks, streams, ms(2, 3, 1));
            let (some, more) = (of(SIMULATED, 4), of(4 * SIMULATED, usize::MAX));
            for (some, more) in [(some.interleaved, more.interleaved), (some.grouped, more.grouped)] {
                assert!((3.9..4.1).contains(&(more.as_secs_f64() / some.as_secs_f64())), "{some:?}, {more:?}");
            }
        }
        assert_eq!(decide(2, 8, 10, ms(2, 2, 2)), decide(2, 8, usize::MAX, ms(2, 2, 2)), "no more streams than chunks");
    }
}
