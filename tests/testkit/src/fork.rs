//! Tests of forked children. Such a test has a process of its own
//! ([`own_process`](crate::process::own_process)), and forks there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Forks. Returns `None` in the child, which then calls [`leave`].
///
/// # Safety
/// [`own_process`](crate::process::own_process) has said so. What the child does copes with locks
/// that other threads may hold.
pub unsafe fn fork() -> Option<Child> {
    // SAFETY: The caller says that the child can run what it does.
    let child = unsafe { libc::fork() };
    (child != 0).then_some(Child(child))
}

/// Ends the child, and tells the parent whether `check` is true.
pub fn leave(check: impl FnOnce() -> bool) -> ! {
    // A panic must not reach the harness, which would run the parent's part in the child.
    let held = catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
    // SAFETY: `_exit` may be called at any time. It ends the child without running exit handlers,
    // which belong to the parent.
    unsafe { libc::_exit(if held { 0 } else { 1 }) }
}

/// A child of this process.
pub struct Child(i32);

impl Child {
    /// Checks that the check in the child is true, and that the child ends within 20 seconds.
    #[track_caller]
    pub fn ends_well(self, what: &str) {
        let (begin, mut status, mut ended) = (Instant::now(), -1, 0);
        while ended == 0 && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
            // SAFETY: It is a child of this process that nobody has waited for, and `status` is a
            // local integer that the call may write.
            ended = unsafe { libc::waitpid(self.0, &mut status, libc::WNOHANG) };
        }
        if ended == 0 {
            // SAFETY: The child has not been waited for, so its number belongs to no other process.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
            panic!("the child hangs: {what}");
        }
        assert_eq!((ended, status), (self.0, 0), "{what}");
    }
}
