//! Errors: what a call did wrong, and what ended the world of the ranks.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use thalweg::Returned;

use crate::backend::Backend;
use crate::codec::{Fields, Parse};

/// An error of this crate.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ranks have failed. Every rank gets the same first cause, and every later call gets it
    /// too.
    #[error("{0}")]
    Failed(Failure),
    /// An error of the device of this rank.
    #[error(transparent)]
    Device(#[from] thalweg::Error),
    /// The GPU of a rank cannot be opened, and the machine is not [without
    /// one](thalweg::Error::means_no_gpu).
    #[error("rank {rank} cannot open its GPU: {cause}; with THALWEG_DEVICE=cpu it takes the CPU device")]
    NoGpu {
        /// This rank.
        rank: usize,
        /// The error of the device.
        cause: Box<thalweg::Error>,
    },
    /// The environment does not say which rank this is.
    #[error("{name} is {given}, expected {expected}")]
    Environment {
        /// The variable.
        name: &'static str,
        /// The value of the variable.
        given: String,
        /// A description of accepted values.
        expected: &'static str,
    },
    /// The ranks could not meet.
    #[error("rank {rank} could not join the other ranks: {reason}")]
    Connect {
        /// This rank.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// A request to the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Two ranks have the same device, which cannot run the work of both at once.
    #[error("two ranks have {device}: give each rank its own GPU or CPU device{hint}")]
    SharedDevice {
        /// The device.
        device: String,
        /// A hint on letting ranks try one device, if they can.
        hint: String,
    },
    /// Ranks differ in something that must be the same on every rank.
    #[error("{} {} from the others in {what}", ranks(differing), if differing.len() == 1 { "differs" } else { "differ" })]
    RanksDiffer {
        /// The name of the compared thing.
        what: &'static str,
        /// The ranks that differ from most. All of them if no value is that of most ranks.
        differing: Vec<usize>,
    },
    /// A gradient was handed to a pass that did not give it out.
    #[error("gradient {gradient} is of another backward pass")]
    OtherPass {
        /// Its number.
        gradient: usize,
    },
    /// The stream is one of other code, which may destroy it while the operations are under way.
    #[error("a communicator needs a stream that thalweg made, not one of other code: hand the buffers over to one")]
    ForeignStream,
    /// The backend cannot be captured.
    #[error("{backend:?} cannot be captured into a graph: only NCCL can")]
    NoCapture {
        /// The backend of this communicator.
        backend: Backend,
    },
    /// A graph was captured by another communicator.
    #[error("the graph belongs to another communicator")]
    OtherGraph,
    /// A backward pass ended without this gradient.
    #[error("gradient {gradient} was not handed in: a parameter without a gradient needs one of zeros")]
    GradientMissing {
        /// Its number.
        gradient: usize,
    },
    /// The lengths of the slices of an operation do not fit together.
    #[error("{op} of {from} elements into {to}: expected {expected}")]
    Length {
        /// The operation.
        op: &'static str,
        /// Elements in the source.
        from: usize,
        /// Elements in the destination.
        to: usize,
        /// A description of accepted lengths.
        expected: &'static str,
    },
    /// A root or a peer is no rank, or is this rank where another one is needed.
    #[error("rank {rank} cannot be {role}: there are {size} ranks, and this is rank {this}")]
    Rank {
        /// The rank given.
        rank: usize,
        /// The role for which the rank was given.
        role: &'static str,
        /// This rank.
        this: usize,
        /// The number of ranks.
        size: usize,
    },
}

thalweg::__errors_of_device!(Error);

/// Gives a failure of the device the error of this crate.
pub(crate) fn on_device<T>(Returned { error, value }: Returned<T>) -> Returned<T, Error> {
    Returned { error: Error::Device(error), value }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the [`Store`](crate::Store).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store does not answer, or has ended.
    #[error("the store is gone: {reason}")]
    Gone {
        /// The reason.
        reason: String,
    },
    /// The other side has another secret.
    #[error("the store has another secret")]
    Secret,
    /// Others can reach the address, and would need no secret.
    #[error(
        "the secret is empty, which only loopback addresses may have, and {ip} is none: set THALWEG_SECRET to the same random \
         text for all ranks"
    )]
    NoSecret {
        /// The address of the store or of a rank.
        ip: IpAddr,
    },
    /// The key or the value is too long, or the store is full.
    #[error("the store refuses this: {reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// The key did not appear in time.
    #[error("the key `{key}` did not appear within {waited:?}")]
    Late {
        /// The key.
        key: String,
        /// The time that the call waited.
        waited: Duration,
    },
    /// Ranks did not call [`all_gather`](crate::Store::all_gather) or
    /// [`barrier`](crate::Store::barrier) of this name in time.
    #[error("{} did not come to `{name}` within {waited:?}", ranks(missing))]
    Missing {
        /// The name that the calls share.
        name: String,
        /// The ranks that did not come.
        missing: Vec<usize>,
        /// The time that the call waited.
        waited: Duration,
    },
}

