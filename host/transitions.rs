//! The transitions of a resource: onto a stream, from stream to stream, and back.

use std::mem::ManuallyDrop;

use crate::brand::{Brand, LiveBrand};
use crate::driver;
use crate::error::{Error, Result, Returned};
use crate::event::Event;
use crate::resource::{Bundle, LeafResource, On, Resource, Token};
use crate::stream::Stream;
use crate::trace;

impl<S> Stream<S> {
    /// Hands an idle resource to this stream. This enqueues nothing, except for
    /// [`Shared`](crate::Shared) parts, whose producers the stream waits for.
    ///
    /// # Errors
    /// A part of the resource lives on another device, or the wait failed. The resource comes back.
    #[track_caller]
    pub fn bind<R: Resource>(self, resource: R) -> Result<R::On<S>, Returned<R>>
    where
        S: LiveBrand,
    {
        match self.admits(&resource).and_then(|()| self.await_producers(&resource)) {
            Ok(()) => {
                trace::idle("bind", &resource);
                Ok(resource.__bind(self, Token::new()))
            }
            Err(error) => Err(Returned::new(error, resource)),
        }
    }

    /// Records an event. The resource leaves the stream, guarded until all work enqueued so far is
    /// done.
    ///
    /// # Errors
    /// The device has failed. The resource comes back, still on the stream.
    #[inline]
    #[track_caller]
    pub fn record<B: Bundle<S>>(self, bundle: B) -> Result<Event<B::Idle>, Returned<B>>
    where
        S: LiveBrand,
    {
        // Make the event only after its record succeeded, because CUDA reports an event without a
        // record as complete.
        match self.inner().lease() {
            Ok(event) => Ok(Event::new(bundle.__unbind(Token::new()), event)),
            Err(error) => Err(Returned::new(error, bundle)),
        }
    }

    /// Makes this stream wait, on the device, for the event. From then on this stream orders the
    /// resource. The host does not wait.
    ///
    /// # Errors
    /// A part of the resource lives on another device, or the device has failed. The event comes
    /// back.
    #[inline]
    #[track_caller]
    pub fn wait<R: Resource>(self, event: Event<R>) -> Result<R::On<S>, Returned<Event<R>>>
    where
        S: LiveBrand,
    {
        let _here = driver::trace::here();
        let waited = self.admits(event.value()).and_then(|()| match event.lease() {
            Some(lease) => self.inner().wait(lease),
            None => self.device().ensure_usable().and_then(|()| self.await_producers(event.value())),
        });
        match waited {
            Ok(()) => Ok(event.into_parts().0.__bind(self, Token::new())),
            Err(error) => Err(Returned::new(error, event)),
        }
    }

    /// Hands a resource to another stream: [`record`](Stream::record) here and
    /// [`wait`](Stream::wait) there, in one call.
    ///
    /// # Errors
    /// The errors of [`record`](Stream::record) and [`wait`](Stream::wait). The resource comes
    /// back, still on this stream.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Upload, Compute);
    /// let gpu = Device::best()?;
    /// let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    /// let mut image = up.alloc::<u8>(16)?;
    /// up.fill(&mut image, 1)?;
    /// let mut image = up.hand_off(image, &compute)?; // now `On<Compute, _>`
    /// compute.fill(&mut image, 2)?;
    /// assert_eq!(compute.read_blocking(&image)?, [2; 16]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    #[inline]
    #[track_caller]
    pub fn hand_off<B: Bundle<S>, T: LiveBrand>(
        self,
        bundle: B,
        to: &Stream<T>,
    ) -> Result<<B::Idle as Resource>::On<T>, Returned<B>>
    where
        S: LiveBrand,
    {
        let _here = driver::trace::here();
        // Before readings in the bundle end, whose ends could not be recorded.
        if let Err(error) = self.device().ensure_usable() {
            return Err(Returned::new(error, bundle));
        }
        // The bundle may have pending work although its type now says idle. If the driver's call
        // panics, `ManuallyDrop` leaks it instead of freeing it as idle.
        let idle = ManuallyDrop::new(bundle.__unbind(Token::new()));
        let handed = to.admits(&*idle).and_then(|()| {
            to.device().ensure_usable()?;
            self.device().seen(self.handle().hand_off(self.inner().hand.handle(), to.handle()))
        });
        let idle = ManuallyDrop::into_inner(idle);
        match handed {
            Ok(()) => Ok(idle.__bind(*to, Token::new())),
            // The order is unchanged, so the resource still belongs to this stream.
            Err(error) => Err(Returned::new(error, idle.__bind(self, Token::new()))),
        }
    }

    /// Makes this stream wait, on the device, for all work that `other` has been given so far. The
    /// host does not wait.
    ///
    /// Resources need no such call: [`hand_off`](Self::hand_off) and [`wait`](Self::wait) order
    /// what they move. It is for `unsafe` code that has given work on this stream's memory to other
    /// streams. So, unlike other calls, it also orders the streams of a device that [has
    /// failed](crate::Device::poison), where work still runs and memory is still freed in stream
    /// order.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Work, Other);
    /// let gpu = Device::best()?;
    /// let (work, other) = (gpu.stream::<Work>()?, gpu.stream::<Other>()?);
    /// let mut x = other.alloc::<u8>(1 << 20)?;
    /// other.fill(&mut x, 1)?;
    /// let x = other.record(x)?;
    /// work.follow(&other)?;
    /// work.synchronize()?;
    /// assert!(x.is_complete()?);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver cannot order the streams.
    #[track_caller]
    pub fn follow<T: LiveBrand>(self, other: &Stream<T>) -> Result<()>
    where
        S: LiveBrand,
    {
        self.device().seen(other.handle().hand_off(other.inner().hand.handle(), self.handle()))
    }

    /// Makes the stream wait for the producers of the shared parts of an idle resource. A resource
    /// behind an event needs no such wait: the stream that recorded the event had waited.
    #[inline]
    fn await_producers<R: Resource>(self, resource: &R) -> Result<()> {
        let mut waited = Ok(());
        resource.__producers(&mut |producer| {
            if waited.is_ok() {
                waited = self.inner().wait(producer.0);
            }
        });
        waited
    }

    /// Whether every part of a resource can be used on this stream.
    #[inline]
    pub(crate) fn admits<R: Resource>(self, resource: &R) -> Result<()> {
        let device = self.device();
        let mut refused = None;
        resource.__leaves(&mut |leaf| {
            if !leaf.kind.usable_on(leaf.device, device) {
                refused = Some(leaf.device);
            }
        });
        match refused {
            None => Ok(()),
            Some(other) => Err(Error::DeviceMismatch { resource: other.to_string(), stream: device.to_string() }),
        }
    }
}

impl<S: Brand, L: LeafResource> On<S, L> {
    /// Waits on the host until the stream has passed all work on the buffer, and returns it idle.
    ///
    /// This is the short form of `record` and `synchronize`, for set-up code.
    ///
    /// # Errors
    /// The record or the wait failed.
    #[track_caller]
    pub fn synchronize(self) -> crate::Result<L>
    where
        S: LiveBrand,
        L: Resource<On<S> = Self>,
        Self: Bundle<S, Idle = L>,
    {
        let stream = self.stream();
        Ok(stream.record(self)?.synchronize()?)
    }
}
