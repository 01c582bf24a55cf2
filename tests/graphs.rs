//! Tests of graphs. A replay does what the captured program would do if it ran at that point.
//! Whatever happens to the bundle, the graph and the closure, no pointer dangles, no memory is lost
//! and no call waits.
//!
//! `THALWEG_CASES` sets how many random programs run on each device.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use testkit::devices::{alone_on, devices, everywhere, everywhere_and_seeded, report};
use testkit::gate::Gate;
use thalweg::{
    AnyStream, Brand, Device, DeviceBuffer, DeviceKind, Error, Graph, LaunchError, LiveBrand, On, PinnedBuffer,
    PinnedPool, Resource, Scoped, Stream, kernel, stream_tags,
};
use thalweg_vision::kernels::{BatchTable, RelevanceMut, relevance};

// --- helpers -------------------------------------------------------------------------------------

/// Runs `check` on two streams of `device`.
fn lanes<T>(device: Device, check: impl for<'a, 'b> FnOnce(Stream<Scoped<'a>>, Stream<Scoped<'b>>) -> T) -> T {
    let [a, b] = [(); 2].map(|()| AnyStream::new(device).unwrap());
    a.enter(|&a| b.enter(|&b| check(a, b)))
}

/// Runs `f` while the gate is closed, and fails if `f` waits for the gate.
fn at_once<T>(gate: &Gate, f: impl FnOnce() -> T) -> T {
    let (running, ended) = mpsc::channel::<()>();
    thread::scope(|threads| {
        let watch = threads.spawn(move || {
            let waits = ended.recv_timeout(Duration::from_secs(10)) == Err(mpsc::RecvTimeoutError::Timeout);
            if waits {
                gate.open();
            }
            waits
        });
        let value = f();
        drop(running);
        assert!(!watch.join().unwrap(), "waits for the stream");
        value
    })
}

/// A device buffer and a page-locked buffer. `pair` fills the first with a number and the second
/// with zeros.
type Pair = (DeviceBuffer<u32>, PinnedBuffer<u32>);

fn pair<S: LiveBrand>(s: Stream<S>, len: usize, v: u32) -> <Pair as Resource>::On<S> {
    let mut x = s.alloc::<u32>(len).unwrap();
    s.fill(&mut x, v).unwrap();
    let host = s.device().pinned_from(&vec![0u32; len]).unwrap();
    (x, s.bind(host).unwrap())
}

/// Reads a pair: the numbers on the device and those on the host.
fn look<S: LiveBrand>(s: Stream<S>, pair: <Pair as Resource>::On<S>) -> (Vec<u32>, Vec<u32>) {
    let device = s.read_blocking(&pair.0).unwrap();
    (device, s.record(pair).unwrap().synchronize().unwrap().1.to_vec())
}

/// Captures a graph that copies the device buffer of a pair to the host and then fills it with `v`.
fn download_and_set<S: LiveBrand>(
    s: Stream<S>,
    pair: <Pair as Resource>::On<S>,
    v: u32,
) -> (Graph<Pair>, <Pair as Resource>::On<S>) {
    s.capture(pair, |s, (x, host)| {
        s.copy_to_host(x, host)?;
        s.fill(x, v)
    })
    .unwrap()
}

kernel! {
    unsafe fn mix(cx: impl Simt, n: u32, x: In<f32>, y: InOut<f32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(64)) block(64)
    {
        let i = cx.global_x();
        if i < n {
            let i = i as usize;
            y.set(cx, i, cx.fma(0.5, y.get(cx, i), x.get(cx, i)));
        }
    }
}

kernel! {
    unsafe fn fails(cx: impl Simt, x: InOut<u32>)
    grid(1) block(1)
    {
        panic!("on purpose, with {x:?}");
    }
}

// --- programs ------------------------------------------------------------------------------------

const PLANES: usize = 13;
const BUFFERS: usize = 4;

/// The buffers that the programs work on.
#[derive(Resource)]
struct Frame {
    host: [PinnedBuffer<f32>; BUFFERS],
    device: Vec<DeviceBuffer<f32>>,
    planes: DeviceBuffer<f32>,
    #[resource(plain)]
    len: usize,
}

impl Frame {
    fn zeros<S: LiveBrand>(s: Stream<S>, len: usize) -> FrameOn<S> {
        let zeros = || s.alloc_zeroed(len).unwrap();
        FrameOn {
            host: [(); BUFFERS].map(|()| s.bind(s.device().pinned_from(&vec![0.0; len]).unwrap()).unwrap()),
            device: (0..BUFFERS).map(|_| zeros()).collect(),
            planes: s.alloc_zeroed(PLANES * len).unwrap(),
            len,
        }
    }
}

