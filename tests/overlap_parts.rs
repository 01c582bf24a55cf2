//! Patterns for work of many parts: a pool of scoped streams, shared reads, a stream for each
//! thread, polling, graphs and priorities.
//!
//! For any sizes, scoped streams, threads and schedule, a pattern gives the same results as its
//! parts one after another, bit for bit. If a part fails, its error is at the place of its result.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use testkit::cases;
use testkit::devices::{alone_on, devices};
use testkit::gate::{Gate, guarded};
use thalweg::overlap::{Latency, measure_priority, per_thread, query_poll, shared_read, stream_pool};
use thalweg::{
    AnyStream, Brand, Device, DeviceBuffer, Error, Event, GraphCache, GraphStep, GraphWork, LiveBrand, PinnedBuffer,
    PinnedPool, Resource, Result, Ring, Stream, StreamPool,
};
use thalweg_vision::kernels;

/// A small image. About one part in five fails.
#[derive(Clone, Debug)]
struct Part {
    height: u32,
    width: u32,
    patch: u32,
    seed: u8,
    fails: bool,
}

impl Part {
    fn any() -> impl Strategy<Value = Self> {
        (1..40u32, 1..40u32, 1..20u32, any::<u8>(), prop::bool::weighted(0.2))
            .prop_map(|(height, width, patch, seed, fails)| Self { height, width, patch, seed, fails })
    }

    fn bytes(&self) -> Vec<u8> {
        (0..3 * self.height * self.width).map(|i| (i * i / 7 + i * u32::from(self.seed)) as u8).collect()
    }

    /// Enqueues upload, kernel and download on one stream. A part that fails does so at its kernel.
    fn enqueue<S: LiveBrand>(&self, s: Stream<S>) -> Result<Event<PinnedBuffer<f32>>> {
        let host = s.bind(s.device().pinned_from(&self.bytes())?)?;
        let mut rgb = s.alloc(host.len())?;
        s.copy_to_device(&host, &mut rgb)?;
        let patches = (self.height.div_ceil(self.patch) * self.width.div_ceil(self.patch)) as usize;
        let mut entropy = s.alloc::<f32>(patches + usize::from(self.fails))?;
        kernels::entropy(&s, self.height, self.width, self.patch, &rgb, &mut entropy)?;
        let mut result = s.bind(s.device().pinned(patches)?)?;
        s.copy_to_host(&entropy, &mut result)?;
        Ok(s.record(result)?)
    }
}

