//! Measures several ways to move raw frames from files to the device, and compares their rates with
//! those of the page cache and the bus.
//!
//! ```text
//! cargo bench --bench frames
//! cargo bench --bench frames -- --loader      (only the loader, with 1, 2 and 3 upload streams)
//! ```
//!
//! - `read alone` and `copy alone` are the two limits.
//! - `through large memory` reads whole frames into page-locked slots of their size, and copies
//!   them.
//! - `through slots` reads pieces into a few small slots, which it uses again at once, and copies
//!   them. `ImageSink::rgb_in_file` does the same with pieces of 4 MiB.
//! - `loader` is `thalweg_loader` with `ImageSink::rgb_in_file` ("pieces") or `ImageSink::rgb`
//!   ("whole frames"), and with different numbers of upload streams.
//! - `mapped` maps the file and registers the pages of the page cache with the driver, for each
//!   copy or once for all copies. It needs a CUDA device that can register read-only memory.
//!
//! Without a GPU, the bench runs on the CPU device with small frames, to show that it works.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{error, thread};

use cudarc::driver::sys;
use thalweg::{AnyStream, Device, DeviceBuffer, DeviceKind, Event, PinnedBuffer, Ring};
use thalweg_loader::{Loader, LoaderOptions, Sample, Source, UploadMode};

type Result<T> = std::result::Result<T, Box<dyn error::Error + Send + Sync>>;

/// Files of frames. They are deleted when this value is dropped.
struct Frames {
    folder: PathBuf,
    files: Vec<File>,
    bytes: usize,
    /// The number of frames in a run. A run takes the files in turn.
    count: usize,
}

impl Frames {
    fn new(files: usize, bytes: usize, count: usize) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("thalweg-frames-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let mut frames = Self { folder, files: Vec::new(), bytes, count };
        for n in 0..files {
            let path = frames.folder.join(n.to_string());
            File::create(&path)?.write_all(&vec![n as u8; bytes])?;
            frames.files.push(File::open(path)?);
        }
        Ok(frames)
    }

    fn report(&self, what: &str, time: Duration) {
        let rate = self.count as f64 / time.as_secs_f64();
        println!("{what:<44} {rate:8.0} frames/s {:8.2} GB/s", rate * self.bytes as f64 / 1e9);
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the least time of three runs, after one that does not count.
fn least(mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    run()?;
    let mut least = Duration::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed());
    }
    Ok(least)
}

/// The page-locked memory that a thread writes, and the device memory to which it is copied.
type Slot = (PinnedBuffer<u8>, DeviceBuffer<u8>);

/// Reads all frames on `threads` threads, in pieces of `piece` bytes. A thread reads each piece
/// into the next one of its `slots`, and copies it to the device if `copy` is set.
fn through(
    frames: &Frames,
    device: Device,
    threads: usize,
    piece: usize,
    slots: usize,
    copy: bool,
) -> Result<Duration> {
    let stream = AnyStream::new(device)?;
    let make = move || Ok((device.pinned(piece)?, device.per_thread(|s| s.alloc(piece)?.synchronize())??));
    let rings = (0..threads).map(|_| Ok(Mutex::new(Ring::<Slot>::new(slots, make)?)));
    let rings = rings.collect::<Result<Vec<_>>>()?;
    let pieces = frames.bytes.div_ceil(piece);
    least(|| {
        let next = AtomicUsize::new(0);
        let work = |ring: &Mutex<Ring<Slot>>| -> Result<()> {
            let mut ring = ring.lock().map_err(|_| "a thread panicked")?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let (frame, at) = (number / pieces, number % pieces * piece);
                if frame >= frames.count {
                    return Ok(());
                }
                let len = piece.min(frames.bytes - at);
                let (mut host, to) = ring.acquire()?.synchronize().map_err(|e| e.error)?;
                frames.files[frame % frames.files.len()].read_exact_at(&mut host[..len], at as u64)?;
                if !copy {
                    ring.recycle(Event::ready((host, to)));
                    continue;
                }
                ring.recycle(stream.enter(|s| {
                    let (host, mut to) = s.bind((host, to)).map_err(|e| e.error)?;
                    s.copy_to_device(host.slice(..len)?, to.slice_mut(..len)?)?;
                    s.record((host, to)).map_err(|e| e.error)
                })?);
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = rings.iter().map(|ring| scope.spawn(|| work(ring))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        })?;
        Ok(stream.enter(|s| s.synchronize())?)
    })
}

