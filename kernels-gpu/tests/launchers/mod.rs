//! Every public launcher of `thalweg_kernels` with any numbers in its tables and buffers: on the
//! checked device no launch reports a race, an access outside its buffers, or a load of what nobody
//! has written. A launcher may refuse a launch.
//!
//! Each test draws its cases from fixed seeds, prints how many there were of each launcher, and
//! fails if a kernel of the family was never launched. `THALWEG_CASES` sets the number of cases of
//! each launcher. `LAUNCHER="jpeg::colors"` runs those of one launcher, and
//! `LAUNCHER="jpeg::colors 17"` a single case.
//!
//! `on_gpus` runs the same launches on each GPU, where compute-sanitizer sees them:
//! `compute-sanitizer --tool memcheck launchers --exact on_gpus`.

mod jpeg;
mod processor;
mod rest;
mod train;
mod trial;
mod vision;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use testkit::devices::{alone_on, devices, report};
use thalweg::{Device, DeviceKind, Error, Result};
use trial::{Launched, Trial};

/// A public launcher, and a function that draws arguments and launches it.
pub(crate) struct Launcher {
    name: &'static str,
    cases: u32,
    run: fn(&Trial<'_, '_>) -> Result<()>,
}

/// A family of kernels.
struct Family {
    name: &'static str,
    launchers: &'static [Launcher],
    /// The text of its module, which says what is public, and its PTX, which has all kernels.
    module: &'static str,
    ptx: &'static str,
}

macro_rules! family {
    ($name:literal $launchers:expr) => {
        Family {
            name: $name,
            launchers: $launchers,
            module: include_str!(concat!("../../src/", $name, "/mod.rs")),
            ptx: include_str!(concat!("../../ptx/", $name, ".ptx")),
        }
    };
}

const FAMILIES: [Family; 7] = [
    family!("augment" rest::AUGMENT),
    family!("collective" rest::COLLECTIVE),
    family!("jpeg" jpeg::JPEG),
    family!("linear" rest::LINEAR),
    family!("processor" processor::PROCESSOR),
    family!("train" train::TRAIN),
    family!("vision" vision::VISION),
];

/// Public functions that launch nothing.
const OF_THE_HOST: [&str; 5] =
    ["linear::check", "linear::scratch_len", "vision::balancer_weights", "vision::gains", "vision::projection"];

/// The seed of a case. Launchers get different ones.
fn seed(name: &str, case: u32) -> u64 {
    name.bytes().fold(u64::from(case) << 32, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()))
}

/// What became of a case.
enum Outcome {
    Ran,
    Refused,
}

fn run(device: Device, family: &Family, launcher: &Launcher, case: u32, launched: &Launched) -> Result<Outcome> {
    device.reseed(u64::from(case));
    let name = format!("{}::{}", family.name, launcher.name);
    let outcome = device.per_thread(|stream| {
        let outcome = (launcher.run)(&Trial::new(stream, launched, seed(&name, case), case));
        // A launcher that launches twice may refuse the second launch.
        stream.synchronize()?;
        outcome
    })?;
    match outcome {
        Ok(()) => Ok(Outcome::Ran),
        Err(Error::Launch(_)) => Ok(Outcome::Refused),
        Err(error) => Err(error),
    }
}

/// The only launcher to run, if the environment names one, and its only case.
fn wanted() -> Option<(String, Option<u32>)> {
    let text = std::env::var("LAUNCHER").ok()?;
    let Some((name, case)) = text.split_once(' ') else { return Some((text, None)) };
    Some((name.to_owned(), Some(case.parse().expect("LAUNCHER is a name and perhaps a number"))))
}

