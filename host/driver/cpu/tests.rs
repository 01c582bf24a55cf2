//! Tests of the CPU device alone, on threads and on seeded schedules.
//!
//! Every `unsafe` block here rests on the same facts. The memory is `Words` or an allocation of the
//! test itself, large enough and aligned. The test's queues and events order its uses; where a test
//! leaves a wait out on purpose, it uses a seeded schedule, on which nothing runs at the same time.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::env::VarError;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use thalweg_simt::host::{CpuEntry, Declaration, DeviceSlice, Kernel, Launch, LaunchError, LaunchShape, Ptx};
use thalweg_simt::kernel;

use super::memory::Memory;
use super::*;

fn cpu(schedule: Schedule) -> &'static Cpu {
    Box::leak(Box::new(Cpu::new(schedule, false).unwrap()))
}

/// One device on threads and 32 with seeded schedules.
fn devices() -> impl Iterator<Item = &'static Cpu> {
    [Schedule::Threads].into_iter().chain((0..32).map(Schedule::Seeded)).map(cpu)
}

/// Words of device memory.
#[derive(Clone, Copy)]
struct Words {
    addr: u64,
    len: usize,
}

impl Words {
    fn new(cpu: &Cpu, len: usize) -> Self {
        Self { addr: cpu.alloc(4 * len).unwrap().as_ptr() as u64, len }
    }

    fn fill(self, queue: &Queue, v: u32) {
        unsafe { queue.submit(Work::Fill { dst: self.addr, stride: 4, pattern: Pattern::U32(v), count: self.len }) }
    }

    fn copy(self, queue: &Queue, to: Self) {
        unsafe { queue.submit(Work::Copy { dst: to.addr, src: self.addr, bytes: 4 * self.len }) }
    }

    /// Reads the words. Nothing may run that writes them.
    fn read(self) -> Vec<u32> {
        let p = std::ptr::with_exposed_provenance::<u32>(self.addr as usize);
        (0..self.len).map(|i| unsafe { p.add(i).read() }).collect()
    }

    fn slice<'a>(self) -> &'a mut DeviceSlice<(), u32> {
        unsafe { DeviceSlice::from_raw_mut(self.addr, self.len) }
    }
}

