//! A test of loaders in a forked child.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use thalweg::Error;
use thalweg_loader::{Loader, Upload};

use crate::support::devices::devices;
use crate::{check, options, source};

/// A forked child has none of the loader's threads. So a drop that joins them would never return,
/// and neither would a `next` that waits for them. The test runs itself again in a new process and
/// forks there.
#[test]
fn a_loader_in_a_forked_child_is_left_alone() {
    const MARK: &str = "THALWEG_TEST_FORKS_A_LOADER";
    if std::env::var_os(MARK).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fork::a_loader_in_a_forked_child_is_left_alone", "--test-threads=1", "--nocapture"])
            .env(MARK, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    for &device in devices() {
        for upload in [Upload::Streams, Upload::Sequential] {
            let mut loader = Loader::new(device, source(40), options(4, 2, upload)).unwrap();
            assert_eq!(check(device, loader.next().unwrap().unwrap()), [0, 1, 2, 3]);
            let held = loader.next().unwrap().unwrap();
            // SAFETY: This process runs one test (`--exact`, `--test-threads=1`). The child uses
            // the loader, which must cope, and the C library, which prepares its locks for a fork.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let run = move || {
                    let forked = matches!(loader.next(), Some(Err(Error::Forked))) && loader.next().is_none();
                    drop((loader, held));
                    forked
                };
                // A panic must not reach the harness, which would run the parent's part in the child.
                let forked = catch_unwind(AssertUnwindSafe(run)).unwrap_or(false);
                // SAFETY: `_exit` may be called at any time. It ends the child without running exit
                // handlers, which belong to the parent.
                unsafe { libc::_exit(if forked { 0 } else { 1 }) };
            }
            let (begin, mut status, mut ended) = (Instant::now(), -1, 0);
            while ended == 0 && begin.elapsed() < Duration::from_secs(20) {
                thread::sleep(Duration::from_millis(5));
                // SAFETY: `child` is a child of this process that nobody has waited for, and
                // `status` is a local integer that the call may write.
                ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
            }
            if ended == 0 {
                // SAFETY: The child has not been waited for, so its number belongs to no other
                // process.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the child hangs on {device}, {upload:?}");
            }
            assert_eq!((ended, status), (child, 0), "{device}, {upload:?}");
            drop(held);
            let rest: Vec<_> = loader.flat_map(|batch| check(device, batch.unwrap())).collect();
            assert_eq!(rest, (8..40).collect::<Vec<_>>(), "the parent goes on");
        }
    }
}
