//! Tests of interleavings of a few commands, under the C11 memory model, with up to three
//! preemptions: `RUSTFLAGS="--cfg loom" cargo test --release --lib loom`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

use super::*;
use crate::driver::{EventHandle, StreamHandle, guard::Guarded};
use crate::readers::Readers;

/// A device for one execution. Its memory outlives all threads, because `end` joins them first.
struct Model {
    cpu: &'static Cpu,
    queues: Vec<&'static Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Model {
    fn new() -> Self {
        let cpu = Box::leak(Box::new(Cpu::new(Schedule::Threads, false).unwrap()));
        Self { cpu, queues: Vec::new(), threads: Vec::new() }
    }

    /// Makes a queue. [`start`](Self::start) starts its thread.
    fn queue(&mut self) -> &'static Queue {
        let queue: &'static Queue = Box::leak(Box::new(Queue::new(self.cpu, self.queues.len(), 0)));
        self.queues.push(queue);
        queue
    }

    /// Starts the queue's thread, which ends after this many commands.
    fn start(&mut self, queue: &'static Queue, commands: u64) {
        self.threads.push(thread::spawn(move || queue.work(commands)));
    }

    fn end(self) {
        self.threads.into_iter().for_each(|t| t.join().unwrap());
        for queue in self.queues {
            // SAFETY: [free] `Model::queue` leaked the queue. All other threads that used it have
            // been joined.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(queue).cast_mut()) });
        }
        // SAFETY: [free] `Model::new` leaked the device. All other threads that used it have been
        // joined, and its queues are gone.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self.cpu).cast_mut()) });
    }
}

/// A number that loom watches for accesses that nothing orders.
#[derive(Clone)]
struct Watched(Arc<UnsafeCell<u32>>);

// SAFETY: [thread] The queues and events under test order the accesses. If they do not, loom
// reports two accesses that are not ordered.
unsafe impl Send for Watched {}

impl Watched {
    fn new() -> Self {
        Self(Arc::new(UnsafeCell::new(0)))
    }

    fn set(&self, v: u32) {
        // SAFETY: [order] Loom checks that no other access runs at the same time.
        self.0.with_mut(|p| unsafe { *p = v });
    }

    fn get(&self) -> u32 {
        // SAFETY: [order] Loom checks that no write runs at the same time.
        self.0.with(|p| unsafe { *p })
    }

    fn setter(&self, v: u32) -> Box<dyn FnOnce() + Send> {
        let this = self.clone();
        Box::new(move || this.set(v))
    }

    /// Makes a callback that copies the number, like a copy command.
    fn copier(&self, to: &Self) -> Box<dyn FnOnce() + Send> {
        let (from, to) = (self.clone(), to.clone());
        Box::new(move || to.set(from.get()))
    }
}

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn a_push_wakes_the_sleeping_queue_and_completion_the_host() {
    model(|| {
        let mut model = Model::new();
        let queue = model.queue();
        model.start(queue, 2);
        let x = Watched::new();
        for v in [2, 3] {
            queue.host(x.setter(v));
            queue.synchronize().unwrap();
            assert_eq!(x.get(), v);
        }
        model.end();
    });
}

#[test]
fn two_hosts_push_and_wait() {
    model(|| {
        let mut model = Model::new();
        let queue = model.queue();
        model.start(queue, 2);
        let host = move || {
            let x = Watched::new();
            queue.host(x.setter(1));
            queue.synchronize().unwrap();
            assert_eq!(x.get(), 1);
        };
        let other = thread::spawn(host);
        host();
        other.join().unwrap();
        model.end();
    });
}

#[test]
fn a_host_that_waits_for_less_wakes_first() {
    model(|| {
        let mut model = Model::new();
        let queue = model.queue();
        let (go, gone) = loom::sync::mpsc::channel();
        queue.host(Box::new(|| {}));
        queue.host(Box::new(move || gone.recv().unwrap()));
        model.start(queue, 2);
        let first = thread::spawn(move || {
            queue.block(1);
            go.send(()).unwrap();
        });
        queue.synchronize().unwrap();
        first.join().unwrap();
        model.end();
    });
}

#[test]
fn a_wait_orders_two_queues() {
    model(|| {
        let mut model = Model::new();
        let (a, b, event) = (model.queue(), model.queue(), model.cpu.event());
        let (x, y) = (Watched::new(), Watched::new());
        model.start(a, 2);
        a.host(x.setter(5));
        a.record(&event);
        b.wait(&event).unwrap();
        b.host(x.copier(&y));
        // One or two commands: a wait for an event that is complete is not enqueued.
        model.start(b, b.enqueued());
        b.synchronize().unwrap();
        assert_eq!(y.get(), 5);
        drop(event);
        model.end();
    });
}

