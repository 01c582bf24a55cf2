//! Patterns for chunks and frames give the same results as `serial`, bit for bit, for any chunks,
//! streams and slots. When a step fails, they give all memory back.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};
use testkit::oracle;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use testkit::devices::alone;
use testkit::process::again;
use thalweg::overlap::{
    ChunkOrder, Chunks, StageTimes, choose, grouped, interleaved, measure_stages, serial, serial_pageable, stages,
};
use thalweg::{
    Activity, AnyStream, Device, DeviceBuffer, DeviceSlice, Error, Event, PinnedBuffer, PinnedPool, Resource, Result,
    Ring, Scoped, Stream, Timeline,
};
use thalweg_vision::kernels;

use crate::examples::double_buffer::{FrameSlot, double_buffer};
use crate::examples::producer_consumer::producer_consumer;
use crate::examples::three_stream::three_stream;

/// An item is an image of this many bytes. Its results are the entropies of its patches.
const SIZE: [u32; 2] = [9, 5];
const PATCH: u32 = 4;
const ITEM: [usize; 2] = [3 * 9 * 5, 3 * 2];

fn bytes(device: Device, len: usize, seed: u64) -> PinnedBuffer<u8> {
    let mut random = oracle::SplitMix(seed);
    let mut input = device.pinned(len).unwrap();
    input.fill_with(|| random.byte() & 0x8f);
    input
}

