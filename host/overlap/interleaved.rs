//! Chunk after chunk, each as upload, kernel and download, on streams in turn.
//!
//! ```text
//! stream 0  | up 0 | kernel 0 | down 0 | up 3 | kernel 3 | down 3 |
//! stream 1         | up 1 | kernel 1 | down 1 | up 4 | kernel 4 | down 4 |
//! stream 2                | up 2 | kernel 2 | down 2 | up 5 | kernel 5 | ...
//! ```
//!
//! On NVIDIA GPUs with several copy engines, copies of one direction that come from several streams may go through several hardware queues, and
//! take turns in small pieces. `CUDA_DEVICE_MAX_CONNECTIONS=2` in the environment gives all streams few queues: on an H200 it makes 1.28
//! times the slowest step 1.08. [`double_buffer`](fn@super::double_buffer) has one stream for each direction and does not need it.

use super::{Chunks, Stage, join, some_streams};
use crate::error::Result;
use crate::event::Event;
use crate::lane::AnyStream;
use crate::memory::{DeviceBuffer, PinnedBuffer, Plain};
use crate::timeline::{Activity, Timeline};

/// Puts each chunk through upload, `stage` and download on one stream, successive chunks on successive streams.
///
/// With three streams or more, all three steps run at once; time tends to that of the slowest, plus filling and draining. A
/// stream uses its own two device buffers for all of its chunks. The host enqueues everything, then waits once. Input and output come back.
///
/// # Errors
/// There are no streams, the count of chunks is 0, the input is no whole number of items, there is no memory, or what `stage`
/// returns.
pub fn interleaved<T: Plain, U: Plain>(
    streams: &[AnyStream],
    input: PinnedBuffer<T>,
    chunks: Chunks,
    mut stage: impl Stage<T, U>,
    timeline: &Timeline,
) -> Result<(PinnedBuffer<T>, PinnedBuffer<U>)> {
    let device = some_streams(streams)?.device();
    let pieces = chunks.cut(input)?;
    let [longest, longest_output] = pieces.first().map_or([0; 2], |(x, y)| [x.len(), y.len()]);
    let mut buffers: Vec<Option<Event<(DeviceBuffer<T>, _)>>> = streams.iter().map(|_| None).collect();
    let mut done = Vec::with_capacity(pieces.len());
    for (i, (input, output)) in pieces.into_iter().enumerate() {
        let lane = i % streams.len();
        done.push(streams[lane].enter(|s| {
            let (mut x, mut y) = match buffers[lane].take() {
                Some(used) => s.wait(used)?,
                None => (s.alloc(longest)?, s.alloc(longest_output)?),
            };
            let (input, mut output) = s.bind((input, output))?;
            let label = format!("chunk {i}");
            let (chunk, result) = (x.slice_mut(..input.len())?, y.slice_mut(..output.len())?);
            timeline.span(s, Activity::Upload, &label, || s.copy_to_device(&input, chunk))?;
            timeline.span(s, Activity::Compute, &label, || stage(s, chunk, result))?;
            timeline.span(s, Activity::Download, &label, || s.copy_to_host(result, &mut output))?;
            buffers[lane] = Some(s.record((x, y))?);
            Ok::<_, crate::Error>(s.record((input, output))?)
        })?);
    }
    join(device, done, timeline)
}