/// An operation, the index of its source, the index of its destination, and a number.
type Op = (u8, u8, u8, u8);

fn two<T>(all: &mut [T], i: usize, j: usize) -> (&T, &mut T) {
    let [x, y] = all.get_disjoint_mut([i, j]).unwrap();
    (x, y)
}

/// Enqueues one step of a program, on any stream and in any capture.
fn step<S: Brand>(s: &Stream<S>, frame: &mut FrameOn<S>, (what, i, j, v): Op) -> Result<(), Error> {
    let n = frame.len;
    let (i, j) = (usize::from(i) % BUFFERS, usize::from(j) % BUFFERS);
    let other = if i == j { (i + 1) % BUFFERS } else { j };
    let half = n / 2..n;
    match what % 9 {
        0 => s.copy_to_device(&frame.host[i], &mut frame.device[j]),
        1 => s.copy_to_device(frame.host[i].slice(half.clone())?, frame.device[j].slice_mut(half)?),
        2 => s.copy_to_host(&frame.device[i], &mut frame.host[j]),
        3 => {
            let (from, to) = two(&mut frame.device, i, other);
            s.copy(from, to)
        }
        4 => s.fill(&mut frame.device[j], f32::from(v) / 8.0),
        5 => s.zero(frame.device[j].slice_mut(half)?),
        6 => {
            let plane = usize::from(v) % PLANES;
            s.copy(&frame.device[i], frame.planes.slice_mut(plane * n..(plane + 1) * n)?)
        }
        7 if s.device().kind() == DeviceKind::Cpu => {
            let (from, to) = two(&mut frame.device, i, other);
            mix(s, n as u32, from, to)
        }
        // The test's own kernel has no PTX for a GPU. The library's kernel has.
        _ => {
            let [entropy, salience, out, _] = &mut frame.device[..] else { unreachable!() };
            // The kernel does not read the table if there is only one image.
            let (n, table) = (n as u32, frame.planes.slice(..8)?.cast());
            let batch = BatchTable { images: 1, patches: n, largest: n, table };
            let out = RelevanceMut { salience, relevance: out };
            relevance(s, &batch, f32::from(v) / 256.0, [0.5, 0.5], &frame.planes, entropy, out)
        }
    }
}

/// Reads all bits in a frame, and gives the frame back.
fn contents<S: LiveBrand>(s: &Stream<S>, frame: FrameOn<S>) -> Result<(Vec<Vec<u32>>, Frame), Error> {
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let mut all = Vec::new();
    for x in frame.device.iter().chain([&frame.planes]) {
        all.push(bits(&s.read_blocking(x)?));
    }
    let frame = s.record(frame)?.synchronize()?;
    all.extend(frame.host.iter().map(|host| bits(host)));
    Ok((all, frame))
}

/// Replays a program with new contents in each round, on one stream or two, and compares it with
/// running the program.
fn compare(device: Device, len: usize, program: &[Op], rounds: &[(u8, u8)]) -> Result<(), Error> {
    lanes(device, |a, b| {
        let (graph, replayed) =
            a.capture(Frame::zeros(a, len), |s, frame| program.iter().try_for_each(|&op| step(s, frame, op)))?;
        let mut graph = graph;
        let mut replayed = contents(&a, replayed)?;
        assert!(replayed.0.iter().flatten().all(|&bits| bits == 0), "{device}: something ran at the capture");
        let mut run = contents(&a, Frame::zeros(a, len))?.1;
        for &(seed, times) in rounds {
            for frame in [&mut replayed.1, &mut run] {
                for (i, host) in frame.host.iter_mut().enumerate() {
                    let values = (0..len).map(|k| ((k + i) * (1 + usize::from(seed)) % 251) as f32 / 16.0);
                    host.iter_mut().zip(values).for_each(|(x, v)| *x = v);
                }
            }
            let times = 1 + times % 3;
            let mut on_a = a.bind(run)?;
            for _ in 0..times {
                program.iter().try_for_each(|&op| step(&a, &mut on_a, op))?;
            }
            let want = contents(&a, on_a)?;
            run = want.1;
            replayed = if seed % 2 == 0 {
                let mut frame = a.bind(replayed.1)?;
                for _ in 0..times {
                    frame = a.replay(&mut graph, frame)?;
                }
                contents(&a, frame)?
            } else {
                // The frame goes to the other stream and back, and the host does not wait in
                // between.
                let mut frame = b.bind(replayed.1)?;
                for _ in 1..times {
                    frame = b.replay(&mut graph, frame)?;
                }
                contents(&a, a.replay(&mut graph, b.hand_off(frame, &a)?)?)?
            };
            assert_eq!(replayed.0, want.0, "{device}");
        }
        Ok(())
    })
}

