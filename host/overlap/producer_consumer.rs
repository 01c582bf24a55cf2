//! Runs two streams: one fills slots, the other uses them, and events carry the slots back and
//! forth.
//!
//! ```text
//! producer  | make 0 | make 1 | make 2      | make 3      |     make 2 waits for the event of use 0
//! consumer           | use 0       | use 1       | use 2       ...
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use super::none_given;
use crate::brand::LiveBrand;
use crate::error::Result;
use crate::event::Event;
use crate::resource::Resource;
use crate::stream::Stream;
use crate::timeline::{Activity, Timeline};

/// The cost of handing slots over, there and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handoffs {
    /// The number of recorded events.
    pub events: usize,
    /// The host time spent on recording them and on making the other stream wait.
    pub host: Duration,
}

impl Handoffs {
    fn time<T>(&mut self, events: usize, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = f();
        self.host += start.elapsed();
        self.events += events;
        value
    }

    /// Returns the mean host time of one hand-over. Zero if there was none.
    pub fn mean(&self) -> Duration {
        self.host.checked_div(u32::try_from(self.events).unwrap_or(u32::MAX)).unwrap_or_default()
    }
}

impl fmt::Display for Handoffs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events, {:.2?} of host time for each hand-over", self.events, self.mean())
    }
}

/// Makes `items` items on the stream `producer` and uses each on the stream `consumer`, in slots
/// that go back and forth.
///
/// With `n` slots the producer is up to `n` items ahead. The host only enqueues: the streams wait
/// for items and for free slots. At the end the host waits for all work, and the slots come back.
///
/// # Errors
/// There are no slots, a slot belongs to another device, the device has failed, or `produce` or
/// `consume` returns an error.
///
/// ```
/// use thalweg::overlap::producer_consumer;
/// use thalweg::{Device, Timeline, stream_tags};
///
/// stream_tags!(Make, Use);
/// let gpu = Device::best()?;
/// let (make, consume) = (gpu.stream::<Make>()?, gpu.stream::<Use>()?);
/// let slots = vec![make.alloc::<u32>(100)?.synchronize()?, make.alloc::<u32>(100)?.synchronize()?];
/// let mut results = consume.bind((0..9).map(|_| gpu.pinned::<u32>(100)).collect::<Result<Vec<_>, _>>()?)?;
/// producer_consumer(
///     (&make, &consume),
///     slots,
///     9,
///     |s, n, slot| s.fill(slot, n as u32),
///     |s, n, slot| s.copy_to_host(slot, &mut results[n]),
///     &Timeline::disabled(),
/// )?;
/// assert_eq!(consume.record(results)?.synchronize()?[8][0], 8);
/// # Ok::<(), thalweg::Error>(())
/// ```
pub fn producer_consumer<A: LiveBrand, B: LiveBrand, R: Resource>(
    (producer, consumer): (&Stream<A>, &Stream<B>),
    slots: Vec<R>,
    items: usize,
    mut produce: impl FnMut(&Stream<A>, usize, &mut R::On<A>) -> Result<()>,
    mut consume: impl FnMut(&Stream<B>, usize, &mut R::On<B>) -> Result<()>,
    timeline: &Timeline,
) -> Result<(Vec<R>, Handoffs)> {
    if slots.is_empty() {
        return Err(none_given("slots"));
    }
    let mut handoffs = Handoffs::default();
    let mut free: VecDeque<Event<R>> = slots.into_iter().map(Event::ready).collect();
    for n in 0..items {
        let Some(slot) = free.pop_front() else { unreachable!("each item gives its slot back") };
        let label = timeline.label("item", n);
        // Wait here and not when the slot came back, because the items produced in between do not
        // need this slot.
        let mut slot = handoffs.time(0, || producer.wait(slot))?;
        timeline.span(producer, Activity::Compute, &label, || produce(producer, n, &mut slot))?;
        let mut slot = handoffs.time(1, || producer.hand_off(slot, consumer))?;
        timeline.span(consumer, Activity::Compute, &label, || consume(consumer, n, &mut slot))?;
        free.push_back(handoffs.time(1, || consumer.record(slot))?);
    }
    let wait = |slot: Event<R>| timeline.wait("host", "slot", || slot.synchronize());
    let slots = free.into_iter().map(wait).collect::<Result<Vec<_>, _>>()?;
    Ok((slots, handoffs))
}
