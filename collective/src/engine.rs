//! The operations, over any [`Link`].
//!
//! Every collective operation begins with a head from each rank to each other. So each rank knows
//! what all the others call before it uses a byte of theirs, and all of them come to the same
//! verdict if the calls differ. A sum is made in pieces: rank `k` gets piece `k` of every rank
//! (this is a reduce-scatter), reduces them in the order of the ranks, and sends the result to the
//! others (an all-gather). Each rank sends and receives `2 (N - 1) / N` of the bytes, as in a ring,
//! in 2 steps instead of `2 (N - 1)`, and the order of the sum does not depend on the piece.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::failure_state::FailureState;
use crate::header::{Call, Code, Header};
use crate::link::{Abort, Link, LinkError};
use crate::lock;
use crate::store::LONGEST_WAIT;

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) failure_state: Arc<FailureState>,
    link: Arc<dyn Link>,
    timeout: Duration,
    /// Messages that were sent to and received from each rank.
    messages: Mutex<Vec<[u64; 2]>>,
}

/// A message of a group: the other rank, and where its bytes are.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) peer: usize,
    pub(crate) call: Call,
    pub(crate) bytes: Range<usize>,
}

/// The longest time in which ranks find out who holds them up, after an operation's time is over.
const GRACE: Duration = Duration::from_secs(2);

/// The first step, in which ranks also compare their calls.
const FIRST: u8 = 1;
/// The second step: results of pieces.
const SECOND: u8 = 2;

impl Engine {
    pub(crate) fn new(
        rank: usize,
        size: usize,
        failure_state: Arc<FailureState>,
        link: Arc<dyn Link>,
        timeout: Duration,
    ) -> Self {
        failure_state.watch(&(link.clone() as Arc<dyn Abort>));
        Self { rank, size, failure_state, link, timeout, messages: Mutex::new(vec![[0; 2]; size]) }
    }

    /// The connections with the other ranks.
    pub(crate) fn link(&self) -> &dyn Link {
        &*self.link
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.size).filter(move |&peer| peer != rank)
    }

    /// The bytes of piece `k` of `count` elements.
    fn piece(&self, call: &Call, k: usize) -> Range<usize> {
        let at = |k: usize| (call.count as u128 * k as u128 / self.size as u128) as usize * call.kind.size();
        at(k)..at(k + 1)
    }

    /// Carries out a collective operation. `bytes` is what the operation needs on each rank: for
    /// [`Code::ReduceScatter`] and [`Code::AllGather`] a block for each rank, otherwise `count`
    /// elements.
    pub(crate) fn run(&self, seq: u64, call: Call, bytes: &mut [u8]) {
        let deadline = Instant::now() + self.timeout.min(LONGEST_WAIT);
        let run = Run { engine: self, seq, call, deadline };
        if let Err(failure) = run.collective(bytes).and_then(|()| run.flush()) {
            self.failure_state.fail(failure);
        }
    }

    /// Carries out the messages of a group: sends all, then receives all.
    pub(crate) fn exchange(&self, seq: u64, sends: &[Message], receives: &[Message], bytes: &mut [u8]) {
        let deadline = Instant::now() + self.timeout.min(LONGEST_WAIT);
        let number = |peer: usize, way: usize| {
            let numbers = &mut lock(&self.messages)[peer][way];
            *numbers += 1;
            *numbers
        };
        for send in sends {
            let head = Header { call: send.call, seq: number(send.peer, 0), step: FIRST, len: send.bytes.len() };
            self.link.send(send.peer, &head, &Arc::from(&bytes[send.bytes.clone()]));
        }
        let mut receive = || {
            for receive in receives {
                let run = Run { engine: self, seq, call: receive.call, deadline };
                let (from, number) = (receive.peer, number(receive.peer, 1));
                let head = run.head(from)?;
                if head.call != receive.call || head.seq != number || head.len != receive.bytes.len() {
                    return Err(run.mismatch(&[(from, head.call)]));
                }
                run.body(from, &mut bytes[receive.bytes.clone()])?;
            }
            Ok(())
        };
        let call = receives.last().or(sends.last()).map(|message| message.call);
        let outcome =
            receive().and_then(|()| call.map_or(Ok(()), |call| Run { engine: self, seq, call, deadline }.flush()));
        if let Err(failure) = outcome {
            self.failure_state.fail(failure);
        }
    }
}

