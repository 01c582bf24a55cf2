//! The steps, in the order in which CI runs them.

mod check;
mod examples;
mod proof;
mod ptx;
mod ship;
mod test;

pub(crate) use ptx::update_ptx;
pub(crate) use test::mutations;

/// The number of shares of the slow steps. One of them is run each day.
pub(crate) const SHARES: u64 = 8;

/// The steps that `cargo xtask ci` runs in a process of the lowest priority beside the others: they
/// build, and have no test with a limit of time. The others leave a third of two cores idle.
pub(crate) const BESIDE: [&str; 10] =
    ["ptx", "ptxas", "clippy", "documentation", "tutorial", "packages", "published", "windows", "macos", "features"];

/// One step of CI.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    /// Seconds of user and system time on the machine that runs CI, from a cold start. A step over
    /// its budget is marked.
    pub(crate) budget: u32,
    /// The share in which it is run. None is every day.
    pub(crate) share: Option<u64>,
    pub(crate) what: &'static str,
    pub(crate) run: fn() -> Result<(), String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Check,
    Test,
    Ptx,
    Examples,
    Ship,
}

impl Group {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Test => "test",
            Self::Ptx => "ptx",
            Self::Examples => "examples",
            Self::Ship => "ci only",
        }
    }
}

const fn step(
    group: Group,
    name: &'static str,
    share: Option<u64>,
    budget: u32,
    what: &'static str,
    run: fn() -> Result<(), String>,
) -> Step {
    Step { name, group, budget, share, what, run }
}

/// The steps. What fails in seconds comes first.
#[rustfmt::skip]
pub(crate) const STEPS: &[Step] = &[
    step(Group::Check, "tools", None, 20, "what the other steps need is there", check::tools),
    step(Group::Check, "format", None, 10, "every file is as rustfmt writes it; names and sentences", check::format),
    step(Group::Check, "arrows", None, 5, "which file names which, and what git knows of files", check::arrows),
    step(Group::Check, "figures", None, 5, "README.md and docs: figures in their records, links, who compiles the code", check::figures),
    step(Group::Check, "soundness", None, 5, "docs/soundness.md names what is there, and each `unsafe` block a fact", proof::soundness),
    step(Group::Check, "workflows", None, 10, "the workflows of GitHub", check::workflows),
    step(Group::Check, "clippy", None, 200, "lints of all targets with all features", check::clippy),
    step(Group::Check, "documentation", None, 60, "links of the documentation", check::documentation),
    step(Group::Check, "dependencies", None, 5, "how many crates the library needs", check::dependencies),
    step(Group::Examples, "tokens", None, 220, "README.md's command, as printed, and its golden result", examples::tokens),
    step(Group::Test, "tests", None, 1800, "README.md's tests, as printed", test::tests),
    step(Group::Test, "checked", None, 360, "tests of kernels on the checked device", test::checked),
    step(Group::Test, "loom", None, 80, "interleavings of the CPU device's queues", test::loom),
    step(Group::Examples, "examples", None, 100, "every example, from the build of the tests", examples::examples),
    step(Group::Examples, "benchmarks", Some(2), 100, "benchmarks run and check what they time", examples::benchmarks),
    step(Group::Examples, "tutorial", None, 200, "docs/first-kernel.md, followed from an empty folder", examples::tutorial),
    step(Group::Ptx, "ptx", None, 400, "the PTX is what the sources make, byte for byte", ptx::compare),
    step(Group::Ptx, "ptxas", None, 100, "every architecture takes the PTX; registers as recorded", ptx::assemble),
    step(Group::Ship, "packages", None, 10, "packages can be made", ship::packages),
    step(Group::Ship, "published", Some(0), 400, "packages build from what would be published", ship::published),
    step(Group::Ship, "windows", Some(1), 200, "the libraries and the command compile for Windows", ship::windows),
    step(Group::Ship, "macos", Some(1), 200, "the libraries and the command compile for macOS", ship::macos),
    step(Group::Examples, "release", Some(2), 400, "the examples in release builds, as README.md prints them", examples::release),
    step(Group::Examples, "safe", Some(7), 300, "packages of kernels apart from the workspace", examples::safe),
    step(Group::Test, "photographs", Some(3), 100, "the images of Pillow's tests, as Pillow has them", test::photographs),
    step(Group::Test, "resize", Some(5), 60, "resizes of image processors, as three versions of Pillow have them", test::resize),
    step(Group::Test, "proof", Some(0), 200, "the theorem and the model of streams: no race, and each rule is needed", proof::proof),
    step(Group::Test, "mutations", Some(4), 500, "a part of the mutations, each of which a test must notice", test::part_of_mutations),
    step(Group::Test, "trace", Some(6), 600, "tests of streams under the log's checker, and broken rules of the library, which it rejects", test::trace),
    step(Group::Test, "order", Some(5), 500, "loom and shuttle: calls of threads that overlap, and broken rules, on which both fail", test::order),
    step(Group::Test, "python", Some(3), 500, "the wheel of python/, tested in a fresh environment", test::python),
    step(Group::Test, "builder", Some(2), 120, "tests of the PTX builder, of xtask and of the runner of mutations", test::builder),
    step(Group::Test, "hopper", Some(7), 300, "the f32 products for compute capability 9.0, checked", test::hopper),
    step(Group::Test, "tokenizer", Some(6), 300, "the command with a tokenizer.json, which is a feature of it", test::tokenizer),
    step(Group::Ship, "features", Some(1), 200, "each crate with each of its features alone", ship::features),
    step(Group::Ship, "licenses", Some(5), 20, "licenses and sources of dependencies", ship::licenses),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_beside_others_are_steps_and_count_no_tests() {
        for name in BESIDE {
            let step = STEPS.iter().find(|step| step.name == name).expect(name);
            assert!(step.group != Group::Test, "{name}: its tests would not be counted");
        }
        assert_eq!(STEPS[0].name, "tools", "it installs what the others need");
    }
}