fn explore(device: Device, programs: u32, schedules: u64) {
    let config = testkit::cases(programs);
    let programs = config.cases;
    let op = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>());
    let len = prop::sample::select(vec![1usize, 2, 31, 64, 257, 1500]);
    let input = (any::<u64>().no_shrink(), len, vec(op, 0..24), vec((any::<u8>(), any::<u8>()), 1..4));
    let result = TestRunner::new(config).run(&input, |(seed, len, program, rounds)| {
        (0..schedules).try_for_each(|schedule| {
            device.reseed(seed.wrapping_add(schedule));
            compare(device, len, &program, &rounds).map_err(|e| TestCaseError::fail(format!("{device}: {e}")))
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    report(&format!("covered: {programs} captured programs on {device}, {schedules} schedule(s) each"));
}

#[test]
fn replays_do_what_the_program_does() {
    everywhere(|device| explore(device, 200, 1));
}

#[test]
fn replays_do_what_the_program_does_under_seeded_schedules() {
    explore(Device::seeded_cpu(0).unwrap(), 300, 3);
}

// --- one promise at a time -----------------------------------------------------------------------

#[test]
fn a_capture_runs_nothing_and_counts_nodes() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _| {
            let (mut graph, x) = a
                .capture(pair(a, 100, 1), |s, (x, host)| {
                    s.fill(x, 2)?;
                    s.copy_to_host(x, host)?;
                    s.zero(x.slice_mut(0..0)?) // This does nothing and adds no node.
                })
                .unwrap();
            assert_eq!((graph.len(), graph.is_empty(), graph.device()), (2, false, device));
            assert!(format!("{graph:?}").contains("nodes: 2"));
            a.synchronize().unwrap();
            let x = a.bind(a.record(x).unwrap().synchronize().unwrap()).unwrap();
            assert_eq!(a.read_blocking(&x.0).unwrap(), [1; 100]);
            let x = a.replay(&mut graph, x).unwrap();
            assert_eq!(look(a, x), (vec![2; 100], vec![2; 100]));
        });
    });
}

#[test]
fn an_empty_capture_replays_as_nothing() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b| {
            let (mut graph, x) = a.capture(pair(a, 10, 7), |_, _| Ok(())).unwrap();
            assert!(graph.is_empty());
            let x = a.replay(&mut graph, x).unwrap();
            assert_eq!(look(a, x).0, [7; 10]);
            let (mut graph, ()) = a.capture((), |_, ()| Ok(())).unwrap();
            b.replay(&mut graph, ()).unwrap();
        });
    });
}

#[test]
fn a_replay_has_its_place_in_the_stream() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b| {
            let (mut graph, mut x) = download_and_set(a, pair(a, 1000, 1), 2);
            a.fill(&mut x.0, 5).unwrap();
            let mut x = a.replay(&mut graph, x).unwrap();
            a.fill(&mut x.0, 6).unwrap();
            let x = b.replay(&mut graph, a.hand_off(x, &b).unwrap()).unwrap();
            assert_eq!(look(b, x), (vec![2; 1000], vec![6; 1000]));
        });
    });
}

#[test]
fn a_replay_waits_behind_its_stream_and_not_in_the_call() {
    everywhere(|device| {
        lanes(device, |a, b| {
            let (mut graph, x) = download_and_set(a, pair(a, 100, 1), 2);
            // The first replay happens before the gate closes, because it may load code.
            let x = a.replay(&mut graph, x).unwrap();
            let gate = Gate::closed(device);
            a.synchronize().unwrap();
            gate.hold(&a);
            let x = at_once(&gate, || {
                let x = a.replay(&mut graph, x).unwrap();
                let x = b.replay(&mut graph, a.hand_off(x, &b).unwrap()).unwrap();
                assert!(!b.is_complete().unwrap());
                x
            });
            gate.open();
            assert_eq!(look(b, x), (vec![2; 100], vec![2; 100]));
        });
    });
}

