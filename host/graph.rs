//! Graphs: work that is captured once and enqueued any number of times, by one call each.
//!
//! **Ownership.** A capture runs nothing and takes nothing. Its closure works on second handles on
//! the bundle's memory, and what it enqueues goes to a separate stream under the brand [`Capture`].
//! Those handles are the only values of that brand: it is not a [`LiveBrand`](crate::LiveBrand), so
//! nothing can be allocated, bound or waited for, and its lifetime keeps everything inside the
//! closure. So a graph touches only the memory of the bundle.
//!
//! A graph does not own that memory. A replay takes the bundle by value, on the stream that is to
//! run the graph. It checks that the leaves are those of the capture (device, kind, allocation,
//! address and length, in order), and gives the bundle back. So a replay is one more operation of
//! that stream on buffers that the stream orders. Contents may change between replays, any stream
//! of the device may run them, and the bundle and the graph may be dropped in any order. Kernels
//! are never unloaded, and a driver keeps a destroyed graph until its pending launches are done.
//!
//! **A graph never runs on memory that was freed after the capture.** CUDA does not document that
//! an executable graph keeps only the address of an allocation. For node updates it documents the
//! opposite: "the CUDA device(s) to which the operand(s) was allocated/mapped cannot change", the
//! operands must be "allocated from the same contexts", and an update fails if "the memory
//! operands' mappings changed" (`cuGraphExecUpdate`, `cuGraphExecMemcpyNodeSetParams`). So
//! comparing addresses is not enough, and each allocation has a number of its own. Memory at the
//! same place after a `cuMemFreeAsync`, a `cuMemPoolTrimTo` or a `cuMemFreeHost` has another
//! number, and a replay on it is refused. A pool of page-locked memory lends one allocation many
//! times. A buffer of the same block, at the same place and with the same length, is as good as the
//! captured one, because that allocation was never freed.
//!
//! **Branches.** `fork.rs` has a second stream take part in a capture. It is lent second handles
//! under another brand, so the types keep the branches apart, and it always joins, so a capture
//! ends. The stream is recycled with the capture's own.
//!
//! **Cost.** A capture costs its calls and the driver's instantiation. A replay is one driver call.
//! [`Graph`] says what replays measure.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::time::Instant;

use log::debug;

use crate::brand::{Brand, LiveBrand, sealed};
use crate::driver::{GraphHandle, guard};
use crate::error::{Error, Result, Returned};
use crate::resource::{Bundle, LeafInfo, Resource, Token};
use crate::runtime::background::{Job, background};
use crate::runtime::device::Device;
use crate::runtime::stream::StreamInner;
use crate::stream::Stream;

/// The brand of the stream inside [`Stream::capture`]. That stream takes copies, fills and kernel
/// launches, and keeps them for the graph instead of running them.
///
/// Its lifetime is new at each call and belongs to the closure. So nothing of a capture can leave
/// its closure or be used in another capture.
pub struct Capture<'g>(PhantomData<fn(&'g ()) -> &'g ()>);

impl sealed::Sealed for Capture<'_> {}
impl Brand for Capture<'_> {}

impl fmt::Debug for Capture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capture")
    }
}

/// Work on the buffers of a bundle `R`, captured once, that one call enqueues any number of times.
///
/// [`Stream::capture`] makes a graph and [`Stream::replay`] enqueues it. The graph does not own the
/// buffers: each replay takes the bundle, on the stream that is to run the graph, and gives it
/// back. Any stream of the device may replay it. Replays of one graph never overlap. Dropping a
/// graph does not wait, and pending replays continue.
///
/// ```
/// use thalweg::{Device, stream_tags};
///
/// stream_tags!(Work);
/// let gpu = Device::best()?;
/// let work = gpu.stream::<Work>()?;
/// let frame = (gpu.pinned::<f32>(1000)?, work.alloc::<f32>(1000)?.synchronize()?, gpu.pinned::<f32>(1000)?);
/// let (mut graph, mut frame) = work.capture(work.bind(frame)?, |s, (input, image, output)| {
///     s.copy_to_device(input, image)?; // nothing runs here; kernels are launched the same way
///     s.copy_to_host(image, output)
/// })?;
/// assert_eq!(graph.len(), 2);
/// for i in 0..3u8 {
///     let mut idle = work.record(frame)?.synchronize()?;
///     idle.0.fill(f32::from(i)); // other contents, same buffers
///     frame = work.replay(&mut graph, work.bind(idle)?)?;
/// }
/// let (_, _, output) = work.record(frame)?.synchronize()?;
/// assert_eq!(output[..], [2.0; 1000]);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// Graphs pay when many short kernels follow one another. The example `graph_replay` measured on an
/// H200, including the copies and hand-over of each frame, 2.73 us per kernel in a graph of 128
/// kernels and 3.60 us by launches. For 2 kernels it measured 12.21 us in a graph and 9.76 us by
/// launches.
#[must_use = "a graph runs only where it is replayed"]
pub struct Graph<R: Resource> {
    device: Device,
    nodes: usize,
    /// The leaves of the captured bundle, in the order of [`Resource::__leaves`].
    leaves: Box<[LeafInfo]>,
    handle: ManuallyDrop<GraphHandle>,
    /// A graph holds no value of `R`.
    resource: PhantomData<fn(R) -> R>,
}

