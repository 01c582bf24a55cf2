//! Scopes: one program text on several devices, with the same tags.

use std::fmt;
use std::marker::PhantomData;
use std::thread;

use crate::brand::{Brand, LiveBrand, Tag, sealed};
use crate::driver::{beside_captures, guard};
use crate::error::Result;
use crate::runtime::device::Device;
use crate::runtime::stream::StreamOptions;
use crate::stream::{Stream, Tags};

/// The brand of the stream of tag `S` in a [scope](Device::scope).
///
/// Its lifetime is new at each scope and belongs to the closure. So what the streams of a scope
/// order can leave it only as an [`Event`](crate::Event), and cannot be used in another scope, even
/// one of the same device.
pub struct At<'r, S>(PhantomData<fn(&'r ()) -> &'r ()>, PhantomData<S>);

impl<S: Tag> sealed::Sealed for At<'_, S> {}
impl<S: Tag> Brand for At<'_, S> {}
impl<S: Tag> LiveBrand for At<'_, S> {}

impl<S> fmt::Debug for At<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "At<{}>", std::any::type_name::<S>())
    }
}

/// A device inside a scope, with a stream for each tag. It is free to copy, and threads that end
/// inside the scope may use it.
#[derive(Clone, Copy)]
pub struct DeviceRank<'r> {
    scope: &'r Scope,
    /// Invariant, so that two scopes never have the same type.
    brand: PhantomData<fn(&'r ()) -> &'r ()>,
}

struct Scope {
    device: Device,
    index: usize,
    size: usize,
    /// The streams of this scope. Equal brands mean the same stream: the lifetime of [`At`] names
    /// the scope, and this table has one stream for each tag.
    tags: Tags,
}

impl Drop for Scope {
    fn drop(&mut self) {
        if guard::forked() {
            return; // another thread may have held a lock at the fork
        }
        self.tags.take().for_each(|stream| self.device.recycle_stream(stream));
    }
}

impl<'r> DeviceRank<'r> {
    /// The device of this scope.
    pub fn device(self) -> Device {
        self.scope.device
    }

    /// The number of this device among those of [`for_each_device`], from 0; 0 in
    /// [`Device::scope`].
    pub fn index(self) -> usize {
        self.scope.index
    }

    /// The number of devices given to [`for_each_device`]; 1 in [`Device::scope`].
    pub fn size(self) -> usize {
        self.scope.size
    }

    /// The stream of tag `S` in this scope, with the default options. The first call takes it, and
    /// every call of the scope returns it. Another scope has another stream for the same tag.
    ///
    /// # Errors
    /// The tag has a stream of another priority in this scope
    /// ([`Error::TagBound`](crate::Error::TagBound)), or the driver cannot make a stream.
    pub fn stream<S: Tag>(self) -> Result<Stream<At<'r, S>>> {
        self.stream_with(StreamOptions::default())
    }

    /// Like [`stream`](Self::stream), with options.
    ///
    /// # Errors
    /// The errors of [`stream`](Self::stream), and a priority that the device does not have.
    pub fn stream_with<S: Tag>(self, options: StreamOptions) -> Result<Stream<At<'r, S>>> {
        let device = self.device();
        self.scope.tags.stream::<S>(device, options, || device.take_stream(options)).map(Stream::of)
    }
}

impl fmt::Debug for DeviceRank<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} on {}", self.index(), self.size(), self.device())
    }
}

impl Device {
    /// Runs `f` in a scope of this device, which has streams of its own for all tags.
    ///
    /// A tag names one stream of the process: [`Device::stream`] refuses it on a second device. In
    /// a scope a tag names one stream of the scope. So the same program text, with the same tags,
    /// runs on any number of devices, and the compiler keeps their buffers apart.
    ///
    /// The streams go back to the device when the scope ends. Their work continues.
    ///
    /// ```
    /// use thalweg::{Device, DeviceRank, Result, stream_tags};
    ///
    /// stream_tags!(Upload, Compute);
    ///
    /// fn program(rank: DeviceRank<'_>) -> Result<Vec<u32>> {
    ///     let (up, compute) = (rank.stream::<Upload>()?, rank.stream::<Compute>()?);
    ///     let mut x = up.alloc::<u32>(4)?;
    ///     up.fill(&mut x, 7)?;
    ///     compute.read_blocking(&up.hand_off(x, &compute)?)
    /// }
    ///
    /// for device in [Device::cpu()?, Device::new_cpu()?] {
    ///     assert_eq!(device.scope(program)?, [7; 4]);
    /// }
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    pub fn scope<T>(self, f: impl for<'r> FnOnce(DeviceRank<'r>) -> T) -> T {
        enter(self, 0, 1, f)
    }
}

fn enter<T>(device: Device, index: usize, size: usize, f: impl for<'r> FnOnce(DeviceRank<'r>) -> T) -> T {
    let scope = Scope { device, index, size, tags: Tags::default() };
    f(DeviceRank { scope: &scope, brand: PhantomData })
}

/// Runs `f` on every device at once, each in a scope and on a thread of its own, and returns what
/// the calls returned, in the order of the devices.
///
/// A device may be given several times; each time has a scope of its own. What the scopes exchange
/// leaves them as events or as ordinary values.
///
/// ```
/// use thalweg::{Device, for_each_device, stream_tags};
///
/// stream_tags!(Compute);
///
/// let devices = [Device::cpu()?, Device::new_cpu()?];
/// let filled = for_each_device(&devices, |rank| {
///     let compute = rank.stream::<Compute>()?;
///     let mut x = compute.alloc::<u32>(3)?;
///     compute.fill(&mut x, rank.index() as u32)?;
///     compute.read_blocking(&x)
/// });
/// let filled = filled.into_iter().collect::<thalweg::Result<Vec<_>>>()?;
/// assert_eq!(filled, [[0; 3], [1; 3]]);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # Panics
/// If a call panics, `for_each_device` panics with its payload after all calls have ended. It also
/// panics if the system cannot start a thread.
pub fn for_each_device<T: Send>(devices: &[Device], f: impl for<'r> Fn(DeviceRank<'r>) -> T + Sync) -> Vec<T> {
    let f = &f;
    thread::scope(|threads| {
        let ranks = devices.iter().enumerate().map(|(index, &device)| {
            let name = format!("thalweg rank {index}");
            let run = move || beside_captures(|| enter(device, index, devices.len(), f));
            thread::Builder::new().name(name).spawn_scoped(threads, run).expect("the system starts a thread")
        });
        let ranks: Vec<_> = ranks.collect();
        let ended: Vec<_> = ranks.into_iter().map(thread::ScopedJoinHandle::join).collect();
        ended.into_iter().map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
