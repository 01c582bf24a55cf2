//! Gradients that are reduced while the backward pass goes on.
//!
//! All gradients of a model lie in one flat buffer, and each has its place there. Neighbors make a
//! bucket. The backward pass gets the gradients as values, and hands each in once nothing more
//! writes to it. With the last one of a bucket, the bucket goes to the communicator's stream and is
//! reduced there, beside the rest of the pass.
//!
//! Buckets are reduced in their own order, not in the order in which they fill. So ranks that run
//! their layers in another order still call the same operations.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg::{DeviceBuffer, DeviceSlice, Event, GraphCache, GraphStep, LiveBrand, On, Stream};

use crate::comm::Comm;
use crate::element::{CollectiveElement, HasOp, Op, Reduction};
use crate::error::{Error, Result};
use crate::graph::CommGraph;

/// The maximum sizes of buckets in bytes, unless a single gradient is larger.
///
/// Few bytes use the connection badly; many leave much to do after the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thalweg::__Setters)]
#[non_exhaustive]
pub struct BucketSizes {
    /// Of the bucket that is reduced first: it is small, so that the reduction begins early.
    pub first: usize,
    /// Of each other bucket.
    pub others: usize,
}

impl Default for BucketSizes {
    /// 1 MiB, then 25 MiB.
    fn default() -> Self {
        Self { first: 1 << 20, others: 25 << 20 }
    }
}

/// The flat gradients of a model, ordered by stream `S`. They dereference to the whole slice.
///
/// The first gradient of the buffer is that of the first parameter. The backward pass ends with it,
/// so buckets are counted from the end of the buffer.
#[must_use = "gradients are memory"]
pub struct Gradients<S: LiveBrand, T: CollectiveElement> {
    flat: On<S, DeviceBuffer<T>>,
    plan: Plan,
    captured: Vec<Captured<T>>,
}

/// The reductions of a bucket as graphs, if [`WorldOptions::graphs`](crate::WorldOptions::graphs)
/// says so: by an operation, and of a communicator, whose number is beside it.
type Captured<T> = GraphCache<(Op, u64), CommGraph<DeviceBuffer<T>>>;

/// The places of gradients and buckets in the flat buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    lens: Vec<usize>,
    /// The gradients of each bucket, in the order in which buckets are reduced.
    buckets: Vec<Range<usize>>,
    /// The bucket of each gradient.
    of: Vec<usize>,
}

impl Plan {
    fn new(lens: &[usize], element: usize, sizes: BucketSizes) -> Self {
        let (mut buckets, mut of): (Vec<Range<usize>>, _) = (Vec::new(), vec![0; lens.len()]);
        let mut bytes = 0usize;
        for (k, len) in lens.iter().enumerate().rev() {
            let more = len.saturating_mul(element);
            let most = if buckets.len() == 1 { sizes.first } else { sizes.others };
            match buckets.last_mut() {
                Some(bucket) if bytes.saturating_add(more) <= most => {
                    bucket.start = k;
                    bytes += more;
                }
                _ => {
                    buckets.push(k..k + 1);
                    bytes = more;
                }
            }
            of[k] = buckets.len() - 1;
        }
        Self { lens: lens.to_vec(), buckets, of }
    }

    /// The elements of a bucket in the flat buffer.
    fn elements(&self, bucket: usize) -> Range<usize> {
        let Range { start, end } = self.buckets[bucket].clone();
        let before: usize = self.lens[..start].iter().sum();
        before..before + self.lens[start..end].iter().sum::<usize>()
    }
}

impl<S: LiveBrand, T: CollectiveElement> Gradients<S, T> {
    /// Makes memory for gradients of these lengths, zeroed. They are in the order of the
    /// parameters, so the backward pass makes the last one first.
    ///
    /// # Errors
    /// They are more than an allocation can hold, there is no memory, or the device has failed.
    pub fn new(stream: &Stream<S>, lens: &[usize], sizes: BucketSizes) -> Result<Self> {
        // A sum that is no `usize` is more than an allocation can hold in any case.
        let flat = stream.alloc_zeroed(lens.iter().fold(0, |sum: usize, &len| sum.saturating_add(len)))?;
        let plan = Plan::new(lens, size_of::<T>(), sizes);
        Ok(Self { flat, captured: plan.buckets.iter().map(|_| Captured::default()).collect(), plan })
    }

    /// The elements of each bucket, in the order in which they are reduced.
    #[must_use]
    pub fn buckets(&self) -> Vec<Range<usize>> {
        (0..self.plan.buckets.len()).map(|bucket| self.plan.elements(bucket)).collect()
    }
}

impl<S: LiveBrand, T: CollectiveElement> Deref for Gradients<S, T> {
    type Target = DeviceSlice<S, T>;
    fn deref(&self) -> &DeviceSlice<S, T> {
        &self.flat
    }
}

