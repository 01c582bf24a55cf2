//! One resource, read by several streams at once.

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::brand::{Brand, LiveBrand};
use crate::driver::{self, guard};
use crate::error::{Error, Result, Returned};
use crate::memory::{DeviceCopy, PinnedBuffer};
use crate::readers::Readers;
use crate::resource::{Bundle, Leaf, LeafInfo, Producer, Resource, Token};
use crate::runtime::event::Lease;
use crate::runtime::memory::{When, give_back};
use crate::stream::Stream;
use crate::{contain, trace};

/// A resource that any number of streams may read. [`Stream::share`] makes it, [`Stream::reading`]
/// reads it, and [`Stream::unshare`] takes it back for one stream.
///
/// A handle is a [`Resource`] itself: as a part of a bundle, a stream reads it, and the graphs of
/// several scoped streams can read the same weights.
///
/// Cloning makes another handle on the same memory. Dropping the last handle or reading gives the
/// memory back once the producer and all readers are done. The drop does not wait.
///
/// ```
/// use thalweg::{Device, stream_tags};
///
/// stream_tags!(Upload, Left, Right);
/// let gpu = Device::best()?;
/// let (up, left, right) = (gpu.stream::<Upload>()?, gpu.stream::<Left>()?, gpu.stream::<Right>()?);
/// let mut x = up.alloc::<u8>(64)?;
/// up.fill(&mut x, 9)?;
/// let shared = up.share(x)?;
/// let (mut a, mut b) = (left.alloc(64)?, right.alloc(64)?);
/// left.copy(&left.reading(&shared)?, &mut a)?; // both streams read at once, after the fill
/// right.copy(&right.reading(&shared)?, &mut b)?;
/// let mut x = up.unshare(shared)?; // `up` waits for both copies
/// up.fill(&mut x, 0)?;
/// assert_eq!(left.read_blocking(&a)?, right.read_blocking(&b)?);
/// # Ok::<(), thalweg::Error>(())
/// ```
#[must_use = "dropping the last handle gives the memory back"]
pub struct Shared<R: Resource>(Arc<Inner<R>>);

struct Inner<R: Resource> {
    /// `None` only after the value was taken.
    value: Option<R>,
    /// The event that was recorded after the last write.
    producer: Lease,
    readers: Readers<Lease>,
}

impl<R: Resource> Shared<R> {
    pub(crate) fn new(value: R, producer: Lease) -> Self {
        Self(Arc::new(Inner { value: Some(value), producer, readers: Readers::new() }))
    }

    pub(crate) fn value(&self) -> &R {
        match &self.0.value {
            Some(value) => value,
            None => unreachable!("taken only by value"),
        }
    }

    pub(crate) fn producer(&self) -> &Lease {
        &self.0.producer
    }

    /// Number of handles and readings that are alive, including this one.
    pub fn ref_count(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// The events to wait for before the resource may be written, if this is the only handle.
    pub(crate) fn readers(&self) -> Result<Vec<Lease>> {
        let holders = self.ref_count();
        if holders > 1 {
            return Err(Error::StillShared { ref_count: holders - 1 });
        }
        let readers = self.0.readers.events().ok_or(Error::ReaderLost)?;
        Ok(readers.into_iter().chain([self.0.producer.clone()]).collect())
    }

    /// Takes the resource. The caller has waited for [`readers`](Self::readers).
    pub(crate) fn into_value(self) -> Result<R, Returned<Self>> {
        match Arc::try_unwrap(self.0) {
            Ok(mut inner) => match inner.value.take() {
                Some(value) => Ok(value),
                None => unreachable!("taken only here"),
            },
            Err(shared) => {
                let holders = Arc::strong_count(&shared) - 1;
                Err(Returned::new(Error::StillShared { ref_count: holders }, Self(shared)))
            }
        }
    }
}

impl<T: DeviceCopy> Shared<PinnedBuffer<T>> {
    /// The elements, for the host to read while streams also read them. `None` if the producer is
    /// not done yet. Does not wait.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn host(&self) -> Result<Option<&[T]>> {
        if self.0.producer.query()? {
            trace::read("host", self.value());
            // SAFETY: [idle] The query above says that the last write is complete. The next write
            // needs the resource from `unshare`, which takes the last handle by value, so there is
            // none while this handle is borrowed.
            Ok(Some(unsafe { self.value().slice_while_shared() }))
        } else {
            Ok(None)
        }
    }
}

