//! Timeouts and checks.

use std::env::VarError;
use std::time::Duration;

use crate::error::{Error, Result};

/// How ranks wait for one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// How long an operation may take from its turn on the stream on. After that, and at most a
    /// quarter of it in which the ranks find out who holds them up, every rank gets
    /// [`Failure::Timeout`](crate::Failure::Timeout).
    pub timeout: Duration,
    /// How long ranks wait for one another at the start.
    pub join: Duration,
    /// Whether the ranks compare each collective operation through the store before they enqueue it.
    /// Then the host waits for all ranks at each call. Without this the ranks compare as well, when
    /// the operation has its turn.
    pub compare: bool,
}

impl Default for Options {
    /// 10 minutes for an operation, 5 minutes for the start, no comparison before calls.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(600), join: Duration::from_secs(300), compare: false }
    }
}

impl Options {
    /// The default, changed by the environment: `THALWEG_COLLECTIVE_TIMEOUT` and
    /// `THALWEG_COLLECTIVE_JOIN` in seconds, `THALWEG_COLLECTIVE_COMPARE=1`.
    ///
    /// # Errors
    /// A variable is no positive number.
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
        Ok(options)
    }
}