/// Copies the same number of bytes from page-locked memory that no other thread uses.
fn copies(frames: &Frames, device: Device, piece: usize) -> Result<Duration> {
    let pieces = (frames.bytes * frames.count).div_ceil(piece);
    AnyStream::new(device)?.enter(|s| {
        let from = s.bind(device.pinned::<u8>(piece)?)?;
        let mut to = s.alloc::<u8>(piece)?;
        least(|| {
            (0..pieces).try_for_each(|_| s.copy_to_device(&from, &mut to))?;
            Ok(s.synchronize()?)
        })
    })
}

/// Loads all frames with a loader, batch by batch, and prints how it uploads and what its stages
/// take.
fn loaded(frames: &Frames, device: Device, [height, width]: [u32; 2], pieces: bool, streams: usize) -> Result<()> {
    let folder = frames.folder.clone();
    let files = frames.files.len() as u64;
    let samples = Source::indexed(frames.count as u64, move |index| {
        let path = folder.join((index % files).to_string());
        Sample::new(path.display().to_string(), (), move |sink| {
            let mut file = File::open(&path)?;
            if pieces {
                return sink.rgb_in_file(height, width, file, 0);
            }
            Ok(file.read_exact(sink.rgb(height, width)?)?)
        })
    });
    let (upload, upload_streams) = (UploadMode::Streams, streams);
    let options = LoaderOptions::default()
        .with_batch_size(8.min(frames.count / 4))
        .with_prefetch(4)
        .with_upload(upload)
        .with_upload_streams(upload_streams);
    let mut loader = Loader::new(device, samples, options)?;
    let time = least(|| {
        loader.restart();
        while let Some(batch) = loader.next() {
            let batch = batch?.synchronize().map_err(|e| e.error)?;
            loader.recycle(Event::ready(batch));
        }
        Ok(())
    })?;
    let how = if pieces { "pieces" } else { "whole frames" };
    frames.report(&format!("loader, {how}, upload streams: {streams}"), time);
    loader.stats().to_string().lines().for_each(|line| println!("  {line}"));
    Ok(())
}

fn checked(what: &str, code: sys::CUresult) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{what}: {code:?}").into()) }
}

/// A read-only mapping of a file.
struct Mapped {
    at: *mut libc::c_void,
    bytes: usize,
}

