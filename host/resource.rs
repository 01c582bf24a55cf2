//! The three states of a resource, as types.
//!
//! ```text
//! idle R --s.bind--> R::On<S> --s.record--> Event<R> --t.wait--> R::On<T>
//!                                               \--synchronize--> idle R
//! ```
//!
//! - `R` is idle: no GPU work can touch it. A [`PinnedBuffer`](crate::PinnedBuffer) is then a
//!   slice.
//! - `R::On<S>` is ordered by stream `S`: work may be pending, and only operations of `S` take it.
//!   For a buffer it is [`On<S, DeviceBuffer<T>>`](On), for a tuple a tuple of those, and for a
//!   struct with `#[derive(Resource)]` the struct `NameOn<S>`.
//! - [`Event<R>`](crate::Event) is in transit: guarded by a recorded event.
//!
//! A transition moves the value; it does not guard it. So a forgotten value leaks, and can never
//! cause a race or a dangling pointer. Two rules make this sound. **No safe code gets a `&R` or
//! `&mut R` from an `On` or an `Event`**, so a resource in flight cannot be swapped with an idle
//! one. And every conversion between states takes a [`Token`], which only this crate can make. It
//! makes one only if the conversion is justified, for example because an event was recorded or
//! waited for.

use std::fmt;
use std::mem::ManuallyDrop;

use thalweg_simt::host::counted;

use crate::brand::Brand;
use crate::runtime::device::Device;
use crate::runtime::event::Lease;
use crate::runtime::memory::{Memory, When, give_back};
use crate::stream::Stream;

/// Proof that a change of state is justified. Only this crate makes one.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Token(());

impl Token {
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The memory of one leaf, without its type.
#[doc(hidden)]
pub struct Leaf(pub(crate) Memory);

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leaf")
    }
}

/// The kind of a leaf, which the check against a stream's device needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafKind {
    /// Device memory: usable on streams of its own device.
    Device,
    /// Page-locked memory: usable on streams of every device of its kind.
    Pinned,
    /// Device memory for copies between devices.
    Peer,
}

/// The event of a producer.
#[doc(hidden)]
pub struct Producer<'e>(pub(crate) &'e Lease);

impl fmt::Debug for Producer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Producer")
    }
}

impl LeafKind {
    /// Whether a leaf of this kind, of device `of`, can be used on streams of `device`.
    pub(crate) fn usable_on(self, of: Device, device: Device) -> bool {
        match self {
            Self::Device => of == device,
            Self::Pinned | Self::Peer => of.kind() == device.kind(),
        }
    }
}

/// The place of a leaf and the identity of its memory.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafInfo {
    pub(crate) device: Device,
    pub(crate) kind: LeafKind,
    pub(crate) addr: u64,
    pub(crate) bytes: usize,
    /// The number of the allocation. A later allocation in the same place has another number.
    pub(crate) allocation: u64,
    /// Whether the leaf is a part of a [`Shared`](crate::Shared) resource, which is only read.
    pub(crate) shared: bool,
}

impl fmt::Display for LeafInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            LeafKind::Device => "device",
            LeafKind::Pinned => "page-locked",
            LeafKind::Peer => "peer",
        };
        let Self { device, addr, allocation, .. } = self;
        let bytes = counted(self.bytes, "byte");
        let shared = if self.shared { "shared, " } else { "" };
        write!(f, "{shared}{bytes} of {kind} memory of {device} at {addr:#x} (allocation {allocation})")
    }
}

