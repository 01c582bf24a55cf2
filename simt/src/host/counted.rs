//! Numbers of things in messages.

use std::fmt::Debug;

/// A number of things, for a message: `1 element`, `2 elements`.
pub fn counted<N: Debug + PartialEq + From<u8>>(count: N, thing: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count:?} {thing}{plural}")
}
