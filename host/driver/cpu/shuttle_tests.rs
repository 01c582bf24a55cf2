//! Random programs of several threads and queues, each in one random interleaving:
//! `RUSTFLAGS="--cfg shuttle" cargo test --release --lib shuttle`.
//!
//! They are larger than loom can explore: [`THREADS`] threads with [`STEPS`] steps each, on
//! [`QUEUES`] queues with a thread each. A thread moves its values as the typed layer does: it uses
//! them, records and waits, hands off, shares, reads and unshares, waits on the host, and sends
//! them to other threads. Two accesses to a value must not overlap, and its contents must be what
//! its owners wrote, in their order. Interleavings are sequentially consistent, which loom's are
//! not.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem;

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;

use super::*;
use crate::driver::guard::Guarded;
use crate::driver::sync::Arc;
use crate::driver::{EventHandle, StreamHandle};
use crate::readers::Readers;

const THREADS: usize = 3;
const QUEUES: usize = 3;
const STEPS: usize = 24;
/// The programs of each kind of interleaving, and the preemptions of a PCT schedule.
const PROGRAMS: usize = 20_000;
const PREEMPTIONS: usize = 4;

/// A number that notices accesses that overlap.
#[derive(Default)]
struct Watched {
    value: Cell<u64>,
    writers: Cell<u32>,
    readers: Cell<u32>,
}

// SAFETY: [thread] Shuttle runs all of its threads on one thread of the system.
unsafe impl Send for Watched {}
// SAFETY: [thread] As above.
unsafe impl Sync for Watched {}

impl Watched {
    fn write(&self, with: u64) {
        assert!(self.writers.get() == 0 && self.readers.get() == 0, "a write overlaps another access");
        self.writers.set(1);
        thread::yield_now();
        self.value.set(self.value.get().wrapping_mul(31).wrapping_add(with));
        thread::yield_now();
        self.writers.set(0);
    }

    fn read(&self, want: u64) {
        assert!(self.writers.get() == 0, "a read overlaps a write");
        self.readers.set(self.readers.get() + 1);
        thread::yield_now();
        assert_eq!(self.value.get(), want, "a read does not see the last write");
        self.readers.set(self.readers.get() - 1);
    }
}

/// An event that goes back to the pool when nobody else holds it.
type Lease = Arc<Event>;

struct Device {
    cpu: &'static Cpu,
    queues: Vec<&'static Queue>,
    /// The event of each queue that `hand_off` records.
    own: Vec<EventHandle>,
    events: Mutex<Vec<Lease>>,
    /// The values that were sent to each thread.
    mail: Vec<Mutex<VecDeque<Value>>>,
    /// Whether the program is short: all threads read one value, and the last one writes it.
    short: bool,
}

impl Device {
    fn record(&self, queue: usize) -> Lease {
        let mut events = lock(&self.events);
        let free = events.iter().find(|e| Arc::strong_count(e) == 1).cloned();
        let event = free.unwrap_or_else(|| {
            events.push(Arc::new(self.cpu.event()));
            events[events.len() - 1].clone()
        });
        drop(events);
        self.queues[queue].record(&event);
        event
    }
}

/// A value with the number that it should have.
struct Value {
    watched: Arc<Watched>,
    want: u64,
    state: State,
}

impl Value {
    fn write_on(&mut self, queue: &Queue) {
        let (watched, with) = (self.watched.clone(), thread_rng().gen_range(1..1000));
        self.want = self.want.wrapping_mul(31).wrapping_add(with);
        queue.host(Box::new(move || watched.write(with)));
    }

    /// Another handle of a shared value.
    fn another(&self, shared: &Arc<Shared>) -> Self {
        Self { watched: self.watched.clone(), want: self.want, state: State::Shared(shared.clone()) }
    }
}

enum State {
    Idle,
    On(usize),
    InTransit(Lease),
    Shared(Arc<Shared>),
}

struct Shared {
    producer: Lease,
    readers: Readers<Lease>,
}