/// Runs each part to its end before the next.
fn serial(device: Device, parts: &[Part]) -> Vec<Option<Vec<u32>>> {
    let one = |part: &Part| Some(bits(&device.per_thread(|s| part.enqueue(*s)).unwrap().ok()?.synchronize().unwrap()));
    parts.iter().map(one).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Gives the bits of a result, or `None` for the error of a part that fails on purpose.
#[track_caller]
fn outcome(result: Result<PinnedBuffer<f32>>) -> Option<Vec<u32>> {
    match result {
        Ok(values) => Some(bits(&values)),
        Err(Error::Launch(_)) => None,
        Err(other) => panic!("{other}"),
    }
}

/// Checks random inputs on every device, and on a seeded device with a new schedule for each case.
fn everywhere<I: std::fmt::Debug>(count: u32, input: impl Strategy<Value = I>, check: impl Fn(Device, I)) {
    let seeded = Device::seeded_cpu(0).unwrap();
    for &device in devices().iter().chain([&seeded]) {
        let _alone = alone_on(device);
        let seed = Cell::new(0);
        TestRunner::new(cases(count))
            .run(&input, |input| {
                device.reseed(seed.replace(seed.get() + 1));
                check(device, input);
                Ok(())
            })
            .unwrap_or_else(|e| panic!("{device}: {e}"));
    }
}

// --- a pool of scoped streams
// -----------------------------------------------------------------------------

#[test]
fn a_pool_gives_what_serial_gives() {
    everywhere(80, (vec(Part::any(), 0..20), 1..7usize), |device, (parts, lanes)| {
        let pool = StreamPool::new(device, lanes).unwrap();
        let drawn = Cell::new(0);
        let items = parts.iter().inspect(|_| drawn.set(drawn.get() + 1));
        let mut got = Vec::new();
        for result in stream_pool(&pool, items, |s, part| part.enqueue(*s)) {
            got.push(outcome(result));
            assert!(drawn.get() < got.len() + 2 * lanes, "{} items drawn for {} results", drawn.get(), got.len());
        }
        assert_eq!(got, serial(device, &parts));
        // If the caller stops half way, the pattern drops the work under way and gives every lane
        // back.
        let half = stream_pool(&pool, &parts, |s, part| part.enqueue(*s)).take(parts.len() / 2).count();
        assert_eq!(half, parts.len() / 2);
        every_lane(&pool, lanes);
    });
}

/// Takes all scoped streams of a pool at once, and hangs if one is missing.
fn every_lane(pool: &StreamPool, left: usize) {
    if left > 0 {
        pool.with_stream(|_| every_lane(pool, left - 1));
    }
}

#[test]
fn one_thread_goes_round_all_lanes() {
    everywhere(10, (1..9usize, 0..30usize), |device, (lanes, items)| {
        let pool = StreamPool::new(device, lanes).unwrap();
        let serials = std::cell::RefCell::new(Vec::new());
        let none = stream_pool(&pool, 0..items, |s, _| {
            serials.borrow_mut().push(s.unique_id());
            Ok(s.record(())?)
        });
        assert_eq!(none.map(Result::unwrap).count(), items);
        let serials = serials.into_inner();
        for (i, serial) in serials.iter().enumerate() {
            let next = &serials[i..items.min(i + lanes)];
            assert_eq!(next.iter().filter(|s| *s == serial).count(), 1, "{serials:?}");
        }
    });
}

#[test]
fn an_exhausted_pool_waits() {
    for &device in devices() {
        let _alone = alone_on(device);
        let pool = StreamPool::new(device, 1).unwrap();
        let free = AtomicBool::new(false);
        let ((taken, is_taken), (go, told)) = (mpsc::channel(), mpsc::channel());
        let (pool, free) = (&pool, &free);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                pool.with_stream(|_| {
                    taken.send(()).unwrap();
                    told.recv().unwrap();
                    free.store(true, Ordering::SeqCst);
                });
            });
            is_taken.recv().unwrap();
            let waiting = scope.spawn(move || {
                let mut results = stream_pool(pool, 0..5u32, |s, item| {
                    assert!(free.load(Ordering::SeqCst), "the only lane was lent twice");
                    Ok(s.record(s.upload_blocking(&[item])?)?)
                });
                assert!(results.all(|r| r.is_ok()));
            });
            go.send(()).unwrap();
            waiting.join().unwrap();
        });
    }
}

#[test]
fn a_panic_in_a_lane_gives_the_lane_and_the_memory_back() {
    everywhere(20, (1..5usize, 0..12usize), |device, (lanes, at)| {
        let pool = StreamPool::new(device, lanes).unwrap();
        let room = 2 * lanes * 4096;
        let pinned = PinnedPool::new(device, room);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            stream_pool(&pool, 0.., |s, item| {
                assert!(item != at, "as asked");
                let mut x = s.bind(pinned.take::<u32>(100)?)?;
                s.copy_to_host(&s.upload_blocking(&[1; 100])?, &mut x)?;
                Ok(s.record(x)?)
            })
            .try_for_each(|result| result.map(drop))
            .unwrap();
        }));
        assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"as asked"));
        every_lane(&pool, lanes);
        // Waits for the memory that was dropped in flight, and fails if any of it never comes back.
        pinned.take::<u8>(room).unwrap();
    });
}

// --- shared reads --------------------------------------------------------------------------------

