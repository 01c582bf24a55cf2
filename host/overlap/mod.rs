//! Overlap patterns: copies and kernels that run at the same time, as functions to call.
//!
//! Find your situation, run the example (`cargo run --release --example NAME -- --timeline out.svg`), look at the picture, and
//! copy its ten lines. Each pattern gives what [`serial`](fn@serial) gives, bit for bit; only the time differs.
//!
//! | your situation | pattern | what overlaps |
//! |---|---|---|
//! | nothing is slow yet, or something to compare with | [`serial`](fn@serial) | nothing |
//! | one large buffer, two or more copy engines | [`interleaved`](fn@interleaved) | upload, kernel and download of successive chunks, on a stream each |
//! | one large buffer, one copy engine | [`grouped`](fn@grouped); [`choose`] decides and says why | the same, enqueued as all uploads, then all kernels, then all downloads |
//! | a sequence of frames of one size | [`double_buffer`](fn@double_buffer) | loading and uploading frame N + 1 with the work on frame N |
//! | one stream makes what another uses, on the device | [`producer_consumer`](fn@producer_consumer) | both streams, with no wait on the host |
//! | several kernels in a row over many images | [`three_stream`](fn@three_stream) | each stage with the other stages of the images around it |
//! | many small pieces of work, each too little for the device | [`stream_pool`](fn@stream_pool) | the pieces with each other |
//! | several readers of one buffer | [`shared_read`](fn@shared_read) | the readers, without a copy for each |
//! | small urgent work beside a busy device | [`priority`](fn@priority) measures what a priority is worth | the urgent work with the rest |
//! | work on the host before and after that on the device | [`per_thread`](fn@per_thread) | threads of the host, and their streams |
//! | a chain of small kernels, again and again | [`graph_replay`](fn@graph_replay) | nothing; the gaps between the kernels close |
//! | something else to do while the device works | [`query_poll`](fn@query_poll), or `.await` | the host with the device |
//!
//! The first three take one buffer in page-locked memory, cut it into [`Chunks`], and put each through a [`Stage`]. The frame patterns
//! send slots round: composites of buffers that the caller makes once, so that nothing is allocated for a frame. None of
//! them waits on the host in the middle, except where its description says so.
//!
//! After an error the memory of everything under way is given back once the device is past it; nobody waits for that.
//!
//! ```
//! use thalweg::overlap::{Chunks, interleaved};
//! use thalweg::{AnyStream, Device, Timeline};
//!
//! let gpu = Device::best()?;
//! let streams = [AnyStream::new(gpu)?, AnyStream::new(gpu)?, AnyStream::new(gpu)?];
//! let input = gpu.pinned_from(&(0..1000u32).collect::<Vec<_>>())?;
//! let (input, output) = interleaved(&streams, input, Chunks::new(16), |s, x, y| s.copy(x, y), &Timeline::off())?;
//! assert_eq!(*input, *output);
//! # Ok::<(), thalweg::Error>(())
//! ```

pub mod double_buffer;
pub mod graph_replay;
pub mod grouped;
pub mod interleaved;
pub mod per_thread;
pub mod priority;
pub mod producer_consumer;
pub mod query_poll;
pub mod serial;
pub mod shared_read;
mod steps;
pub mod stream_pool;
pub mod three_stream;

use std::collections::VecDeque;

pub use double_buffer::{Frame, double_buffer};
pub use graph_replay::graph_replay;
pub use grouped::{Choice, Order, StageTimes, choose, grouped, measure};
pub use interleaved::interleaved;
pub use per_thread::per_thread;
pub use priority::{Latency, PriorityGain, priority};
pub use producer_consumer::{Handoffs, producer_consumer};
pub use query_poll::query_poll;
pub use serial::{pageable, serial};
pub use shared_read::shared_read;
pub use stream_pool::stream_pool;
pub use three_stream::three_stream;

use thalweg_simt::host::counted;

use crate::DeviceSlice;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::lane::{AnyStream, Lane};
use crate::memory::{DeviceBuffer, PinnedBuffer, Plain};
use crate::resource::Resource;
use crate::runtime::device::Device;
use crate::stream::Stream;
use crate::timeline::Timeline;

/// What is done with a chunk: enqueues, on the stream, whatever makes the second slice from the first.
///
/// Every closure of this shape is one; a function that is generic over streams is passed as `|s, x, y| f(s, x, y)`. It is called once a
/// chunk, in order, and its results must not depend on how the data was cut. What it needs besides, such as scratch memory, it can keep in a
/// [`Ring`](crate::Ring).
pub trait Stage<T: Plain, U: Plain>:
    for<'l> FnMut(&Stream<Lane<'l>>, &DeviceSlice<Lane<'l>, T>, &mut DeviceSlice<Lane<'l>, U>) -> Result<()>
{
}

impl<T: Plain, U: Plain, F> Stage<T, U> for F where
    F: for<'l> FnMut(&Stream<Lane<'l>>, &DeviceSlice<Lane<'l>, T>, &mut DeviceSlice<Lane<'l>, U>) -> Result<()>
{
}

