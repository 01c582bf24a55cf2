//! Tests of the messages: the events of a program's life are logged, each once and under its
//! target, and what runs many times logs nothing. A process has one logger, which hears everything:
//! each test has a process of its own.

use std::sync::Mutex;

use log::{Level, LevelFilter, Log, Metadata, Record};
use testkit::devices::devices;
use testkit::process::own_process;
use thalweg::{AnyStream, Device, DeviceKind, Error, ForeignStream, PerThread, PinnedPool, Stream, stream_tags};
use thalweg_vision::{Image, Pipeline, TokenParams, kernels};

stream_tags!(Logger, Tagged, Scoped);

/// The messages so far, each with its target.
static MESSAGES: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

struct Keep;

impl Log for Keep {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &Record<'_>) {
        assert_eq!(record.level(), Level::Debug, "{}", record.args());
        // A logger may call a device: no message is logged under a lock of the crate.
        let cpu = Device::cpu().unwrap();
        let _ = (cpu.pinned_pool().in_use(), cpu.stream::<Logger>().unwrap());
        cpu.per_thread(|_| ()).unwrap();
        MESSAGES.lock().unwrap().push((record.target().to_owned(), record.args().to_string()));
    }
    fn flush(&self) {}
}

/// The messages of `f`.
fn messages<T>(f: impl FnOnce() -> T) -> (T, Vec<(String, String)>) {
    static KEEP: Keep = Keep;
    // The logger asks for these.
    Device::cpu().unwrap().stream::<Logger>().unwrap();
    Device::cpu().unwrap().per_thread(|_| ()).unwrap();
    let _ = log::set_logger(&KEEP); // refused at the second call, which changes nothing
    log::set_max_level(LevelFilter::Trace);
    MESSAGES.lock().unwrap().clear();
    let result = f();
    log::set_max_level(LevelFilter::Off);
    (result, std::mem::take(&mut MESSAGES.lock().unwrap()))
}

/// Checks that `f` logs exactly these messages: their targets, and how they begin and go on.
#[track_caller]
fn logs<T>(expected: &[(&str, &str, &str)], f: impl FnOnce() -> T) -> T {
    let (result, logged) = messages(f);
    let fits = |((target, message), want): (&(String, String), &(&str, &str, &str))| {
        target == want.0 && message.starts_with(want.1) && message.contains(want.2)
    };
    assert!(logged.len() == expected.len() && logged.iter().zip(expected).all(fits), "{logged:#?}, not {expected:#?}");
    result
}

#[test]
fn the_events_of_life_are_logged_once() {
    if !own_process(concat!(module_path!(), "::the_events_of_life_are_logged_once")) {
        return;
    }
    let (device, logged) = messages(|| Device::new_cpu().unwrap());
    assert_eq!(logged.len(), 1, "{logged:#?}");
    assert_eq!(logged[0].0, "thalweg::device");
    assert!(logged[0].1.starts_with(&format!("opened {device}: {}, ", device.name())), "{logged:#?}");
    logs(&[("thalweg::device", "opened cpu:", " MiB")], || Device::seeded_cpu(1).unwrap());
    logs(&[], Device::cpu).unwrap(); // it is open

    let made = ("thalweg::stream", "stream ", " is for a scoped stream, with priority 0");
    let lane = logs(&[made], || AnyStream::new(device).unwrap());
    drop(lane);
    let lane = logs(&[], || AnyStream::new(device).unwrap()); // the parked one
    // Another lane is in use, so the first use by this thread makes one. The logger uses the
    // thread's lane of another device meanwhile.
    logs(&[made], || device.per_thread(|_| ()).unwrap());
    logs(&[], || device.per_thread(|_| ()).unwrap());
    let tagged = format!("of {device} is for {}", std::any::type_name::<Tagged>());
    logs(&[("thalweg::stream", "stream ", &tagged)], || device.stream::<Tagged>().unwrap());
    logs(&[], || device.stream::<Tagged>().unwrap());
    logs(&[made], || ForeignStream::legacy(device).unwrap()); // on this device, a lane stands in
    let scoped = std::any::type_name::<Scoped>();
    logs(&[("thalweg::stream", "stream ", scoped)], || {
        device.scope(|rank| rank.stream::<Scoped>().map(drop)).unwrap();
    });

    let pool = PinnedPool::new(device, 8192);
    let locked = ("thalweg::memory", "page-locked 8192 bytes for cpu:", "");
    let block = logs(&[locked], || pool.take::<u8>(5000).unwrap());
    let full = ("thalweg::memory", "a pool of cpu:", "has no room for 100 bytes: 8192 of 8192 are in use");
    let refused = logs(&[full], || pool.take::<u8>(100));
    assert!(matches!(refused, Err(Error::PinnedBudget { .. })), "{refused:?}");
    drop(block);
    logs(&[("thalweg::memory", "a pool of cpu:", "was trimmed by 8192 bytes")], || pool.trim());

    device.limit_memory(Some(100));
    let full = format!("{device} has no room for 101 bytes");
    logs(&[("thalweg::memory", &full, "")], || lane.enter(|s| s.alloc::<u8>(101).map(drop)).unwrap_err());
    device.limit_memory(None);

    lane.enter(|s| {
        let x = s.alloc::<u32>(10).unwrap();
        let captured = format!("for {device} in ");
        let (graph, x) = logs(&[("thalweg::graph", "captured a graph of 2 nodes", &captured)], || {
            s.capture(x, |s, x| s.fill(x, 1).and_then(|()| s.fill(x, 2))).unwrap()
        });
        logs(&[], || drop((graph, x)));
    });
}

