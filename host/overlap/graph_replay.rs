//! Captures a chain of small kernels once, and replays it.
//!
//! ```text
//! stream   launch | k 0 | . | k 1 | . | k 2 | . | k 3 | ...   a call for each, a gap after each
//! graph    replay | k 0 | k 1 | k 2 | k 3 |                   one call for all
//! ```
//!
//! A kernel of a few microseconds ends before the host has launched the next one. A [`Graph`]
//! launches all of them with one call, but it works only with the buffers it was captured with.
//! [`graph_replay`](fn@graph_replay) keeps a graph for each slot of a ring.

use crate::brand::LiveBrand;
use crate::error::{Error, Result, Returned};
use crate::graph::{Capture, Graph};
use crate::resource::{Bundle, Resource};
use crate::stream::Stream;

/// Enqueues what `record` enqueues, as one graph. The first call with given buffers captures the
/// graph, and each call replays it.
///
/// `graphs` holds the graphs and is empty at first. It gets one graph for each set of buffers, so
/// use slots that return, such as those of a [`Ring`](crate::Ring). The graphs of slots that return
/// in the same order are found at once. Sizes and other arguments that `record` reads keep the
/// values that they had at the capture; only the contents of the buffers change. The host does not
/// wait.
///
/// ```
/// use thalweg::{Device, Ring, overlap::graph_replay, stream_tags};
///
/// stream_tags!(Work);
/// let gpu = Device::best()?;
/// let work = gpu.stream::<Work>()?;
/// let mut ring = Ring::new(2, move || Ok((gpu.pinned::<u32>(8)?, work.alloc::<u32>(8)?.synchronize()?, gpu.pinned::<u32>(8)?)))?;
/// let mut graphs = Vec::new();
/// for frame in 0..6 {
///     let (mut input, x, output) = ring.acquire()?.synchronize()?;
///     assert_eq!(output[0], if frame < 2 { 0 } else { frame - 2 });
///     input.fill(frame);
///     let slot = graph_replay(&work, &mut graphs, work.bind((input, x, output))?, |s, (input, x, output)| {
///         s.copy_to_device(input, x)?;
///         s.copy_to_host(x, output)
///     })?;
///     ring.recycle(work.record(slot)?);
/// }
/// assert_eq!(graphs.len(), 2); // of two operations each, captured once for each slot
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # Errors
/// `record`, [`capture`](Stream::capture) or [`replay`](Stream::replay) fails. The bundle comes
/// back.
pub fn graph_replay<S: LiveBrand, B: Bundle<S>>(
    stream: &Stream<S>,
    graphs: &mut Vec<Graph<B::Idle>>,
    mut bundle: B,
    record: impl for<'g> FnOnce(&Stream<Capture<'g>>, &mut <B::Idle as Resource>::On<Capture<'g>>) -> Result<()>,
) -> Result<B, Returned<B>> {
    for i in 0..graphs.len() {
        match stream.replay(&mut graphs[i], bundle) {
            Err(Returned { error: Error::GraphMismatch { .. }, value }) => bundle = value,
            replayed => {
                // Keep the graph that has not been used for the longest time first: the next slot
                // of a ring needs it.
                graphs[i..].rotate_left(1);
                return replayed;
            }
        }
    }
    let (mut graph, bundle) = stream.capture(bundle, record)?;
    let replayed = stream.replay(&mut graph, bundle);
    graphs.push(graph);
    replayed
}
