//! The steps of a chunk, and which stream runs which step. [`interleaved`](fn@super::interleaved)
//! and [`grouped`](super::grouped()) share them.

use super::Stage;
use crate::any_stream::AnyStream;
use crate::error::Result;
use crate::event::Event;
use crate::memory::{DeviceBuffer, DeviceCopy, PinnedBuffer};
use crate::timeline::{Activity, Timeline};

/// Returns the number of the stream, of `streams`, that runs a step of a chunk. Step 0 is the
/// upload, 1 the kernel, 2 the download.
pub(super) fn stream_of(step: usize, chunk: usize, streams: usize) -> usize {
    let last = streams - 1;
    match step {
        0 => 0,
        1 => (1 + chunk % last.saturating_sub(1).max(1)).min(last),
        _ => last,
    }
}

/// Enqueues the steps of chunks with device buffers that are used in turn. A buffer for input comes
/// back after the kernel that reads it, and a buffer for results after the download.
pub(super) struct Steps<'a, T: DeviceCopy, U: DeviceCopy> {
    streams: &'a [AnyStream],
    timeline: &'a Timeline,
    /// Elements of the longest input and of the longest result.
    lengths: [usize; 2],
    /// Buffers that came back, each at the place of the chunks that use it. A place is empty until
    /// its first chunk has used a buffer.
    inputs: Vec<Option<Event<DeviceBuffer<T>>>>,
    results: Vec<Option<Event<DeviceBuffer<U>>>>,
}

/// A chunk after its upload, with its page-locked input, which goes back to the caller.
type Uploaded<T> = Event<(DeviceBuffer<T>, PinnedBuffer<T>)>;
/// The results of a chunk after its kernel, with its page-locked input.
type Computed<T, U> = Event<(DeviceBuffer<U>, PinnedBuffer<T>)>;

impl<'a, T: DeviceCopy, U: DeviceCopy> Steps<'a, T, U> {
    /// Prepares the steps for these pieces, the longest of which come first, with `depth` device
    /// buffers of each kind.
    pub(super) fn new(
        streams: &'a [AnyStream],
        pieces: &[(PinnedBuffer<T>, PinnedBuffer<U>)],
        depth: usize,
        timeline: &'a Timeline,
    ) -> Self {
        let lengths = pieces.first().map_or([0; 2], |(x, y)| [x.len(), y.len()]);
        let (inputs, results) = ((0..depth).map(|_| None).collect(), (0..depth).map(|_| None).collect());
        Self { streams, timeline, lengths, inputs, results }
    }

    fn stream(&self, step: usize, chunk: usize) -> &'a AnyStream {
        &self.streams[stream_of(step, chunk, self.streams.len())]
    }

    pub(super) fn upload(&mut self, chunk: usize, input: PinnedBuffer<T>) -> Result<Uploaded<T>> {
        let place = chunk % self.inputs.len();
        let back = self.inputs[place].take();
        self.stream(0, chunk).enter(|s| {
            let mut x = match back {
                Some(x) => s.wait(x)?,
                None => s.alloc(self.lengths[0])?,
            };
            let input = s.bind(input)?;
            let to = x.slice_mut(..input.len())?;
            self.timeline
                .span(s, Activity::Upload, &self.timeline.label("chunk", chunk), || s.copy_to_device(&input, to))?;
            Ok(s.record((x, input))?)
        })
    }

    pub(super) fn compute(
        &mut self,
        chunk: usize,
        uploaded: Uploaded<T>,
        results: usize,
        stage: &mut impl Stage<T, U>,
    ) -> Result<Computed<T, U>> {
        let place = chunk % self.results.len();
        let back = self.results[place].take();
        let (x, computed) = self.stream(1, chunk).enter(|s| {
            let (x, input) = s.wait(uploaded)?;
            let mut y = match back {
                Some(y) => s.wait(y)?,
                None => s.alloc(self.lengths[1])?,
            };
            let (from, to) = (x.slice(..input.len())?, y.slice_mut(..results)?);
            self.timeline.span(s, Activity::Compute, &self.timeline.label("chunk", chunk), || stage(s, from, to))?;
            Ok::<_, crate::Error>((s.record(x)?, s.record((y, input))?))
        })?;
        self.inputs[place] = Some(x);
        Ok(computed)
    }

    pub(super) fn download(
        &mut self,
        chunk: usize,
        computed: Computed<T, U>,
        output: PinnedBuffer<U>,
    ) -> Result<Event<(PinnedBuffer<T>, PinnedBuffer<U>)>> {
        let place = chunk % self.results.len();
        let (y, done) = self.stream(2, chunk).enter(|s| {
            let (y, input) = s.wait(computed)?;
            let mut output = s.bind(output)?;
            let from = y.slice(..output.len())?;
            self.timeline.span(s, Activity::Download, &self.timeline.label("chunk", chunk), || {
                s.copy_to_host(from, &mut output)
            })?;
            Ok::<_, crate::Error>((s.record(y)?, s.record((input, output))?))
        })?;
        self.results[place] = Some(y);
        Ok(done)
    }
}