#[test]
fn another_bundle_is_refused_and_comes_back() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _| {
            let (mut graph, first) = download_and_set(a, pair(a, 100, 1), 9);
            let refused = |returned: thalweg::Returned<_>, at: usize| {
                let Error::GraphMismatch { index, captured, given } = &returned.error else {
                    panic!("{}", returned.error)
                };
                assert_eq!(*index, at, "{captured}, {given}");
                assert_ne!(captured, given);
                assert!(returned.error.to_string().contains(given), "{}", returned.error);
                returned.value
            };
            // Other memory, and memory of another length.
            for len in [100, 50] {
                let other = a.replay(&mut graph, pair(a, len, 3)).unwrap_err();
                assert_eq!(look(a, refused(other, 0)), (vec![3; len], vec![0; len]));
            }
            // No memory at all. The message gives it no allocation's number.
            let none = a.bind((DeviceBuffer::empty(device), PinnedBuffer::empty(device))).unwrap();
            let other = a.replay(&mut graph, none).unwrap_err();
            assert!(other.error.to_string().contains("(allocation 0)"), "{}", other.error);
            drop(refused(other, 0));
            // A piece of the memory that begins at the same place.
            let (x, host) = first;
            let mut pieces = x.split_even(2).unwrap();
            let second = pieces.pop().unwrap();
            let (x, host) = refused(a.replay(&mut graph, (pieces.pop().unwrap(), host)).unwrap_err(), 0);
            let x = On::<_, DeviceBuffer<u32>>::join(vec![x, second]).unwrap();
            // One buffer is another's.
            let (_, other) = pair(a, 100, 1);
            let (x, other) = refused(a.replay(&mut graph, (x, other)).unwrap_err(), 1);
            drop(other);
            // What it was captured with.
            let x = a.replay(&mut graph, (x, host)).unwrap();
            assert_eq!(look(a, x), (vec![9; 100], vec![1; 100]));
        });
    });
}

#[test]
fn a_bundle_with_more_less_or_rearranged_buffers_is_refused() {
    everywhere(|device| {
        lanes(device, |a, _| {
            let buffers = (0..3).map(|_| a.alloc_zeroed::<u32>(64).unwrap()).collect::<Vec<_>>();
            let (mut graph, mut buffers) = a
                .capture(buffers, |s, buffers| buffers.iter_mut().zip(1..).try_for_each(|(x, v)| s.fill(x, v)))
                .unwrap();
            let at = |error: Error| match error {
                Error::GraphMismatch { index, captured, given } => (index, captured, given),
                error => panic!("{error}"),
            };
            let last = buffers.pop().unwrap();
            let returned = a.replay(&mut graph, buffers).unwrap_err();
            let (index, _, given) = at(returned.error);
            assert_eq!((index, &*given), (2, "not there"));
            buffers = returned.value;
            buffers.push(last);
            buffers.push(a.alloc(64).unwrap());
            let returned = a.replay(&mut graph, buffers).unwrap_err();
            let (index, captured, _) = at(returned.error);
            assert_eq!((index, &*captured), (3, "not there"));
            buffers = returned.value;
            buffers.pop();
            buffers.swap(1, 2);
            let returned = a.replay(&mut graph, buffers).unwrap_err();
            assert_eq!(at(returned.error).0, 1);
            buffers = returned.value;
            buffers.swap(1, 2);
            let buffers = a.replay(&mut graph, buffers).unwrap();
            for (x, v) in buffers.iter().zip(1..) {
                assert_eq!(a.read_blocking(x).unwrap(), [v; 64]);
            }
        });
    });
}

/// A graph contains only what the capture enqueues on buffers. What the closure does with the
/// handles does not matter.
#[test]
fn handles_dropped_taken_swapped_and_forgotten_in_a_capture() {
    everywhere(|device| {
        lanes(device, |a, _| {
            type Bundle = (Vec<DeviceBuffer<u32>>, Option<DeviceBuffer<u32>>);
            let filled = |v| {
                let mut x = a.alloc::<u32>(64).unwrap();
                a.fill(&mut x, v).unwrap();
                x
            };
            let bundle: <Bundle as Resource>::On<_> = (vec![filled(1), filled(2), filled(3)], Some(filled(4)));
            let (mut graph, bundle) = a
                .capture(bundle, |s, (many, one)| {
                    let mut taken = one.take().expect("it is there");
                    s.fill(&mut taken, 40)?;
                    many.swap(0, 1);
                    std::mem::swap(&mut many[2], &mut taken);
                    s.copy(&taken, &mut many[0])?; // 3 to what was 2
                    drop(taken);
                    std::mem::forget(many.pop());
                    many.clear();
                    Ok(())
                })
                .unwrap();
            assert_eq!((bundle.0.len(), bundle.1.is_some()), (3, true));
            let (many, one) = a.replay(&mut graph, bundle).unwrap();
            let numbers: Vec<u32> = many
                .iter()
                .chain(&one)
                .map(|x| a.read_blocking(x).unwrap())
                .inspect(|x| assert_eq!(x.len(), 64))
                .map(|x| x[63])
                .collect();
            assert_eq!(numbers, [1, 3, 3, 40]);
        });
    });
}

