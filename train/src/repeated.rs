//! Work whose shapes repeat, as captured graphs.

use std::collections::VecDeque;

use thalweg::{Brand, Bundle, Graph, LiveBrand, Resource, Returned, Stream};

/// The most graphs that are kept, and the most shapes that are remembered.
const KEPT: usize = 8;

/// Work on a bundle of buffers that any stream can enqueue and a capture can take.
pub(crate) trait Work<R: Resource> {
    fn enqueue<S: Brand>(&self, s: &Stream<S>, bundle: &mut R::On<S>) -> thalweg::Result<()>;
}

/// Enqueues work call by call the first time that a shape comes, captures a graph the second time,
/// and from then on enqueues the graph by one call. `K` names the shape: everything that the work
/// reads on the host.
#[derive(Debug)]
pub(crate) struct Repeated<K, R: Resource> {
    enabled: bool,
    seen: VecDeque<K>,
    /// The graphs, the one that was used last at the end.
    graphs: VecDeque<(K, Graph<R>)>,
}

impl<K, R: Resource> Default for Repeated<K, R> {
    fn default() -> Self {
        Self { enabled: true, seen: VecDeque::new(), graphs: VecDeque::new() }
    }
}

impl<K: Clone + PartialEq, R: Resource> Repeated<K, R> {
    /// Forgets all graphs, because the buffers have changed.
    pub(crate) fn clear(&mut self) {
        self.seen.clear();
        self.graphs.clear();
    }

    /// Sets whether shapes that repeat are captured.
    pub(crate) fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
        self.clear();
    }

    /// Returns the number of graphs.
    pub(crate) fn len(&self) -> usize {
        self.graphs.len()
    }

    /// Enqueues the work on a bundle, and gives the bundle back.
    pub(crate) fn enqueue<S: LiveBrand, B: Bundle<S, Idle = R>>(
        &mut self,
        s: &Stream<S>,
        key: K,
        bundle: B,
        work: &impl Work<R>,
    ) -> Result<B, Returned<B>>
    where
        R: Resource<On<S> = B>,
    {
        if let Some(i) = self.graphs.iter().position(|(shape, _)| *shape == key)
            && let Some((_, mut graph)) = self.graphs.remove(i)
        {
            let replayed = s.replay(&mut graph, bundle);
            self.graphs.push_back((key, graph));
            return replayed;
        }
        if self.enabled && self.seen.contains(&key) {
            let captured = s.capture(bundle, |s, bundle| work.enqueue(s, bundle));
            // Without a graph, the shape counts as new: its next item is enqueued call by call.
            let (mut graph, bundle) = captured.inspect_err(|_| self.seen.retain(|shape| *shape != key))?;
            let replayed = s.replay(&mut graph, bundle);
            self.seen.retain(|shape| *shape != key);
            if self.graphs.len() == KEPT {
                self.graphs.pop_front();
            }
            self.graphs.push_back((key, graph));
            return replayed;
        }
        if self.seen.len() == KEPT {
            self.seen.pop_front();
        }
        self.seen.push_back(key);
        let mut bundle = bundle;
        match work.enqueue(s, &mut bundle) {
            Ok(()) => Ok(bundle),
            Err(error) => Err(Returned { error, value: bundle }),
        }
    }
}
