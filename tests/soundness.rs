//! Safe programs that once broke a promise of the crate. Each test runs one of them, without
//! `unsafe`, and checks that the promise now holds. The comment of a test says what went wrong
//! before.
//!
//! If the fault was a deadlock, the test runs under a [watchdog](guarded). Each test creates its
//! own devices, so a test that makes a device fail or fills its memory does not affect the others.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::future::IntoFuture;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use thalweg::simt::host::LaunchError;
use thalweg::{
    Device, DeviceBuffer, Error, Event, Leaf, LeafInfo, LiveBrand, PinnedBuffer, PinnedPool, Resource, Stream, kernel,
    stream_tags,
};
use thalweg_loader::{Loader, Options, Sample, Source, Upload};

// --- helpers -------------------------------------------------------------------------------------

/// Runs a test that would hang if its fault came back. After 20 s, the process aborts with a
/// message.
fn guarded(test: impl FnOnce()) {
    let name = thread::current().name().unwrap_or_default().to_owned();
    let (running, ended) = mpsc::channel::<()>();
    thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(20)) == Err(mpsc::RecvTimeoutError::Timeout) {
            // `eprintln!` would write to the test harness, which loses the message when the process
            // aborts.
            let _ = writeln!(std::io::stderr(), "{name} hangs");
            std::process::abort();
        }
    });
    test();
    drop(running);
}

/// Stops a stream until the returned gate is dropped.
fn gate<S: LiveBrand>(stream: Stream<S>) -> mpsc::Sender<()> {
    let (open, opened) = mpsc::channel();
    stream.launch_host(move || _ = opened.recv()).unwrap();
    open
}

thalweg::ptx! {}

kernel! {
    unsafe fn nothing(cx: impl Simt)
    grid(1) block(1)
    {}
}

kernel! {
    unsafe fn fails(cx: impl Simt)
    grid(1) block(1)
    {
        panic!("on purpose");
    }
}

// --- memory in flight ----------------------------------------------------------------------------

/// `split(usize::MAX)` panicked while it owned page-locked memory, and gave the memory back to its
/// pool while a copy still wrote there.
#[test]
fn a_split_that_panics_keeps_pinned_memory_on_its_stream() {
    stream_tags!(Copies);
    let device = Device::new_cpu().unwrap();
    let stream = device.stream::<Copies>().unwrap();
    let mut host = stream.bind(device.pinned_from(&[1u32; 1024]).unwrap()).unwrap();
    let mut copied = stream.alloc::<u32>(1024).unwrap();
    stream.fill(&mut copied, 7).unwrap();
    let gate = gate(stream);
    stream.copy_to_host(&copied, &mut host).unwrap();
    catch_unwind(AssertUnwindSafe(|| host.split(usize::MAX))).unwrap_err();
    let mine = device.pinned_from(&[5u32; 1024]).unwrap();
    drop(gate);
    stream.synchronize().unwrap();
    assert_eq!(mine[..], [5; 1024]);
}

/// `split(usize::MAX)` panicked while it owned device memory, and freed the memory before a fill
/// wrote there.
#[test]
fn a_split_that_panics_keeps_device_memory_on_its_stream() {
    stream_tags!(Fills);
    const BYTES: u64 = 1 << 16;
    let device = Device::new_cpu().unwrap();
    device.limit_memory(Some(BYTES));
    let stream = device.stream::<Fills>().unwrap();
    let mut x = stream.alloc::<u8>(BYTES as usize).unwrap();
    let gate = gate(stream);
    stream.fill(&mut x, 1).unwrap();
    catch_unwind(AssertUnwindSafe(|| x.split(usize::MAX))).unwrap_err();
    assert_eq!(device.free_memory().unwrap(), 0);
    drop(gate);
    stream.synchronize().unwrap();
    assert_eq!(device.free_memory().unwrap(), BYTES);
}

