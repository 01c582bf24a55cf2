//! Measures the host's cost of a call and the bandwidth of sums of all sizes, beside NCCL called by
//! hand.
//!
//! ```text
//! cargo bench -p thalweg-collective --bench nccl --no-run      # says where the binary is
//! thalweg launch -n 2 -- BINARY                                 # a GPU for each process
//! ```
//!
//! Both sides use the same stream, the same memory and the same library, one after the other, each
//! with a communicator of its own. The bus bandwidth is 2 (N - 1) / N times the bytes over the
//! time. Bandwidths are the device's: the stream is busy while the host enqueues, so what a call
//! costs the host does not show. The columns behind are times of calls in a row on an idle stream,
//! where it does.
//!
//! Without a launcher and with two GPUs, it measures the sums of two threads by peer copies.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use libloading::Library;
use thalweg::{Device, DeviceBuffer, DeviceKind, DeviceSlice, LiveBrand, On, Stream, stream_tags};
use thalweg_collective::{Backend, CommGraph, RankEnv, Sum, World, WorldOptions, ranks};

stream_tags!(Reduce);

type Error = Box<dyn std::error::Error>;
type Comm = *mut c_void;

#[derive(Clone, Copy)]
#[repr(C)]
struct Id([u8; 128]);

/// NCCL by hand.
struct Raw {
    library: Library,
    comm: Comm,
}

impl Raw {
    /// `blocking` is the mode of the communicator, as NCCL has it by default.
    fn new(
        world: &thalweg_collective::Store,
        rank: usize,
        size: usize,
        device: Device,
        blocking: bool,
    ) -> Result<Self, Error> {
        let name = std::env::var("THALWEG_NCCL").unwrap_or_else(|_| "libnccl.so.2".into());
        // SAFETY: Loading NVIDIA's library runs its initializers, which is allowed at any time.
        let library = unsafe { Library::new(name) }?;
        let key = format!("by hand {blocking}");
        let mut id = Id([0; 128]);
        if rank == 0 {
            // SAFETY: `nccl.h` declares the function so; it stores the 128 bytes.
            device.with_context(|| unsafe {
                library.get::<unsafe extern "C" fn(*mut Id) -> c_int>(b"ncclGetUniqueId").map(|f| f(&mut id))
            })??;
            world.set(&key, &id.0)?;
        }
        id.0.copy_from_slice(&world.wait(&key, Duration::from_secs(60))?);
        let mut comm: Comm = std::ptr::null_mut();
        // The fields of version 2.18: size, magic, version, blocking, cluster, CTAs, network,
        // sharing.
        #[repr(C)]
        struct Config(usize, u32, u32, c_int, [c_int; 3], *const u8, c_int);
        let undefined = c_int::MIN;
        let mut config = Config(
            size_of::<Config>(),
            0xcafe_beef,
            21_800,
            blocking.into(),
            [undefined; 3],
            std::ptr::null(),
            undefined,
        );
        // SAFETY: As above; the context of the device is current, and each rank calls it once.
        let code = device.with_context(|| unsafe {
            let init = library.get::<unsafe extern "C" fn(*mut Comm, c_int, Id, c_int, *mut Config) -> c_int>(
                b"ncclCommInitRankConfig",
            )?;
            Ok::<_, libloading::Error>(init(&mut comm, size as c_int, id, rank as c_int, &mut config))
        })??;
        assert!(code == 0 || code == 7, "ncclCommInitRankConfig gives {code}");
        let raw = Self { library, comm };
        raw.settle();
        Ok(raw)
    }

    /// Waits until a call of a non-blocking communicator is done.
    fn settle(&self) {
        let mut state = 7;
        while state == 7 {
            // SAFETY: The communicator exists, and the call stores a number.
            unsafe {
                let ask = self
                    .library
                    .get::<unsafe extern "C" fn(Comm, *mut c_int) -> c_int>(b"ncclCommGetAsyncError")
                    .unwrap();
                assert_eq!(ask(self.comm, &mut state), 0);
            }
        }
        assert_eq!(state, 0);
    }

