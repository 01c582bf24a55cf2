//! Programs and races in words.

use crate::happens_before::{HOST, KEEPER};
use crate::rules::{Act, Allow, Bad, Place, State, Value};

fn stream(s: u8) -> char {
    char::from(b'A' + s)
}

fn line_name(line: usize) -> String {
    match line {
        HOST => "the host".into(),
        line if line > HOST => "the second thread".into(),
        KEEPER => "the stream that frees".into(),
        s => format!("stream {}", stream(s as u8)),
    }
}

fn block_name(block: u8, allow: &Allow) -> String {
    match block < allow.device {
        true => ["x", "y", "z"][block as usize].into(),
        false => ["p", "q", "r"][(block - allow.device) as usize].into(),
    }
}

fn value_name(state: &State, value: Value, allow: &Allow) -> String {
    match value {
        Value::Buf { block, lo: 0, hi: 2, .. } => block_name(block, allow),
        Value::Buf { block, lo, .. } => format!("{}[{lo}]", block_name(block, allow)),
        Value::Shared(id) => value_name(state, state.shared[id as usize].value, allow),
    }
}

fn by(thread: u8) -> &'static str {
    if thread == 0 { "" } else { "the second thread: " }
}

fn branch_name(branch: u8) -> String {
    if branch == 0 { "the capture".into() } else { format!("branch {branch}") }
}

/// A transition, as a program would write it.
pub fn act(state: &State, act: Act, allow: &Allow) -> String {
    by(act.handles()[0].map_or(0, |h| state.handles[h].thread)).to_owned() + &words(state, act, allow)
}

