//! Frame N + 1 is loaded and uploaded while frame N is worked on.
//!
//! ```text
//! host      | load 0 | load 1 |    | load 2 |    | load 3 |
//! upload             | up 0 | up 1 |        | up 2 |      | up 3 |
//! compute                   | kernel 0 | kernel 1 |    | kernel 2 |
//! download                             | down 0 | down 1 |     ...
//! ```

use super::{device_buffer, frames};
use crate::DeviceSlice;
use crate::Resource;
use crate::brand::StreamTag;
use crate::error::{Error, Result};
use crate::memory::{DeviceBuffer, PinnedBuffer, Plain};
use crate::runtime::device::Device;
use crate::stream::Stream;
use crate::timeline::{Activity, Timeline};

/// A slot of [`double_buffer`](fn@double_buffer): a frame and its results, in page-locked and in device memory.
#[derive(Debug, Resource)]
pub struct Frame<T: Plain, U: Plain> {
    /// What the host fills.
    pub input: PinnedBuffer<T>,
    /// What the host gets.
    pub output: PinnedBuffer<U>,
    on_device: (DeviceBuffer<T>, DeviceBuffer<U>),
}

impl<T: Plain, U: Plain> Frame<T, U> {
    /// A slot for frames of `input` elements, and `output` elements of results. Waits for the allocation.
    ///
    /// # Errors
    /// There is no memory, or the device has failed.
    pub fn new(device: Device, input: usize, output: usize) -> Result<Self> {
        Ok(Self {
            input: device.pinned(input)?,
            output: device.pinned(output)?,
            on_device: (device_buffer(device, input)?, device_buffer(device, output)?),
        })
    }
}

/// Sends frames round through as many slots: `load` fills [`Frame::input`], or swaps it with a full one, and says whether there was a frame;
/// upload, `stage` and download run on the three streams; `take` sees [`Frame::output`]. The slots come back.
///
/// Two slots overlap the upload of a frame with the work on the one before; three let the host take a frame's results and load the next without a
/// gap on the upload stream; more absorb jitter. The host waits for one thing: the results of the frame whose slot is loaded next. Nothing is
/// allocated for a frame.
///
/// # Errors
/// There are no slots, the device has failed, or what the closures return; frames before a failed `load` or `stage` are still taken.
///
/// ```
/// use thalweg::overlap::{Frame, double_buffer};
/// use thalweg::{Device, Timeline, stream_tags};
///
/// stream_tags!(Upload, Compute, Download);
/// let gpu = Device::best()?;
/// let streams = (&gpu.stream::<Upload>()?, &gpu.stream::<Compute>()?, &gpu.stream::<Download>()?);
/// let slots = vec![Frame::<u32, u32>::new(gpu, 100, 100)?, Frame::new(gpu, 100, 100)?];
/// let mut seen = Vec::new();
/// double_buffer(
///     streams,
///     slots,
///     |n, frame| {
///         frame.input.fill(n as u32);
///         Ok(n < 9)
///     },
///     |s, x, y| s.copy(x, y),
///     |_, frame| {
///         seen.push(frame.output[99]);
///         Ok(())
///     },
///     &Timeline::off(),
/// )?;
/// assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
/// # Ok::<(), thalweg::Error>(())
/// ```
pub fn double_buffer<A: StreamTag, B: StreamTag, C: StreamTag, T: Plain, U: Plain>(
    (up, compute, down): (&Stream<A>, &Stream<B>, &Stream<C>),
    slots: Vec<Frame<T, U>>,
    load: impl FnMut(usize, &mut Frame<T, U>) -> Result<bool>,
    mut stage: impl FnMut(&Stream<B>, &DeviceSlice<B, T>, &mut DeviceSlice<B, U>) -> Result<()>,
    take: impl FnMut(usize, &mut Frame<T, U>) -> Result<()>,
    timeline: &Timeline,
) -> Result<Vec<Frame<T, U>>> {
    let enqueue = |n: usize, slot: Frame<T, U>| {
        let label = format!("frame {n}");
        let mut slot = up.bind(slot)?;
        timeline.span(up, Activity::Upload, &label, || up.copy_to_device(&slot.input, &mut slot.on_device.0))?;
        let mut slot = up.hand(slot, compute)?;
        let (x, y) = &mut slot.on_device;
        timeline.span(compute, Activity::Compute, &label, || stage(compute, x, y))?;
        let mut slot = compute.hand(slot, down)?;
        timeline.span(down, Activity::Download, &label, || down.copy_to_host(&slot.on_device.1, &mut slot.output))?;
        Ok::<_, Error>(down.record(slot)?)
    };
    frames(slots, timeline, load, enqueue, take)
}
