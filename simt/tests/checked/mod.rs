//! What the checked device finds in kernels with mistakes, and that it is silent without them. The
//! kernels are in the crate `tests/mutants`.

mod cases;
mod device;

use cases::{FAMILIES, Family, Kind};
use testkit::devices::{alone_on, devices};
use thalweg::{Device, DeviceKind, Error};
use thalweg_simt::cpu::{BlockError, Fault, checker::Finding};
use thalweg_simt::host::LaunchError;

/// Runs a mistake on a checked device of its own, and returns what the launcher or the device
/// reports.
fn check(family: &Family, m: u32, seed: u64) -> Option<Result<BlockError, LaunchError>> {
    let device = Device::checked_cpu().unwrap();
    device.reseed(seed);
    run(&device, family, m)
}

fn run(device: &Device, family: &Family, m: u32) -> Option<Result<BlockError, LaunchError>> {
    match device.per_thread(|s| (family.run)(s, m)).unwrap() {
        Ok(()) => None,
        Err(Error::Kernel(error)) => Some(Ok(*error)),
        Err(Error::Launch(error)) => Some(Err(error)),
        Err(other) => panic!("{} {m}: {other}", family.kernel),
    }
}

/// What kernels without `unsafe` say of a coordinate that is outside of what is theirs.
const CHECKS: [&str; 7] = [
    "read element [",
    "wrote element [",
    "updated element [",
    "took element [",
    "made an area of [",
    " of shared memory with ",
    " bytes are left",
];

fn kind(error: &Result<BlockError, LaunchError>) -> Option<Kind> {
    let Ok(error) = error else { return Some(Kind::Refused) };
    Some(match &error.fault {
        Fault::OutOfBounds { .. } => Kind::Bounds,
        Fault::SharedMemory { .. } => Kind::Shared,
        Fault::Diverged { .. } => Kind::Diverged,
        Fault::Panicked { message, .. } if CHECKS.iter().any(|check| message.contains(check)) => Kind::Reported,
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
                wrong.push(format!("{} without a mistake, seed {seed}: {error:?}", family.kernel));
            }
            for (i, (expected, what)) in family.mistakes.iter().enumerate() {
                count += 1;
                let found = check(family, i as u32 + 1, seed);
                if !found.as_ref().and_then(kind).is_some_and(|found| fits(found, *expected)) {
                    let found = match found {
                        None => "nothing".to_owned(),
                        Some(Ok(error)) => error.to_string(),
                        Some(Err(error)) => error.to_string(),
                    };
                    wrong.push(format!("{} {}, seed {seed}: {what} ({expected:?}): {found}", family.kernel, i + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 3 * 60, "{count}");
}

/// What kernels without `unsafe` and their launchers check, every device checks.
#[test]
fn an_ordinary_device_finds_what_kernels_without_unsafe_check() {
    for family in &FAMILIES {
        for (i, (expected, what)) in family.mistakes.iter().enumerate() {
            if let Kind::Reported | Kind::Refused = expected {
                let found = run(&Device::new_cpu().unwrap(), family, i as u32 + 1);
                let found = found.as_ref().map(|found| (kind(found), found));
                assert!(found.is_some_and(|(kind, _)| kind == Some(*expected)), "{} {what}: {found:?}", family.kernel);
            }
        }
    }
}

/// Runs mutants on a GPU, for compute-sanitizer:
/// `MUTANT=3 checked --ignored --exact mutants_on_a_gpu`. `MUTANT=3,8` runs two in one process, for
/// those after which the GPU can still be used, and `MUTANT=list` prints the numbers of all.
#[test]
#[ignore = "it runs kernels with mistakes on a GPU"]
fn mutants_on_a_gpu() {
    let all: Vec<_> = FAMILIES
        .iter()
        .flat_map(|family| {
            let twin = (family, 0, "none".to_owned(), "no mistake");
            let mistakes = family.mistakes.iter().zip(1..);
            std::iter::once(twin).chain(mistakes.map(move |((kind, what), m)| (family, m, format!("{kind:?}"), *what)))
        })
        .collect();
    let wanted = std::env::var("MUTANT").expect("MUTANT is numbers with commas between them, or `list`");
    if wanted == "list" {
        for (i, (family, m, kind, what)) in all.iter().enumerate() {
            println!("mutant {i}\t{} {m}\t{kind}\t{what}", family.kernel);
        }
        return;
    }
    let gpus = devices().iter().filter(|device| device.kind() == DeviceKind::Cuda);
    for &gpu in gpus.take(1) {
        assert!(mutants::has_ptx());
        let _alone = alone_on(gpu);
        for number in wanted.split(',') {
            let (family, m, ..) = all.get(number.parse::<usize>().unwrap()).expect("a number of the list");
            println!("{} {m}: {:?}", family.kernel, gpu.per_thread(|s| (family.run)(s, *m)).unwrap());
        }
    }
}
