//! A loader that runs in the background of a Python program, for `captures.py`: it keeps a GPU busy
//! with uploads and with decoding while the program captures graphs by PyTorch.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use jpeg_encoder::{ColorType, Encoder};
use thalweg::{AnyStream, Device, Result, beside_captures};
use thalweg_loader::{DecodeBackend, Loader, LoaderOptions, Source, UploadMode, read_photo};

/// The threads that run code of this library, which are some of the loader's and that of the
/// consumer, go back to CUDA's mode "global". Then captures must fail.
const GLOBAL: c_uint = 1;
/// The consumer also page-locks memory and gives it back.
const PINNED: c_uint = 2;

/// A loader, and the thread that takes its batches.
pub struct Running {
    shared: Arc<Shared>,
    consumer: JoinHandle<thalweg_loader::Result<()>>,
}

#[derive(Default)]
struct Shared {
    batches: AtomicU64,
    stop: AtomicBool,
}

/// Gives this thread CUDA's mode "global", as a thread has that never asked for another.
fn go_global(gpu: Device) -> Result<()> {
    // SAFETY: The driver is loaded already, because the device is a GPU. The function has this type
    // in `cuda.h`, and 0 is the mode "global".
    let exchange = || unsafe {
        let driver = libloading::Library::new("libcuda.so.1").expect("the driver is there");
        let exchange = driver
            .get::<unsafe extern "C" fn(*mut c_uint) -> c_uint>(b"cuThreadExchangeStreamCaptureMode")
            .expect("every driver has it");
        let mut mode = 0;
        assert_eq!(exchange(&mut mode), 0, "the mode can be changed");
    };
    gpu.with_context(exchange)
}

/// Takes batches until it is told to stop. Half of them give their memory back to the loader. The
/// others free theirs, so the loader allocates all the time.
fn consume(device: Device, folder: &Path, flags: c_uint, shared: &Shared) -> thalweg_loader::Result<()> {
    let global = flags & GLOBAL != 0;
    let source = Source::folder(folder, &["jpg"], move |path, sink| {
        if global {
            go_global(device)?;
        }
        read_photo(path, sink)
    })?;
    let options = LoaderOptions::default()
        .with_batch_size(8)
        .with_prefetch(3)
        .with_decode_threads(4)
        .with_shuffle(Some(1))
        .with_upload(UploadMode::Streams)
        .with_decode(DecodeBackend::Device);
    let mut loader = Loader::new(device, source, options)?;
    let stream = AnyStream::new(device)?;
    for number in 0u64.. {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        if global {
            go_global(device)?;
        }
        let Some(batch) = loader.next() else {
            loader.restart();
            continue;
        };
        let done = stream.enter(|s| Ok::<_, thalweg_loader::Error>(s.record(s.wait(batch?)?)?))?;
        match number % 4 {
            0 | 2 => loader.recycle(done),
            1 => drop(done.synchronize()?),
            _ => drop(done),
        }
        if flags & PINNED != 0 && number % 8 == 0 {
            drop(device.register(vec![1u8; 1 << 20])?);
            device.pinned_pool().trim();
        }
        shared.batches.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs `f` on the text. Reports an error, and returns `None` then.
///
/// # Safety
/// `text` is NUL-terminated.
unsafe fn with<T>(
    text: *const c_char,
    f: impl FnOnce(&str) -> std::result::Result<T, Box<dyn std::error::Error>>,
) -> Option<T> {
    // SAFETY: The caller passes such a text.
    let text = unsafe { CStr::from_ptr(text) }.to_str().map_err(Into::into);
    text.and_then(f).inspect_err(|error| eprintln!("torch-captures: {error}")).ok()
}

/// Writes `count` JPEG files into a folder. Returns 0, or 1 if that fails.
///
/// # Safety
/// `folder` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write_photos(folder: *const c_char, count: c_uint) -> c_int {
    const SIDES: [u16; 2] = [640, 480];
    let write = |folder: &str| {
        fs::create_dir_all(folder)?;
        for number in 0..count {
            let pixel = |i: usize| {
                let (x, y) = (i % usize::from(SIDES[0]), i / usize::from(SIDES[0]));
                [x + 7 * number as usize, y, x * y / 64].map(|level| level as u8)
            };
            let pixels: Vec<u8> = (0..usize::from(SIDES[0]) * usize::from(SIDES[1])).flat_map(pixel).collect();
            let file = Path::new(folder).join(format!("{number:04}.jpg"));
            Encoder::new_file(file, 85)?.encode(&pixels, SIDES[0], SIDES[1], ColorType::Rgb)?;
        }
        Ok(())
    };
    // SAFETY: The caller passes such a text.
    unsafe { with(folder, write) }.is_none().into()
}

/// Starts a loader of the JPEG files of a folder on a device (`cuda:0`, `cpu`), and a thread that
/// takes its batches for ever. Returns null if that fails. `flags` is a sum of 1 and 2: see
/// [`GLOBAL`] and [`PINNED`].
///
/// # Safety
/// `folder` and `device` are NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn start_loader(folder: *const c_char, device: *const c_char, flags: c_uint) -> *mut Running {
    // SAFETY: The caller passes such texts.
    let device = unsafe { with(device, |spec| Ok(Device::open(spec)?.device)) };
    let start = |folder: &str| {
        let device = device.ok_or("there is no device")?;
        let shared = Arc::new(Shared::default());
        let (seen, folder) = (shared.clone(), folder.to_owned());
        let consume = move || consume(device, folder.as_ref(), flags, &seen);
        let run = move || if flags & GLOBAL != 0 { consume() } else { beside_captures(consume) };
        let consumer = thread::Builder::new().name("consumer".into()).spawn(run)?;
        Ok(Box::into_raw(Box::new(Running { shared, consumer })))
    };
    // SAFETY: As above.
    unsafe { with(folder, start) }.unwrap_or(std::ptr::null_mut())
}

/// How many batches have come.
///
/// # Safety
/// `start_loader` returned `running`, and `stop` was not called with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn batches(running: *const Running) -> u64 {
    // SAFETY: The caller passes a value that lives.
    unsafe { &*running }.shared.batches.load(Ordering::Relaxed)
}

/// Ends a loader. Returns 0, or 1 if it had failed.
///
/// # Safety
/// `start_loader` returned `running`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stop(running: *mut Running) -> c_int {
    // SAFETY: The caller gives the value back, once.
    let Running { shared, consumer } = *unsafe { Box::from_raw(running) };
    shared.stop.store(true, Ordering::Relaxed);
    match consumer.join() {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            eprintln!("torch-captures: the loader failed: {error}");
            1
        }
        Err(_) => {
            eprintln!("torch-captures: the consumer panicked");
            1
        }
    }
}