impl<R: Resource> Clone for Shared<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R: Resource> fmt::Debug for Shared<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("holders", &self.ref_count()).finish_non_exhaustive()
    }
}

impl<R: Resource> Drop for Inner<R> {
    fn drop(&mut self) {
        let Some(mut value) = self.value.take() else { return };
        if guard::forked() {
            std::mem::forget(value); // another thread may have held the lock at the fork
            return;
        }
        let Some(readers) = self.readers.events() else {
            std::mem::forget(value);
            return;
        };
        let after = || readers.iter().cloned().chain([self.producer.clone()]).collect();
        value.__drain(&mut |leaf| give_back(leaf.0, When::After(after())), Token::new());
    }
}

/// A shared resource while stream `S` reads it. It dereferences to `R::On<S>`, so operations that
/// take a `&R::On<S>` take it.
///
/// Dropping it records an event on `S`. Whoever next writes or frees the memory waits for that
/// event.
pub struct SharedRead<S: Brand, R: Resource> {
    /// A second handle, which does not own the memory. The first use makes it, because that clones
    /// metadata, which is code of a user, and a stream makes readings where no such code may run.
    on: ManuallyDrop<OnceLock<R::On<S>>>,
    stream: Stream<S>,
    shared: Arc<Inner<R>>,
}

impl<S: Brand, R: Resource> SharedRead<S, R> {
    fn new(shared: &Shared<R>, stream: Stream<S>) -> Self {
        Self { on: ManuallyDrop::new(OnceLock::new()), stream, shared: shared.0.clone() }
    }
}

/// # Panics
/// A `Clone` of the resource's metadata dereferences the reading that clones it for the first time.
impl<S: Brand, R: Resource> Deref for SharedRead<S, R> {
    type Target = R::On<S>;
    fn deref(&self) -> &R::On<S> {
        if let Some(on) = self.on.get() {
            return on;
        }
        // Outside the cell, because `__alias` runs a user's `clone`, which may wait for a thread
        // that reads here too. If two threads make a handle, the second one is dropped, which frees
        // nothing.
        let made = match &self.shared.value {
            Some(value) => alone(self, || value.__alias(self.stream, Token::new())),
            None => unreachable!("taken only by value"),
        };
        self.on.get_or_init(|| made)
    }
}

/// Runs `make`, which makes the handle of a reading. A `clone` in it that reads the same reading
/// would call itself until the stack ends.
fn alone<T, U>(reading: &T, make: impl FnOnce() -> U) -> U {
    thread_local! {
        /// The readings whose handles this thread is making. It has no destructor, because the
        /// destructors of a thread that ends may read, too.
        static MAKING: ManuallyDrop<RefCell<Vec<*const ()>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    }
    struct Made;
    impl Drop for Made {
        fn drop(&mut self) {
            MAKING.with(|making| {
                let mut making = making.borrow_mut();
                making.pop();
                if making.is_empty() {
                    *making = Vec::new(); // its memory would leak at the end of the thread
                }
            });
        }
    }
    let place = std::ptr::from_ref(reading).cast();
    MAKING.with(|making| {
        let mut making = making.borrow_mut();
        assert!(!making.contains(&place), "the `Clone` of metadata reads the reading that clones it");
        making.push(place);
    });
    let _made = Made;
    make()
}

impl<S: Brand, R: Resource> Drop for SharedRead<S, R> {
    fn drop(&mut self) {
        if guard::forked() {
            return; // another thread may have held the lock at the fork
        }
        // A reading under capture read nothing: a replay is a reading of the stream that runs it.
        if !self.stream.inner().captures() {
            self.end();
        }
        // The metadata of the second handle is a user's. A panic of its destructor must not leave
        // a transition, which drops readings between the states of other buffers.
        //
        // SAFETY: [once] Only this destructor takes the handle, and it runs once.
        let on = unsafe { ManuallyDrop::take(&mut self.on) };
        contain(|| drop(on));
    }
}

