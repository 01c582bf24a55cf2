//! Measures what the typed layer costs: compares each operation with the same driver calls made by
//! hand, in one run.
//!
//! ```text
//! cargo bench --bench wrappers
//! ```
//!
//! Needs a CUDA device. Batches of both sides alternate, so that clocks and caches are the same for
//! both. The table shows the host time per operation, as the median over batches, and the number of
//! heap allocations per operation on the typed side. `benches/record/` holds results with machine
//! and driver.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use thalweg::{Device, DeviceBuffer, DeviceSlice, Error, Event, ForeignStream, On, beside_captures, stream_tags};
use thalweg_vision::kernels::{self, BatchTable, RelevanceMut};

/// Counts heap allocations, to show whether the steady path makes any.
struct Counting;
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: Each method passes its arguments to `System` unchanged, and `System` is a valid
// allocator. The default methods call these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: The caller passes a layout of nonzero size, as the contract of
        // `GlobalAlloc::alloc` says.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: `p` came from `alloc` above with this layout, as the contract of
        // `GlobalAlloc::dealloc` says, and `alloc` took it from `System`.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

stream_tags!(A, B);

/// The number of batches of each side.
const BATCHES: usize = 201;
/// The number of operations in a batch, few enough that the driver's queue never fills.
const OPERATIONS: usize = 200;

struct Row {
    name: &'static str,
    raw: Duration,
    typed: Duration,
    allocations: f64,
}

/// Times batches of `OPERATIONS` calls, of `raw` and `typed` in turn. `settle` runs between batches
/// and is not timed.
fn compare(name: &'static str, settle: impl Fn(), mut raw: impl FnMut(), mut typed: impl FnMut()) -> Row {
    let (mut raw_times, mut typed_times, mut allocations) = (vec![], vec![], 0);
    for batch in 0..BATCHES + 10 {
        settle();
        let start = Instant::now();
        (0..OPERATIONS).for_each(|_| raw());
        let raw_time = start.elapsed();
        settle();
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let start = Instant::now();
        (0..OPERATIONS).for_each(|_| typed());
        let typed_time = start.elapsed();
        // The first batches fill pools and caches.
        if batch >= 10 {
            allocations += ALLOCATIONS.load(Ordering::Relaxed) - before;
            raw_times.push(raw_time / OPERATIONS as u32);
            typed_times.push(typed_time / OPERATIONS as u32);
        }
    }
    settle();
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    let operations = (BATCHES * OPERATIONS) as f64;
    Row { name, raw: median(raw_times), typed: median(typed_times), allocations: allocations as f64 / operations }
}