#[test]
fn readers_see_what_was_shared() {
    let range = (0..300usize, 0..300usize, prop::bool::weighted(0.1));
    everywhere(120, (vec(any::<u32>(), 0..300), 1..6usize, vec(range, 0..12)), |device, (data, lanes, ranges)| {
        let pool = StreamPool::new(device, lanes).unwrap();
        device
            .per_thread(|s| {
                let host = s.bind(device.pinned_from(&data)?)?;
                let mut x = s.alloc(data.len())?;
                s.copy_to_device(&host, &mut x)?;
                let shared = s.share(x)?;
                let readers = ranges.iter().map(|&(start, len, fails)| {
                    let start = start.min(data.len());
                    (start..(start + len).min(data.len()), fails)
                });
                let parts = shared_read(&pool, &shared, readers.clone(), |s, x, (range, fails)| {
                    let mut part = s.bind(device.pinned(range.len() + usize::from(fails))?)?;
                    s.copy_to_host(x.slice(range)?, &mut part)?;
                    Ok(s.record(part)?)
                });
                assert_eq!(shared.ref_count(), 1);
                // Overwrites the buffer at once, on a stream that waits for the readers.
                let mut x = s.unshare(shared)?;
                s.fill(&mut x, 0xdead_beef)?;
                for (part, (range, fails)) in parts.into_iter().zip(readers) {
                    match part {
                        Ok(part) => assert_eq!(part.synchronize()?[..], data[range]),
                        Err(error) => assert!(fails && matches!(error, Error::LengthMismatch { .. }), "{error}"),
                    }
                }
                assert_eq!(s.read_blocking(&x)?, vec![0xdead_beef; data.len()]);
                Ok::<_, Error>(())
            })
            .unwrap()
            .unwrap();
    });
}

// --- a stream for each thread --------------------------------------------------------------------

#[test]
fn threads_give_what_serial_gives() {
    everywhere(60, (vec(Part::any(), 0..20), 1..7usize), |device, (parts, threads)| {
        let got = per_thread(device, threads, &parts, |s, part| Ok(part.enqueue(*s)?.synchronize()?)).unwrap();
        assert_eq!(got.into_iter().map(outcome).collect::<Vec<_>>(), serial(device, &parts));
    });
}

#[test]
fn a_panic_in_a_thread_reaches_the_caller_after_the_others_are_done() {
    everywhere(20, (2..5usize, 1..20usize, any::<usize>()), |device, (threads, items, at)| {
        let done = AtomicUsize::new(0);
        let items: Vec<_> = (0..items).collect();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            per_thread(device, threads, &items, |s, &item| {
                let x = s.upload_blocking(&[item as u32])?;
                assert!(item != at % items.len(), "as asked");
                assert_eq!(s.read_blocking(&x)?, [item as u32]);
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
        }));
        assert_eq!(panic.map(drop).unwrap_err().downcast_ref::<&str>(), Some(&"as asked"));
        // If there is only one thread, nobody does the work that it leaves after its panic.
        let alone = threads.min(items.len()) == 1;
        assert!(alone || done.into_inner() == items.len() - 1);
    });
    let none = per_thread(devices()[0], 0, &[0; 3], |_, _| Ok(()));
    assert!(matches!(none, Err(Error::Parameter { name: "threads", .. })));
}

// --- polling -------------------------------------------------------------------------------------

#[test]
fn the_host_works_until_the_event_is_complete() {
    for &device in devices() {
        let _alone = alone_on(device);
        for (opens, more) in [(1, true), (7, true), (7, false)] {
            let stream = AnyStream::new(device).unwrap();
            let gate = Gate::closed(device);
            let event = stream.enter(|s| {
                let mut host = s.bind(device.pinned::<u32>(50).unwrap()).unwrap();
                let mut x = s.alloc(50).unwrap();
                gate.hold(s);
                s.fill(&mut x, 9).unwrap();
                s.copy_to_host(&x, &mut host).unwrap();
                s.record(host).unwrap()
            });
            let mut calls = 0;
            let work = || {
                calls += 1;
                if calls == opens {
                    gate.open();
                }
                calls < opens || more
            };
            let (host, pieces) = guarded(&[&gate], || query_poll(event, work).unwrap());
            assert_eq!((&*host, pieces), (&[9; 50][..], calls));
            assert!(if more { pieces >= opens } else { pieces == opens }, "{pieces} pieces of work");
        }
    }
}

