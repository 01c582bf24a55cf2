//! From decoded images to a batch on the device, on a stream of the loader's own or in `next`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

use log::warn;

use thalweg::{Activity, AnyStream, Device, DeviceBuffer, Error, Event, LiveBrand, On, PinnedBuffer, Result, Stream};

use crate::assembly::{Assembly, Decoded};
use crate::batch::{Batch, BatchOn, padded};
use crate::canvas::Pixels;
use crate::lock;
use crate::monitor::Monitor;
use crate::pieces::ReadPieces;
use crate::queue::{Queue, message};
use crate::state::State;

/// How often a batch for which there is no device memory is tried again after the consumer was
/// told.
const RETRIES: u32 = 1;

/// Why a batch is not on the device.
pub(crate) enum Refused<M> {
    /// There is no device memory. The images are unchanged.
    NoMemory(Error, Assembly<M>),
    /// The files of some images cannot be read. These images have become errors.
    Unread(Assembly<M>),
    /// The device has failed.
    Failed(Error),
}

impl<M> From<Error> for Refused<M> {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What became of the images of a batch.
enum Outcome<M: Clone + Send + 'static> {
    /// There are none.
    Nothing,
    Batch(Event<Batch<M>>),
    NoMemory(Error, Assembly<M>),
    Failed(Error),
}