impl<S: Brand, R: Resource> SharedRead<S, R> {
    /// Records the end of the reading. The handle on the resource is dropped after this.
    fn end(&self) {
        self.shared.readers.end(self.stream.unique_id(), || self.stream.inner().lease());
    }
}

// SAFETY: [parts] The leaves are those of the value, which they only describe. A handle owns the
// memory together with all other handles and readings, so `__drain` takes nothing: the destructor
// of the last of them gives the memory back, after the producer and all readings. `__bind` and
// `__alias` make a reading; the stream has waited for the producer, as `Stream::bind` says. An
// alias on a stream that runs its work is a reading too, and one under capture does not record its
// end, because the replay's own reading does.
unsafe impl<R: Resource + Sync> Resource for Shared<R> {
    type On<S: Brand> = SharedRead<S, R>;

    fn __leaves<Visit: FnMut(LeafInfo)>(&self, visit: &mut Visit) {
        // A graph that writes a buffer must not run while the buffer is shared.
        self.value().__leaves(&mut |leaf| visit(LeafInfo { shared: true, ..leaf }));
    }
    fn __drain<Sink: FnMut(Leaf)>(&mut self, _: &mut Sink, _: Token) {}
    fn __bind<S: Brand>(self, stream: Stream<S>, _: Token) -> SharedRead<S, R> {
        SharedRead::new(&self, stream)
    }
    fn __alias<S: Brand>(&self, stream: Stream<S>, _: Token) -> SharedRead<S, R> {
        SharedRead::new(self, stream)
    }
    fn __producers<Visit: FnMut(Producer<'_>)>(&self, visit: &mut Visit) {
        visit(Producer(self.producer()));
    }
}

// SAFETY: [parts] `__unbind` ends the reading, which records an event, and gives the handle back.
unsafe impl<S: Brand, R: Resource + Sync> Bundle<S> for SharedRead<S, R> {
    type Idle = Shared<R>;
    fn __unbind(self, _: Token) -> Shared<R> {
        Shared(self.shared.clone())
    }
}

impl<S: Brand, R: Resource> fmt::Debug for SharedRead<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl<S> Stream<S> {
    /// Shares a resource for reading by any number of streams.
    ///
    /// # Errors
    /// The device has failed. The resource comes back.
    #[track_caller]
    pub fn share<B: Bundle<S>>(self, bundle: B) -> Result<Shared<B::Idle>, Returned<B>>
    where
        S: LiveBrand,
    {
        match self.inner().lease() {
            Ok(event) => Ok(Shared::new(bundle.__unbind(Token::new()), event)),
            Err(error) => Err(Returned::new(error, bundle)),
        }
    }

    /// Reads a shared resource on this stream. The stream waits, on the device, for the producer.
    /// The host does not wait.
    ///
    /// # Errors
    /// A part of it lives on another device, or the device has failed.
    #[track_caller]
    pub fn reading<R: Resource>(self, shared: &Shared<R>) -> Result<SharedRead<S, R>>
    where
        S: LiveBrand,
    {
        self.admits(shared.value())?;
        self.inner().wait(shared.producer())?;
        Ok(SharedRead::new(shared, self))
    }

    /// Takes a shared resource back for this stream alone. The stream waits, on the device, for
    /// every reader. The host does not wait.
    ///
    /// # Errors
    /// Other handles or readings are alive ([`Error::StillShared`]), the end of a reading could not
    /// be recorded ([`Error::ReaderLost`]), a part of the resource lives on another device, or the
    /// device has failed. The handle comes back.
    #[track_caller]
    pub fn unshare<R: Resource>(self, shared: Shared<R>) -> Result<R::On<S>, Returned<Shared<R>>>
    where
        S: LiveBrand,
    {
        let _here = driver::trace::here();
        let waited = self
            .admits(shared.value())
            .and_then(|()| shared.readers()?.iter().try_for_each(|event| self.inner().wait(event)));
        match waited {
            Ok(()) => shared.into_value().map(|value| value.__bind(self, Token::new())),
            Err(error) => Err(Returned::new(error, shared)),
        }
    }
}
