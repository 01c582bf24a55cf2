//! How a program fails, and the checks that find it out.

use std::fmt;

use thalweg::{Error, LaunchError, RangeError, Returned};

/// Why a program failed: an unexpected error, or contents that differ.
#[derive(Debug)]
pub(crate) enum Failure {
    Error(Error),
    Wrong(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}
impl<T> From<Returned<T>> for Failure {
    fn from(returned: Returned<T>) -> Self {
        Self::Error(returned.error)
    }
}
impl From<RangeError> for Failure {
    fn from(error: RangeError) -> Self {
        Self::Error(error.into())
    }
}
impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        Self::Error(error.into())
    }
}
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Checks that the contents are the expected ones.
pub(crate) fn equal(what: &str, got: &[u32], want: &[u32]) -> Outcome {
    if got == want {
        return Ok(());
    }
    let i = got.iter().zip(want).take_while(|(g, w)| g == w).count();
    let at = |v: &[u32]| v.get(i).map_or("nothing".into(), |v| format!("{v:#x}"));
    Err(Failure::Wrong(format!("{what}: element {i} of {} is {}, not {}", want.len(), at(got), at(want))))
}

pub(crate) fn claim(what: &str, holds: bool) -> Outcome {
    if holds { Ok(()) } else { Err(Failure::Wrong(what.into())) }
}
