//! Gives back memory whose handle was dropped.
//!
//! A destructor of a buffer calls [`give_back`], which never fails and never waits for the device's
//! work. Device memory is freed in stream order. Page-locked memory goes to its pool, which lends
//! it again when its events are complete. If the order cannot be established, for example because a
//! record fails on a poisoned device, the memory leaks.

use crate::driver::guard::{forked, in_stream_work};
use crate::runtime::background::{Job, background};
use crate::runtime::event::Lease;
use crate::runtime::stream::StreamInner;

use super::{Memory, Owned};

/// The time at which memory may be given back.
#[derive(Debug)]
pub(crate) enum When {
    /// After these events, or at once if there are none.
    After(Vec<Lease>),
    /// After all work that this stream has been given so far.
    Stream(&'static StreamInner),
}

/// Gives memory back after `when`, without waiting for the device's work. If that cannot be
/// ordered, the memory leaks.
pub(crate) fn give_back(memory: Memory, when: When) {
    if memory.is_empty() {
        return;
    }
    if forked() {
        std::mem::forget(memory);
        return;
    }
    if in_stream_work() {
        background(Job::Finish(Box::new(|| give_back(memory, when))));
        return;
    }
    match when {
        When::After(events) => memory.release(events),
        When::Stream(stream) => match memory {
            // Memory of another device takes the second arm: its own device frees it after an
            // event.
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
