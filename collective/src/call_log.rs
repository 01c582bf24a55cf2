//! Compares the calls of the ranks of one process before they are enqueued.
//!
//! A GPU writes directly to the memory of another one of the same process, as far as its own call
//! says. So ranks of a process may not differ in a length, not even for a moment. The first rank
//! that comes to an operation enters its call, and the others compare theirs with it before they
//! enqueue anything.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::header::Call;
use crate::lock;

#[derive(Debug)]
pub(crate) struct CallLog {
    size: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// By number: the call, the rank that came first, and how many have come.
    calls: HashMap<u64, (Call, usize, usize)>,
    /// By sender, receiver and number: the call of the side that came first.
    messages: HashMap<(usize, usize, u64), Call>,
    /// The messages so far, by sender and receiver, of each side.
    counts: HashMap<(usize, usize, bool), u64>,
}

impl CallLog {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, open: Mutex::default() }
    }

    /// Enters an operation. If an earlier rank called something else, gives that rank and its call.
    pub(crate) fn call(&self, seq: u64, rank: usize, call: Call) -> Result<(), (usize, Call)> {
        let mut open = lock(&self.open);
        let (first, by, came) = open.calls.entry(seq).or_insert((call, rank, 0));
        if *first != call {
            return Err((*by, *first));
        }
        *came += 1;
        if *came == self.size {
            open.calls.remove(&seq);
        }
        Ok(())
    }

    /// Enters one side of a message. If the other side is another message, gives that.
    pub(crate) fn message(&self, (from, to): (usize, usize), sends: bool, call: Call) -> Result<(), Call> {
        let mut open = lock(&self.open);
        let count = open.counts.entry((from, to, sends)).or_default();
        *count += 1;
        let key = (from, to, *count);
        match open.messages.remove(&key) {
            Some(other) if other != call => Err(other),
            Some(_) => Ok(()),
            None => {
                open.messages.insert(key, call);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CallLog;
    use crate::element::Kind;
    use crate::header::{Call, Code};

    fn call(code: Code, count: usize) -> Call {
        Call { code, kind: Kind::F32, op: None, root: None, count }
    }

    #[test]
    fn whoever_differs_from_the_first_is_refused() {
        let call_log = CallLog::new(3);
        let a = call(Code::AllGather, 5);
        assert_eq!(call_log.call(1, 2, a), Ok(()));
        assert_eq!(call_log.call(2, 2, a), Ok(()), "a rank may be ahead");
        assert_eq!(call_log.call(1, 0, call(Code::AllGather, 6)), Err((2, a)));
        assert_eq!(call_log.call(1, 0, a), Ok(()));
        assert_eq!(call_log.call(1, 1, a), Ok(()));
        assert_eq!(call_log.open.lock().unwrap().calls.len(), 1, "what all have entered is gone");
    }

    #[test]
    fn both_sides_of_a_message_are_compared() {
        let call_log = CallLog::new(2);
        let m = |n| call(Code::Message, n);
        assert_eq!(call_log.message((0, 1), true, m(3)), Ok(()));
        assert_eq!(call_log.message((0, 1), true, m(4)), Ok(()));
        assert_eq!(call_log.message((1, 0), true, m(9)), Ok(()), "the other way is another message");
        assert_eq!(call_log.message((0, 1), false, m(3)), Ok(()));
        assert_eq!(call_log.message((0, 1), false, m(3)), Err(m(4)));
    }
}
