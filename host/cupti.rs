//! CUPTI, the library of NVIDIA's profilers: what a GPU did, as records of each kernel, copy and
//! fill.
//!
//! A record begins with the same fields in each version (CUDA 12.0 to 13.4, by the headers of 12.9,
//! 13.0 and 13.4); later ones differ, and are not read. Another version is refused.
//!
//! | bytes | kernel | copy, fill |
//! |---|---|---|
//! | 0 .. 4 | kind | kind |
//! | 4 | | direction of a copy |
//! | 16 .. 24 | start | start |
//! | 24 .. 32 | end | end |
//! | 32 .. 36 | | device |
//! | 40 .. 44 | device | stream |
//! | 48 .. 52 | stream | |
//! | 104 .. 112 | name | |

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, c_char, c_void};
use std::ops::RangeInclusive;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::driver::work_log::{self, Done, WorkKind};
use crate::error::{Error, Result};
use crate::{library, lock};

type Status = u32;
type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

crate::__library! {
    // Their types are those of NVIDIA's headers (`cupti_activity.h`, `cupti_version.h`).
    unsafe struct Cupti {
        fn version = cuptiGetVersion(*mut u32) -> Status;
        fn register = cuptiActivityRegisterCallbacks(Request, Complete) -> Status;
        fn enable = cuptiActivityEnable(u32) -> Status;
        fn disable = cuptiActivityDisable(u32) -> Status;
        fn flush = cuptiActivityFlushAll(u32) -> Status;
        fn next = cuptiActivityGetNextRecord(*mut u8, usize, *mut *const u8) -> Status;
        fn timestamp = cuptiGetTimestamp(*mut u64) -> Status;
        fn stream = cuptiGetStreamIdEx(*mut c_void, *mut c_void, u8, *mut u32) -> Status;
    }
}

const VARIABLE: &str = "THALWEG_CUPTI";
const NAMES: [&str; 4] = [
    "libcupti.so.13",
    "libcupti.so.12",
    "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so",
    "/usr/local/cuda/lib64/libcupti.so",
];

/// The versions whose records begin as the table says.
const VERSIONS: [RangeInclusive<u32>; 2] = [19..=28, 130_000..=130_499];

/// The kinds of records: copies, fills, kernels that may run beside others, copies between devices.
const COPY: u32 = 1;
const FILL: u32 = 2;
const KERNEL: u32 = 10;
const PEER_COPY: u32 = 22;
const KINDS: [u32; 4] = [COPY, FILL, KERNEL, PEER_COPY];

/// The bytes of a buffer of records, and of a record up to the last field that is read.
const BUFFER: Layout = match Layout::from_size_align(1 << 20, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("a layout"),
};
const KERNEL_BYTES: usize = 112;
const COPY_BYTES: usize = 48;

/// A moment on the host's clock and on CUPTI's, in nanoseconds.
static CLOCKS: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
/// The addresses of the buffers that CUPTI has from here.
static BUFFERS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

static LIBRARY: OnceLock<std::result::Result<Cupti, String>> = OnceLock::new();

/// Loads the file that the variable names, or else what the loader of the system finds.
fn get() -> std::result::Result<&'static Cupti, &'static str> {
    let open = || {
        let check = |loaded| {
            let cupti = Cupti::of(loaded)?;
            let mut version = 0;
            // SAFETY: [symbol] The result is a variable of this type.
            let status = unsafe { (cupti.version)(&raw mut version) };
            match VERSIONS.iter().any(|versions| versions.contains(&version)) {
                true if status == 0 => Ok(cupti),
                _ => Err(format!("its version is {version}, and the records of 12.0 to 13.4 are known")),
            }
        };
        let named = std::env::var_os(VARIABLE);
        // SAFETY: [symbol] CUPTI may be loaded at any time, on any thread. A file that the variable
        // names is as trusted as the program.
        unsafe { library::open("CUPTI", VARIABLE, &NAMES, named, check) }
    };
    library::once(&LIBRARY, open, |_, file| log::debug!(target: "thalweg::device", "CUPTI is {file}"))
}

fn check(call: &'static str, status: Status) -> Result<()> {
    match status {
        0 => Ok(()),
        status => Err(Error::Library(format!("{call} of CUPTI failed with status {status}"))),
    }
}

/// Has CUPTI record what all GPUs do, in the work log, until [`stop`].
pub(crate) fn start() -> Result<()> {
    let cupti = get().map_err(|why| Error::Library(why.to_owned()))?;
    // The reading with the least time around it.
    let mut best: Option<(Duration, Instant, u64)> = None;
    for _ in 0..8 {
        let (before, mut now) = (Instant::now(), 0);
        // SAFETY: [symbol] The result is a variable of this type.
        check("cuptiGetTimestamp", unsafe { (cupti.timestamp)(&raw mut now) })?;
        let window = before.elapsed();
        if best.is_none_or(|(least, ..)| window < least) {
            best = Some((window, before + window / 2, now));
        }
    }
    if let Some((_, at, now)) = best {
        *lock(&CLOCKS) = Some((at, now));
    }
    // SAFETY: [symbol] Both functions are what CUPTI asks for, and live as long as the program.
    check("cuptiActivityRegisterCallbacks", unsafe { (cupti.register)(request, complete) })?;
    for kind in KINDS {
        // SAFETY: [symbol] The function has no requirements.
        let enabled = check("cuptiActivityEnable", unsafe { (cupti.enable)(kind) });
        enabled.inspect_err(|_| stop())?;
    }
    Ok(())
}

