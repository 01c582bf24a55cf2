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
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use thalweg::{
    AnyStream, Device, DeviceBuffer, Error, Event, LaunchError, Leaf, LeafInfo, LiveBrand, PinnedBuffer, PinnedPool,
    Resource, Returned, Ring, Stream, StreamPool, kernel, stream_tags,
};
use thalweg_loader::{Loader, LoaderOptions, Sample, Source, UploadMode};

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

type Job = Arc<dyn Fn() + Send + Sync>;

/// What the bodies of the kernels below do: a body has no captures.
static JOBS: Mutex<Vec<Job>> = Mutex::new(Vec::new());

/// Keeps what bodies are to do, and returns its number.
fn job(f: impl Fn() + Send + Sync + 'static) -> u32 {
    let mut jobs = JOBS.lock().unwrap();
    jobs.push(Arc::new(f));
    jobs.len() as u32 - 1
}

fn do_job(number: u32) {
    let job = JOBS.lock().unwrap()[number as usize].clone();
    job();
}

kernel! {
    unsafe fn on_queue(cx: impl Simt, job: u32)
    grid(1) block(1)
    {
        do_job(job);
    }
}

kernel! {
    unsafe fn on_pool(cx: impl Simt, job: u32)
    grid(64) block(256)
    {
        if cx.global_x().is_multiple_of(256) {
            do_job(job);
        }
    }
}

kernel! {
    unsafe fn on_fibers(cx: impl Cooperative, job: u32)
    grid(2) block(64)
    {
        cx.barrier();
        if cx.global_x().is_multiple_of(64) {
            do_job(job);
        }
        cx.barrier();
    }
}

/// How many bodies [`everywhere`] has do a job.
const BODIES: usize = 1 + 64 + 2;

/// Has bodies do a job on the thread of a stream, on the threads of the pool, and in coroutines.
fn everywhere<S: LiveBrand>(stream: &Stream<S>, job: u32) {
    on_queue(stream, job).unwrap();
    on_pool(stream, job).unwrap();
    on_fibers(stream, job).unwrap();
}

/// A CPU device of each kind, without work.
fn kinds() -> [Device; 3] {
    [Device::new_cpu().unwrap(), Device::checked_cpu().unwrap(), Device::seeded_cpu(1).unwrap()]
}

/// Repeats the check until it holds. The caller is [`guarded`].
fn soon(so: impl Fn() -> bool) {
    while !so() {
        thread::yield_now();
    }
}

// --- memory in flight ----------------------------------------------------------------------------

/// Splits a buffer into numbers of pieces that nobody can want, and returns it.
fn absurd_splits<B: std::fmt::Debug>(mut buffer: B, split: impl Fn(B, usize) -> Result<Vec<B>, Returned<B>>) -> B {
    for n in [usize::MAX, usize::MAX / 2, 1 << 50, 1 << 40, 1 << 30] {
        let refused = split(buffer, n).unwrap_err();
        assert!(matches!(refused.error, Error::Parameter { name: "n", .. }), "{n}: {refused}");
        buffer = refused.value;
    }
    buffer
}

/// `split(usize::MAX)` panicked while it owned page-locked memory, and gave the memory back to its
/// pool while a copy still wrote there. `split(1 << 50)` ended the process.
#[test]
fn a_split_that_fails_keeps_pinned_memory_on_its_stream() {
    stream_tags!(Copies);
    let device = Device::new_cpu().unwrap();
    let stream = device.stream::<Copies>().unwrap();
    let mut host = stream.bind(device.pinned_from(&[1u32; 1024]).unwrap()).unwrap();
    let mut copied = stream.alloc::<u32>(1024).unwrap();
    stream.fill(&mut copied, 7).unwrap();
    let gate = gate(stream);
    stream.copy_to_host(&copied, &mut host).unwrap();
    drop(absurd_splits(host, |host, n| host.split_even(n)));
    let mine = device.pinned_from(&[5u32; 1024]).unwrap();
    drop(gate);
    stream.synchronize().unwrap();
    assert_eq!(mine[..], [5; 1024]);
}

