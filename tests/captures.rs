//! Beside captures of other code: the modes of threads, and what is done when memory is short, with
//! a driver that tells who called what (`fixtures/cuda_driver.rs`).
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_uint};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cudarc::driver::sys::culib;
use testkit::process::again;
use thalweg::{Activity, AnyStream, Device, Error, ForeignStream, Timeline, beside_captures, for_each_device, overlap};
use thalweg_loader::{Loader, LoaderOptions, Source, UploadMode, read_ppm, upload_ppm};

/// If this variable is set, this process is the one that uses the driver. It names the file into
/// which the driver writes who called what.
const LOG: &str = "CUDA_DRIVER_LOG";

/// CUDA's modes of a thread, as `cuda.h` numbers them.
const GLOBAL: c_uint = 0;
const THREAD_LOCAL: c_uint = 1;
const RELAXED: c_uint = 2;

/// The function, the mode and the thread of a call.
type Call = (String, c_uint, String);

/// Compiles the driver and what comes with it, once for this process, and returns their folder.
fn driver() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("captures");
        std::fs::create_dir_all(&folder).unwrap();
        for (name, library) in
            [("cuda_driver", "libcuda.so"), ("nvml", "libnvidia-ml.so.1"), ("cupti", "libcupti.so.13")]
        {
            compile(&folder, name, library);
        }
        folder
    })
}