fn words(state: &State, act: Act, allow: &Allow) -> String {
    let name = |h: usize| value_name(state, state.handles[h].value, allow);
    let is_shared = |h: usize| matches!(state.handles[h].value, Value::Shared(_));
    let on = |h: usize| match state.handles[h].place {
        Place::On(s) | Place::HandingOff(s, _) | Place::Ending(s, ..) | Place::Branch(s) | Place::Branches(s) => {
            stream(s)
        }
        _ => '?',
    };
    let what = |h: usize| match (is_shared(h), state.handles[h].place) {
        (true, Place::On(s)) => format!("the read of {} on {}", name(h), stream(s)),
        (true, Place::Event(_)) => format!("an event of shared {}", name(h)),
        (true, _) => format!("a handle of shared {}", name(h)),
        (false, Place::Branch(_) | Place::Branches(_)) => name(h),
        (false, Place::On(s)) => format!("{} on {}", name(h), stream(s)),
        (false, Place::Captured(_) | Place::CapturedForBoth(..)) => name(h),
        (false, Place::Event(_)) => format!("the event of {}", name(h)),
        (false, _) => format!("{}, idle", name(h)),
    };
    match act {
        Act::Alloc { s, block, thread } => {
            format!("{}{} = {}.alloc()", by(thread), block_name(block, allow), stream(s))
        }
        Act::Lend { block, thread } => format!("{}{} = pinned_from(..)", by(thread), block_name(block, allow)),
        Act::HostRead(h) if is_shared(h) => format!("the host reads {}.host()", name(h)),
        Act::HostRead(h) => format!("the host reads {}", name(h)),
        Act::HostWrite(h) => format!("the host writes {}", name(h)),
        Act::Bind(h, s) => format!("{}.bind({})", stream(s), what(h)),
        Act::Write(h) => format!("{}: write {}", on(h), name(h)),
        Act::WriteFrom(h, s) => format!("{}: write {}", stream(s), what(h)),
        Act::Read(h) => format!("{}: read {}", on(h), name(h)),
        Act::Copy(from, to) => format!("{}: copy {} to {}", on(from), name(from), name(to)),
        Act::Record(h) => format!("{}.record({})", on(h), what(h)),
        Act::RecordUnzip(h, i) => format!("{}.record(({}, {})).unzip()", on(h), name(h), name(i)),
        Act::Wait(h, s) => format!("{}.wait({})", stream(s), what(h)),
        Act::HandOff(h, s) => format!("{}.hand_off({}, {})", on(h), what(h), stream(s)),
        Act::HandOffBegin(h, s) => format!("{}.hand_off({}, {}) begins", on(h), name(h), stream(s)),
        Act::HandOffEnd(h) => format!("{}.hand_off({}) ends", on(h), name(h)),
        Act::Synchronize(h) => format!("synchronize({})", what(h)),
        Act::Drop(h) => format!("drop({})", what(h)),
        Act::Forget(h) => format!("forget({})", what(h)),
        Act::Share(h) => format!("{}.share({})", on(h), name(h)),
        Act::Clone(h) => format!("clone({})", what(h)),
        Act::Reading(h, s) => format!("{}.reading({})", stream(s), name(h)),
        Act::Unshare(h, s) => format!("{}.unshare({})", stream(s), name(h)),
        Act::HandOffFails(h, t) => format!("{}.hand_off({}, {}) fails", on(h), what(h), stream(t)),
        Act::UnshareFails(h, s) => format!("{}.unshare({}) fails", stream(s), name(h)),
        Act::Prune(id, thread) => {
            format!("{}the list of events of {} is pruned", by(thread), block_name(state.splits[id].block, allow))
        }
        Act::Send(h) => format!("send({}) to the other thread", what(h)),
        Act::MapPeer(h) if state.handles[h].peer => format!("map_local({})", what(h)),
        Act::MapPeer(h) => format!("map_peer({})", what(h)),
        Act::Library(h) => format!("other code writes {}", name(h)),
        Act::LaneBegin(s) => format!("a closure gets {}", stream(s)),
        Act::LaneEnd => "the closure ends".into(),
        Act::CaptureBegin(s) => format!("{}.capture(..)", stream(s)),
        Act::CaptureEnd => "the capture ends".into(),
        Act::NodeRead(h, branch) => format!("{} reads {}", branch_name(branch), name(h)),
        Act::NodeWrite(h, branch) => format!("{} writes {}", branch_name(branch), name(h)),
        Act::NodeFork(h, None) => format!("fork({})", name(h)),
        Act::NodeFork(h, Some(i)) => format!("fork({}, and {} for both)", name(h), name(i)),
        Act::NodeJoin => "join".into(),
        Act::ReplayNodes(s) => format!("{}.replay(graph, ..)", stream(s)),
        Act::Fork(h, None) => format!("{}.fork({})", on(h), name(h)),
        Act::Fork(h, Some(i)) => format!("{}.fork({}, and {} for both)", on(h), name(h), name(i)),
        Act::BranchWrite(h) => format!("the branch writes {}", name(h)),
        Act::BranchRead(h) => format!("the branch reads {}", name(h)),
        Act::JoinBranches(s) => format!("{} joins", stream(s)),
        Act::EndTurn(h) => format!("end of a read of {} on {}: step 1", name(h), on(h)),
        Act::EndRecord(h) => format!("end of a read of {} on {}: step 2", name(h), on(h)),
        Act::EndStore(h) => format!("end of a read of {} on {}: stored", name(h), on(h)),
        Act::Split(h) => format!("split({})", what(h)),
        Act::Join(h, i) => format!("join({}, {})", what(h), what(i)),
        Act::Capture(h) => format!("graph = {}.capture({})", on(h), what(h)),
        Act::Replay(_, h) => format!("{}.replay(graph, {})", on(h), what(h)),
    }
}

pub fn bad(bad: Bad, allow: &Allow) -> String {
    match bad {
        Bad::Race(race) => format!(
            "{} and {} access {} and nothing orders them",
            line_name(race.earlier),
            line_name(race.later),
            block_name((race.granule / 2) as u8, allow)
        ),
        Bad::Dead(block) => format!("{} is used after it was given back", block_name(block, allow)),
        Bad::Stale => "a graph runs on memory that was freed after the capture".into(),
    }
}