fn entropies<'l>(
    s: &Stream<Scoped<'l>>,
    x: &DeviceSlice<Scoped<'l>, u8>,
    y: &mut DeviceSlice<Scoped<'l>, f32>,
) -> Result<()> {
    for i in 0..x.len() / ITEM[0] {
        let (x, y) = (x.slice(i * ITEM[0]..(i + 1) * ITEM[0])?, y.slice_mut(i * ITEM[1]..(i + 1) * ITEM[1])?);
        kernels::entropy(s, SIZE[0], SIZE[1], PATCH, x, y)?;
    }
    Ok(())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Runs random cases on every device, and on one whose schedule comes from the seed of each case.
fn on_every_device<V: std::fmt::Debug>(
    count: u32,
    cases: impl Strategy<Value = V> + Clone,
    test: impl Fn(Device, V) -> Result<(), TestCaseError>,
) {
    let seeded = Device::seeded_cpu(0).unwrap();
    for device in testkit::devices::devices().iter().copied().chain([seeded]) {
        let result = TestRunner::new(testkit::cases(count)).run(&(any::<u64>(), cases.clone()), |(seed, case)| {
            device.reseed(seed);
            test(device, case)
        });
        result.unwrap_or_else(|e| panic!("{device}: {e}"));
    }
}

fn streams(device: Device, n: usize) -> Vec<AnyStream> {
    (0..n).map(|_| AnyStream::new(device).unwrap()).collect()
}

#[test]
fn chunked_patterns_equal_serial() {
    let _alone = alone();
    let off = Timeline::disabled();
    // A case is the number of items, chunks and scoped streams, and a seed. Cases include no items,
    // fewer items than chunks, chunks of unequal sizes, and one chunk.
    let cases = (0..40usize, 1..60usize, 1..7usize, any::<u64>());
    on_every_device(60, cases, |device, (items, chunks, lanes, seed)| {
        let lanes = streams(device, lanes);
        let input = bytes(device, items * ITEM[0], seed);
        let data = input.to_vec();
        let chunks = Chunks::of_items(chunks, ITEM[0], ITEM[1]);
        let one = Chunks::of_items(1, ITEM[0], ITEM[1]);

        let (input, want) = serial(&lanes[0], input, one, entropies, &off).unwrap();
        prop_assert_eq!(want.len(), items * ITEM[1]);
        let want = bits(&want);
        let (input, got) = serial(&lanes[0], input, chunks, entropies, &off).unwrap();
        prop_assert_eq!(bits(&got), &want[..], "serial");
        let got = serial_pageable(&lanes[0], &data, chunks, entropies, &off).unwrap();
        prop_assert_eq!(bits(&got), &want[..], "pageable");
        let (input, got) = interleaved(&lanes, input, chunks, entropies, &off).unwrap();
        prop_assert_eq!(bits(&got), &want[..], "interleaved");
        let (input, got) = grouped(&lanes, input, chunks, entropies, &off).unwrap();
        prop_assert_eq!(bits(&got), &want[..], "grouped");
        let (times, input) = measure_stages(&lanes[0], input, chunks, entropies).unwrap();
        let choice = choose(device, 4, lanes.len(), times);
        let (input, got) = choice.run(&lanes, input, chunks, entropies, &off).unwrap();
        prop_assert_eq!(bits(&got), &want[..], "{}", choice);
        prop_assert_eq!(&*input, &data[..], "the input came back changed");
        Ok(())
    });
}

#[test]
fn chunks_of_elements() {
    let _alone = alone();
    let off = Timeline::disabled();
    on_every_device(40, (0..300usize, 1..400usize, 1..6usize), |device, (len, chunks, lanes)| {
        let lanes = streams(device, lanes);
        let input = bytes(device, len, len as u64);
        let chunks = Chunks::new(chunks);
        let (input, a) = interleaved(&lanes, input, chunks, |s, x, y| s.copy(x, y), &off).unwrap();
        let (input, b) = grouped(&lanes, input, chunks, |s, x, y| s.copy(x, y), &off).unwrap();
        let (input, c) = serial(&lanes[0], input, chunks, |s, x, y| s.copy(x, y), &off).unwrap();
        prop_assert!(*a == *input && *b == *input && *c == *input);
        Ok(())
    });
}

/// The CPU device has as many copy engines as threads. The test sets this number in a new process.
#[test]
fn the_choice_depends_on_the_copy_engines() {
    const THREADS: &str = "THALWEG_CPU_THREADS";
    const MARK: &str = "THALWEG_TEST_COPY_ENGINES";
    let step = Duration::from_millis(2);
    let times = StageTimes { upload: step, kernel: step, download: step };
    let check = |device: Device| {
        let choice = choose(device, 8, 3, times);
        assert_eq!(choice.copy_engines, device.copy_engines());
        let want = match device.copy_engines() {
            // In interleaved order each download holds up the next upload. In grouped order the
            // copies follow one another without a gap.
            1 => (ChunkOrder::Grouped, 8 * 3 * step, 8 * 2 * step),
            _ => (ChunkOrder::Interleaved, (8 + 2) * step, (8 + 2) * step),
        };
        assert_eq!((choice.order, choice.interleaved, choice.grouped), want, "{device}: {choice}");
    };
    testkit::devices::devices().iter().copied().for_each(check);
    if let Ok(engines) = std::env::var(MARK) {
        assert_eq!(Device::cpu().unwrap().copy_engines().to_string(), engines);
        return;
    }
    for engines in ["1", "2", "3"] {
        let status = again(concat!(module_path!(), "::the_choice_depends_on_the_copy_engines"))
            .envs([(THREADS, engines), (MARK, engines)])
            .status()
            .unwrap();
        assert!(status.success(), "{engines} copy engines: {status}");
    }
}

#[test]
fn what_cannot_be_cut_is_an_error() {
    let _alone = alone();
    let (device, off) = (Device::cpu().unwrap(), Timeline::disabled());
    let lanes = streams(device, 2);
    let run = |lanes: &[AnyStream], len, chunks| {
        let a =
            interleaved(lanes, bytes(device, len, 0), chunks, |s, x, y: &mut DeviceSlice<_, u8>| s.copy(x, y), &off);
        let b = grouped(lanes, bytes(device, len, 0), chunks, |s, x, y: &mut DeviceSlice<_, u8>| s.copy(x, y), &off);
        let name = |result: Result<_>| match result {
            Err(Error::Parameter { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(name(b), name(a));
    };
    run(&lanes, 10, Chunks::new(0));
    run(&lanes, 0, Chunks::new(0));
    run(&lanes, 10, Chunks::of_items(2, 3, 3));
    run(&lanes, 10, Chunks::of_items(2, 0, 3));
    run(&[], 10, Chunks::new(2));
    let huge =
        interleaved::<u8, u8>(&lanes, bytes(device, 2, 0), Chunks::of_items(1, 1, usize::MAX), |_, _, _| Ok(()), &off);
    assert!(matches!(huge, Err(Error::TooLarge { .. })));
    // Items may have no results.
    let (_, none) =
        grouped::<u8, u8>(&lanes, bytes(device, 9, 0), Chunks::of_items(4, 1, 0), |_, _, _| Ok(()), &off).unwrap();
    assert!(none.is_empty());
}

/// Computes the results of one image by itself.
fn reference(device: Device, frame: &PinnedBuffer<u8>) -> Vec<u32> {
    let input = device.pinned_from(frame).unwrap();
    let chunks = Chunks::of_items(1, ITEM[0], ITEM[1]);
    let lane = AnyStream::new(device).unwrap();
    bits(&serial(&lane, input, chunks, entropies, &Timeline::disabled()).unwrap().1)
}

#[test]
fn double_buffer_equals_serial() {
    let _alone = alone();
    on_every_device(40, (0..20usize, 1..6usize, any::<u64>()), |device, (frames, depth, seed)| {
        let images: Vec<_> = (0..frames).map(|n| bytes(device, ITEM[0], seed ^ n as u64)).collect();
        let [a, b, c] = [(); 3].map(|()| AnyStream::new(device).unwrap());
        let mut got = Vec::new();
        let mut slots = frame_slots(device, depth);
        let load = |n: usize, slot: &mut FrameSlot<u8, f32>| {
            slot.input.copy_from_slice(&images[n]);
            Ok(())
        };
        let take = |n: usize, slot: &mut FrameSlot<u8, f32>| {
            assert_eq!(n, got.len());
            got.push(bits(&slot.output));
            Ok(())
        };
        let (slots_ref, off) = (&mut slots, Timeline::disabled());
        a.enter(|a| b.enter(|b| c.enter(|c| double_buffer((a, b, c), slots_ref, frames, load, entropies, take, &off))))
            .unwrap();
        prop_assert_eq!(slots.len(), depth);
        let want: Vec<_> = images.iter().map(|image| reference(device, image)).collect();
        prop_assert_eq!(got, want);
        Ok(())
    });
}

fn frame_slots(device: Device, depth: usize) -> Ring<FrameSlot<u8, f32>> {
    (0..depth).map(|_| Event::ready(FrameSlot::new(device, ITEM[0], ITEM[1]).unwrap())).collect()
}

/// The buffers of an image that goes through four streams.
#[derive(Resource)]
struct Slot {
    rgb: PinnedBuffer<u8>,
    image: DeviceBuffer<u8>,
    copy: DeviceBuffer<u8>,
    entropy: DeviceBuffer<f32>,
    results: PinnedBuffer<f32>,
}

impl Slot {
    fn new(device: Device) -> Self {
        let (rgb, results) = (device.pinned(ITEM[0]).unwrap(), device.pinned(ITEM[1]).unwrap());
        AnyStream::new(device).unwrap().enter(|s| {
            let bytes = || s.alloc::<u8>(ITEM[0]).unwrap().synchronize().unwrap();
            let entropy = s.alloc(ITEM[1]).unwrap().synchronize().unwrap();
            Self { rgb, image: bytes(), copy: bytes(), entropy, results }
        })
    }
}

#[test]
fn three_stream_equals_serial_on_four_streams_and_on_one() {
    let _alone = alone();
    on_every_device(40, (0..16usize, 1..7usize, any::<u64>()), |device, (count, depth, seed)| {
        let images: Vec<_> = (0..count).map(|n| bytes(device, ITEM[0], seed ^ n as u64)).collect();
        let want: Vec<_> = images.iter().map(|image| reference(device, image)).collect();
        fn run<'s, 'a, 'b, 'c>(
            streams: (&Stream<Scoped<'s>>, &Stream<Scoped<'a>>, &Stream<Scoped<'b>>, &Stream<Scoped<'c>>),
            depth: usize,
            images: &[PinnedBuffer<u8>],
        ) -> Vec<Vec<u32>> {
            let device = streams.0.device();
            let mut got = Vec::new();
            let mut slots = (0..depth).map(|_| Event::ready(Slot::new(device))).collect::<Ring<_>>();
            let load = |n: usize, slot: &mut Slot| {
                slot.rgb.copy_from_slice(&images[n]);
                Ok(())
            };
            let take = |_, slot: &mut Slot| {
                got.push(bits(&slot.results));
                Ok(())
            };
            let steps = (
                |s: &Stream<Scoped<'s>>, slot: &mut SlotOn<Scoped<'s>>| s.copy_to_device(&slot.rgb, &mut slot.image),
                |s: &Stream<Scoped<'a>>, slot: &mut SlotOn<Scoped<'a>>| s.copy(&slot.image, &mut slot.copy),
                |s: &Stream<Scoped<'b>>, slot: &mut SlotOn<Scoped<'b>>| entropies(s, &slot.copy, &mut slot.entropy),
                |s: &Stream<Scoped<'c>>, slot: &mut SlotOn<Scoped<'c>>| {
                    s.copy_to_host(&slot.entropy, &mut slot.results)
                },
            );
            three_stream(streams, &mut slots, images.len(), load, steps, take, &Timeline::disabled()).unwrap();
            assert_eq!(slots.len(), depth);
            got
        }
        let [s, a, b, c] = [(); 4].map(|()| AnyStream::new(device).unwrap());
        let got = s.enter(|s| a.enter(|a| b.enter(|b| c.enter(|c| run((s, a, b, c), depth, &images)))));
        prop_assert_eq!(got, &want[..]);
        let one = s.enter(|s| run((s, s, s, s), depth, &images));
        prop_assert_eq!(one, &want[..]);
        Ok(())
    });
}

/// Any number of stages, on streams of their own or on one, with a stage on the host: each adds a
/// byte to every image. A stage that fails ends the run after the items before it.
#[test]
fn stages_equal_serial_whatever_their_number_and_fail_at_their_item() {
    let _alone = alone();
    let counts = (0..6usize, 0..12usize, 1..5usize, any::<bool>(), prop::option::of(0..12usize));
    on_every_device(40, counts, |device, (depth, items, count, apart, fails)| {
        let lanes = [(); 6].map(|()| AnyStream::new(device).unwrap());
        let slot = || (device.pinned::<u8>(8).unwrap(), lanes[0].enter(|s| s.alloc::<u8>(8)?.synchronize()).unwrap());
        let mut slots: Ring<_> = (0..count).map(|_| Event::ready(slot())).collect();
        let seen = RefCell::new(Vec::new());
        let mut chain = stages::<_, Error>(&mut slots)
            .host(|n, slot: &mut (PinnedBuffer<u8>, DeviceBuffer<u8>)| {
                slot.0.fill(n as u8);
                Ok(())
            })
            .step_on_any(&lanes[0], Activity::Upload, |s, _, slot| s.copy_to_device(&slot.0, &mut slot.1))
            .boxed();
        for k in 0..depth {
            let lane = &lanes[if apart { k } else { 0 }];
            let add = chain.step_on_any(lane, Activity::Compute, move |s, n, slot| {
                if fails == Some(n) && k + 1 == depth {
                    return Err(Error::TooLarge { elements: n, size: 0 });
                }
                s.fill(slot.1.slice_mut(k..=k)?, (10 * n + k) as u8)
            });
            chain = add.boxed();
        }
        let ended = chain
            .step_on_any(&lanes[5], Activity::Download, |s, _, slot| s.copy_to_host(&slot.1, &mut slot.0))
            .host(|n, slot| {
                seen.borrow_mut().push((n, slot.0.to_vec()));
                Ok(())
            })
            .run(0..items, &Timeline::disabled());
        let failed = fails.filter(|&n| n < items && depth > 0);
        prop_assert_eq!(ended.is_err(), failed.is_some());
        prop_assert_eq!(slots.len(), count - usize::from(failed.is_some()));
        let want = (0..failed.unwrap_or(items)).map(|n| {
            let byte = |k| if k < depth { (10 * n + k) as u8 } else { n as u8 };
            (n, (0..8).map(byte).collect::<Vec<_>>())
        });
        prop_assert_eq!(seen.into_inner(), want.collect::<Vec<_>>());
        Ok(())
    });
}

#[test]
fn no_slots_for_stages_are_an_error() {
    let (mut slots, off) = (Ring::<DeviceBuffer<u8>>::default(), Timeline::disabled());
    let none = stages::<_, Error>(&mut slots).run(0..1, &off);
    assert!(matches!(none, Err(Error::Parameter { name: "slots", .. })));
    assert!(stages::<_, Error>(&mut slots).run_and_take(0..1, |_, _| Ok(()), &off).is_err());
    stages::<_, Error>(&mut slots).run(0..0, &off).unwrap();
}

#[test]
fn producer_consumer_equals_serial() {
    let _alone = alone();
    on_every_device(40, (0..20usize, 1..6usize, any::<u64>()), |device, (count, depth, seed)| {
        let images: Vec<_> = (0..count).map(|n| bytes(device, ITEM[0], seed ^ n as u64)).collect();
        let want: Vec<_> = images.iter().map(|image| reference(device, image)).collect();
        let [a, b] = [(); 2].map(|()| AnyStream::new(device).unwrap());
        let mut slots: Ring<_> = (0..depth).map(|_| Event::ready(Slot::new(device).image)).collect();
        let results =
            (0..count).map(|_| (Slot::new(device).entropy, device.pinned(ITEM[1]).unwrap())).collect::<Vec<_>>();
        let got = a.enter(|a| {
            b.enter(|b| {
                let (images, mut results) = (a.bind(images).unwrap(), b.bind(results).unwrap());
                producer_consumer(
                    (a, b),
                    &mut slots,
                    count,
                    |s, n, slot: &mut thalweg::On<_, DeviceBuffer<u8>>| s.copy_to_device(&images[n], slot),
                    |s, n, slot| {
                        let (y, host) = &mut results[n];
                        entropies(s, slot, y)?;
                        s.copy_to_host(y, host)
                    },
                    &Timeline::disabled(),
                )
                .unwrap();
                assert_eq!(slots.len(), depth);
                b.record(results).unwrap().synchronize().unwrap()
            })
        });
        prop_assert_eq!(got.iter().map(|(_, host)| bits(host)).collect::<Vec<_>>(), want);
        Ok(())
    });
}

/// Counts down, and fails at the call that finds zero.
fn fail_at(call: &Cell<usize>) -> Result<()> {
    let left = call.get();
    call.set(left.wrapping_sub(1));
    if left > 0 { Ok(()) } else { Err(Error::Thread { reason: "on purpose".into() }) }
}

/// With this limit the free memory of the CPU device depends only on its own allocations.
const METERED: u64 = 1 << 30;

/// Runs `test` with counted page-locked memory, and waits until that and all device memory is back.
fn nothing_is_lost(device: Device, test: impl FnOnce(&PinnedPool)) {
    let pool = PinnedPool::new(device, 1 << 20);
    let free = || device.free_memory().unwrap();
    device.limit_memory(Some(METERED));
    let before = free();
    test(&pool);
    let start = Instant::now();
    loop {
        drop(pool.take::<u8>(1).unwrap()); // Collects the memory that was given back.
        if pool.in_use() == 0 && free() == before {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{} bytes pinned, {} of {before} free",
            pool.in_use(),
            free()
        );
        std::thread::yield_now();
    }
}

#[test]
fn interleaved_needs_as_much_memory_for_many_chunks_as_for_few() {
    let _alone = alone();
    let device = Device::new_cpu().unwrap();
    let lanes = &streams(device, 3);
    let peak = |chunks: usize| {
        let mut most = 0;
        nothing_is_lost(device, |pool| {
            let free = device.free_memory().unwrap();
            let mut input = pool.take::<u8>(chunks * 1024).unwrap();
            input.fill(7);
            let split = Chunks::of_items(chunks, 1024, 1024);
            let (input, output) = interleaved(
                lanes,
                input,
                split,
                |s, x, y: &mut DeviceSlice<_, u8>| {
                    most = most.max(free - device.free_memory()?);
                    s.copy(x, y)
                },
                &Timeline::disabled(),
            )
            .unwrap();
            assert_eq!(*input, *output);
        });
        most
    };
    let few = peak(9);
    assert!(few > 0);
    assert_eq!(peak(90), few);
}

#[test]
fn a_step_that_fails_loses_nothing() {
    let _alone = alone();
    let off = &Timeline::disabled();
    let device = Device::new_cpu().unwrap();
    let lanes = &streams(device, 3);
    let chunks = Chunks::of_items(7, ITEM[0], ITEM[1]);
    let filled = |pool: &PinnedPool| {
        let mut input = pool.take::<u8>(20 * ITEM[0]).unwrap();
        input.fill(3);
        input
    };
    for at in 0..7 {
        nothing_is_lost(device, |pool| {
            let left = Cell::new(at);
            let failed = if at % 2 == 0 {
                interleaved(lanes, filled(pool), chunks, |s, x, y| entropies(s, x, y).and(fail_at(&left)), off)
            } else {
                grouped(lanes, filled(pool), chunks, |s, x, y| entropies(s, x, y).and(fail_at(&left)), off)
            };
            assert!(matches!(failed, Err(Error::Thread { .. })));
            left.set(at);
            lanes[0].enter(|a| {
                lanes[1].enter(|b| {
                    lanes[2].enter(|c| {
                        let slot = |_| {
                            let mut slot = FrameSlot::new(device, ITEM[0], ITEM[1]).unwrap();
                            slot.input = pool.take(ITEM[0]).unwrap();
                            slot.input.fill(3);
                            Event::ready(slot)
                        };
                        let mut slots = (0..3).map(slot).collect();
                        let mut taken = 0;
                        let take = |_, _: &mut FrameSlot<u8, f32>| {
                            taken += 1;
                            Ok(())
                        };
                        let failed = double_buffer(
                            (a, b, c),
                            &mut slots,
                            9,
                            |_, _| Ok(()),
                            |s, x, y| entropies(s, x, y).and(fail_at(&left)),
                            take,
                            off,
                        );
                        assert!(matches!(failed, Err(Error::Thread { .. })));
                        assert_eq!(taken, at, "the frames before the one that failed");
                    });
                });
            });
        });
    }
}

#[test]
fn out_of_memory_half_way_is_an_error_that_passes() {
    let _alone = alone();
    let off = &Timeline::disabled();
    let device = Device::new_cpu().unwrap();
    let lanes = streams(device, 3);
    let total = 64 * 4096;
    nothing_is_lost(device, |pool| {
        let filled = || {
            let mut input = pool.take::<u8>(total).unwrap();
            input.fill(9);
            input
        };
        device.limit_memory(Some(total as u64 / 2));
        let failed = grouped::<u8, u8>(&lanes, filled(), Chunks::new(64), |s, x, y| s.copy(x, y), off);
        assert!(matches!(failed, Err(Error::OutOfMemory { .. })), "{failed:?}");
        // Three scoped streams of one chunk each fit once the memory of the failed run is free.
        let start = Instant::now();
        let (input, output) = loop {
            match interleaved::<u8, u8>(&lanes, filled(), Chunks::new(64), |s, x, y| s.copy(x, y), off) {
                Ok(done) => break done,
                Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
            }
        };
        assert_eq!(*input, *output);
        device.limit_memory(Some(METERED));
    });
}

/// Runs `test` on three scoped streams of a new device, with slots that are made before it starts.
fn with_slots(depth: usize, test: impl for<'l> Fn(Device, [&Stream<Scoped<'l>>; 3], Ring<FrameSlot<u8, f32>>)) {
    let device = Device::new_cpu().unwrap();
    let lane = AnyStream::new(device).unwrap();
    // One scoped stream is passed three times, because the closure takes three scoped streams of
    // one type.
    lane.enter(|s| {
        test(device, [s; 3], frame_slots(device, depth));
    });
}

#[test]
fn frames_need_no_memory_of_their_own() {
    let _alone = alone();
    with_slots(3, |device, [a, b, c], mut slots| {
        let mut planes = Ring::from_iter([Event::ready(b.alloc::<u8>(64).unwrap().synchronize().unwrap())]);
        // The limit leaves not one free byte.
        device.limit_memory(Some(METERED));
        device.limit_memory(Some(METERED - device.free_memory().unwrap()));
        assert!(matches!(b.alloc::<u8>(1), Err(Error::OutOfMemory { .. })));
        let mut taken = 0;
        let take = |_, _: &mut FrameSlot<u8, f32>| {
            taken += 1;
            Ok(())
        };
        let load = |_, slot: &mut FrameSlot<u8, f32>| {
            slot.input.fill(3);
            Ok(())
        };
        double_buffer((a, b, c), &mut slots, 20, load, entropies, take, &Timeline::disabled()).unwrap();
        assert_eq!(taken, 20);
        producer_consumer(
            (a, b),
            &mut planes,
            20,
            |s, _, x| s.fill(x, 1),
            |s, _, x| s.fill(x, 2),
            &Timeline::disabled(),
        )
        .unwrap();
    });
}

#[test]
fn what_was_under_way_is_taken_before_an_error_returns() {
    let _alone = alone();
    let off = &Timeline::disabled();
    let purpose = || Error::Thread { reason: "on purpose".into() };
    for at in 0..6 {
        with_slots(3, |_, [a, b, c], mut slots| {
            let mut taken = Vec::new();
            let take = |n, _: &mut FrameSlot<u8, f32>| {
                taken.push(n);
                Ok(())
            };
            let load = |n, _: &mut FrameSlot<u8, f32>| if n == at { Err(purpose()) } else { Ok(()) };
            let failed = double_buffer((a, b, c), &mut slots, 20, load, |_, _, _| Ok(()), take, off);
            assert!(matches!(failed, Err(Error::Thread { .. })));
            assert_eq!((taken, slots.len()), ((0..at).collect::<Vec<_>>(), 2));
        });
        with_slots(3, |_, [a, b, c], mut slots| {
            let mut calls = 0;
            let take = |n, _: &mut FrameSlot<u8, f32>| {
                calls += 1;
                if n == at { Err(purpose()) } else { Ok(()) }
            };
            let failed = double_buffer((a, b, c), &mut slots, 20, |_, _| Ok(()), |_, _, _| Ok(()), take, off);
            assert!(matches!(failed, Err(Error::Thread { .. })));
            assert_eq!(calls, at + 1);
        });
        with_slots(2, |device, [a, b, _], _| {
            nothing_is_lost(device, |_| {
                let slot = |_| Event::ready(a.alloc::<u8>(4).unwrap().synchronize().unwrap());
                let mut slots = (0..2).map(slot).collect();
                let consume = |s: &Stream<Scoped<'_>>, n, _: &mut _| {
                    if n == at { Err(purpose()) } else { s.is_complete().map(|_| ()) }
                };
                let failed = producer_consumer((a, b), &mut slots, 20, |_, _, _| Ok(()), consume, off);
                assert!(matches!(failed, Err(Error::Thread { .. })));
            });
        });
    }
    with_slots(0, |_, [a, b, c], mut slots| {
        let none = double_buffer((a, b, c), &mut slots, 1, |_, _| Ok(()), |_, _, _| Ok(()), |_, _| Ok(()), off);
        assert!(matches!(none, Err(Error::Parameter { name: "slots", .. })));
    });
}

#[test]
fn a_timeline_shows_every_step_and_changes_nothing() {
    let _alone = alone();
    for &device in testkit::devices::devices() {
        let timeline = Timeline::new(device).unwrap();
        let lanes = streams(device, 3);
        let input = bytes(device, 20 * ITEM[0], 5);
        let chunks = Chunks::of_items(7, ITEM[0], ITEM[1]);
        let (input, want) = serial(&lanes[0], input, chunks, entropies, &Timeline::disabled()).unwrap();
        let (input, a) = interleaved(&lanes, input, chunks, entropies, &timeline).unwrap();
        let (_, b) = grouped(&lanes, input, chunks, entropies, &timeline).unwrap();
        assert!(bits(&a) == bits(&want) && bits(&b) == bits(&want));
        let trace = timeline.finish().unwrap();
        for activity in [Activity::Upload, Activity::Compute, Activity::Download] {
            let spans = trace.spans().iter().filter(|span| span.activity == activity).count();
            assert_eq!(spans, 2 * 7, "{}", activity.name());
            let has = |label: String| trace.spans().iter().any(|s| s.activity == activity && *s.label == *label);
            assert!((0..7).all(|chunk| has(format!("chunk {chunk}"))), "{}", activity.name());
        }
    }
}
