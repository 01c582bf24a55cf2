//! What becomes of memory whose handle was dropped.
//!
//! A destructor never blocks, never panics and runs no user code but wakers. It hands memory to
//! [`give_back`], which frees device memory in stream order and lends page-locked memory again once an
//! event says so. Where completion cannot be proven (a failed record, a poisoned device), it leaks.

use crate::driver::guard::{forked, in_host_function};
use crate::runtime::background::{Job, background};
use crate::runtime::event::Lease;
use crate::runtime::stream::StreamInner;

use super::{Memory, Owned};

/// After what memory may be given back.
#[derive(Debug)]
pub(crate) enum When {
    /// After these events; at once where there are none.
    After(Vec<Lease>),
    /// After everything that this stream has been given so far.
    Stream(&'static StreamInner),
}

/// Gives memory back once `when` has passed. Never blocks and never fails: in doubt it leaks.
pub(crate) fn give_back(memory: Memory, when: When) {
    if memory.is_empty() {
        return;
    }
    if forked() {
        std::mem::forget(memory);
        return;
    }
    if in_host_function() {
        background(Job::Finish(Box::new(|| give_back(memory, when))));
        return;
    }
    match when {
        When::After(events) => memory.release(events),
        When::Stream(stream) => match memory {
            // A peer's memory is freed by its own device, after an event.
            Memory::Device(Owned::Whole(block)) if block.device == stream.device() => {
                stream.free(block.addr, block.bytes);
            }
            memory => match stream.lease() {
                Ok(event) => memory.release(vec![event]),
                Err(_) => std::mem::forget(memory),
            },
        },
    }
}
