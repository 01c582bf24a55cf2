//! From decoded images to a batch on the device, on streams of the loader's own or in `next`.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use log::warn;

use thalweg::{
    Activity, AnyStream, Device, DeviceBuffer, Error, Event, LiveBrand, On, PinnedBuffer, Result, Size, Stream,
};

use crate::assembly::{Assembly, Decoded};
use crate::batch::{Batch, BatchOn, padded};
use crate::error::SampleError;
use crate::image_sink::Pixels;
use crate::in_flight::{Outcome, Refused};
use crate::monitor::{MemoryMonitor, UploadSite};
use crate::options::UploadMode;
use crate::pieces::ReadPieces;
use crate::queue::{Queue, message};
use crate::state::State;
use crate::{DecodeError, lock};

impl<M: Clone + Send + 'static> Queue<M> {
    /// Runs an upload thread of a loader.
    pub(crate) fn upload_all(
        &self,
        device: Device,
        monitor: &Mutex<MemoryMonitor>,
        number: usize,
        upload: impl Fn(Assembly<M>) -> Result<Event<Batch<M>>, Refused<M>>,
    ) {
        let mut state = lock(&self.state);
        while !state.stopped() {
            state = if state.may_begin(number) || state.can_retry() {
                self.upload_next(state, device, monitor, Some(number), &upload)
            } else {
                self.wait(&self.done, state)
            };
        }
    }

    /// Enqueues the upload of a batch on a stream of the loader's own, which an event guards.
    pub(crate) fn upload_ahead(
        &self,
        device: Device,
        stream: &AnyStream,
        front: Assembly<M>,
    ) -> Result<Event<Batch<M>>, Refused<M>> {
        stream.enter(|s| {
            let batch = self.enqueue(s, device, front, Self::read_at_once)?;
            Ok(s.record(batch).map_err(|r| r.error)?)
        })
    }

    /// The sequential path: uploads on the calling thread's own stream, and waits.
    pub(crate) fn upload_and_wait(&self, device: Device, front: Assembly<M>) -> Result<Event<Batch<M>>, Refused<M>> {
        if self.options.upload == UploadMode::Off {
            return Ok(Event::ready(Batch::on_host(front, device)));
        }
        device.per_thread(|stream| {
            let batch = self.enqueue(stream, device, front, Self::read_in_turn)?;
            let batch = stream.record(batch).map_err(|r| r.error)?.synchronize().map_err(|r| r.error)?;
            Ok(Event::ready(batch))
        })?
    }

    /// Uploads the next batch, which is complete, and puts what became of it where the consumer
    /// finds it. `stream` is the number of the upload thread, if one does it.
    ///
    /// If there is no device memory, the consumer may be about to give some back. So it is told
    /// only if it waits and has nothing more to take; otherwise the batch waits until then, and is
    /// tried again. A batch of which the consumer was told too often is given up.
    pub(crate) fn upload_next<'g>(
        &'g self,
        mut state: MutexGuard<'g, State<M>>,
        device: Device,
        monitor: &Mutex<MemoryMonitor>,
        stream: Option<usize>,
        upload: impl Fn(Assembly<M>) -> Result<Event<Batch<M>>, Refused<M>>,
    ) -> MutexGuard<'g, State<M>> {
        let begin = Instant::now();
        let Some(front) = state.take() else { return state };
        let (round, number, bytes) = (front.round, front.number, front.amount().bytes);
        let place = UploadSite { epoch: state.epoch(), number, stream };
        // Read before the attempt, so that it sees all memory that the consumer gave back by then.
        let told = state.waits_for(number);
        drop(state);
        // The metadata is the user's, and its destructor may panic.
        let settled = catch_unwind(AssertUnwindSafe(|| self.settle(front, device, place, upload)));
        let (errors, outcome) = settled.unwrap_or_else(|panic| (Vec::new(), Outcome::Failed(panicked(panic))));
        lock(monitor).look(device, &self.pool, place);
        let end = Instant::now();

        let mut state = lock(&self.state);
        state.stats().uploading.add(bytes, end - begin);
        let unused = if state.wants(round) {
            let lost = self.settled(&mut state, device, number, errors, outcome, told);
            (Vec::new(), lost, None)
        } else {
            // Nobody wants the batch any more, but a failure ends the loader in every epoch.
            if let Outcome::Failed(error) = &outcome {
                state.fail(error.clone());
            }
            (errors, Vec::new(), Some(outcome))
        };
        drop(state);
        self.work.notify_all(); // there may be room for the decode threads
        self.tell();
        // Without the lock, because the metadata is the user's.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(unused)));
        if let Err(panic) = dropped {
            lock(&self.state).fail(panicked(panic));
            self.tell();
        }
        lock(&self.state)
    }

    /// Puts what became of a batch where the consumer finds it. It hears of missing memory if it is
    /// `told`. The caller must drop the returned images without the lock.
    #[must_use]
    fn settled(
        &self,
        state: &mut State<M>,
        device: Device,
        number: u64,
        errors: Vec<crate::Error>,
        outcome: Outcome<M>,
        told: bool,
    ) -> Vec<Decoded<M>> {
        state.add_errors(number, errors);
        let (mut lost, mut outcome) = (Vec::new(), outcome);
        if let Outcome::NoMemory(error, front) = outcome {
            let Some(mut front) = state.refuse(number, error, front, told) else { return lost };
            lost = front.give_up();
            state.stats().failed += lost.len() as u64;
            outcome = match self.keeps(&front) {
                true => Outcome::Batch(Event::ready(Batch::on_host(front, device))),
                false => Outcome::Nothing,
            };
        }
        state.settle(number, outcome);
        lost
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
        place: UploadSite,
        upload: impl Fn(Assembly<M>) -> Result<Event<Batch<M>>, Refused<M>>,
    ) -> (Vec<crate::Error>, Outcome<M>) {
        let mut errors = Vec::new();
        let order = front.order();
        loop {
            errors.extend(front.errors());
            // What is found late still comes in its place.
            errors.sort_by_cached_key(|error| order.iter().position(|index| *index == error.sample()));
            if self.options.skip_errors {
                errors.clear();
            }
            if front.amount().images == 0 {
                // An empty batch needs no memory, so it cannot fail.
                let keeps = self.keeps(&front);
                let empty = || Outcome::Batch(Event::ready(Batch::on_host(front, device)));
                return (errors, if keeps { empty() } else { Outcome::Nothing });
            }
            let outcome = match upload(front) {
                Ok(event) => {
                    lock(&self.state).pressure.memory();
                    Outcome::Batch(event)
                }
                Err(Refused::NoMemory(error, front)) => {
                    let mut state = lock(&self.state);
                    state.stats().without_memory += 1;
                    let line = state.pressure.no_memory(place, device);
                    drop(state);
                    if let Some(line) = line {
                        warn!("{line}: {error}");
                    }
                    Outcome::NoMemory(error, front)
                }
                Err(Refused::Unread(again)) => {
                    front = again; // without the lost images, the others lie elsewhere
                    continue;
                }
                Err(Refused::Failed(error)) => Outcome::Failed(error.into()),
            };
            return (errors, outcome);
        }
    }

    /// Turns an image whose file cannot be read into an error.
    fn fail(&self, front: &mut Assembly<M>, image: usize, error: io::Error) {
        self.lose(front, image, SampleError::file("read its pixels")(error));
    }

    /// Turns an image into an error.
    pub(crate) fn lose(&self, front: &mut Assembly<M>, image: usize, cause: impl Into<DecodeError>) {
        let Some((lost, error)) = front.lose(image, cause) else { return };
        let mut state = lock(&self.state);
        let stats = state.stats();
        stats.images -= 1;
        stats.bytes = stats.bytes.saturating_sub(lost.pixels.len() as u64);
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
        self.has_memory(&front);
        let unread = self.upload_files(stream, &front, &mut rgb, read)?;
        if !unread.is_empty() {
            // The last one goes first, because each changes the numbers of those after it.
            unread.into_iter().rev().for_each(|(image, error)| self.fail(&mut front, image, error));
            return Err(Refused::Unread(front));
        }
        #[cfg(feature = "jpeg-device")]
        match self.decode_on_device(stream, &front, &mut rgb) {
            Ok(broken) if broken.is_empty() => {}
            Ok(broken) => {
                // The last one goes first, because each may change the numbers of those after it.
                broken.into_iter().rev().for_each(|(image, why)| self.decode_on_host(&mut front, image, why));
                return Err(Refused::Unread(front));
            }
            Err(error) if crate::jpeg::lacks_memory(&error) => return Err(Refused::NoMemory(error, front)),
            Err(error) => return Err(error.into()),
        }
        let mut batch = stream.bind(Batch::on_host(front, device)).map_err(|r| r.error)?;
        if batch.images.iter().all(|image| image.is_empty()) && batch.pageable.iter().all(Vec::is_empty) {
            batch.rgb = rgb; // all of it is enqueued
            return Ok(batch);
        }
        self.options.timeline.span(stream, Activity::Upload, "upload", || {
            let mut at = 0;
            for ((pinned, pageable), &Size { height, width }) in
                batch.images.iter().zip(&batch.pageable).zip(&batch.sizes)
            {
                let len = 3 * height as usize * width as usize;
                let to = rgb.slice_mut(at..at + len)?;
                if pinned.is_empty() && pageable.is_empty() {
                    // It is enqueued: `upload_files` or the decoder of the device writes it.
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

    /// Notes that a batch has its device memory, so the next one may ask for some.
    fn has_memory(&self, front: &Assembly<M>) {
        let others = lock(&self.state).has_memory(front.round, front.number);
        if others {
            self.done.notify_all();
        }
    }

    /// Returns a device buffer that a consumer gave back, or a new one.
    fn device_buffer<S: LiveBrand>(&self, stream: &Stream<S>, bytes: usize) -> Result<On<S, DeviceBuffer<u8>>> {
        let found = lock(&self.state).take_spare(bytes);
        if let Some(event) = found {
            return stream.wait(event).map_err(|r| r.error);
        }
        match stream.alloc(bytes) {
            // Spare buffers of other sizes may take the memory.
            Err(Error::OutOfMemory { .. }) => {
                let spare = lock(&self.state).take_spares();
                // Without the lock, and by this stream: so they are free after the next line.
                spare.into_iter().for_each(|event| drop(stream.wait(event)));
                stream.synchronize()?;
                stream.alloc(bytes)
            }
            allocated => allocated,
        }
    }
}

/// The error that ends the loader after an upload panicked.
fn panicked(panic: Box<dyn Any + Send>) -> crate::Error {
    crate::Error::Panicked { thread: "an upload".to_owned(), message: message(panic) }
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
                _ => (PinnedBuffer::empty(device), Vec::new()), // its pixels are on the device only
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
