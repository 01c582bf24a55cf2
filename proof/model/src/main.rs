//! A model of the rules of streams: searches all programs of a bounded size for a race.
//!
//! `model` searches with the rules of the crate, which must have no race, and then with each rule
//! broken on purpose, which must have one. `model all` searches larger bounds with the rules of the
//! crate. `model compare` judges each program of a small size in two ways: by the clocks of
//! `happens_before`, and by `device`, which executes the calls in every order. `model search NAME`
//! is one search, to its usual bound or to the one that is given. `model broken NAME` breaks the
//! rules that belong to a search.

mod cases;
mod device;
mod happens_before;
mod rules;
mod search;
mod words;

use std::process::ExitCode;
use std::time::Instant;

use cases::{Case, Expected, RULES, SEARCHES, Search};
use rules::{Bad, Broken};
use search::{Found, replay, search};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let sound = match arguments[..] {
        [] => {
            let races = SEARCHES.iter().filter(|case| !as_they_are(case, case.usual)).count();
            println!();
            let unexpected = RULES.iter().filter(|rule| !break_rule(rule)).count();
            println!(
                "\n{} searches, {races} with a race; {} broken rules, {unexpected} not as expected",
                SEARCHES.len(),
                RULES.len()
            );
            races + unexpected == 0
        }
        ["all"] => SEARCHES.iter().filter(|case| !as_they_are(case, case.large)).count() == 0,
        ["compare"] => compare(),
        ["search", name, ref depth @ ..] if SEARCHES.iter().any(|case| case.name == name) && depth.len() < 2 => {
            let case = cases::named(name);
            as_they_are(case, depth.first().and_then(|depth| depth.parse().ok()).unwrap_or(case.usual))
        }
        ["broken", name] if RULES.iter().any(|rule| rule.search == name) => {
            RULES.iter().filter(|rule| rule.search == name && !break_rule(rule)).count() == 0
        }
        _ => {
            eprintln!("usage: model [all | compare | search NAME [TRANSITIONS] | broken NAME]\nnames:");
            SEARCHES.iter().for_each(|case| eprintln!("  {}", case.name));
            return ExitCode::from(2);
        }
    };
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Searches with the rules of the crate, and prints a line. Returns whether there is no race.
fn as_they_are(case: &Search, depth: usize) -> bool {
    let begin = Instant::now();
    let outcome = search(&case.allow, Broken::None, depth, true, |_, _| ());
    let complete = if outcome.complete { ", and there are no more" } else { "" };
    println!(
        "{:32} {:>9} states in up to {:>2} transitions, {:>5.1} s{complete}",
        case.name,
        outcome.states,
        outcome.depth,
        begin.elapsed().as_secs_f32()
    );
    let Some(Found { program, bad }) = outcome.found else { return true };
    let lines = replay(&case.allow, Broken::None, &program).lines;
    println!("  A RACE: {}\n    {}", words::bad(bad, &case.allow), lines.join("\n    "));
    false
}

/// Searches with a rule broken, and prints what is found. Returns whether that is as expected.
fn break_rule(rule: &Case) -> bool {
    let case = cases::named(rule.search);
    let allow = &case.allow;
    let (depth, race) = match rule.expected {
        Expected::Race => (case.usual, true),
        Expected::NoRace { depth } => (depth, false),
    };
    let outcome = search(allow, rule.broken, depth, true, |_, _| ());
    let Some(Found { program, bad }) = outcome.found else {
        let verdict = if race { "NO RACE" } else { "no race, as expected" };
        println!("{}: {verdict} in {} states, {} transitions", rule.name, outcome.states, outcome.depth);
        return !race;
    };
    let shown = replay(allow, rule.broken, &program);
    println!("{}: {} transitions\n  {}", rule.name, program.len(), shown.lines.join("; "));
    let overlap = device::overlap(&shown.calls);
    let (shown, real) = match (&overlap, bad) {
        (Some((first, second)), _) => {
            (format!("calls {first} and {second} of the {} can run at once", shown.calls.len()), true)
        }
        (None, Bad::Race(_)) => ("BUT no order of the calls shows it".into(), false),
        (None, _) => ("and no two accesses need to run at once for that".into(), true),
    };
    println!("  {}; {shown}", words::bad(bad, allow));
    if !race {
        println!("  NOT EXPECTED: no race was known");
    }
    race && real
}

/// Compares the clocks with the device, for every program of a small size, with the rules of the
/// crate and with each rule broken. The clocks must find a race exactly if two conflicting accesses
/// can be next at the same time.
fn compare() -> bool {
    let (mut programs, mut racy, mut wrong) = (0u64, 0u64, 0u64);
    let rules = std::iter::once(None).chain(RULES.iter().map(Some));
    for rule in rules {
        let broken = rule.map_or(Broken::None, |rule| rule.broken);
        for case in SEARCHES.iter().filter(|case| rule.is_none_or(|rule| rule.search == case.name)) {
            search(&case.allow, broken, case.small, false, |program, bad| {
                let overlaps = device::overlap(&replay(&case.allow, broken, &program()).calls).is_some();
                programs += 1;
                racy += u64::from(overlaps);
                if overlaps != matches!(bad, Some(Bad::Race(_))) {
                    wrong += 1;
                    println!("{broken:?}, {}: {bad:?}, overlap {overlaps}: {:?}", case.name, program());
                }
            });
        }
    }
    println!("{programs} programs, {racy} with a race; clocks and device differ on {wrong}");
    wrong == 0 && racy > 0
}