#[test]
fn polling_gives_what_serial_gives() {
    everywhere(60, (Part::any(), 0..50u32), |device, (mut part, pieces)| {
        part.fails = false;
        let event = device.per_thread(|s| part.enqueue(*s)).unwrap().unwrap();
        let mut left = pieces;
        let (result, done) = query_poll(event, || {
            left = left.saturating_sub(1);
            left > 0
        })
        .unwrap();
        assert!(done <= u64::from(pieces.max(1)));
        assert_eq!([Some(bits(&result))], serial(device, &[part])[..]);
    });
    // An event that is complete needs no work.
    let ready = Event::ready(devices()[0].pinned_from(&[1u8]).unwrap());
    assert_eq!(query_poll(ready, || unreachable!("it is complete")).unwrap().1, 0);
}

#[test]
fn tokio_awaits_events() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    everywhere(30, (vec(Part::any(), 0..12), 1..5usize), |device, (parts, lanes)| {
        let pool = StreamPool::new(device, lanes).unwrap();
        let enqueue = |part: &Part| pool.with_stream(|s| part.enqueue(*s));
        let got = runtime.block_on(async {
            let run = |event: Result<Event<_>>| tokio::spawn(async move { event?.await });
            let tasks: Vec<_> = parts.iter().map(|part| run(enqueue(part))).collect();
            let mut got = Vec::new();
            for task in tasks {
                got.push(outcome(task.await.unwrap()));
            }
            got
        });
        assert_eq!(got, serial(device, &parts));
    });
}

// --- graphs --------------------------------------------------------------------------------------

/// A chain on a slot: fills and copies of parts, in a random order. It counts how often it is
/// enqueued or captured.
#[derive(Default)]
struct Chain {
    steps: Vec<(u8, usize)>,
    calls: Cell<usize>,
}

impl GraphWork<Frame> for Chain {
    fn enqueue<S: Brand>(&self, s: &Stream<S>, slot: &mut <Frame as Resource>::On<S>) -> Result<()> {
        self.calls.set(self.calls.get() + 1);
        let (input, x, output) = slot;
        s.copy_to_device(input, x)?;
        for &(what, at) in &self.steps {
            let at = at % (x.len() + 1);
            let (left, right) = x.split_at_mut(at)?;
            match what % 3 {
                0 => s.fill(left, u32::from(what))?,
                1 => s.fill(right, at as u32)?,
                _ => {
                    let n = left.len().min(right.len());
                    s.copy(left.slice(..n)?, right.slice_mut(..n)?)?;
                }
            }
        }
        s.copy_to_host(x, output)
    }
}

type Frame = (PinnedBuffer<u32>, DeviceBuffer<u32>, PinnedBuffer<u32>);

#[test]
fn graphs_give_what_serial_gives() {
    let steps = vec((any::<u8>(), any::<usize>()), 0..8);
    let order = vec(any::<usize>(), 0..15);
    everywhere(40, (0..100usize, 1..5usize, order, steps), |device, (len, depth, order, steps)| {
        let stream = AnyStream::new(device).unwrap();
        let make = || Ok::<Frame, Error>((device.pinned(len)?, device_buffer(device, len)?, device.pinned(len)?));
        let mut slots: Vec<_> = (0..=depth).map(|_| Some(make().unwrap())).collect();
        let (mut graphs, cached, plain) = (GraphCache::default(), chain(&steps), chain(&steps));
        let mut run = |index: usize, frame: u32, as_graph: bool| {
            let mut slot = slots[index].take().unwrap();
            for (i, v) in slot.0.iter_mut().enumerate() {
                *v = frame.wrapping_mul(7919) ^ i as u32;
            }
            let event = stream.enter(|s| {
                let mut slot = s.bind(slot)?;
                if as_graph {
                    slot = graphs.enqueue(s, (), slot, &cached)?;
                } else {
                    plain.enqueue(s, &mut slot)?;
                }
                Ok::<_, Error>(s.record(slot)?)
            });
            let slot = slots[index].insert(event.unwrap().synchronize().unwrap());
            slot.2.to_vec()
        };
        // The slots come in any order. The last one never runs as a graph.
        for (frame, slot) in (0..).zip(&order) {
            assert_eq!(run(slot % depth, frame, true), run(depth, frame, false), "frame {frame}");
        }
        // The first slot is not captured when it comes first. Slots without memory are all alike.
        let met: std::collections::HashSet<_> = order.iter().skip(1).map(|slot| slot % depth).collect();
        assert_eq!(graphs.len(), if len == 0 { met.len().min(1) } else { met.len() });
        assert_eq!(cached.calls.get(), graphs.len() + order.len().min(1));
    });
}

