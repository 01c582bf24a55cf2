//! Pieces of one buffer that travel separately.

use std::mem::ManuallyDrop;
use std::ops::Range;

use crate::brand::LiveBrand;
use crate::error::{Error, Result, Returned};
use crate::resource::{LeafResource, On};
pub(crate) use crate::runtime::memory::adjacent;
use crate::runtime::memory::{Block, Owned};

/// The ranges of `n` pieces of `len` elements. Their lengths are as equal as possible, the longer
/// pieces first.
pub(crate) fn pieces(len: usize, n: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let (each, longer) = (len.checked_div(n).unwrap_or(0), len.checked_rem(n).unwrap_or(0));
    (0..n).map(move |i| {
        let start = i * each + i.min(longer);
        start..start + each + usize::from(i < longer)
    })
}

/// The most empty pieces that a split may make. They have no use of their own, so a number beyond
/// that is a mistake, which must not cost the memory for a list of so many.
const EMPTY_PIECES: usize = 1 << 16;

/// Checks that a buffer of `len` elements may be split into `n` pieces.
pub(crate) fn admits(len: usize, n: usize) -> Result<()> {
    let most = len.saturating_add(EMPTY_PIECES);
    if n <= most {
        return Ok(());
    }
    let expected = format!("at most {most}: {EMPTY_PIECES} more than the buffer has elements");
    Err(Error::Parameter { name: "n", given: n.to_string(), expected })
}

/// An empty list with room for `n` pieces.
pub(crate) fn list<P>(n: usize) -> Result<Vec<P>> {
    let mut list = Vec::new();
    list.try_reserve_exact(n).map_err(|_| Error::TooLarge { elements: n, size: size_of::<P>() })?;
    Ok(list)
}

/// The whole buffer, or the pieces again.
type Join<P> = Result<P, Returned<Vec<P>>>;

/// The pieces, or the whole buffer again.
type Cut<P> = Result<Vec<P>, Returned<P>>;

/// Makes pieces of a buffer's memory. `piece` makes one that shares the memory, and puts it in its
/// state at once: idle, or on the stream that may still work on it.
///
/// No function that runs here panics. If one did, the memory would leak, and no stream's work would
/// be on memory that was given back.
pub(crate) fn share<B: Block, P>(
    memory: Owned<B>,
    ranges: impl Iterator<Item = Range<usize>>,
    mut list: Vec<P>,
    piece: impl Fn(Range<usize>, Owned<B>) -> P,
) -> Vec<P> {
    let owner = ManuallyDrop::new(memory.share());
    list.extend(ranges.map(|range| piece(range, owner.as_ref().map_or(Owned::Empty, |o| Owned::Piece(o.clone())))));
    drop(ManuallyDrop::into_inner(owner));
    list
}

/// The ranges of pieces of these lengths, one after another, and a list for them.
pub(crate) fn lengths<P>(lens: &[usize], len: usize) -> Result<(impl ExactSizeIterator<Item = Range<usize>>, Vec<P>)> {
    let sum = lens.iter().try_fold(0usize, |sum, &len| sum.checked_add(len));
    if sum != Some(len) {
        let given = sum.map_or("more than can be counted".to_owned(), |sum| sum.to_string());
        let expected = format!("{len}, the elements of the buffer");
        return Err(Error::Parameter { name: "lens", given, expected });
    }
    let list = list(lens.len())?;
    let mut end = 0;
    let ranges = lens.iter().map(move |&len| {
        end += len;
        end - len..end
    });
    Ok((ranges, list))
}

/// Splits a buffer on a stream. `cut` takes its memory as pieces, and puts each of them on the
/// stream again as soon as it has made it.
pub(crate) fn cut_on<S: LiveBrand, L: LeafResource>(
    mut buffer: On<S, L>,
    cut: impl FnOnce(&mut L, &dyn Fn(L) -> On<S, L>) -> Result<Vec<On<S, L>>>,
) -> Cut<On<S, L>> {
    let stream = buffer.stream();
    match cut(buffer.leaf_mut(), &|piece| On::new(piece, stream)) {
        Ok(pieces) => Ok(pieces), // the buffer has no memory any more
        Err(error) => Err(Returned::new(error, buffer)),
    }
}

/// Joins pieces. `len` finds the length of the whole, or says why they are not one, and `set` sets
/// it. All pieces share one allocation, so the first one keeps it for all, and `end` drops the
/// others.
pub(crate) fn join<P>(
    pieces: Vec<P>,
    len: impl FnOnce(&[P]) -> Result<usize>,
    set: impl FnOnce(&mut P, usize),
    end: impl Fn(P),
) -> Join<P> {
    let len = match len(&pieces) {
        Ok(len) => len,
        Err(error) => return Err(Returned::new(error, pieces)),
    };
    let mut pieces = pieces.into_iter();
    let Some(mut first) = pieces.next() else { unreachable!("`adjacent` refuses an empty list") };
    set(&mut first, len);
    pieces.for_each(end);
    Ok(first)
}

/// Joins pieces on a stream. They stay on it, but for those that the first one makes superfluous.
pub(crate) fn join_on<S: LiveBrand, L: LeafResource>(
    pieces: Vec<On<S, L>>,
    len: impl FnOnce(&[On<S, L>]) -> Result<usize>,
    set: impl FnOnce(&mut L, usize),
) -> Join<On<S, L>> {
    // The first piece holds the allocation, on the stream, so the others need no event.
    join(pieces, len, |first, len| set(first.leaf_mut(), len), |piece| drop(piece.into_leaf()))
}