impl<S: LiveBrand, T: CollectiveElement> DerefMut for Gradients<S, T> {
    fn deref_mut(&mut self) -> &mut DeviceSlice<S, T> {
        &mut self.flat
    }
}

impl<S: LiveBrand, T: CollectiveElement> fmt::Debug for Gradients<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} gradients of {} elements in {} buckets",
            self.plan.lens.len(),
            self.len(),
            self.plan.buckets.len()
        )
    }
}

/// The gradient of one parameter, in its place in a bucket. [`Backward::mark_ready`] takes it by
/// value: what is being reduced can be neither read nor written.
#[must_use = "a gradient that is not handed in keeps its bucket from being reduced"]
pub struct BucketGradient<S: LiveBrand, T: CollectiveElement> {
    pass: u64,
    index: usize,
    memory: On<S, DeviceBuffer<T>>,
}

impl<S: LiveBrand, T: CollectiveElement> Deref for BucketGradient<S, T> {
    type Target = DeviceSlice<S, T>;
    fn deref(&self) -> &DeviceSlice<S, T> {
        &self.memory
    }
}

impl<S: LiveBrand, T: CollectiveElement> DerefMut for BucketGradient<S, T> {
    fn deref_mut(&mut self) -> &mut DeviceSlice<S, T> {
        &mut self.memory
    }
}

impl<S: LiveBrand, T: CollectiveElement> fmt::Debug for BucketGradient<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketGradient(number {}, {} elements)", self.index, self.memory.len())
    }
}

/// A backward pass whose gradients are reduced over the ranks: see [`Comm::backward`].
#[must_use = "`finish` gives the gradients back"]
pub struct Backward<'c, C: LiveBrand, S: LiveBrand, T: CollectiveElement, R> {
    comm: &'c mut Comm<C>,
    op: R,
    stream: Stream<S>,
    plan: Plan,
    pass: u64,
    captured: Vec<Captured<T>>,
    /// The gradients that have been handed in.
    pieces: Vec<Option<On<S, DeviceBuffer<T>>>>,
    /// The number of gradients of each bucket that are out.
    out: Vec<usize>,
    /// Each bucket with the event behind its own reduction.
    reducing: VecDeque<Event<DeviceBuffer<T>>>,
}

impl<C: LiveBrand> Comm<C> {
    /// Begins a backward pass. Returns the gradients in the order of their parameters, each to be
    /// handed in with [`Backward::mark_ready`] after the last work that writes it. They hold what
    /// they held: the pass stores them, or adds to them. `op` is [`Mean`](crate::Mean) or
    /// [`Sum`](crate::Sum), as the loss wants it. To accumulate over several batches, keep them and
    /// hand them in with the last batch; then they are reduced once.
    ///
    /// The communicator is borrowed until [`Backward::finish`], so no other operation comes
    /// between.
    ///
    /// # Errors
    /// The ranks or the device have failed.
    #[expect(clippy::type_complexity, reason = "a pass and its gradients")]
    pub fn backward<S: LiveBrand, T: CollectiveElement, R: Reduction<T> + Copy>(
        &mut self,
        op: R,
        gradients: Gradients<S, T>,
    ) -> Result<(Backward<'_, C, S, T, R>, Vec<BucketGradient<S, T>>)> {
        static PASSES: AtomicU64 = AtomicU64::new(0);
        let Gradients { flat, plan, captured } = gradients;
        self.healthy()?;
        let (stream, pass) = (flat.stream(), PASSES.fetch_add(1, Ordering::Relaxed));
        let pieces = flat.split_at_lengths(&plan.lens)?;
        let given =
            pieces.into_iter().enumerate().map(|(index, memory)| BucketGradient { pass, index, memory }).collect();
        let (pieces, out) = (plan.lens.iter().map(|_| None).collect(), plan.buckets.iter().map(Range::len).collect());
        let reducing = VecDeque::new();
        Ok((Backward { comm: self, op, stream, plan, pass, captured, pieces, out, reducing }, given))
    }
}

