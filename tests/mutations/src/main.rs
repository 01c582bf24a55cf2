//! `cargo xtask mutations`: breaks the libraries on purpose, one change at a time, and checks that
//! a test notices each.
//!
//! `table` reads the mutations, `generate` makes more, `patch` writes them into the sources behind
//! a switch, `build` builds a copy of the repository once with all of them, and `run` runs tests.

mod build;
mod generate;
mod patch;
mod run;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use build::Tree;
use patch::Patch;
use run::End;
use table::Test;

const HELP: &str = "\
usage: cargo xtask mutations [--filter TEXT]... [--share K/N] [--list | --write] [--gpu]
       cargo xtask mutations --sample COUNT [--seed SEED] [--filter TEXT]... [--list | --write]

Without --sample: the mutations of the tables in tests/mutations/tables.
--sample COUNT  of the generated mutations, as many, drawn by the seed
--seed SEED     the seed, which is a new one by default, and is printed
--filter TEXT   those whose area, name or file has this text
--share K/N     the part K of N parts, by the order of the tables
--jobs N        runs so many tests at once; those that measure times may then fail for no reason
--list          prints them, and builds nothing
--write         writes the copy with them into target/mutations/tree, and builds nothing
--gpu           those which only a GPU runs, instead of the others
";

struct Options {
    filters: Vec<String>,
    share: Option<(usize, usize)>,
    sample: Option<usize>,
    seed: u64,
    jobs: usize,
    list: bool,
    write: bool,
    gpu: bool,
}

impl Options {
    fn read() -> Option<Self> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |it| it.as_millis());
        let seed = now as u64 % 1_000_000_007;
        let mut options = Self {
            filters: Vec::new(),
            share: None,
            sample: None,
            seed,
            jobs: 1,
            list: false,
            write: false,
            gpu: false,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match &*argument {
                "--filter" => options.filters.push(arguments.next()?),
                "--share" => {
                    let (part, parts) = arguments.next()?.split_once('/').map(|(k, n)| (k.parse(), n.parse()))?;
                    options.share = Some((part.ok()?, parts.ok()?));
                }
                "--sample" => options.sample = Some(arguments.next()?.parse().ok()?),
                "--seed" => options.seed = arguments.next()?.parse().ok()?,
                "--jobs" => options.jobs = arguments.next()?.parse().ok()?,
                "--list" => options.list = true,
                "--write" => options.write = true,
                "--gpu" => options.gpu = true,
                _ => return None,
            }
        }
        options.share.is_none_or(|(part, parts)| part < parts).then_some(options)
    }

    fn wants(&self, texts: [&str; 3]) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|wanted| texts.iter().any(|text| text.contains(&**wanted)))
    }
}

/// A mutation that is to be run.
struct Case {
    number: u32,
    area: String,
    name: String,
    tests: Vec<Test>,
    equivalent: Option<String>,
    generated: bool,
}

/// The columns of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Caught,
    Equivalent,
    Survived,
}

/// The time that a test may take, once it has run without a mutation.
type Limit = OnceLock<Result<Duration, String>>;

/// Runs tests, each with the time that it takes without a mutation.
struct Runner {
    programs: build::Programs,
    limits: Mutex<BTreeMap<Test, Arc<Limit>>>,
}

impl Runner {
    /// Returns how long a test may take, or says why it shows nothing.
    fn limit(&self, test: &Test) -> Result<Duration, String> {
        let limit = self.limits.lock().expect("no thread has panicked").entry(test.clone()).or_default().clone();
        let measure = || {
            let start = Instant::now();
            match run::run(&self.programs, test, 0, Duration::from_secs(600))? {
                End::Passed(count) if count > 0 => Ok(start.elapsed() * 8 + Duration::from_secs(10)),
                other => Err(format!("without a mutation, {test}: {other:?}")),
            }
        };
        // A test that waits for others may fail on a busy machine.
        limit.get_or_init(|| measure().or_else(|_| measure())).clone()
    }

