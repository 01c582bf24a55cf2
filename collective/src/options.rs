//! Timeouts and checks.

use std::env::VarError;
use std::time::Duration;

use crate::error::{Error, Result};

/// Who carries out the operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// NCCL if every rank has a GPU and can load it; otherwise the host.
    #[default]
    Auto,
    /// The host: bytes go through page-locked memory, and over TCP between processes. Reductions are
    /// in the order of the ranks.
    Host,
    /// NCCL. It is an error if a rank has no GPU or cannot load it.
    Nccl,
}

/// How ranks wait for one another, and who carries out their operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// How long an operation may take from its turn on the stream on; over NCCL, how long the stream may
    /// take for eight operations and what is between them. After that, and at most a
    /// quarter of it in which the ranks find out who holds them up, every rank gets
    /// [`Failure::Timeout`](crate::Failure::Timeout).
    pub timeout: Duration,
    /// How long ranks wait for one another at the start.
    pub join: Duration,
    /// Whether the ranks compare each collective operation through the store before they enqueue it.
    /// Then the host waits for all ranks at each call. Without this the ranks compare as well, when
    /// the operation has its turn.
    pub compare: bool,
    /// Who carries out the operations.
    pub backend: Backend,
}

impl Default for Options {
    /// 10 minutes for an operation, 5 minutes for the start, no comparison before calls, NCCL
    /// where all ranks have it.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            join: Duration::from_secs(300),
            compare: false,
            backend: Backend::Auto,
        }
    }
}

impl Options {
    /// The default, changed by the environment: `THALWEG_COLLECTIVE_TIMEOUT` and
    /// `THALWEG_COLLECTIVE_JOIN` in seconds, `THALWEG_COLLECTIVE_COMPARE=1`, and
    /// `THALWEG_COLLECTIVE_BACKEND`: `auto`, `host` or `nccl`.
    ///
    /// # Errors
    /// A variable is no positive number, or no backend.
    pub fn from_env() -> Result<Self> {
        let mut options = Self::default();
        for (name, to) in
            [("THALWEG_COLLECTIVE_TIMEOUT", &mut options.timeout), ("THALWEG_COLLECTIVE_JOIN", &mut options.join)]
        {
            let value = match std::env::var(name) {
                Err(VarError::NotPresent) => continue,
                Ok(value) => value,
                Err(VarError::NotUnicode(value)) => value.to_string_lossy().into_owned(),
            };
            let seconds = value.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()).filter(|s| !s.is_zero());
            let wrong = || Error::Environment { name, given: format!("`{value}`"), expected: "a number of seconds" };
            *to = seconds.ok_or_else(wrong)?;
        }
        options.compare = std::env::var_os("THALWEG_COLLECTIVE_COMPARE").is_some_and(|value| value == "1");
        options.backend = match std::env::var("THALWEG_COLLECTIVE_BACKEND").as_deref() {
            Err(VarError::NotPresent) | Ok("" | "auto") => Backend::Auto,
            Ok("host") => Backend::Host,
            Ok("nccl") => Backend::Nccl,
            given => {
                let given = given.map_or_else(ToString::to_string, |given| format!("`{given}`"));
                let (name, expected) = ("THALWEG_COLLECTIVE_BACKEND", "`auto`, `host` or `nccl`");
                return Err(Error::Environment { name, given, expected });
            }
        };
        Ok(options)
    }
}