impl<M: Clone + Send + 'static> Queue<M> {
    /// Runs the upload thread of a loader.
    pub(crate) fn upload_all(&self, device: Device, stream: &AnyStream, monitor: &Mutex<Monitor>) {
        let mut state = lock(&self.state);
        while !state.stop {
            state = if state.ready_batches < self.options.prefetch && state.can_upload() {
                self.upload_next(state, device, monitor, |front| {
                    stream.enter(|s| {
                        let batch = self.enqueue(s, device, front, Self::read_at_once)?;
                        Ok(s.record(batch).map_err(|r| r.error)?)
                    })
                })
            } else {
                self.wait(&self.done, state)
            };
        }
    }

    /// Uploads the first batch, which is complete, and puts what became of it where the consumer
    /// finds it.
    ///
    /// If there is no device memory, the consumer may be about to give some back. So it is told
    /// only if it waits and has nothing more to take; otherwise the batch waits until then, and is
    /// tried again. After [`RETRIES`] further attempts that fail, the batch is given up.
    pub(crate) fn upload_next<'g>(
        &'g self,
        mut state: MutexGuard<'g, State<M>>,
        device: Device,
        monitor: &Mutex<Monitor>,
        upload: impl Fn(Assembly<M>) -> Result<Event<Batch<M>>, Refused<M>>,
    ) -> MutexGuard<'g, State<M>> {
        // Read before the attempt, so that it sees all memory that the consumer gave back by then.
        let told = state.waiting && state.ready.is_empty();
        let epoch = state.epoch;
        let Some(front) = state.pop() else { return state };
        drop(state);
        let failed = |panic| {
            let reason = format!("an upload panicked: {}", message(panic));
            (Vec::new(), Outcome::Failed(Error::Thread { reason }))
        };
        // The metadata is the user's, and its destructor may panic.
        let settled = catch_unwind(AssertUnwindSafe(|| self.settle(front, device, upload)));
        let (errors, outcome) = settled.unwrap_or_else(failed);
        lock(monitor).look(device, &self.pool);

        let mut state = lock(&self.state);
        let unused = if state.epoch == epoch && !state.stop {
            (Vec::new(), self.settled(&mut state, device, errors, outcome, told), None)
        } else {
            // Nobody wants the batch any more, but a failure ends the loader in every epoch.
            if let Outcome::Failed(error) = &outcome {
                state.fail(error.clone());
            }
            (errors, Vec::new(), Some(outcome))
        };
        self.wake_both();
        drop(state);
        // Without the lock, because the metadata is the user's.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(unused)));
        let mut state = lock(&self.state);
        if let Err(panic) = dropped {
            state.fail(Error::Thread { reason: format!("an upload panicked: {}", message(panic)) });
            self.wake_both();
        }
        state
    }

    /// Wakes the decode threads, for which there may be room, and whoever waits for a batch.
    fn wake_both(&self) {
        self.work.notify_all();
        self.done.notify_all();
    }

    /// Puts what became of a batch where the consumer finds it. It hears of missing memory if it is
    /// `told`. The caller must drop the returned images without the lock.
    #[must_use]
    fn settled(
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
            Outcome::Failed(error) => state.fail(error),
        }
        Vec::new()
    }

    /// Whether a batch is yielded even if none of its samples is left.
    fn keeps(&self, front: &Assembly<M>) -> bool {
        self.options.drop_last && front.whole
    }

    /// Uploads a batch. Returns the errors of its samples, and what became of its images.
    fn settle(
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
                // An empty batch needs no memory, so it cannot fail.
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
                    front = again; // without the lost images, the others lie elsewhere
                    continue;
                }
                Err(Refused::Failed(error)) => Outcome::Failed(error),
            };
            return (errors, outcome);
        }
    }

    /// Turns an image whose file cannot be read into an error.
    fn fail(&self, front: &mut Assembly<M>, image: usize, error: &io::Error) {
        let Some((lost, error)) = front.lose(image, format!("cannot read its pixels: {error}")) else { return };
        let mut state = lock(&self.state);
        state.stats.images -= 1;
        state.stats.bytes = state.stats.bytes.saturating_sub(lost.pixels.len() as u64);
        self.count_failure(&mut state, &error);
        drop(state);
        drop(lost); // without the lock, because its metadata is the user's
    }

    /// Enqueues the uploads of a batch's images. The result is ordered on the stream.
    pub(crate) fn enqueue<S: LiveBrand>(
        &self,
        stream: &Stream<S>,
        device: Device,
        mut front: Assembly<M>,
        read: ReadPieces<M, S>,
    ) -> Result<BatchOn<S, M>, Refused<M>> {
        // A sum that no memory can hold stays one, so the allocation fails as it should.
        let padded_sizes = front.images().map(|image| padded(image.pixels.len()));
        let bytes = padded_sizes.fold(0, usize::saturating_add);
        let mut rgb = match self.device_buffer(stream, bytes) {
            Ok(rgb) => rgb,
            Err(error @ (Error::OutOfMemory { .. } | Error::TooLarge { .. })) => {
                return Err(Refused::NoMemory(error, front));
            }
            Err(error) => return Err(error.into()),
        };
        let unread = self.upload_files(stream, &front, &mut rgb, read)?;
        if !unread.is_empty() {
            // The last one goes first, because each changes the numbers of those after it.
            unread.into_iter().rev().for_each(|(image, error)| self.fail(&mut front, image, &error));
            return Err(Refused::Unread(front));
        }
        let mut batch = stream.bind(Batch::on_host(front, device)).map_err(|r| r.error)?;
        if batch.images.iter().all(|image| image.is_empty()) && batch.pageable.iter().all(Vec::is_empty) {
            batch.rgb = rgb; // `upload_files` has enqueued all of it
            return Ok(batch);
        }
        self.options.timeline.span(stream, Activity::Upload, "upload", || {
            let mut at = 0;
            for ((pinned, pageable), &[height, width]) in batch.images.iter().zip(&batch.pageable).zip(&batch.sizes) {
                let len = 3 * height as usize * width as usize;
                let to = rgb.slice_mut(at..at + len)?;
                if pinned.is_empty() && pageable.is_empty() {
                    // `upload_files` has enqueued it.
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

    /// Returns a device buffer that a consumer gave back, or a new one.
    fn device_buffer<S: LiveBrand>(&self, stream: &Stream<S>, bytes: usize) -> Result<On<S, DeviceBuffer<u8>>> {
        let found = {
            let spare = &mut lock(&self.state).spare;
            spare.iter().position(|event| event.len() == bytes).and_then(|i| spare.remove(i))
        };
        if let Some(event) = found {
            return stream.wait(event).map_err(|r| r.error);
        }
        match stream.alloc(bytes) {
            // Spare buffers of other sizes may take the memory.
            Err(Error::OutOfMemory { .. }) => {
                let spare = std::mem::take(&mut lock(&self.state).spare);
                drop(spare); // without the lock
                stream.synchronize()?;
                stream.alloc(bytes)
            }
            allocated => allocated,
        }
    }
}

impl<M: Clone + Send + 'static> Batch<M> {
    /// A batch whose images are only on the host.
    pub(crate) fn on_host(mut front: Assembly<M>, device: Device) -> Self {
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
