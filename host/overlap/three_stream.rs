//! Runs three stages of successive images at once, on four streams: one for each stage, and one for
//! the uploads.
//!
//! ```text
//! upload   | up 0 | up 1 | up 2 | up 3 |
//! first           | a 0 |  | a 1 |  | a 2 |
//! second                | b 0 |  | b 1 |  | b 2 |
//! third                       | c 0 |  | c 1 |  | c 2 |
//! ```
//!
//! The uploads have their own stream. On the stream of the first stage, each upload would wait
//! behind the kernels of the previous image, and the copy engine would be idle.

use super::frames;
use crate::brand::LiveBrand;
use crate::error::{Error, Result};
use crate::resource::Resource;
use crate::stream::Stream;
use crate::timeline::{Activity, Timeline};

/// Sends images through slots that are used in turn, and returns the slots. It takes four streams:
/// one for the uploads, and one for each of the three stages.
///
/// `load` fills a slot on the host, and returns whether there was an image. Each of the four steps
/// enqueues its work on its own stream: the upload, then the three stages. The third stage also
/// downloads the results. `take` sees the slot when all steps are done.
///
/// A slot is a composite of all buffers that an image needs. The caller makes it once, and an event
/// carries it from step to step. Five slots keep the four steps and the host busy. Fewer are enough
/// if the upload takes longest. The host waits for one thing only: the results of the image whose
/// slot is loaded next. The same stream may stand in all four places. The results are then the
/// same, but one step runs at a time.
///
/// # Errors
/// There are no slots, a slot belongs to another device, the device has failed, or a closure
/// returns an error. Images before a failed `load` or step are still taken.
///
/// ```
/// use thalweg::overlap::three_stream;
/// use thalweg::{Device, DeviceBuffer, PinnedBuffer, Resource, Timeline, stream_tags};
///
/// #[derive(Resource)]
/// struct Slot {
///     host: PinnedBuffer<u32>,
///     a: DeviceBuffer<u32>,
///     b: DeviceBuffer<u32>,
/// }
///
/// stream_tags!(Upload, First, Second, Third);
/// let gpu = Device::best()?;
/// let (up, first) = (gpu.stream::<Upload>()?, gpu.stream::<First>()?);
/// let (second, third) = (gpu.stream::<Second>()?, gpu.stream::<Third>()?);
/// let slot = |_| Ok(Slot { host: gpu.pinned(9)?, a: up.alloc(9)?.synchronize()?, b: up.alloc(9)?.synchronize()? });
/// let slots = (0..3).map(slot).collect::<thalweg::Result<Vec<_>>>()?;
/// let mut seen = Vec::new();
/// three_stream(
///     (&up, &first, &second, &third),
///     slots,
///     |n, slot| {
///         slot.host.fill(n as u32);
///         Ok(n < 5)
///     },
///     (
///         |s, slot| s.copy_to_device(&slot.host, &mut slot.a),
///         |s, slot| s.copy(&slot.a, &mut slot.b),
///         |s, slot| s.fill(slot.b.slice_mut(..1)?, 7),
///         |s, slot| s.copy_to_host(&slot.b, &mut slot.host),
///     ),
///     |_, slot| {
///         seen.push([slot.host[0], slot.host[1]]);
///         Ok(())
///     },
///     &Timeline::disabled(),
/// )?;
/// assert_eq!(seen, [[7, 0], [7, 1], [7, 2], [7, 3], [7, 4]]);
/// # Ok::<(), thalweg::Error>(())
/// ```
pub fn three_stream<S: LiveBrand, A: LiveBrand, B: LiveBrand, C: LiveBrand, R: Resource>(
    (up, first, second, third): (&Stream<S>, &Stream<A>, &Stream<B>, &Stream<C>),
    slots: Vec<R>,
    load: impl FnMut(usize, &mut R) -> Result<bool>,
    (mut upload, mut a, mut b, mut c): (
        impl FnMut(&Stream<S>, &mut R::On<S>) -> Result<()>,
        impl FnMut(&Stream<A>, &mut R::On<A>) -> Result<()>,
        impl FnMut(&Stream<B>, &mut R::On<B>) -> Result<()>,
        impl FnMut(&Stream<C>, &mut R::On<C>) -> Result<()>,
    ),
    take: impl FnMut(usize, &mut R) -> Result<()>,
    timeline: &Timeline,
) -> Result<Vec<R>> {
    let enqueue = |n: usize, slot: R| {
        let label = timeline.label("image", n);
        let mut slot = up.bind(slot)?;
        timeline.span(up, Activity::Upload, &label, || upload(up, &mut slot))?;
        let mut slot = up.hand_off(slot, first)?;
        timeline.span(first, Activity::Compute, &label, || a(first, &mut slot))?;
        let mut slot = first.hand_off(slot, second)?;
        timeline.span(second, Activity::Compute, &label, || b(second, &mut slot))?;
        let mut slot = second.hand_off(slot, third)?;
        timeline.span(third, Activity::Compute, &label, || c(third, &mut slot))?;
        Ok::<_, Error>(third.record(slot)?)
    };
    frames(slots, timeline, load, enqueue, take)
}