// SAFETY: The mapping is valid on every thread, and no Rust code reads or writes through its
// address.
unsafe impl Send for Mapped {}
// SAFETY: The methods only pass the address to the driver, and no Rust code reads or writes through
// it.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: &File, bytes: usize) -> Result<Self> {
        // SAFETY: The address is null, so the kernel chooses a free range and replaces no other
        // mapping.
        let at = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            libc::mmap(null_mut(), bytes, libc::PROT_READ, flags, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED { Err(std::io::Error::last_os_error().into()) } else { Ok(Self { at, bytes }) }
    }

    fn register(&self) -> Result<()> {
        // SAFETY: `new` mapped these bytes, and they stay mapped until `drop`.
        let code = unsafe { sys::cuMemHostRegister_v2(self.at, self.bytes, sys::CU_MEMHOSTREGISTER_READ_ONLY) };
        checked("cuMemHostRegister", code)
    }

    fn unregister(&self) -> Result<()> {
        // SAFETY: The callers registered this range, and have waited for the copies from it.
        checked("cuMemHostUnregister", unsafe { sys::cuMemHostUnregister(self.at) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this range, and no Rust reference points into it. It is unregistered
        // unless a call of the driver failed, after which the bench copies nothing from it.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}

/// Copies all frames directly from the page cache. Maps and registers each file for each of its
/// copies, or once for all copies. A thread copies one frame at a time.
fn mapped(frames: &Frames, device: Device, threads: usize, once: bool) -> Result<Duration> {
    let mut context = null_mut();
    // SAFETY: The call writes one handle to a local variable. The driver is initialized, because
    // the device is open.
    checked("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
    let context = context as usize;
    let kept: Vec<Mapped> = match once {
        true => frames.files.iter().map(|file| Mapped::new(file, frames.bytes)).collect::<Result<_>>()?,
        false => Vec::new(),
    };
    kept.iter().try_for_each(Mapped::register)?;
    let time = least(|| {
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            // SAFETY: `context` is the primary context of the device, which lives as long as the
            // process.
            checked("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context as sys::CUcontext) })?;
            device.per_thread(|s| {
                let to = s.alloc::<u8>(frames.bytes)?;
                let stream = s.raw().ok_or("a CUDA stream")?.cast();
                loop {
                    let frame = next.fetch_add(1, Ordering::Relaxed);
                    if frame >= frames.count {
                        return Ok(());
                    }
                    let file = frame % frames.files.len();
                    let own;
                    let from = if once {
                        &kept[file]
                    } else {
                        own = Mapped::new(&frames.files[file], frames.bytes)?;
                        own.register()?;
                        &own
                    };
                    // SAFETY: `from` and `to` hold `frames.bytes` bytes each, and the thread waits
                    // for the copy below, before it drops either.
                    let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to.device_ptr(), from.at, frames.bytes, stream) };
                    checked("cuMemcpyHtoDAsync", code)?;
                    s.synchronize()?;
                    if !once {
                        from.unregister()?;
                    }
                }
            })?
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        })
    });
    kept.iter().try_for_each(Mapped::unregister)?;
    time
}

fn main() -> Result<()> {
    let device = Device::from_env()?.device;
    let cuda = device.kind() == DeviceKind::Cuda;
    let threads = thread::available_parallelism()?.get();
    let size @ [height, width] = if cuda { [2160, 3840] } else { [1024, 1024u32] };
    let bytes = 3 * height as usize * width as usize;
    let frames = if cuda { Frames::new(32, bytes, 512)? } else { Frames::new(4, bytes, 8)? };
    println!("{device}: {}, {threads} threads, frames of {} bytes", device.name(), frames.bytes);

    for pieces in [true, false] {
        for streams in [1, 2, 3] {
            loaded(&frames, device, size, pieces, streams)?;
        }
    }
    if std::env::args().any(|argument| argument == "--loader") {
        return Ok(());
    }
    let whole = frames.bytes;
    frames.report("copy alone, whole frames", copies(&frames, device, whole)?);
    for kib in [256, 512, 1024, 2048, 4096] {
        frames.report(&format!("copy alone, pieces of {kib} KiB"), copies(&frames, device, kib << 10)?);
    }
    frames.report("read alone, large memory", through(&frames, device, threads, whole, 2, false)?);
    for kib in [256, 512, 1024, 2048, 4096] {
        let time = through(&frames, device, threads, kib << 10, 1, false)?;
        frames.report(&format!("read alone, slots of {kib} KiB"), time);
    }
    frames.report("through large memory", through(&frames, device, threads, whole, 2, true)?);
    for kib in [256, 512, 1024, 2048, 4096] {
        let time = through(&frames, device, threads, kib << 10, 2, true)?;
        frames.report(&format!("through slots of {kib} KiB, two a thread"), time);
    }
    if !cuda {
        println!("mapped: not measured, {device} registers nothing");
        return Ok(());
    }
    for (what, once) in [("mapped, registered for each copy", false), ("mapped, registered once", true)] {
        match mapped(&frames, device, threads, once) {
            Ok(time) => frames.report(what, time),
            Err(error) => println!("{what}: {error}"),
        }
    }
    Ok(())
}
