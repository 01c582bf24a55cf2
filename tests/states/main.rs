//! The three states, one promise at a time. Tests prove an order with a gate that holds a stream up, never with
//! sleeps. They count memory to see what becomes of it, and check which error each misuse gets.

mod errors;
mod host_functions;
mod memory;
mod order;
mod pools;
mod streams;
#[path = "../support/mod.rs"]
mod support;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use thalweg::{AnyStream, Device, DeviceBuffer, Lane, On, Stream, StreamTag, kernel};

thalweg::ptx! {}

kernel! {
    unsafe fn panics(cx: impl Simt)
    grid(1) block(1)
    {
        panic!("on purpose");
    }
}

/// Runs `check` on three streams of `device`.
fn lanes<T>(
    device: Device,
    check: impl for<'a, 'b, 'c> FnOnce(Stream<Lane<'a>>, Stream<Lane<'b>>, Stream<Lane<'c>>) -> T,
) -> T {
    let [a, b, c] = [(); 3].map(|()| AnyStream::new(device).unwrap());
    a.enter(|&a| b.enter(|&b| c.enter(|&c| check(a, b, c))))
}

/// Asks until it is so.
#[track_caller]
fn soon(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} never came");
        thread::yield_now();
    }
}

/// That it is not so, however often one asks.
#[track_caller]
fn not_yet(what: &str, so: impl Fn() -> bool) {
    for _ in 0..100 {
        assert!(!so(), "{what} too early");
        thread::yield_now();
    }
}

/// A device buffer with the same number everywhere, written and done.
fn filled<S: StreamTag>(s: Stream<S>, len: usize, v: u32) -> On<S, DeviceBuffer<u32>> {
    let x = filling(s, len, v);
    s.synchronize().unwrap();
    x
}

/// As [`filled`], without waiting: a GPU may lend memory whose free stands at a gate, and then the stream stands there
/// too.
fn filling<S: StreamTag>(s: Stream<S>, len: usize, v: u32) -> On<S, DeviceBuffer<u32>> {
    let mut x = s.alloc(len).unwrap();
    s.fill(&mut x, v).unwrap();
    x
}

/// The smallest executor there is.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park();
    }
}