/// The first thing that went wrong among the ranks. All of them get the same one, unless the store
/// through which they tell one another is gone.
///
/// `seq` counts the collective operations of the communicator from 1. A message has the number of
/// the operation before it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Ranks did not come to an operation, or did not go on with it, in time.
    Timeout {
        /// The number of the operation.
        seq: u64,
        /// The operation.
        op: String,
        /// The ranks that did not come.
        lagging: Vec<usize>,
        /// The time that the others waited.
        waited: Duration,
    },
    /// The process of a rank has ended, or its machine cannot be reached.
    Gone {
        /// The rank.
        rank: usize,
        /// The number of the operation that needs it.
        seq: u64,
        /// The operation that needs it.
        op: String,
    },
    /// A rank has dropped its communicator before an operation that needs it.
    LeftEarly {
        /// The rank.
        rank: usize,
        /// The number of the operation that needs it.
        seq: u64,
        /// The operation that needs it.
        op: String,
    },
    /// The ranks call different operations, or with different lengths, types or roots.
    Mismatch {
        /// The number of the operation.
        seq: u64,
        /// The ranks that were compared, and what each of them calls.
        calls: Vec<(usize, String)>,
        /// The ranks that differ from most. All of them if no call is that of most ranks.
        differing: Vec<usize>,
    },
    /// A rank has panicked.
    Panicked {
        /// The rank.
        rank: usize,
    },
    /// The device of a rank has failed, so it cannot run an operation.
    Abandoned {
        /// The rank.
        rank: usize,
        /// The number of the operation.
        seq: u64,
        /// The operation.
        op: String,
    },
    /// NCCL could not run an operation, or reports that it failed.
    Library {
        /// The rank.
        rank: usize,
        /// The number of the operation.
        seq: u64,
        /// The operation.
        op: String,
        /// The text of NCCL's error.
        reason: String,
    },
    /// A rank sent what no rank sends.
    Garbled {
        /// The rank.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// The store was gone when the ranks had to compare an operation.
    StoreGone {
        /// The number of the operation.
        seq: u64,
        /// The operation.
        op: String,
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { seq, op, lagging, waited } => {
                write!(f, "{} did not come to operation {seq}, {op}, within {waited:?}", ranks(lagging))
            }
            Self::Gone { rank, seq, op } => write!(f, "rank {rank} is gone: operation {seq}, {op}, needs it"),
            Self::LeftEarly { rank, seq, op } => {
                write!(f, "rank {rank} has dropped its communicator before operation {seq}, {op}")
            }
            Self::Mismatch { seq, calls, differing } => {
                write!(f, "operation {seq} differs on {}:", ranks(differing))?;
                for (k, (rank, call)) in calls.iter().enumerate() {
                    write!(f, "{} rank {rank} calls {call}", if k == 0 { "" } else { "," })?;
                }
                Ok(())
            }
            Self::Panicked { rank } => write!(f, "rank {rank} has panicked"),
            Self::Abandoned { rank, seq, op } => {
                write!(f, "rank {rank} could not run operation {seq}, {op}: its device has failed")
            }
            Self::Library { rank, seq, op, reason } => {
                write!(f, "rank {rank} could not run operation {seq}, {op}: NCCL: {reason}")
            }
            Self::Garbled { rank, reason } => write!(f, "rank {rank} sent garbage: {reason}"),
            Self::StoreGone { seq, op, reason } => {
                write!(f, "operation {seq}, {op}, could not be compared: {reason}")
            }
        }
    }
}

/// Lists ranks in a sentence.
fn ranks(list: &[usize]) -> String {
    let names: Vec<String> = list.iter().map(usize::to_string).collect();
    match names.split_last() {
        None => "no rank".to_owned(),
        Some((one, [])) => format!("rank {one}"),
        Some((last, rest)) => format!("ranks {} and {last}", rest.join(", ")),
    }
}

