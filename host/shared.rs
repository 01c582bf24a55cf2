//! One resource, read by several streams at once.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::brand::Brand;
use crate::brand::StreamTag;
use crate::error::{Error, Result, Returned};
use crate::lock;
use crate::memory::{PinnedBuffer, Plain};
use crate::resource::{Bundle, Resource, Token};
use crate::runtime::event::Lease;
use crate::runtime::memory::{When, give_back};
use crate::stream::Stream;

/// A resource that any number of streams may read: made by [`Stream::share`], read with [`Stream::reading`], taken back with
/// [`Stream::unshare`].
///
/// Cloning makes another handle on the same memory. Dropping the last handle or reading gives the memory back
/// once the producer and all readers are done, without waiting.
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
pub struct Shared<R: Resource>(Arc<Inner<R>>);

struct Inner<R: Resource> {
    /// `None` only once it was taken.
    value: Option<R>,
    /// Recorded after the last write.
    producer: Lease,
    readers: Mutex<Readers>,
}

#[derive(Default)]
struct Readers {
    /// The newest read of each stream, by the stream's serial: a newer record on a stream covers its
    /// older ones. One event for all readers would lose all but the last.
    events: Vec<Reader>,
    /// A reader could not be recorded, so nobody can know when it is done.
    lost: bool,
}

struct Reader {
    /// Of the stream.
    serial: u64,
    /// Drawn before the record: what is recorded with a later turn covers all reads of earlier ones, in
    /// whatever order two threads get here.
    turn: u64,
    event: Lease,
}

impl<R: Resource> Shared<R> {
    pub(crate) fn new(value: R, producer: Lease) -> Self {
        Self(Arc::new(Inner { value: Some(value), producer, readers: Mutex::default() }))
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

    /// Handles and readings alive, this one included.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// What to wait for before the resource may be written, if this is the only handle.
    pub(crate) fn readers(&self) -> Result<Vec<Lease>> {
        let holders = self.holders();
        if holders > 1 {
            return Err(Error::StillShared { holders: holders - 1 });
        }
        let readers = lock(&self.0.readers);
        if readers.lost {
            return Err(Error::ReaderLost);
        }
        let events = readers.events.iter().map(|r| r.event.clone());
        Ok(events.chain([self.0.producer.clone()]).collect())
    }

    /// The resource; the caller has waited for [`readers`](Self::readers).
    pub(crate) fn into_value(self) -> Result<R, Returned<Self>> {
        match Arc::try_unwrap(self.0) {
            Ok(mut inner) => match inner.value.take() {
                Some(value) => Ok(value),
                None => unreachable!("taken only here"),
            },
            Err(shared) => {
                let holders = Arc::strong_count(&shared) - 1;
                Err(Returned::new(Error::StillShared { holders }, Self(shared)))
            }
        }
    }
}

impl<T: Plain> Shared<PinnedBuffer<T>> {
    /// The elements on the host, once the producer is done, while streams go on reading; `None` before. Does not wait.
    ///
    /// # Errors
    /// The device has failed.
    pub fn host(&self) -> Result<Option<&[T]>> {
        if self.0.producer.query()? {
            // SAFETY: the last write is complete, and while this handle is borrowed there are only readers.
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
        f.debug_struct("Shared").field("holders", &self.holders()).finish_non_exhaustive()
    }
}

impl<R: Resource> Drop for Inner<R> {
    fn drop(&mut self) {
        let Some(mut value) = self.value.take() else { return };
        let readers = std::mem::take(&mut *lock(&self.readers));
        if readers.lost {
            std::mem::forget(value);
            return;
        }
        let after = || readers.events.iter().map(|r| r.event.clone()).chain([self.producer.clone()]).collect();
        value.__drain(&mut |leaf| give_back(leaf.0, When::After(after())), Token::new());
    }
}

/// A shared resource while stream `S` reads it: dereferences to `&R::On<S>`, so it goes wherever an operation takes that.
///
/// Dropping it records an event on `S`, which whoever writes or frees the memory next waits for.
pub struct Reading<S: StreamTag, R: Resource> {
    /// A handle that owns nothing.
    on: R::On<S>,
    stream: Stream<S>,
    shared: Arc<Inner<R>>,
}

impl<S: StreamTag, R: Resource> Reading<S, R> {
    pub(crate) fn new(shared: &Shared<R>, stream: Stream<S>) -> Self {
        Self { on: shared.value().__alias(stream, Token::new()), stream, shared: shared.0.clone() }
    }
}

impl<S: StreamTag, R: Resource> Deref for Reading<S, R> {
    type Target = R::On<S>;
    fn deref(&self) -> &R::On<S> {
        &self.on
    }
}

impl<S: StreamTag, R: Resource> Drop for Reading<S, R> {
    fn drop(&mut self) {
        // The record comes first; the handle is released after, with the fields.
        static TURN: AtomicU64 = AtomicU64::new(0);
        let turn = TURN.fetch_add(1, Ordering::AcqRel);
        let event = self.stream.inner().lease();
        let mut readers = lock(&self.shared.readers);
        match event {
            Ok(event) => {
                let serial = self.stream.serial();
                match readers.events.iter_mut().find(|r| r.serial == serial) {
                    Some(newest) if newest.turn < turn => (newest.turn, newest.event) = (turn, event),
                    Some(_) => {}
                    None => readers.events.push(Reader { serial, turn, event }),
                }
            }
            Err(_) => readers.lost = true,
        }
    }
}

impl<S: StreamTag, R: Resource> fmt::Debug for Reading<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl<S: Brand> Stream<S> {
    /// Shares a resource for reading by any number of streams.
    ///
    /// # Errors
    /// The device has failed; the resource comes back.
    #[track_caller]
    pub fn share<B: Bundle<S>>(self, bundle: B) -> Result<Shared<B::Idle>, Returned<B>>
    where
        S: StreamTag,
    {
        match self.inner().lease() {
            Ok(event) => Ok(Shared::new(bundle.__unbind(Token::new()), event)),
            Err(error) => Err(Returned::new(error, bundle)),
        }
    }

    /// Reads a shared resource on this stream, which waits, on the device, for its producer.
    ///
    /// # Errors
    /// A part of it lives on another device, or the device has failed.
    pub fn reading<R: Resource>(self, shared: &Shared<R>) -> Result<Reading<S, R>>
    where
        S: StreamTag,
    {
        self.admits(shared.value())?;
        self.inner().wait(shared.producer())?;
        Ok(Reading::new(shared, self))
    }

    /// Takes a shared resource back for this stream alone, which waits, on the device, for every reader.
    ///
    /// # Errors
    /// Other handles or readings are alive ([`Error::StillShared`]), a part of it lives on another device, or the device has
    /// failed; it comes back.
    pub fn unshare<R: Resource>(self, shared: Shared<R>) -> Result<R::On<S>, Returned<Shared<R>>>
    where
        S: StreamTag,
    {
        let waited = self
            .admits(shared.value())
            .and_then(|()| shared.readers()?.iter().try_for_each(|event| self.inner().wait(event)));
        match waited {
            Ok(()) => shared.into_value().map(|value| value.__bind(self, Token::new())),
            Err(error) => Err(Returned::new(error, shared)),
        }
    }
}