    /// Runs the tests of a mutation until one notices it. Also returns a line about that.
    fn judge(&self, case: &Case) -> (Verdict, String) {
        if let Some(reason) = &case.equivalent {
            return (Verdict::Equivalent, format!("equivalent  {}: {reason}", case.name));
        }
        let start = Instant::now();
        let noticed = case.tests.iter().find_map(|test| {
            let end = self.limit(test).and_then(|limit| run::run(&self.programs, test, case.number, limit));
            match end {
                Ok(End::Passed(_)) => None,
                Ok(End::Failed(by)) => Some(Ok(by)),
                Ok(End::Timeout) => Some(Ok(format!("timeout of {test}"))),
                Err(error) => Some(Err(error)),
            }
        });
        let seconds = start.elapsed().as_secs_f64();
        match noticed {
            Some(Ok(by)) => (Verdict::Caught, format!("caught      {}: {by}, {seconds:.1} s", case.name)),
            Some(Err(error)) => (Verdict::Survived, format!("NOT SHOWN   {}: {error}", case.name)),
            None => {
                let tests = case.tests.iter().map(Test::to_string).collect::<Vec<_>>().join(", ");
                (Verdict::Survived, format!("SURVIVED    {}: {tests}, {seconds:.1} s", case.name))
            }
        }
    }
}

fn main() -> ExitCode {
    let Some(options) = Options::read() else {
        eprint!("{HELP}");
        return ExitCode::from(2);
    };
    match mutations(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether no mutation survived.
fn mutations(options: &Options) -> Result<bool, String> {
    let tree = Tree::new()?;
    let tables = table::read(&tree.root.join("tests/mutations/tables"))?;
    let (mut cases, patches) = match options.sample {
        Some(count) => drawn(&tree, &tables, options, count)?,
        None => listed(&tree, &tables, options)?,
    };
    if options.list {
        for case in &cases {
            println!("{}: {}", case.area, case.name);
        }
        println!("{} mutations", cases.len());
        return Ok(true);
    }
    if options.write {
        return tree.write(&patches).map(|_| true);
    }
    if cases.is_empty() {
        return Err("no mutation is chosen".into());
    }
    let generated: BTreeSet<u32> = cases.iter().filter(|case| case.generated).map(|case| case.number).collect();
    let needed = cases.iter().filter(|case| case.equivalent.is_none()).flat_map(|case| &case.tests);
    let programs: BTreeSet<_> = needed.map(build::key).collect();
    let start = Instant::now();
    let (programs, dropped) = build::build(&tree, patches, &programs, |number| generated.contains(&number))?;
    println!("built in {:.0} s", start.elapsed().as_secs_f64());
    cases.retain(|case| !dropped.contains(&case.number));
    cases.truncate(options.sample.unwrap_or(usize::MAX));

    let runner = Runner { programs, limits: Mutex::default() };
    let (next, ended) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|threads| {
        for _ in 0..options.jobs.max(1) {
            threads.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (verdict, line) = runner.judge(case);
                    println!("{line}");
                    ended.lock().expect("no thread has panicked").push((case, verdict));
                }
            });
        }
    });
    let mut rows: BTreeMap<&str, [u32; 3]> = BTreeMap::new();
    let mut survivors = Vec::new();
    for (case, verdict) in ended.into_inner().expect("no thread has panicked") {
        rows.entry(&case.area).or_default()[verdict as usize] += 1;
        if verdict == Verdict::Survived {
            survivors.push(&*case.name);
        }
    }
    survivors.sort_unstable();
    print(&rows);
    let cpu = run::cpu().map_or("unknown".into(), |cpu| format!("{cpu:.0}"));
    println!("{:.0} s, {cpu} s of CPU", start.elapsed().as_secs_f64());
    for name in &survivors {
        println!("survived: {name}");
    }
    Ok(survivors.is_empty())
}

fn print(rows: &BTreeMap<&str, [u32; 3]>) {
    println!("\n{:<14} {:>9} {:>7} {:>10} {:>8}", "area", "mutations", "caught", "equivalent", "survived");
    let line = |name: &str, [caught, equivalent, survived]: [u32; 3]| {
        let all = caught + equivalent + survived;
        println!("{name:<14} {all:>9} {caught:>7} {equivalent:>10} {survived:>8}");
    };
    for (area, row) in rows {
        line(area, *row);
    }
    let sum = |at: usize| rows.values().map(|row| row[at]).sum();
    line("all", [sum(0), sum(1), sum(2)]);
}

type Chosen = (Vec<Case>, BTreeMap<String, Vec<Patch>>);

