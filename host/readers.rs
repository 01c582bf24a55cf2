//! The reads of shared memory that have ended.

use std::sync::atomic::Ordering;

use crate::driver::sync::{AtomicU64, Mutex, lock};

/// For each stream the newest read that has ended, with its event. A newer record on a stream
/// covers its older ones. A single event for all readers would keep only the last reader.
pub(crate) struct Readers<E> {
    turns: AtomicU64,
    ended: Mutex<Ended<E>>,
}

struct Ended<E> {
    newest: Vec<Reader<E>>,
    /// An end could not be recorded, so nobody can know when that read is done.
    lost: bool,
}

struct Reader<E> {
    /// The serial of the stream.
    serial: u64,
    /// A number drawn before the record. A record with a later turn covers all reads with earlier
    /// turns, in whatever order two threads store their records.
    turn: u64,
    event: E,
}

impl<E: Clone> Readers<E> {
    pub(crate) fn new() -> Self {
        Self { turns: AtomicU64::new(0), ended: Mutex::new(Ended { newest: Vec::new(), lost: false }) }
    }

    /// Notes the end of a read of a stream, which `record` records there.
    ///
    /// Of two threads that end reads on one stream, the one with the later turn records after the
    /// other one drew its turn, so after its reads were enqueued. Its record covers them because a
    /// call that returned before another one on the stream began comes before it.
    pub(crate) fn end<X>(&self, serial: u64, record: impl FnOnce() -> Result<E, X>) {
        let turn = self.turns.fetch_add(1, Ordering::AcqRel);
        let event = record();
        let mut ended = lock(&self.ended);
        match event {
            Ok(event) => match ended.newest.iter_mut().find(|r| r.serial == serial) {
                Some(newest) if newest.turn < turn => (newest.turn, newest.event) = (turn, event),
                Some(_) => {}
                None => ended.newest.push(Reader { serial, turn, event }),
            },
            Err(_) => ended.lost = true,
        }
    }

    /// The events after which no read runs; `None` if nobody can know that.
    pub(crate) fn events(&self) -> Option<Vec<E>> {
        let ended = lock(&self.ended);
        (!ended.lost).then(|| ended.newest.iter().map(|r| r.event.clone()).collect())
    }
}
