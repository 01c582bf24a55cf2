//! Pieces of one allocation that travel separately.

use std::sync::{Arc, Mutex};

use super::{Block, Owned, When, give_back};
use crate::error::Error;
use crate::lock;
use crate::runtime::event::Lease;

/// An allocation that several pieces hold. The last piece gives it back, after what each piece that
/// was dropped before it was still waiting for.
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

    /// The allocation must not be given back before `event`.
    pub(crate) fn add(&self, event: Lease) {
        let mut after = lock(&self.after);
        // Keep the list short where many pieces come and go.
        if after.len() >= 32 {
            after.retain(|e| !e.is_done());
        }
        after.push(event);
    }
}

impl<B: Block> Drop for Split<B> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let after = std::mem::take(&mut *lock(&self.after));
            // Not released here: this may be a host function, in which the last piece goes.
            give_back(B::memory(Owned::Whole(block)), When::After(after));
        }
    }
}

/// Whether pieces, given as address, bytes and owner, make one range of one allocation.
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