/// Returns the mutations of the tables that the options choose.
fn listed(tree: &Tree, tables: &table::Tables, options: &Options) -> Result<Chosen, String> {
    let (mut cases, mut patches) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
    // All of them are built, so that one build does for every choice.
    for mutation in &tables.mutations {
        let found = patch::find(&tree.text(&mutation.file)?, mutation, number(&mutation.name))?;
        patches.entry(mutation.file.clone()).or_default().extend(found);
    }
    let wanted: Vec<_> = tables
        .mutations
        .iter()
        .filter(|it| it.gpu == options.gpu && options.wants([&it.area, &it.name, &it.file]))
        .collect();
    let (part, parts) = options.share.unwrap_or((0, 1));
    for mutation in &wanted[wanted.len() * part / parts..wanted.len() * (part + 1) / parts] {
        cases.push(Case {
            number: number(&mutation.name),
            area: mutation.area.clone(),
            name: mutation.name.clone(),
            tests: mutation.tests.clone(),
            equivalent: mutation.equivalent.clone(),
            generated: false,
        });
    }
    Ok((cases, patches))
}

/// Draws mutations of the generator. Half as many again are drawn, since some do not compile.
fn drawn(tree: &Tree, tables: &table::Tables, options: &Options, count: usize) -> Result<Chosen, String> {
    let mut all = Vec::new();
    for source in &tables.sources {
        for made in generate::generate(&source.file, &tree.text(&source.file)?)? {
            if options.wants([&source.file, &made.name, ""]) {
                all.push((source, made));
            }
        }
    }
    println!("seed {}: {count} of {} generated mutations", options.seed, all.len());
    shuffle(&mut all, options.seed);
    all.truncate(count + count / 2 + 5);
    let (mut cases, mut patches) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
    for (source, made) in all {
        let number = number(&made.name);
        patches.entry(source.file.clone()).or_default().push(made.patch(number));
        let equivalent = tables.equivalents.iter().find(|it| it.0 == made.name).map(|it| it.1.clone());
        let area = source.file.split('/').next().unwrap_or_default().to_owned();
        cases.push(Case { number, area, name: made.name, tests: source.tests.clone(), equivalent, generated: true });
    }
    Ok((cases, patches))
}

/// The number of a mutation is a hash of its name (FNV-1a), so that another mutation in a table
/// does not change the text of files that have been built.
fn number(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)).max(1)
}

/// Brings items into an order that a seed chooses.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for at in (1..items.len()).rev() {
        // The generator SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        items.swap(at, ((word ^ word >> 31) % (at as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every mutation of the tables is where its table says, and is Rust. So a change of the
    /// sources that takes a text away is noticed by the tests of this package, and not by a run of
    /// a share.
    #[test]
    fn every_mutation_has_its_place() {
        let tree = Tree::new().unwrap();
        let tables = table::read(&tree.root.join("tests/mutations/tables")).unwrap();
        let mut patches = BTreeMap::<_, Vec<_>>::new();
        let mut wrong = Vec::new();
        let mut names = BTreeMap::new();
        for mutation in &tables.mutations {
            let number = number(&mutation.name);
            if let Some(other) = names.insert(number, &mutation.name) {
                wrong.push(format!("{:?} and {other:?} have one number: change a name", mutation.name));
            }
            match tree.text(&mutation.file).and_then(|text| patch::find(&text, mutation, number)) {
                Ok(found) => patches.entry(mutation.file.clone()).or_default().extend(found),
                Err(error) => wrong.push(error),
            }
        }
        for (file, patches) in patches {
            let name = |number: u32| names[&number];
            match patch::apply(&tree.text(&file).unwrap(), patches, "crate") {
                Ok(done) => {
                    let parsed = syn::parse_file(&done.text).map(drop);
                    let line = |error: &syn::Error| done.text.lines().nth(error.span().start().line - 1);
                    wrong.extend(parsed.err().map(|error| format!("{file}: {error}: {:?}", line(&error))));
                }
                Err((a, b)) => wrong.push(format!("{file}: {:?} and {:?} have text in common", name(a), name(b))),
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn a_seed_chooses_one_order() {
        let order = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            shuffle(&mut items, seed);
            items
        };
        assert_eq!(order(3), order(3));
        assert_ne!(order(3), order(4));
        let mut sorted = order(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }
}
