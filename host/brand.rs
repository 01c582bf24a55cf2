//! The types that stand for streams.

use std::fmt;
use std::marker::PhantomData;

/// The type that names a stream: what [`stream_tags!`](crate::stream_tags) declares.
///
/// Every `'static` type can be a tag. A tag is bound once, for the life of the process, to one
/// stream of one device, and equal types mean the same stream. So no operation checks at run time
/// which stream orders a buffer, tags fit in structs, statics and threads, and the compiler's
/// message names both streams.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stream tag",
    note = "declare one with `stream_tags!({Self})`; streams known only at run time are scoped: `pool.with_stream(|s| ...)`",
    note = "in code that is generic over streams, the bound is `S: LiveBrand`; `S: Brand` also admits streams under capture"
)]
pub trait Tag: 'static {}

/// A type that stands for a stream: a [`LiveBrand`], or the brand of a stream under
/// [`capture`](crate::Stream::capture).
///
/// Code that is generic over `Brand` can run and can be captured: copies, fills, kernel launches,
/// and functions that call those.
///
/// ```
/// use thalweg::{Brand, DeviceBuffer, On, Result, Stream};
///
/// fn clear<S: Brand>(s: &Stream<S>, images: &mut [On<S, DeviceBuffer<u8>>]) -> Result<()> {
///     images.iter_mut().try_for_each(|image| s.zero(image))
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not stand for a stream",
    note = "stream tags do, which `stream_tags!` declares, and the brands of scoped streams and captures",
    note = "in code that is generic over streams, the bound is `S: LiveBrand`; `S: Brand` also admits streams under capture"
)]
pub trait Brand: sealed::Sealed {}

/// The brand of a live stream, one that runs the work that it is given: a [`Tag`], or the brand of
/// a [`Scoped`](crate::Scoped) or of a [`PerThread`](crate::PerThread) stream.
///
/// Unlike a stream under capture, a live one can also allocate memory, record events and wait.
#[diagnostic::on_unimplemented(
    message = "stream `{Self}` cannot do this",
    note = "a stream under capture takes copies, fills and kernel launches only, of the buffers that the capture was given: allocate, bind, record, wait and synchronize before it or after it",
    note = "other streams are named by tags, which `stream_tags!` declares",
    note = "in code that is generic over streams, the bound is `S: LiveBrand`; `S: Brand` also admits streams under capture"
)]
pub trait LiveBrand: Brand {}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl<S: super::Tag> Sealed for S {}
}

impl<S: Tag> Brand for S {}
impl<S: Tag> LiveBrand for S {}

/// The tag of a stream inside an object that a program has several of. `Within<I, Upload>` names
/// another stream for each instance tag `I`.
///
/// ```
/// use thalweg::{Device, Stream, Tag, Within, stream_tags};
///
/// stream_tags!(Upload, Compute);
///
/// struct Pipeline<I: Tag> {
///     up: Stream<Within<I, Upload>>,
///     compute: Stream<Within<I, Compute>>,
/// }
///
/// impl<I: Tag> Pipeline<I> {
///     fn new(gpu: Device) -> thalweg::Result<Self> {
///         Ok(Self { up: gpu.stream()?, compute: gpu.stream()? })
///     }
/// }
///
/// stream_tags!(Left, Right);
/// let gpu = Device::best()?;
/// let (left, right) = (Pipeline::<Left>::new(gpu)?, Pipeline::<Right>::new(gpu)?);
/// assert_ne!(left.up.unique_id(), right.up.unique_id());
/// assert_ne!(left.up.unique_id(), left.compute.unique_id());
/// # Ok::<(), thalweg::Error>(())
/// ```
pub struct Within<I, S>(PhantomData<(I, S)>);

impl<I: Tag, S: Tag> Tag for Within<I, S> {}

impl<I, S> fmt::Debug for Within<I, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<Self>())
    }
}

/// Declares stream tags: types without values, each of which names one stream. The macro works
/// inside functions too.
///
/// ```
/// thalweg::stream_tags! {
///     /// Host to device.
///     pub Upload,
///     pub(crate) Compute,
///     Download,
/// }
/// ```
#[macro_export]
macro_rules! stream_tags {
    ($($(#[$meta:meta])* $vis:vis $name:ident),+ $(,)?) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        #[allow(dead_code)]
        $vis enum $name {}
        impl $crate::Tag for $name {}
    )+};
}