impl<R: Resource> Graph<R> {
    /// The device whose streams can replay it.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Number of nodes: copies, fills and launches, those of [branches](Stream::fork) included. An
    /// operation without elements or blocks adds no node, and a [fill](Stream::fill) with large
    /// elements several.
    pub fn len(&self) -> usize {
        self.nodes
    }

    /// Whether a replay does nothing.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// Checks that this is the bundle that the graph was captured with: the same allocations, at
    /// the same places.
    #[inline]
    fn admits(&self, resource: &R) -> Result<()> {
        let mut captured = self.leaves.iter();
        let mut same = true;
        resource.__leaves(&mut |leaf| same &= captured.next() == Some(&leaf));
        if same && captured.as_slice().is_empty() { Ok(()) } else { Err(self.mismatch(resource)) }
    }

    #[cold]
    fn mismatch(&self, resource: &R) -> Error {
        let given = leaves(resource);
        let index = given.iter().zip(&self.leaves).take_while(|(given, captured)| given == captured).count();
        let show = |leaves: &[LeafInfo]| leaves.get(index).map_or("not there".to_owned(), LeafInfo::to_string);
        Error::GraphMismatch { index, captured: show(&self.leaves), given: show(&given) }
    }
}

fn leaves<R: Resource>(resource: &R) -> Box<[LeafInfo]> {
    let mut leaves = Vec::new();
    resource.__leaves(&mut |leaf| leaves.push(leaf));
    leaves.into()
}

impl<R: Resource> Drop for Graph<R> {
    fn drop(&mut self) {
        // SAFETY: [once] Only `drop` takes the handle, and `drop` runs once.
        let handle = unsafe { ManuallyDrop::take(&mut self.handle) };
        if guard::forked() {
            std::mem::forget(handle);
        } else if guard::in_stream_work() {
            background(Job::Finish(Box::new(|| handle.destroy())));
        } else {
            handle.destroy();
        }
    }
}

impl<R: Resource> fmt::Debug for Graph<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("device", &self.device).field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl<S> Stream<S> {
    /// Makes a graph of what `f` enqueues. None of it runs, and the bundle comes back as it was.
    ///
    /// `f` gets a stream to enqueue on and second handles on the bundle's buffers, which do not own
    /// the memory. If `f` drops, takes or swaps them, neither the bundle nor the graph changes.
    /// Scalar arguments, `#[resource(plain)]` fields and everything else that `f` reads have the
    /// same value in every replay as at the capture. `f` may use other streams: that work is
    /// enqueued at once and is not part of the graph.
    ///
    /// The [`Stream::raw`] of the stream under capture can be given to cuBLAS and similar
    /// libraries, if the driver can capture what they do. They must use buffers of the bundle, or
    /// memory that outlives every replay. A stream that they fork with an event must be joined with
    /// an event before `f` returns.
    ///
    /// # Errors
    /// `f` returned an error, the driver cannot capture something, or the device has failed. The
    /// bundle comes back, still on this stream. If `f` panics, the bundle is dropped on its stream.
    pub fn capture<B: Bundle<S>>(
        self,
        bundle: B,
        f: impl for<'g> FnOnce(&Stream<Capture<'g>>, &mut <B::Idle as Resource>::On<Capture<'g>>) -> Result<()>,
    ) -> Result<(Graph<B::Idle>, B), Returned<B>>
    where
        S: LiveBrand,
    {
        let device = self.device();
        let start = Instant::now();
        let capturing = match Capturing::begin(device) {
            Ok(capturing) => capturing,
            Err(error) => return Err(Returned::new(error, bundle)),
        };
        let stream = Stream::of(capturing.stream);
        // The bundle may have pending work although its type now says idle. If a `clone` of
        // metadata panics, `ManuallyDrop` leaks it instead of freeing it as idle.
        let idle = ManuallyDrop::new(bundle.__unbind(Token::new()));
        let leaves = leaves(&*idle);
        let mut aliases = idle.__alias(stream, Token::new());
        let bundle = ManuallyDrop::into_inner(idle).__bind(self, Token::new());
        // If `f` panics, locals drop in reverse order: the capture ends before the bundle is
        // dropped.
        let capturing = capturing;

        let captured = f(&stream, &mut aliases).and_then(|()| capturing.end());
        match captured {
            Ok((handle, nodes)) => {
                let handle = ManuallyDrop::new(handle);
                let took = start.elapsed();
                debug!(target: "thalweg::graph", "captured a graph of {nodes} nodes for {device} in {took:?}");
                Ok((Graph { device, nodes, leaves, handle, resource: PhantomData }, bundle))
            }
            Err(error) => Err(Returned::new(error, bundle)),
        }
    }

