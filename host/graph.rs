//! Graphs: work captured once and enqueued any number of times, by one call each.
//!
//! **Ownership.** A capture runs nothing and takes nothing. Its closure works on second handles on the bundle's memory, and
//! what it enqueues goes to a stream of its own, under the brand [`Capture`]. Of that brand there is nothing but those handles: it
//! is no [`StreamTag`](crate::StreamTag), so nothing can be allocated, bound or waited for, and its lifetime keeps everything
//! inside. So a graph touches the bundle's memory and no other.
//!
//! Nor does it own that memory. A replay takes the bundle by value, on the stream that is to run the graph, checks that
//! its leaves are those of the capture (device, kind, allocation, address and length, in order), and gives it back: it is one more
//! operation of that stream on buffers that the stream orders. Hence contents may change between replays, any stream
//! may run them, bundle and graph may go in any order, and nothing dangles. Kernels are never unloaded, and a driver keeps a
//! destroyed graph until its pending launches are done.
//!
//! **No graph runs on memory that was freed since.** CUDA does not document that an executable graph keeps nothing of an allocation but its
//! address. It documents the opposite for what its nodes may be updated to: "the CUDA device(s) to which the operand(s) was
//! allocated/mapped cannot change", the operands must be "allocated from the same contexts", and an update fails where "the memory
//! operands' mappings changed" (`cuGraphExecUpdate`, `cuGraphExecMemcpyNodeSetParams`). So an address is not enough, and
//! each allocation has a number that no other gets. Memory that comes to lie at the same place after a `cuMemFreeAsync`, a `cuMemPoolTrimTo`
//! or a `cuMemFreeHost` has another number, and a replay on it is refused. A pool of page-locked memory lends one allocation many
//! times: a buffer of the same block, at the same place and as long, is as good as the captured one, for the allocation never went.
//!
//! **Cost.** A capture costs about as much as its calls, and the driver's instantiation on top. A replay is one driver call: on
//! an H200 a kernel in a graph takes 0.55 us, launched by itself 2.6 us.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use crate::brand::{Brand, StreamTag, sealed};
use crate::driver::{GraphHandle, guard};
use crate::error::{Error, Result, Returned};
use crate::resource::{Bundle, LeafInfo, Resource, Token};
use crate::runtime::background::{Job, background};
use crate::runtime::device::Device;
use crate::runtime::stream::StreamInner;
use crate::stream::Stream;

/// The brand of the stream inside [`Stream::capture`]: it takes copies, fills and kernel launches, and keeps them for
/// the graph instead of running them.
///
/// Its lifetime is new at each call and belongs to the closure, so nothing of one capture can leave it or pass for
/// another's.
pub struct Capture<'g>(PhantomData<fn(&'g ()) -> &'g ()>);

impl sealed::Sealed for Capture<'_> {}
impl Brand for Capture<'_> {}

impl fmt::Debug for Capture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capture")
    }
}

/// Work captured once, over the buffers of a bundle `R`, that one call enqueues any number of times.
///
/// [`Stream::capture`] makes one, [`Stream::replay`] enqueues it. It does not own the buffers: each replay takes the bundle, on
/// the stream that is to run the graph, and gives it back. Any stream of the device may replay; replays of one graph never
/// overlap. Dropping it waits for nothing, and replays that are pending go on.
///
/// ```
/// use thalweg::{Device, stream_tags};
///
/// stream_tags!(Work);
/// let gpu = Device::best()?;
/// let work = gpu.stream::<Work>()?;
/// let frame = (gpu.pinned::<f32>(1000)?, work.alloc::<f32>(1000)?.idle()?, gpu.pinned::<f32>(1000)?);
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
/// It pays where kernels are short: on an H200 a kernel in a graph takes 0.55 us, launched by itself 2.6 us.
pub struct Graph<R: Resource> {
    device: Device,
    nodes: usize,
    /// What it was captured with, in the order of [`Resource::__leaves`].
    leaves: Box<[LeafInfo]>,
    handle: ManuallyDrop<GraphHandle>,
    /// It holds no `R`.
    resource: PhantomData<fn(R) -> R>,
}

impl<R: Resource> Graph<R> {
    /// The device whose streams can replay it.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Number of nodes: copies, fills and launches. One of no elements or blocks is none.
    pub fn len(&self) -> usize {
        self.nodes
    }

