//! Pixels that lie in files, on their way to the device through a few small page-locked slots.
//!
//! | a frame crosses host memory | through page-locked memory of its own | through slots |
//! |---|---|---|
//! | page cache, read by the copy out of it | once | once |
//! | page-locked memory, fetched into the cache before it is written | once | – |
//! | page-locked memory, written back from the cache | once | – |
//! | page-locked memory, read by the copy engine | once | – |
//!
//! Batches of large frames fill hundreds of megabytes of page-locked memory, so nothing of a frame
//! is in the processor's caches any more when its copy begins. A slot holds [`PIECE`] bytes, and
//! there are only a few more of them than threads. So all slots together fit into the caches: a
//! thread writes one that is still there, and the copy engine, whose reads look into the caches
//! first, finds it there. A file opened for direct I/O leaves out the page cache as well.
//!
//! A mapped file that is registered with the driver would need no slot. It is not done, because
//! each file is registered and unregistered page by page, by calls that wait for one another, and
//! because the host could not read such memory safely: another process may change or truncate the
//! file.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
#[cfg(not(windows))]
use std::os::unix::fs::FileExt;
#[cfg(windows)]
use std::os::windows::fs::FileExt;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use log::warn;
use rayon::ThreadPool;
use rayon::prelude::*;
use thalweg::{Activity, DeviceSlice, Error, Event, PinnedBuffer, Result, Returned, Stream, StreamTag};

use super::queue::{Assembly, Queue};
use super::{Options, Pixels, padded};
use crate::lock;

/// Bytes of a file that are read and copied at a time: large enough that copies follow one another
/// without a gap, and small enough that the slots of all threads fit into the caches.
const PIECE: usize = 1 << 20;

/// What direct I/O wants offsets, lengths and addresses to be a multiple of.
const BLOCK: usize = 4096;

/// A piece, what comes before and after it in its blocks, and what comes before the first block.
const SLOT: usize = PIECE + 3 * BLOCK;

/// Pixels of an image that lie in a file as the device wants them.
#[derive(Debug)]
pub(super) struct InFile {
    pub(super) file: File,
    pub(super) at: u64,
    pub(super) bytes: usize,
}

/// The slots, and the threads that fill them.
#[derive(Debug)]
pub(super) struct Staging {
    slots: Mutex<Slots>,
    most: usize,
    threads: usize,
    readers: OnceLock<Option<ThreadPool>>,
}

#[derive(Debug, Default)]
struct Slots {
    /// The one that has been under way the longest comes first.
    used: VecDeque<Event<PinnedBuffer<u8>>>,
    made: usize,
}

/// A part of a file, and where it goes.
pub(super) struct Piece<'p, S> {
    image: usize,
    file: &'p File,
    name: &'p str,
    at: u64,
    to: &'p mut DeviceSlice<S, u8>,
}

