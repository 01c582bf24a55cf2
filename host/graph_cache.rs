//! Graphs of work that comes again and again.

use crate::brand::{Brand, LiveBrand};
use crate::error::{Error, Result, Returned};
use crate::graph::Graph;
use crate::resource::{Bundle, Resource};
use crate::stream::Stream;

/// Work on a bundle of buffers that any stream can enqueue and a capture can take.
pub trait GraphWork<R: Resource> {
    /// Enqueues the work.
    ///
    /// # Errors
    /// The device has failed, or an error of the work.
    fn enqueue<S: Brand>(&self, stream: &Stream<S>, bundle: &mut R::On<S>) -> Result<()>;
}

/// Graphs of work that comes again and again.
///
/// [`enqueue`](Self::enqueue) enqueues work call by call the first time that it comes, captures a
/// graph the second time, and from then on enqueues the graph by one call. `K` says which work it
/// is: everything that the work reads on the host, such as sizes and scalar arguments. The same
/// work on other buffers, such as the next slot of a [`Ring`](crate::Ring), is another graph.
///
/// ```
/// use thalweg::{Brand, Device, DeviceBuffer, GraphCache, GraphWork, PinnedBuffer, Resource, Result, Ring, Stream, stream_tags};
///
/// type Slot = (PinnedBuffer<u32>, DeviceBuffer<u32>, PinnedBuffer<u32>);
/// struct Copies;
/// impl GraphWork<Slot> for Copies {
///     fn enqueue<S: Brand>(&self, s: &Stream<S>, (input, x, output): &mut <Slot as Resource>::On<S>) -> Result<()> {
///         s.copy_to_device(input, x)?;
///         s.copy_to_host(x, output)
///     }
/// }
///
/// stream_tags!(Work);
/// let gpu = Device::best()?;
/// let work = gpu.stream::<Work>()?;
/// let mut ring = Ring::new(2, move || Ok((gpu.pinned::<u32>(8)?, work.alloc::<u32>(8)?.synchronize()?, gpu.pinned::<u32>(8)?)))?;
/// let mut graphs = GraphCache::default();
/// for frame in 0..6 {
///     let (mut input, x, output) = ring.acquire()?.synchronize()?;
///     assert_eq!(output[0], if frame < 2 { 0 } else { frame - 2 });
///     input.fill(frame);
///     let slot = graphs.enqueue(&work, (), work.bind((input, x, output))?, &Copies)?;
///     ring.recycle(work.record(slot)?);
/// }
/// assert_eq!(graphs.len(), 2); // of two operations each, one for each slot
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// `G` is the kind of graph. [`step`](Self::step) and [`keep`](Self::keep) are for graphs that are
/// not captured by a stream alone.
#[derive(Debug)]
pub struct GraphCache<K, G> {
    enabled: bool,
    most: usize,
    /// The work that came without a graph, the last one at the end.
    seen: Vec<K>,
    /// The graphs, the one that was used last at the end.
    graphs: Vec<(K, G)>,
}

/// The way in which work is to be enqueued: see [`GraphCache::step`].
#[derive(Debug)]
pub enum GraphStep<'c, G> {
    /// Call by call, because this may be the only time.
    Enqueue,
    /// Into a graph, for [`GraphCache::keep`].
    Capture,
    /// By this graph.
    Replay(&'c mut G),
}

impl<K, G> Default for GraphCache<K, G> {
    /// Keeps the eight graphs that were used last.
    fn default() -> Self {
        Self { enabled: true, most: 8, seen: Vec::new(), graphs: Vec::new() }
    }
}

impl<K, G> GraphCache<K, G> {
    /// Sets whether work is captured. Without graphs, all work is enqueued call by call.
    #[must_use]
    pub fn with_graphs(mut self, graphs: bool) -> Self {
        self.enabled = graphs;
        self
    }

    /// Sets how many graphs are kept: those that were used last, and at least one.
    #[must_use]
    pub fn with_most(mut self, most: usize) -> Self {
        self.most = most.max(1);
        self
    }

    /// Forgets all work and all graphs, for example because its buffers are gone.
    pub fn clear(&mut self) {
        self.retain(|_| false);
    }

    /// Forgets the work for which `keep` returns false, and its graphs.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.seen.retain(&keep);
        self.graphs.retain(|(key, _)| keep(key));
    }

    /// Returns the number of graphs.
    pub fn len(&self) -> usize {
        self.graphs.len()
    }

    /// Returns whether there is no graph.
    pub fn is_empty(&self) -> bool {
        self.graphs.is_empty()
    }
}

impl<K: Clone + PartialEq, G> GraphCache<K, G> {
    /// Says how to enqueue the work `key`, which comes once more. A graph serves any buffers here.
    pub fn step(&mut self, key: &K) -> GraphStep<'_, G> {
        match self.graphs.iter().position(|(of, _)| of == key) {
            Some(i) => GraphStep::Replay(self.used(i)),
            None if self.is_due(key) => GraphStep::Capture,
            None => GraphStep::Enqueue,
        }
    }

    /// Keeps a graph of the work `key`, and drops the one that was not used for the longest time if
    /// there are too many.
    pub fn keep(&mut self, key: K, graph: G) -> &mut G {
        if self.graphs.len() >= self.most {
            self.graphs.remove(0);
        }
        self.graphs.push((key, graph));
        self.used(self.graphs.len() - 1)
    }

    /// Moves a graph to the end. The scan for the next slot of a ring then finds its graph first.
    fn used(&mut self, i: usize) -> &mut G {
        self.graphs[i..].rotate_left(1);
        let last = self.graphs.len() - 1;
        &mut self.graphs[last].1
    }

    /// Returns whether work without a graph is to be captured, and remembers that it came.
    fn is_due(&mut self, key: &K) -> bool {
        if self.seen.contains(key) {
            return self.enabled;
        }
        if self.seen.len() >= self.most {
            self.seen.remove(0);
        }
        self.seen.push(key.clone());
        false
    }
}

impl<K: Clone + PartialEq, R: Resource> GraphCache<K, Graph<R>> {
    /// Enqueues the work `key` on a bundle, and gives the bundle back. The host does not wait.
    ///
    /// If a capture fails, the work counts as new: next time it is enqueued call by call.
    ///
    /// # Errors
    /// The work, [`capture`](Stream::capture) or [`replay`](Stream::replay) fails. The bundle comes
    /// back.
    pub fn enqueue<S: LiveBrand, B: Bundle<S, Idle = R>>(
        &mut self,
        stream: &Stream<S>,
        key: K,
        mut bundle: B,
        work: &impl GraphWork<R>,
    ) -> Result<B, Returned<B>>
    where
        R: Resource<On<S> = B>,
    {
        for i in 0..self.graphs.len() {
            if self.graphs[i].0 != key {
                continue;
            }
            match stream.replay(&mut self.graphs[i].1, bundle) {
                Err(Returned { error: Error::GraphMismatch { .. }, value }) => bundle = value,
                replayed => {
                    self.used(i);
                    return replayed;
                }
            }
        }
        if !self.is_due(&key) {
            return match work.enqueue(stream, &mut bundle) {
                Ok(()) => Ok(bundle),
                Err(error) => Err(Returned { error, value: bundle }),
            };
        }
        let captured = stream.capture(bundle, |s, bundle| work.enqueue(s, bundle));
        let (graph, bundle) = captured.inspect_err(|_| self.seen.retain(|of| *of != key))?;
        stream.replay(self.keep(key, graph), bundle)
    }
}
