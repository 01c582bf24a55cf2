//! Links, through which a rank sends bytes to the others and gets theirs.

pub(crate) mod local;
pub(crate) mod tcp;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use crate::element::Kind;
use crate::header::{Call, Code, Header};

/// The reason why nothing came from a rank.
#[derive(Debug, PartialEq)]
pub(crate) enum LinkError {
    /// Not by the deadline.
    Late,
    /// The connection is closed.
    Closed,
    /// It sent what no rank sends.
    Garbled(String),
    /// The ranks have failed, and the link is aborted.
    Aborted,
}

/// Something that a failure of the ranks aborts.
pub(crate) trait Abort: Send + Sync + Debug {
    /// Ends every wait. The failure is kept already.
    fn abort(&self);
}

/// The last message of a rank.
pub(crate) fn goodbye() -> Header {
    let call = Call { code: Code::Goodbye, kind: Kind::U8, op: None, root: None, count: 0 };
    Header { call, seq: 0, step: 0, len: 0 }
}

/// The messages between one rank and each of the others. They arrive in the order in which they are
/// sent.
pub(crate) trait Link: Abort {
    /// Sends a message, without waiting for the other side. The head says how many bytes it has.
    fn send(&self, to: usize, head: &Header, bytes: &Arc<[u8]>);

    /// Waits for the head of the next message of a rank.
    fn header(&self, from: usize, deadline: Instant) -> Result<Header, LinkError>;

    /// Waits for the bytes of the message whose head came last.
    fn body(&self, from: usize, to: &mut [u8], deadline: Instant) -> Result<(), LinkError>;

    /// Whether the head of a message of a rank has arrived, or its end. Takes a millisecond at
    /// most.
    fn arrived(&self, from: usize) -> bool;

    /// Waits until what was sent has left this process. Otherwise gives the ranks that take
    /// nothing.
    fn flush(&self, deadline: Instant) -> Result<(), Vec<usize>>;
}
