//! Pieces of one allocation that travel separately.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::{Block, Owned};
use crate::error::{Error, Returned};
use crate::event::Lease;
use crate::lock;
use crate::reclaim::{self, When};
use crate::resource::{LeafResource, On};
use crate::stream::StreamTag;

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
            reclaim::give_back(B::memory(Owned::Whole(block)), When::After(after));
        }
    }
}

/// The lengths of `n` pieces of `len` elements: as equal as can be, the longer ones first.
pub(crate) fn pieces(len: usize, n: usize) -> impl Iterator<Item = Range<usize>> {
    let (each, longer) = (len.checked_div(n).unwrap_or(0), len.checked_rem(n).unwrap_or(0));
    (0..n).map(move |i| {
        let start = i * each + i.min(longer);
        start..start + each + usize::from(i < longer)
    })
}

/// The whole, or the pieces again.
type Join<P> = Result<P, Returned<Vec<P>>>;

/// Splits a buffer on a stream, by the `split` of its idle form.
pub(crate) fn split_on<S: StreamTag, L: LeafResource>(
    buffer: On<S, L>,
    n: usize,
    split: impl FnOnce(L, usize) -> Vec<L>,
) -> Vec<On<S, L>> {
    let mut pieces = Vec::with_capacity(n); // a panic over an absurd `n` finds the buffer still on its stream
    if n > 0 {
        let stream = buffer.stream();
        pieces.extend(split(buffer.into_leaf(), n).into_iter().map(|piece| On::new(piece, stream)));
    }
    pieces // and with no pieces the buffer is dropped as one on a stream
}

/// Joins pieces on a stream, by the `join` of their idle form.
pub(crate) fn join_on<S: StreamTag, L: LeafResource>(
    pieces: Vec<On<S, L>>,
    join: impl FnOnce(Vec<L>) -> Join<L>,
) -> Join<On<S, L>> {
    let Some(stream) = pieces.first().map(On::stream) else {
        return Err(Returned::new(Error::NotAdjacent { reason: "there are none" }, pieces));
    };
    match join(pieces.into_iter().map(On::into_leaf).collect()) {
        Ok(whole) => Ok(On::new(whole, stream)),
        Err(r) => Err(Returned::new(r.error, r.value.into_iter().map(|p| On::new(p, stream)).collect())),
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
