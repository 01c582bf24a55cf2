//! Runs one step after another: the baseline for all patterns.
//!
//! ```text
//! stream  | up 0 | kernel 0 | down 0 |      | up 1 | kernel 1 | down 1 |      ...
//! host    | wait.....................| next | wait.....................| next ...
//! ```

use super::{Chunks, Stage, join};
use crate::any_stream::AnyStream;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::memory::{DeviceCopy, PinnedBuffer};
use crate::timeline::{Activity, Timeline};

/// Runs one chunk after another from page-locked memory, on one stream. The host waits for each
/// chunk. Returns the input and the output.
///
/// # Errors
/// The count of chunks is 0, the input is not a whole number of items, there is not enough memory,
/// the device has failed, or `stage` returns an error.
pub fn serial<T: DeviceCopy, U: DeviceCopy>(
    stream: &AnyStream,
    input: PinnedBuffer<T>,
    chunks: Chunks,
    mut stage: impl Stage<T, U>,
    timeline: &Timeline,
) -> Result<(PinnedBuffer<T>, PinnedBuffer<U>)> {
    let pieces = chunks.cut(input)?;
    let [longest, longest_output] = pieces.first().map_or([0; 2], |(x, y)| [x.len(), y.len()]);
    let done = stream.enter(|s| {
        let (mut x, mut y) = (s.alloc(longest)?, s.alloc(longest_output)?);
        let chunk = |(i, (input, output)): (usize, (PinnedBuffer<T>, PinnedBuffer<U>))| {
            let (x, y) = (x.slice_mut(..input.len())?, y.slice_mut(..output.len())?);
            let (input, mut output) = s.bind((input, output))?;
            let label = timeline.label("chunk", i);
            timeline.span(s, Activity::Upload, &label, || s.copy_to_device(&input, x))?;
            timeline.span(s, Activity::Compute, &label, || stage(s, x, y))?;
            timeline.span(s, Activity::Download, &label, || s.copy_to_host(y, &mut output))?;
            let done = s.record((input, output))?;
            Ok(Event::ready(timeline.wait("host", &label, || done.synchronize())?))
        };
        pieces.into_iter().enumerate().map(chunk).collect::<Result<_>>()
    })?;
    join(stream.device(), done, timeline)
}

/// Runs one chunk after another from pageable memory. Each chunk goes through page-locked memory
/// first: the driver copies it on a GPU, and this crate on the CPU device. The host waits for both
/// copies of each chunk.
///
/// # Errors
/// The same as for [`serial`](fn@serial).
pub fn serial_pageable<T: DeviceCopy, U: DeviceCopy>(
    stream: &AnyStream,
    input: &[T],
    chunks: Chunks,
    mut stage: impl Stage<T, U>,
    timeline: &Timeline,
) -> Result<Vec<U>> {
    let items = chunks.items(input.len())?;
    let longest = items.div_ceil(chunks.count);
    let n = chunks.output(items)?;
    let mut output = Vec::new();
    stream.enter(|s| {
        let (mut x, mut y) = (s.alloc(longest * chunks.input)?, s.alloc(chunks.output(longest)?)?);
        output.try_reserve_exact(n).map_err(|_| Error::TooLarge { elements: n, size: size_of::<U>() })?;
        for (i, input) in input.chunks((longest * chunks.input).max(1)).enumerate() {
            let x = x.slice_mut(..input.len())?;
            let y = y.slice_mut(..chunks.output(input.len() / chunks.input)?)?;
            let label = timeline.label("chunk", i);
            timeline.wait("host", &label, || s.write_blocking(input, x))?;
            timeline.span(s, Activity::Compute, &label, || stage(s, x, y))?;
            output.extend(timeline.wait("host", &label, || s.read_blocking(y))?);
        }
        Ok(output)
    })
}