#[test]
fn a_failed_capture_gives_the_bundle_back_and_the_next_one_works() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _| {
            let mut x = pair(a, 100, 1);
            for _ in 0..3 {
                let returned = a
                    .capture(x, |s, (x, host)| {
                        s.fill(x, 7)?;
                        s.copy_to_host(x.slice(0..50)?, host)
                    })
                    .unwrap_err();
                assert!(matches!(returned.error, Error::LengthMismatch { source_len: 50, destination_len: 100 }));
                x = returned.value;
            }
            assert_eq!(a.read_blocking(&x.0).unwrap(), [1; 100]);
            let (mut graph, x) = download_and_set(a, x, 2);
            assert_eq!(graph.len(), 2, "nothing is left of the others");
            let x = a.replay(&mut graph, x).unwrap();
            assert_eq!(look(a, x), (vec![2; 100], vec![1; 100]));
        });
    });
}

#[test]
fn a_panic_in_a_capture_gives_everything_back() {
    let cpu = Device::new_cpu().unwrap();
    cpu.limit_memory(Some(1 << 20));
    for device in devices().iter().copied().chain([cpu]) {
        let _lock = alone_on(device);
        lanes(device, |a, _| {
            let x = pair(a, 1 << 16, 1);
            let free = device.free_memory().unwrap();
            let panic = catch_unwind(AssertUnwindSafe(|| {
                a.capture(x, |s, (x, _)| {
                    s.fill(x, 7)?;
                    panic!("on purpose")
                })
            }));
            assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"on purpose"));
            a.synchronize().unwrap();
            if device == cpu {
                // No other test allocates on this device.
                assert_eq!(device.free_memory().unwrap(), free + 4 * (1 << 16));
            }
            let (mut graph, x) = download_and_set(a, pair(a, 100, 1), 2);
            assert_eq!(graph.len(), 2);
            assert_eq!(look(a, a.replay(&mut graph, x).unwrap()), (vec![2; 100], vec![1; 100]));
        });
    }
}

#[test]
fn a_graph_may_go_while_its_replays_are_pending() {
    everywhere(|device| {
        lanes(device, |a, _| {
            let (mut graph, x) = download_and_set(a, pair(a, 1000, 1), 2);
            let x = a.replay(&mut graph, x).unwrap();
            let gate = Gate::closed(device);
            a.synchronize().unwrap();
            gate.hold(&a);
            let x = at_once(&gate, || {
                let x = a.replay(&mut graph, x).unwrap();
                let x = a.replay(&mut graph, x).unwrap();
                drop(graph);
                x
            });
            gate.open();
            assert_eq!(look(a, x), (vec![2; 1000], vec![2; 1000]));
        });
    });
}

/// Device memory is freed only after the replays, and page-locked memory is reused only after them.
#[test]
fn a_bundle_may_go_while_replays_are_pending() {
    everywhere(|device| {
        lanes(device, |a, _| {
            let pool = PinnedPool::new(device, 1 << 20);
            let mut x = a.alloc::<u32>(1000).unwrap();
            a.fill(&mut x, 1).unwrap();
            let host = a.bind(pool.take::<u32>(1000).unwrap()).unwrap();
            let (mut graph, x) = download_and_set(a, (x, host), 2);
            let x = a.replay(&mut graph, x).unwrap();
            let spare: PinnedBuffer<u32> = pool.take(1000).unwrap();
            drop(spare); // page-locked before the gate is closed
            let gate = Gate::closed(device);
            a.synchronize().unwrap();
            gate.hold(&a);
            let mut mine = at_once(&gate, || {
                drop(a.replay(&mut graph, x).unwrap());
                pool.take::<u32>(1000).unwrap()
            });
            mine.fill(5);
            gate.open();
            a.synchronize().unwrap();
            assert_eq!(mine[..], [5; 1000], "lent again while a replay was still to write there");
            drop(graph);
        });
    });
}