/// When two threads ended two readings of one stream, the older record could replace the newer one,
/// and the next writer did not wait for the reads between the two records.
#[test]
fn the_newest_reading_of_a_stream_counts() {
    stream_tags!(Produces, Reads, Writes);
    guarded(|| {
        let device = Device::new_cpu().unwrap();
        let (p, r, w) = (
            device.stream::<Produces>().unwrap(),
            device.stream::<Reads>().unwrap(),
            device.stream::<Writes>().unwrap(),
        );
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            let mut x = p.alloc::<u32>(64).unwrap();
            p.fill(&mut x, 1).unwrap();
            let shared = p.share(x).unwrap();
            let (older, newer) = (r.reading(&shared).unwrap(), r.reading(&shared).unwrap());
            let mut seen = r.alloc::<u32>(64).unwrap();
            p.synchronize().unwrap();
            r.synchronize().unwrap();
            let both = Barrier::new(2);
            let gate = thread::scope(|threads| {
                threads.spawn(|| {
                    both.wait();
                    drop(older);
                });
                both.wait();
                let gate = gate(r);
                r.copy(&newer, &mut seen).unwrap();
                drop(newer);
                gate
            });
            let mut x = w.unshare(shared).unwrap(); // waits for the copy, which waits for the gate
            w.fill(&mut x, 2).unwrap();
            for _ in 0..20 {
                assert!(!w.is_done().unwrap(), "a writer overtook a reader");
                thread::yield_now();
            }
            drop(gate);
            assert_eq!(r.read_blocking(&seen).unwrap(), [1; 64]);
        }
    });
}

/// A reading that was dropped in a host function, where no event can be recorded, was forgotten,
/// and the next writer did not wait for it.
#[test]
fn a_reading_dropped_in_a_host_function_is_lost() {
    stream_tags!(Shares, Reads);
    let device = Device::new_cpu().unwrap();
    let (shares, reads) = (device.stream::<Shares>().unwrap(), device.stream::<Reads>().unwrap());
    let pool = PinnedPool::new(device, 1 << 20);
    let shared = shares.share(shares.bind(pool.take::<u8>(4096).unwrap()).unwrap()).unwrap();
    let reading = reads.reading(&shared).unwrap();
    shares.launch_host(move || drop(reading)).unwrap();
    shares.synchronize().unwrap();
    let refused = shares.unshare(shared).unwrap_err();
    assert!(matches!(refused.error, Error::ReaderLost), "{refused:?}");
    drop(refused);
    reads.synchronize().unwrap();
    shares.synchronize().unwrap();
    drop(pool.take::<u8>(1)); // makes the pool look for memory that came back
    assert_eq!(pool.in_use(), 4096, "the pool cannot know when the reader is done, so it leaks the memory");
}

// --- names ---------------------------------------------------------------------------------------

/// Fields with the names of the derive macro's own variables replaced them, so a plain function
/// received memory in flight.
#[test]
fn fields_may_have_any_name() {
    static STOLEN: AtomicUsize = AtomicUsize::new(0);

    #[derive(Resource)]
    struct Plain {
        buffer: PinnedBuffer<u32>,
        #[resource(plain)]
        __sink: fn(Leaf),
        #[resource(plain)]
        __visit: fn(LeafInfo),
        #[resource(plain)]
        __token: u32,
        #[resource(plain)]
        __stream: u32,
    }
    #[derive(Resource)]
    struct Buffers {
        __sink: PinnedBuffer<u32>,
        __visit: PinnedBuffer<u32>,
        __token: PinnedBuffer<u32>,
        __stream: PinnedBuffer<u32>,
    }

    stream_tags!(From, To);
    let device = Device::new_cpu().unwrap();
    let (from, to) = (device.stream::<From>().unwrap(), device.stream::<To>().unwrap());
    let pinned = |v| device.pinned_from(&[v]).unwrap();

    let plain = Plain {
        buffer: pinned(1),
        __sink: |_| _ = STOLEN.fetch_add(1, Ordering::Relaxed),
        __visit: |_| _ = STOLEN.fetch_add(1, Ordering::Relaxed),
        __token: 2,
        __stream: 3,
    };
    let gate = gate(from);
    let plain = to.wait(from.record(from.bind(plain).unwrap()).unwrap()).unwrap();
    drop(gate);
    let plain = to.record(plain).unwrap().synchronize().unwrap();
    assert_eq!((plain.buffer[0], plain.__token, plain.__stream), (1, 2, 3));
    drop(from.record(from.bind(plain).unwrap()).unwrap());

    let buffers = Buffers { __sink: pinned(1), __visit: pinned(2), __token: pinned(3), __stream: pinned(4) };
    let shared = from.share(from.bind(buffers).unwrap()).unwrap();
    drop(to.reading(&shared).unwrap());
    let buffers = to.record(to.unshare(shared).unwrap()).unwrap().synchronize().unwrap();
    assert_eq!([buffers.__sink[0], buffers.__visit[0], buffers.__token[0], buffers.__stream[0]], [1, 2, 3, 4]);

    assert_eq!(STOLEN.load(Ordering::Relaxed), 0);
}