/// How a buffer is cut: into so many chunks of whole items, as equal as can be, the longer ones first.
///
/// Where there are fewer items than chunks, there is a chunk for each item. A count of 0 is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    count: usize,
    input: usize,
    output: usize,
}

impl Chunks {
    /// `count` chunks of elements, each of which becomes one element.
    pub const fn new(count: usize) -> Self {
        Self::of_items(count, 1, 1)
    }

    /// `count` chunks of items of `input` elements, each of which becomes `output` elements: images, or strips of one.
    pub const fn of_items(count: usize, input: usize, output: usize) -> Self {
        Self { count, input, output }
    }

    /// The items in `len` elements.
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

    /// The elements that `items` items become.
    fn output(self, items: usize) -> Result<usize> {
        items.checked_mul(self.output).ok_or(Error::TooLarge { elements: items, size: self.output })
    }

    /// Cuts the input, and an output to match. The first pieces are the longest; there are none where there is no input.
    fn cut<T: Plain, U: Plain>(self, input: PinnedBuffer<T>) -> Result<Vec<(PinnedBuffer<T>, PinnedBuffer<U>)>> {
        let items = self.items(input.len())?;
        let output = input.device().pinned::<U>(self.output(items)?)?;
        let n = self.count.min(items);
        let input = input.split_items(n, self.input);
        Ok(input.into_iter().zip(output.split_items(n, self.output)).collect())
    }
}

/// Waits for the pieces that [`Chunks::cut`] made of a buffer of `device`, and joins them.
fn join<T: Plain, U: Plain>(
    device: Device,
    pieces: Vec<Event<(PinnedBuffer<T>, PinnedBuffer<U>)>>,
    timeline: &Timeline,
) -> Result<(PinnedBuffer<T>, PinnedBuffer<U>)> {
    let wait = |event: Event<_>| timeline.wait("host", "result", || event.synchronize());
    let (input, output): (Vec<_>, Vec<_>) =
        pieces.into_iter().map(wait).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    Ok((whole(device, input)?, whole(device, output)?))
}

fn whole<T: Plain>(device: Device, pieces: Vec<PinnedBuffer<T>>) -> Result<PinnedBuffer<T>> {
    // Pieces of nothing belong to no allocation.
    if pieces.iter().all(|piece| piece.is_empty()) { device.pinned(0) } else { Ok(PinnedBuffer::join(pieces)?) }
}

/// A device buffer that no stream orders yet. Waits for its allocation.
fn device_buffer<T: Plain>(device: Device, len: usize) -> Result<DeviceBuffer<T>> {
    AnyStream::new(device)?.enter(|s| s.alloc(len)?.idle())
}

fn some_streams(streams: &[AnyStream]) -> Result<&AnyStream> {
    streams.first().ok_or_else(|| none_given("streams"))
}

fn none_given(name: &'static str) -> Error {
    Error::Parameter { name, given: "none".into(), expected: "at least 1".into() }
}

/// Sends slots round: `load` fills one on the host, `enqueue` sends it through streams without waiting, and once its event is complete `take`
/// looks at the results on the host, before the next `load` of that slot. Ends when `load` says that there is no more.
///
/// When `load` or `enqueue` fails, the frames before are still taken, and then the error is returned.
fn frames<R: Resource>(
    slots: Vec<R>,
    timeline: &Timeline,
    mut load: impl FnMut(usize, &mut R) -> Result<bool>,
    mut enqueue: impl FnMut(usize, R) -> Result<Event<R>>,
    mut take: impl FnMut(usize, &mut R) -> Result<()>,
) -> Result<Vec<R>> {
    if slots.is_empty() {
        return Err(none_given("slots"));
    }
    let mut under_way = VecDeque::with_capacity(slots.len());
    let mut idle = slots;
    let mut taken = 0;
    let mut finish = |event: Event<R>| -> Result<R> {
        let mut slot = timeline.wait("host", &format!("frame {taken}"), || event.synchronize())?;
        timeline.host("host", &format!("take {taken}"), || take(taken, &mut slot))?;
        taken += 1;
        Ok(slot)
    };
    let mut sent = 0;
    let ended = loop {
        let mut slot = match idle.pop() {
            Some(slot) => slot,
            None => match under_way.pop_front() {
                Some(first) => finish(first)?,
                None => unreachable!("every slot is idle or under way"),
            },
        };
        match timeline.host("host", &format!("load {sent}"), || load(sent, &mut slot)) {
            Ok(true) => {}
            Ok(false) => {
                idle.push(slot);
                break Ok(());
            }
            Err(error) => break Err(error),
        }
        match enqueue(sent, slot) {
            Ok(event) => under_way.push_back(event),
            Err(error) => break Err(error),
        }
        sent += 1;
    };
    for event in under_way {
        idle.push(finish(event)?);
    }
    ended.map(|()| idle)
}
