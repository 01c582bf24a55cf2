//! From decoded images to a batch on the device: by a stream of the loader's own, or in turn.

use std::io;
use std::sync::Mutex;

use log::{info, warn};

use thalweg::{
    Activity, AnyStream, Device, DeviceBuffer, DeviceKind, Error, Event, On, PinnedBuffer, PinnedPool, Result, Stream,
    StreamTag,
};

use super::queue::{Assembly, Decoded, Queue, State};
use super::staging::ReadPieces;
use super::{Batch, BatchOn, Pixels, Upload, padded};
use crate::lock;

/// How a loader uploads, and why. Decided with the first batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether a thread and a stream of its own upload ahead of the consumer; else `next` uploads, and waits.
    pub streams: bool,
    /// Why.
    pub reason: String,
}

impl Decision {
    /// Streams pay on a device that copies beside other work, for batches that take longer to copy than to hand over,
    /// where there is a next copy to overlap with.
    pub(super) fn new(
        asked: Upload,
        kind: DeviceKind,
        images: usize,
        bytes: usize,
        threshold: usize,
        more: bool,
    ) -> Self {
        let (streams, reason) = match asked {
            Upload::Streams => (true, "asked for".to_owned()),
            Upload::Sequential => (false, "asked for".to_owned()),
            Upload::Off => (false, "nothing is uploaded".to_owned()),
            Upload::Auto if kind != DeviceKind::Cuda => (false, "the CPU device shares the host's memory".to_owned()),
            Upload::Auto if bytes < threshold => (false, format!("{bytes} bytes a batch are below {threshold}")),
            Upload::Auto if images < 2 && !more => (false, "there is one image to move".to_owned()),
            Upload::Auto => (true, format!("{images} images and {bytes} bytes a batch, at least {threshold}")),
        };
        Self { streams, reason }
    }

    /// The sequential path, since what streams need is not to be had.
    pub(super) fn without_streams(error: &Error) -> Self {
        Self { streams: false, reason: format!("streams cannot be used: {error}") }
    }

    pub(super) fn log(&self, device: Device) {
        let how = if self.streams { "ahead, on a stream of their own" } else { "one after another, in `next`" };
        info!("batches for {device} {how}: {}", self.reason);
    }
}

/// Why a batch is not on the device.
pub(super) enum Refused<M> {
    /// There is no memory; the images are as they were.
    NoMemory(Error, Assembly<M>),
    /// Files of some images cannot be read; those are errors now.
    Unread(Assembly<M>),
    /// The device has failed.
    Failed(Error),
}

impl<M> From<Error> for Refused<M> {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl<M: Clone + Send + 'static> Queue<M> {
    /// The loader's upload thread.
    pub(super) fn upload_all(&self, device: Device, stream: &AnyStream, monitor: &Mutex<Monitor>) {
        let mut state = lock(&self.state);
        while !state.stop {
            let room = state.ready_batches < self.options.prefetch && state.can_upload();
            let Some(front) = (if room { state.pop() } else { None }) else {
                state = self.wait(&self.done, state);
                continue;
            };
            let epoch = state.epoch;
            let last = state.waiting && state.ready.is_empty();
            drop(state);
            let (errors, outcome) = self.settle(front, device, |front| {
                stream.enter(|s| {
                    let batch = self.enqueue(s, device, front, Self::read_at_once)?;
                    Ok(s.record(batch).map_err(|r| r.error)?)
                })
            });
            lock(monitor).look(device, &self.pool);
            state = lock(&self.state);
            if state.epoch != epoch || state.stop {
                drop(state);
                drop((errors, outcome)); // metadata is the user's
                state = lock(&self.state);
                continue;
            }
            // Unless the consumer has nothing more to take, it may be about to give memory back.
            let lost = self.settled(&mut state, device, errors, outcome, last);
            self.done.notify_all();
            self.work.notify_all();
            if !lost.is_empty() {
                drop(state);
                drop(lost); // its metadata is the user's
                state = lock(&self.state);
            }
        }
    }

    /// Puts what became of a batch where the consumer finds it. The consumer hears of missing
    /// memory if it is `told`. What it returns is to be dropped without the lock.
    #[must_use]
    pub(super) fn settled(
        &self,
        state: &mut State<M>,
        device: Device,
        errors: Vec<Error>,
        outcome: Outcome<M>,
        told: bool,
    ) -> Vec<Decoded<M>> {
        state.uploading = false;
        errors.into_iter().for_each(|error| state.push(Err(error)));
        match outcome {
            Outcome::Nothing => {}
            Outcome::Batch(event) => state.push(Ok(event)),
            Outcome::NoMemory(error, mut front) => {
                if told {
                    front.refused += 1;
                    state.push(Err(error));
                }
                if front.refused <= RETRIES {
                    state.put_back(front);
                    return Vec::new();
                }
                let lost = front.give_up();
                state.stats.failed += lost.len() as u64;
                if self.keeps(&front) {
                    state.push(Ok(Event::ready(Batch::on_host(front, device))));
                }
                return lost;
            }
            Outcome::Failed(error) => {
                state.push(Err(error));
                state.failed = true;
            }
        }
        Vec::new()
    }