/// Kernels that use names which the launcher also uses inside.
mod names {
    use thalweg::kernel;

    #[expect(dead_code, reason = "only its size counts")]
    struct S([f32; 4]);
    #[expect(dead_code, reason = "only its size counts")]
    struct L([f32; 2]);
    const KERNEL: u32 = 3;

    fn body(i: u32) -> u32 {
        10 * i
    }
    fn block(i: u32) -> u32 {
        i + 1
    }

    kernel! {
        /// Writes one record of each kind for each of `n` threads.
        pub(super) unsafe fn records(cx: impl Simt, n: u32, x: Out<u8>)
        require { x.len() == n * (size_of::<S>() + size_of::<L>()) as u128 }
        grid(n.div_ceil(32)) block(32)
        {
            let i = cx.global_x();
            if i < n {
                let size = size_of::<S>() + size_of::<L>();
                for k in 0..size {
                    x.set(cx, i as usize * size + k, 0xEE);
                }
            }
        }
    }

    kernel! {
        pub(super) unsafe fn helpers(cx: impl Simt, n: u32, x: Out<u32>)
        require { x.len() == n, n >= KERNEL }
        grid(n.div_ceil(32)) block(32)
        {
            let i = cx.global_x();
            if i < n {
                x.set(cx, i as usize, block(body(i)) + KERNEL);
            }
        }
    }

    kernel! {
        pub(super) unsafe fn arguments(cx: impl Simt, on: u32, slots: u32, shape: u32, unmet: u32, block: u32, body: Out<u32>)
        require { body.len() == 1, on + slots + shape + unmet + block > 0 }
        grid(1) block(block)
        {
            if cx.global_x() == 0 {
                body.set(cx, 0, on + 10 * slots + 100 * shape + 1000 * unmet + 10000 * block);
            }
        }
    }
}

/// The launcher's own names hid those of the user: `size_of::<S>()` was the size of a stream's tag,
/// and `body` called itself.
#[test]
fn a_declaration_means_the_names_around_it() {
    stream_tags!(Names);
    let stream = Device::new_cpu().unwrap().stream::<Names>().unwrap();

    let (mut none, mut two) = (stream.alloc::<u8>(0).unwrap(), stream.alloc::<u8>(48).unwrap());
    names::records(&stream, 2, &mut two).unwrap();
    let refused = names::records(&stream, 1000, &mut none);
    assert!(matches!(refused, Err(Error::Launch(LaunchError::Requirement { .. }))), "{refused:?}");
    assert_eq!(stream.read_blocking(&two).unwrap(), [0xEE; 48]);

    let mut x = stream.alloc::<u32>(4).unwrap();
    names::helpers(&stream, 4, &mut x).unwrap();
    assert_eq!(stream.read_blocking(&x).unwrap(), [4, 14, 24, 34]);

    let mut sum = stream.alloc::<u32>(1).unwrap();
    names::arguments(&stream, 1, 2, 3, 4, 5, &mut sum).unwrap();
    assert_eq!(stream.read_blocking(&sum).unwrap(), [54321]);
}

kernel! {
    unsafe fn blocks(cx: impl Simt, a: u64, b: u64, c: u64)
    grid(1) block(a, b, c)
    {}
}

