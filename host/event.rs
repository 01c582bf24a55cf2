//! Events, which guard resources in transit.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::brand::LiveBrand;
use crate::contain;
use crate::driver::guard;
use crate::error::{Error, Result, Returned};
use crate::memory::{DeviceBuffer, DeviceCopy, PeerBuffer, PinnedBuffer};
use crate::resource::{Resource, Token};
use crate::runtime::device::Device;
use crate::runtime::event::{EventCell, Lease};
use crate::runtime::memory::{When, give_back};
use crate::runtime::sync_stats::HostWait;
use crate::stream::Stream;
use crate::trace;

/// A resource in transit: an event, recorded on the stream that the resource left, guards it.
///
/// [`Stream::record`](crate::Stream::record) makes one. [`Stream::wait`](crate::Stream::wait) moves
/// the resource to another stream: the device waits and the host does not.
/// [`synchronize`](Event::synchronize) and `.await` bring the resource back to the host. Dropping
/// an event gives the memory back once the event is complete, without waiting.
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
    // `None` only while `drop` or a transition takes the value.
    value: Option<R>,
    /// `None` if the resource was idle already.
    event: Option<Lease>,
    /// Runs when the event is dropped. If it is `None`, the memory is freed.
    on_drop: Option<OnDrop<R>>,
}

type OnDrop<R> = Box<dyn FnOnce(Event<R>) + Send + Sync>;

/// The result of [`Event::query`].
#[derive(Debug)]
pub enum QueryResult<R: Resource> {
    /// The work is done; the resource is idle.
    Ready(R),
    /// The work is not done yet.
    Pending(Event<R>),
}

impl<R: Resource> Event<R> {
    /// Makes an event that is already complete, such as the first ones of a [`Ring`](crate::Ring).
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

    /// Takes the resource and the event apart. The caller must keep the order that the event gave.
    #[inline]
    pub(crate) fn into_parts(mut self) -> (R, Option<Lease>) {
        // Drop the closure first. Its captures are a user's values, whose destructors may panic. If
        // one does, the resource is still behind its event.
        drop(self.on_drop.take());
        let Some(value) = self.value.take() else { unreachable!("only a transition takes it, by value") };
        (value, self.event.take())
    }

    /// Takes the resource once its event is complete. `what` gives it to the host.
    #[inline]
    #[track_caller]
    fn into_idle(self, what: &'static str) -> R {
        let value = self.into_parts().0;
        trace::idle(what, &value);
        value
    }

    /// Whether the work before the record is done. Does not wait.
    ///
    /// # Errors
    /// The device has failed.
    pub fn is_complete(&self) -> Result<bool> {
        self.event.as_ref().map_or(Ok(true), Lease::query)
    }

    /// Whether the work before the record is certainly done. If nobody can know that, for example
    /// in a host function of a stream or in a kernel, it is `false`. The call runs no work of a
    /// seeded device, so it may be made under a lock.
    pub fn is_known_complete(&self) -> bool {
        self.event.as_ref().is_none_or(Lease::is_known_complete)
    }