/// One operation under way.
struct Run<'e> {
    engine: &'e Engine,
    seq: u64,
    call: Call,
    deadline: Instant,
}

impl Run<'_> {
    fn collective(&self, bytes: &mut [u8]) -> Result<(), Failure> {
        let (engine, call) = (self.engine, &self.call);
        let (rank, size) = (engine.rank, engine.size);
        let block = call.count * call.kind.size();
        let piece = |k: usize| match call.code {
            Code::ReduceScatter | Code::AllGather => k * block..(k + 1) * block,
            _ => engine.piece(call, k),
        };
        // What rank `from` sends to rank `to` in the first step.
        let first = |from: usize, to: usize| match call.code {
            Code::AllReduce | Code::Reduce | Code::ReduceScatter => piece(to),
            Code::Broadcast if call.root == Some(from) => piece(to),
            _ => 0..0,
        };
        for to in engine.others() {
            self.send(to, FIRST, &Arc::from(&bytes[first(rank, to)]));
        }
        self.compare(|from| first(from, rank).len())?;
        let own = piece(rank);
        match call.code {
            Code::AllReduce | Code::Reduce | Code::ReduceScatter => {
                let mine: Vec<u8> = bytes[own.clone()].to_vec();
                let op = call.op.ok_or_else(|| self.garbled(rank, "a reduction without its kind"))?;
                let mut ranks = 0..size;
                call.kind.reduce(op, size, &mut bytes[own.clone()], |to| match ranks.next() {
                    Some(from) if from != rank => self.body(from, to),
                    _ => {
                        to.copy_from_slice(&mine);
                        Ok(())
                    }
                })?;
            }
            Code::Broadcast if call.root != Some(rank) => {
                let root = call.root.unwrap_or(0);
                self.body(root, &mut bytes[own.clone()])?;
            }
            _ => {}
        }
        // Whether a rank gets the other pieces, and from whom.
        let gathers = |to: usize, from: usize| match call.code {
            Code::AllReduce | Code::AllGather => true,
            Code::Reduce => call.root == Some(to),
            Code::Broadcast => call.root != Some(to),
            _ => from == to,
        };
        let result: Arc<[u8]> = Arc::from(&bytes[own]);
        for to in engine.others().filter(|&to| gathers(to, rank)) {
            self.send(to, SECOND, &result);
        }
        for from in engine.others().filter(|&from| gathers(rank, from)) {
            let head = self.head(from)?;
            let expected = Header { call: self.call, seq: self.seq, step: SECOND, len: piece(from).len() };
            if head != expected {
                return Err(self.garbled(from, "the second step of another operation"));
            }
            self.body(from, &mut bytes[piece(from)])?;
        }
        Ok(())
    }

    fn send(&self, to: usize, step: u8, bytes: &Arc<[u8]>) {
        self.engine.link.send(to, &Header { call: self.call, seq: self.seq, step, len: bytes.len() }, bytes);
    }

    /// Reads the first head of every other rank, and compares the calls.
    fn compare(&self, expected: impl Fn(usize) -> usize) -> Result<(), Failure> {
        let (mut calls, mut late, mut gone) = (Vec::new(), Vec::new(), None);
        for from in self.engine.others() {
            // Once one rank is late, the others are only asked whether they are there.
            let deadline = if late.is_empty() { self.deadline } else { Instant::now() + Duration::from_millis(1) };
            match self.engine.link.header(from, deadline) {
                Ok(head) if head.call.code == Code::Goodbye => gone = gone.or(Some(self.left(from))),
                Ok(head) => {
                    let same = head.call == self.call;
                    if same && (head.seq, head.step, head.len) != (self.seq, FIRST, expected(from)) {
                        return Err(self.garbled(from, "an operation of another number or size"));
                    }
                    calls.push((from, head.call));
                }
                Err(LinkError::Late) => late.push(from),
                Err(link_error) => gone = gone.or(Some(self.link_error(from, link_error))),
            }
        }
        // A rank that is gone, or that left, explains why another one is late.
        if let Some(gone) = gone {
            return Err(gone);
        }
        if !late.is_empty() {
            return Err(self.late(late));
        }
        if calls.iter().any(|(_, call)| *call != self.call) {
            return Err(self.mismatch(&calls));
        }
        Ok(())
    }

    fn head(&self, from: usize) -> Result<Header, Failure> {
        match self.engine.link.header(from, self.deadline) {
            Ok(head) if head.call.code == Code::Goodbye => Err(self.left(from)),
            Ok(head) => Ok(head),
            Err(link_error) => Err(self.link_error(from, link_error)),
        }
    }

    fn body(&self, from: usize, to: &mut [u8]) -> Result<(), Failure> {
        self.engine.link.body(from, to, self.deadline).map_err(|link_error| self.link_error(from, link_error))
    }

    fn flush(&self) -> Result<(), Failure> {
        self.engine.link.flush(self.deadline).map_err(|stuck| self.late(stuck))
    }

    fn link_error(&self, from: usize, link_error: LinkError) -> Failure {
        let (seq, op) = (self.seq, self.call.text());
        match link_error {
            LinkError::Late => self.late(vec![from]),
            LinkError::Closed => Failure::Gone { rank: from, seq, op },
            LinkError::Garbled(reason) => Failure::Garbled { rank: from, reason },
            // The failure that aborted the link is there already, and stays the first.
            LinkError::Aborted => {
                self.engine.failure_state.failure().cloned().unwrap_or(Failure::Gone { rank: from, seq, op })
            }
        }
    }

    fn late(&self, lagging: Vec<usize>) -> Failure {
        let Engine { rank, failure_state, timeout, .. } = self.engine;
        let lagging = failure_state.culprits(*rank, lagging, (*timeout / 4).min(GRACE));
        Failure::Timeout { seq: self.seq, op: self.call.text(), lagging, waited: *timeout }
    }

    fn left(&self, rank: usize) -> Failure {
        Failure::LeftEarly { rank, seq: self.seq, op: self.call.text() }
    }

    fn garbled(&self, rank: usize, reason: &str) -> Failure {
        Failure::Garbled { rank, reason: format!("{reason} (in operation {}, {})", self.seq, self.call.text()) }
    }

    fn mismatch(&self, others: &[(usize, Call)]) -> Failure {
        let mut calls: Vec<(usize, String)> = others.iter().map(|(rank, call)| (*rank, call.text())).collect();
        calls.push((self.engine.rank, self.call.text()));
        mismatch(self.seq, calls)
    }
}