    /// Enqueues a whole graph by one call and gives the bundle back.
    ///
    /// The bundle must be the one that the graph was captured with: the same buffers, whatever
    /// streams they have been on since and whatever they hold. Other buffers are refused, even at
    /// the same addresses. The graph runs after its own earlier replays, whichever streams those
    /// are on.
    ///
    /// # Errors
    /// The bundle has other memory ([`Error::GraphMismatch`]), the graph belongs to another device,
    /// or the device has failed. The bundle comes back, still on this stream.
    #[inline]
    #[track_caller]
    pub fn replay<R: Resource>(self, graph: &mut Graph<R>, bundle: R::On<S>) -> Result<R::On<S>, Returned<R::On<S>>>
    where
        S: LiveBrand,
    {
        // Before readings in the bundle end, whose ends could not be recorded.
        if let Err(error) = self.device().ensure_usable() {
            return Err(Returned::new(error, bundle));
        }
        // The bundle may have pending work although its type now says idle. If the driver's call
        // panics, `ManuallyDrop` leaks it instead of freeing it as idle.
        let idle = ManuallyDrop::new(bundle.__unbind(Token::new()));
        let replayed = self.enqueue(graph, &idle);
        let bundle = ManuallyDrop::into_inner(idle).__bind(self, Token::new());
        match replayed {
            Ok(()) => Ok(bundle),
            Err(error) => Err(Returned::new(error, bundle)),
        }
    }

    #[inline]
    #[track_caller]
    fn enqueue<R: Resource>(self, graph: &mut Graph<R>, resource: &R) -> Result<()> {
        if graph.device != self.device() {
            return Err(Error::DeviceMismatch {
                resource: graph.device.to_string(),
                stream: self.device().to_string(),
            });
        }
        graph.admits(resource)?;
        if graph.is_empty() {
            return Ok(());
        }
        // SAFETY: [graph] The captured work touches only the memory of the leaves that `admits` has
        // just compared, within their lengths. The bundle was on this stream, so this stream orders
        // all uses of that memory.
        self.device().seen(unsafe { self.handle().replay(&mut graph.handle) })
    }
}

/// A capture in progress. It always ends, also on an error or a panic, and its stream is recycled
/// if it can be used again.
struct Capturing {
    stream: &'static StreamInner,
    ended: bool,
}

impl Capturing {
    fn begin(device: Device) -> Result<Self> {
        let stream = device.take_capture_stream()?;
        match device.seen(stream.handle().begin_capture()) {
            Ok(()) => Ok(Self { stream, ended: false }),
            Err(error) => {
                device.recycle_capture_stream(stream);
                Err(error)
            }
        }
    }

    /// Ends the capture and returns the graph and its number of nodes.
    fn end(mut self) -> Result<(GraphHandle, usize)> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(GraphHandle, usize)> {
        self.ended = true;
        let device = self.stream.device();
        let (graph, usable) = self.stream.handle().end_capture();
        // A stream that is still capturing cannot be used again, so it is not recycled.
        if usable {
            device.recycle_capture_stream(self.stream);
        }
        device.seen(graph)
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        if !self.ended
            && let Ok((graph, _)) = self.finish()
        {
            graph.destroy();
        }
    }
}