/// Blocks a queue until it is opened.
#[derive(Clone)]
struct Gate(&'static AtomicU32);

impl Gate {
    fn close(queue: &Queue) -> Self {
        let flag = Box::leak(Box::new(AtomicU32::new(0)));
        unsafe { queue.wait_value(flag, 1) };
        Self(flag)
    }

    fn open(&self) {
        self.0.store(1, Ordering::Release);
    }
}

struct On(&'static Queue);

#[derive(Debug)]
struct Failed;

impl From<LaunchError> for Failed {
    fn from(_: LaunchError) -> Self {
        Self
    }
}

// SAFETY: [kernel] It has no maps.
unsafe impl Launch<()> for On {
    type Error = Failed;
    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), Failed> {
        let work = Work::launch(false, kernel, shape, slots).map_err(|_| Failed)?;
        unsafe { self.0.submit(work) };
        Ok(())
    }
}

kernel! {
    unsafe fn add(cx: impl Simt, n: u32, v: u32, x: InOut<u32>)
    require { x.len() == n }
    grid(n.div_ceil(64)) block(64)
    {
        let i = cx.global_x();
        if i < n {
            x.set(cx, i as usize, x.get(cx, i as usize) + v);
        }
    }
}

kernel! {
    /// Replaces each element by the sum of its group of 64.
    unsafe fn block_sums(cx: impl Cooperative, x: InOut<u32>)
    require { x.len().is_multiple_of(64) }
    grid(x.len() / 64) block(64) shared(8)
    {
        let s = cx.shared::<u32>(0);
        let i = cx.global_x() as usize;
        let sum = cx.warp_sum_u32(x.get(cx, i));
        if cx.lane() == 0 {
            cx.shared_set(s, cx.warp(), sum);
        }
        cx.barrier();
        x.set(cx, i, cx.shared_get(s, 0) + cx.shared_get(s, 1));
    }
}

kernel! {
    unsafe fn diverges(cx: impl Cooperative)
    grid(100) block(64)
    {
        if cx.rank() < 32 || cx.block_idx().x != 57 {
            cx.barrier();
        }
    }
}

kernel! {
    unsafe fn elsewhere()
    grid(1) block(1)
}

#[test]
fn a_queue_keeps_its_order() {
    for cpu in devices() {
        let queue = cpu.queue(0).unwrap();
        let gate = Gate::close(queue);
        let seen = Arc::new(Mutex::new(Vec::new()));
        for i in 0..100 {
            let seen = seen.clone();
            queue.host(Box::new(move || seen.lock().unwrap().push(i)));
        }
        assert!(!queue.query().unwrap());
        assert!(seen.lock().unwrap().is_empty());
        gate.open();
        queue.synchronize().unwrap();
        assert!(queue.query().unwrap());
        assert!(seen.lock().unwrap().iter().copied().eq(0..100));
    }
}

/// Passes a value through three queues. The second wait may be left out.
fn relay(cpu: &'static Cpu, with_second_wait: bool) -> Vec<u32> {
    let [a, b, c] = [(); 3].map(|()| cpu.queue(0).unwrap());
    let [x, y, z] = [(); 3].map(|()| Words::new(cpu, 1000));
    let (filled, copied) = (cpu.event(), cpu.event());
    x.fill(a, 5);
    add(&On(a), 1000, 2, x.slice()).unwrap();
    a.record(&filled);
    b.wait(&filled).unwrap();
    x.copy(b, y);
    b.record(&copied);
    if with_second_wait {
        c.wait(&copied).unwrap();
    }
    y.copy(c, z);
    add(&On(c), 1000, 1, z.slice()).unwrap();
    c.synchronize().unwrap();
    let result = z.read();
    for queue in [a, b] {
        queue.synchronize().unwrap();
    }
    result
}

#[test]
fn events_order_queues() {
    for cpu in devices() {
        assert_eq!(relay(cpu, true), vec![8; 1000]);
    }
}

#[test]
fn a_missing_wait_shows_on_many_seeds() {
    let wrong = (0..64).filter(|seed| relay(cpu(Schedule::Seeded(*seed)), false) != vec![8; 1000]).count();
    assert!(wrong > 16, "{wrong} of 64");
}

#[test]
fn some_schedules_stop_half_way_through_a_copy() {
    let torn = (0..256).filter(|seed| {
        let result = relay(cpu(Schedule::Seeded(*seed)), false);
        result.contains(&8) && result.iter().any(|v| *v != 8)
    });
    assert!(torn.count() > 0);
}

#[test]
fn a_wait_is_for_the_record_that_was_latest_when_it_was_enqueued() {
    for cpu in devices() {
        let [a, b, c] = [(); 3].map(|()| cpu.queue(0).unwrap());
        let event = cpu.event();
        let first = Gate::close(a);
        a.record(&event);
        b.wait(&event).unwrap();
        let second = Gate::close(c);
        c.record(&event);
        assert!(!b.query().unwrap());
        first.open();
        b.synchronize().unwrap();
        assert!(!event.query().unwrap());
        assert!(event.completed_at().is_none());
        second.open();
        event.synchronize().unwrap();
        assert!(event.query().unwrap());
        assert!(event.completed_at().is_some());
    }
}

#[test]
fn records_of_one_event_may_be_reached_in_any_order() {
    for cpu in devices() {
        let [a, b, c] = [(); 3].map(|()| cpu.queue(0).unwrap());
        let event = cpu.event();
        let gate = Gate::close(a);
        a.record(&event);
        b.wait(&event).unwrap();
        c.record(&event);
        event.synchronize().unwrap();
        let completed_at = event.completed_at();
        assert!(!b.query().unwrap(), "the second record does not stand for the first");
        gate.open();
        b.synchronize().unwrap();
        assert!(completed_at.is_some() && completed_at == event.completed_at());
    }
}

#[test]
fn an_event_never_recorded_holds_nobody_up() {
    for cpu in devices() {
        let (queue, event) = (cpu.queue(0).unwrap(), cpu.event());
        queue.wait(&event).unwrap();
        queue.synchronize().unwrap();
        event.synchronize().unwrap();
        assert!(event.query().unwrap());
        assert!(event.completed_at().is_none());
    }
}

#[test]
fn asking_often_enough_gets_there() {
    for cpu in devices() {
        let [a, b] = [(); 2].map(|()| cpu.queue(0).unwrap());
        let x = Words::new(cpu, 100);
        let [filled, done] = [(); 2].map(|()| cpu.event());
        x.fill(a, 1);
        a.record(&filled);
        b.wait(&filled).unwrap();
        add(&On(b), 100, 1, x.slice()).unwrap();
        b.record(&done);
        while !done.query().unwrap() {
            thread::yield_now();
        }
        assert_eq!(x.read(), vec![2; 100]);
        while !b.query().unwrap() {
            thread::yield_now();
        }
        assert!(done.completed_at().unwrap() >= filled.completed_at().unwrap());
    }
}

#[test]
fn grids_large_and_small() {
    for cpu in [cpu(Schedule::Threads), cpu(Schedule::Seeded(1))] {
        let queue = cpu.queue(0).unwrap();
        for n in [0, 1, 63, 64, 65, 1 << 20] {
            let x = Words::new(cpu, n);
            x.fill(queue, 1);
            add(&On(queue), n as u32, 41, x.slice()).unwrap();
            queue.synchronize().unwrap();
            assert!(x.read().iter().all(|v| *v == 42), "{n}");
        }
        let x = Words::new(cpu, 64 * 1000);
        x.fill(queue, 3);
        block_sums(&On(queue), x.slice()).unwrap();
        queue.synchronize().unwrap();
        assert!(x.read().iter().all(|v| *v == 192));
    }
}

#[test]
fn every_block_runs_once_in_scattered_order() {
    for n in 1..200 {
        let stride = grid::scatter(n);
        let mut seen: Vec<usize> = (0..n).map(|i| i * stride % n).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..n));
    }
}

