//! Each pattern overlaps what it promises: while one step is held at a gate, the steps beside it
//! complete and the host goes on.
//!
//! Each test uses few streams: a GPU has few hardware queues (8 unless it is told otherwise),
//! and a stream that stands at a gate holds up every stream of its queue.

use std::cell::Cell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use testkit::devices::{alone, devices};
use testkit::gate::{Gate, guarded};
use thalweg::overlap::{
    ChunkOrder, Chunks, Stage, grouped, interleaved, measure_priority, per_thread, query_poll, shared_read, stages,
    stream_pool,
};
use thalweg::{
    Activity, AnyStream, Brand, Device, DeviceBuffer, DeviceSlice, Error, Event, GraphCache, GraphWork, On,
    PinnedBuffer, Resource, Result, Ring, Scoped, Stream, StreamPool, Timeline,
};

use crate::examples::double_buffer::{FrameSlot, double_buffer};
use crate::examples::producer_consumer::producer_consumer;
use crate::examples::three_scores;
use crate::examples::three_stream::three_stream;

fn streams(device: Device, n: usize) -> Vec<AnyStream> {
    (0..n).map(|_| AnyStream::new(device).unwrap()).collect()
}

fn synchronize(stream: &AnyStream) -> Result<()> {
    stream.enter(|s| s.synchronize())
}

/// Tells for each stream whether all its work is done.
fn done(streams: &[AnyStream]) -> Vec<bool> {
    streams.iter().map(|stream| stream.enter(|s| s.is_complete()).unwrap()).collect()
}

fn numbers(device: Device, len: usize) -> PinnedBuffer<u32> {
    device.pinned_from(&(0..len as u32).collect::<Vec<_>>()).unwrap()
}

// --- chunks --------------------------------------------------------------------------------------

const CHUNKS: usize = 9;

fn run(
    order: ChunkOrder,
    lanes: &[AnyStream],
    input: PinnedBuffer<u32>,
    stage: impl Stage<u32, u32>,
) -> (PinnedBuffer<u32>, PinnedBuffer<u32>) {
    let (chunks, off) = (Chunks::new(CHUNKS), Timeline::disabled());
    let done = match order {
        ChunkOrder::Interleaved => interleaved(lanes, input, chunks, stage, &off),
        ChunkOrder::Grouped => grouped(lanes, input, chunks, stage, &off),
    };
    done.unwrap()
}

/// Runs chunks with a gate before all work of stream `held`. `stage` gets the number of the call.
fn chunked(order: ChunkOrder, held: usize, lanes: &[AnyStream], mut stage: impl FnMut(usize, &Gate) -> Result<()>) {
    let device = lanes[0].device();
    let input = numbers(device, 1000);
    // A first run allocates memory and does the other work of a first use, for which a device may
    // wait.
    let (input, _) = run(order, lanes, input, |s, x, y| s.copy(x, y));
    let gate = Gate::closed(device);
    guarded(&[&gate], || {
        let mut calls = 0;
        let mut used = Vec::new();
        // If a kernel's stream is to be held, the stage holds it, because only the stage knows
        // which stream the pattern gave to the kernel.
        let kernels = 1..lanes.len() - 1;
        if !kernels.contains(&held) {
            lanes[held].enter(|s| gate.hold(s));
        }
        let mut call = |s: &Stream<Scoped<'_>>| {
            if calls == 0 && kernels.contains(&held) {
                gate.hold(s);
            }
            calls += 1;
            used.push(s.unique_id());
            stage(calls - 1, &gate)
        };
        let (input, output) = run(order, lanes, input, |s, x, y| {
            call(s)?;
            s.copy(x, y)
        });
        assert_eq!(*input, *output);
        // An idle stream is done, too: kernels ran on each stream between the first and the last.
        let between = lanes[kernels].iter().map(|lane| lane.enter(|s| s.unique_id())).cycle();
        assert_eq!(used, between.take(CHUNKS).collect::<Vec<_>>());
    });
}

