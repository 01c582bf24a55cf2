//! A device that executes the calls of a log in every order that lines and waits allow. It has no
//! clocks, so it says independently whether two conflicting accesses can happen at the same time.

use std::collections::HashSet;

use crate::happens_before::{Call, HOST, LINES};

fn conflict(a: &Call, b: &Call) -> bool {
    let (Call::Access { reads: r, writes: w, .. }, Call::Access { reads: s, writes: x, .. }) = (a, b) else {
        return false;
    };
    w.iter().any(|g| s.contains(g) || x.contains(g)) || x.iter().any(|g| r.contains(g))
}

/// Looks for two conflicting accesses that can run at the same time, and returns their numbers in
/// the log.
///
/// A thread makes one call after another. A call on a stream is enqueued then. It runs when the
/// call before it on its line is done, and the record that it waits for. A call on a thread's own
/// line is done before the thread makes its next call.
pub fn overlap(log: &[(usize, Call)]) -> Option<(usize, usize)> {
    let (hosts, calls): (Vec<usize>, Vec<&Call>) = log.iter().map(|(host, call)| (*host, call)).unzip();
    let line = |call: &&Call| match **call {
        Call::Access { line, .. } | Call::Record { line, .. } | Call::Wait { line, .. } => line,
    };
    let lines: Vec<usize> = calls.iter().map(line).collect();
    // A state is the set of calls that are done. A thread is at its first own call that is not
    // done, and every call that it made before that is enqueued.
    let mut seen = HashSet::new();
    let mut stack = vec![0u64];
    while let Some(done) = stack.pop() {
        if !seen.insert(done) {
            continue;
        }
        let is_done = |i: usize| done >> i & 1 == 1;
        let reached = [HOST, HOST + 1]
            .map(|host| (0..calls.len()).find(|&i| lines[i] == host && !is_done(i)).unwrap_or(calls.len()));
        let mut ready = Vec::new();
        for l in 0..LINES {
            let next = (0..calls.len()).find(|&i| lines[i] == l && !is_done(i));
            if let Some(i) = next.filter(|&i| i <= reached[hosts[i] - HOST]) {
                let waits = match calls[i] {
                    Call::Wait { record, .. } => {
                        calls.iter().position(|c| matches!(c, Call::Record { record: r, .. } if r == record))
                    }
                    _ => None,
                };
                if waits.is_none_or(is_done) {
                    ready.push(i);
                }
            }
        }
        for (k, &i) in ready.iter().enumerate() {
            if let Some(&j) = ready[..k].iter().find(|&&j| conflict(calls[i], calls[j])) {
                return Some((i.min(j), i.max(j)));
            }
        }
        stack.extend(ready.into_iter().map(|i| done | 1 << i));
    }
    None
}