/// Hands over the records of what is done.
pub(crate) fn flush() -> Result<()> {
    let Some(Ok(cupti)) = LIBRARY.get() else { return Ok(()) };
    // SAFETY: [symbol] The function has no requirements. 1 also hands over buffers with records of
    // work that is under way.
    check("cuptiActivityFlushAll", unsafe { (cupti.flush)(1) })
}

/// Ends what [`start`] began.
pub(crate) fn stop() {
    let Some(Ok(cupti)) = LIBRARY.get() else { return };
    for kind in KINDS {
        // SAFETY: [symbol] The function has no requirements.
        unsafe { (cupti.disable)(kind) };
    }
}

/// Returns CUPTI's number of a stream, which is a live `CUstream`.
pub(crate) fn stream(raw: *mut c_void) -> Option<u64> {
    let (Some(Ok(cupti)), mut id) = (LIBRARY.get(), 0) else { return None };
    // SAFETY: [symbol] Streams of this crate are never destroyed, and others are alive while they
    // are used. A context is not asked for, and the result is a variable of this type.
    let status = unsafe { (cupti.stream)(std::ptr::null_mut(), raw, 0, &raw mut id) };
    (status == 0).then_some(u64::from(id))
}

/// Gives CUPTI a buffer for records.
unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    // SAFETY: [symbol] The size of the layout is not 0.
    let new = unsafe { alloc_zeroed(BUFFER) };
    let bytes = if new.is_null() { 0 } else { BUFFER.size() };
    if bytes > 0 {
        lock(&BUFFERS).push(new.addr());
    }
    // SAFETY: [symbol] By the header, CUPTI passes variables for the results, and takes null as an
    // answer; 0 records mean as many as fit.
    unsafe { (*buffer, *size, *most) = (new, bytes, 0) };
}

/// Reads the records of a buffer, and frees it.
unsafe extern "C" fn complete(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    {
        // One of another user of CUPTI is not read, and is left to that one.
        let mut own = lock(&BUFFERS);
        let Some(place) = own.iter().position(|address| *address == buffer.addr()) else { return };
        own.swap_remove(place);
    }
    if let Some(Ok(cupti)) = LIBRARY.get() {
        let mut record = std::ptr::null();
        // SAFETY: [symbol] By the header, the buffer is one of `request` with so many bytes of
        // records, and each record lies in it. `read` reads what every record of its kind has.
        unsafe {
            while (cupti.next)(buffer, valid, &raw mut record) == 0 {
                if let Some(work) = read(record) {
                    work_log::add(work);
                }
            }
        }
    }
    // SAFETY: [symbol] `request` allocated the buffer, with this layout, and CUPTI gives it back.
    unsafe { dealloc(buffer, BUFFER) };
}

/// Reads a record. `None` for one of another kind, or of work that has not ended.
///
/// # Safety
/// `record` is a record of CUPTI of one of [`VERSIONS`].
unsafe fn read(record: *const u8) -> Option<Done> {
    let bytes = |len| {
        // SAFETY: [symbol] The caller says that the record is one of CUPTI, and `len` is at most
        // what each record of its kind has.
        unsafe { std::slice::from_raw_parts(record, len) }
    };
    let word = |bytes: &[u8], at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let long = |bytes: &[u8], at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let kind = word(bytes(4), 0)?;
    let (work, [device, stream], bytes) = match kind {
        KERNEL => (WorkKind::Kernel, [40, 48], bytes(KERNEL_BYTES)),
        COPY | PEER_COPY => {
            let bytes = bytes(COPY_BYTES);
            let kind = match bytes.get(4)? {
                1 | 3 => WorkKind::Upload,
                2 | 4 => WorkKind::Download,
                _ => WorkKind::Copy,
            };
            (kind, [32, 40], bytes)
        }
        FILL => (WorkKind::Fill, [32, 40], bytes(COPY_BYTES)),
        _ => return None,
    };
    let (start, end) = (long(bytes, 16)?, long(bytes, 24)?);
    let (at, zero) = (*lock(&CLOCKS))?;
    let instant = |time: u64| match time.checked_sub(zero) {
        Some(after) => at.checked_add(Duration::from_nanos(after)),
        None => at.checked_sub(Duration::from_nanos(zero - time)),
    };
    let label = match work {
        WorkKind::Kernel => {
            let name = std::ptr::with_exposed_provenance::<c_char>(long(bytes, 104)? as usize);
            // SAFETY: [symbol] By the header, the name is null or NUL-terminated, and stays.
            let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy());
            name.map_or_else(|| "kernel".to_owned(), |name| name.into_owned())
        }
        WorkKind::Fill => "fill".to_owned(),
        _ => format!("copy of {} bytes", long(bytes, 8)?),
    };
    let (device, stream) = (word(bytes, device)? as usize, u64::from(word(bytes, stream)?));
    (start > 0 && end >= start)
        .then(|| Some(Done { device, stream, kind: work, label, start: instant(start)?, end: instant(end)? }))
        .flatten()
}