    /// Whether a replay does nothing.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// Whether this is the bundle that the graph was captured with: the same allocations, at the same places.
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
        // SAFETY: taken once, here.
        let handle = unsafe { ManuallyDrop::take(&mut self.handle) };
        if guard::forked() {
            std::mem::forget(handle);
        } else if guard::in_host_function() {
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

impl<S: Brand> Stream<S> {
    /// Makes a graph of what `f` enqueues. Nothing of it runs; the bundle comes back as it was.
    ///
    /// `f` gets the stream to enqueue on and the bundle's buffers on it: handles on the same memory that own nothing. What
    /// it drops, takes or swaps among them changes neither the bundle nor the graph. Scalar arguments, `#[resource(plain)]`
    /// fields and whatever else `f` reads are in every replay what they were at the capture. On other streams `f` may do
    /// what it likes; that happens at once and outside the graph.
    ///
    /// [`Stream::raw`] of the stream under capture can be given to cuBLAS and the like, as far as the driver can
    /// capture what they do. They must use buffers of the bundle, or memory that outlives every replay; a stream that
    /// they fork with an event must be joined with one before `f` returns.
    ///
    /// # Errors
    /// What `f` returned, the driver's where something cannot be captured, or the device has failed; the bundle comes
    /// back, still on this stream. Where `f` panics the bundle is dropped on its stream.
    pub fn capture<B: Bundle<S>>(
        self,
        bundle: B,
        f: impl for<'g> FnOnce(&Stream<Capture<'g>>, &mut <B::Idle as Resource>::On<Capture<'g>>) -> Result<()>,
    ) -> Result<(Graph<B::Idle>, B), Returned<B>>
    where
        S: StreamTag,
    {
        let device = self.device();
        let capturing = match Capturing::begin(device) {
            Ok(capturing) => capturing,
            Err(error) => return Err(Returned::new(error, bundle)),
        };
        let stream = Stream::of(capturing.stream);
        // In flight under an idle type: should a `clone` of metadata panic, it leaks rather than passes for idle.
        let idle = ManuallyDrop::new(bundle.__unbind(Token::new()));
        let leaves = leaves(&*idle);
        let mut aliases = idle.__alias(stream, Token::new());
        let bundle = ManuallyDrop::into_inner(idle).__bind(self, Token::new());
        let capturing = capturing; // should `f` panic, the capture ends before the bundle's memory goes

        let captured = f(&stream, &mut aliases).and_then(|()| capturing.end());
        match captured {
            Ok((handle, nodes)) => {
                let handle = ManuallyDrop::new(handle);
                Ok((Graph { device, nodes, leaves, handle, resource: PhantomData }, bundle))
            }
            Err(error) => Err(Returned::new(error, bundle)),
        }
    }

    /// Enqueues all of a graph, by one call, and gives the bundle back.
    ///
    /// The bundle is the one that the graph was captured with: the same buffers, wherever they have been since and
    /// whatever they hold. New ones are refused, also where they lie at the same addresses. The graph runs after its own earlier replays, on whichever streams those are.
    ///
    /// # Errors
    /// The bundle is of other memory ([`Error::GraphMismatch`]), the graph is of another device, or the device has
    /// failed; the bundle comes back, still on this stream.
    #[inline]
    pub fn replay<R: Resource>(self, graph: &mut Graph<R>, bundle: R::On<S>) -> Result<R::On<S>, Returned<R::On<S>>>
    where
        S: StreamTag,
    {
        // In flight under an idle type: should the driver panic, it leaks rather than passes for idle.
        let idle = ManuallyDrop::new(bundle.__unbind(Token::new()));
        let replayed = self.enqueue(graph, &idle);
        let bundle = ManuallyDrop::into_inner(idle).__bind(self, Token::new());
        match replayed {
            Ok(()) => Ok(bundle),
            Err(error) => Err(Returned::new(error, bundle)),
        }
    }

    #[inline]
    fn enqueue<R: Resource>(self, graph: &mut Graph<R>, resource: &R) -> Result<()> {
        if graph.device != self.device() {
            return Err(Error::DeviceMismatch {
                resource: graph.device.to_string(),
                stream: self.device().to_string(),
            });
        }
        graph.admits(resource)?;
        if graph.is_empty() {
            return self.device().usable();
        }
        // SAFETY: what was captured touches the memory of these leaves alone, within their lengths, and this stream orders it.
        self.call(|s| unsafe { s.replay(&mut graph.handle) })
    }
}

/// A capture under way. Whatever happens it ends, and its stream is parked.
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
                device.park_capture_stream(stream);
                Err(error)
            }
        }
    }

    /// The graph, and its number of nodes.
    fn end(mut self) -> Result<(GraphHandle, usize)> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(GraphHandle, usize)> {
        self.ended = true;
        let device = self.stream.device();
        let (graph, usable) = self.stream.handle().end_capture();
        // One that goes on capturing is of no use to anybody any more.
        if usable {
            device.park_capture_stream(self.stream);
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