/// An executable graph may know more of an allocation than its address. So it must not run on a new
/// allocation at the same address, after frees and trims, in device memory or page-locked memory.
#[test]
fn a_graph_does_not_run_on_memory_in_the_place_of_its_own() {
    // For this size malloc always asks the system, which often gives the same address.
    const LEN: usize = 9 << 20;
    const PATCHES: usize = 100;
    const TRIES: usize = 4;
    type Device = DeviceBuffer<f32>;
    type Places = (Device, Device, Device, PinnedBuffer<f32>);

    fn places<S: LiveBrand>(s: Stream<S>, pool: &PinnedPool, v: f32) -> <Places as Resource>::On<S> {
        let [x, y, z] = [(); 3].map(|()| s.alloc_zeroed(LEN).unwrap());
        let mut host = pool.take(LEN).unwrap();
        host.fill(v);
        (x, y, z, s.bind(host).unwrap())
    }

    /// Enqueues copies in all directions, a fill and a kernel, from the page-locked buffer and back
    /// to it.
    fn work<S: Brand>(s: &Stream<S>, (x, y, z, host): &mut <Places as Resource>::On<S>) -> Result<(), Error> {
        s.copy_to_device(host, y)?;
        s.copy(y, z)?;
        s.fill(x, 3.0)?;
        let (salience, rest) = y.split_at_mut(PATCHES)?;
        let (n, out) = (PATCHES as u32, rest.slice_mut(..PATCHES)?);
        let (table, planes) = (z.slice(..8)?.cast(), z.slice(..PLANES * PATCHES)?);
        let batch = BatchTable { images: 1, patches: n, largest: n, table };
        let out = RelevanceMut { salience, relevance: out };
        relevance(s, &batch, 0.5, [0.5, 0.5], planes, x.slice(..PATCHES)?, out)?;
        s.copy_to_host(y, host)
    }

    fn host<S: LiveBrand>(s: Stream<S>, host: On<S, PinnedBuffer<f32>>) -> Vec<u32> {
        host.synchronize()
            .map(|host| host.iter().map(|v| v.to_bits()).collect())
            .unwrap_or_else(|e| panic!("{s:?}: {e}"))
    }

    everywhere(|device| {
        lanes(device, |s, _| {
            let pool = PinnedPool::new(device, 1 << 30);
            let want = |v| {
                let mut places = places(s, &pool, v);
                work(&s, &mut places).unwrap();
                host(s, places.3)
            };
            let refused = |error: Error, at: usize| match error {
                Error::GraphMismatch { index, captured, given } => {
                    assert_eq!(index, at, "{captured}, {given}");
                    assert_ne!(captured, given);
                }
                error => panic!("{error}"),
            };
            let (mut graph, (x, y, z, first)) = s.capture(places(s, &pool, 1.0), |s, places| work(s, places)).unwrap();
            let at = (x.device_ptr(), first.host_ptr());

            // A replay accepts page-locked memory that the pool gives out again, because it was
            // never freed.
            drop(first);
            s.synchronize().unwrap();
            let mut again = pool.take(LEN).unwrap();
            assert_eq!(again.as_ptr() as u64, at.1);
            again.fill(2.0);
            let (x, y, z, again) = s.replay(&mut graph, (x, y, z, s.bind(again).unwrap())).unwrap();
            assert_eq!(host(s, again), want(2.0));

            // A replay refuses new page-locked memory after the old was freed.
            s.synchronize().unwrap();
            pool.trim();
            let (mut kept, mut bundle, mut reused) = (Vec::new(), (x, y, z), [false; 2]);
            for _ in 0..TRIES {
                let mut other = pool.take(LEN).unwrap();
                other.fill(4.0);
                reused[0] = other.as_ptr() as u64 == at.1;
                let (x, y, z) = bundle;
                let returned = s.replay(&mut graph, (x, y, z, s.bind(other).unwrap())).unwrap_err();
                refused(returned.error, 3);
                let (x, y, z, other) = returned.value;
                bundle = (x, y, z);
                kept.push(other.synchronize().unwrap());
                if reused[0] {
                    break;
                }
            }
            assert!(kept.iter().all(|other| other.iter().all(|v| *v == 4.0)), "nothing was enqueued");

            // A replay refuses new device memory after the old was freed.
            drop((bundle, kept));
            s.synchronize().unwrap();
            pool.trim();
            device.trim().unwrap();
            let mut kept = Vec::new();
            for _ in 0..TRIES {
                let other = places(s, &pool, 5.0);
                reused[1] = other.0.device_ptr() == at.0;
                let returned = s.replay(&mut graph, other).unwrap_err();
                refused(returned.error, 0);
                assert!(s.read_blocking(&returned.value.0).unwrap().iter().all(|v| *v == 0.0), "nothing was enqueued");
                kept.push(returned.value);
                if reused[1] {
                    break;
                }
            }
            let Some(last) = kept.pop() else { unreachable!() };
            let (mut graph, last) = s.capture(last, |s, places| work(s, places)).unwrap();
            let last = s.replay(&mut graph, last).unwrap();
            assert_eq!(host(s, last.3), want(5.0));
            report(&format!("{device}: page-locked memory, device memory at the address of freed memory: {reused:?}"));
        });
    });
}

