//! Pieces of one allocation, which are used independently.

use std::sync::{Arc, Mutex};

use super::{Block, Owned, When, give_back};
use crate::error::Error;
use crate::lock;
use crate::runtime::event::Lease;

/// An allocation that several pieces hold. Dropping the last piece gives it back, after the events
/// of all pieces.
#[derive(Debug)]
pub(crate) struct Split<B: Block> {
    block: Option<B>,
    after: Mutex<Vec<Lease>>,
}

impl<B: Block> Split<B> {
    pub(crate) fn new(block: B) -> Self {
        Self { block: Some(block), after: Mutex::new(Vec::new()) }
    }

    pub(crate) fn allocation(&self) -> u64 {
        self.block.as_ref().map_or(0, Block::allocation)
    }

    /// Adds an event that must complete before the allocation is given back.
    pub(crate) fn add(&self, event: Lease) {
        let mut after = lock(&self.after);
        // Keep the list short if many pieces are made and dropped.
        if after.len() >= 32 {
            after.retain(|e| !e.is_known_complete());
        }
        after.push(event);
    }
}

impl<B: Block> Drop for Split<B> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let after = std::mem::take(&mut *lock(&self.after));
            // `give_back` and not `release`: the last piece may be dropped in a host function.
            give_back(B::memory(Owned::Whole(block)), When::After(after));
        }
    }
}

/// Checks that pieces, given as address, bytes and owner, make one range of one allocation.
pub(crate) fn adjacent<'a, B: Block>(
    pieces: impl IntoIterator<Item = (u64, usize, &'a Owned<B>)>,
) -> Result<(), Error> {
    let refuse = |reason| Err(Error::NotAdjacent { reason });
    let mut first: Option<&Arc<Split<B>>> = None;
    let mut end = None;
    let mut any = false;
    for (addr, bytes, owner) in pieces {
        any = true;
        match owner {
            Owned::Piece(split) => match first {
                Some(f) if !Arc::ptr_eq(f, split) => return refuse("they come from different allocations"),
                _ => first = Some(split),
            },
            _ => return refuse("one of them is not a piece that `split` made"),
        }
        if end.is_some_and(|end| end != addr) {
            return refuse("they do not follow one another");
        }
        end = Some(addr + bytes as u64);
    }
    if any { Ok(()) } else { refuse("there are none") }
}