/// The number of threads in a block wrapped around, so that sizes above 2^128 passed as small ones.
#[test]
fn the_size_of_a_block_does_not_overflow() {
    stream_tags!(Launches);
    let stream = Device::new_cpu().unwrap().stream::<Launches>().unwrap();
    for [a, b, c] in [[(1 << 61) - (1 << 31) + 1, (1 << 61) + (1 << 31) + 1, 64], [1 << 62, 1 << 62, 64], [u64::MAX; 3]]
    {
        let refused = blocks(&stream, a, b, c);
        assert!(matches!(refused, Err(Error::Launch(LaunchError::Shape { .. }))), "{a} {b} {c}: {refused:?}");
    }
    blocks(&stream, 16, 1, 64).unwrap();
    stream.synchronize().unwrap();
}

// --- failed devices ------------------------------------------------------------------------------

/// A failed device drops a host function instead of calling it. The drop did not count as part of
/// the host function, so a call to the device in the destructor of a captured value waited for
/// itself.
#[test]
fn a_host_function_dropped_unrun_is_still_one() {
    struct Flush<S: LiveBrand>(Stream<S>, mpsc::Sender<Result<(), Error>>);
    impl<S: LiveBrand> Drop for Flush<S> {
        fn drop(&mut self) {
            self.1.send(self.0.synchronize()).unwrap();
        }
    }

    stream_tags!(Flushed);
    guarded(|| {
        let stream = Device::new_cpu().unwrap().stream::<Flushed>().unwrap();
        let (told, flushed) = mpsc::channel();
        let ran = Arc::new(AtomicBool::new(false));
        let gate = gate(stream);
        fails(&stream).unwrap();
        let (flush, runs) = (Flush(stream, told), ran.clone());
        stream
            .launch_host(move || {
                runs.store(true, Ordering::Relaxed);
                drop(flush);
            })
            .unwrap();
        drop(gate);
        stream.synchronize().unwrap_err();
        assert!(matches!(flushed.recv().unwrap(), Err(Error::InHostFunction)));
        assert!(!ran.load(Ordering::Relaxed));
    });
}

/// A failed CPU device completes its events. Another device went on with the memory behind them,
/// although the failed one never wrote it.
#[test]
fn events_of_a_failed_device_do_not_let_another_go_on() {
    stream_tags!(Fails, After, Later);
    guarded(|| {
        let [device, after, later] = [(); 3].map(|()| Device::new_cpu().unwrap());
        let stream = device.stream::<Fails>().unwrap();
        let (after, later) = (after.stream::<After>().unwrap(), later.stream::<Later>().unwrap());
        let mut hosts = [(); 2].map(|()| stream.bind(device.pinned_from(&[0u32; 8]).unwrap()).unwrap());
        let mut x = stream.alloc::<u32>(8).unwrap();
        let gate = gate(stream);
        fails(&stream).unwrap();
        stream.fill(&mut x, 7).unwrap();
        for host in &mut hosts {
            stream.copy_to_host(&x, host).unwrap();
        }
        let [early, late] = hosts.map(|host| stream.record(host).unwrap());
        let early = after.wait(early).unwrap(); // waits before the failure
        drop(gate);
        stream.synchronize().unwrap_err();
        let unfinished = after.record(early).map_err(Error::from).and_then(|event| Ok(event.synchronize()?));
        assert!(unfinished.is_err(), "{unfinished:?}");
        drop(later.wait(late).unwrap_err()); // waits after the failure
    });
}

// --- seeded devices ------------------------------------------------------------------------------

/// A seeded schedule confused another device's queue with one of its own: it ran the wrong queue,
/// or waited for ever.
#[test]
fn a_seeded_device_waits_for_itself_only() {
    stream_tags!(First, A, B, Threads);
    guarded(|| {
        let (a, b) = (Device::seeded_cpu(1).unwrap(), Device::seeded_cpu(2).unwrap());
        a.stream::<First>().unwrap(); // so that the queue numbers of the two devices differ
        let (a, b) = (a.stream::<A>().unwrap(), b.stream::<B>().unwrap());
        let threads = Device::new_cpu().unwrap().stream::<Threads>().unwrap();
        refuses(a, b);
        refuses(b, a);
        refuses(a, threads);
        refuses(threads, a);
    });
}

