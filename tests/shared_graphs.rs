//! Shared resources as parts of bundles: graphs of several scoped streams read the same weights,
//! and whoever writes or frees them waits for every replay.

#![allow(clippy::redundant_closure, reason = "a function alone is not general enough over the lifetime of a capture")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use testkit::devices::everywhere_and_seeded;
use testkit::gate::Gate;
use thalweg::{
    AnyStream, Device, DeviceBuffer, Error, Event, LiveBrand, PinnedBuffer, Resource, Scoped, Shared, Stream,
};

const LEN: usize = 33;

/// What a scoped stream of inference has: the weights, which it reads, and memory of its own.
#[derive(Resource)]
struct Work {
    weights: Option<Shared<Vec<DeviceBuffer<u32>>>>,
    image: DeviceBuffer<u32>,
    output: PinnedBuffer<u32>,
}

/// Runs `check` on three streams of `device`.
fn lanes(device: Device, check: impl FnOnce(Stream<Scoped<'_>>, Stream<Scoped<'_>>, Stream<Scoped<'_>>)) {
    let [a, b, c] = [(); 3].map(|()| AnyStream::new(device).unwrap());
    a.enter(|&a| b.enter(|&b| c.enter(|&c| check(a, b, c))));
}

fn weights<S: LiveBrand>(s: Stream<S>, v: u32) -> Shared<Vec<DeviceBuffer<u32>>> {
    let mut layers = vec![s.alloc(LEN).unwrap(), s.alloc(LEN).unwrap()];
    layers.iter_mut().zip(v..).for_each(|(layer, v)| s.fill(layer, v).unwrap());
    s.share(layers).unwrap()
}

fn work<S: LiveBrand>(s: Stream<S>, weights: Option<Shared<Vec<DeviceBuffer<u32>>>>) -> WorkOn<S> {
    let image = s.alloc_zeroed(LEN).unwrap().synchronize().unwrap();
    s.bind(Work { weights, image, output: s.device().pinned(LEN).unwrap() }).unwrap()
}

/// Copies the second layer to the host, by way of the image.
fn infer<S: thalweg::Brand>(s: &Stream<S>, work: &mut WorkOn<S>) -> Result<(), Error> {
    let layers = work.weights.as_ref().expect("it has weights");
    s.copy(&layers[1], &mut work.image)?;
    s.copy_to_host(&work.image, &mut work.output)
}

#[test]
fn graphs_of_several_lanes_read_the_same_weights() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, producer| {
            let weights = weights(producer, 7);
            let (mut first, one) = a.capture(work(a, Some(weights.clone())), |s, work| infer(s, work)).unwrap();
            let (mut second, two) = b.capture(work(b, Some(weights.clone())), |s, work| infer(s, work)).unwrap();
            assert_eq!((first.len(), second.len()), (2, 2));
            let (one, two) = (a.replay(&mut first, one).unwrap(), b.replay(&mut second, two).unwrap());
            // The graph of one scoped stream may read on another, as long as it is given its own
            // memory.
            let one = a.hand_off(a.replay(&mut first, one).unwrap(), &b).unwrap();
            let one = b.replay(&mut first, one).unwrap();
            for done in [b.record(one).unwrap(), b.record(two).unwrap()] {
                let work = done.synchronize().unwrap();
                assert_eq!(work.output[..], [8; LEN]);
                drop(work);
            }
            // All other handles are gone, so the weights come back to one stream.
            assert_eq!(weights.ref_count(), 1);
            let layers = producer.unshare(weights).unwrap();
            assert_eq!(producer.read_blocking(&layers[0]).unwrap(), [7; LEN]);
        });
    });
}

#[test]
fn other_weights_are_refused_in_a_replay() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _, producer| {
            let (right, wrong) = (weights(producer, 1), weights(producer, 2));
            let (mut graph, mut bundle) = a.capture(work(a, Some(right.clone())), |s, work| infer(s, work)).unwrap();
            // `a` reads the other weights from here on.
            let mut idle = a.record(bundle).unwrap().synchronize().unwrap();
            idle.weights = Some(wrong);
            bundle = a.bind(idle).unwrap();
            let Err(refused) = a.replay(&mut graph, bundle) else { panic!("other weights") };
            assert!(matches!(refused.error, Error::GraphMismatch { index: 0, .. }), "{}", refused.error);
        });
    });
}