/// Compiles a fixture as a library.
fn compile(folder: &Path, name: &str, library: &str) {
    let made = folder.join(format!("made-{}.so", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.rs"));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(&rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "--crate-name", name, "-o"])
        .args([&made, &source])
        .status()
        .unwrap_or_else(|e| panic!("this test needs a Rust compiler, and {} does not start: {e}", rustc.display()));
    assert!(status.success(), "{name} compiles: {status}");
    std::fs::rename(made, folder.join(library)).unwrap(); // at once, for other processes that run this
}

/// Runs the test `name` again in a process that finds the driver, where it calls `scenario` on a
/// thread named `user`. Returns what was called, or `None` in that process.
fn calls(name: &str, scenario: fn()) -> Option<Vec<Call>> {
    if std::env::var_os(LOG).is_some() {
        std::thread::Builder::new().name("user".into()).spawn(scenario).unwrap().join().unwrap();
        return None;
    }
    let log = driver().join(format!("{name}-{}", std::process::id()));
    let output =
        again(&format!("{}::{name}", module_path!())).env(LOG, &log).env("LD_LIBRARY_PATH", driver()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(log).unwrap();
    let call = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().unwrap().to_owned();
        (word(), word().parse().unwrap(), word())
    };
    Some(text.lines().map(call).collect())
}

/// Calls a function of the driver that has no arguments but one.
fn raw<T>(name: &str, argument: T) -> c_uint {
    // SAFETY: The callers name functions that take one argument of this type.
    unsafe { (culib().get::<unsafe extern "C" fn(T) -> c_uint>(name.as_bytes()).unwrap())(argument) }
}

/// The mode of this thread.
fn mode() -> c_uint {
    raw("mode_of_this_thread", ())
}

/// Waits for what another thread does.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what} does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What uses each thread of these crates that calls the driver and needs no kernel.
fn every_thread() {
    let gpu = Device::cuda(0).unwrap();
    let stream = AnyStream::new(gpu).unwrap();

    // The thread in the background: what a host function drops, and conditions that it asks for.
    let x = stream.enter(|s| s.record(s.alloc::<u8>(100).unwrap()).unwrap());
    stream.enter(|s| s.launch_host(move || drop(x))).unwrap();
    drop(gpu.register(vec![1u8; 100]).unwrap());

    let timeline = Timeline::new(gpu).unwrap();
    for _ in 0..200 {
        stream.enter(|s| timeline.span(s, Activity::Compute, "nothing", || Ok(()))).unwrap();
    }
    assert_eq!(for_each_device(&[gpu], |rank| rank.device().free_memory().is_ok()), [true]);
    let freed = overlap::per_thread(gpu, 1, &[100], |s, &len| s.alloc::<u8>(len).map(drop)).unwrap();
    assert!(freed.iter().all(Result::is_ok));

    let folder = PathBuf::from(std::env::var_os(LOG).unwrap()).with_extension("files");
    std::fs::create_dir_all(&folder).unwrap();
    let paths: Vec<_> = (0..40).map(|i| folder.join(format!("{i}.ppm"))).collect();
    paths.iter().for_each(|path| std::fs::write(path, [&b"P6 20 10 255\n"[..], &[9; 600]].concat()).unwrap());
    for read in [read_ppm, upload_ppm] {
        let options = LoaderOptions::default()
            .with_batch_size(2)
            .with_decode_threads(1)
            .with_upload(UploadMode::Streams)
            .with_upload_streams(1);
        let mut images = 0;
        for batch in Loader::new(gpu, Source::files(&paths, read), options).unwrap() {
            images += batch.unwrap().synchronize().unwrap().len();
        }
        assert_eq!(images, paths.len());
    }
    std::fs::remove_dir_all(folder).unwrap();

    let log = || std::fs::read_to_string(std::env::var_os(LOG).unwrap()).unwrap();
    eventually("a free in the background", || log().contains("cuMemFreeAsync 1 thalweg jobs"));
    eventually("the end of registered memory", || log().contains("cuMemHostUnregister 1 thalweg jobs"));
    eventually("the times of spans", || log().contains(" thalweg timelin"));
}

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn threads_of_ours_disturb_no_capture() {
    let Some(calls) = calls("threads_of_ours_disturb_no_capture", every_thread) else { return };
    let mut modes: BTreeMap<&str, BTreeSet<c_uint>> = BTreeMap::new();
    // To change its mode, a thread needs a context, which it asks for before.
    let changes = ["cuThreadExchangeStreamCaptureMode", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"];
    for (_, mode, thread) in calls.iter().filter(|(function, ..)| !changes.contains(&&**function)) {
        modes.entry(thread).or_default().insert(*mode);
    }
    // The system keeps 15 bytes of a name.
    let ours = ["decode-0", "read-0", "thalweg jobs", "thalweg per-thr", "thalweg rank 0", "thalweg timelin", "upload"];
    let ours = ours.map(|thread| (thread, BTreeSet::from([THREAD_LOCAL])));
    // The thread of the program is as it was.
    let all: BTreeMap<_, _> = ours.into_iter().chain([("user", BTreeSet::from([GLOBAL]))]).collect();
    assert_eq!(modes, all);
}

/// What `beside_captures` does to the mode of its thread.
fn modes() {
    // Nobody has opened a device yet, so the change is made by the first call that can.
    let gpu = beside_captures(|| {
        assert!(beside_captures(|| Device::cpu().is_ok()));
        let gpu = Device::cuda(0).unwrap();
        assert_eq!(mode(), THREAD_LOCAL);
        gpu
    });
    assert_eq!(mode(), GLOBAL);

    // From now on it is made at once, because another library may make the next call.
    beside_captures(|| {
        assert_eq!(mode(), THREAD_LOCAL);
        beside_captures(|| assert_eq!(mode(), THREAD_LOCAL));
        assert_eq!(mode(), THREAD_LOCAL, "the outer call goes on");
        gpu.free_memory().unwrap();
    });
    assert_eq!(mode(), GLOBAL);
    gpu.free_memory().unwrap();
    assert_eq!(mode(), GLOBAL);

    let panicked = std::panic::catch_unwind(|| beside_captures(|| panic!("on purpose")));
    assert_eq!((panicked.is_err(), mode()), (true, GLOBAL));

    // A mode that the program chose comes back.
    let mut chosen = RELAXED;
    assert_eq!(raw("cuThreadExchangeStreamCaptureMode", &raw mut chosen), 0);
    beside_captures(|| assert_eq!(mode(), THREAD_LOCAL));
    assert_eq!((chosen, mode()), (GLOBAL, RELAXED));

    // A thread that has no context.
    let other = std::thread::spawn(|| (beside_captures(mode), mode()));
    assert_eq!(other.join().unwrap(), (THREAD_LOCAL, GLOBAL));

    // A host function may not call the driver.
    let stream = AnyStream::new(gpu).unwrap();
    stream.enter(|s| s.launch_host(|| beside_captures(|| assert_eq!(mode(), RELAXED)))).unwrap();
    gpu.check().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn a_closure_runs_beside_captures_and_the_mode_comes_back() {
    let Some(calls) = calls("a_closure_runs_beside_captures_and_the_mode_comes_back", modes) else { return };
    let early = calls.iter().take_while(|(function, ..)| function != "cuDevicePrimaryCtxRetain");
    assert!(early.into_iter().all(|(function, ..)| !function.contains("Exchange")), "a call that must fail: {calls:?}");
}

/// Frees that have not run when memory is short.
fn short_memory() {
    const MOST: usize = 40 << 20; // of 64 MiB, so there is room for one such buffer
    let gpu = Device::cuda(0).unwrap();
    let [a, b] = [(); 2].map(|()| AnyStream::new(gpu).unwrap());
    let take = |stream: &AnyStream| stream.enter(|s| s.record(s.alloc::<u8>(MOST)?).map_err(Error::from));
    let drop_on = |stream: &AnyStream| stream.enter(|s| s.alloc::<u8>(MOST).map(drop));
    let refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::OutOfMemory { .. })), "{result:?}");

    // In the order of a stream, twice, and of the stream that asks.
    for stream in [&a, &b, &b, &a] {
        drop_on(stream).unwrap();
    }
    // After events.
    drop(take(&b).unwrap());
    let kept = take(&a).unwrap();
    refused(drop_on(&b));
    drop(kept);

    // In the order of a stream of other code, which is gone when memory is short.
    let mut theirs = 0usize;
    // SAFETY: The function takes a pointer for its result and two numbers.
    let create = unsafe {
        culib().get::<unsafe extern "C" fn(*mut usize, c_uint, c_int) -> c_uint>(b"cuStreamCreateWithPriority").unwrap()
    };
    // SAFETY: The pointer is valid.
    assert_eq!(unsafe { create(&mut theirs, 1, 0) }, 0);
    // SAFETY: The stream exists until `foreign` is gone, and nobody captures it.
    let foreign = unsafe { ForeignStream::from_raw(gpu, theirs as *mut _) }.unwrap();
    foreign.enter(|s| s.alloc::<u8>(MOST).map(drop)).unwrap();
    drop(foreign);
    assert_eq!(raw("cuStreamDestroy_v2", theirs), 0);
    drop_on(&a).unwrap();

    // What other code captures in one of our streams is not waited for: no event is recorded there.
    let raw_a = a.enter(|s| s.raw().unwrap());
    // SAFETY: The function takes a stream and a number.
    let begin = unsafe { culib().get::<unsafe extern "C" fn(usize, c_uint) -> c_uint>(b"cuStreamBeginCapture_v2") };
    // SAFETY: The stream exists.
    assert_eq!(unsafe { (begin.unwrap())(raw_a as usize, GLOBAL) }, 0);
    refused(drop_on(&b));
    gpu.check().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn short_memory_waits_for_frees_and_never_for_the_context() {
    let Some(calls) = calls("short_memory_waits_for_frees_and_never_for_the_context", short_memory) else { return };
    let whole = ["cuCtxSynchronize", "cuCtxRecordEvent", "cuCtxWaitEvent"];
    assert!(calls.iter().all(|(function, ..)| !whole.contains(&&**function)), "{calls:?}");
    assert!(calls.iter().any(|(function, ..)| function == "cuEventSynchronize"), "{calls:?}");
}

/// A thread that calls the driver runs in `beside_captures`. Those that do not are listed, with the
/// reason.
#[test]
fn every_thread_is_beside_captures_or_has_a_reason() {
    // File, places that start threads, and calls of `beside_captures`.
    let listed = [
        ("host/driver/cpu/mod.rs", 2, 0),     // they run the work of a CPU device
        ("host/overlap/per_thread.rs", 2, 1), // a scope, and its threads
        ("host/runtime/background.rs", 1, 1),
        ("host/scope.rs", 2, 1), // a scope, and its threads
        ("host/timeline/recorder.rs", 1, 1),
        ("loader/src/loader.rs", 1, 1),
        ("loader/src/staging.rs", 2, 1),      // a pool, and its threads
        ("jpeg/src/plan.rs", 1, 0),           // they read bytes of files that are in memory
        ("collective/src/link/tcp.rs", 2, 0), // they use sockets
        ("collective/src/peer/watch.rs", 1, 1),
        ("collective/src/rank_handle.rs", 1, 1),
        ("collective/src/nccl/mod.rs", 2, 2),
        ("collective/src/store/server.rs", 2, 0), // they use sockets
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = BTreeMap::new();
    let crates = ["host", "loader/src", "jpeg/src", "vision/src", "train/src", "cublaslt/src", "collective/src"];
    let mut folders: Vec<_> = crates.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
                let count = |names: &[&str]| -> usize {
                    code.iter().map(|line| names.iter().map(|name| line.matches(name).count()).sum::<usize>()).sum()
                };
                let threads =
                    count(&["thread::Builder::new", "thread::spawn(", "thread::scope(", "ThreadPoolBuilder::new"]);
                if threads > 0 {
                    let file = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                    found.insert(file, (threads, count(&["beside_captures("])));
                }
            }
        }
    }
    let listed: BTreeMap<_, _> = listed.map(|(file, threads, beside)| (file.to_owned(), (threads, beside))).into();
    assert_eq!(found, listed);
}