/// `split(usize::MAX)` panicked while it owned device memory, and freed the memory before a fill
/// wrote there. `split(1 << 50)` ended the process.
#[test]
fn a_split_that_fails_keeps_device_memory_on_its_stream() {
    stream_tags!(Fills);
    const BYTES: u64 = 1 << 16;
    let device = Device::new_cpu().unwrap();
    device.limit_memory(Some(BYTES));
    let stream = device.stream::<Fills>().unwrap();
    let mut x = stream.alloc::<u8>(BYTES as usize).unwrap();
    let gate = gate(stream);
    stream.fill(&mut x, 1).unwrap();
    drop(absurd_splits(x, |x, n| x.split_even(n)));
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
                assert!(!w.is_complete().unwrap(), "a writer overtook a reader");
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

/// A struct in a module where the names that the derive uses mean something else.
#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code)]
mod shadowed {
    use ::thalweg::{DeviceBuffer as Device, PinnedBuffer as Pinned};

    macro_rules! names {
        ($($constant:ident)*; $($function:ident)*) => {
            $(enum $constant {} const $constant: &str = "shadowed";)*
            $(enum $function {} fn $function() {})*
        };
    }
    names! {
        core thalweg Resource Bundle Brand Unzip Splitter Event Token Leaf LeafInfo Producer Stream On Events Idle FnMut Clone
        Option Some None Sized __F __alias __bind __drain __leaves __producers __unbind __unzip plain resource unzip
        ;
        __sink __splitter __stream __token __visit // variables of the derive: `tests/ui/names_of_derive.rs`
    }

    trait Methods: ::core::marker::Sized {
        fn event(self) -> ! {
            panic!("shadowed")
        }
        fn clone(self) -> ! {
            panic!("shadowed")
        }
    }
    impl<T> Methods for T {}

    #[derive(::thalweg::Resource)]
    #[resource(unzip)]
    pub(super) struct Slot {
        pub(super) host: Pinned<u32>,
        pub(super) image: Device<u32>,
        #[resource(plain)]
        pub(super) n: u32,
    }
}

/// A derive looked up `FnMut` and the methods of its own types where it stood.
#[test]
fn a_derive_means_the_same_where_all_names_are_shadowed() {
    stream_tags!(From, To);
    let device = Device::new_cpu().unwrap();
    let (from, to) = (device.stream::<From>().unwrap(), device.stream::<To>().unwrap());
    let image = from.record(from.alloc_zeroed(1).unwrap()).unwrap().synchronize().unwrap();
    let slot = shadowed::Slot { host: device.pinned_from(&[7]).unwrap(), image, n: 3 };
    let shared = from.share(from.bind(slot).unwrap()).unwrap();
    assert_eq!(to.reading(&shared).unwrap().n, 3);
    let parts = to.record(to.unshare(shared).unwrap()).unwrap().unzip();
    assert_eq!((parts.host.synchronize().unwrap()[0], parts.n), (7, 3));
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

/// Formatting an event asked the device. On a seeded device that ran a host function, under
/// whatever lock the program printed under.
#[test]
fn an_event_prints_under_a_lock() {
    stream_tags!(Prints);
    guarded(|| {
        let device = Device::seeded_cpu(1).unwrap();
        let stream = device.stream::<Prints>().unwrap();
        for seed in 0..50 {
            device.reseed(seed);
            let lock = Arc::new(Mutex::new(()));
            let locked = lock.clone();
            stream.launch_host(move || drop(locked.lock().unwrap())).unwrap();
            let event = stream.record(()).unwrap();
            let held = lock.lock().unwrap();
            assert!(format!("{event:?}").starts_with("Event { passed: "));
            drop(held);
            event.synchronize().unwrap();
            stream.synchronize().unwrap();
        }
    });
}

// --- kernels that call a device ------------------------------------------------------------------

/// The body of a kernel could call a device. On its own stream it waited for itself, and on a
/// seeded device every call locked the schedule once more.
#[test]
fn a_kernel_that_calls_a_device_gets_an_error() {
    guarded(|| {
        for device in kinds() {
            let own = Arc::new(AnyStream::new(device).unwrap());
            let other = AnyStream::new(device).unwrap();
            let pool = PinnedPool::new(device, 1 << 20);
            let event = other.enter(|s| s.record(s.alloc::<u8>(1).unwrap()).unwrap());
            let (inside, (tell, told)) = (own.clone(), mpsc::channel());
            let calls = job(move || {
                let mut errors = inside.enter(|s| {
                    vec![
                        s.synchronize().unwrap_err(),
                        s.is_complete().unwrap_err(),
                        s.alloc::<u8>(1).unwrap_err(),
                        s.timestamp().unwrap_err(),
                        s.launch_host(|| ()).unwrap_err(),
                        s.record(()).unwrap_err().error,
                        s.capture((), |_, _| Ok(())).map(drop).unwrap_err().error,
                        s.occupancy(|query| on_queue(query, 0)).unwrap_err(),
                        nothing(s).unwrap_err(),
                    ]
                });
                errors.extend([
                    other.enter(|s| s.synchronize()).unwrap_err(),
                    device.check().unwrap_err(),
                    device.free_memory().unwrap_err(),
                    device.pinned::<u8>(1).unwrap_err(),
                    device.trim().unwrap_err(),
                    device.per_thread(|_| ()).unwrap_err(),
                    pool.take::<u8>(1).unwrap_err(),
                    event.is_complete().unwrap_err(),
                    AnyStream::new(device).unwrap_err(),
                    StreamPool::new(device, 1).unwrap_err(),
                    Device::cpu().unwrap_err(),
                    Device::new_cpu().unwrap_err(),
                    Device::seeded_cpu(1).unwrap_err(),
                    Device::cuda(0).unwrap_err(),
                ]);
                assert!(!event.is_known_complete() && Device::all().is_empty());
                // These need no call.
                device.reseed(7);
                let _ = (pool.in_use(), device.name(), device.sync_stats().report());
                tell.send(errors).unwrap();
            });
            for seed in 0..5 {
                device.reseed(seed);
                own.enter(|s| {
                    everywhere(s, calls);
                    s.synchronize().unwrap();
                });
                let told: Vec<_> = told.try_iter().collect();
                assert_eq!(told.len(), BODIES, "{device}");
                for error in told.into_iter().flatten() {
                    assert!(matches!(error, Error::InKernel), "{device}: {error}");
                }
            }
        }
    });
}

/// A body that ran on the device's pool of threads could split its own work there, and a part that
/// called the device waited for the kernel.
#[test]
fn a_part_of_a_body_on_the_pool_is_still_in_the_kernel() {
    guarded(|| {
        let device = Device::new_cpu().unwrap();
        let own = Arc::new(AnyStream::new(device).unwrap());
        let (inside, (tell, told)) = (own.clone(), mpsc::channel());
        let splits = job(move || {
            if !thread::current().name().is_some_and(|name| name.starts_with("thalweg block")) {
                return; // a checked device has no pool
            }
            let ask = || inside.enter(|s| s.synchronize().unwrap_err());
            for _ in 0..20 {
                let (left, right) = rayon::join(ask, ask);
                tell.send([left, right]).unwrap();
            }
        });
        own.enter(|s| {
            on_pool(s, splits).unwrap();
            s.synchronize().unwrap();
        });
        let told: Vec<_> = told.try_iter().flatten().collect();
        let bodies = if device.name().starts_with("checked") { 0 } else { 64 };
        assert_eq!(told.len(), bodies * 20 * 2);
        assert!(told.iter().all(|error| matches!(error, Error::InKernel)));
    });
}

/// What a body drops is given back by another thread, as in a host function, and a future that it
/// polls is woken.
#[test]
fn what_a_kernel_drops_is_given_back_later() {
    struct Tell(mpsc::Sender<()>);
    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }
    const BYTES: usize = 1 << 16;
    guarded(|| {
        for device in kinds() {
            device.limit_memory(Some(4 * BYTES as u64));
            let stream = AnyStream::new(device).unwrap();
            let pool = PinnedPool::new(device, 1 << 16);
            stream.enter(|s| {
                let idle = || s.alloc_zeroed::<u8>(BYTES).unwrap().synchronize().unwrap();
                let event = s.record((s.alloc::<u8>(BYTES).unwrap(), s.bind(pool.take::<u8>(4096).unwrap()).unwrap()));
                let shared = s.share(s.bind(pool.take::<u8>(4096).unwrap()).unwrap()).unwrap();
                let (graph, x) = s.capture(s.alloc::<u8>(BYTES).unwrap(), |s, x| s.fill(x, 1)).unwrap();
                let (again, resource) = mpsc::channel();
                let back = s.record(s.bind(idle()).unwrap()).unwrap().on_drop(move |event| again.send(event).unwrap());
                let (woken, wakes) = mpsc::channel();
                let polled = s.record(()).unwrap();
                let all = (
                    idle(),
                    pool.take::<u8>(4096).unwrap().split_even(2).unwrap(),
                    event.unwrap(),
                    shared,
                    graph,
                    back,
                );
                let all = Mutex::new(Some((all, polled, woken)));
                let drops = job(move || {
                    if let Some((all, polled, woken)) = all.lock().unwrap().take() {
                        drop(all);
                        let waker = Waker::from(Arc::new(Tell(woken)));
                        assert_eq!(polled.poll_ready(&mut Context::from_waker(&waker)).map(|_| ()), Poll::Pending);
                    }
                });
                everywhere(s, drops);
                s.synchronize().unwrap();
                wakes.recv().unwrap();
                drop((x, resource.recv().unwrap()));
                s.synchronize().unwrap();
            });
            soon(|| {
                drop(pool.take::<u8>(1)); // makes the pool look for memory that came back
                // A seeded device frees nothing while nobody asks for anything.
                stream.enter(|s| nothing(s).and_then(|()| s.synchronize())).unwrap();
                device.free_memory().unwrap() == 4 * BYTES as u64 && pool.in_use() == 0
            });
        }
    });
}

/// A kernel may drop a reading, whose end no event can then mark.
#[test]
fn a_reading_dropped_in_a_kernel_is_lost() {
    stream_tags!(Drops, Reads);
    guarded(|| {
        let device = Device::new_cpu().unwrap();
        let (drops, reads) = (device.stream::<Drops>().unwrap(), device.stream::<Reads>().unwrap());
        let shared = drops.share(drops.alloc::<u8>(1).unwrap()).unwrap();
        let reading = Mutex::new(Some(reads.reading(&shared).unwrap()));
        on_queue(&drops, job(move || drop(reading.lock().unwrap().take()))).unwrap();
        drops.synchronize().unwrap();
        let refused = drops.unshare(shared).unwrap_err();
        assert!(matches!(refused.error, Error::ReaderLost), "{refused:?}");
    });
}

/// A kernel that fails because a call was refused says so, and the thread goes on to call devices.
#[test]
fn a_kernel_that_unwraps_a_refused_call_fails() {
    guarded(|| {
        let device = Device::seeded_cpu(1).unwrap();
        let stream = AnyStream::new(device).unwrap();
        let fails = job(move || device.check().unwrap());
        let error = stream.enter(|s| on_fibers(s, fails).and_then(|()| s.synchronize())).unwrap_err();
        assert!(error.to_string().contains("InKernel"), "{error}");
        Device::new_cpu().unwrap();
    });
}

// --- code of a user under a lock -----------------------------------------------------------------

stream_tags!(Shares, Observes);

/// Metadata whose `clone` runs a closure of the test.
struct Observed(Option<fn()>);

impl Clone for Observed {
    fn clone(&self) -> Self {
        if let Some(observe) = self.0 {
            observe();
        }
        Self(None)
    }
}

#[derive(Resource)]
struct Watched {
    x: DeviceBuffer<u32>,
    #[resource(plain)]
    observed: Observed,
}

/// A reading of metadata that observes itself.
fn watched(observe: fn()) -> thalweg::SharedRead<Observes, Watched> {
    let device = Device::cpu().unwrap();
    let (shares, observes) = (device.stream::<Shares>().unwrap(), device.stream::<Observes>().unwrap());
    let mut x = shares.alloc::<u32>(4).unwrap();
    shares.fill(&mut x, 7).unwrap();
    let watched = Watched { x: x.synchronize().unwrap(), observed: Observed(Some(observe)) };
    let shared = shares.share(shares.bind(watched).unwrap()).unwrap();
    observes.reading(&shared).unwrap()
}

/// A reading makes its handle at the first use, which clones metadata. A `clone` that read the same
/// reading waited for itself. Without a lock it would call itself until the stack ends.
#[test]
fn metadata_that_reads_the_reading_that_clones_it_panics() {
    thread_local! {
        static READING: RefCell<Option<thalweg::SharedRead<Observes, Watched>>> = const { RefCell::new(None) };
        static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
    fn look() {
        if !QUIET.get() {
            READING.with_borrow(|reading| _ = reading.as_ref().map(|reading| reading.x.len()));
        }
    }
    guarded(|| {
        READING.set(Some(watched(look)));
        let read = || READING.with_borrow(|reading| reading.as_ref().map(|reading| reading.x.len()));
        for _ in 0..2 {
            let panic = catch_unwind(AssertUnwindSafe(read)).unwrap_err();
            let message = panic.downcast_ref::<&str>().copied().unwrap_or_default();
            assert!(message.contains("reads the reading that clones it"), "{message}");
        }
        QUIET.set(true);
        assert_eq!(read(), Some(4), "the reading is as good as before");
        READING.take();
    });
}

/// In the destructors of a thread that ended, such a `clone` was not noticed, and the stack ended.
#[test]
fn metadata_that_reads_itself_at_the_end_of_a_thread_panics() {
    static READING: Mutex<Option<Arc<thalweg::SharedRead<Observes, Watched>>>> = Mutex::new(None);
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    struct Late;
    impl Drop for Late {
        fn drop(&mut self) {
            PANICS.fetch_add(usize::from(catch_unwind(look).is_err()), Ordering::Relaxed);
        }
    }
    fn look() {
        let reading = READING.lock().unwrap().clone();
        assert_eq!(reading.unwrap().x.len(), 4);
    }
    fn rest() {}
    thread_local! {
        static LATE: Late = const { Late };
    }
    guarded(|| {
        *READING.lock().unwrap() = Some(Arc::new(watched(look)));
        let ends = || {
            LATE.with(|_| ()); // its destructor runs last
            assert_eq!(watched(rest).x.len(), 4);
        };
        thread::spawn(ends).join().unwrap();
        assert_eq!(PANICS.load(Ordering::Relaxed), 1);
        READING.lock().unwrap().take();
    });
}

/// While one thread made the handle of a reading, others waited for it, also one that the `clone`
/// of metadata waited for.
#[test]
fn metadata_may_wait_for_another_reader_of_its_reading() {
    static READING: Mutex<Option<Arc<thalweg::SharedRead<Observes, Watched>>>> = Mutex::new(None);
    static FIRST: AtomicBool = AtomicBool::new(true);
    fn wait_for_another() {
        if FIRST.swap(false, Ordering::Relaxed) {
            let reading = READING.lock().unwrap().clone().unwrap();
            assert_eq!(thread::spawn(move || reading.x.len()).join().unwrap(), 4);
        }
    }
    guarded(|| {
        let reading = Arc::new(watched(wait_for_another));
        *READING.lock().unwrap() = Some(reading.clone());
        assert_eq!(reading.x.len(), 4);
        assert!(!FIRST.load(Ordering::Relaxed));
        let observes = reading.x.stream();
        assert_eq!(observes.read_blocking(&reading.x).unwrap(), [7; 4]);
        READING.lock().unwrap().take();
    });
}

/// Code of a user that calls a device: it allocates, fills and waits, on the stream of its thread.
fn calls(device: Device) -> bool {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let filled = device.per_thread(|s| {
        let mut x = s.alloc::<u32>(8)?;
        s.fill(&mut x, 3)?;
        s.read_blocking(&x)
    });
    filled.unwrap().unwrap() == [3; 8]
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Metadata whose `clone`, `drop` and `fmt` call the device.
struct Caller(Device);

impl Clone for Caller {
    fn clone(&self) -> Self {
        assert!(calls(self.0));
        Self(self.0)
    }
}
impl Drop for Caller {
    fn drop(&mut self) {
        assert!(calls(self.0));
    }
}
impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", calls(self.0))
    }
}

#[derive(Debug, Resource)]
struct Called {
    x: DeviceBuffer<u32>,
    host: PinnedBuffer<u32>,
    #[resource(plain)]
    caller: Caller,
}

kernel! {
    unsafe fn asked(cx: impl Simt, ordinal: u64)
    require { calls(device_of(ordinal)) }
    grid(1) block(1)
    {}
}

/// The device for a kernel whose `require` has nothing but numbers.
static ASKED: Mutex<Vec<Device>> = Mutex::new(Vec::new());

fn device_of(ordinal: impl TryInto<usize>) -> Device {
    ASKED.lock().unwrap()[ordinal.try_into().ok().unwrap()]
}

/// Wherever the crate runs code of a user, that code may call the device: metadata that is cloned,
/// dropped or printed, closures of events, wakers and the predicates of kernels.
#[test]
fn code_of_a_user_may_call_the_device() {
    struct Calls(Device, mpsc::Sender<bool>);
    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            let _ = self.1.send(calls(self.0));
        }
    }
    guarded(|| {
        for device in kinds() {
            let ordinal = {
                let mut asked = ASKED.lock().unwrap();
                asked.push(device);
                asked.len() - 1
            };
            for seed in 0..10 {
                device.reseed(seed);
                let (a, b) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
                a.enter(|a| {
                    b.enter(|b| {
                        let called = || {
                            let x = a.alloc_zeroed::<u32>(64).unwrap().synchronize().unwrap();
                            a.bind(Called { x, host: device.pinned(64).unwrap(), caller: Caller(device) }).unwrap()
                        };
                        // The last handle goes with a reading, with a handle, and with neither.
                        for way in 0..3 {
                            let shared = a.share(called()).unwrap();
                            let reading = b.reading(&shared).unwrap();
                            assert_eq!(reading.x.len(), 64);
                            match way {
                                0 => drop((shared, reading)),
                                1 => drop((reading, shared)),
                                _ => {
                                    drop(reading);
                                    drop(b.unshare(shared).unwrap());
                                }
                            }
                        }
                        let (mut graph, called_again) =
                            a.capture(called(), |s, called| s.copy_to_device(&called.host, &mut called.x)).unwrap();
                        let called_again = b.wait(a.record(called_again).unwrap()).unwrap();
                        let called_again = b.replay(&mut graph, called_again).unwrap();
                        let event = b.record(called_again).unwrap();
                        let (tell, told) = mpsc::channel();
                        let dropped = tell.clone();
                        let event = event.on_drop(move |event| {
                            dropped.send(format!("{event:?}").len() > 1 && calls(device)).unwrap()
                        });
                        drop(event);
                        assert!(told.recv().unwrap());
                        // A waker, on the thread that calls all wakers.
                        let event = a.record(called()).unwrap();
                        nothing(a).unwrap();
                        let waker = Waker::from(Arc::new(Calls(device, tell)));
                        if event.poll_ready(&mut Context::from_waker(&waker)).is_pending() {
                            assert!(told.recv().unwrap());
                        }
                        let idle = event.synchronize().unwrap();
                        assert!(format!("{idle:?}").contains("caller: true"));
                        asked(a, ordinal as u64).unwrap();
                        a.synchronize().unwrap();
                    });
                });
            }
        }
        assert!(CALLS.load(Ordering::Relaxed) > 3 * 10 * 10);
    });
}

