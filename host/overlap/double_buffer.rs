//! Loads and uploads frame N + 1 while the device works on frame N.
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
use crate::brand::LiveBrand;
use crate::error::{Error, Result};
use crate::memory::{DeviceBuffer, DeviceCopy, PinnedBuffer};
use crate::runtime::device::Device;
use crate::stream::Stream;
use crate::timeline::{Activity, Timeline};

/// A slot of [`double_buffer`](fn@double_buffer). It holds a frame and its results, in page-locked
/// memory and in device memory.
#[derive(Debug, Resource)]
pub struct FrameSlot<T: DeviceCopy, U: DeviceCopy> {
    /// The frame, which the host fills.
    pub input: PinnedBuffer<T>,
    /// The results, which the host receives.
    pub output: PinnedBuffer<U>,
    on_device: (DeviceBuffer<T>, DeviceBuffer<U>),
}

impl<T: DeviceCopy, U: DeviceCopy> FrameSlot<T, U> {
    /// Makes a slot for frames of `input` elements and results of `output` elements. Waits for the
    /// allocation.
    ///
    /// # Errors
    /// There is not enough memory, or the device has failed.
    pub fn new(device: Device, input: usize, output: usize) -> Result<Self> {
        Ok(Self {
            input: device.pinned(input)?,
            output: device.pinned(output)?,
            on_device: (device_buffer(device, input)?, device_buffer(device, output)?),
        })
    }
}

/// Sends frames through slots that are used in turn, and returns the slots.
///
/// `load` fills [`FrameSlot::input`], or swaps it with a full buffer, and returns whether there was
/// a frame. Upload, `stage` and download run on the three streams. `take` sees
/// [`FrameSlot::output`].
///
/// Two slots overlap the upload of a frame with the work on the frame before it. With three, the
/// host can take the results of a frame and load the next one without a gap on the upload stream.
/// More slots absorb jitter. The host waits for one thing only: the results of the frame whose slot
/// is loaded next. No page-locked and no device memory is allocated for a frame.
///
/// # Errors
/// There are no slots, the device has failed, or a closure returns an error. Frames before a failed
/// `load` or `stage` are still taken.
///
/// ```
/// use thalweg::overlap::{FrameSlot, double_buffer};
/// use thalweg::{Device, Timeline, stream_tags};
///
/// stream_tags!(Upload, Compute, Download);
/// let gpu = Device::best()?;
/// let streams = (&gpu.stream::<Upload>()?, &gpu.stream::<Compute>()?, &gpu.stream::<Download>()?);
/// let slots = vec![FrameSlot::<u32, u32>::new(gpu, 100, 100)?, FrameSlot::new(gpu, 100, 100)?];
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
///     &Timeline::disabled(),
/// )?;
/// assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
/// # Ok::<(), thalweg::Error>(())
/// ```
pub fn double_buffer<A: LiveBrand, B: LiveBrand, C: LiveBrand, T: DeviceCopy, U: DeviceCopy>(
    (up, compute, down): (&Stream<A>, &Stream<B>, &Stream<C>),
    slots: Vec<FrameSlot<T, U>>,
    load: impl FnMut(usize, &mut FrameSlot<T, U>) -> Result<bool>,
    mut stage: impl FnMut(&Stream<B>, &DeviceSlice<B, T>, &mut DeviceSlice<B, U>) -> Result<()>,
    take: impl FnMut(usize, &mut FrameSlot<T, U>) -> Result<()>,
    timeline: &Timeline,
) -> Result<Vec<FrameSlot<T, U>>> {
    let enqueue = |n: usize, slot: FrameSlot<T, U>| {
        let label = timeline.label("frame", n);
        let mut slot = up.bind(slot)?;
        timeline.span(up, Activity::Upload, &label, || up.copy_to_device(&slot.input, &mut slot.on_device.0))?;
        let mut slot = up.hand_off(slot, compute)?;
        let (x, y) = &mut slot.on_device;
        timeline.span(compute, Activity::Compute, &label, || stage(compute, x, y))?;
        let mut slot = compute.hand_off(slot, down)?;
        timeline.span(down, Activity::Download, &label, || down.copy_to_host(&slot.on_device.1, &mut slot.output))?;
        Ok::<_, Error>(down.record(slot)?)
    };
    frames(slots, timeline, load, enqueue, take)
}