impl<C: LiveBrand, S: LiveBrand, T: CollectiveElement, R: Reduction<T> + Copy> Backward<'_, C, S, T, R> {
    /// Hands a gradient in. With the last one of its bucket, and once the buckets before have been
    /// reduced, the communicator's stream waits for the pass so far and reduces the bucket.
    ///
    /// # Errors
    /// The gradient is of another pass, or the ranks or the device have failed.
    pub fn mark_ready(&mut self, gradient: BucketGradient<S, T>) -> Result<()> {
        let BucketGradient { pass, index, memory } = gradient;
        if pass != self.pass {
            return Err(Error::OtherPass { gradient: index });
        }
        self.pieces[index] = Some(memory);
        self.out[self.plan.of[index]] -= 1;
        while self.out.get(self.reducing.len()) == Some(&0) {
            self.reduce(self.reducing.len())?;
        }
        Ok(())
    }

    fn reduce(&mut self, bucket: usize) -> Result<()> {
        let pieces: Vec<_> = self.plan.buckets[bucket].clone().filter_map(|index| self.pieces[index].take()).collect();
        let whole = On::<S, DeviceBuffer<T>>::join(pieces)?;
        let whole = match self.comm.all_reduce_bucket(self.op, self.stream, whole)? {
            Ok(reduced) => {
                self.reducing.push_back(reduced);
                return Ok(());
            }
            Err(whole) => whole,
        };
        let whole = self.stream.hand_off(whole, &self.comm.stream())?;
        let whole = self.enqueue(bucket, whole)?;
        self.reducing.push_back(self.comm.stream().record(whole)?);
        Ok(())
    }

    /// Enqueues the reduction of a bucket: twice by a call, and then as a graph if the ranks are on
    /// one machine and NCCL reduces. All ranks come to the same choice, because they run the same
    /// passes.
    fn enqueue(&mut self, bucket: usize, mut whole: On<C, DeviceBuffer<T>>) -> Result<On<C, DeviceBuffer<T>>> {
        let (comm, op, captured) = (&mut *self.comm, self.op, &mut self.captured[bucket]);
        let key = (<R as HasOp>::OP, comm.number);
        captured.retain(|of| *of == key);
        let step = if comm.captures() { captured.step(&key) } else { GraphStep::Enqueue };
        let enqueued = match step {
            GraphStep::Enqueue => return comm.all_reduce_in_place(op, &mut whole).map(|()| whole),
            GraphStep::Capture => {
                let made = comm.capture(whole, |recorder, x| recorder.all_reduce_in_place(op, x));
                let (graph, whole) = made?;
                comm.replay(captured.keep(key, graph), whole)
            }
            GraphStep::Replay(graph) => comm.replay(graph, whole),
        };
        enqueued.map_err(Error::from)
    }

    /// Ends the pass. `update` gets each bucket once its reduction is enqueued: its elements of the
    /// flat buffer, and the result. The stream of the pass waits for a bucket when its update is
    /// called, so the update of one bucket runs beside the reduction of the next.
    ///
    /// # Errors
    /// A gradient has not been handed in; the error of `update`; or the ranks or the device have
    /// failed.
    pub fn finish<E: From<Error>>(
        mut self,
        mut update: impl FnMut(Range<usize>, &mut DeviceSlice<S, T>) -> Result<(), E>,
    ) -> Result<Gradients<S, T>, E> {
        if let Some(bucket) = self.out.iter().position(|&out| out > 0) {
            let gradient = self.plan.buckets[bucket].clone().find(|&index| self.pieces[index].is_none());
            return Err(Error::GradientMissing { gradient: gradient.unwrap_or_default() }.into());
        }
        let mut reduced = Vec::with_capacity(self.reducing.len());
        for bucket in 0..self.plan.buckets.len() {
            // A bucket is missing here if its reduction was refused, and the program went on.
            let Some(means) = self.reducing.pop_front() else {
                let gradient = self.plan.buckets[bucket].start;
                return Err(Error::GradientMissing { gradient }.into());
            };
            let means = self.stream.wait(means);
            let mut means = means.map_err(|returned| self.comm.failure_or(thalweg::Error::from(returned)))?;
            update(self.plan.elements(bucket), &mut means)?;
            reduced.push(means);
        }
        reduced.reverse(); // the first bucket is the end of the buffer
        let flat = match reduced.is_empty() {
            true => self.stream.alloc(0).map_err(Error::from)?,
            false => {
                let joined = On::<S, DeviceBuffer<T>>::join(reduced);
                joined.map_err(|returned| Error::from(thalweg::Error::from(returned)))?
            }
        };
        Ok(Gradients { flat, plan: self.plan, captured: self.captured })
    }
}

impl<C: LiveBrand, S: LiveBrand, T: CollectiveElement, R> fmt::Debug for Backward<'_, C, S, T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backward({} of {} buckets are reduced)", self.reducing.len(), self.plan.buckets.len())
    }
}

#[cfg(test)]
mod tests {
    use super::{BucketSizes, Plan};

    #[test]
    fn buckets_are_counted_from_the_end() {
        let sizes = BucketSizes::default().with_first(8).with_others(40);
        let plan = Plan::new(&[9, 1, 1, 20, 3, 1, 1], 4, sizes);
        assert_eq!(plan.buckets, [5..7, 4..5, 3..4, 1..3, 0..1]);
        assert_eq!(plan.of, [4, 3, 3, 2, 1, 0, 0]);
        assert_eq!((plan.elements(0), plan.elements(3)), (34..36, 9..11));
    }
}