#[test]
fn interleaved_chunks_overlap_and_the_host_goes_on() {
    let _alone = alone();
    for &device in devices() {
        let lanes = streams(device, 3);
        for held in 0..3 {
            let stage = |call, gate: &Gate| {
                if call == 2 {
                    // Three chunks are enqueued up to their kernels. Their steps before the held
                    // one complete.
                    lanes[..held].iter().try_for_each(synchronize)?;
                    assert_eq!(done(&lanes), [0 < held, 1 < held, false], "{device}: {held} is held");
                }
                if call == CHUNKS - 1 {
                    // Uploads wait for buffers that have not come back, but the host does not.
                    assert_eq!(done(&lanes), [false; 3], "{device}: {held} is held");
                    gate.open();
                }
                Ok(())
            };
            chunked(ChunkOrder::Interleaved, held, &lanes, stage);
        }
        // Two of four streams run kernels. One goes on while the other is held.
        let lanes = streams(device, 4);
        let stage = |call, gate: &Gate| {
            if call == 3 {
                synchronize(&lanes[0])?;
                synchronize(&lanes[2])?;
                assert_eq!(done(&lanes), [true, false, true, false], "{device}");
                gate.open();
            }
            Ok(())
        };
        chunked(ChunkOrder::Interleaved, 1, &lanes, stage);
    }
}

#[test]
fn grouped_uploads_go_on_during_kernels_and_kernels_during_downloads() {
    let _alone = alone();
    for &device in devices() {
        let lanes = streams(device, 3);
        for held in 0..3 {
            let stage = |call, gate: &Gate| {
                if call == CHUNKS - 1 {
                    lanes[..held].iter().try_for_each(synchronize)?;
                    let downloads = held == 2; // No download is enqueued yet, but the gate is.
                    assert_eq!(done(&lanes), [0 < held, 1 < held, !downloads], "{device}: {held} is held");
                    gate.open();
                }
                Ok(())
            };
            chunked(ChunkOrder::Grouped, held, &lanes, stage);
        }
        // All uploads come before the first kernel.
        let timeline = Timeline::new(device).unwrap();
        let mut uploads = None;
        grouped::<u32, u32>(
            &lanes,
            numbers(device, 1000),
            Chunks::new(CHUNKS),
            |s, x, y| {
                if uploads.is_none() {
                    uploads = Some(timeline.finish()?);
                }
                s.copy(x, y)
            },
            &timeline,
        )
        .unwrap();
        let uploads = uploads.unwrap();
        assert!(uploads.spans().iter().all(|span| span.activity == Activity::Upload));
        assert_eq!(uploads.spans().len(), CHUNKS, "{device}");
    }
}

// --- frames --------------------------------------------------------------------------------------

#[test]
fn double_buffered_frames_overlap_at_every_step() {
    let _alone = alone();
    for &device in devices() {
        let lanes = streams(device, 3);
        for held in 0..3 {
            let slot = |_| Event::ready(FrameSlot::<u8, u8>::new(device, 64, 64).unwrap());
            let mut slots = (0..3).map(slot).collect();
            let gate = Gate::closed(device);
            let load = |n: usize, slot: &mut FrameSlot<u8, u8>| {
                if n == 2 {
                    // Frames 0 and 1 are under way.
                    lanes[..held].iter().try_for_each(synchronize)?;
                    assert_eq!(done(&lanes), [0 < held, 1 < held, false], "{device}: {held} is held");
                    gate.open();
                }
                slot.input.fill(n as u8);
                Ok(())
            };
            let mut taken = 0;
            let take = |n: usize, slot: &mut FrameSlot<u8, u8>| {
                assert_eq!(*slot.output, [n as u8; 64]);
                taken += 1;
                Ok(())
            };
            guarded(&[&gate], || {
                lanes[held].enter(|s| gate.hold(s));
                lanes[0].enter(|a| {
                    lanes[1].enter(|b| {
                        lanes[2].enter(|c| {
                            let copy = |s: &Stream<_>, x: &DeviceSlice<_, u8>, y: &mut DeviceSlice<_, u8>| s.copy(x, y);
                            double_buffer((a, b, c), &mut slots, 6, load, copy, take, &Timeline::disabled()).unwrap();
                        });
                    });
                });
            });
            assert_eq!(taken, 6);
        }
    }
}

#[derive(Resource)]
struct Slot {
    host: PinnedBuffer<u32>,
    a: DeviceBuffer<u32>,
    b: DeviceBuffer<u32>,
}

