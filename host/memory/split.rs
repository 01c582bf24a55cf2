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

/// The whole buffer, or the pieces again.
type Join<P> = Result<P, Returned<Vec<P>>>;

/// Splits a buffer on a stream with the `split` of its idle form.
pub(crate) fn split_on<S: LiveBrand, L: LeafResource>(
    buffer: On<S, L>,
    n: usize,
    split: impl FnOnce(L, usize) -> Vec<L>,
) -> Vec<On<S, L>> {
    let mut pieces = Vec::with_capacity(n); // if this panics, the buffer is still on its stream
    if n > 0 {
        let stream = buffer.stream();
        pieces.extend(split(buffer.into_leaf(), n).into_iter().map(|piece| On::new(piece, stream)));
    }
    pieces // if `n` is 0, the buffer is dropped on its stream
}

/// The pieces, or the whole buffer again.
type Cut<P> = Result<Vec<P>, Returned<P>>;

/// Cuts a buffer on a stream with the `cut` of its idle form.
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