    /// The sum of f32 in place, as a function that only calls NCCL.
    fn sum(&self, address: u64, count: usize, stream: *mut c_void) -> impl Fn() + '_ {
        type Sum = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
        // SAFETY: `nccl.h` declares the function so.
        let sum = *unsafe { self.library.get::<Sum>(b"ncclAllReduce") }.unwrap();
        let at = address as usize as *mut c_void;
        move || {
            // SAFETY: The buffer at the address lives until the stream is synchronized.
            let code = unsafe { sum(at, at, count, 7, 0, self.comm, stream) };
            if code == 7 {
                self.settle();
            } else {
                assert_eq!(code, 0);
            }
        }
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The time of the host for a call, in ns: calls in a row, short enough for the queue of the
/// stream.
fn host<S: LiveBrand>(s: Stream<S>, mut call: impl FnMut()) -> Result<f64, Error> {
    let mut times = Vec::new();
    for round in 0..60 {
        s.synchronize()?;
        let start = Instant::now();
        for _ in 0..50 {
            call();
        }
        if round >= 10 {
            times.push(start.elapsed().as_secs_f64() * 1e9 / 50.0);
        }
    }
    s.synchronize()?;
    Ok(median(times))
}

/// The time of a sum on the device, in s: the stream fills `busy` while the host enqueues.
fn device<S: LiveBrand>(
    s: Stream<S>,
    busy: &mut DeviceSlice<S, u8>,
    calls: usize,
    mut call: impl FnMut(),
) -> Result<f64, Error> {
    call();
    s.synchronize()?;
    for _ in 0..1 + calls / 5 {
        s.fill(busy, 0)?; // half a millisecond
    }
    call();
    let start = s.timestamp()?;
    for _ in 0..calls {
        call();
    }
    let end = s.timestamp()?;
    s.synchronize()?;
    Ok(end.elapsed(&start)?.ok_or("the stream is done")?.as_secs_f64() / calls as f64)
}

/// The time of calls in a row, in s.
fn in_a_row<S: LiveBrand>(s: Stream<S>, calls: usize, mut call: impl FnMut()) -> Result<f64, Error> {
    call();
    s.synchronize()?;
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    s.synchronize()?;
    Ok(start.elapsed().as_secs_f64() / calls as f64)
}

/// Sums of two threads by peer copies and by the host.
fn peers(gpus: [Device; 2]) -> Result<(), Error> {
    println!("| MiB | peer copies, GB/s | through the host, GB/s |\n|---|---|---|");
    for mib in [1usize, 4, 16, 64, 256, 1024] {
        let mut rates = Vec::new();
        for backend in [Backend::Peer, Backend::Host] {
            let options = WorldOptions::default().with_backend(backend);
            let times = ranks(&gpus, options, |rank, world| -> thalweg_collective::Result<f64> {
                let s = rank.stream::<Reduce>()?;
                let mut comm = world.comm(s)?;
                let mut x = s.alloc_zeroed::<f32>(mib << 18)?;
                let mut times = Vec::new();
                for round in 0..7 {
                    comm.barrier()?;
                    comm.synchronize()?;
                    let start = Instant::now();
                    for _ in 0..4 {
                        comm.all_reduce_in_place(Sum, &mut x)?;
                    }
                    comm.synchronize()?;
                    if round > 1 {
                        times.push(start.elapsed().as_secs_f64() / 4.0);
                    }
                }
                Ok(median(times))
            });
            let times = times.into_iter().collect::<Result<Vec<_>, _>>()?;
            rates.push((mib << 20) as f64 / times[0].max(times[1]) / 1e9);
        }
        println!("| {mib} | {:.1} | {:.1} |", rates[0], rates[1]);
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let Some(place) = RankEnv::from_env()? else {
        println!("this is a single rank; start it with `thalweg launch -n 2 -- BINARY` to measure NCCL");
        return match [0, 1].map(Device::cuda) {
            [Ok(a), Ok(b)] => peers([a, b]),
            _ => {
                println!("NOT COVERED: this machine has no two GPUs");
                Ok(())
            }
        };
    };
    let gpu = match Device::cuda(place.local_rank) {
        Ok(gpu) => gpu,
        Err(why) => {
            println!("NOT COVERED: {why}");
            return Ok(());
        }
    };
    assert_eq!(gpu.kind(), DeviceKind::Cuda);
    let world = World::connect(&place, WorldOptions::from_env()?.with_backend(Backend::Nccl))?;
    let (rank, size, store) = (world.rank(), world.size(), world.store().reconnect()?);
    let s = gpu.stream::<Reduce>()?;
    let raw = s.raw().ok_or("a GPU has streams of the driver")?;
    let mut comm = world.comm(s)?;
    let (plain, hand) = (Raw::new(&store, rank, size, gpu, true)?, Raw::new(&store, rank, size, gpu, false)?);
    let say = |text: String| {
        if rank == 0 {
            println!("{text}");
        }
    };
    let most: usize = std::env::var("MOST_MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(1024);

    let mut small = s.alloc_zeroed::<f32>(256)?;
    let (by_hand, default) = (hand.sum(small.device_ptr(), 256, raw), plain.sum(small.device_ptr(), 256, raw));
    let mut rows = Vec::new();
    for _ in 0..5 {
        let a = host(s, &by_hand)?;
        let b = host(s, || comm.all_reduce_in_place(Sum, &mut small).unwrap())?;
        let c = host(s, &default)?;
        rows.push([a, b, c]);
    }
    let [a, b, c] = [0, 1, 2].map(|k| median(rows.iter().map(|row| row[k]).collect()));
    let captured = comm.capture(small, |r, x| r.all_reduce_in_place(Sum, x));
    let (mut graph, small) = captured?;
    let mut small = Some(small);
    let d = host(s, || replay(&mut comm, &mut graph, &mut small))?;
    drop(graph);
    say(format!(
        "host cost of a call: by hand {a:.0} ns (blocking communicator {c:.0} ns), thalweg {b:.0} ns, ratio {:.3} ({:.3}); replay of a captured one {d:.0} ns",
        b / a,
        b / c
    ));
    say("| MiB | by hand, GB/s | thalweg, GB/s | share | as a graph, GB/s | in a row, us: by hand | blocking, by hand | thalweg | as a graph |\n|---|---|---|---|---|---|---|---|---|".to_owned());
    let mut busy = s.alloc::<u8>(2 << 30)?;
    let mut mib = 1;
    while mib <= most {
        let n = mib << 18;
        let mut x = s.alloc_zeroed::<f32>(n)?;
        let address = x.device_ptr();
        let (by_hand, default) = (hand.sum(address, n, raw), plain.sum(address, n, raw));
        let calls = (2048 / mib).clamp(4, 100);
        let mut times = Vec::new();
        for _ in 0..7 {
            let mut call = || comm.all_reduce_in_place(Sum, &mut x).unwrap();
            times.push([
                device(s, &mut busy, calls, &by_hand)?,
                device(s, &mut busy, calls, &mut call)?,
                in_a_row(s, calls, &by_hand)?,
                in_a_row(s, calls, &default)?,
                in_a_row(s, calls, call)?,
            ]);
        }
        let captured = comm.capture(x, |r, x| r.all_reduce_in_place(Sum, x));
        let (mut graph, x) = captured?;
        let mut x = Some(x);
        let mut graphs = Vec::new();
        for _ in 0..7 {
            let mut call = || replay(&mut comm, &mut graph, &mut x);
            graphs.push([device(s, &mut busy, calls, &mut call)?, in_a_row(s, calls, call)?]);
        }
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|k| median(times.iter().map(|t| t[k]).collect()));
        let [f, g] = [0, 1].map(|k| median(graphs.iter().map(|t| t[k]).collect()));
        let bus = |t: f64| 2.0 * (size - 1) as f64 / size as f64 * (4 * n) as f64 / t / 1e9;
        let us = |t: f64| t * 1e6;
        say(format!(
            "| {mib} | {:.1} | {:.1} | {:.1} % | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
            bus(a),
            bus(b),
            100.0 * a / b,
            bus(f),
            us(c),
            us(d),
            us(e),
            us(g)
        ));
        mib *= 4;
    }
    comm.barrier()?;
    comm.synchronize()?;
    Ok(())
}

/// Replays a captured sum.
fn replay(
    comm: &mut thalweg_collective::Comm<Reduce>,
    graph: &mut CommGraph<DeviceBuffer<f32>>,
    x: &mut Option<On<Reduce, DeviceBuffer<f32>>>,
) {
    let taken = x.take().expect("it is put back below");
    *x = Some(comm.replay(graph, taken).expect("the ranks replay the same"));
}