    /// Whether the work before the record is done. If it is not, the task is woken once the work is
    /// done or the device has failed. Does not wait.
    ///
    /// Unlike `.await`, this call does not consume the event. Each call that returns `Pending`
    /// registers the waker once more, so poll again only after a wake.
    ///
    /// # Errors
    /// The device has failed.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self.is_complete() {
            Ok(true) => Poll::Ready(Ok(())),
            // Work of a stream may not ask the device, but the background thread may.
            Ok(false) | Err(Error::InHostFunction | Error::InKernel) => {
                if let Some(lease) = self.lease() {
                    lease.wake(cx.waker());
                }
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Calls `take` with the event when the event, or a future of it, is dropped, instead of
    /// freeing the memory.
    ///
    /// This is for pools that want their memory back however a batch ends. `take` runs in the
    /// thread that drops the event, which may be inside a host function of a stream, so `take`
    /// should neither block nor panic. If it panics, the panic is caught and the event that it
    /// holds is dropped. Operations that take the resource out of the event forget `take`: `wait`,
    /// `synchronize`, `query` when the work is done, `unzip`, `map_peer` and `map_local`.
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

    /// Returns the idle resource if the work before the record is done, and the event otherwise.
    /// Does not wait.
    ///
    /// # Errors
    /// The device has failed; the event comes back.
    #[track_caller]
    pub fn query(self) -> Result<QueryResult<R>, Returned<Self>> {
        match self.is_complete() {
            Ok(true) => Ok(QueryResult::Ready(self.into_idle("query"))),
            Ok(false) => Ok(QueryResult::Pending(self)),
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
            Ok(()) => Ok(self.into_idle("synchronize")),
            Err(error) => Err(Returned::new(error, self)),
        }
    }

    /// Waits as [`synchronize`](Event::synchronize) does, and lets the thread sleep meanwhile. On a
    /// GPU `synchronize` keeps a core busy until the work is done. This call asks whether it is
    /// done after 20 us, and then each time after a sixteenth of the time that has passed, at most
    /// 1 ms. So it is for waits of milliseconds, on a host that has other work to do: it may return
    /// a sixteenth later.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let work = Device::best()?.stream::<Work>()?;
    /// let event = work.record(work.alloc_zeroed::<u8>(1 << 20)?)?;
    /// assert_eq!(event.synchronize_sleeping()?.len(), 1 << 20);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device has failed, perhaps in earlier work; the event comes back.
    #[track_caller]
    pub fn synchronize_sleeping(self) -> Result<R, Returned<Self>> {
        let waited = match &self.event {
            Some(event) => event.synchronize_sleeping(),
            None => Ok(()),
        };
        match waited {
            Ok(()) => Ok(self.into_idle("synchronize_sleeping")),
            Err(error) => Err(Returned::new(error, self)),
        }
    }
}

impl<R: Unzip> Event<R> {
    /// Gives each part of the resource an event of its own. All of them stand for the same recorded
    /// point.
    ///
    /// This works for tuples, and for structs that derive [`Resource`](derive@crate::Resource) with
    /// `#[resource(unzip)]`.
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

/// Guards each part of a resource with the event that guarded the whole. Only this crate makes one.
#[doc(hidden)]
#[derive(Debug)]
pub struct Splitter(Option<Lease>);

impl Splitter {
    /// Guards the part with the event of the whole.
    pub fn event<R: Resource>(&self, part: R) -> Event<R> {
        Event { value: Some(part), event: self.0.clone(), on_drop: None }
    }
}

/// A resource whose parts can travel separately after an event: see [`Event::unzip`].
///
/// # Safety
/// `__unzip` passes every part that is a resource to the splitter's `event`, and gives no other
/// code access to it before that. Derive this trait instead of writing an implementation.
pub unsafe trait Unzip: Resource {
    /// An event for each part.
    type Events;
    #[doc(hidden)]
    fn __unzip(self, splitter: &Splitter) -> Self::Events;
}

macro_rules! unzip {
    ($($r:ident)*) => {
        // SAFETY: [parts] Each part goes from the tuple into an event.
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

impl<T: DeviceCopy> Event<PinnedBuffer<T>> {
    /// Number of elements of the buffer.
    pub fn len(&self) -> usize {
        self.value().count()
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

impl<T: DeviceCopy> Event<DeviceBuffer<T>> {
    /// Number of elements of the buffer.
    pub fn len(&self) -> usize {
        self.value().len()
    }

    /// Whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device whose memory the buffer uses.
    pub fn device(&self) -> Device {
        self.value().device()
    }

    /// Makes the buffer one that streams of other devices may copy from and to. The event stays the
    /// same.
    pub fn map_peer(self) -> Event<PeerBuffer<T>> {
        let (value, event) = self.into_parts();
        Event { value: Some(PeerBuffer::new(value)), event, on_drop: None }
    }
}

impl<T: DeviceCopy> Event<PeerBuffer<T>> {
    /// Makes the buffer one for its own device again. The event stays the same.
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

/// Gives a dropped event to the closure of `on_drop`. The closure is user code, and its panic must
/// not leave a destructor.
#[cold]
fn returned<R: Resource>(take: OnDrop<R>, event: Event<R>) {
    if guard::forked() {
        std::mem::forget((take, event)); // a lock of the closure's may have been held at the fork
        return;
    }
    contain(|| take(event));
}

impl<R: Resource> fmt::Debug for Event<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `is_complete` could run work of a seeded device, under whatever lock the program prints.
        f.debug_struct("Event").field("passed", &self.is_known_complete()).finish_non_exhaustive()
    }
}

impl<R: Resource> IntoFuture for Event<R> {
    type Output = Result<R>;
    type IntoFuture = EventFuture<R>;
    fn into_future(self) -> EventFuture<R> {
        EventFuture { event: Some(self), registered: None }
    }
}

/// The future of `event.await`. It gives the idle resource once the work before the record is done,
/// or an error if the device has failed. It works on every executor. After it was ready, it stays
/// pending.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct EventFuture<R: Resource> {
    event: Option<Event<R>>,
    /// The waker that the background thread has. It keeps it until the event is complete, so it
    /// gets each waker once, however often a pending future is polled.
    registered: Option<Waker>,
}

// The resource is moved out by value and never pinned.
impl<R: Resource> Unpin for EventFuture<R> {}

impl<R: Resource> Drop for EventFuture<R> {
    fn drop(&mut self) {
        let waker = self.registered.take();
        contain(|| drop(waker));
    }
}

impl<R: Resource> Future for EventFuture<R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(event) = self.event.take() else {
            return Poll::Pending; // it was polled again after it was ready
        };
        let ready = event.is_complete();
        match ready {
            Ok(true) => Poll::Ready(Ok(event.into_idle("await"))),
            // Work of a stream may not ask the device, but the background thread may.
            Ok(false) | Err(Error::InHostFunction | Error::InKernel) => {
                // In work of a stream the event may be complete, and the waker used already.
                let pending = matches!(ready, Ok(false));
                if !(pending && self.registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()))) {
                    if let Some(lease) = event.lease() {
                        lease.wake(cx.waker());
                    }
                    let waker = cx.waker().clone();
                    let old = self.registered.replace(waker);
                    contain(|| drop(old));
                }
                self.event = Some(event);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// A point in the time of a stream. Only this kind of event has [`elapsed`](TimedEvent::elapsed).
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
        let _wait = self.0.device().host_wait(HostWait::Synchronize);
        self.0.synchronize()
    }

    /// The device time from `start` to this point, or `None` while one of them is not complete.
    /// CUDA documents a resolution of about 0.5 us.
    ///
    /// # Errors
    /// The device has failed, or the two events belong to different devices.
    pub fn elapsed(&self, start: &TimedEvent) -> Result<Option<Duration>> {
        let device = self.0.device();
        if device != start.0.device() {
            return Err(Error::DeviceMismatch { resource: start.0.device().to_string(), stream: device.to_string() });
        }
        device.ensure_usable()?;
        device.seen(self.0.handle().since(start.0.handle()))
    }
}

impl<S> Stream<S> {
    /// Records a point in the time of the stream, for measuring.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn timestamp(self) -> Result<TimedEvent>
    where
        S: LiveBrand,
    {
        self.device().ensure_usable()?;
        let stall = self.device().host_wait(HostWait::EventCreation);
        let cell = EventCell::new(self.device(), true)?;
        drop(stall);
        self.call(|s| s.record(cell.handle()))?;
        Ok(TimedEvent::new(cell))
    }
}
