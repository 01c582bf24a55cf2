//! Overlap patterns: functions that run copies and kernels at the same time.
//!
//! Find your situation, run the example (`cargo run --release --example NAME -- --timeline
//! out.svg`), look at the picture, and copy its ten lines. Overlap changes only the time: the
//! results are those of the same work one step at a time ([`serial`](fn@serial)), bit for bit.
//!
//! | your situation | pattern | what overlaps |
//! |---|---|---|
//! | nothing is slow yet, or you need a baseline | [`serial`](fn@serial) | nothing |
//! | one large buffer, two or more copy engines | [`interleaved`](fn@interleaved) | upload, kernel and download of successive chunks, each on its own stream |
//! | one large buffer, one copy engine | [`grouped`](fn@grouped); [`choose`] picks one of the two and says why | the same steps, enqueued as all uploads, then all kernels, then all downloads |
//! | a sequence of frames of one size | [`stages`](fn@stages), example `double_buffer` | loading and uploading frame N + 1 with the work on frame N |
//! | one stream produces on the device what another uses | [`stages`](fn@stages), example `producer_consumer` | both streams, and the host does not wait between items |
//! | several kernels in a row over many images | [`stages`](fn@stages), example `three_stream` | the upload and three stages of successive images, on four streams |
//! | any number of stages over many items | [`stages`](fn@stages) | the stages of successive items, each on its own stream |
//! | many small pieces of work, each too little for the device | [`stream_pool`](fn@stream_pool) | the pieces with each other |
//! | several readers of one buffer | [`shared_read`](fn@shared_read) | the readers, without a copy for each |
//! | small urgent work beside a busy device | [`measure_priority`] measures what a priority gains | the urgent work with the rest |
//! | work on the host before and after work on the device | [`per_thread`](fn@per_thread) | threads of the host, and their streams |
//! | a chain of small kernels, again and again | [`GraphCache`](crate::GraphCache), example `graph_replay` | nothing, but the gaps between the kernels close |
//! | the host has other work while the device is busy | [`query_poll`](fn@query_poll), or `.await` | the host with the device |
//!
//! The first three take one buffer in page-locked memory, cut it into [`Chunks`], and put each
//! chunk through a [`Stage`]. [`stages`](fn@stages) uses the slots of a [`Ring`](crate::Ring) in
//! turn. A slot is a composite of buffers that the caller makes once, so no buffer is allocated for
//! an item. The host waits in the middle of a pattern only if the description of the pattern says
//! so.
//!
//! After an error, the memory of all work under way is freed once the device has finished that
//! work. The host does not wait for it.
//!
//! ```
//! use thalweg::overlap::{Chunks, interleaved};
//! use thalweg::{AnyStream, Device, Timeline};
//!
//! let gpu = Device::best()?;
//! let streams = [AnyStream::new(gpu)?, AnyStream::new(gpu)?, AnyStream::new(gpu)?];
//! let input = gpu.pinned_from(&(0..1000u32).collect::<Vec<_>>())?;
//! let (input, output) = interleaved(&streams, input, Chunks::new(16), |s, x, y| s.copy(x, y), &Timeline::disabled())?;
//! assert_eq!(*input, *output);
//! # Ok::<(), thalweg::Error>(())
//! ```

pub mod grouped;
pub mod interleaved;
pub mod per_thread;
pub mod priority;
pub mod query_poll;
pub mod serial;
pub mod shared_read;
pub mod stages;
mod steps;
pub mod stream_pool;

pub use grouped::{Choice, ChunkOrder, StageTimes, choose, grouped, measure_stages};
pub use interleaved::interleaved;
pub use per_thread::per_thread;
pub use priority::{Latency, PriorityGain, measure_priority};
pub use query_poll::query_poll;
pub use serial::{serial, serial_pageable};
pub use shared_read::shared_read;
pub use stages::{Stages, stages};
pub use stream_pool::stream_pool;

use thalweg_simt::host::counted;

use crate::DeviceSlice;
use crate::any_stream::{AnyStream, Scoped};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::memory::{DeviceCopy, PinnedBuffer};
use crate::runtime::device::Device;
use crate::stream::Stream;
use crate::timeline::Timeline;

