//! The facts that a rank that can use NCCL tells the others, and whether the ranks may share a GPU.

use std::ffi::c_int;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use super::library::{UniqueId, version};
use crate::codec::{Fields, Parse};
use crate::error::{Error, Result};

/// The variable with which NCCL accepts several ranks on one GPU.
pub(super) const VARIABLE: &str = "NCCL_MULTI_RANK_GPU_ENABLE";
/// The oldest version that knows it.
const NEEDED: c_int = 23_000;

/// The facts that a rank tells.
#[derive(Clone)]
pub(super) struct NcclHandshake {
    pub(super) version: c_int,
    pub(super) id: UniqueId,
    pub(super) gpu: [u8; 16],
    /// The same in all ranks of a process only.
    pub(super) process: u64,
    /// Whether the rank accepts that ranks share a GPU.
    pub(super) shares: bool,
}

/// Whether the environment accepts that ranks share a GPU.
pub(crate) fn shares() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == "1")
}

/// A number of this process. Process ids are not enough: each container counts its own.
pub(super) fn process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

impl NcclHandshake {
    pub(super) fn encode(&self) -> Vec<u8> {
        let fields = Fields::default().number(u64::from(self.version.cast_unsigned())).bytes(&self.id.0);
        fields.bytes(&self.gpu).number(self.process).byte(u8::from(self.shares)).0
    }

    /// Reads the bytes that [`encode`](Self::encode) wrote.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut p = Parse(bytes);
        let handshake = Self {
            version: p.number()?.try_into().ok()?,
            id: UniqueId(p.bytes()?.try_into().ok()?),
            gpu: p.bytes()?.try_into().ok()?,
            process: p.number()?,
            shares: p.byte()? == 1,
        };
        p.0.is_empty().then_some(handshake)
    }
}

/// Says whether ranks share a GPU. All ranks come to the same answer, because all have the same
/// offers.
///
/// # Errors
/// Ranks share a GPU, and they may not: see [`Error::SharedDevice`].
pub(super) fn share(handshakes: &[NcclHandshake]) -> Result<bool> {
    let pairs = || (0..handshakes.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let shared: Vec<_> = pairs().filter(|&(a, b)| handshakes[a].gpu == handshakes[b].gpu).collect();
    let Some(&(a, b)) = shared.first() else { return Ok(false) };
    let refused = |(a, b): (usize, usize), hint: String| {
        Err(Error::SharedDevice { device: format!("the same GPU (ranks {a} and {b})"), hint })
    };
    if let Some(&pair) = shared.iter().find(|(a, b)| handshakes[*a].process == handshakes[*b].process) {
        return refused(pair, THREADS.to_owned());
    }
    if let Some(old) = handshakes.iter().map(|handshake| handshake.version).find(|&version| version < NEEDED) {
        let hint = format!(". NCCL {} takes one rank a GPU; {VARIABLE}=1 needs NCCL 2.30", version(old));
        return refused((a, b), hint);
    }
    match handshakes.iter().position(|handshake| !handshake.shares) {
        None => Ok(true),
        Some(rank) => refused(
            (a, b),
            format!(". To try several ranks on one GPU, which is slow, set {VARIABLE}=1 (rank {rank} has not)"),
        ),
    }
}

/// The reason why ranks that are threads of one process cannot share a GPU.
pub(crate) const THREADS: &str = ". Only ranks that are processes can try one GPU together, with NCCL 2.30 and \
    NCCL_MULTI_RANK_GPU_ENABLE=1: a host call of a thread may wait for the other rank's operation on the same GPU";

#[cfg(test)]
mod tests {
    use super::{NEEDED, NcclHandshake, THREADS, VARIABLE, process, share};
    use crate::error::Error;
    use crate::nccl::library::UniqueId;

    /// Ranks with these GPUs, each a process, which may share.
    fn handshakes(gpus: &[u8]) -> Vec<NcclHandshake> {
        let handshake = |(process, &gpu): (u64, &u8)| NcclHandshake {
            version: NEEDED,
            id: UniqueId([7; 128]),
            gpu: [gpu; 16],
            process,
            shares: true,
        };
        (0..).zip(gpus).map(handshake).collect()
    }

    fn refused(handshakes: &[NcclHandshake]) -> String {
        match share(handshakes) {
            Err(error @ Error::SharedDevice { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_gpu_each_needs_nothing() {
        let mut each = handshakes(&[1, 2, 3]);
        each.iter_mut()
            .for_each(|handshake| (handshake.version, handshake.process, handshake.shares) = (21_800, 5, false));
        assert!(!share(&each).unwrap());
    }

    #[test]
    fn processes_share_a_gpu_if_all_say_so_and_nccl_can() {
        let all = handshakes(&[1, 2, 1, 2]);
        assert!(share(&all).unwrap());

        let mut one = all.clone();
        one[3].shares = false;
        let text = refused(&one);
        assert!(text.starts_with("two ranks have the same GPU (ranks 0 and 2): give each rank its own"), "{text}");
        assert!(text.ends_with(&format!("set {VARIABLE}=1 (rank 3 has not)")), "{text}");

        let mut old = all.clone();
        old.iter_mut().for_each(|handshake| handshake.version = 22_809);
        assert!(refused(&old).contains("NCCL 2.28.9 takes one rank a GPU"), "{}", refused(&old));

        // The pair of one process is named, not the first pair.
        let mut threads = all.clone();
        threads[3].process = threads[1].process;
        let text = refused(&threads);
        assert!(text.contains("ranks 1 and 3") && text.ends_with(THREADS), "{text}");
        // Threads with a GPU each beside processes that share one.
        let mut beside = all;
        beside[1].process = beside[0].process;
        assert!(share(&beside).unwrap());
    }

    #[test]
    fn offers_travel() {
        assert_eq!(process(), process());
        let mut handshake = handshakes(&[9]).remove(0);
        handshake.id.0[127] = 1;
        let bytes = handshake.encode();
        let read = NcclHandshake::decode(&bytes).unwrap();
        assert_eq!(read.encode(), bytes);
        assert_eq!((read.version, read.gpu, read.shares, read.id.0), (NEEDED, [9; 16], true, handshake.id.0));
        for n in 0..bytes.len() {
            assert!(NcclHandshake::decode(&bytes[..n]).is_none(), "cut to {n} bytes");
        }
        assert!(NcclHandshake::decode(&[&bytes[..], b"x"].concat()).is_none());
    }
}
