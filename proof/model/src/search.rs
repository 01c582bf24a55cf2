//! A search of all programs of a bounded size, breadth first.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::happens_before::{Call, Log};
use crate::rules::{Act, Allow, Bad, Broken, Run, State};
use crate::words;

pub struct Found {
    pub program: Vec<Act>,
    pub bad: Bad,
}

pub struct Outcome {
    pub states: usize,
    /// The number of transitions after which no new state was left, or the bound.
    pub depth: usize,
    /// No new state was left.
    pub complete: bool,
    pub found: Option<Found>,
}

/// Two states that differ only in names are one. So many bits do not collide by chance.
fn fingerprint(state: &State) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, state).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

/// Searches programs of up to `depth` transitions. `visit` gets each new state's program, and each
/// program that ends badly. With `stop`, the search ends at the first of those, which is as short
/// as can be.
pub fn search(
    allow: &Allow,
    broken: Broken,
    depth: usize,
    stop: bool,
    mut visit: impl FnMut(&dyn Fn() -> Vec<Act>, Option<Bad>),
) -> Outcome {
    let start = State::new(allow);
    let mut seen = HashSet::from([fingerprint(&start)]);
    // The way to each state: the number of the state before, and the transition.
    let mut parents: Vec<(u32, Act)> = vec![(u32::MAX, Act::Forget(0))];
    let way = |parents: &[(u32, Act)], mut at: u32, last: Act| {
        let mut acts = vec![last];
        while parents[at as usize].0 != u32::MAX {
            acts.push(parents[at as usize].1);
            at = parents[at as usize].0;
        }
        acts.reverse();
        acts
    };
    let mut frontier = vec![(start, 0u32)];
    for level in 0..depth {
        let mut next = Vec::new();
        for (state, index) in frontier {
            let mut run = Run { broken, allow, log: Log::default() };
            for act in state.acts(&run) {
                let mut after = state.clone();
                after.touch(act);
                if let Err(bad) = after.act(act, &mut run) {
                    visit(&|| way(&parents, index, act), Some(bad));
                    if stop {
                        let found = Some(Found { program: way(&parents, index, act), bad });
                        return Outcome { states: seen.len(), depth: level + 1, complete: false, found };
                    }
                    continue;
                }
                after.canonical(broken);
                if seen.insert(fingerprint(&after)) {
                    visit(&|| way(&parents, index, act), None);
                    parents.push((index, act));
                    next.push((after, parents.len() as u32 - 1));
                }
            }
        }
        frontier = next;
        if frontier.is_empty() {
            return Outcome { states: seen.len(), depth: level, complete: true, found: None };
        }
    }
    Outcome { states: seen.len(), depth, complete: false, found: None }
}

/// A program that was run once more.
pub struct Replayed {
    /// Each transition, in words.
    pub lines: Vec<String>,
    pub calls: Vec<(usize, Call)>,
}

/// Runs a program once more, with a log of its calls and a line for each transition.
pub fn replay(allow: &Allow, broken: Broken, program: &[Act]) -> Replayed {
    let mut state = State::new(allow);
    let mut run = Run { broken, allow, log: Log(Some(Vec::new())) };
    let mut lines = Vec::new();
    for &act in program {
        lines.push(words::act(&state, act, allow));
        state.touch(act);
        if state.act(act, &mut run).is_err() {
            break;
        }
        // The numbers of handles in a program are those of canonical states. The numbers of records
        // in the log are unchanged by this.
        state.canonical(broken);
    }
    Replayed { lines, calls: run.log.0.unwrap_or_default() }
}
