//! Events: what guards a resource in transit.

use std::fmt;

use std::pin::Pin;

use std::task::{Context, Poll};
use std::time::Duration;

use crate::brand::{Brand, StreamTag};
use crate::driver::guard;
use crate::error::{Error, Result, Returned};
use crate::memory::{DeviceBuffer, PeerBuffer, PinnedBuffer, Plain};
use crate::resource::{Resource, Token};
use crate::runtime::device::Device;
use crate::runtime::event::{EventCell, Lease};
use crate::runtime::memory::{When, give_back};
use crate::runtime::tally::Stall;
use crate::stream::Stream;

/// A resource in transit: guarded by an event recorded on the stream it left.
///
/// [`Stream::record`](crate::Stream::record) makes one. [`Stream::wait`](crate::Stream::wait) moves the resource to another stream (the device waits,
/// the host does not), [`synchronize`](Event::synchronize) and `.await` bring it back to the host. Dropping it gives the memory back
/// once the event is complete, without waiting.
///
/// ```
/// use thalweg::{Device, stream_tags};
///
/// stream_tags!(Compute, Download);
/// let gpu = Device::best()?;
/// let (compute, download) = (gpu.stream::<Compute>()?, gpu.stream::<Download>()?);
/// let mut x = compute.alloc::<u32>(1000)?;
/// compute.fill(&mut x, 3)?;
/// let ready = compute.record(x)?;
/// let x = download.wait(ready)?;
/// assert_eq!(download.read_blocking(&x)?, [3; 1000]);
/// # Ok::<(), thalweg::Error>(())
/// ```
#[must_use = "dropping it gives the resource's memory back"]
pub struct Event<R: Resource> {
    // `None` only while `drop` or a transition takes it.
    value: Option<R>,
    /// `None` where the resource was idle already.
    event: Option<Lease>,
    /// What becomes of it when it is dropped; `None` frees the memory.
    on_drop: Option<OnDrop<R>>,
}

type OnDrop<R> = Box<dyn FnOnce(Event<R>) + Send + Sync>;

/// What [`Event::query`] found.
#[derive(Debug)]
pub enum Query<R: Resource> {
    /// The work is done; the resource is idle.
    Ready(R),
    /// Not yet.
    Pending(Event<R>),
}

impl<R: Resource> Event<R> {
    /// An event that is complete already, such as the first of a [`Ring`](crate::Ring).
    pub fn ready(value: R) -> Self {
        Self { value: Some(value), event: None, on_drop: None }
    }

    #[inline]
    pub(crate) fn new(value: R, event: Lease) -> Self {
        Self { value: Some(value), event: Some(event), on_drop: None }
    }

    #[inline]
    pub(crate) fn value(&self) -> &R {
        match &self.value {
            Some(value) => value,
            None => unreachable!("only a transition takes it, by value"),
        }
    }

    #[inline]
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.event.as_ref()
    }

    /// The resource and the event; the caller establishes the order that the event gave.
    #[inline]
    pub(crate) fn into_parts(mut self) -> (R, Option<Lease>) {
        let Some(value) = self.value.take() else { unreachable!("only a transition takes it, by value") };
        (value, self.event.take())
    }

    /// Whether the work before the record is done. Does not wait.
    ///
    /// # Errors
    /// The device has failed.
    pub fn is_ready(&self) -> Result<bool> {
        self.event.as_ref().map_or(Ok(true), Lease::query)
    }

    /// Whether the work before the record is done. If it is not, the task is woken when it is, or when the device has failed.
    /// Does not wait.
    ///
    /// Unlike `.await`, it leaves the event where it is.
    ///
    /// # Errors
    /// The device has failed.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self.is_ready() {
            Ok(true) => Poll::Ready(Ok(())),
            // In a host function the device cannot be asked, but the thread in the background can ask it.
            Ok(false) | Err(Error::InHostFunction) => {
                if let Some(lease) = self.lease() {
                    lease.wake(cx.waker());
                }
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// The same event; if it is dropped, or a future of it is, `take` gets it instead of its memory being freed.
    ///
    /// For pools whose memory comes back however a batch ends. `take` runs where the event is dropped, perhaps in a host function of a
    /// stream, so it should neither block nor panic (a panic is caught, and what it held is dropped). Transitions forget it:
    /// `wait`, `query`, `synchronize`.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use thalweg::{Device, Event, PinnedBuffer, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let gpu = Device::best()?;
    /// let work = gpu.stream::<Work>()?;
    /// let spare: Arc<Mutex<Vec<Event<PinnedBuffer<u8>>>>> = Arc::default();
    /// let pool = spare.clone();
    /// let event = work.record(work.bind(gpu.pinned::<u8>(100)?)?)?.on_drop(move |event| pool.lock().unwrap().push(event));
    /// drop(event);
    /// assert_eq!(spare.lock().unwrap().pop().unwrap().synchronize()?.len(), 100);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    pub fn on_drop(mut self, take: impl FnOnce(Self) + Send + Sync + 'static) -> Self {
        self.on_drop = Some(Box::new(take));
        self
    }

    /// The resource, idle, if the work before the record is done; else the event again. Does not wait.
    ///
    /// # Errors
    /// The device has failed; the event comes back.
    pub fn query(self) -> Result<Query<R>, Returned<Self>> {
        match self.is_ready() {
            Ok(true) => Ok(Query::Ready(self.into_parts().0)),
            Ok(false) => Ok(Query::Pending(self)),
            Err(error) => Err(Returned::new(error, self)),
        }
    }

    /// Waits on the host until the work before the record is done, and returns the resource, idle.
    ///
    /// # Errors
    /// The device has failed, perhaps in earlier work; the event comes back.
    #[track_caller]
    pub fn synchronize(self) -> Result<R, Returned<Self>> {
        let waited = match &self.event {
            Some(event) => event.synchronize(),
            None => Ok(()),
        };
        match waited {
            Ok(()) => Ok(self.into_parts().0),
            Err(error) => Err(Returned::new(error, self)),
        }
    }
}