#[test]
fn every_stage_of_three_stream_overlaps_the_others() {
    let _alone = alone();
    for &device in devices() {
        let lanes = streams(device, 4);
        for held in 0..4 {
            let slot = |s: &Stream<Scoped<'_>>| Slot {
                host: device.pinned(9).unwrap(),
                a: s.alloc(9).unwrap().synchronize().unwrap(),
                b: s.alloc(9).unwrap().synchronize().unwrap(),
            };
            let mut slots = (0..5).map(|_| Event::ready(lanes[0].enter(slot))).collect();
            let gate = Gate::closed(device);
            let load = |n: usize, slot: &mut Slot| {
                if n == 4 {
                    // Images 0 to 3 are under way.
                    lanes[..held].iter().try_for_each(synchronize)?;
                    let want = [0 < held, 1 < held, 2 < held, false];
                    assert_eq!(done(&lanes), want, "{device}: {held} is held");
                    gate.open();
                }
                slot.host.fill(n as u32);
                Ok(())
            };
            let mut seen = Vec::new();
            let take = |_, slot: &mut Slot| {
                seen.push([slot.host[0], slot.host[8]]);
                Ok(())
            };
            guarded(&[&gate], || {
                lanes[held].enter(|s| gate.hold(s));
                lanes[0].enter(|up| {
                    lanes[1].enter(|first| {
                        lanes[2].enter(|second| {
                            lanes[3].enter(|third| {
                                let steps = (
                                    |s: &Stream<_>, slot: &mut SlotOn<_>| s.copy_to_device(&slot.host, &mut slot.a),
                                    |s: &Stream<_>, slot: &mut SlotOn<_>| s.copy(&slot.a, &mut slot.b),
                                    |s: &Stream<_>, slot: &mut SlotOn<_>| {
                                        s.copy(slot.a.slice(..8)?, slot.b.slice_mut(..8)?)
                                    },
                                    |s: &Stream<_>, slot: &mut SlotOn<_>| s.copy_to_host(&slot.b, &mut slot.host),
                                );
                                let streams = (up, first, second, third);
                                three_stream(streams, &mut slots, 8, load, steps, take, &Timeline::disabled()).unwrap();
                            });
                        });
                    });
                });
            });
            assert_eq!(seen, (0..8).map(|n| [n, n]).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_producer_runs_ahead_and_a_consumer_goes_on_without_it() {
    let _alone = alone();
    const ITEMS: usize = 9;
    for &device in devices() {
        let lanes = streams(device, 2);
        for held in 0..2 {
            lanes[0].enter(|a| {
                lanes[1].enter(|b| {
                    let mut slots = (0..2).map(|_| Event::ready(numbers(device, 4))).collect();
                    let from = b.bind(numbers(device, ITEMS)).unwrap();
                    let from = b.hand_off(from, a).unwrap();
                    let mut seen = b.bind(device.pinned::<u32>(ITEMS).unwrap()).unwrap();
                    let mut x = a.alloc::<u32>(ITEMS).unwrap();
                    let mut y = b.alloc::<u32>(4).unwrap();
                    let gate = Gate::closed(device);
                    let produce = |s: &Stream<_>, n: usize, slot: &mut On<_, PinnedBuffer<u32>>| {
                        if (held, n) == (0, 3) {
                            // Item 3 is held, and the items before it are used.
                            gate.hold(s);
                            synchronize(&lanes[1])?;
                            assert_eq!(done(&lanes), [false, true]);
                        }
                        s.copy_to_device(&from, &mut x)?;
                        s.copy_to_host(x.slice(n..=n)?, slot.slice_mut(..1)?)
                    };
                    let consume = |s: &Stream<_>, n: usize, slot: &mut On<_, PinnedBuffer<u32>>| {
                        match (held, n) {
                            (1, 0) => gate.hold(s),
                            // There are as many new items as slots, and none is used.
                            (1, 1) => {
                                synchronize(&lanes[0])?;
                                assert_eq!(done(&lanes), [true, false]);
                            }
                            _ => {}
                        }
                        s.copy_to_device(slot, &mut y)?;
                        s.copy_to_host(y.slice(..1)?, seen.slice_mut(n..=n)?)?;
                        if n == ITEMS - 1 {
                            gate.open();
                        }
                        Ok(())
                    };
                    guarded(&[&gate], || {
                        let off = Timeline::disabled();
                        producer_consumer((a, b), &mut slots, ITEMS, produce, consume, &off).unwrap();
                    });
                    let seen = b.record(seen).unwrap().synchronize().unwrap();
                    assert_eq!(*seen, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
                });
            });
        }
    }
}

/// A stage behind the held one completes what it got before, and a stage before it goes on until no
/// slot is free. The host waits for none.
#[test]
fn stages_overlap_and_the_host_goes_on() {
    let _alone = alone();
    const ITEMS: usize = 8;
    for &device in devices() {
        let lanes = streams(device, 3);
        for held in 0..3 {
            let slot = |s: &Stream<Scoped<'_>>| Ok(vec![s.alloc::<u32>(9)?.synchronize()?, s.alloc(9)?.synchronize()?]);
            let slots = (0..4).map(|_| lanes[0].enter(slot).map(Event::ready));
            let mut slots = slots.collect::<Result<Ring<Vec<DeviceBuffer<u32>>>>>().unwrap();
            lanes[2].enter(|last| {
                let results = (0..ITEMS).map(|_| device.pinned::<u32>(9).unwrap()).collect::<Vec<_>>();
                let mut results = last.bind(results).unwrap();
                let gate = Gate::closed(device);
                guarded(&[&gate], || {
                    // The stage that is held stands before item 2, with the items before it done.
                    let mut at = |stage: usize, n: usize, hold: &dyn Fn()| {
                        if (stage, n) == (held, 2) {
                            hold();
                            lanes[held + 1..].iter().try_for_each(synchronize)?;
                        }
                        if (stage, n) == (2, 3) {
                            lanes[..held].iter().try_for_each(synchronize)?;
                            let want = [0 < held, 1 < held, false];
                            assert_eq!(done(&lanes), want, "{device}: {held} is held");
                            gate.open();
                        }
                        Ok::<_, Error>(())
                    };
                    let at = std::cell::RefCell::new(&mut at);
                    stages::<_, Error>(&mut slots)
                        .step_on_any(&lanes[0], Activity::Compute, |s, n, slot| {
                            (at.borrow_mut())(0, n, &|| gate.hold(s))?;
                            s.fill(&mut slot[0], n as u32)
                        })
                        .step_on_any(&lanes[1], Activity::Compute, |s, n, slot| {
                            (at.borrow_mut())(1, n, &|| gate.hold(s))?;
                            let (x, y) = slot.split_at_mut(1);
                            s.copy(&x[0], &mut y[0])
                        })
                        .step(last, Activity::Download, |s, n, slot| {
                            (at.borrow_mut())(2, n, &|| gate.hold(s))?;
                            s.copy_to_host(&slot[1], &mut results[n])
                        })
                        .run(0..ITEMS, &Timeline::disabled())
                        .unwrap();
                });
                assert_eq!(slots.len(), 4);
                let results = last.record(results).unwrap().synchronize().unwrap();
                assert!(results.iter().zip(0..).all(|(result, n)| result[..] == [n; 9]));
            });
        }
    }
}

// --- many parts ----------------------------------------------------------------------------------

/// Fills `x` and copies it to `host`.
fn result<'l>(s: &Stream<Scoped<'l>>, host: PinnedBuffer<u32>, value: u32) -> Result<Event<PinnedBuffer<u32>>> {
    let mut x = s.alloc(host.len())?;
    s.fill(&mut x, value)?;
    let mut host = s.bind(host)?;
    s.copy_to_host(&x, &mut host)?;
    Ok(s.record(host)?)
}

#[test]
fn items_of_a_pool_run_beside_one_that_stands() {
    let _alone = alone();
    for &device in devices() {
        let pool = StreamPool::new(device, 2).unwrap();
        let host = |_| device.pinned(10).unwrap();
        let warm = stream_pool(&pool, (0..2).map(host), |s, host| result(s, host, 0));
        warm.for_each(|result| drop(result.unwrap()));
        let items: Vec<_> = (0..8).map(host).zip(0..).collect();
        let gate = Gate::closed(device);
        let mut enqueued = 0;
        guarded(&[&gate], || {
            let results = stream_pool(&pool, items, |s, (host, item)| {
                enqueued += 1;
                match item {
                    0 => gate.hold(s),
                    3 => {
                        // Item 0 is held, and this lane has finished item 1.
                        s.synchronize()?;
                        gate.open();
                    }
                    _ => {}
                }
                result(s, host, item)
            });
            for (result, item) in results.zip(0..) {
                assert_eq!(*result.unwrap(), [item; 10]);
            }
        });
        assert_eq!(enqueued, 8);
    }
}

#[test]
fn readers_run_beside_one_that_stands_and_a_writer_waits_for_it() {
    let _alone = alone();
    for &device in devices() {
        let (pool, lane) = (StreamPool::new(device, 2).unwrap(), AnyStream::new(device).unwrap());
        lane.enter(|s| {
            let mut all = s.upload_blocking(&[7u32; 100]).unwrap();
            s.fill(&mut all, 7).unwrap();
            let shared = s.share(all).unwrap();
            let hosts = [(); 2].map(|()| device.pinned::<u32>(100).unwrap());
            let gate = Gate::closed(device);
            guarded(&[&gate], || {
                let mut readers = shared_read(&pool, &shared, hosts.into_iter().zip(0..), |s, all, (host, reader)| {
                    if reader == 0 {
                        gate.hold(s);
                    }
                    let mut host = s.bind(host)?;
                    s.copy_to_host(all, &mut host)?;
                    Ok(s.record(host)?)
                });
                let (second, first) = (readers.pop().unwrap().unwrap(), readers.pop().unwrap().unwrap());
                assert_eq!(*second.synchronize().unwrap(), [7; 100]);
                let mut all = s.unshare(shared).unwrap();
                s.fill(&mut all, 8).unwrap();
                assert!(!first.is_complete().unwrap() && !s.is_complete().unwrap(), "{device}");
                gate.open();
                assert_eq!(*first.synchronize().unwrap(), [7; 100]);
                assert_eq!(s.read_blocking(&all).unwrap(), [8; 100]);
            });
        });
    }
}

#[test]
fn threads_work_beside_one_whose_stream_stands() {
    let _alone = alone();
    for &device in devices() {
        let (arrived, late) = (Mutex::new(Vec::new()), Instant::now());
        let gate = Gate::closed(device);
        let sums = guarded(&[&gate], || {
            per_thread(device, 2, &[0u32, 1], |s, &item| {
                let mut x = s.alloc::<u32>(10)?;
                s.fill(&mut x, item)?;
                s.synchronize()?;
                arrived.lock().unwrap().push(s.unique_id());
                while arrived.lock().unwrap().len() < 2 {
                    let nobody = || Error::Thread { reason: "no other thread came".into() };
                    (late.elapsed() < Duration::from_secs(20)).then_some(()).ok_or_else(nobody)?;
                    std::thread::yield_now();
                }
                // One stream is held, and its thread waits for it. The work of the other thread
                // opens the gate.
                if item == 0 {
                    gate.hold(s);
                }
                s.fill(&mut x, item + 1)?;
                let sum = s.read_blocking(&x)?.iter().sum::<u32>();
                if item == 1 {
                    gate.open();
                }
                Ok(sum)
            })
        });
        let sums: Vec<_> = sums.unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(sums, [10, 20], "{device}");
        let serials = arrived.into_inner().unwrap();
        assert_ne!(serials[0], serials[1], "a stream for each thread");
    }
}

#[test]
fn the_host_works_while_the_stream_of_its_event_stands() {
    let _alone = alone();
    for &device in devices() {
        let lane = AnyStream::new(device).unwrap();
        let host = device.pinned(50).unwrap();
        let gate = Gate::closed(device);
        guarded(&[&gate], || {
            let event = lane.enter(|s| {
                let host = s.bind(host).unwrap();
                gate.hold(s);
                s.record(host).unwrap()
            });
            let mut calls = 0;
            let (host, pieces): (PinnedBuffer<u8>, _) = query_poll(event, || {
                calls += 1;
                if calls == 7 {
                    gate.open();
                }
                true
            })
            .unwrap();
            assert!(pieces >= 7 && pieces == calls, "{pieces} pieces of work");
            assert_eq!(host.len(), 50);
        });
    }
}

type Copied = (PinnedBuffer<u32>, DeviceBuffer<u32>, PinnedBuffer<u32>);

/// A copy to the device and back, which counts how often it is enqueued or captured.
struct Copies {
    calls: Cell<usize>,
}

impl GraphWork<Copied> for Copies {
    fn enqueue<S: Brand>(&self, s: &Stream<S>, (input, x, output): &mut <Copied as Resource>::On<S>) -> Result<()> {
        self.calls.set(self.calls.get() + 1);
        s.copy_to_device(input, x)?;
        s.copy_to_host(x, output)
    }
}

#[test]
fn graphs_are_replayed_on_a_stream_that_stands() {
    let _alone = alone();
    for &device in devices() {
        let lanes = streams(device, 2);
        let slot = || {
            let on_device = lanes[0].enter(|s| s.alloc::<u32>(100).unwrap().synchronize().unwrap());
            (device.pinned::<u32>(100).unwrap(), on_device, device.pinned::<u32>(100).unwrap())
        };
        let (mut graphs, copies) = (GraphCache::default(), Copies { calls: Cell::new(0) });
        let mut replay = |(mut input, x, output): Copied, value| {
            input.fill(value);
            lanes[0].enter(|s| {
                let slot = graphs.enqueue(s, (), s.bind((input, x, output))?, &copies)?;
                Ok::<_, Error>(s.record(slot)?)
            })
        };
        // The first one is launched, and then each is captured at its next use.
        let mut slots: Vec<_> = (0..3).map(|_| slot()).collect();
        for _ in 0..2 {
            slots = slots.into_iter().map(|slot| replay(slot, 1).unwrap().synchronize().unwrap()).collect();
        }
        let (host, gate) = (device.pinned(10).unwrap(), Gate::closed(device));
        guarded(&[&gate], || {
            lanes[0].enter(|s| gate.hold(s));
            let events: Vec<_> = slots.into_iter().zip(5..).map(|(slot, value)| replay(slot, value).unwrap()).collect();
            let beside = lanes[1].enter(|s| result(s, host, 3)).unwrap();
            assert_eq!(*beside.synchronize().unwrap(), [3; 10]);
            assert!(events.iter().all(|event| !event.is_complete().unwrap()), "{device}");
            gate.open();
            for (event, value) in events.into_iter().zip(5..) {
                assert_eq!(*event.synchronize().unwrap().2, [value; 100]);
            }
        });
        assert_eq!(copies.calls.get(), 4);
    }
}

#[test]
fn urgent_work_is_measured_beside_background_work_that_stands() {
    let _alone = alone();
    const SAMPLES: usize = 4;
    for &device in devices() {
        let first = *device.priorities().start();
        let one = first == 0;
        // Urgent work runs before the background starts: once on each of its streams, and for every
        // sample without background.
        let before = if one { 1 } else { 2 } + SAMPLES;
        let gates = [(); 2].map(|()| Gate::closed(device));
        let urgent = Mutex::new(Vec::new());
        let mut background = 0;
        let found = guarded(&[&gates[0], &gates[1]], || {
            measure_priority(
                device,
                SAMPLES,
                |s| {
                    assert_eq!(s.priority(), 0);
                    background += 1;
                    // The first two calls measure how long a piece takes.
                    if background > 2 {
                        let phase = (urgent.lock().unwrap().len() - before) / SAMPLES;
                        gates[phase].hold(s);
                    }
                    Ok(s.record(())?)
                },
                |s| {
                    let mut urgent = urgent.lock().unwrap();
                    urgent.push(s.priority());
                    // All samples of a phase but the last are taken while the whole background is
                    // held.
                    match urgent.len().checked_sub(before) {
                        Some(SAMPLES) => gates[0].open(),
                        Some(n) if n == 2 * SAMPLES => gates[1].open(),
                        _ => {}
                    }
                    Ok(s.record(())?)
                },
            )
        })
        .unwrap();
        assert_eq!(found.with_priority.is_none(), one);
        let mut want = vec![0];
        want.extend((!one).then_some(first));
        want.extend([0; 2 * SAMPLES]);
        want.extend((!one).then_some([first; SAMPLES]).into_iter().flatten());
        assert_eq!(urgent.into_inner().unwrap(), want, "{device}: priorities of urgent work");
    }
}

/// Two scores are computed while the third one stands at a gate, the host goes on, and the sum
/// waits for all of them.
#[test]
fn each_score_is_computed_beside_the_others() {
    let _alone = alone();
    for &device in devices() {
        let lanes = streams(device, 4);
        lanes[3].enter(|s| {
            let want = three_scores::Work::new(s, 64).unwrap().on_streams(s, (s, s, s), &Timeline::disabled());
            let want = want.unwrap().results(s).unwrap();
            for held in 0..3 {
                let work = three_scores::Work::new(s, 64).unwrap();
                s.synchronize().unwrap();
                let gate = Gate::closed(device);
                let work = guarded(&[&gate], || {
                    lanes[held].enter(|s| gate.hold(s));
                    let work = lanes[0].enter(|a| {
                        lanes[1].enter(|b| lanes[2].enter(|c| work.on_streams(s, (a, b, c), &Timeline::disabled())))
                    });
                    lanes[..3]
                        .iter()
                        .enumerate()
                        .filter(|(k, _)| *k != held)
                        .for_each(|(_, l)| synchronize(l).unwrap());
                    let others: Vec<_> = (0..4).map(|k| k < 3 && k != held).collect();
                    assert_eq!(done(&lanes), others, "{device}: {held} is held");
                    gate.open();
                    work.unwrap()
                });
                assert_eq!(work.results(s).unwrap(), want, "{device}");
            }
        });
    }
}