/// Here the address is certainly the same. Memory that a new owner adopts counts as a new
/// allocation.
#[test]
fn an_address_and_a_length_are_not_an_allocation() {
    everywhere(|device| {
        lanes(device, |a, _| {
            let mut x = a.alloc::<u32>(1000).unwrap();
            a.fill(&mut x, 1).unwrap();
            let (mut graph, x) = a.capture(x, |s, x| s.fill(x, 2)).unwrap();
            let idle = x.synchronize().unwrap();
            let address = idle.device_ptr();
            std::mem::forget(idle);
            // SAFETY: `alloc` above made this memory on this device, with 1000 elements. Its only
            // owner was idle and is forgotten, so nothing else uses or frees it.
            let other = unsafe { DeviceBuffer::<u32>::from_raw(device, address, 1000) }.unwrap();
            let returned = a.replay(&mut graph, a.bind(other).unwrap()).unwrap_err();
            assert!(matches!(returned.error, Error::GraphMismatch { index: 0, .. }), "{}", returned.error);
            assert_eq!(a.read_blocking(&returned.value).unwrap(), [1; 1000], "nothing was enqueued");
        });
    });
}

#[test]
fn memory_is_counted_back_whatever_becomes_of_the_graph() {
    let device = Device::new_cpu().unwrap();
    // `free_memory` then counts from this limit, not from the free memory of the machine.
    device.limit_memory(Some(1 << 20));
    let free = device.free_memory().unwrap();
    lanes(device, |a, _| {
        let (mut graph, x) = download_and_set(a, pair(a, 1 << 16, 1), 2);
        assert_eq!(device.free_memory().unwrap(), free - 4 * (1 << 16));
        let x = a.replay(&mut graph, x).unwrap();
        drop(x);
        a.synchronize().unwrap();
        assert_eq!(device.free_memory().unwrap(), free, "the graph holds none");
        std::mem::forget(graph);
        let (graph, x) = download_and_set(a, pair(a, 1 << 16, 1), 2);
        drop(graph);
        assert_eq!(device.free_memory().unwrap(), free - 4 * (1 << 16));
        drop(x);
        a.synchronize().unwrap();
        assert_eq!(device.free_memory().unwrap(), free);
    });
}

#[test]
fn a_graph_of_another_device_is_refused() {
    let (here, there) = (Device::cpu().unwrap(), Device::new_cpu().unwrap());
    lanes(here, |a, _| {
        lanes(there, |b, _| {
            // Both devices accept this page-locked memory, so only the graph belongs to another
            // device.
            let host = a.bind(here.pinned_from(&[0u32; 10]).unwrap()).unwrap();
            let (mut graph, host) = a.capture(host, |_, _| Ok(())).unwrap();
            let returned = b.replay(&mut graph, a.hand_off(host, &b).unwrap()).unwrap_err();
            assert!(matches!(returned.error, Error::DeviceMismatch { .. }), "{}", returned.error);
            let (mut graph, _) = download_and_set(a, pair(a, 10, 1), 2);
            let returned = b.replay(&mut graph, pair(b, 10, 1)).unwrap_err();
            assert!(matches!(returned.error, Error::DeviceMismatch { .. }), "{}", returned.error);
            assert_eq!(look(b, returned.value).0, [1; 10]);
        });
    });
    // The same holds for two GPUs, if the machine has two.
    let gpus: Vec<_> = devices().iter().filter(|d| d.kind() == DeviceKind::Cuda).collect();
    if let [first, second, ..] = gpus[..] {
        let _lock = alone_on(*first);
        lanes(*first, |a, _| {
            lanes(*second, |b, _| {
                let (mut graph, x) = download_and_set(a, pair(a, 10, 1), 2);
                assert!(b.replay(&mut graph, pair(b, 10, 1)).is_err());
                assert_eq!(look(a, a.replay(&mut graph, x).unwrap()), (vec![2; 10], vec![1; 10]));
            });
        });
    }
}

#[test]
fn a_device_that_fails_in_a_graph_says_so() {
    for device in [Device::new_cpu().unwrap(), Device::seeded_cpu(3).unwrap()] {
        lanes(device, |a, _| {
            let (mut broken, x) = a.capture(a.alloc_zeroed::<u32>(1).unwrap(), |s, x| fails(s, x)).unwrap();
            let (mut sound, y) = download_and_set(a, pair(a, 10, 1), 2);
            let y = a.replay(&mut sound, y).unwrap();
            let x = a.replay(&mut broken, x).unwrap();
            let error = a.synchronize().unwrap_err().to_string();
            assert!(error.contains("on purpose"), "{error}");
            let returned = a.replay(&mut sound, y).unwrap_err();
            assert!(matches!(returned.error, Error::Poisoned { .. }), "{}", returned.error);
            let returned = a.capture(returned.value, |_, _| Ok(())).unwrap_err();
            assert!(matches!(returned.error, Error::Poisoned { .. }), "{}", returned.error);
            drop((x, returned, broken, sound));
        });
    }
}