    /// Whether a batch is yielded also where none of its samples is left.
    fn keeps(&self, front: &Assembly<M>) -> bool {
        self.options.drop_last && front.whole
    }

    /// A batch's errors, and what became of its images.
    pub(super) fn settle(
        &self,
        mut front: Assembly<M>,
        device: Device,
        upload: impl Fn(Assembly<M>) -> Result<Event<Batch<M>>, Refused<M>>,
    ) -> (Vec<Error>, Outcome<M>) {
        let mut errors = Vec::new();
        loop {
            errors.extend(front.errors());
            if self.options.skip_errors {
                errors.clear();
            }
            if front.amount().0 == 0 {
                // Needs no memory, so it cannot fail.
                let keeps = self.keeps(&front);
                let empty = || Outcome::Batch(Event::ready(Batch::on_host(front, device)));
                return (errors, if keeps { empty() } else { Outcome::Nothing });
            }
            let outcome = match upload(front) {
                Ok(event) => Outcome::Batch(event),
                Err(Refused::NoMemory(error, mut front)) => {
                    warn!("a batch waits for memory of {device}: {error}");
                    front.last_resort = true;
                    Outcome::NoMemory(error, front)
                }
                Err(Refused::Unread(again)) => {
                    front = again; // the others lie elsewhere without it
                    continue;
                }
                Err(Refused::Failed(error)) => Outcome::Failed(error),
            };
            return (errors, outcome);
        }
    }

    /// Makes an image whose file cannot be read an error.
    fn fail(&self, front: &mut Assembly<M>, image: usize, error: &io::Error) {
        let Some((lost, error)) = front.lose(image, format!("cannot read its pixels: {error}")) else { return };
        let mut state = lock(&self.state);
        state.stats.images -= 1;
        state.stats.bytes -= lost.pixels.len() as u64;
        self.count_failure(&mut state, &error);
        drop(state);
        drop(lost); // its metadata is the user's
    }

    /// A batch whose images are on their way to the device, in stream order.
    pub(super) fn enqueue<S: StreamTag>(
        &self,
        stream: &Stream<S>,
        device: Device,
        mut front: Assembly<M>,
        read: ReadPieces<M, S>,
    ) -> Result<BatchOn<S, M>, Refused<M>> {
        let bytes = front.images().map(|image| padded(image.pixels.len())).sum();
        let mut rgb = match self.device_buffer(stream, bytes) {
            Ok(rgb) => rgb,
            Err(error @ Error::OutOfMemory { .. }) => return Err(Refused::NoMemory(error, front)),
            Err(error) => return Err(error.into()),
        };
        let unread = self.upload_files(stream, &front, &mut rgb, read)?;
        if !unread.is_empty() {
            // From the last one on, because each changes the numbers of those after it.
            unread.into_iter().rev().for_each(|(image, error)| self.fail(&mut front, image, &error));
            return Err(Refused::Unread(front));
        }
        let mut batch = stream.bind(Batch::on_host(front, device)).map_err(|r| r.error)?;
        if batch.images.iter().all(|image| image.is_empty()) && batch.pageable.iter().all(Vec::is_empty) {
            batch.rgb = rgb; // all of it is on its way
            return Ok(batch);
        }
        self.options.timeline.span(stream, Activity::Upload, "upload", || {
            let mut at = 0;
            for ((pinned, pageable), &[height, width]) in batch.images.iter().zip(&batch.pageable).zip(&batch.sizes) {
                let len = 3 * height as usize * width as usize;
                let to = rgb.slice_mut(at..at + len)?;
                if pinned.is_empty() && pageable.is_empty() {
                    // From a file.
                } else if pageable.is_empty() {
                    stream.copy_to_device(pinned, to)?;
                } else {
                    stream.write_blocking(pageable, to)?;
                }
                at += padded(len);
            }
            Ok(())
        })?;
        batch.rgb = rgb;
        Ok(batch)
    }

    /// A device buffer that a consumer gave back, or a new one.
    fn device_buffer<S: StreamTag>(&self, stream: &Stream<S>, bytes: usize) -> Result<On<S, DeviceBuffer<u8>>> {
        let found = {
            let spare = &mut lock(&self.state).spare;
            spare.iter().position(|event| event.len() == bytes).and_then(|i| spare.remove(i))
        };
        if let Some(event) = found {
            return stream.wait(event).map_err(|r| r.error);
        }
        match stream.alloc(bytes) {
            // Buffers of other sizes may be in the way.
            Err(Error::OutOfMemory { .. }) => {
                let spare = std::mem::take(&mut lock(&self.state).spare);
                drop(spare); // not under the lock
                stream.synchronize()?;
                stream.alloc(bytes)
            }
            allocated => allocated,
        }
    }
}

