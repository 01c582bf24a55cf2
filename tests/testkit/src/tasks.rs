//! A minimal executor.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread. Gives up if nothing wakes it.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let (waker, mut future) = (Arc::new(Unpark(thread::current())).into(), pin!(future));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => {
                let begin = Instant::now();
                thread::park_timeout(Duration::from_secs(20));
                assert!(begin.elapsed() < Duration::from_secs(20), "nothing wakes the task");
            }
        }
    }
}