/// Why a piece is not on its way.
pub(super) enum Trouble {
    Read(io::Error),
    Device(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

impl<R> From<Returned<R>> for Trouble {
    fn from(returned: Returned<R>) -> Self {
        Self::Device(returned.error)
    }
}

/// How the pieces of a batch are read; what became of each, and how long it took.
pub(super) type ReadPieces<M, S> = fn(&Queue<M>, &Stream<S>, Vec<Piece<'_, S>>) -> Vec<Done>;

/// The image of a piece, what reading it took, and what went wrong.
pub(super) type Done = (usize, Duration, Result<(), Trouble>);

impl Staging {
    pub(super) fn new(options: &Options) -> Self {
        // One for each thread to write, and some for the copy engine to read meanwhile. A finite
        // budget is for images first.
        let most = options.threads.saturating_add(4).min(options.pinned_budget / 4 / SLOT);
        // A thread has one slot at most, so none waits for another thread's.
        let threads = options.threads.min(most).max(1);
        Self { slots: Mutex::default(), most, threads, readers: OnceLock::new() }
    }

    /// The threads that read; they start with the first batch that has pixels in files.
    fn readers(&self) -> Option<&ThreadPool> {
        let start = || {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(self.threads);
            let pool = builder.thread_name(|n| format!("read-{n}")).build();
            pool.inspect_err(|error| warn!("reading on one thread: {error}")).ok()
        };
        self.readers.get_or_init(start).as_ref()
    }

    /// A slot that nothing uses any more; waits for one where there are enough. `None` where none
    /// is left to wait for, because memory cannot be page-locked.
    fn take(&self, pin: impl FnOnce() -> Result<PinnedBuffer<u8>>) -> Result<Option<PinnedBuffer<u8>>> {
        let mut slots = lock(&self.slots);
        // One that is still in the caches is better than a new one.
        let waits = slots.used.front().is_none_or(|first| matches!(first.is_ready(), Ok(false)));
        if waits && slots.made < self.most {
            slots.made += 1;
            drop(slots);
            match pin() {
                Ok(slot) => return Ok(Some(slot)),
                Err(Error::PinnedBudget { .. } | Error::Cuda { .. } | Error::OutOfMemory { .. }) => {
                    slots = lock(&self.slots);
                    slots.made -= 1;
                }
                Err(error) => return Err(error),
            }
        }
        let first = slots.used.pop_front();
        drop(slots);
        Ok(first.map(Event::synchronize).transpose()?)
    }

    fn give(&self, slot: Event<PinnedBuffer<u8>>) {
        lock(&self.slots).used.push_back(slot);
    }
}

impl<M: Clone + Send + 'static> Queue<M> {
    /// Reads the pixels that lie in files, and enqueues their copies to where they belong in `rgb`.
    /// Returns the images that cannot be read.
    pub(super) fn upload_files<S: StreamTag>(
        &self,
        stream: &Stream<S>,
        front: &Assembly<M>,
        rgb: &mut DeviceSlice<S, u8>,
        read: ReadPieces<M, S>,
    ) -> Result<Vec<(usize, io::Error)>> {
        let mut pieces = Vec::new();
        let mut rest = rgb;
        for (image, decoded) in front.images().enumerate() {
            let (mut own, others) = rest.split_at_mut(padded(decoded.pixels.len()))?;
            rest = others;
            let Pixels::File(InFile { file, at, bytes }) = &decoded.pixels else { continue };
            for start in (0..*bytes).step_by(PIECE) {
                let (to, after) = own.split_at_mut(PIECE.min(bytes - start))?;
                own = after;
                pieces.push(Piece { image, file, name: &decoded.name, at: at + start as u64, to });
            }
        }
        if pieces.is_empty() {
            return Ok(Vec::new());
        }
        let done = self
            .options
            .timeline
            .span(stream, Activity::Upload, "read and upload", || Ok(read(self, stream, pieces)))?;
        let mut unread: Vec<(usize, io::Error)> = Vec::new();
        let mut spent = Duration::ZERO;
        for (image, took, outcome) in done {
            spent += took;
            match outcome {
                Ok(()) => {}
                Err(Trouble::Read(_)) if unread.iter().any(|(known, _)| *known == image) => {}
                Err(Trouble::Read(error)) => unread.push((image, error)),
                Err(Trouble::Device(error)) => return Err(error),
            }
        }
        lock(&self.state).stats.decode += spent;
        unread.sort_by_key(|(image, _)| *image);
        Ok(unread)
    }

    /// On the calling thread.
    pub(super) fn read_in_turn<S: StreamTag>(&self, stream: &Stream<S>, pieces: Vec<Piece<'_, S>>) -> Vec<Done> {
        pieces.into_iter().map(|piece| self.upload_piece(stream, piece)).collect()
    }

    /// On as many threads as decode and have a slot.
    pub(super) fn read_at_once<S: StreamTag + Send + Sync>(
        &self,
        stream: &Stream<S>,
        pieces: Vec<Piece<'_, S>>,
    ) -> Vec<Done> {
        match self.staging.readers() {
            Some(threads) => threads.install(|| {
                pieces.into_par_iter().with_max_len(1).map(|piece| self.upload_piece(stream, piece)).collect()
            }),
            None => self.read_in_turn(stream, pieces),
        }
    }

    fn upload_piece<S: StreamTag>(&self, stream: &Stream<S>, piece: Piece<'_, S>) -> Done {
        let Piece { image, file, name, at, to } = piece;
        let len = to.len();
        let mut spent = Duration::ZERO;
        let mut timed = |bytes: &mut [u8]| {
            let begin = Instant::now();
            let thread = std::thread::current();
            let lane = thread.name().unwrap_or("read");
            let read = self.options.timeline.host(lane, name, || read(file, at, len, bytes));
            spent = begin.elapsed();
            read.map_err(Trouble::Read)
        };
        let mut upload = || match self.staging.take(|| (self.pin)(&self.pool, SLOT))? {
            Some(mut slot) => {
                let range = match timed(&mut slot) {
                    Ok(start) => start..start + len,
                    Err(error) => {
                        self.staging.give(Event::ready(slot));
                        return Err(error);
                    }
                };
                let slot = stream.bind(slot)?;
                stream.copy_to_device(slot.slice(range).map_err(Error::from)?, to)?;
                self.staging.give(stream.record(slot)?);
                Ok(())
            }
            None => {
                let mut bytes = vec![0; SLOT];
                let start = timed(&mut bytes)?;
                Ok(stream.write_blocking(&bytes[start..start + len], to)?)
            }
        };
        let outcome = upload();
        (image, spent, outcome)
    }
}

/// Reads `len` bytes from `at` on; says where in `to` they begin.
fn read(file: &File, at: u64, len: usize, to: &mut [u8]) -> io::Result<usize> {
    match fill(file, at, len, len, to) {
        // A file opened for direct I/O gives whole blocks.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let (skip, blocks) = ((at % BLOCK as u64) as usize, to.as_ptr().align_offset(BLOCK));
            let to = to.get_mut(blocks..).unwrap_or_default();
            fill(file, at - skip as u64, skip + len, (skip + len).next_multiple_of(BLOCK), to)?;
            Ok(blocks + skip)
        }
        filled => filled.map(|()| 0),
    }
}

/// Reads up to `asked` bytes from `at` on, and fails where the file ends before `needed` of them.
pub(super) fn fill(file: &File, at: u64, needed: usize, asked: usize, to: &mut [u8]) -> io::Result<()> {
    let mut got = 0;
    while got < needed {
        match read_at(file, &mut to[got..asked], at + got as u64) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the image does")),
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_at(file: &File, to: &mut [u8], at: u64) -> io::Result<usize> {
    #[cfg(not(windows))]
    return file.read_at(to, at);
    #[cfg(windows)]
    return file.seek_read(to, at);
}
