//! Chunk after chunk: upload, kernel and download of successive chunks at the same time, each
//! direction on a stream of its own.
//!
//! ```text
//! first     | up 0 | up 1     | up 2     | up 3     | up 4     | ...
//! between          | kernel 0 | kernel 1 | kernel 2 | kernel 3 | ...
//! last                        | down 0   | down 1   | down 2   | ...
//! ```
//!
//! All copies of one direction are on one stream. On NVIDIA GPUs with several copy engines,
//! copies of one direction that come from several streams go through several hardware queues
//! and share the bus in small pieces: several are under way at once, and each ends late. With a
//! whole chunk (upload, kernel, download) on each of four streams in turn, an H200 took 1.28
//! times the slowest step; events that made the copies of one direction wait for one another
//! did not help.

use super::steps::Steps;
use super::{Chunks, Stage, join, some_streams};
use crate::error::Result;
use crate::lane::AnyStream;
use crate::memory::{PinnedBuffer, Plain};
use crate::timeline::Timeline;

/// Puts chunk after chunk through upload, `stage` and download; events hand it from stream to
/// stream.
///
/// The first stream does all uploads, the last one all downloads, and those between run `stage`
/// for successive chunks in turn. Three streams let all three steps run at once, and time tends
/// to that of the slowest, plus filling and draining; more help where the kernels of one chunk
/// do not fill the device. Of two streams the second runs `stage` and downloads; one stream
/// does everything, one step at a time.
///
/// There are as many device buffers as streams for input, and as many for results. They go
/// round: an upload waits for the kernel that read its buffer before, a kernel for the download
/// of its buffer, both on the device. The host enqueues everything, then waits once. Input and
/// output come back.
///
/// # Errors
/// There are no streams, the count of chunks is 0, the input is no whole number of items, there
/// is no memory, or what `stage` returns.
pub fn interleaved<T: Plain, U: Plain>(
    streams: &[AnyStream],
    input: PinnedBuffer<T>,
    chunks: Chunks,
    mut stage: impl Stage<T, U>,
    timeline: &Timeline,
) -> Result<(PinnedBuffer<T>, PinnedBuffer<U>)> {
    let device = some_streams(streams)?.device();
    let pieces = chunks.cut(input)?;
    let mut steps = Steps::new(streams, &pieces, streams.len(), timeline);
    let mut done = Vec::with_capacity(pieces.len());
    for (i, (input, output)) in pieces.into_iter().enumerate() {
        let uploaded = steps.upload(i, input)?;
        let computed = steps.compute(i, uploaded, output.len(), &mut stage)?;
        done.push(steps.download(i, computed, output)?);
    }
    join(device, done, timeline)
}
