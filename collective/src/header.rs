//! The header that ranks send before the bytes of an operation: which operation it is.

use crate::element::{Kind, Op};

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Barrier = 1,
    AllReduce,
    Broadcast,
    Reduce,
    ReduceScatter,
    AllGather,
    /// From one rank to another.
    Message,
    /// The rank has dropped its communicator.
    Goodbye,
    /// A log of the calls of a rank so far.
    Log,
    /// A graph of captured operations.
    Replay,
}

impl Code {
    const ALL: [Self; 10] = [
        Self::Barrier,
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Message,
        Self::Goodbye,
        Self::Log,
        Self::Replay,
    ];
}

/// An operation, as every rank must call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) code: Code,
    pub(crate) kind: Kind,
    pub(crate) op: Option<Op>,
    pub(crate) root: Option<usize>,
    /// Elements of one rank.
    pub(crate) count: usize,
}

impl Call {
    /// The address and the bytes of what one of `ranks` ranks reads from `from`, and of what it
    /// writes to `to`.
    pub(crate) fn spans(&self, from: u64, to: u64, ranks: usize) -> ((u64, usize), (u64, usize)) {
        let one = self.count * self.kind.size();
        let all = one * ranks;
        let (reads, writes) = match self.code {
            Code::ReduceScatter => (all, one),
            Code::AllGather => (one, all),
            _ => (one, one),
        };
        ((from, reads), (to, writes))
    }

    /// The operation in words.
    pub(crate) fn text(&self) -> String {
        let name = match self.code {
            Code::Barrier => return "barrier".to_owned(),
            Code::Goodbye => return "end of the communicator".to_owned(),
            Code::Log => return "log of operations".to_owned(),
            Code::Replay => return format!("replay of graph {}", self.count),
            Code::AllReduce => "all-reduce",
            Code::Broadcast => "broadcast",
            Code::Reduce => "reduce",
            Code::ReduceScatter => "reduce-scatter",
            Code::AllGather => "all-gather",
            Code::Message => "message",
        };
        let op = self.op.map_or(String::new(), |op| format!(" ({})", op.name()));
        let root = match (self.code, self.root) {
            (_, None) => String::new(),
            (Code::Broadcast, Some(root)) => format!(" from rank {root}"),
            (_, Some(root)) => format!(" to rank {root}"),
        };
        format!("{name}{op} of {} x {}{root}", self.count, self.kind.name())
    }
}

/// The header before the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) call: Call,
    /// The number of the operation; of a message, its number from this rank to the other.
    pub(crate) seq: u64,
    /// The step of the operation.
    pub(crate) step: u8,
    /// Bytes that follow.
    pub(crate) len: usize,
}

/// Bytes of a head.
pub(crate) const HEADER_BYTES: usize = 40;
const MAGIC: u32 = 0x74_68_6c_77;
const NONE: u64 = u64::MAX;

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let op = self.call.op.map_or(0, |op| op as u8);
        let numbers =
            [self.seq, self.call.root.map_or(NONE, |root| root as u64), self.call.count as u64, self.len as u64];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&[self.call.code as u8, self.step, self.call.kind as u8, op]);
        for (to, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The head in these bytes, if they are one.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let number = |k: usize| bytes[8 + 8 * k..][..8].try_into().ok().map(u64::from_le_bytes);
        let size = |k: usize| number(k).and_then(|n| usize::try_from(n).ok());
        if bytes[..4] != MAGIC.to_le_bytes() {
            return None;
        }
        let op = match bytes[7] {
            0 => None,
            op => Some(Op::ALL.into_iter().find(|&known| known as u8 == op)?),
        };
        let call = Call {
            code: Code::ALL.into_iter().find(|&code| code as u8 == bytes[4])?,
            kind: *Kind::ALL.get(usize::from(bytes[6]))?,
            op,
            root: if number(1)? == NONE { None } else { Some(size(1)?) },
            count: size(2)?,
        };
        Some(Self { call, seq: number(0)?, step: bytes[5], len: size(3)? })
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Code, HEADER_BYTES, Header};
    use crate::element::{Kind, Op};

    #[test]
    fn heads_travel() {
        let call = Call { code: Code::Reduce, kind: Kind::Bf16, op: Some(Op::Max), root: Some(3), count: 1 << 40 };
        let head = Header { call, seq: 9, step: 2, len: 77 };
        assert_eq!(Header::decode(&head.encode()), Some(head));
        assert_eq!(call.text(), "reduce (max) of 1099511627776 x bf16 to rank 3");
        let barrier = Header { call: Call { code: Code::Barrier, root: None, op: None, ..call }, ..head };
        assert_eq!(Header::decode(&barrier.encode()), Some(barrier));
        for at in [0, 3, 4, 6, 7] {
            let mut bytes = head.encode();
            bytes[at] = 0xee;
            assert_eq!(Header::decode(&bytes), None, "byte {at}");
        }
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), None);
    }
}