fn chain(steps: &[(u8, usize)]) -> Chain {
    Chain { steps: steps.to_vec(), ..Chain::default() }
}

fn device_buffer(device: Device, len: usize) -> Result<DeviceBuffer<u32>> {
    AnyStream::new(device)?.enter(|s| s.record(s.alloc(len)?)?.synchronize().map_err(Error::from))
}

/// Several frames are under way at once, on slots that are reused in order.
#[test]
fn frames_replayed_ahead_keep_their_results() {
    everywhere(40, (1..100usize, 1..5usize, 0..15u32), |device, (len, depth, frames)| {
        let stream = AnyStream::new(device).unwrap();
        let make = move || Ok((device.pinned(len)?, device_buffer(device, len)?, device.pinned(len)?));
        let (mut ring, mut graphs, mut seen) = (Ring::new(depth, make).unwrap(), GraphCache::default(), Vec::new());
        for frame in 0..frames + depth as u32 + 1 {
            let mut slot = ring.acquire().unwrap().synchronize().unwrap();
            seen.push(slot.2.to_vec());
            slot.0.fill(frame);
            let event = stream.enter(|s| {
                let slot = graphs.enqueue(s, (), s.bind(slot)?, &Chain::default())?;
                Ok::<_, Error>(s.record(slot)?)
            });
            ring.recycle(event.unwrap());
        }
        for (frame, seen) in (0..frames).zip(&seen[depth..]) {
            assert_eq!(*seen, vec![frame; len]);
        }
        assert_eq!(graphs.len(), depth);
    });
}

#[test]
fn a_failed_capture_gives_the_slot_back_and_keeps_no_graph() {
    for &device in devices() {
        let _alone = alone_on(device);
        let (stream, mut graphs) = (AnyStream::new(device).unwrap(), GraphCache::default());
        stream.enter(|s| {
            let mut slot = s.bind(device.pinned_from(&[5u32; 9]).unwrap()).unwrap();
            // Call by call, then by a capture that fails, and then call by call again.
            for (fails, graph) in [(false, 0), (true, 0), (false, 0), (false, 1)] {
                slot = match graphs.enqueue(s, 'a', slot, &Asked { fails }) {
                    Ok(slot) => slot,
                    Err(failed) => {
                        assert!(fails && matches!(failed.error, Error::Thread { .. }));
                        failed.value
                    }
                };
                assert_eq!(graphs.len(), graph);
            }
            assert_eq!(*s.record(slot).unwrap().synchronize().unwrap(), [5; 9]);
        });
    }
}

/// Work that does nothing, or fails.
struct Asked {
    fails: bool,
}

impl GraphWork<PinnedBuffer<u32>> for Asked {
    fn enqueue<S: Brand>(&self, _: &Stream<S>, _: &mut <PinnedBuffer<u32> as Resource>::On<S>) -> Result<()> {
        if self.fails { Err(Error::Thread { reason: "as asked".into() }) } else { Ok(()) }
    }
}

#[test]
fn a_cache_keeps_the_graphs_that_were_used_last() {
    // The letters are work, and a capital one is a capture.
    let run = |cache: &mut GraphCache<char, char>, work: &str| -> String {
        let step = |key| match cache.step(&key) {
            GraphStep::Enqueue => key,
            GraphStep::Capture => {
                cache.keep(key, key);
                key.to_ascii_uppercase()
            }
            GraphStep::Replay(graph) => {
                assert_eq!(*graph, key);
                '-'
            }
        };
        work.chars().map(step).collect()
    };
    let mut cache = GraphCache::default().with_most(2);
    assert_eq!(run(&mut cache, "aaabbab"), "aA-bB--");
    // `c` takes the place of `a`, which was not used for longer.
    assert_eq!(run(&mut cache, "ccab"), "cCa-");
    assert_eq!(cache.len(), 2);
    cache.retain(|&key| key == 'b');
    assert_eq!(run(&mut cache, "bcc"), "-cC");
    cache.clear();
    assert!(cache.is_empty() && run(&mut cache, "b") == "b");
    // What was used last stays, whenever it came.
    assert_eq!(run(&mut GraphCache::default().with_most(2), "aaabbaccab"), "aA-bB-cC-B");
    let mut off = GraphCache::default().with_graphs(false);
    assert_eq!(run(&mut off, "aaa"), "aaa");
}