/// Runs a kernel of thalweg-vision. A GPU loads the module at the first call in the process, and
/// logs it then.
fn load_module(device: Device) {
    static LOADED: Mutex<Vec<Device>> = Mutex::new(Vec::new());
    let ((), logged) = messages(|| {
        let launch = |s: &Stream<PerThread<'_>>| {
            let (rgb, mut planes) = (s.alloc_zeroed::<u8>(3).unwrap(), s.alloc(thalweg_vision::PLANES).unwrap());
            kernels::textures(s, 1, 1, 0.5, 0.5, &rgb, &mut planes).unwrap();
        };
        device.per_thread(launch).unwrap();
    });
    let mut before = LOADED.lock().unwrap();
    let loads = device.kind() == DeviceKind::Cuda && !before.contains(&device);
    before.push(device);
    let start = format!("{device} loaded ");
    let found = logged.iter().filter(|(target, text)| target == "thalweg::module" && text.starts_with(&start)).count();
    assert_eq!(found, usize::from(loads), "{logged:#?}");
}

#[test]
fn a_pipeline_and_a_module_are_logged() {
    if !own_process(concat!(module_path!(), "::a_pipeline_and_a_module_are_logged")) {
        return;
    }
    for &device in devices() {
        load_module(device);
        let image = || vec![Image::new(64, 64, vec![7; 64 * 64 * 3]).unwrap()];
        let params = TokenParams::default().with_budget(500);
        let (pipeline, logged) = messages(|| {
            let pipeline = Pipeline::new(device, params).unwrap();
            assert!(pipeline.run(&image()).iter().all(Result::is_ok));
            pipeline
        });
        let of = |target: &str, text: &str| logged.iter().filter(|(t, m)| t == target && m.contains(text)).count();
        let made = format!("a pipeline for {device}: TokenParams {{");
        assert_eq!(of("thalweg_vision::pipeline", &made), 1, "{logged:#?}");
        let slot = format!("a slot of {device} got memory for images of 64 x 64");
        assert_eq!(of("thalweg_vision::pipeline", &slot), 1, "{logged:#?}");
        // The second batch of a slot makes its graph, and every later one replays it.
        let (_, logged) = messages(|| (0..20).for_each(|_| drop(pipeline.run(&image()))));
        assert!(logged.iter().all(|(target, _)| target == "thalweg::graph"), "{logged:#?}");
        let (_, logged) = messages(|| drop(pipeline.run(&image())));
        assert!(logged.is_empty(), "{logged:#?}");
    }
}

#[test]
fn the_hot_path_logs_nothing() {
    if !own_process(concat!(module_path!(), "::the_hot_path_logs_nothing")) {
        return;
    }
    for &device in devices() {
        load_module(device);
        let (h, w) = (32, 48);
        let pixels = (h * w) as usize;
        let (from, to) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
        from.enter(|a| {
            to.enter(|b| {
                let mut host = a.bind(device.pinned_from(&vec![9u8; 3 * pixels]).unwrap()).unwrap();
                let mut rgb = a.alloc::<u8>(3 * pixels).unwrap();
                let mut planes = a.alloc::<f32>(thalweg_vision::PLANES * pixels).unwrap();
                let mut copy = a.alloc::<f32>(thalweg_vision::PLANES * pixels).unwrap();
                let x = b.alloc::<u32>(10).unwrap();
                let (mut graph, mut x) = b.capture(x, |s, x| s.fill(x, 3)).unwrap();
                let mut once = || {
                    a.copy_to_device(&host, &mut rgb).unwrap();
                    kernels::textures(a, h, w, 0.5, 0.5, &rgb, &mut planes).unwrap();
                    a.copy(&planes, &mut copy).unwrap();
                    a.zero(&mut copy).unwrap();
                    a.copy_to_host(&rgb, &mut host).unwrap();
                };
                let mut free = Some(a.alloc::<u8>(77).unwrap());
                let mut transitions = || {
                    let y = a.hand_off(free.take().unwrap(), b).unwrap();
                    let event = b.record(y).unwrap();
                    let y = a.wait(event).unwrap();
                    let shared = a.share(y).unwrap();
                    drop(b.reading(&shared).unwrap());
                    let y = a.unshare(shared).unwrap();
                    free = Some(a.bind(a.record(y).unwrap().synchronize().unwrap()).unwrap());
                };
                let mut replays = |x| b.replay(&mut graph, x).unwrap();
                once();
                transitions();
                x = replays(x);
                let (_, logged) = messages(|| {
                    for _ in 0..10 {
                        once();
                        transitions();
                        x = replays(std::mem::replace(&mut x, b.alloc(0).unwrap()));
                        drop(a.alloc::<u8>(100).unwrap());
                        a.synchronize().unwrap();
                    }
                });
                assert!(logged.is_empty(), "{logged:#?}");
            });
        });
    }
}