#[test]
fn a_launch_that_its_declaration_rules_out_fails_at_the_capture() {
    everywhere(|device| {
        lanes(device, |a, _| {
            let frame = Frame::zeros(a, 64);
            let returned = a
                .capture(frame, |s, frame| {
                    let [entropy, salience, out, _] = &mut frame.device[..] else { unreachable!() };
                    let table = frame.planes.slice(..8)?.cast();
                    let batch = BatchTable { images: 1, patches: 63, largest: 63, table };
                    let out = RelevanceMut { salience, relevance: out };
                    relevance(s, &batch, 0.5, [0.5, 0.5], &frame.planes, entropy, out)
                })
                .err()
                .unwrap();
            assert!(matches!(returned.error, Error::Launch(LaunchError::Requirement { .. })), "{}", returned.error);
            assert_eq!(returned.value.device.len(), BUFFERS);
        });
    });
}

/// Captures do not affect each other, on one thread or several. Work on other streams goes on.
#[test]
fn captures_nest_and_run_side_by_side() {
    everywhere(|device| {
        lanes(device, |a, b| {
            let mut elsewhere = b.alloc_zeroed::<u32>(10).unwrap();
            let mut inner = None;
            let (mut outer, x) = a
                .capture(pair(a, 100, 1), |s, (x, _)| {
                    s.fill(x, 2)?;
                    let (graph, y) = b.capture(pair(b, 100, 3), |t, (y, host)| {
                        s.fill(x.slice_mut(0..50)?, 4)?; // part of the outer graph
                        t.copy_to_host(y, host)
                    })?;
                    inner = Some((graph, y));
                    // These calls run at once and are in no graph.
                    b.write_blocking(&[7; 10], &mut elsewhere)?;
                    assert_eq!(b.read_blocking(&elsewhere)?, [7; 10]);
                    Ok(())
                })
                .unwrap();
            let (mut inner, y) = inner.unwrap();
            assert_eq!((outer.len(), inner.len()), (2, 1));
            assert_eq!(look(b, b.replay(&mut inner, y).unwrap()), (vec![3; 100], vec![3; 100]));
            let (x, _) = look(a, a.replay(&mut outer, x).unwrap());
            assert_eq!((x[..50].to_vec(), x[50..].to_vec()), (vec![4; 50], vec![2; 50]));
        });
        thread::scope(|threads| {
            for v in 10..14 {
                threads.spawn(move || {
                    lanes(device, |a, _| {
                        for v in (v * 100..).take(20) {
                            let (mut graph, x) = download_and_set(a, pair(a, 100, v), v + 1);
                            assert_eq!(look(a, a.replay(&mut graph, x).unwrap()), (vec![v + 1; 100], vec![v; 100]));
                        }
                    });
                });
            }
        });
    });
}

/// A graph can move between threads. If it is dropped where the driver may not be called, another
/// thread destroys it.
#[test]
fn a_graph_goes_to_other_threads_and_into_host_functions() {
    stream_tags!(Work);
    fn sent<T: Send + Sync>(value: T) -> T {
        value
    }
    let device = Device::best().unwrap();
    let _lock = alone_on(device);
    let work = device.stream::<Work>().unwrap();
    let (graph, x) = download_and_set(work, pair(work, 100, 1), 2);
    let (mut graph, x) = thread::spawn(move || {
        let mut graph = sent(graph);
        let x = work.replay(&mut graph, x).unwrap();
        (graph, x)
    })
    .join()
    .unwrap();
    let x = work.replay(&mut graph, x).unwrap();
    let (told, tell) = mpsc::channel();
    work.launch_host(move || {
        drop(graph);
        let mine = Device::best().and_then(|d| d.stream::<Work>());
        let inside = mine.and_then(|s| Ok(s.capture((), |_, ()| Ok(())).map(drop)?));
        told.send(inside.unwrap_err().to_string()).unwrap();
    })
    .unwrap();
    assert!(tell.recv().unwrap().contains("host function"));
    assert_eq!(look(work, x), (vec![2; 100], vec![2; 100]));
    assert_eq!(work.capture((), |_, ()| Ok(())).unwrap().0.len(), 0);
}