#[test]
fn a_failed_kernel_poisons_and_everybody_wakes() {
    for cpu in devices() {
        let [a, b] = [(); 2].map(|()| cpu.queue(0).unwrap());
        let (x, y) = (Words::new(cpu, 10), Words::new(cpu, 10));
        let (early, late) = (cpu.event(), cpu.event());
        x.fill(a, 1);
        a.record(&early);
        early.synchronize().unwrap();

        let _closed_for_good = Gate::close(b);
        b.record(&late);
        diverges(&On(a)).unwrap();
        x.fill(a, 2);
        let called = Arc::new(AtomicUsize::new(0));
        let count = called.clone();
        a.host(Box::new(move || _ = count.fetch_add(1, Ordering::Relaxed)));
        unsafe { a.free(y.addr, 40) };

        let error = a.synchronize().unwrap_err();
        assert!(error.is_sticky());
        let text = error.to_string();
        assert!(text.contains("`diverges`, block [57, 0, 0]") && text.contains("threads 32 to 63 returned"), "{text}");
        assert!(late.synchronize().unwrap_err().is_sticky());
        assert!(b.synchronize().is_err() && b.query().is_err() && late.query().is_err() && cpu.check().is_err());
        assert_eq!(x.read(), vec![1; 10], "nothing is written after the error");
        assert_eq!((Arc::strong_count(&called), called.load(Ordering::Relaxed)), (1, 0), "dropped, not called");
        assert_eq!(cpu.in_use(), 40, "memory is still given back");
    }
}

#[test]
fn a_panic_in_a_host_callback_stops_there() {
    for cpu in devices() {
        let queue = cpu.queue(0).unwrap();
        let x = Words::new(cpu, 10);
        let event = cpu.event();
        queue.host(Box::new(|| panic!("on purpose")));
        x.fill(queue, 7);
        queue.record(&event);
        event.synchronize().unwrap();
        queue.synchronize().unwrap();
        cpu.check().unwrap();
        assert_eq!(x.read(), vec![7; 10]);
    }
}