/// The replay stands at a gate while all handles go away and another stream takes and overwrites
/// the weights.
#[test]
fn a_writer_waits_for_replays_that_read() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, producer| {
            let weights = weights(producer, 3);
            let (mut graph, bundle) = a.capture(work(a, Some(weights.clone())), |s, work| infer(s, work)).unwrap();
            let bundle = a.replay(&mut graph, bundle).unwrap();
            a.synchronize().unwrap();
            b.fill(&mut b.alloc::<u32>(LEN).unwrap(), 0).unwrap(); // a driver may load its kernel here
            b.synchronize().unwrap();
            let gate = Gate::closed(device);

            gate.hold(&a);
            let WorkOn { weights: reading, image, output } = a.replay(&mut graph, bundle).unwrap();
            drop((reading, image));
            let output = a.record(output).unwrap();
            let mut layers = b.unshare(weights).unwrap();
            layers.iter_mut().for_each(|layer| b.fill(layer, 99).unwrap());
            assert!(!output.is_complete().unwrap(), "{device}");
            gate.open();
            assert_eq!(output.synchronize().unwrap()[..], [4; LEN], "{device}");
            assert_eq!(b.read_blocking(&layers[1]).unwrap(), [99; LEN]);
        });
    });
}

/// `bind`, and `wait` for an event without a record, make the stream wait for the producer.
#[test]
fn a_stream_waits_for_the_producer_of_what_it_binds() {
    everywhere_and_seeded(|device| {
        for by_event in [false, true] {
            lanes(device, |a, _, producer| {
                drop(work(a, None)); // memory for below, which the gate must not delay
                let mut x = producer.alloc::<u32>(LEN).unwrap();
                producer.fill(&mut x, 0).unwrap();
                let host = device.pinned(LEN).unwrap();
                producer.synchronize().unwrap();
                let gate = Gate::closed(device);
                gate.hold(&producer);
                producer.fill(&mut x, 5).unwrap();
                let idle = (producer.share(x).unwrap(), host);
                let bound = if by_event { a.wait(Event::ready(idle)).unwrap() } else { a.bind(idle).unwrap() };
                let (shared, mut host) = bound;
                a.copy_to_host(&shared, &mut host).unwrap();
                let done = a.record(host).unwrap();
                assert!(!done.is_complete().unwrap(), "{device}");
                gate.open();
                assert_eq!(done.synchronize().unwrap()[..], [5; LEN], "{device}, by an event: {by_event}");
            });
        }
    });
}

/// A shared resource may hold shared parts. The inner memory waits for readers of the outer handle.
#[test]
fn what_is_shared_may_hold_shared_parts() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, producer| {
            let inner = weights(producer, 1);
            let outer =
                producer.share(producer.bind((inner.clone(), device.pinned::<u8>(1).unwrap())).unwrap()).unwrap();
            let mut host = a.bind(device.pinned::<u32>(LEN).unwrap()).unwrap();
            b.fill(&mut b.alloc::<u32>(LEN).unwrap(), 0).unwrap();
            b.synchronize().unwrap();
            let gate = Gate::closed(device);
            gate.hold(&a);
            let reading = a.reading(&outer).unwrap();
            a.copy_to_host(&reading.0[0], &mut host).unwrap();
            drop((reading, outer));
            let mut layers = b.unshare(inner).unwrap();
            layers.iter_mut().for_each(|layer| b.fill(layer, 99).unwrap());
            let host = a.record(host).unwrap();
            gate.open();
            assert_eq!(host.synchronize().unwrap()[..], [1; LEN], "{device}");
        });
    });
}

/// A graph that writes a buffer is refused while the buffer is shared: readers would see the write.
#[test]
fn a_graph_that_writes_does_not_run_on_shared_memory() {
    type Bundle = (Option<Shared<DeviceBuffer<u32>>>, Option<DeviceBuffer<u32>>);
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, _| {
            let bundle: Bundle = (None, Some(a.alloc_zeroed(LEN).unwrap().synchronize().unwrap()));
            let (mut graph, (_, x)) =
                a.capture(a.bind(bundle).unwrap(), |s, x| s.fill(x.1.as_mut().expect("it is exclusive"), 5)).unwrap();
            let shared = a.share(x.unwrap()).unwrap();
            let reading = b.reading(&shared).unwrap();
            let refused = a.replay::<Bundle>(&mut graph, a.bind::<Bundle>((Some(shared.clone()), None)).unwrap());
            let Err(refused) = refused else { panic!("{device}: the graph writes what others read") };
            assert!(refused.error.to_string().contains("shared"), "{}", refused.error);
            assert_eq!(b.read_blocking(&reading).unwrap(), [0; LEN]);
        });
    });
}