impl<R: Unzip> Event<R> {
    /// An event for each part of the resource, each of the same recorded point.
    ///
    /// For tuples, and for structs that derive [`Resource`](derive@crate::Resource) with `#[resource(unzip)]`.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let work = Device::best()?.stream::<Work>()?;
    /// let pair = (work.alloc_zeroed::<u8>(10)?, work.alloc_zeroed::<f32>(20)?);
    /// let (bytes, floats) = work.record(pair)?.unzip();
    /// assert_eq!((bytes.synchronize()?.len(), floats.len()), (10, 20));
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    pub fn unzip(self) -> R::Events {
        let (value, event) = self.into_parts();
        value.__unzip(&Splitter(event))
    }
}

/// Puts the parts of a resource behind the event that the whole was behind; only this crate makes one.
#[doc(hidden)]
#[derive(Debug)]
pub struct Splitter(Option<Lease>);

impl Splitter {
    /// The part, behind the event of the whole.
    pub fn event<R: Resource>(&self, part: R) -> Event<R> {
        Event { value: Some(part), event: self.0.clone(), on_drop: None }
    }
}

/// A resource whose parts can go separate ways from an event on: see [`Event::unzip`].
///
/// # Safety
/// `__unzip` puts every part that is a resource behind an event of the splitter, and lets no other code have it before.
/// Derive it instead of writing it.
pub unsafe trait Unzip: Resource {
    /// An event for each part.
    type Events;
    #[doc(hidden)]
    fn __unzip(self, splitter: &Splitter) -> Self::Events;
}

macro_rules! unzip {
    ($($r:ident)*) => {
        // SAFETY: Each part goes from the tuple into an event.
        unsafe impl<$($r: Resource),*> Unzip for ($($r,)*) {
            type Events = ($(Event<$r>,)*);
            #[allow(non_snake_case)]
            fn __unzip(self, splitter: &Splitter) -> Self::Events {
                let ($($r,)*) = self;
                ($(splitter.event($r),)*)
            }
        }
    };
}
unzip!(A);
unzip!(A B);
unzip!(A B C);
unzip!(A B C D);
unzip!(A B C D E);
unzip!(A B C D E F);
unzip!(A B C D E F G);
unzip!(A B C D E F G H);

impl<T: Plain> Event<PinnedBuffer<T>> {
    /// Number of elements of the buffer.
    pub fn len(&self) -> usize {
        self.value().len()
    }

    /// Whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device that the buffer belongs to.
    pub fn device(&self) -> Device {
        self.value().device()
    }
}

impl<T: Plain> Event<DeviceBuffer<T>> {
    /// Number of elements of the buffer.
    pub fn len(&self) -> usize {
        self.value().len()
    }

    /// Whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device whose memory the buffer is.
    pub fn device(&self) -> Device {
        self.value().device()
    }

