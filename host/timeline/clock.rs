//! One axis for two clocks: the host's clock and the device's clock.
//!
//! The device reports only the time between two events. A mark is an event whose host time is known
//! as well, so a mark ties the two clocks together. The first mark is the origin of the axis.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::runtime::device::Device;
use crate::runtime::event::EventCell;
use crate::runtime::stream::StreamOptions;
use crate::stream::Stream;

/// A stream whose tag does not matter here.
pub(super) type Untyped = Stream<()>;

/// If the host has run for less than this, the difference between the clocks is noise. If it has
/// run longer, it is drift.
const LONG: Duration = Duration::from_secs(1);

/// Places times of the host and of one device on an axis.
pub(super) struct Clock {
    device: Device,
    /// The stream on which this clock records its marks.
    marks: Untyped,
    /// Zero of the axis.
    origin: Instant,
    alignment: Duration,
}

/// A moment that is known on both clocks.
struct Mark {
    cell: EventCell,
    at: Instant,
    error: Duration,
}

/// An event from which device times are measured.
pub(super) struct Base {
    mark: EventCell,
    /// Nanoseconds of device time after the origin, once that is known.
    at: OnceLock<i64>,
    enqueued: Instant,
}

/// The times at which a span began and ended, in nanoseconds after the origin.
pub(super) struct Times {
    /// Whether a device clock that differs from the host's clock measured the times.
    pub(super) device_clock: bool,
    pub(super) start: i64,
    pub(super) end: i64,
}

impl Base {
    /// Returns the time since the base was enqueued.
    pub(super) fn age(&self) -> Duration {
        self.enqueued.elapsed()
    }

    /// Waits on the host until the device has passed the base.
    pub(super) fn synchronize(&self, clock: &Clock) -> Result<()> {
        clock.synchronize(&self.mark)
    }
}

