//! A few small page-locked slots, through which pixels go from files to the device.
//!
//! | a frame crosses host memory | through page-locked memory of its own | through slots |
//! |---|---|---|
//! | page cache, read by the copy out of it | once | once |
//! | page-locked memory, fetched into the cache before it is written | once | – |
//! | page-locked memory, written back from the cache | once | – |
//! | page-locked memory, read by the copy engine | once | – |
//!
//! Batches of large frames fill hundreds of megabytes of page-locked memory, so nothing of a frame
//! is left in the processor's caches when its copy begins. A slot holds [`PIECE`] bytes, and there
//! are only a few more slots than threads, so all slots together fit into the caches. A thread
//! writes a slot that is still there, and the copy engine finds it there too, because its reads
//! look into the caches first. A file opened for direct I/O leaves out the page cache as well.
//!
//! A mapped file that is registered with the driver would need no slot. The loader does not do that
//! for two reasons. Registration takes longer than the copy: on an H200, mapped files come at 817
//! frames/s where slots give 2123 (`benches/frames.rs`). And the host could not read such memory
//! safely, because another process may change or truncate the file.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io;
#[cfg(not(windows))]
use std::os::unix::fs::FileExt;
#[cfg(windows)]
use std::os::windows::fs::FileExt;
use std::sync::{Mutex, OnceLock};

use log::warn;
use rayon::ThreadPool;
use thalweg::{Error, Event, PinnedBuffer, Result, beside_captures};

use crate::lock;
use crate::options::LoaderOptions;

/// Bytes of a file that are read and copied at a time. Smaller copies leave gaps on the bus:
/// on an H200, pieces of 1 MiB reach 87 % of the rate of whole frames, and pieces of 4 MiB 97 %.
pub(crate) const PIECE: usize = 4 << 20;

/// Direct I/O needs offsets, lengths and addresses that are multiples of this.
const BLOCK: usize = 4096;

/// Bytes of a slot: a piece, what comes before and after it in its blocks, and what comes before
/// the first address that is a multiple of a block.
pub(crate) const SLOT: usize = PIECE + 3 * BLOCK;

/// Pixels of an image that lie in a file in the form that the device needs.
#[derive(Debug)]
pub(crate) struct InFile {
    pub(crate) file: File,
    pub(crate) at: u64,
    pub(crate) bytes: usize,
}

/// The slots, and the threads that fill them.
#[derive(Debug)]
pub(crate) struct Staging {
    slots: Mutex<Slots>,
    /// The most slots.
    most: usize,
    threads: usize,
    readers: OnceLock<Option<ThreadPool>>,
}

#[derive(Debug, Default)]
struct Slots {
    /// Slots that a copy has used. The one whose copy was enqueued first comes first.
    used: VecDeque<Event<PinnedBuffer<u8>>>,
    /// The number of slots, in use or not.
    made: usize,
}

impl Staging {
    pub(crate) fn new(options: &LoaderOptions) -> Self {
        // Each thread writes one slot, and the copy engine reads some others meanwhile. Slots take
        // at most a quarter of a finite budget, which is for images first.
        let most = options.decode_threads.saturating_add(4).min(options.pinned_budget / 4 / SLOT);
        // A thread holds at most one slot. So with no more threads than slots, none waits for
        // another thread.
        let threads = options.decode_threads.min(most).max(1);
        Self { slots: Mutex::default(), most, threads, readers: OnceLock::new() }
    }

    /// The threads that read. They start with the first batch that has pixels in files. `None` if
    /// they cannot be started.
    pub(crate) fn readers(&self) -> Option<&ThreadPool> {
        let start = || {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(self.threads);
            let builder = builder.thread_name(|n| format!("read-{n}")).spawn_handler(|reader| {
                let name = reader.name().unwrap_or("read").to_owned();
                std::thread::Builder::new().name(name).spawn(|| beside_captures(|| reader.run())).map(drop)
            });
            let pool = builder.build();
            pool.inspect_err(|error| warn!("reading on one thread: {error}")).ok()
        };
        self.readers.get_or_init(start).as_ref()
    }

    /// Takes a slot that nothing uses any more. Makes a new one if all are in use and there may be
    /// more, and otherwise waits for one. `None` if there is none to wait for, because the budget
    /// has no room for slots or no memory can be page-locked.
    pub(crate) fn take(&self, pin: impl FnOnce() -> Result<PinnedBuffer<u8>>) -> Result<Option<PinnedBuffer<u8>>> {
        let mut slots = lock(&self.slots);
        // A slot that is still in the caches is better than a new one.
        let waits = slots.used.front().is_none_or(|first| !first.is_known_complete());
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

    /// Takes a slot back. Another piece can use it once the event is complete.
    pub(crate) fn give(&self, slot: Event<PinnedBuffer<u8>>) {
        lock(&self.slots).used.push_back(slot);
    }
}

/// Checks that `bytes` bytes from `at` on lie in the file. Callers ask before they ask for memory:
/// so a wrong size costs its sample, and not the memory that all samples share. Only a regular file
/// has a length to check.
pub(crate) fn reaches(file: &File, at: u64, bytes: usize) -> io::Result<()> {
    let length = file.metadata().ok().filter(Metadata::is_file).map_or(u64::MAX, |file| file.len());
    let end = at.checked_add(bytes as u64);
    if end.is_some_and(|end| end <= length) { Ok(()) } else { Err(too_short()) }
}

fn too_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the image does")
}

/// Reads `len` bytes from `at` on. Returns where in `to` they begin.
pub(crate) fn read(file: &File, at: u64, len: usize, to: &mut [u8]) -> io::Result<usize> {
    match fill(file, at, len, len, to) {
        // The file is open for direct I/O, which reads whole blocks only.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let (skip, blocks) = ((at % BLOCK as u64) as usize, to.as_ptr().align_offset(BLOCK));
            let to = to.get_mut(blocks..).unwrap_or_default();
            fill(file, at - skip as u64, skip + len, (skip + len).next_multiple_of(BLOCK), to)?;
            Ok(blocks + skip)
        }
        filled => filled.map(|()| 0),
    }
}

/// Reads up to `asked` bytes from `at` on, and fails if the file ends before `needed` of them.
pub(crate) fn fill(file: &File, at: u64, needed: usize, asked: usize, to: &mut [u8]) -> io::Result<()> {
    let mut got = 0;
    while got < needed {
        match read_at(file, &mut to[got..asked], at + got as u64) {
            Ok(0) => return Err(too_short()),
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