#[test]
fn an_event_recorded_again_still_guards_its_first_record() {
    model(|| {
        let mut model = Model::new();
        let (a, b, c, event) = (model.queue(), model.queue(), model.queue(), model.cpu.event());
        let (x, y) = (Watched::new(), Watched::new());
        a.host(x.setter(5));
        a.record(&event);
        b.wait(&event).unwrap();
        b.host(x.copier(&y));
        c.record(&event);
        model.start(a, 2);
        model.start(c, 1);
        // This thread runs the third queue, because loom allows no more threads.
        b.work(2);
        assert_eq!(y.get(), 5);
        event.synchronize().unwrap();
        drop(event);
        model.end();
    });
}

#[test]
fn a_queue_does_not_wait_for_a_record_behind_the_wait() {
    model(|| {
        let mut model = Model::new();
        let (queue, event) = (model.queue(), model.cpu.event());
        let waiter = thread::spawn({
            let event = event.clone();
            move || queue.wait(&event).unwrap()
        });
        queue.record(&event);
        waiter.join().unwrap();
        queue.work(queue.enqueued());
        drop(event);
        model.end();
    });
}

#[test]
fn what_query_says_is_done_is_visible() {
    model(|| {
        let mut model = Model::new();
        let (queue, event) = (model.queue(), model.cpu.event());
        let x = Watched::new();
        model.start(queue, 3);
        queue.host(x.setter(1));
        queue.record(&event);
        if event.query().unwrap() {
            assert_eq!(x.get(), 1);
            assert!(event.completed_at().is_some());
        }
        queue.host(x.setter(2));
        if queue.query().unwrap() {
            assert_eq!(x.get(), 2);
        }
        event.synchronize().unwrap();
        queue.synchronize().unwrap();
        assert_eq!(x.get(), 2);
        drop(event);
        model.end();
    });
}

#[test]
fn poison_wakes_whoever_waits() {
    model(|| {
        let mut model = Model::new();
        let (cpu, a, b, event) = (model.cpu, model.queue(), model.queue(), model.cpu.event());
        let x = Watched::new();
        // A failed kernel poisons the device in the same way.
        a.host(Box::new(|| cpu.poison(CpuError::NoBody { kernel: "poison" })));
        a.host(x.setter(1));
        a.record(&event);
        b.wait(&event).unwrap();
        model.start(a, 3);
        model.start(b, b.enqueued());
        assert!(event.synchronize().is_err());
        assert!(b.synchronize().is_err());
        assert_eq!(x.get(), 0);
        drop(event);
        model.end();
    });
}

/// The value that one thread hands off may have been used just before the other thread's record.
#[test]
fn two_threads_hand_off_from_one_queue() {
    model(|| {
        let mut model = Model::new();
        let (a, b, c, own) = (model.queue(), model.queue(), model.queue(), model.cpu.event());
        let stream = |queue| StreamHandle::Cpu(Guarded::new(queue));
        // What a thread of the typed layer does: work on `a`, `hand_off`, work on the other stream.
        let program = |to: &'static Queue| {
            let (own, from) = (EventHandle::Cpu(Guarded::new(own.clone())), stream(a));
            let (x, y) = (Watched::new(), Watched::new());
            move || {
                a.host(x.setter(5));
                from.hand_off(&own, stream(to)).unwrap();
                to.host(x.copier(&y));
                y
            }
        };
        model.start(a, 4);
        let other = thread::spawn(program(b));
        let mine = program(c)();
        let theirs = other.join().unwrap();
        b.work(b.enqueued());
        c.work(c.enqueued());
        assert_eq!((mine.get(), theirs.get()), (5, 5));
        drop(own);
        model.end();
    });
}

/// Only one of the two records is kept, and must cover the read before the other one.
#[test]
fn two_threads_end_reads_on_one_queue() {
    model(|| {
        let mut model = Model::new();
        let (cpu, a, b) = (model.cpu, model.queue(), model.queue());
        let (x, readers) = (Watched::new(), Arc::new(Readers::new()));
        let read = {
            let (x, readers) = (x.clone(), readers.clone());
            move || {
                a.host(x.copier(&Watched::new()));
                readers.end(7, || {
                    let event = cpu.event();
                    a.record(&event);
                    Ok::<_, ()>(event)
                });
            }
        };
        model.start(a, 4);
        let other = thread::spawn(read.clone());
        read();
        other.join().unwrap();
        // What `unshare` does on the other stream.
        let events = readers.events().unwrap();
        assert_eq!(events.len(), 1);
        events.iter().for_each(|event| b.wait(event).unwrap());
        b.host(x.setter(1));
        b.work(b.enqueued());
        assert_eq!(x.get(), 1);
        drop((events, readers));
        model.end();
    });
}