/// The work on a chunk: it enqueues, on the stream, the operations that compute the second slice
/// from the first.
///
/// Every closure of this shape is a stage. Pass a function that is generic over streams as `|s, x,
/// y| f(s, x, y)`. A stage is called once for each chunk, in order. Its results must not depend on
/// how the data was cut. It can keep scratch memory in a [`Ring`](crate::Ring).
pub trait Stage<T: DeviceCopy, U: DeviceCopy>:
    for<'l> FnMut(&Stream<Scoped<'l>>, &DeviceSlice<Scoped<'l>, T>, &mut DeviceSlice<Scoped<'l>, U>) -> Result<()>
{
}

impl<T: DeviceCopy, U: DeviceCopy, F> Stage<T, U> for F where
    F: for<'l> FnMut(&Stream<Scoped<'l>>, &DeviceSlice<Scoped<'l>, T>, &mut DeviceSlice<Scoped<'l>, U>) -> Result<()>
{
}

/// The division of a buffer into chunks of whole items. The chunks are as equal as possible, and
/// the longer ones come first.
///
/// If there are fewer items than chunks, each item is a chunk. A count of 0 is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    count: usize,
    input: usize,
    output: usize,
}

impl Chunks {
    /// Cuts into `count` chunks of elements. Each element of input becomes one element of output.
    pub const fn new(count: usize) -> Self {
        Self::of_items(count, 1, 1)
    }

    /// Cuts into `count` chunks of items, such as images or strips of one image. Each item has
    /// `input` elements of input and becomes `output` elements.
    pub const fn of_items(count: usize, input: usize, output: usize) -> Self {
        Self { count, input, output }
    }

    /// The number of items in `len` elements.
    fn items(self, len: usize) -> Result<usize> {
        if self.count == 0 {
            return Err(Error::Parameter { name: "chunks", given: "0".into(), expected: "at least 1".into() });
        }
        if self.input == 0 || !len.is_multiple_of(self.input) {
            let given = format!("{} in items of {}", counted(len, "element"), self.input);
            return Err(Error::Parameter { name: "input", given, expected: "a whole number of items".into() });
        }
        Ok(len / self.input)
    }

    /// The number of elements that `items` items become.
    fn output(self, items: usize) -> Result<usize> {
        items.checked_mul(self.output).ok_or(Error::TooLarge { elements: items, size: self.output })
    }

    /// Cuts the input, and a new output of matching size. The first pieces are the longest. An
    /// empty input gives no pieces.
    fn cut<T: DeviceCopy, U: DeviceCopy>(
        self,
        input: PinnedBuffer<T>,
    ) -> Result<Vec<(PinnedBuffer<T>, PinnedBuffer<U>)>> {
        let items = self.items(input.len())?;
        let output = input.device().pinned::<U>(self.output(items)?)?;
        let n = self.count.min(items);
        let input = input.split_items(n, self.input)?;
        Ok(input.into_iter().zip(output.split_items(n, self.output)?).collect())
    }
}

/// Waits for the pieces that [`Chunks::cut`] made of a buffer of `device`, and joins them.
fn join<T: DeviceCopy, U: DeviceCopy>(
    device: Device,
    pieces: Vec<Event<(PinnedBuffer<T>, PinnedBuffer<U>)>>,
    timeline: &Timeline,
) -> Result<(PinnedBuffer<T>, PinnedBuffer<U>)> {
    let wait = |event: Event<_>| timeline.wait("host", "result", || event.synchronize());
    let (input, output): (Vec<_>, Vec<_>) =
        pieces.into_iter().map(wait).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    Ok((whole(device, input)?, whole(device, output)?))
}

fn whole<T: DeviceCopy>(device: Device, pieces: Vec<PinnedBuffer<T>>) -> Result<PinnedBuffer<T>> {
    // Empty pieces belong to no allocation, so `join` cannot put them together.
    if pieces.iter().all(|piece| piece.is_empty()) { device.pinned(0) } else { Ok(PinnedBuffer::join(pieces)?) }
}

fn some_streams(streams: &[AnyStream]) -> Result<&AnyStream> {
    let none = || Error::Parameter { name: "streams", given: "none".into(), expected: "at least 1".into() };
    streams.first().ok_or_else(none)
}