/// Something that travels between the host and streams: a buffer, or a composite of buffers.
///
/// It is implemented for [`PinnedBuffer`](crate::PinnedBuffer),
/// [`DeviceBuffer`](crate::DeviceBuffer), [`PeerBuffer`](crate::PeerBuffer), handles of
/// [`Shared`](crate::Shared) resources, and for tuples, arrays, `Vec` and `Option` of resources.
/// `#[derive(Resource)]` implements it for a struct.
///
/// ```
/// use thalweg::{Device, DeviceBuffer, PinnedBuffer, Resource, stream_tags};
///
/// #[derive(Resource)]
/// struct Slot {
///     host: PinnedBuffer<f32>,
///     device: DeviceBuffer<f32>,
///     #[resource(plain)]
///     frame: u64,
/// }
///
/// stream_tags!(Work);
/// let gpu = Device::best()?;
/// let work = gpu.stream::<Work>()?;
/// let slot = Slot { host: gpu.pinned_from(&[1.0; 8])?, device: work.alloc(8)?.synchronize()?, frame: 7 };
/// let mut slot = work.bind(slot)?; // a `SlotOn<Work>`
/// work.copy_to_device(&slot.host, &mut slot.device)?;
/// let slot: Slot = work.record(slot)?.synchronize()?;
/// assert_eq!((slot.frame, slot.host[0]), (7, 1.0));
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # Safety
/// The methods visit every leaf and every part exactly once, move it without touching its memory,
/// and run no code of a user (`__alias` may clone metadata). A `Shared` part may record the end of
/// a reading. A composite has no `Drop` of its own. Derive this trait instead of writing an
/// implementation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a resource",
    label = "cannot travel between the host and streams",
    note = "resources are idle buffers, and tuples, arrays, `Vec` and `Option` of them; derive `Resource` for a struct of them, and mark its other fields `#[resource(plain)]`"
)]
pub unsafe trait Resource: Sized + Send + 'static {
    /// The resource while stream `S` orders it.
    type On<S: Brand>: Bundle<S, Idle = Self>;

    /// Visits each leaf's place and memory, in a fixed order.
    #[doc(hidden)]
    fn __leaves<Visit: FnMut(LeafInfo)>(&self, visit: &mut Visit);
    /// Takes the memory out of each leaf and leaves empty buffers.
    #[doc(hidden)]
    fn __drain<Sink: FnMut(Leaf)>(&mut self, sink: &mut Sink, token: Token);
    /// Converts to the ordered state.
    #[doc(hidden)]
    fn __bind<S: Brand>(self, stream: Stream<S>, token: Token) -> Self::On<S>;
    /// Makes a second handle on the same memory, which frees nothing when it is dropped.
    #[doc(hidden)]
    fn __alias<S: Brand>(&self, stream: Stream<S>, token: Token) -> Self::On<S>;
    /// Visits the events of producers that a stream waits for before it uses the idle resource:
    /// those of [`Shared`](crate::Shared) parts.
    #[doc(hidden)]
    fn __producers<Visit: FnMut(Producer<'_>)>(&self, visit: &mut Visit);
}

/// A resource, or a composite of them, while stream `S` orders it.
///
/// # Safety
/// The implementation keeps the rules of [`Resource`], and `__unbind` undoes `__bind`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not ordered by stream `{S}`",
    label = "not a resource on `{S}`",
    note = "only what stream `{S}` orders can be recorded, handed on or shared by it: `bind` it first, or `hand_off` it from its stream"
)]
pub unsafe trait Bundle<S: Brand>: Sized {
    /// The same resource, idle.
    type Idle: Resource<On<S> = Self>;
    /// Converts back from the ordered state.
    #[doc(hidden)]
    fn __unbind(self, token: Token) -> Self::Idle;
}

/// A buffer: what [`On`] can hold.
///
/// # Safety
/// Only this crate implements it.
pub unsafe trait LeafResource: Resource {
    /// The type to which the buffer dereferences while a stream orders it.
    #[doc(hidden)]
    type Slice<S: Brand>: ?Sized;
    /// The buffer as a slice of its stream.
    #[doc(hidden)]
    fn __slice<S: Brand>(&self, token: Token) -> &Self::Slice<S>;
    /// The buffer as an exclusive slice of its stream.
    #[doc(hidden)]
    fn __slice_mut<S: Brand>(&mut self, token: Token) -> &mut Self::Slice<S>;
    /// Makes a second handle on the same memory, which does not own it.
    #[doc(hidden)]
    fn __copy(&self, token: Token) -> Self;
}

/// A buffer that stream `S` orders. Work on it may be pending, and only operations of `S` take it.
///
/// It dereferences to [`DeviceSlice`](crate::DeviceSlice) or [`HostSlice`](crate::HostSlice), whose
/// elements the host cannot read. Dropping it frees the memory once the stream has passed all work
/// on it, and never blocks.
#[must_use = "dropping it gives the memory back"]
pub struct On<S: Brand, L: LeafResource> {
    leaf: ManuallyDrop<L>,
    stream: Stream<S>,
    /// Whether this is a second handle, of a reader or a capture, on memory that another value
    /// owns.
    alias: bool,
}

impl<S: Brand, L: LeafResource> On<S, L> {
    pub(crate) fn new(leaf: L, stream: Stream<S>) -> Self {
        Self { leaf: ManuallyDrop::new(leaf), stream, alias: false }
    }

    pub(crate) fn alias(leaf: L, stream: Stream<S>) -> Self {
        Self { leaf: ManuallyDrop::new(leaf), stream, alias: true }
    }

