//! The options of a world.

use std::env::VarError;
use std::time::Duration;

use crate::backend::Backend;
use crate::error::{Error, Result};

/// The least and the most CTAs of an operation: 1 to 64, and `least` is at most `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtaRange {
    /// The least.
    pub least: u32,
    /// The most.
    pub most: u32,
}

/// The options of a world: timeouts, and the backend that carries out its operations.
///
/// ```
/// use thalweg_collective::{Backend, WorldOptions};
///
/// let options = WorldOptions::default().with_backend(Backend::Host).with_check_consistency(true);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, thalweg::__Setters)]
#[non_exhaustive]
pub struct WorldOptions {
    /// The time that an operation may take from its turn on the stream on; over NCCL, the time that
    /// the stream may take for eight operations and what is between them. After that, and at most a
    /// quarter of it in which the ranks find out who holds them up, every rank gets
    /// [`Failure::Timeout`](crate::Failure::Timeout).
    pub timeout: Duration,
    /// The time that ranks wait for one another at the start.
    pub connect_timeout: Duration,
    /// Whether the ranks compare each collective operation through the store before they enqueue
    /// it. Then the host waits for all ranks at each call. Without this the ranks compare as well,
    /// when the operation has its turn.
    pub check_consistency: bool,
    /// The backend that carries out the operations.
    pub backend: Backend,
    /// The number of multiprocessors (CTAs) that an operation of NCCL takes from the kernels beside
    /// it. `None` leaves the choice to NCCL. Of a sum by [peer
    /// copies](Backend::Peer) `most` is the number of blocks, 32 without it.
    pub ctas: Option<CtaRange>,
    /// The bytes of a bucket that a sum of all ranks by [peer copies](Backend::Peer) moves at once:
    /// one piece is copied while the one before is summed. Each rank has rooms for 16 pieces,
    /// without its own share of them. It is the same on all ranks.
    pub piece: usize,
    /// Whether NCCL's reductions of buckets are captured on their second pass, so that each is then
    /// one launch of a graph. It costs the host 5 us instead of 60, and the device 5 us more. It
    /// applies where all ranks are on one machine.
    pub graphs: bool,
}

impl Default for WorldOptions {
    /// 10 minutes for an operation, 5 minutes for the start, no comparison before calls, NCCL
    /// where all ranks have it, and pieces of 8 MiB.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(300),
            check_consistency: false,
            backend: Backend::Auto,
            ctas: None,
            piece: 8 << 20,
            graphs: false,
        }
    }
}

impl WorldOptions {
    /// The default, changed by the environment: `THALWEG_COLLECTIVE_TIMEOUT` and
    /// `THALWEG_COLLECTIVE_JOIN` in seconds, `THALWEG_COLLECTIVE_COMPARE=1`, and
    /// `THALWEG_COLLECTIVE_BACKEND`: `auto`, `host`, `peer` or `nccl`; and
    /// `THALWEG_COLLECTIVE_CTAS`: the least and the most CTAs, as in `4-16`, or one number for
    /// both; and `THALWEG_COLLECTIVE_PIECE` in KiB, and `THALWEG_COLLECTIVE_GRAPHS=1`.
    ///
    /// # Errors
    /// A variable is no positive number, or no backend.
    pub fn from_env() -> Result<Self> {
        let mut options = Self::default();
        for (name, to) in [
            ("THALWEG_COLLECTIVE_TIMEOUT", &mut options.timeout),
            ("THALWEG_COLLECTIVE_JOIN", &mut options.connect_timeout),
        ] {
            let value = match std::env::var(name) {
                Err(VarError::NotPresent) => continue,
                Ok(value) => value,
                Err(VarError::NotUnicode(value)) => value.to_string_lossy().into_owned(),
            };
            let seconds = value.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()).filter(|s| !s.is_zero());
            let wrong = || Error::Environment { name, given: format!("`{value}`"), expected: "a number of seconds" };
            *to = seconds.ok_or_else(wrong)?;
        }
        options.check_consistency = std::env::var_os("THALWEG_COLLECTIVE_COMPARE").is_some_and(|value| value == "1");
        options.backend = match std::env::var("THALWEG_COLLECTIVE_BACKEND").as_deref() {
            Err(VarError::NotPresent) | Ok("" | "auto") => Backend::Auto,
            Ok("host") => Backend::Host,
            Ok("peer") => Backend::Peer,
            Ok("nccl") => Backend::Nccl,
            given => {
                let given = given.map_or_else(ToString::to_string, |given| format!("`{given}`"));
                let (name, expected) = ("THALWEG_COLLECTIVE_BACKEND", "`auto`, `host`, `peer` or `nccl`");
                return Err(Error::Environment { name, given, expected });
            }
        };
        if let Ok(given) = std::env::var("THALWEG_COLLECTIVE_PIECE") {
            let kib = given.parse::<usize>().ok().filter(|kib| (1..=1 << 20).contains(kib));
            let (name, expected) = ("THALWEG_COLLECTIVE_PIECE", "KiB, from 1 to 1048576");
            let wrong = || Error::Environment { name, given: format!("`{given}`"), expected };
            options.piece = kib.ok_or_else(wrong)? << 10;
        }
        options.graphs = std::env::var_os("THALWEG_COLLECTIVE_GRAPHS").is_some_and(|value| value == "1");
        if let Ok(given) = std::env::var("THALWEG_COLLECTIVE_CTAS") {
            let (least, most) = given.split_once('-').unwrap_or((&given, &given));
            let ctas = [least, most].map(|n| n.trim().parse::<u32>().ok().filter(|n| (1..=64).contains(n)));
            let [Some(least), Some(most)] = ctas else {
                let (name, expected) = ("THALWEG_COLLECTIVE_CTAS", "`least-most` with numbers from 1 to 64");
                return Err(Error::Environment { name, given: format!("`{given}`"), expected });
            };
            options.ctas = Some(CtaRange { least, most });
        }
        Ok(options)
    }
}