impl Failure {
    /// The failure as a value of the store.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let list = |fields: Fields, list: &[usize]| {
            list.iter().fold(fields.number(list.len() as u64), |all, &rank| all.number(rank as u64))
        };
        let at = |kind: u8, rank: usize, seq: u64, op: &str| {
            Fields::default().byte(kind).number(rank as u64).number(seq).bytes(op.as_bytes())
        };
        match self {
            Self::Timeout { seq, op, lagging, waited } => {
                list(at(0, 0, *seq, op), lagging).number(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX))
            }
            Self::Gone { rank, seq, op } => at(1, *rank, *seq, op),
            Self::LeftEarly { rank, seq, op } => at(2, *rank, *seq, op),
            Self::Mismatch { seq, calls, differing } => {
                let fields = list(at(3, 0, *seq, ""), differing).number(calls.len() as u64);
                calls.iter().fold(fields, |all, (rank, call)| all.number(*rank as u64).bytes(call.as_bytes()))
            }
            Self::Panicked { rank } => at(4, *rank, 0, ""),
            Self::Abandoned { rank, seq, op } => at(5, *rank, *seq, op),
            Self::Garbled { rank, reason } => at(6, *rank, 0, reason),
            Self::StoreGone { seq, op, reason } => at(7, 0, *seq, op).bytes(reason.as_bytes()),
            Self::Library { rank, seq, op, reason } => at(8, *rank, *seq, op).bytes(reason.as_bytes()),
        }
        .0
    }

    /// The failure that [`encode`](Self::encode) wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut p = Parse(bytes);
        let kind = p.byte()?;
        let (rank, seq, op) = (p.size()?, p.number()?, p.text()?);
        // Each entry takes at least 8 bytes, so a list cannot be longer than what is left.
        let list = |p: &mut Parse<'_>| {
            let n = p.size().filter(|&n| n <= p.0.len() / 8)?;
            (0..n).map(|_| p.size()).collect::<Option<Vec<_>>>()
        };
        Some(match kind {
            0 => {
                let (lagging, waited) = (list(&mut p)?, Duration::from_millis(p.number()?));
                Self::Timeout { seq, op, lagging, waited }
            }
            1 => Self::Gone { rank, seq, op },
            2 => Self::LeftEarly { rank, seq, op },
            3 => {
                let differing = list(&mut p)?;
                let n = p.size().filter(|&n| n <= p.0.len() / 8)?;
                let calls = (0..n).map(|_| Some((p.size()?, p.text()?))).collect::<Option<Vec<_>>>()?;
                Self::Mismatch { seq, calls, differing }
            }
            4 => Self::Panicked { rank },
            5 => Self::Abandoned { rank, seq, op },
            6 => Self::Garbled { rank, reason: op },
            7 => Self::StoreGone { seq, op, reason: p.text()? },
            8 => Self::Library { rank, seq, op, reason: p.text()? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Failure;

    #[test]
    fn failures_travel() {
        let (seq, op) = (7, "a barrier".to_owned());
        let all = [
            Failure::Timeout { seq, op: op.clone(), lagging: vec![1, 3], waited: Duration::from_millis(250) },
            Failure::Gone { rank: 2, seq, op: op.clone() },
            Failure::LeftEarly { rank: 2, seq, op: op.clone() },
            Failure::Mismatch { seq, calls: vec![(0, "a".into()), (1, "b".into())], differing: vec![0, 1] },
            Failure::Panicked { rank: 5 },
            Failure::Abandoned { rank: 2, seq, op: op.clone() },
            Failure::Garbled { rank: 1, reason: "why".into() },
            Failure::StoreGone { seq, op: op.clone(), reason: "why".into() },
            Failure::Library { rank: 3, seq, op, reason: "why".into() },
        ];
        for failure in all {
            let bytes = failure.encode();
            assert_eq!(Failure::decode(&bytes).as_ref(), Some(&failure));
            // What is cut off is no failure, or has a shorter text; it never panics.
            for n in 0..bytes.len() {
                assert_eq!(Failure::decode(&bytes[..n]), None, "{failure} cut to {n} bytes");
            }
            let mut huge = bytes;
            huge[17..25].fill(0xff); // the length of the first text
            assert_eq!(Failure::decode(&huge), None);
        }
        assert_eq!(
            Failure::Timeout { seq: 3, op: "a barrier".into(), lagging: vec![0, 1, 4], waited: Duration::from_secs(2) }
                .to_string(),
            "ranks 0, 1 and 4 did not come to operation 3, a barrier, within 2s"
        );
    }
}