    /// Takes the buffer without its order. The caller must establish an order again.
    pub(crate) fn into_leaf(self) -> L {
        let mut this = ManuallyDrop::new(self);
        debug_assert!(!this.alias, "an alias never leaves its `Reading` or capture");
        // SAFETY: [once] This function owns `this` and does not use or drop it again.
        unsafe { ManuallyDrop::take(&mut this.leaf) }
    }

    pub(crate) fn leaf(&self) -> &L {
        &self.leaf
    }

    /// The buffer, to change what it says of its memory. Its memory stays ordered by the stream.
    pub(crate) fn leaf_mut(&mut self) -> &mut L {
        &mut self.leaf
    }

    /// The stream that orders it.
    pub fn stream(&self) -> Stream<S> {
        self.stream
    }
}

impl<S: Brand, L: LeafResource> Drop for On<S, L> {
    fn drop(&mut self) {
        if !self.alias {
            let stream = self.stream;
            let when = || When::Stream(stream.inner());
            self.leaf.__drain(&mut |leaf| give_back(leaf.0, when()), Token::new());
            // `__drain` has emptied the leaf, so dropping it frees nothing.
            // SAFETY: [once] `drop` runs once. `into_leaf` is the only other place that takes the
            // leaf, and it prevents `drop`.
            unsafe { ManuallyDrop::drop(&mut self.leaf) };
        }
    }
}

impl<S: Brand, L: LeafResource> std::ops::Deref for On<S, L> {
    type Target = L::Slice<S>;
    fn deref(&self) -> &L::Slice<S> {
        self.leaf.__slice(Token::new())
    }
}

// The slice is unsized, so this `&mut` cannot be used to swap one buffer with another.
impl<S: Brand, L: LeafResource> std::ops::DerefMut for On<S, L> {
    fn deref_mut(&mut self) -> &mut L::Slice<S> {
        self.leaf.__slice_mut(Token::new())
    }
}

impl<S: Brand, L: LeafResource> fmt::Debug for On<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("On").field("stream", &self.stream).finish_non_exhaustive()
    }
}

// SAFETY: [parts] `On` holds one leaf. `__unbind` moves it out and runs no other code, which undoes
// `__bind`.
unsafe impl<S: Brand, L: LeafResource + Resource<On<S> = On<S, L>>> Bundle<S> for On<S, L> {
    type Idle = L;
    fn __unbind(self, _: Token) -> L {
        self.into_leaf()
    }
}

macro_rules! tuple {
    ($($r:ident)*) => {
        // SAFETY: [parts] Each method visits each field once, in order, and each field's own
        // implementation keeps the rules of `Resource`.
        unsafe impl<$($r: Resource),*> Resource for ($($r,)*) {
            type On<Tag: Brand> = ($($r::On<Tag>,)*);
            #[allow(non_snake_case, unused_variables)]
            fn __leaves<Visit: FnMut(LeafInfo)>(&self, visit: &mut Visit) {
                let ($($r,)*) = self;
                $($r.__leaves(visit);)*
            }
            #[allow(non_snake_case, unused_variables)]
            fn __drain<Sink: FnMut(Leaf)>(&mut self, sink: &mut Sink, token: Token) {
                let ($($r,)*) = self;
                $($r.__drain(sink, token);)*
            }
            #[allow(non_snake_case, unused_variables, clippy::unused_unit)]
            fn __bind<Tag: Brand>(self, stream: Stream<Tag>, token: Token) -> Self::On<Tag> {
                let ($($r,)*) = self;
                ($($r.__bind(stream, token),)*)
            }
            #[allow(non_snake_case, unused_variables, clippy::unused_unit)]
            fn __alias<Tag: Brand>(&self, stream: Stream<Tag>, token: Token) -> Self::On<Tag> {
                let ($($r,)*) = self;
                ($($r.__alias(stream, token),)*)
            }
            #[allow(non_snake_case, unused_variables)]
            fn __producers<Visit: FnMut(Producer<'_>)>(&self, visit: &mut Visit) {
                let ($($r,)*) = self;
                $($r.__producers(visit);)*
            }
        }
        // SAFETY: [parts] `__unbind` calls the `__unbind` of each part once, in order. That undoes
        // `__bind`, which calls `__bind` of each part.
        unsafe impl<Tag: Brand, $($r: Bundle<Tag>),*> Bundle<Tag> for ($($r,)*) {
            type Idle = ($($r::Idle,)*);
            #[allow(non_snake_case, unused_variables, clippy::unused_unit)]
            fn __unbind(self, token: Token) -> Self::Idle {
                let ($($r,)*) = self;
                ($($r.__unbind(token),)*)
            }
        }
    };
}
tuple!();
tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);
tuple!(A B C D E F G);
tuple!(A B C D E F G H);