fn refuses<S: LiveBrand, T: LiveBrand>(from: Stream<S>, to: Stream<T>) {
    for seed in 0..20 {
        from.device().reseed(seed);
        to.device().reseed(seed + 1);
        let x = from.bind(from.device().pinned::<u8>(10).unwrap()).unwrap();
        let refused = to.wait(from.record(x).unwrap()).unwrap_err();
        assert!(matches!(refused.error, Error::DeviceMismatch { .. }), "{refused:?}");
        refused.value.synchronize().unwrap();
    }
}

/// A host function on a seeded device runs while the schedule is locked, and `reseed` locked it
/// again.
#[test]
fn reseeding_in_a_host_function_does_not_deadlock() {
    stream_tags!(Reseeds);
    guarded(|| {
        let device = Device::seeded_cpu(1).unwrap();
        let stream = device.stream::<Reseeds>().unwrap();
        stream.launch_host(move || device.reseed(7)).unwrap();
        stream.synchronize().unwrap();
    });
}

/// A pool queried events while it was locked. On a seeded device, the query ran a host function,
/// which locked the pool again.
#[test]
fn a_pool_in_a_host_function_does_not_deadlock() {
    stream_tags!(Asks);
    guarded(|| {
        let device = Device::seeded_cpu(1).unwrap();
        let stream = device.stream::<Asks>().unwrap();
        for seed in 0..50 {
            device.reseed(seed);
            let pool = PinnedPool::new(device, 1 << 20);
            let asked = pool.clone();
            stream.launch_host(move || assert!(asked.in_use() + asked.cached() <= 8192)).unwrap();
            drop(stream.bind(pool.take::<u8>(100).unwrap()).unwrap()); // back after the function
            drop(pool.take::<u8>(100).unwrap());
            stream.synchronize().unwrap();
        }
    });
}

// --- graphs --------------------------------------------------------------------------------------

/// A capture clones the metadata of its bundle, and `clone` is the user's code. If it panics while
/// the capture owns the bundle, page-locked memory must not go back to its pool before a copy wrote
/// there.
#[test]
fn metadata_that_panics_in_a_capture_keeps_its_bundle_on_the_stream() {
    struct Bomb;
    impl Clone for Bomb {
        fn clone(&self) -> Self {
            panic!("on purpose")
        }
    }
    #[derive(Resource)]
    struct Armed {
        host: PinnedBuffer<u32>,
        #[resource(plain)]
        _bomb: Bomb,
    }

    stream_tags!(Captures);
    let device = Device::new_cpu().unwrap();
    let stream = device.stream::<Captures>().unwrap();
    let host = device.pinned_from(&[1u32; 1024]).unwrap();
    let mut armed = stream.bind(Armed { host, _bomb: Bomb }).unwrap();
    let mut x = stream.alloc::<u32>(1024).unwrap();
    stream.fill(&mut x, 7).unwrap();
    let gate = gate(stream);
    stream.copy_to_host(&x, &mut armed.host).unwrap();
    catch_unwind(AssertUnwindSafe(|| stream.capture(armed, |_, _| Ok(())).map(drop))).unwrap_err();
    let mine = device.pinned_from(&[5u32; 1024]).unwrap();
    drop(gate);
    stream.synchronize().unwrap();
    assert_eq!(mine[..], [5; 1024]);
    // The stream of the failed capture can also be used for the next capture.
    let (mut graph, mut x) = stream.capture(x, |s, x| s.fill(x, 2)).unwrap();
    x = stream.replay(&mut graph, x).unwrap();
    assert_eq!((graph.len(), stream.read_blocking(&x).unwrap()), (1, vec![2; 1024]));
}