struct Filled(u32);

impl GraphWork<DeviceBuffer<u32>> for Filled {
    fn enqueue<S: Brand>(&self, s: &Stream<S>, x: &mut <DeviceBuffer<u32> as Resource>::On<S>) -> Result<()> {
        s.fill(x, self.0)
    }
}

/// Two works on one buffer are two graphs.
#[test]
fn a_cache_tells_work_by_its_key() {
    for &device in devices() {
        let run = AnyStream::new(device).unwrap().enter(|s| {
            let (mut x, mut graphs) = (s.alloc::<u32>(4)?, GraphCache::default());
            for turn in 0..8 {
                x = graphs.enqueue(s, turn % 2, x, &Filled(turn % 2))?;
                assert_eq!(s.read_blocking(&x)?, [turn % 2; 4], "{device}");
            }
            Ok::<_, Error>(graphs.len())
        });
        assert_eq!(run.unwrap(), 2);
    }
}

// --- priorities ----------------------------------------------------------------------------------

proptest! {
    #![proptest_config(cases(200))]
    #[test]
    fn percentiles_are_samples_that_so_many_do_not_exceed(nanos in vec(0..10_000u64, 1..3000)) {
        let samples: Vec<_> = nanos.into_iter().map(Duration::from_nanos).collect();
        let found = Latency::of(samples.clone());
        for (share, value) in [(0.5, found.p50), (0.99, found.p99), (0.999, found.p999)] {
            let within = samples.iter().filter(|s| **s <= value).count() as f64;
            let below = samples.iter().filter(|s| **s < value).count() as f64;
            let wanted = share * samples.len() as f64;
            prop_assert!(samples.contains(&value) && within >= wanted - 1e-6 && below < wanted - 1e-6);
        }
    }
}

#[test]
fn the_probe_compares_what_the_device_offers() {
    everywhere(8, (1..30usize, 0..4000usize), |device, (samples, len)| {
        fn filled<S: LiveBrand>(s: Stream<S>, len: usize) -> Result<Event<DeviceBuffer<u32>>> {
            let mut x = s.alloc(len)?;
            s.fill(&mut x, 1)?;
            Ok(s.record(x)?)
        }
        let mut urgent = 0;
        let found = measure_priority(
            device,
            samples,
            |s| filled(*s, len),
            |s| {
                urgent += 1;
                filled(*s, 1)
            },
        )
        .unwrap();
        let one = device.priorities().count() == 1;
        assert_eq!(found.with_priority.is_none(), one);
        assert_eq!(urgent, if one { 1 + 2 * samples } else { 2 + 3 * samples });
        for latency in [found.alone, found.without_priority].into_iter().chain(found.with_priority) {
            assert!(latency.p50 <= latency.p99 && latency.p99 <= latency.p999 && !latency.p999.is_zero());
        }
    });
}

#[test]
fn an_error_ends_the_probe_wherever_it_happens() {
    everywhere(30, (any::<bool>(), 0..8usize), |device, (in_urgent, at)| {
        let left = Cell::new(at);
        let step = |urgent| {
            if urgent == in_urgent && left.replace(left.get().wrapping_sub(1)) == 0 {
                return Err(Error::Thread { reason: "as asked".into() });
            }
            Ok(())
        };
        let found = measure_priority(
            device,
            12,
            |s| Ok((step(false)?, s.record(())?).1),
            |s| Ok((step(true)?, s.record(())?).1),
        );
        assert!(matches!(&found, Err(Error::Thread { reason }) if reason == "as asked"), "{found:?}");
    });
    let none = measure_priority(devices()[0], 0, |s| Ok(s.record(())?), |s| Ok(s.record(())?));
    assert!(matches!(none, Err(Error::Parameter { name: "samples", .. })));
}