#[test]
fn a_host_callback_may_enqueue() {
    for cpu in devices() {
        let [a, b] = [(); 2].map(|()| cpu.queue(0).unwrap());
        let x = Words::new(cpu, 10);
        a.host(Box::new(move || {
            x.fill(b, 3);
        }));
        a.synchronize().unwrap();
        b.synchronize().unwrap();
        assert_eq!(x.read(), vec![3; 10]);
    }
}

#[test]
fn threads_of_the_host_share_a_device() {
    for cpu in devices().take(8) {
        let workers: Vec<_> = (0..4)
            .map(|i| {
                thread::spawn(move || {
                    let [a, b] = [(); 2].map(|()| cpu.queue(0).unwrap());
                    let (x, y) = (Words::new(cpu, 100), Words::new(cpu, 100));
                    let (there, back) = (cpu.event(), cpu.event());
                    x.fill(a, i);
                    for _ in 0..20 {
                        add(&On(a), 100, 1, x.slice()).unwrap();
                        a.record(&there);
                        b.wait(&there).unwrap();
                        x.copy(b, y);
                        b.record(&back);
                        a.wait(&back).unwrap();
                    }
                    b.synchronize().unwrap();
                    assert_eq!(y.read(), vec![i + 20; 100]);
                })
            })
            .collect();
        workers.into_iter().for_each(|w| w.join().unwrap());
    }
}

#[test]
fn a_seed_gives_its_schedule_again() {
    let trace = |seed| {
        let cpu = cpu(Schedule::Seeded(0));
        cpu.reseed(seed);
        relay(cpu, true);
        cpu.scheduler().unwrap().take_trace()
    };
    assert!((0..20).all(|seed| trace(seed) == trace(seed)));
    let different: std::collections::BTreeSet<_> = (0..20).map(trace).collect();
    assert!(different.len() > 15, "{}", different.len());
}

#[test]
fn a_seeded_schedule_reports_what_can_never_be_done() {
    let cpu = cpu(Schedule::Seeded(2));
    let [a, b] = [(); 2].map(|()| cpu.queue(0).unwrap());
    let event = cpu.event();
    let gate = Gate::close(a);
    a.record(&event);
    b.wait(&event).unwrap();
    let text = b.synchronize().unwrap_err().to_string();
    assert!(text.contains("queue 0 at a wait for a flag to reach 1, queue 1 at a wait for an event"), "{text}");
    let opener = thread::spawn(move || {
        thread::sleep(std::time::Duration::from_millis(20));
        gate.open();
    });
    b.synchronize().unwrap();
    opener.join().unwrap();
}

#[test]
fn memory_is_poisoned_aligned_and_counted() {
    for cpu in [cpu(Schedule::Threads), cpu(Schedule::Seeded(0))] {
        let p = cpu.alloc(1000).unwrap();
        assert_eq!(p.as_ptr().addr() % 256, 0);
        assert!((0..1000).all(|i| unsafe { p.add(i).read() } == memory::FRESH));
        assert_eq!(cpu.in_use(), 1000);
        unsafe { cpu.free(p, 1000) };
        if cpu.scheduler().is_some() {
            assert!((0..1000).all(|i| unsafe { p.add(i).read() } == memory::FREED), "quarantined");
        }
        assert_eq!(cpu.in_use(), 0);

        let p = cpu.host_alloc(1000).unwrap();
        assert_eq!(p.as_ptr().addr() % 256, 0);
        assert!((0..1000).all(|i| unsafe { p.add(i).read() } == 0));
        unsafe { cpu.host_free(p, 1000) };

        let Memory { free, total } = cpu.memory();
        assert!(0 < free && free <= total);
        for bytes in [usize::MAX, isize::MAX as usize, isize::MAX as usize - 4096] {
            assert!(matches!(cpu.alloc(bytes), Err(CpuError::OutOfMemory { .. })));
            assert!(matches!(cpu.host_alloc(bytes), Err(CpuError::OutOfMemory { .. })));
        }
        cpu.limit(Some(4096));
        let p = cpu.alloc(4000).unwrap();
        let error = cpu.alloc(97).unwrap_err();
        assert_eq!(error.to_string(), "the CPU device has no 97 bytes of memory; free: 96");
        assert_eq!(cpu.memory().total, 4096);
        unsafe { cpu.queue(0).unwrap().free(p.as_ptr() as u64, 4000) };
        cpu.limit(None);
    }
}