// SAFETY: [parts] Each method visits each element once, in order, and the element's own
// implementation keeps the rules of `Resource`.
unsafe impl<R: Resource> Resource for Vec<R> {
    type On<S: Brand> = Vec<R::On<S>>;
    fn __leaves<Visit: FnMut(LeafInfo)>(&self, visit: &mut Visit) {
        self.iter().for_each(|r| r.__leaves(visit));
    }
    fn __drain<Sink: FnMut(Leaf)>(&mut self, sink: &mut Sink, token: Token) {
        self.iter_mut().for_each(|r| r.__drain(sink, token));
    }
    fn __bind<S: Brand>(self, stream: Stream<S>, token: Token) -> Self::On<S> {
        self.into_iter().map(|r| r.__bind(stream, token)).collect()
    }
    fn __alias<S: Brand>(&self, stream: Stream<S>, token: Token) -> Self::On<S> {
        self.iter().map(|r| r.__alias(stream, token)).collect()
    }
    fn __producers<Visit: FnMut(Producer<'_>)>(&self, visit: &mut Visit) {
        self.iter().for_each(|r| r.__producers(visit));
    }
}
// SAFETY: [parts] `__unbind` calls the `__unbind` of each part once, in order. That undoes
// `__bind`, which calls `__bind` of each part.
unsafe impl<S: Brand, B: Bundle<S>> Bundle<S> for Vec<B> {
    type Idle = Vec<B::Idle>;
    fn __unbind(self, token: Token) -> Self::Idle {
        self.into_iter().map(|b| b.__unbind(token)).collect()
    }
}

// SAFETY: [parts] Each method visits each element once, in order, and the element's own
// implementation keeps the rules of `Resource`.
unsafe impl<R: Resource, const N: usize> Resource for [R; N] {
    type On<S: Brand> = [R::On<S>; N];
    fn __leaves<Visit: FnMut(LeafInfo)>(&self, visit: &mut Visit) {
        self.iter().for_each(|r| r.__leaves(visit));
    }
    fn __drain<Sink: FnMut(Leaf)>(&mut self, sink: &mut Sink, token: Token) {
        self.iter_mut().for_each(|r| r.__drain(sink, token));
    }
    fn __bind<S: Brand>(self, stream: Stream<S>, token: Token) -> Self::On<S> {
        self.map(|r| r.__bind(stream, token))
    }
    fn __alias<S: Brand>(&self, stream: Stream<S>, token: Token) -> Self::On<S> {
        self.each_ref().map(|r| r.__alias(stream, token))
    }
    fn __producers<Visit: FnMut(Producer<'_>)>(&self, visit: &mut Visit) {
        self.iter().for_each(|r| r.__producers(visit));
    }
}
// SAFETY: [parts] `__unbind` calls the `__unbind` of each part once, in order. That undoes
// `__bind`, which calls `__bind` of each part.
unsafe impl<S: Brand, B: Bundle<S>, const N: usize> Bundle<S> for [B; N] {
    type Idle = [B::Idle; N];
    fn __unbind(self, token: Token) -> Self::Idle {
        self.map(|b| b.__unbind(token))
    }
}

// SAFETY: [parts] Each method visits the element once if there is one, and the element's own
// implementation keeps the rules of `Resource`.
unsafe impl<R: Resource> Resource for Option<R> {
    type On<S: Brand> = Option<R::On<S>>;
    fn __leaves<Visit: FnMut(LeafInfo)>(&self, visit: &mut Visit) {
        self.iter().for_each(|r| r.__leaves(visit));
    }
    fn __drain<Sink: FnMut(Leaf)>(&mut self, sink: &mut Sink, token: Token) {
        self.iter_mut().for_each(|r| r.__drain(sink, token));
    }
    fn __bind<S: Brand>(self, stream: Stream<S>, token: Token) -> Self::On<S> {
        self.map(|r| r.__bind(stream, token))
    }
    fn __alias<S: Brand>(&self, stream: Stream<S>, token: Token) -> Self::On<S> {
        self.as_ref().map(|r| r.__alias(stream, token))
    }
    fn __producers<Visit: FnMut(Producer<'_>)>(&self, visit: &mut Visit) {
        self.iter().for_each(|r| r.__producers(visit));
    }
}
// SAFETY: [parts] `__unbind` calls the `__unbind` of each part once, in order. That undoes
// `__bind`, which calls `__bind` of each part.
unsafe impl<S: Brand, B: Bundle<S>> Bundle<S> for Option<B> {
    type Idle = Option<B::Idle>;
    fn __unbind(self, token: Token) -> Self::Idle {
        self.map(|b| b.__unbind(token))
    }
}
