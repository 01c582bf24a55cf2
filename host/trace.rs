//! The log of calls, which finds missing waits: what it is told from outside, and what reads it.
//!
//! With `THALWEG_TRACE=FILE`, a process writes each call that orders work or touches memory to a
//! file, and `thalweg trace check FILE` looks for two accesses that nothing orders. With
//! `THALWEG_TRACE=check` the process looks itself, and panics at the second access. Programs
//! without `unsafe` have no such accesses. `docs/trace.md` has an example.

use std::panic::Location;

use crate::driver::trace::{self, Access, Kind, Row};
pub use crate::driver::trace::{Rejected, Summary, check_log};
use crate::resource::{LeafKind, Resource};
use crate::stream::Stream;

fn accesses(reads: &[(u64, usize)], writes: &[(u64, usize)]) -> Vec<Access> {
    let all = |writes: bool, list: &[(u64, usize)]| {
        list.iter().map(|&(addr, bytes)| Access::new(writes, addr, bytes as u64)).collect::<Vec<_>>()
    };
    [all(false, reads), all(true, writes)].concat()
}

#[cold]
fn host(what: &'static str, accesses: Vec<Access>, at: Option<&'static Location<'static>>) {
    if !accesses.is_empty() {
        trace::put(&Row { at: trace::place(at), ..Row::new(Kind::Host { accesses }, what) });
    }
}

/// Tells the log that the host accesses memory through raw pointers: the address and the bytes of
/// what it reads, and of what it writes. Without a log it does nothing.
///
/// # Panics
/// `THALWEG_TRACE=check` is set, and work of a stream may access the memory at the same time.
#[track_caller]
pub fn host_access(what: &'static str, reads: &[(u64, usize)], writes: &[(u64, usize)]) {
    if trace::on() {
        host(what, accesses(reads, writes), Some(Location::caller()));
    }
}

/// Notes that the host may access the page-locked parts of an idle resource, which `what` gave it.
/// They may be written, but for those that are shared.
#[inline]
#[track_caller]
pub(crate) fn idle<R: Resource>(what: &'static str, resource: &R) {
    if trace::on() {
        let mut parts = Vec::new();
        resource.__leaves(&mut |leaf| {
            if leaf.kind == LeafKind::Pinned && !leaf.shared {
                parts.push(Access::write(leaf.addr, leaf.bytes as u64));
            }
        });
        host(what, parts, Some(Location::caller()));
    }
}

/// Notes that the host may read a shared resource.
#[inline]
#[track_caller]
pub(crate) fn read<R: Resource>(what: &'static str, resource: &R) {
    if trace::on() {
        let mut parts = Vec::new();
        resource.__leaves(&mut |leaf| parts.push(Access::read(leaf.addr, leaf.bytes as u64)));
        host(what, parts, Some(Location::caller()));
    }
}

/// Notes device memory that other code allocated.
#[inline]
#[track_caller]
pub(crate) fn adopted(addr: u64, bytes: usize) {
    if trace::on() && bytes > 0 {
        let kind = Kind::Adopt { addr, bytes: bytes as u64 };
        trace::put(&Row { at: trace::place(Some(Location::caller())), ..Row::new(kind, "") });
    }
}

impl<S> Stream<S> {
    /// Tells the log of `THALWEG_TRACE` about work that other code has just enqueued on this
    /// stream's [`raw`](Self::raw) handle: the address and the bytes of what it reads, and of what
    /// it writes. Without a log it does nothing.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let work = Device::best()?.stream::<Work>()?;
    /// let mut x = work.alloc_zeroed::<f32>(100)?;
    /// // ... a call of a library with `work.raw()` and `x.device_ptr()` ...
    /// work.trace_work("library_scale", &[], &[(x.device_ptr(), 100 * size_of::<f32>())]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Panics
    /// `THALWEG_TRACE=check` is set, and nothing orders the work after another access to the
    /// memory.
    #[inline]
    #[track_caller]
    pub fn trace_work(self, what: &'static str, reads: &[(u64, usize)], writes: &[(u64, usize)]) {
        if trace::on() {
            self.handle().worked(what, accesses(reads, writes));
        }
    }
}