/// How often a batch for which there is no device memory is tried again after the consumer was told.
const RETRIES: u32 = 1;

/// What became of a batch's images.
pub(super) enum Outcome<M: Clone + Send + 'static> {
    /// There are none.
    Nothing,
    Batch(Event<Batch<M>>),
    NoMemory(Error, Assembly<M>),
    Failed(Error),
}

impl<M: Clone + Send + 'static> Batch<M> {
    /// A batch whose images are on the host alone.
    pub(super) fn on_host(mut front: Assembly<M>, device: Device) -> Self {
        let rgb = DeviceBuffer::empty(device);
        let (mut images, mut pageable) = (Vec::new(), Vec::new());
        let (mut sizes, mut indices, mut names, mut meta) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let failed = std::mem::take(&mut front.failed);
        for image in front.into_images() {
            let (pinned, vec) = match image.pixels {
                Pixels::Pinned(buffer) => (buffer, Vec::new()),
                Pixels::Pageable(vec) => (PinnedBuffer::empty(device), vec),
                Pixels::File(_) => (PinnedBuffer::empty(device), Vec::new()),
            };
            images.push(pinned);
            pageable.push(vec);
            sizes.push(image.size);
            indices.push(image.index);
            names.push(image.name);
            meta.push(image.meta);
        }
        Self { rgb, images, pageable, sizes, indices, names, meta, failed }
    }
}

/// Looks at memory now and then, and logs where use passes a threshold. It never fails anything.
#[derive(Debug)]
pub(super) struct Monitor {
    device_warning: f64,
    pinned_warning: usize,
    high: [bool; 2],
    batches: u32,
}

impl Monitor {
    pub(super) fn new(device_warning: f64, pinned_warning: usize) -> Self {
        Self { device_warning, pinned_warning, high: [false; 2], batches: 0 }
    }

    /// Looks at every sixteenth batch, because the driver takes tens of microseconds to answer.
    pub(super) fn look(&mut self, device: Device, pool: &PinnedPool) {
        self.batches = self.batches.wrapping_add(1);
        if self.batches % 16 != 1 {
            return;
        }
        let total = device.total_memory();
        let used = device.free_memory().map_or(0, |free| total.saturating_sub(free));
        for line in self.judge(device, used, total, pool.in_use() + pool.cached()).into_iter().flatten() {
            warn!("{line}");
        }
    }

    /// What to log: once when a threshold is passed, again after use was below it.
    fn judge(&mut self, device: Device, used: u64, total: u64, pinned: usize) -> [Option<String>; 2] {
        let limit = (self.device_warning * total as f64) as u64;
        let now = [used > limit, pinned > self.pinned_warning];
        let lines = [
            format!("{device} has {used} of {total} bytes in use, more than {limit}"),
            format!("the loader holds {pinned} bytes of pinned memory, more than {}", self.pinned_warning),
        ];
        let mut place = 0;
        let judged = lines.map(|line| {
            let passed = now[place] && !self.high[place];
            place += 1;
            passed.then_some(line)
        });
        self.high = now;
        judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_used_where_they_pay() {
        let decide =
            |asked, kind, images, bytes, more| Decision::new(asked, kind, images, bytes, 1 << 20, more).streams;
        use DeviceKind::{Cpu, Cuda};
        assert!(decide(Upload::Auto, Cuda, 16, 1 << 20, false));
        assert!(decide(Upload::Auto, Cuda, 1, 1 << 20, true));
        assert!(!decide(Upload::Auto, Cuda, 1, 1 << 20, false));
        assert!(!decide(Upload::Auto, Cuda, 16, (1 << 20) - 1, true));
        assert!(!decide(Upload::Auto, Cpu, 16, 1 << 30, true));
        assert!(decide(Upload::Streams, Cpu, 1, 3, false));
        assert!(!decide(Upload::Sequential, Cuda, 16, 1 << 30, true));
        let decision = Decision::new(Upload::Auto, Cuda, 16, 1000, 2000, true);
        assert_eq!(decision.reason, "1000 bytes a batch are below 2000");
    }

    #[test]
    fn memory_is_mentioned_when_a_threshold_is_passed() {
        let cpu = Device::cpu().unwrap();
        let mut monitor = Monitor::new(0.5, 1000);
        assert_eq!(monitor.judge(cpu, 50, 100, 1000), [None, None]);
        let [device, pinned] = monitor.judge(cpu, 51, 100, 1001);
        assert_eq!(device.unwrap(), "cpu has 51 of 100 bytes in use, more than 50");
        assert_eq!(pinned.unwrap(), "the loader holds 1001 bytes of pinned memory, more than 1000");
        assert_eq!(monitor.judge(cpu, 60, 100, 2000), [None, None], "said already");
        assert_eq!(monitor.judge(cpu, 10, 100, 2000), [None, None]);
        assert!(monitor.judge(cpu, 60, 100, 2000)[0].is_some(), "passed again");
    }
}
