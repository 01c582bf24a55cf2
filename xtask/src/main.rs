//! `cargo xtask`: everything that CI checks, in steps that can be run one by one.
//!
//! `steps` lists the steps with their budgets and runs them, `command` runs programs, and `built`
//! finds what a build of the tests made.

mod built;
mod command;
mod steps;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use command::{Usage, command, root};
use steps::{BESIDE, Group, SHARES, STEPS, Step};

const HELP: &str = "\
usage: cargo xtask check          format, lints, documentation: what a change needs before it is pushed
       cargo xtask test           the tests as README.md prints them, again on the checked device, and loom
       cargo xtask ptx            builds the PTX again, compares it, and assembles it for every GPU
       cargo xtask ptx update     builds the PTX and writes the files
       cargo xtask examples       the examples, the tutorial and the benchmarks, on the CPU device
       cargo xtask ci             all of it, and what is published: .ci/run does this
       cargo xtask step NAME...   these steps
       cargo xtask list           the steps, with their budgets
       cargo xtask mutations ...  breaks the libraries on purpose: --help prints how

Slow steps are in shares. A share is run each eighth day, by the number of the day since 1970.
CI_SHARE=N runs share N instead, and CI_SHARE=all runs all of them. `step` runs what it is given.
`ci` runs the steps that only build beside the others, and prints their output at the end.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match &*arguments {
        ["check"] => group(Group::Check),
        ["test"] => group(Group::Test),
        ["ptx"] => group(Group::Ptx),
        ["ptx", "update"] => steps::update_ptx(),
        ["examples"] => group(Group::Examples),
        ["ci"] => ci(),
        ["step", names @ ..] if !names.is_empty() => named(names),
        ["mutations", options @ ..] => steps::mutations(options),
        ["list"] => {
            list();
            Ok(())
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the steps of a group that are due today.
fn group(group: Group) -> Result<(), String> {
    let share = Share::read()?;
    println!("{share}");
    run(STEPS.iter().filter(|step| step.group == group && share.has(step)))
}

/// Runs all steps that are due today, and those of `BESIDE` in a process beside the others.
fn ci() -> Result<(), String> {
    let share = Share::read()?;
    println!("{share}");
    let due = STEPS.iter().filter(|step| share.has(step));
    let (beside, own): (Vec<_>, Vec<_>) = due.partition(|step| BESIDE.contains(&step.name));
    let (start, mut rows) = (Instant::now(), Vec::new());
    // The first step installs what the others need.
    let (first, own) = own.split_at(1);
    let mut result = each(first, &mut rows, None);
    if result.is_ok() {
        let mut other = Beside::start(&beside)?;
        result = each(own, &mut rows, Some(&mut other));
        if let Err(error) = &result {
            eprintln!("error: {error}\nwaiting for the steps beside it, which print to {}", other.output.display());
        }
        result = result.and(other.end());
    }
    // Of those beside the others, this process knows their time alone.
    print(&rows, start.elapsed(), beside.iter().map(|step| f64::from(step.budget)).sum());
    result
}

/// A process that runs steps when the processor has nothing else to do.
struct Beside {
    process: Child,
    output: PathBuf,
}

impl Beside {
    fn start(steps: &[&Step]) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let output = root().join("target/beside.txt");
        let file = File::create(&output).map_err(|error| format!("{}: {error}", output.display()))?;
        let errors = file.try_clone().map_err(|error| error.to_string())?;
        let mut process = command("nice", ".");
        process.args(["-n", "19"]).arg(own).arg("step").args(steps.iter().map(|step| step.name));
        let process = process.stdout(file).stderr(errors).spawn().map_err(|error| format!("nice: {error}"))?;
        Ok(Self { process, output })
    }

    fn failed(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(Some(status)) if !status.success())
    }

    /// Waits for the end, and prints what the process printed.
    fn end(mut self) -> Result<(), String> {
        let status = self.process.wait().map_err(|error| error.to_string())?;
        let printed = fs::read(&self.output).map_err(|error| format!("{}: {error}", self.output.display()))?;
        println!("\n== beside the steps above\n{}", String::from_utf8_lossy(&printed));
        if status.success() { Ok(()) } else { Err(format!("the steps beside the others ended with {status}")) }
    }
}

