//! A loader as a stream of the async world.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_core::Stream;
use log::warn;
use thalweg::{Error, Event};

use crate::batch::Batch;
use crate::loader::{Loader, Step};
use crate::lock;

/// The same batches in the same order as from the iterator, for a task of any executor.
///
/// A poll never waits for a decoder or for an upload: if the iterator would upload in `next`, a
/// thread does it here. The task is woken once a batch is ready, an error came, or the epoch ended.
/// As with the iterator, the stream may yield again after [`restart`](Loader::restart).
///
/// ```
/// use futures_core::Stream;
/// use std::pin::Pin;
/// use thalweg::Device;
/// use thalweg_loader::{Loader, LoaderOptions, Sample, Source};
///
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     struct Unpark(std::thread::Thread);
/// #     impl std::task::Wake for Unpark {
/// #         fn wake(self: std::sync::Arc<Self>) { self.0.unpark() }
/// #     }
/// #     let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
/// #     let mut future = std::pin::pin!(future);
/// #     loop {
/// #         match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
/// #             std::task::Poll::Ready(output) => return output,
/// #             std::task::Poll::Pending => std::thread::park(),
/// #         }
/// #     }
/// # }
/// let source = Source::indexed(5, |index| {
///     Sample::new("", index, |sink| Ok(sink.rgb(1, 1)?.fill(0)))
/// });
/// let mut loader = Loader::new(Device::cpu()?, source, LoaderOptions::default().with_batch_size(2))?;
/// let mut seen = Vec::new();
/// block_on(async {
///     // With the crate `futures` this is `while let Some(batch) = StreamExt::next(&mut loader).await`.
///     while let Some(batch) = std::future::poll_fn(|cx| Pin::new(&mut loader).poll_next(cx)).await {
///         seen.extend(batch?.await?.meta);
///     }
///     Ok::<(), thalweg_loader::Error>(())
/// })?;
/// assert_eq!(seen, [0, 1, 2, 3, 4]);
/// # Ok::<(), thalweg_loader::Error>(())
/// ```
impl<M: Clone + Send + 'static> Stream for Loader<M> {
    type Item = crate::Result<Event<Batch<M>>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.forked() {
            return Poll::Ready((!std::mem::replace(&mut this.told_fork, true)).then_some(Err(Error::Forked.into())));
        }
        let begin = *this.pending.get_or_insert_with(Instant::now);
        let queue = this.queue.clone();
        // Before the look at the state: whatever changes after the look wakes the task.
        let waker = cx.waker().clone(); // without the lock, as the drop below: it is the user's
        let old = lock(&queue.waker).replace(waker);
        drop(old);
        let mut state = lock(&queue.state);
        state.begin_wait();
        queue.done.notify_all();
        loop {
            state = match this.step(&mut state) {
                Step::Done(item) => {
                    this.finish(state, begin);
                    return Poll::Ready(item);
                }
                Step::Wait => return Poll::Pending,
                Step::Decide { amount, more } => {
                    drop(state);
                    this.decide(amount, more);
                    lock(&queue.state)
                }
                Step::Upload => {
                    if this.plan.is_some() {
                        drop(state);
                        let started = this.upload_elsewhere();
                        state = lock(&queue.state);
                        match started {
                            Ok(()) => continue,
                            Err(error) => warn!("uploading in `poll_next`, which waits: {error}"),
                        }
                    }
                    // Without a decision the batch has no images, so there is nothing to wait for.
                    let upload = |front| queue.upload_and_wait(this.device, front);
                    queue.upload_next(state, this.device, &this.monitor, None, upload)
                }
            };
        }
    }
}