/// Does a random step with the value, and returns what is left of it.
fn step(device: &Device, mut value: Value) -> Option<Value> {
    let mut rng = thread_rng();
    let (queue, choice) = (rng.gen_range(0..QUEUES), rng.gen_range(0..8u32));
    let queues = &device.queues;
    value.state = match mem::replace(&mut value.state, State::Idle) {
        State::Idle if choice < 3 => {
            let with = rng.gen_range(1..1000);
            value.watched.write(with);
            value.want = value.want.wrapping_mul(31).wrapping_add(with);
            State::Idle
        }
        State::Idle => State::On(queue),
        State::On(on) => match choice {
            0..3 => {
                value.write_on(queues[on]);
                State::On(on)
            }
            3 => State::InTransit(device.record(on)),
            4 | 5 if on != queue => {
                let stream = |queue: usize| StreamHandle::Cpu(Guarded::new(queues[queue]));
                stream(on).hand_off(&device.own[on], stream(queue)).unwrap();
                State::On(queue)
            }
            6 | 7 => State::Shared(Arc::new(Shared { producer: device.record(on), readers: Readers::new() })),
            _ => State::On(on),
        },
        State::InTransit(event) => match choice {
            0..4 => {
                queues[queue].wait(&event).unwrap();
                State::On(queue)
            }
            4 => {
                event.synchronize().unwrap();
                State::Idle
            }
            5 if event.query().unwrap() => State::Idle,
            _ => State::InTransit(event),
        },
        State::Shared(shared) => match choice {
            0..4 => {
                let queue = 0; // where two threads read at once
                queues[queue].wait(&shared.producer).unwrap();
                let (watched, want) = (value.watched.clone(), value.want);
                queues[queue].host(Box::new(move || watched.read(want)));
                shared.readers.end(queue as u64, || Ok::<_, ()>(device.record(queue)));
                State::Shared(shared)
            }
            4 if !device.short => {
                let other = value.another(&shared);
                lock(&device.mail[rng.gen_range(0..THREADS)]).push_back(other);
                State::Shared(shared)
            }
            // The last handle has the value again; another one is dropped.
            _ => match Arc::try_unwrap(shared) {
                Ok(Shared { producer, readers }) => {
                    let events = readers.events().unwrap();
                    events.iter().chain([&producer]).for_each(|event| queues[queue].wait(event).unwrap());
                    value.write_on(queues[queue]);
                    State::On(queue)
                }
                Err(_) => return None,
            },
        },
    };
    Some(value)
}

fn program() {
    let cpu: &'static Cpu = Box::leak(Box::new(Cpu::new(Schedule::Threads, false).unwrap()));
    let queues: Vec<&'static Queue> = (0..QUEUES).map(|i| &*Box::leak(Box::new(Queue::new(cpu, i, 0)))).collect();
    let device = Arc::new(Device {
        cpu,
        queues: queues.clone(),
        own: (0..QUEUES).map(|_| EventHandle::Cpu(Guarded::new(cpu.event()))).collect(),
        events: Mutex::new(Vec::new()),
        mail: (0..THREADS).map(|_| Mutex::default()).collect(),
        short: thread_rng().gen_ratio(1, 2),
    });
    if device.short {
        let mut value = Value { watched: Arc::default(), want: 0, state: State::Idle };
        value.write_on(queues[0]);
        let shared = Arc::new(Shared { producer: device.record(0), readers: Readers::new() });
        device.mail.iter().for_each(|mail| lock(mail).push_back(value.another(&shared)));
    }
    let stopped = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = queues
        .iter()
        .map(|&queue| {
            let stopped = stopped.clone();
            thread::spawn(move || (1..).take_while(|_| !stopped.load(Ordering::SeqCst)).for_each(|n| queue.work(n)))
        })
        .collect();
    let hosts: Vec<_> = (0..THREADS)
        .map(|at| {
            let device = device.clone();
            thread::spawn(move || {
                let new = |_| Value { watched: Arc::default(), want: 0, state: State::Idle };
                let mut values: Vec<Value> = (0..if device.short { 0 } else { 2 }).map(new).collect();
                for _ in 0..if device.short { STEPS / 4 } else { STEPS } {
                    values.extend(lock(&device.mail[at]).pop_front());
                    if values.is_empty() {
                        continue;
                    }
                    let mut rng = thread_rng();
                    let value = values.swap_remove(rng.gen_range(0..values.len()));
                    match step(&device, value) {
                        Some(value) if !device.short && rng.gen_ratio(1, 6) => {
                            lock(&device.mail[rng.gen_range(0..THREADS)]).push_back(value);
                        }
                        left => values.extend(left),
                    }
                }
                values
            })
        })
        .collect();
    let mut left: Vec<Value> = hosts.into_iter().flat_map(|host| host.join().unwrap()).collect();
    left.extend(device.mail.iter().flat_map(|mail| mem::take(&mut *lock(mail))));
    queues.iter().for_each(|queue| queue.synchronize().unwrap());
    left.iter().for_each(|value| value.watched.read(value.want));
    stopped.store(true, Ordering::SeqCst);
    queues.iter().for_each(|queue| queue.host(Box::new(|| {})));
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    drop((left, device));
    for queue in queues {
        // SAFETY: [free] `program` leaked the queue, and all threads that used it have been joined.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(queue).cast_mut()) });
    }
    // SAFETY: [free] `program` leaked the device. Its queues and events are gone.
    drop(unsafe { Box::from_raw(std::ptr::from_ref(cpu).cast_mut()) });
}

fn check(scheduler: impl Scheduler + 'static) {
    shuttle::Runner::new(scheduler, shuttle::Config::new()).run(program);
}

#[test]
fn random_programs_in_random_interleavings() {
    check(RandomScheduler::new(PROGRAMS));
}

#[test]
fn random_programs_with_few_preemptions() {
    check(PctScheduler::new(PREEMPTIONS, PROGRAMS));
}
