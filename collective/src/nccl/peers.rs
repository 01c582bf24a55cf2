//! The facts that a rank knows of the others from what they tell.

use std::time::{Duration, Instant};

use super::log::Said;
use crate::error::Failure;
use crate::header::Code;
use crate::link::{Link, LinkError};

/// The most that is read from a rank before the watchdog goes on: a rank that never stops talking
/// must not keep it from looking at the time.
const AT_ONCE: usize = 64;

/// The period of the watchdog. Ranks of many say less.
pub(super) fn tick(size: usize) -> Duration {
    Duration::from_millis(20) * (1 + size as u32 / 16)
}

/// The silence after which a rank counts as one that has stopped. Each says something four times in
/// that time.
pub(super) fn silence(size: usize) -> Duration {
    (8 * tick(size)).max(Duration::from_secs(1))
}

pub(super) struct Peers {
    pub(super) known: Vec<Known>,
    /// The number of its calls that this rank told last, and the time.
    pub(super) told: Option<u64>,
    pub(super) spoken: Instant,
}

pub(super) struct Known {
    pub(super) said: Option<Said>,
    pub(super) heard: Instant,
    /// It has left after this many operations, or it is gone.
    pub(super) gone: Option<Option<u64>>,
}

impl Peers {
    pub(super) fn new(size: usize) -> Self {
        let spoken = Instant::now();
        let known = (0..size).map(|_| Known { said: None, heard: spoken, gone: None }).collect();
        Self { known, told: None, spoken }
    }

    /// Whether all others have left or are gone.
    pub(super) fn have_left(&self, rank: usize) -> bool {
        self.known.iter().enumerate().all(|(peer, known)| peer == rank || known.gone.is_some())
    }
}

impl Known {
    /// Reads what a rank has told. What comes within `patience` after its begin counts.
    pub(super) fn hear(&mut self, link: &dyn Link, peer: usize, patience: Duration) -> Result<(), Failure> {
        let now = Instant::now();
        for _ in 0..AT_ONCE {
            if self.gone.is_some() || !link.arrived(peer) {
                break;
            }
            self.heard = now;
            match link.header(peer, now + patience) {
                Ok(head) if head.call.code == Code::Goodbye => self.gone = Some(Some(head.seq)),
                Ok(head) if head.call.code == Code::Log && head.len <= 4096 => {
                    let mut bytes = vec![0; head.len];
                    let read = link.body(peer, &mut bytes, now + patience).ok().and_then(|()| Said::decode(&bytes));
                    let garbled = || Failure::Garbled { rank: peer, reason: "a log of no known form".into() };
                    self.said = Some(read.ok_or_else(garbled)?);
                }
                Ok(_) => return Err(Failure::Garbled { rank: peer, reason: "a message that is no log".into() }),
                Err(LinkError::Garbled(reason)) => return Err(Failure::Garbled { rank: peer, reason }),
                Err(LinkError::Aborted | LinkError::Late) => break,
                Err(LinkError::Closed) => self.gone = Some(None),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::{Peers, silence, tick};
    use crate::header::{Call, Code, Header};
    use crate::link::local::{LocalLink, Mailboxes};
    use crate::link::{Link, goodbye};
    use crate::nccl::log::Log;

    /// However many ranks there are, each speaks several times before it counts as silent.
    #[test]
    fn nobody_is_silent_between_two_looks() {
        for size in [1, 2, 16, 783, 784, 2048, 100_000] {
            assert!(silence(size) / 4 >= 2 * tick(size), "{size}");
            assert!(silence(size) >= Duration::from_secs(1));
        }
    }

    /// A rank that tells something all the time does not hold the listener.
    #[test]
    fn a_rank_that_never_stops_talking_is_heard_in_parts() {
        let mailboxes = Mailboxes::new(2);
        let [a, b] = [0, 1].map(|rank| LocalLink::new(mailboxes.clone(), rank));
        let told: Arc<[u8]> = Arc::from(Log::default().encode());
        let log = Header { call: Call { code: Code::Log, ..goodbye().call }, seq: 0, step: 0, len: told.len() };
        let ends = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    a.send(1, &log, &told);
                }
            });
            let mut peers = Peers::new(2);
            // If one call heard all that is told, it would not return.
            let mut heard = 0;
            while heard < 20 {
                peers.known[0].hear(&b, 0, Duration::from_secs(20)).unwrap();
                heard += u32::from(peers.known[0].said.take().is_some());
            }
            ends.store(true, Ordering::Relaxed);
            assert!(peers.known[0].gone.is_none());
        });
        drop(a);
        let mut peers = Peers::new(2);
        peers.known[0].hear(&b, 0, Duration::from_secs(20)).unwrap();
        assert_eq!(peers.known[0].gone, Some(Some(0)));
    }
}
