//! A test of loaders in a forked child.

use testkit::devices::devices;
use testkit::fork::{fork, leave};
use testkit::process::own_process;
use thalweg_loader::{Error, Loader, UploadMode};

use crate::{check, options, source};

/// A forked child has none of the loader's threads. So a drop that joins them would never return,
/// and neither would a `next` that waits for them. The test runs itself again in a new process and
/// forks there.
#[test]
fn a_loader_in_a_forked_child_is_left_alone() {
    if !own_process(concat!(module_path!(), "::a_loader_in_a_forked_child_is_left_alone")) {
        return;
    }
    for &device in devices() {
        for upload in [UploadMode::Streams, UploadMode::Sequential] {
            let mut loader = Loader::new(device, source(40), options(4, 2, upload)).unwrap();
            assert_eq!(check(device, loader.next().unwrap().unwrap()), [0, 1, 2, 3]);
            let held = loader.next().unwrap().unwrap();
            // SAFETY: The child uses the loader, which must cope, and the C library, which prepares
            // its locks for a fork.
            let Some(child) = (unsafe { fork() }) else {
                leave(move || {
                    let forked = matches!(loader.next(), Some(Err(Error::Device(thalweg::Error::Forked))))
                        && loader.next().is_none();
                    drop((loader, held));
                    forked
                })
            };
            child.ends_well(&format!("{device}, {upload:?}"));
            drop(held);
            let rest: Vec<_> = loader.flat_map(|batch| check(device, batch.unwrap())).collect();
            assert_eq!(rest, (8..40).collect::<Vec<_>>(), "the parent goes on");
        }
    }
}