/// A graph must not write to memory that left its bundle and was bound again elsewhere, even if it
/// is replayed with a bundle whose memory starts at the same address.
#[test]
fn a_graph_does_not_reach_past_the_bundle_it_is_given() {
    stream_tags!(Reaches);
    let device = Device::new_cpu().unwrap();
    let stream = device.stream::<Reaches>().unwrap();
    let pool = PinnedPool::new(device, 1 << 20);
    let mut x = stream.alloc::<u32>(1024).unwrap();
    stream.fill(&mut x, 7).unwrap();
    let host = stream.bind(pool.take::<u32>(1024).unwrap()).unwrap();
    let (mut graph, bundle) = stream.capture((x, host), |s, (x, host)| s.copy_to_host(x, host)).unwrap();
    let (x, host) = stream.record(bundle).unwrap().synchronize().unwrap();
    drop(host);
    let mut pieces = pool.take::<u32>(1024).unwrap().split(2); // pieces of the same block
    let mut mine = pieces.pop().unwrap();
    mine.fill(5);
    let bundle = stream.bind((x, pieces.pop().unwrap())).unwrap();
    let returned = stream.replay(&mut graph, bundle).unwrap_err();
    assert!(matches!(returned.error, Error::GraphMismatch { index: 1, .. }), "{}", returned.error);
    stream.synchronize().unwrap();
    assert_eq!(mine[..], [5; 512]);
}

/// The driver forbids calls in host functions, so a graph that is dropped in one must be destroyed
/// elsewhere. The same holds if a failed device drops the function without calling it.
#[test]
fn a_graph_dropped_in_a_host_function_is_destroyed_elsewhere() {
    stream_tags!(Drops);
    guarded(|| {
        let stream = Device::new_cpu().unwrap().stream::<Drops>().unwrap();
        for fail in [false, true] {
            let x = stream.alloc::<u32>(64).unwrap();
            let (mut graph, x) = stream.capture(x, |s, x| s.fill(x, 1)).unwrap();
            let x = stream.replay(&mut graph, x).unwrap();
            let gate = gate(stream);
            if fail {
                fails(&stream).unwrap();
            }
            stream.launch_host(move || drop(graph)).unwrap();
            drop(gate);
            assert_eq!(stream.synchronize().is_err(), fail);
            drop(x);
        }
    });
}

// --- threads -------------------------------------------------------------------------------------

/// If an upload fails, it drops the metadata of its batch. When that drop panicked, the loader
/// waited for the batch for ever.
#[test]
fn metadata_that_panics_ends_a_loader() {
    struct Bomb(Arc<AtomicBool>);
    impl Clone for Bomb {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!self.0.swap(false, Ordering::Relaxed), "on purpose");
        }
    }

    guarded(|| {
        for upload in [Upload::Sequential, Upload::Streams] {
            let device = Device::new_cpu().unwrap();
            let armed = Arc::new(AtomicBool::new(false));
            let own = armed.clone();
            let source = Source::indexed(8, move |_| {
                Sample::new("bomb", Bomb(own.clone()), |canvas| {
                    canvas.rgb(2, 2)?.fill(1);
                    Ok(())
                })
            });
            let mut loader = Loader::new(device, source, Options { batch: 8, upload, ..Options::default() }).unwrap();
            device.per_thread(|s| fails(s).and_then(|()| s.synchronize())).unwrap().unwrap_err();
            armed.store(true, Ordering::Relaxed);
            let error = loader.next().unwrap().map(drop).unwrap_err();
            assert!(error.to_string().contains("panicked: on purpose"), "{error}");
            assert!(loader.next().is_none());
        }
    });
}

/// A pending future registered its waker once more at every poll.
#[test]
fn a_future_that_is_polled_often_is_woken_once() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    stream_tags!(Polled);
    guarded(|| {
        let stream = Device::new_cpu().unwrap().stream::<Polled>().unwrap();
        let gate = gate(stream);
        let mut future = pin!(stream.record(()).unwrap().into_future());
        let wakes = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(wakes.clone());
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
        assert!((0..100).all(|_| poll().is_pending()));
        // One is held by this test, one by its waker, one by the future, one by the thread that
        // wakes.
        assert_eq!(Arc::strong_count(&wakes), 4);
        drop(gate);
        stream.synchronize().unwrap();
        while wakes.0.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        assert!(poll().is_ready());
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    });
}

