//! The end of a thread on the CPU device after an access which it must not make.

use std::panic::{self, Location};

/// The panic payload of such an access.
pub(crate) struct Violation {
    /// The line of the kernel that made it.
    pub(crate) location: &'static Location<'static>,
    pub(crate) what: Wrong,
}

/// The defect of an access.
pub(crate) enum Wrong {
    /// It leaves shared memory or is misaligned there.
    Shared(String),
    /// It is past the end of a buffer with this address and this number of elements.
    Outside { element: usize, address: usize, len: usize },
}

/// Unwinds out of the body because of an access to shared memory. It prints nothing to standard
/// error, because the launch reports the fault.
#[cold]
#[track_caller]
pub(crate) fn violation(access: String) -> ! {
    panic::resume_unwind(Box::new(Violation { location: Location::caller(), what: Wrong::Shared(access) }))
}

/// Unwinds out of the body because it uses element `element` of a buffer with `len` elements, which
/// starts at `address`.
#[cold]
#[inline(never)]
#[track_caller]
pub(crate) fn outside(element: usize, address: usize, len: usize) -> ! {
    let location = Location::caller();
    panic::resume_unwind(Box::new(Violation { location, what: Wrong::Outside { element, address, len } }))
}