/// Runs all cases of a family. `open` gives a device, and another one after that has failed.
/// Returns a table and what failed.
fn all(family: &Family, open: impl Fn() -> Device) -> (String, Vec<String>) {
    let (wanted, launched) = (wanted(), Launched::default());
    let (mut table, mut failures) = (String::new(), Vec::new());
    let mut device = open();
    for launcher in family.launchers {
        let name = format!("{}::{}", family.name, launcher.name);
        if wanted.as_ref().is_some_and(|(only, _)| *only != name) {
            continue;
        }
        let start = std::time::Instant::now();
        let (mut ran, mut refused, mut failed) = (0, 0, 0);
        for case in 0..testkit::cases(launcher.cases).cases {
            if wanted.as_ref().is_some_and(|(_, number)| number.is_some_and(|number| number != case)) {
                continue;
            }
            match run(device, family, launcher, case, &launched) {
                Ok(Outcome::Ran) => ran += 1,
                Ok(Outcome::Refused) => refused += 1,
                Err(error) => {
                    failed += 1;
                    // The first ones say enough.
                    if failed <= 3 {
                        failures.push(format!("LAUNCHER=\"{name} {case}\": {error}"));
                    }
                    device = open();
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let _ = writeln!(table, "{name:<32} {ran:>5} ran {refused:>4} refused {failed:>4} failed {seconds:>7.1} s");
        if wanted.is_none() && ran == 0 {
            failures.push(format!("{name}: no case was launched"));
        }
    }
    let launched = launched.borrow();
    let kernels = family.ptx.lines().filter_map(|line| line.strip_prefix("// entry: ")?.split("__").next());
    for kernel in kernels.filter(|kernel| wanted.is_none() && !launched.contains_key(kernel)) {
        failures.push(format!("{}: no case launched the kernel `{kernel}`", family.name));
    }
    (table, failures)
}

/// The ordinary device runs other bodies of some kernels, which may not panic.
fn on_the_cpu(name: &str) {
    let family = FAMILIES.iter().find(|family| family.name == name).expect("there is such a family");
    let (table, failures) = all(family, || Device::checked_cpu().expect("there is always a CPU"));
    report(&table);
    // What this device reports may end the process on the other one.
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let (_, failures) = all(family, || Device::new_cpu().expect("there is always a CPU"));
    assert!(failures.is_empty(), "on the ordinary device: {}", failures.join("\n"));
}

macro_rules! families {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            on_the_cpu(stringify!($name));
        }
    )*};
}
families!(augment collective jpeg linear processor train vision);

/// The results do not count here.
#[test]
fn on_gpus() {
    for &gpu in devices().iter().filter(|device| device.kind() == DeviceKind::Cuda) {
        let _alone = alone_on(gpu);
        for family in &FAMILIES {
            let (table, failures) = all(family, || gpu);
            report(&table);
            assert!(failures.is_empty(), "{gpu}: {}", failures.join("\n"));
        }
    }
}

/// Returns what a module exports in small letters: functions.
fn functions(module: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for part in module.split("pub use ").skip(1) {
        let list = part.split(';').next().unwrap_or(part);
        // Its own module, whose lists are found too.
        if list.trim() == "host::*" {
            assert!(module.contains("mod host {"), "`host` is in the same file");
            continue;
        }
        assert!(!list.contains('*') && !list.contains(" as "), "`pub use {list}` does not say what is public");
        for name in list.split([',', '{', '}']).filter_map(|name| name.trim().split("::").last()) {
            if name.starts_with(|c: char| c.is_ascii_lowercase()) {
                found.insert(name);
            }
        }
    }
    found
}

#[test]
fn every_public_launcher_is_in_the_list() {
    let library = include_str!("../../src/lib.rs");
    let modules: Vec<_> = library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert_eq!(modules, FAMILIES.map(|family| family.name), "the families of kernels");
    for family in &FAMILIES {
        let listed: BTreeSet<_> = family.launchers.iter().map(|launcher| launcher.name).collect();
        let public: BTreeSet<_> = functions(family.module)
            .into_iter()
            .filter(|name| !OF_THE_HOST.contains(&format!("{}::{name}", family.name).as_str()))
            .collect();
        assert_eq!(public, listed, "the public launchers of `{}`, and those of this test", family.name);
        for other in ["kernel! {", "pub mod ", "pub fn ", "pub unsafe fn ", "macro_rules!"] {
            assert!(!family.module.contains(other), "`{}`: `{other}` hides launchers from this test", family.name);
        }
    }
}