    /// The same event over a buffer that streams of other devices may copy from and to.
    pub fn map_peer(self) -> Event<PeerBuffer<T>> {
        let (value, event) = self.into_parts();
        Event { value: Some(PeerBuffer::new(value)), event, on_drop: None }
    }
}

impl<T: Plain> Event<PeerBuffer<T>> {
    /// The same event over the buffer for its own device.
    pub fn map_local(self) -> Event<DeviceBuffer<T>> {
        let (value, event) = self.into_parts();
        Event { value: Some(value.into_inner()), event, on_drop: None }
    }
}

impl<R: Resource> Drop for Event<R> {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut value) = self.value.take() {
            if let Some(take) = self.on_drop.take() {
                return returned(take, Event { value: Some(value), event: self.event.take(), on_drop: None });
            }
            let after = &self.event;
            value.__drain(&mut |leaf| give_back(leaf.0, When::After(after.iter().cloned().collect())), Token::new());
        }
    }
}

/// Gives an event that was dropped to whoever asked for it. The closure is a user's, and a panic must not leave a destructor.
#[cold]
fn returned<R: Resource>(take: OnDrop<R>, event: Event<R>) {
    if guard::forked() {
        std::mem::forget((take, event)); // whatever lock the closure takes may have been held at the fork
        return;
    }
    let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(event)));
    std::mem::forget(taken.err());
}

impl<R: Resource> fmt::Debug for Event<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("ready", &self.is_ready().ok()).finish_non_exhaustive()
    }
}

impl<R: Resource> IntoFuture for Event<R> {
    type Output = Result<R>;
    type IntoFuture = EventFuture<R>;
    fn into_future(self) -> EventFuture<R> {
        EventFuture(Some(self))
    }
}

/// `event.await`: the resource, idle, once the work before the record is done. Works on every executor.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct EventFuture<R: Resource>(Option<Event<R>>);

// The resource is moved out by value and never pinned.
impl<R: Resource> Unpin for EventFuture<R> {}

impl<R: Resource> Future for EventFuture<R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(event) = self.0.take() else {
            return Poll::Pending; // polled after it was ready, which says nothing more
        };
        match event.query() {
            Ok(Query::Ready(value)) => Poll::Ready(Ok(value)),
            Ok(Query::Pending(event)) => {
                if let Some(lease) = event.lease() {
                    lease.wake(cx.waker());
                }
                self.0 = Some(event);
                Poll::Pending
            }
            Err(returned) => Poll::Ready(Err(returned.error)),
        }
    }
}

/// A point in a stream's time. Only this kind of event has [`elapsed`](TimedEvent::elapsed).
///
/// ```
/// use thalweg::{Device, stream_tags};
///
/// stream_tags!(Work);
/// let gpu = Device::best()?;
/// let work = gpu.stream::<Work>()?;
/// let mut x = work.alloc::<u8>(1 << 20)?;
/// let start = work.timestamp()?;
/// work.fill(&mut x, 1)?;
/// let end = work.timestamp()?;
/// end.synchronize()?;
/// println!("{:?}", end.elapsed(&start)?.expect("both are complete"));
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Debug)]
pub struct TimedEvent(EventCell);

impl TimedEvent {
    pub(crate) fn new(cell: EventCell) -> Self {
        Self(cell)
    }

    /// Waits on the host until the stream has passed this point.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let device = self.0.device();
        let _stall = device.stall(Stall::Synchronize);
        device.usable()?;
        device.seen(self.0.handle().synchronize())
    }

    /// Device time from `start` to this point; `None` while either is still ahead. Resolution about 0.5 us.
    ///
    /// # Errors
    /// The device has failed, or the two are of different devices.
    pub fn elapsed(&self, start: &TimedEvent) -> Result<Option<Duration>> {
        let device = self.0.device();
        if device != start.0.device() {
            return Err(Error::DeviceMismatch { resource: start.0.device().to_string(), stream: device.to_string() });
        }
        device.usable()?;
        device.seen(self.0.handle().since(start.0.handle()))
    }
}

impl<S: Brand> Stream<S> {
    /// A point in the stream's time, for measuring.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn timestamp(self) -> Result<TimedEvent>
    where
        S: StreamTag,
    {
        self.device().usable()?;
        let stall = self.device().stall(Stall::EventCreation);
        let cell = EventCell::new(self.device(), true)?;
        drop(stall);
        self.call(|s| s.record(cell.handle()))?;
        Ok(TimedEvent::new(cell))
    }
}
