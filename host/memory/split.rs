//! Pieces of one buffer that travel separately.

use std::ops::Range;

use crate::brand::LiveBrand;
use crate::error::{Error, Result, Returned};
use crate::resource::{LeafResource, On};
pub(crate) use crate::runtime::memory::adjacent;

/// The ranges of `n` pieces of `len` elements. Their lengths are as equal as possible, the longer
/// pieces first.
pub(crate) fn pieces(len: usize, n: usize) -> impl Iterator<Item = Range<usize>> {
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

/// Splits a buffer of `len` elements on a stream with the `split_even` of its idle form.
pub(crate) fn split_on<S: LiveBrand, L: LeafResource>(
    buffer: On<S, L>,
    (len, n): (usize, usize),
    split: impl FnOnce(L, usize) -> Cut<L>,
) -> Cut<On<S, L>> {
    // Before the buffer leaves its stream.
    let mut pieces = match admits(len, n).and_then(|()| list(n)) {
        Ok(pieces) => pieces,
        Err(error) => return Err(Returned::new(error, buffer)),
    };
    if n > 0 {
        let stream = buffer.stream();
        let idle = split(buffer.into_leaf(), n).map_err(|r| Returned::new(r.error, On::new(r.value, stream)))?;
        pieces.extend(idle.into_iter().map(|piece| On::new(piece, stream)));
    }
    Ok(pieces) // if `n` is 0, the buffer is dropped on its stream
}

/// Cuts a buffer on a stream with the `split_at_lengths` of its idle form.
pub(crate) fn cut_on<S: LiveBrand, L: LeafResource>(buffer: On<S, L>, cut: impl FnOnce(L) -> Cut<L>) -> Cut<On<S, L>> {
    let stream = buffer.stream();
    match cut(buffer.into_leaf()) {
        Ok(pieces) => Ok(pieces.into_iter().map(|piece| On::new(piece, stream)).collect()),
        Err(r) => Err(Returned::new(r.error, On::new(r.value, stream))),
    }
}

/// Joins pieces on a stream with the `join` of their idle form.
pub(crate) fn join_on<S: LiveBrand, L: LeafResource>(
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