fn named(names: &[&str]) -> Result<(), String> {
    let found = names.iter().map(|name| {
        STEPS.iter().find(|step| step.name == *name).ok_or_else(|| format!("no step {name}: see `cargo xtask list`"))
    });
    run(found.collect::<Result<Vec<_>, _>>()?.into_iter())
}

/// The resources that a step took.
struct Row {
    name: &'static str,
    budget: f64,
    wall: f64,
    usage: Usage,
}

/// Runs steps until one fails, and then prints what each took.
fn run<'a>(steps: impl Iterator<Item = &'a Step>) -> Result<(), String> {
    let (start, mut rows) = (Instant::now(), Vec::new());
    let result = each(&steps.collect::<Vec<_>>(), &mut rows, None);
    print(&rows, start.elapsed(), 0.0);
    result
}

/// Runs steps until one fails, or one of those beside them.
fn each(steps: &[&Step], rows: &mut Vec<Row>, mut other: Option<&mut Beside>) -> Result<(), String> {
    for step in steps {
        if other.as_mut().is_some_and(|other| other.failed()) {
            break;
        }
        println!("\n== {}: {}", step.name, step.what);
        let (start, before) = (Instant::now(), Usage::now());
        let result = (step.run)().map_err(|error| format!("{}: {error}", step.name));
        let (wall, usage) = (start.elapsed().as_secs_f64(), Usage::now() - before);
        rows.push(Row { name: step.name, budget: f64::from(step.budget), wall, usage });
        result?;
    }
    Ok(())
}

/// Prints what each step took, and what all took, also those `beside` with this budget.
fn print(rows: &[Row], wall: Duration, beside: f64) {
    println!("\n{:<16} {:>8} {:>10} {:>10} {:>7}", "step", "seconds", "CPU", "budget", "tests");
    let line = |name: &str, wall: f64, usage: &Usage, budget: f64| {
        let cpu = usage.cpu.map_or("unknown".into(), |cpu| format!("{cpu:.0}"));
        let over = if usage.cpu.is_some_and(|cpu| cpu > budget) { "  OVER ITS BUDGET" } else { "" };
        println!("{name:<16} {wall:>8.0} {cpu:>10} {budget:>10.0} {:>7}{over}", usage.passed);
    };
    for row in rows {
        line(row.name, row.wall, &row.usage, row.budget);
    }
    let total = Usage::now();
    line("all", wall.as_secs_f64(), &total, beside + rows.iter().map(|row| row.budget).sum::<f64>());
    if total.passed > 0 {
        // What a reader of CI's output looks for.
        println!("\n{} passed, 0 failed", total.passed);
    }
}

fn list() {
    for step in STEPS {
        let share = step.share.map_or("daily".into(), |share| format!("share {share}"));
        let group = step.group.name();
        println!("{:<16} {group:<9} {share:<8} {:>5} s of CPU  {}", step.name, step.budget, step.what);
    }
}

/// The slow steps that are due.
enum Share {
    All,
    One(u64),
}

impl Share {
    fn read() -> Result<Self, String> {
        let set = std::env::var("CI_SHARE").ok().filter(|set| !set.is_empty());
        match set.as_deref() {
            Some("all") => Ok(Self::All),
            Some(number) => match number.parse() {
                Ok(share) if share < SHARES => Ok(Self::One(share)),
                _ => Err(format!("CI_SHARE is {number:?}: give `all` or a number below {SHARES}")),
            },
            None => {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(|e| e.to_string())?;
                Ok(Self::One(since.as_secs() / (24 * 60 * 60) % SHARES))
            }
        }
    }

    fn has(&self, step: &Step) -> bool {
        match (self, step.share) {
            (Self::All, _) | (_, None) => true,
            (Self::One(today), Some(share)) => *today == share,
        }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => write!(f, "all steps"),
            Self::One(share) => write!(f, "the daily steps and share {share} of {SHARES}; CI_SHARE=all runs all"),
        }
    }
}