#[test]
fn a_seeded_device_keeps_a_bounded_quarantine() {
    let cpu = cpu(Schedule::Seeded(0));
    for _ in 0..100 {
        let p = cpu.alloc(4 << 20).unwrap();
        unsafe { cpu.free(p, 4 << 20) };
    }
    assert_eq!(cpu.in_use(), 0);
}

#[test]
fn fills_repeat_their_pattern() {
    for cpu in devices() {
        let queue = cpu.queue(0).unwrap();
        let x = Words::new(cpu, 8);
        unsafe {
            let fill =
                |dst, pattern: Pattern, count| queue.submit(Work::Fill { dst, stride: pattern.size(), pattern, count });
            fill(x.addr, Pattern::U8(1), 8);
            fill(x.addr + 8, Pattern::U16(0x0203), 4);
            fill(x.addr + 16, Pattern::U32(0x0405_0607), 2);
        }
        queue.synchronize().unwrap();
        let (a, b, c, poison) = (0x0101_0101, 0x0203_0203, 0x0405_0607, 0xCBCB_CBCB);
        assert_eq!(x.read(), [a, a, b, b, c, c, poison, poison]);
    }
}

#[test]
fn a_kernel_without_a_body_is_refused() {
    let queue = cpu(Schedule::Threads).queue(0).unwrap();
    assert!(elsewhere(&On(queue)).is_err());
    queue.synchronize().unwrap();
}

#[test]
fn thread_counts() {
    assert_eq!(thread_count(Ok("3".into())).unwrap(), 3);
    assert!((1..=MOST_THREADS).contains(&thread_count(Err(VarError::NotPresent)).unwrap()));
    for bad in ["", "0", "-1", "many"] {
        let error = thread_count(Ok(bad.into())).unwrap_err();
        assert_eq!(error.to_string(), format!("THALWEG_CPU_THREADS is {bad}, expected a positive number"));
    }
}

/// Each fork of a graph took a queue of its own, with a thread that never ends.
#[test]
fn forks_in_a_row_share_a_queue() {
    for cpu in devices() {
        let (queue, recorder, branch) = (cpu.queue(0).unwrap(), cpu.recorder(), cpu.recorder());
        let (x, y) = (Words::new(cpu, 100), Words::new(cpu, 100));
        for n in 0..100 {
            let forked = recorder.recorded();
            let word = |words: Words| Words { addr: words.addr + 4 * n, len: 1 };
            word(x).fill(recorder, n as u32);
            word(y).fill(branch, n as u32 + 1);
            recorder.join(forked, branch);
        }
        let recording = recorder.take_recording().unwrap();
        assert_eq!(recording.len(), 200);
        for _ in 0..2 {
            unsafe { queue.replay(&recording) }.unwrap();
        }
        queue.synchronize().unwrap();
        assert!(x.read().into_iter().zip(y.read()).eq((0..100).map(|n| (n, n + 1))));
        drop(recording);
        assert_eq!(lock(&cpu.helpers).len(), 1);
    }
}

/// As the kernels of a crate that is built without debug assertions.
#[test]
fn a_checked_device_refuses_a_kernel_without_a_body_for_it() {
    static PTX: Ptx = Ptx::NONE;
    let entry = CpuEntry { block: |_, _| (), checked: None };
    let kernel: &Kernel = Box::leak(Box::new(Kernel::new(
        &PTX,
        Declaration {
            origin: "",
            name: "released",
            entry: "released",
            parameters: &[],
            cpu: Some(entry),
            cooperative: false,
            bounds: None,
        },
    )));
    let shape = LaunchShape { grid: [1; 3], block: [1; 3], shared: 0 };
    assert!(Work::launch(false, kernel, shape, &[]).is_ok());
    let refused = Work::launch(true, kernel, shape, &[]);
    assert!(matches!(refused, Err(CpuError::NoCheckedBody { kernel: "released" })));
}
