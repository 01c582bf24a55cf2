//! What the checked device finds in kernels with mistakes, and that it is silent without them. The
//! kernels are in the crate `tests/mutants`.

#[path = "../support/mod.rs"]
mod support;

mod cases;
mod device;

use cases::{FAMILIES, Family, Kind};
use support::devices::{alone_on, devices};
use thalweg::{Device, DeviceKind, Error};
use thalweg_simt::cpu::{BlockError, Fault, checker::Finding};

/// Runs a mistake on a checked device of its own, and returns what the device reports.
fn check(family: &Family, m: u32, seed: u64) -> Option<BlockError> {
    let device = Device::checked_cpu().unwrap();
    device.reseed(seed);
    match device.per_thread(|s| (family.run)(s, m)).unwrap() {
        Ok(()) => None,
        Err(Error::Access(error)) => Some(*error),
        Err(Error::Kernel(text)) if text.contains("its threads diverged") => {
            assert!(text.contains("tests/mutants/src/"), "{text}");
            Some(BlockError {
                kernel: family.kernel,
                block: [0; 3],
                fault: Fault::Diverged { threads: text },
                seed: None,
            })
        }
        Err(other) => panic!("{} {m}: {other}", family.kernel),
    }
}

fn kind(error: &BlockError) -> Option<Kind> {
    Some(match &error.fault {
        Fault::OutOfBounds { .. } => Kind::Bounds,
        Fault::SharedMemory { .. } => Kind::Shared,
        Fault::Diverged { .. } => Kind::Diverged,
        Fault::Found { finding, .. } => match finding {
            Finding::Misaligned { .. } => Kind::Misaligned,
            Finding::Unwritten { .. } => Kind::Unwritten,
            Finding::Race { .. } => Kind::Race,
            _ => return None,
        },
        _ => return None,
    })
}

/// Whether a finding is one of the mistake. Some mistakes have two effects, and the order of the
/// threads decides which comes first: without a barrier, a thread may load what is not written yet,
/// and a thread past the border may store to another row before one leaves the buffer.
fn fits(found: Kind, expected: Kind) -> bool {
    use Kind::{Bounds, Diverged, Race, Unwritten};
    let second = match expected {
        Race => [Unwritten, Bounds],
        Diverged => [Unwritten, Race],
        other => [other, Race],
    };
    found == expected || second.contains(&found)
}

#[test]
fn every_mistake_is_found_under_each_seed_and_its_twin_is_silent() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for family in &FAMILIES {
        for seed in 0..3 {
            if let Some(error) = check(family, 0, seed) {
                wrong.push(format!("{} without a mistake, seed {seed}: {error}", family.kernel));
            }
            for (i, (expected, what)) in family.mistakes.iter().enumerate() {
                count += 1;
                let found = check(family, i as u32 + 1, seed);
                if !found.as_ref().and_then(kind).is_some_and(|found| fits(found, *expected)) {
                    let found = found.map_or("nothing".to_owned(), |error| error.to_string());
                    wrong.push(format!("{} {}, seed {seed}: {what} ({expected:?}): {found}", family.kernel, i + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 3 * 60, "{count}");
}

/// Runs one mutant on a GPU, for compute-sanitizer: `MUTANT=3 checked --ignored --exact
/// one_mutant_on_a_gpu`. `MUTANT=list` prints the numbers of all.
#[test]
#[ignore = "it runs a kernel with a mistake on a GPU"]
fn one_mutant_on_a_gpu() {
    let all = FAMILIES.iter().flat_map(|family| {
        let twin = (family, 0, "none".to_owned(), "no mistake");
        let mistakes = family.mistakes.iter().zip(1..);
        std::iter::once(twin).chain(mistakes.map(move |((kind, what), m)| (family, m, format!("{kind:?}"), *what)))
    });
    let wanted = std::env::var("MUTANT").expect("MUTANT is a number or `list`");
    if wanted == "list" {
        for (i, (family, m, kind, what)) in all.enumerate() {
            println!("mutant {i}\t{} {m}\t{kind}\t{what}", family.kernel);
        }
        return;
    }
    let (family, m, ..) = all.into_iter().nth(wanted.parse().unwrap()).expect("a number of the list");
    let gpus = devices().iter().filter(|device| device.kind() == DeviceKind::Cuda);
    for &gpu in gpus.take(1) {
        assert!(mutants::has_ptx());
        let _alone = alone_on(gpu);
        println!("{} {m}: {:?}", family.kernel, gpu.per_thread(|s| (family.run)(s, m)).unwrap());
    }
}