impl Clock {
    /// Starts the axis, and returns its origin as the first base. Waits for the device to pass some
    /// marks.
    pub(super) fn start(device: Device) -> Result<(Self, Base)> {
        let marks = Untyped::of(device.take_stream(StreamOptions::default())?);
        let mut clock = Self { device, marks, origin: Instant::now(), alignment: Duration::ZERO };
        let Mark { cell, at, error } = clock.mark()?;
        (clock.origin, clock.alignment) = (at, error);
        Ok((clock, Base { mark: cell, at: OnceLock::from(0), enqueued: at }))
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// Returns the largest error of the place of device times on the axis.
    pub(super) fn alignment(&self) -> Duration {
        self.alignment
    }

    /// Host time on the axis, in nanoseconds.
    pub(super) fn now(&self) -> i64 {
        nanoseconds(self.origin.elapsed())
    }

    /// A time of the host on the axis, in nanoseconds. `None` for one before the axis began.
    pub(super) fn at(&self, time: Instant) -> Option<i64> {
        time.checked_duration_since(self.origin).map(nanoseconds)
    }

    pub(super) fn event(&self) -> Result<EventCell> {
        EventCell::new(self.device, true)
    }

    pub(super) fn record(&self, stream: Untyped, cell: &EventCell) -> Result<()> {
        self.device.ensure_usable()?;
        self.device.seen(stream.handle().record(cell.handle()))
    }

    /// Waits on the host for an event.
    pub(super) fn synchronize(&self, cell: &EventCell) -> Result<()> {
        self.device.ensure_usable()?;
        self.device.seen(cell.handle().synchronize())
    }

    /// Enqueues a new base on a stream.
    pub(super) fn base(&self, stream: Untyped) -> Result<Base> {
        let mark = self.event()?;
        self.record(stream, &mark)?;
        Ok(Base { mark, at: OnceLock::new(), enqueued: Instant::now() })
    }

    /// Records a mark and waits for it. The device reaches the mark between two readings of the
    /// host's clock; of several attempts, the one with the least time between the readings counts.
    fn mark(&self) -> Result<Mark> {
        let mut best: Option<Mark> = None;
        for _ in 0..8 {
            let cell = self.event()?;
            let before = Instant::now();
            self.record(self.marks, &cell)?;
            self.device.seen(cell.handle().synchronize())?;
            let window = before.elapsed();
            let mark = match cell.handle().reached() {
                Some(at) => Mark { cell, at, error: Duration::ZERO },
                None => Mark { cell, at: before + window / 2, error: window / 2 },
            };
            if best.as_ref().is_none_or(|b| mark.error < b.error) {
                best = Some(mark);
            }
        }
        match best {
            Some(mark) => Ok(mark),
            None => unreachable!("eight attempts"),
        }
    }

    /// Returns the times at which both events were reached, by way of base number `base`. `None` if
    /// the device has not finished.
    pub(super) fn times(
        &self,
        start: &EventCell,
        end: &EventCell,
        base: usize,
        bases: &[Arc<Base>],
    ) -> Result<Option<Times>> {
        if let Some((start, end)) = start.handle().reached().zip(end.handle().reached()) {
            let since = |at: Instant| nanoseconds(at.saturating_duration_since(self.origin));
            return Ok(Some(Times { device_clock: false, start: since(start), end: since(end) }));
        }
        let Some(base_at) = self.base_time(base, bases)? else { return Ok(None) };
        let Some(after) = self.between(&bases[base].mark, start)? else { return Ok(None) };
        let length = self.between(start, end)?;
        let start = base_at + after;
        Ok(length.map(|length| Times { device_clock: true, start, end: start + length }))
    }

    /// Device time of a base, added up over the bases before it.
    fn base_time(&self, base: usize, bases: &[Arc<Base>]) -> Result<Option<i64>> {
        let known = bases[..=base].iter().rposition(|b| b.at.get().is_some()).unwrap_or(0);
        for i in known..base {
            let step = self.between(&bases[i].mark, &bases[i + 1].mark)?;
            let Some((at, step)) = bases[i].at.get().zip(step) else { return Ok(None) };
            bases[i + 1].at.get_or_init(|| at + step);
        }
        Ok(bases[base].at.get().copied())
    }

    /// Signed nanoseconds from one event to the other. `None` while one of them is not complete.
    fn between(&self, from: &EventCell, to: &EventCell) -> Result<Option<i64>> {
        let forth = self.device.seen(to.handle().since(from.handle()))?;
        if forth != Some(Duration::ZERO) {
            return Ok(forth.map(nanoseconds));
        }
        // `since` reports a negative time as zero, so ask for the opposite direction.
        Ok(self.device.seen(from.handle().since(to.handle()))?.map(|back| -nanoseconds(back)))
    }

    /// Host time divided by device time, because the two clocks drift apart in a long run.
    pub(super) fn rate(&self, bases: &[Arc<Base>]) -> Result<f64> {
        let last = bases.len() - 1;
        let mark = self.mark()?;
        let host = mark.at.saturating_duration_since(self.origin);
        if mark.error.is_zero() || host < LONG {
            return Ok(1.0);
        }
        let at = self.base_time(last, bases)?.zip(self.between(&bases[last].mark, &mark.cell)?);
        Ok(match at {
            Some((base, rest)) if base + rest > 0 => nanoseconds(host) as f64 / (base + rest) as f64,
            _ => 1.0,
        })
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.device.recycle_stream(self.marks.inner());
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_same_by_way_of_any_bases() {
        for device in Device::all() {
            let (clock, origin) = Clock::start(device).unwrap();
            const EVENTS: usize = 100;
            let (mut bases, mut events) = (vec![Arc::new(origin)], Vec::new());
            for _ in 0..EVENTS {
                bases.push(Arc::new(clock.base(clock.marks).unwrap()));
                let event = clock.event().unwrap();
                clock.record(clock.marks, &event).unwrap();
                events.push(event);
            }
            device.seen(clock.marks.handle().synchronize()).unwrap();
            // A short run permits one step from the origin; compare it with the sum over all bases.
            for (i, event) in events.iter().enumerate() {
                let base = clock.base_time(i + 1, &bases).unwrap().unwrap();
                let rest = clock.between(&bases[i + 1].mark, event).unwrap().unwrap();
                let direct = clock.between(&bases[0].mark, event).unwrap().unwrap();
                // A GPU rounds each step.
                assert!((base + rest - direct).abs() <= 1000 * (i as i64 + 2), "{device}: {base} + {rest}, {direct}");
                let back = clock.between(event, &bases[0].mark).unwrap().unwrap();
                assert_eq!(back, -direct);
            }
        }
    }
}