// --- numbers that nobody can want ----------------------------------------------------------------

/// Numbers of a program are checked before anything is made of them. Those of `split` ended the
/// process, and those of pools and rings used up threads and memory until there were no more.
#[test]
fn absurd_numbers_are_errors() {
    guarded(|| {
        let device = Device::new_cpu().unwrap();
        let stream = AnyStream::new(device).unwrap();
        for lanes in [0, 4097, 1 << 50, usize::MAX] {
            let refused = StreamPool::new(device, lanes).unwrap_err();
            assert!(matches!(refused, Error::Parameter { name: "streams", .. }), "{lanes}: {refused}");
        }
        for depth in [65537, 1 << 50, usize::MAX] {
            let refused = Ring::new(depth, || Ok(())).unwrap_err();
            assert!(matches!(refused, Error::Parameter { name: "depth", .. }), "{depth}: {refused}");
        }
        for priority in [i32::MIN, -2, 1, i32::MAX] {
            let refused =
                AnyStream::with(device, thalweg::StreamOptions::default().with_priority(priority)).unwrap_err();
            assert!(matches!(refused, Error::Parameter { name: "priority", .. }), "{priority}: {refused}");
        }
        assert!(Device::cuda(usize::MAX).is_err());
        let pool = PinnedPool::new(device, usize::MAX);
        stream.enter(|s| {
            for len in [usize::MAX, usize::MAX / 8, usize::MAX / 16, 1 << 55] {
                let refused = [
                    s.alloc::<[u64; 3]>(len).unwrap_err(),
                    s.alloc_zeroed::<[u64; 3]>(len).unwrap_err(),
                    device.pinned::<[u64; 3]>(len).unwrap_err(),
                    pool.take::<[u64; 3]>(len).unwrap_err(),
                    s.alloc::<[u8; 4096]>(len).unwrap_err(),
                    s.alloc::<u8>(len).unwrap_err(),
                    pool.take::<u8>(len).unwrap_err(),
                ];
                for error in refused {
                    assert!(matches!(error, Error::TooLarge { .. } | Error::OutOfMemory { .. }), "{len}: {error}");
                }
            }
            // Nothing of that is counted as in use.
            assert_eq!((pool.in_use(), pool.cached(), pool.take::<u8>(4096).unwrap().len()), (0, 0, 4096));
            let x = s.alloc::<u8>(8).unwrap().synchronize().unwrap();
            let x = x.split_at_lengths(&[usize::MAX, 9]).unwrap_err().value;
            let x = absurd_splits(x, |x, n| x.split_even(n));
            let host = absurd_splits(device.pinned::<u64>(8).unwrap(), |host, n| host.split_even(n));
            assert_eq!((x.split_even(65544).unwrap().len(), host.split_even(65544).unwrap().len()), (65544, 65544));
        });
        // A pool without elements has pieces without elements.
        assert_eq!(DeviceBuffer::<u8>::empty(device).split_even(3).unwrap().len(), 3);
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
    let mut pieces = pool.take::<u32>(1024).unwrap().split_even(2).unwrap(); // pieces of the same block
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
        for upload in [UploadMode::Sequential, UploadMode::Streams] {
            let device = Device::new_cpu().unwrap();
            let armed = Arc::new(AtomicBool::new(false));
            let own = armed.clone();
            let source = Source::indexed(8, move |_| {
                Sample::new("bomb", Bomb(own.clone()), |sink| {
                    sink.rgb(2, 2)?.fill(1);
                    Ok(())
                })
            });
            let mut loader =
                Loader::new(device, source, LoaderOptions::default().with_batch_size(8).with_upload(upload)).unwrap();
            device.per_thread(|s| fails(s).and_then(|()| s.synchronize())).unwrap().unwrap_err();
            armed.store(true, Ordering::Relaxed);
            let error = loader.next().unwrap().map(drop).unwrap_err();
            assert!(
                matches!(&error, thalweg_loader::Error::Panicked { message, .. } if message == "on purpose"),
                "{error}"
            );
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

/// A future may have the last handle of a waker whose destructor panics. Whoever drops the future
/// does not see that.
#[test]
fn a_future_may_go_with_a_waker_that_panics() {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }

    stream_tags!(Goes);
    guarded(|| {
        let stream = Device::new_cpu().unwrap().stream::<Goes>().unwrap();
        let gate = gate(stream);
        let mut future = Box::pin(stream.record(()).unwrap().into_future());
        let bomb = Arc::new(Bomb);
        let held = Arc::downgrade(&bomb);
        let waker = Waker::from(bomb);
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        drop(gate);
        // The thread that calls the wakers gives up its own.
        while held.strong_count() > 1 {
            thread::yield_now();
        }
        assert_eq!(held.strong_count(), 1);
        drop(future);
        assert_eq!(held.strong_count(), 0);

        // In a host function a future stays pending, and a later waker takes the place of the bomb.
        let mut future = Box::pin(stream.record(()).unwrap().into_future());
        stream.synchronize().unwrap();
        let poll = move || {
            let bomb = Arc::new(Bomb);
            let held = Arc::downgrade(&bomb);
            let waker = Waker::from(bomb);
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(waker);
            while held.strong_count() > 1 {
                thread::yield_now();
            }
            assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(held.strong_count(), 0);
        };
        stream.launch_host(poll).unwrap();
        stream.synchronize().unwrap();
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
            self.1.send(self.0.per_thread(|s| s.unique_id())).unwrap();
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

/// Whatever an event was to do when dropped is forgotten by a transition. Its captures belong to
/// the program, and one whose destructor panics leaves the resource behind its event.
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