/// The failure of ranks that call different operations.
pub(crate) fn mismatch(seq: u64, mut calls: Vec<(usize, String)>) -> Failure {
    calls.sort();
    let count = |call: &String| calls.iter().filter(|(_, other)| other == call).count();
    let most = calls.iter().map(|(_, call)| call).find(|call| 2 * count(call) > calls.len());
    let differing = calls.iter().filter(|(_, call)| Some(call) != most).map(|(rank, _)| *rank).collect();
    Failure::Mismatch { seq, differing, calls }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::Engine;
    use crate::Store;
    use crate::element::Kind;
    use crate::error::Failure;
    use crate::failure_state::FailureState;
    use crate::header::{Call, Code};
    use crate::link::local::{LocalLink, Mailboxes};

    /// Rank 0 hears of nobody, and rank 1 has said that it waits for rank 2.
    #[test]
    fn a_rank_that_waits_for_another_one_is_not_named() {
        let state = Arc::new(FailureState::new(Some(Store::local()), ""));
        state.culprits(1, vec![2], Duration::ZERO);
        let link = Arc::new(LocalLink::new(Mailboxes::new(3), 0));
        let engine = Engine::new(0, 3, state.clone(), link, Duration::from_millis(1));
        engine.run(1, Call { code: Code::Barrier, kind: Kind::U8, op: None, root: None, count: 0 }, &mut []);
        let failure = state.failure().expect("nobody comes");
        assert!(matches!(failure, Failure::Timeout { lagging, .. } if *lagging == [2]), "{failure}");
    }
}