/// Metadata whose clone, or whose destructor, panics while this is 1 or 2.
static FAILS: AtomicUsize = AtomicUsize::new(0);

/// Runs `f` while the metadata panics.
fn failing(fails: usize, f: impl FnOnce()) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            FAILS.store(0, Ordering::SeqCst);
        }
    }
    let _reset = Reset;
    FAILS.store(fails, Ordering::SeqCst);
    f();
}

struct Meta;

impl Clone for Meta {
    fn clone(&self) -> Self {
        assert!(FAILS.load(Ordering::SeqCst) != 1, "on purpose");
        Self
    }
}

impl Drop for Meta {
    fn drop(&mut self) {
        assert!(FAILS.load(Ordering::SeqCst) != 2 || thread::panicking(), "on purpose");
    }
}

#[derive(Resource)]
struct Layer {
    x: DeviceBuffer<u32>,
    #[resource(plain)]
    meta: Meta,
}

/// A transition runs no code of the metadata between the states of other buffers. If it did, a
/// panic there would free a buffer beside it as idle, while a copy into it is pending.
#[test]
fn metadata_that_panics_frees_nothing_early() {
    for fails in [1, 2] {
        for which in ["record", "wait", "hand", "share", "unshare", "replay", "capture"] {
            let device = Device::new_cpu().unwrap();
            lanes(device, |a, b, _| {
                let mut x = a.alloc::<u32>(LEN).unwrap();
                a.fill(&mut x, 7).unwrap();
                let shared = a.bind(a.share(LayerOn { x, meta: Meta }).unwrap()).unwrap();
                let host = a.bind(device.pinned::<u32>(LEN).unwrap()).unwrap();
                let (mut graph, (mut host, shared)) =
                    a.capture((host, shared), |s, (host, layer)| s.copy_to_host(&layer.x, host)).unwrap();
                let gate = Gate::closed(device);
                gate.hold(&a);
                a.copy_to_host(&shared.x, &mut host).unwrap(); // pending
                let bundle = (host, shared);
                let _ = catch_unwind(AssertUnwindSafe(|| match which {
                    "record" => failing(fails, || drop(a.record(bundle))),
                    "hand" => failing(fails, || drop(a.hand_off(bundle, &b))),
                    "share" => failing(fails, || drop(a.share(bundle))),
                    "replay" => failing(fails, || drop(a.replay(&mut graph, bundle))),
                    "capture" => failing(fails, || drop(a.capture(bundle, |_, _| Ok(())))),
                    "wait" => {
                        let event = a.record(bundle).unwrap();
                        failing(fails, || drop(b.wait(event)));
                    }
                    _ => {
                        let shared = a.share(bundle).unwrap();
                        failing(fails, || drop(b.unshare(shared)));
                    }
                }));
                let mut fresh = device.pinned::<u32>(LEN).unwrap(); // idle, and ours alone
                fresh.fill(1);
                gate.open();
                a.synchronize().unwrap();
                b.synchronize().unwrap();
                assert_eq!(fresh[..], [1; LEN], "{which}, {fails}");
            });
        }
    }
}

/// A call that is refused in a host function leaves the reading as it was.
#[test]
fn a_refused_call_loses_no_reading() {
    thalweg::stream_tags!(Refused, Other);
    let device = Device::new_cpu().unwrap();
    let (a, b) = (device.stream::<Refused>().unwrap(), device.stream::<Other>().unwrap());
    let reading = a.bind(a.share(a.alloc_zeroed::<u32>(LEN).unwrap()).unwrap()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    b.launch_host(move || tell.send(a.hand_off(reading, &b).map(drop).unwrap_err()).unwrap()).unwrap();
    b.synchronize().unwrap();
    let refused = told.recv().unwrap();
    assert!(matches!(refused.error, Error::InHostFunction), "{}", refused.error);
    let shared = a.record(refused.value).unwrap().synchronize().unwrap();
    assert_eq!(a.read_blocking(&a.unshare(shared).unwrap()).unwrap(), [0; LEN]);
}