/// A waker whose destructor panics ended the thread that calls all wakers.
#[test]
fn a_waker_that_panics_does_not_stop_others() {
    static DROPPED: AtomicBool = AtomicBool::new(false);
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            DROPPED.store(true, Ordering::Release);
            panic!("on purpose");
        }
    }
    struct Tell(mpsc::Sender<()>);
    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }

    stream_tags!(Wakes);
    guarded(|| {
        let stream = Device::new_cpu().unwrap().stream::<Wakes>().unwrap();
        let poll = |waker: Waker| {
            let gate = gate(stream);
            let mut future = pin!(stream.record(stream.alloc::<u8>(1).unwrap()).unwrap().into_future());
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(waker); // before the gate opens, so that the other thread drops the last one
            drop(gate);
        };
        poll(Waker::from(Arc::new(Bomb)));
        while !DROPPED.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let (tell, told) = mpsc::channel();
        poll(Waker::from(Arc::new(Tell(tell))));
        told.recv_timeout(Duration::from_secs(10)).unwrap();
    });
}

/// Events in a thread-local are dropped after the crate's own thread-locals. A seeded device that
/// then ran launches panicked in the destructor, which aborts the process.
#[test]
fn a_thread_may_end_with_events() {
    thread_local! {
        static HELD: RefCell<Vec<Event<DeviceBuffer<u32>>>> = const { RefCell::new(Vec::new()) };
    }
    stream_tags!(Held);
    let device = Device::seeded_cpu(1).unwrap();
    let stream = device.stream::<Held>().unwrap();
    let hold = move || HELD.with_borrow_mut(|held| held.push(stream.record(stream.alloc(4).unwrap()).unwrap()));
    for seed in 0..100 {
        device.reseed(seed);
        let thread = thread::spawn(move || {
            hold();
            nothing(&stream).unwrap();
            stream.synchronize().unwrap(); // from now on, this thread has stacks for launches
            for _ in 0..4 {
                nothing(&stream).unwrap();
                hold();
            }
        });
        thread.join().unwrap();
    }
}

/// `per_thread` in the destructor of a thread-local panicked, which aborts the process, if the
/// thread had already given its streams back.
#[test]
fn per_thread_in_a_destructor_is_an_error_at_worst() {
    struct Late(Device, mpsc::Sender<Result<u64, Error>>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.1.send(self.0.per_thread(|s| s.serial())).unwrap();
        }
    }
    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    let device = Device::new_cpu().unwrap();
    for first in [true, false] {
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut late = Some(Late(device, tell));
            if first {
                LATE.set(late.take());
            }
            device.per_thread(|_| ()).unwrap();
            if let Some(late) = late {
                LATE.set(Some(late));
            }
        });
        thread.join().unwrap();
        let told = told.recv().unwrap();
        assert!(matches!(told, Ok(_) | Err(Error::Thread { .. })), "{told:?}");
    }
}

/// Whatever an event was to do when dropped is forgotten by a transition. Its captures belong to the
/// program, and one whose destructor panics leaves the resource behind its event.
#[test]
fn a_capture_that_panics_in_a_transition_leaves_the_memory_in_order() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let device = Device::new_cpu().unwrap();
    let pool = PinnedPool::new(device, 1 << 16);
    let (work, other) = (thalweg::AnyStream::new(device).unwrap(), thalweg::AnyStream::new(device).unwrap());
    let (open, opened) = mpsc::channel::<()>();
    let event = work.enter(|s| {
        s.launch_host(move || _ = opened.recv()).unwrap();
        let panics = Panics;
        s.record(s.bind(pool.take::<u8>(100).unwrap()).unwrap()).unwrap().on_drop(move |_| drop(panics))
    });
    let waited = catch_unwind(AssertUnwindSafe(|| other.enter(|s| drop(s.wait(event).unwrap()))));
    assert!(waited.is_err(), "the capture panicked");
    assert!(pool.in_use() > 0, "work on the memory is pending");
    drop(open);
    work.enter(|s| s.synchronize()).unwrap();
    guarded(|| {
        // The block comes back after its work, and not before.
        while pool.take::<u8>(1 << 16).is_err() {
            thread::yield_now();
        }
    });
}