fn main() -> Result<(), Error> {
    // A test runner that asks for a list of tests, or runs them, gets no measurements.
    if std::env::args().any(|a| a == "--list" || a == "--test") {
        return Ok(());
    }
    let gpu = match Device::cuda(0) {
        Ok(gpu) => gpu,
        Err(why) => {
            println!("not measured: {why}");
            return Ok(());
        }
    };
    let (a, b) = (gpu.stream::<A>()?, gpu.stream::<B>()?);
    let (raw_a, raw_b): (sys::CUstream, sys::CUstream) = match (a.raw(), b.raw()) {
        (Some(a), Some(b)) => (a.cast(), b.cast()),
        _ => unreachable!("a CUDA device has raw streams"),
    };
    let check = |code: sys::CUresult| assert_eq!(code, sys::cudaError_enum::CUDA_SUCCESS);
    let settle = || {
        a.synchronize().expect("the device works");
        b.synchronize().expect("the device works");
    };

    let mut event: sys::CUevent = null_mut();
    let mut module: sys::CUmodule = null_mut();
    let mut function: sys::CUfunction = null_mut();
    let mut pool: sys::CUmemoryPool = null_mut();
    let ptx = std::ffi::CString::new(include_str!("../kernels-gpu/ptx/vision.ptx")).expect("PTX is text");
    // SAFETY: `Device::cuda` made the context of the device current on this thread. Each pointer is
    // to a local variable of the type that the call writes or reads; `ptx` and `entry` end with a
    // zero byte. `CUmemPoolProps` is plain data, for which all zeros are valid.
    unsafe {
        check(sys::cuEventCreate(&mut event, sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32));
        check(sys::cuModuleLoadData(&mut module, ptx.as_ptr().cast()));
        let entry = c"relevance__u32_u32_u32_f32_f32_f32_ru32_rf32_rf32_xf32_xf32";
        check(sys::cuModuleGetFunction(&mut function, module, entry.as_ptr()));
        let mut props: sys::CUmemPoolProps = std::mem::zeroed();
        props.allocType = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
        check(sys::cuMemPoolCreate(&mut pool, &props));
        let mut keep = u64::MAX;
        let threshold = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        check(sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut keep).cast()));
    }
    let mut rows = Vec::new();

    // Validate first: a value goes to the other stream and back unchanged.
    let mut x = a.alloc::<u32>(1024)?;
    a.fill(&mut x, 7)?;
    let x = a.hand_off(x, &b)?;
    assert_eq!(b.read_blocking(&x)?, [7; 1024]);
    let x = b.hand_off(x, &a)?;

    let there_and_back = || {
        // SAFETY: The event was created above in the current context, which is also that of both
        // streams, and all three still exist.
        unsafe {
            check(sys::cuEventRecord(event, raw_a));
            check(sys::cuStreamWaitEvent(raw_b, event, 0));
            check(sys::cuEventRecord(event, raw_b));
            check(sys::cuStreamWaitEvent(raw_a, event, 0));
        }
    };

    // `hand_off` records and waits. An operation goes there and back, so it does both twice.
    let mut x: Option<On<A, DeviceBuffer<u32>>> = Some(x);
    rows.push(compare("hand (record + wait) x 2", settle, there_and_back, || {
        let on_b = a.hand_off(x.take().expect("put back"), &b).expect("the device works");
        x = Some(b.hand_off(on_b, &a).expect("the device works"));
    }));

    // The same through an `Event`, which owns a driver's event until the wait.
    rows.push(compare("record, wait by Event x 2", settle, there_and_back, || {
        let there: Event<_> = a.record(x.take().expect("put back")).expect("the device works");
        let on_b = b.wait(there).expect("the device works");
        let back = b.record(on_b).expect("the device works");
        x = Some(a.wait(back).expect("the device works"));
    }));
    drop(x);

    // Launch: the kernel has eleven parameters and does almost no work.
    let table = a.alloc_zeroed::<u32>(8)?;
    let features = a.alloc_zeroed::<f32>(13)?;
    let entropy = a.alloc_zeroed::<f32>(1)?;
    let (mut salience, mut relevance) = (a.alloc_zeroed::<f32>(1)?, a.alloc_zeroed::<f32>(1)?);
    let launch = |salience: &mut DeviceSlice<A, f32>, relevance: &mut DeviceSlice<A, f32>| {
        let batch = BatchTable { images: 1, patches: 1, largest: 1, table: &table };
        kernels::relevance(&a, &batch, 0.0, [0.5, 0.5], &features, &entropy, RelevanceMut { salience, relevance })
    };
    launch(&mut salience, &mut relevance)?;
    assert_eq!(a.read_blocking(&relevance)?, [1.0]);
    let (f, e, t) = (features.device_ptr(), entropy.device_ptr(), table.device_ptr());
    let (s, r) = (salience.device_ptr(), relevance.device_ptr());
    let raw_launch = || {
        let (n, bias, mix) = (1u32, 0.0f32, 0.5f32);
        let p = |v: *const c_void| v.cast_mut();
        let mut parameters = [
            p((&raw const n).cast()),
            p((&raw const n).cast()),
            p((&raw const n).cast()),
            p((&raw const bias).cast()),
            p((&raw const mix).cast()),
            p((&raw const mix).cast()),
            p((&raw const t).cast()),
            p((&raw const f).cast()),
            p((&raw const e).cast()),
            p((&raw const s).cast()),
            p((&raw const r).cast()),
        ];
        // SAFETY: `parameters` has the types and the order in the name of the entry, and points to
        // locals that live until the call has copied them. The buffers have the lengths that the
        // typed launch above checked, and live until `main` ends. Every comparison waits for its
        // last launch.
        check(unsafe {
            sys::cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 384, raw_a, parameters.as_mut_ptr(), null_mut())
        });
    };
    rows.push(compare("launch, 11 parameters", settle, raw_launch, || {
        launch(&mut salience, &mut relevance).expect("the device works");
    }));

    // Replay: the graph has as many launches as a pipeline.
    const LAUNCHES: usize = 8;
    let mut raw_graph: sys::CUgraphExec = null_mut();
    // SAFETY: `a` is a live stream that nothing else uses during the capture, and each call writes
    // one handle to a local variable.
    unsafe {
        let mut captured: sys::CUgraph = null_mut();
        check(sys::cuStreamBeginCapture_v2(raw_a, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED));
        (0..LAUNCHES).for_each(|_| raw_launch());
        check(sys::cuStreamEndCapture(raw_a, &mut captured));
        check(sys::cuGraphInstantiateWithFlags(&mut raw_graph, captured, 0));
    }
    let bundle = (table, features, entropy, salience, relevance);
    let (mut graph, bundle) = a.capture(bundle, |s, (table, features, entropy, salience, relevance)| {
        (0..LAUNCHES).try_for_each(|_| {
            let batch = BatchTable { images: 1, patches: 1, largest: 1, table };
            kernels::relevance(s, &batch, 0.0, [0.5, 0.5], features, entropy, RelevanceMut { salience, relevance })
        })
    })?;
    assert_eq!(graph.len(), LAUNCHES);
    let mut bundle = Some(bundle);
    rows.push(compare(
        "replay, a graph of 8 launches",
        settle,
        // SAFETY: The graph was created above for this stream. `bundle` keeps the buffers that it
        // uses, and `settle` waits for the last replay before they are dropped.
        || check(unsafe { sys::cuGraphLaunch(raw_graph, raw_a) }),
        || bundle = Some(a.replay(&mut graph, bundle.take().expect("put back")).expect("the device works")),
    ));

    // Copy: 4 KiB come from page-locked memory.
    let host = a.bind(gpu.pinned_from(&[1u8; 4096])?)?;
    let mut device = a.alloc::<u8>(4096)?;
    a.copy_to_device(&host, &mut device)?;
    assert_eq!(a.read_blocking(&device)?, [1; 4096]);
    let (from, to) = (host.host_ptr() as usize as *const c_void, device.device_ptr());
    rows.push(compare(
        "copy to device, 4 KiB",
        settle,
        // SAFETY: `host` and `device` hold 4 KiB each, and `settle` waits for the last copy before
        // they are dropped.
        || check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, 4096, raw_a) }),
        || a.copy_to_device(&host, &mut device).expect("the device works"),
    ));

    // Memory of other code, lent to its stream for one call, as the Python package does.
    let mut theirs: sys::CUstream = null_mut();
    let mut memory = 0;
    // SAFETY: Each call writes one handle or address to a local variable.
    unsafe {
        check(sys::cuStreamCreate(&mut theirs, sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32));
        check(sys::cuMemAlloc_v2(&mut memory, 4096));
    }
    let borrow = || {
        beside_captures(|| {
            // SAFETY: The stream exists until the process ends, and nobody captures it.
            let theirs = unsafe { ForeignStream::from_raw(gpu, theirs.cast()) }?;
            assert!(!theirs.is_capturing()?);
            // SAFETY: The memory has 4096 bytes, exists until the process ends, and only this
            // stream uses it.
            theirs.enter(|s| s.fill(unsafe { s.borrow::<u8>(memory, 4096) }?, 7))
        })
    };
    borrow()?;
    let wait = || {
        // SAFETY: The stream exists until the process ends.
        check(unsafe { sys::cuStreamSynchronize(theirs) });
    };
    rows.push(compare(
        "fill, foreign memory and stream",
        wait,
        // SAFETY: The memory has 4096 bytes, and it and the stream exist until the process ends.
        || check(unsafe { sys::cuMemsetD8Async(memory, 7, 4096, theirs) }),
        || borrow().expect("the device works"),
    ));
    let made = a.upload_blocking(&[3u8; 4096])?;
    let mut made = Some(a.record(made)?);
    let mut copy = || {
        beside_captures(|| {
            // SAFETY: The stream exists until the process ends, and nobody captures it.
            let theirs = unsafe { ForeignStream::from_raw(gpu, theirs.cast()) }?;
            assert!(!theirs.is_capturing()?);
            theirs.enter(|s| {
                // SAFETY: The memory has 4096 bytes, exists until the process ends, and only this
                // stream uses it.
                let to = unsafe { s.borrow::<u8>(memory, 4096) }?;
                let from = s.wait(made.take().expect("put back"))?;
                s.copy(&from, to)?;
                made = Some(s.record(from)?);
                Ok::<_, Error>(())
            })
        })
    };
    copy()?;
    let from = device.device_ptr();
    rows.push(compare(
        "copy made ahead to foreign memory",
        wait,
        // SAFETY: Both have 4096 bytes, and they, the event and the stream exist until `main` ends.
        || unsafe {
            check(sys::cuStreamWaitEvent(theirs, event, 0));
            check(sys::cuMemcpyDtoDAsync_v2(memory, from, 4096, theirs));
            check(sys::cuEventRecord(event, theirs));
        },
        || copy().expect("the device works"),
    ));

    // Allocation and free, both in stream order.
    rows.push(compare(
        "alloc + free, 1 MiB",
        settle,
        || {
            let mut p = 0;
            // SAFETY: The pool was created above, and the stream belongs to the same device. The
            // memory is freed once, after its allocation on the same stream.
            unsafe {
                check(sys::cuMemAllocFromPoolAsync(&mut p, 1 << 20, pool, raw_a));
                check(sys::cuMemFreeAsync(p, raw_a));
            }
        },
        || drop(a.alloc::<u8>(1 << 20).expect("the device works")),
    ));

    let driver = gpu.driver_version().unwrap_or_default();
    println!("{}, driver for CUDA {driver}; median of {BATCHES} batches of {OPERATIONS}", gpu.name());
    println!("{:<34} {:>10} {:>10} {:>7} {:>12}", "operation", "raw", "thalweg", "ratio", "allocations");
    for Row { name, raw, typed, allocations } in &rows {
        let ratio = typed.as_secs_f64() / raw.as_secs_f64();
        println!(
            "{name:<34} {:>7.0} ns {:>7.0} ns {ratio:>6.2}x {allocations:>12.3}",
            raw.as_secs_f64() * 1e9,
            typed.as_secs_f64() * 1e9,
        );
    }
    Ok(())
}
