//! Tests of the three states, one promise at a time. A test proves an order with a gate that holds
//! up a stream, never with a sleep. It counts memory to see when it comes back, and checks which
//! error each misuse gets.

mod errors;
mod host_functions;
mod memory;
mod order;
mod pools;
mod streams;

use std::thread;
use std::time::{Duration, Instant};

use thalweg::{AnyStream, Device, DeviceBuffer, LiveBrand, On, Scoped, Stream, kernel};

kernel! {
    unsafe fn panics(cx: impl Simt)
    grid(1) block(1)
    {
        panic!("on purpose");
    }
}

kernel! {
    unsafe fn nothing(cx: impl Simt)
    grid(1) block(1)
    {}
}

/// Runs `check` on three streams of `device`.
fn lanes<T>(
    device: Device,
    check: impl for<'a, 'b, 'c> FnOnce(Stream<Scoped<'a>>, Stream<Scoped<'b>>, Stream<Scoped<'c>>) -> T,
) -> T {
    let [a, b, c] = [(); 3].map(|()| AnyStream::new(device).unwrap());
    a.enter(|&a| b.enter(|&b| c.enter(|&c| check(a, b, c))))
}

/// Repeats the check until it holds, and panics after 20 seconds.
#[track_caller]
fn soon(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} never came");
        thread::yield_now();
    }
}

/// Checks 100 times that the condition does not hold yet.
#[track_caller]
fn not_yet(what: &str, so: impl Fn() -> bool) {
    for _ in 0..100 {
        assert!(!so(), "{what} too early");
        thread::yield_now();
    }
}

/// Makes a device buffer with the same number everywhere, and waits until it is written.
fn filled<S: LiveBrand>(s: Stream<S>, len: usize, v: u32) -> On<S, DeviceBuffer<u32>> {
    let x = filling(s, len, v);
    s.synchronize().unwrap();
    x
}

/// Does the same as [`filled`] without waiting. A GPU may give out memory whose free stands behind
/// a gate, and then this stream waits at that gate too.
fn filling<S: LiveBrand>(s: Stream<S>, len: usize, v: u32) -> On<S, DeviceBuffer<u32>> {
    let mut x = s.alloc(len).unwrap();
    s.fill(&mut x, v).unwrap();
    x
}