/// NVML is asked for the device by its UUID, and its answer comes back.
fn ask_nvml() {
    let gpu = Device::cuda(0).unwrap();
    let uuid = gpu.uuid().unwrap().map(|byte| format!("{byte:02x}")).concat();
    let [a, b, c, d, e] = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]];
    // SAFETY: No other thread of this process reads the environment now.
    unsafe { std::env::set_var("THALWEG_TEST_UUID", format!("GPU-{a}-{b}-{c}-{d}-{e}")) };
    let busy = gpu.utilization().unwrap();
    assert_eq!((busy.kernels, busy.memory), (40, 15));
    // SAFETY: as above.
    unsafe { std::env::set_var("THALWEG_TEST_UUID", "GPU-another") };
    assert_eq!(gpu.utilization(), None);
}

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn nvml_says_how_busy_a_gpu_is() {
    calls("nvml_says_how_busy_a_gpu_is", ask_nvml);
}

/// CUPTI's records become spans: on the track of their stream if that has a span, with the times of
/// the device's clock on the timeline's axis.
fn take_records() {
    let gpu = Device::cuda(0).unwrap();
    let stream = AnyStream::new(gpu).unwrap();
    let begin = Instant::now();
    let timeline = Timeline::with_all_work(gpu).unwrap();
    assert!(matches!(Timeline::with_all_work(gpu), Err(Error::Parameter { .. })), "one at a time");
    stream.enter(|s| {
        timeline.name(s, "wrapped");
        timeline.span(s, Activity::Compute, "span", || Ok(())).unwrap();
    });
    std::thread::sleep(Duration::from_millis(20));
    let trace = timeline.finish().unwrap();
    let took = begin.elapsed();
    let of = |label: &str| trace.spans().iter().find(|span| &*span.label == label);
    let found = |label: &str| of(label).unwrap_or_else(|| panic!("no {label}: {:?}", trace.spans()));
    for (label, activity, track) in [
        ("saxpy", Activity::Compute, "wrapped"),
        ("of_a_stream_without_a_span", Activity::Compute, "stream 9 without a span"),
        ("fill", Activity::Compute, "wrapped"),
    ] {
        let span = found(label);
        assert_eq!((span.activity, &*span.track, span.line), (activity, track, None), "{label}");
        let length = span.duration();
        assert!((900..=1100).contains(&length.as_micros()), "{label} takes {length:?}");
        assert!(span.start > found("span").end && span.end < took, "{span:?}, {took:?}");
    }
    let copies: Vec<_> = trace.spans().iter().filter(|span| &*span.label == "copy of 4096 bytes").collect();
    let mut kinds: Vec<_> = copies.iter().map(|span| span.activity.name()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["copy", "download", "upload"]);
    assert_eq!(trace.spans().len(), 7, "no work of another device, and none that is under way: {:?}", trace.spans());
    drop(timeline);
    drop(Timeline::with_all_work(gpu).unwrap());
}

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn cupti_reports_what_nobody_wrapped() {
    calls("cupti_reports_what_nobody_wrapped", take_records);
}

fn refuse_records() {
    let gpu = Device::cuda(0).unwrap();
    // SAFETY: No other thread of this process reads the environment now.
    unsafe { std::env::set_var("THALWEG_TEST_CUPTI_VERSION", "140000") };
    for _ in 0..2 {
        let Err(Error::Library(why)) = Timeline::with_all_work(gpu) else { panic!("it is refused") };
        assert!(why.contains("its version is 140000") && why.contains("THALWEG_CUPTI"), "{why}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn a_cupti_whose_records_are_not_known_is_refused() {
    calls("a_cupti_whose_records_are_not_known_is_refused", refuse_records);
}
