#!/usr/bin/env python3
"""Breaks rules of the library one at a time, and checks that the log checker rejects what tests of streams then do.

usage: tests/broken_rules.py [--loom | --shuttle] [--list] [RULE...]

A copy of the library is built once, in target/broken, with every change of RULES in it. A variable of the environment
says which one is in force. For each, the tests of PARTS run with THALWEG_TRACE=check, one part after another, until the
checker rejects something. With no rule broken, it must accept them all. The seeds of the programs are new in each run.

The build takes two minutes at first and half a minute later, and the runs together one.

With `--loom` or `--shuttle`, the rules are those of ORDER: the order of calls of several threads. The loom tests or the
shuttle tests of the CPU device must fail on each of them, and pass with none. Each takes two minutes.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PLACE = os.path.join(ROOT, "target", "broken")
COPY = os.path.join(PLACE, "copy")
VARIABLE = "THALWEG_TEST_BROKEN"
REJECTED = "THALWEG_TRACE=check: "
MODULES = ["foreign", "forks", "shared_graphs", "states", "streams"]
# The tests, the ones that find most first, each with the number of programs.
PARTS = [
    ("streams::under_seeded_schedules", 60),
    ("streams::on_every_device", 200),
    ("states::", 4),
    ("shared_graphs::", 4),
    ("forks::", 20),
    ("foreign::", 4),
    ("streams::under_seeded_schedules", 2000),
]
SECONDS = 60

# A rule that is broken: its file, a text that is there once, and the text instead. `BROKEN` is whether the rule is broken.
RULES = {
    "wait: the stream does not wait": (
        "transitions.rs", "Some(lease) => self.inner().wait(lease),", "Some(_) if BROKEN => Ok(()),\n            Some(lease) => self.inner().wait(lease),"),
    "wait: another stream waits": (
        "transitions.rs", "Some(lease) => self.inner().wait(lease),",
        "Some(lease) if BROKEN => self.device().seen(self.device().housekeeping().wait(lease.handle())),\n            Some(lease) => self.inner().wait(lease),"),
    "hand_off: no wait": (
        "transitions.rs", "self.device().seen(self.handle().hand_off(self.inner().hand.handle(), to.handle()))",
        "if BROKEN { return self.device().seen(self.handle().record(self.inner().hand.handle())); }\n            self.device().seen(self.handle().hand_off(self.inner().hand.handle(), to.handle()))"),
    "hand_off: the record of another stream": (
        "transitions.rs", "if BROKEN { return self.device().seen(self.handle().record(",
        "if BROKEN { return self.device().seen(self.device().housekeeping().hand_off(self.inner().hand.handle(), to.handle())); }\n            if BROKEN { return self.device().seen(self.handle().record("),
    "hand_off: the wait before the record": (
        "transitions.rs", "if BROKEN { return self.device().seen(self.device().housekeeping().hand_off(",
        "if BROKEN { return self.device().seen(to.handle().wait(self.inner().hand.handle()).and_then(|()| self.handle().record(self.inner().hand.handle()))); }\n            if BROKEN { return self.device().seen(self.device().housekeeping().hand_off("),
    "hand_off: in the wrong direction": (
        "transitions.rs", "if BROKEN { return self.device().seen(to.handle().wait(",
        "if BROKEN { return self.device().seen(to.handle().hand_off(to.inner().hand.handle(), self.handle())); }\n            if BROKEN { return self.device().seen(to.handle().wait("),
    "bind: no wait for producers": (
        "transitions.rs", "            if waited.is_ok() {", "            if waited.is_ok() && !BROKEN {"),
    "On::synchronize: no wait": (
        "transitions.rs", "        Ok(stream.record(self)?.synchronize()?)",
        "        if BROKEN { let idle = self.into_leaf(); trace::idle(\"synchronize\", &idle); return Ok(idle); }\n        Ok(stream.record(self)?.synchronize()?)"),
    "lease: no record": (
        "runtime/stream.rs", "seen(self.handle.record(lease.handle()))?", "seen(if BROKEN { Ok(()) } else { self.handle.record(lease.handle()) })?"),
    "lease: a record of another stream": (
        "runtime/stream.rs", "else { self.handle.record(lease.handle()) })?",
        "else { if BROKEN { self.device.housekeeping() } else { self.handle }.record(lease.handle()) })?"),
    "lease: given back while others hold it": (
        "runtime/event.rs", "&& Arc::strong_count(&cell) == 1", "&& (BROKEN || Arc::strong_count(&cell) == 1)"),
    "query of an event: always yes": (
        "event.rs", "    pub fn query(self) -> Result<QueryResult<R>, Returned<Self>> {\n        match self.is_complete() {",
        "    pub fn query(self) -> Result<QueryResult<R>, Returned<Self>> {\n        match if BROKEN { Ok(true) } else { self.is_complete() } {"),
    "synchronize of an event: no wait": (
        "event.rs", "Some(event) => event.synchronize(),", "Some(_) if BROKEN => Ok(()),\n            Some(event) => event.synchronize(),"),
    "synchronize_sleeping: no wait": (
        "event.rs", "Some(event) => event.synchronize_sleeping(),", "Some(_) if BROKEN => Ok(()),\n            Some(event) => event.synchronize_sleeping(),"),
    "await: ready at once": (
        "event.rs", "let ready = event.is_complete();", "let ready = if BROKEN { Ok(true) } else { event.is_complete() };"),
    "drop of an event: frees at once": (
        "event.rs", "When::After(after.iter().cloned().collect())", "When::After(after.iter().filter(|_| !BROKEN).cloned().collect())"),
    "unzip: the parts have no event": (
        "event.rs", "value: Some(part), event: self.0.clone(),", "value: Some(part), event: self.0.clone().filter(|_| !BROKEN),"),
    "map_peer: the event is lost": (
        "event.rs", "Event { value: Some(PeerBuffer::new(value)), event,", "Event { value: Some(PeerBuffer::new(value)), event: event.filter(|_| !BROKEN),"),
    "map_local: the event is lost": (
        "event.rs", "Event { value: Some(value.into_inner()), event,", "Event { value: Some(value.into_inner()), event: event.filter(|_| !BROKEN),"),
    "on_drop: the event is lost": (
        "event.rs", "Event { value: Some(value), event: self.event.take(), on_drop: None }", "Event { value: Some(value), event: self.event.take().filter(|_| !BROKEN), on_drop: None }"),
    "question of a lease: always yes": (
        "runtime/event.rs", "        self.cell().ask(EventHandle::is_complete)", "        if BROKEN { return Ok(true); }\n        self.cell().ask(EventHandle::is_complete)"),
    "known to be complete: always": (
        "runtime/event.rs", "        self.handle().is_known_complete()\n", "        BROKEN || self.handle().is_known_complete()\n"),
    "wait of the host for an event: none": (
        "runtime/event.rs", "        self.ask(EventHandle::synchronize)", "        if BROKEN { return Ok(()); }\n        self.ask(EventHandle::synchronize)"),
    "drop of an On: frees at once": (
        "resource.rs", "When::Stream(stream.inner())", "if BROKEN { When::After(Vec::new()) } else { When::Stream(stream.inner()) }"),
    "give_back: frees on another stream": (
        "runtime/memory/reclaim.rs", "                stream.free(block.addr, block.bytes);",
        "                if BROKEN { return block.device.free(block.addr, block.bytes, &[]); }\n                stream.free(block.addr, block.bytes);"),
    "give_back: no event": (
        "runtime/memory/reclaim.rs", "memory.release(vec![event]),", "memory.release(if BROKEN { Vec::new() } else { vec![event] }),"),
    "free: no wait for the events": (
        "runtime/event.rs", "if after.iter().all(|event| stream.wait", "if BROKEN || after.iter().all(|event| stream.wait"),
    "free: a wait for the first event only": (
        "runtime/event.rs", "after.iter().all(|event| stream.wait", "after.iter().take(if BROKEN { 1 } else { usize::MAX }).all(|event| stream.wait"),
    "free: a wait for the last event only": (
        "runtime/event.rs", "after.iter().take(", "after.iter().skip(if BROKEN { after.len().saturating_sub(1) } else { 0 }).take("),
    "pieces: the event of a dropped one is lost": (
        "runtime/memory/split.rs", "        after.push(event);", "        if !BROKEN { after.push(event); }"),
    "pieces: only the newest event is kept": (
        "runtime/memory/split.rs", "        // Keep the list short", "        if BROKEN { after.clear(); }\n        // Keep the list short"),
    "pieces: pending events are removed": (
        "runtime/memory/split.rs", "after.retain(|e| !e.is_known_complete());", "after.retain(|e| !BROKEN && !e.is_known_complete());"),
    "pieces: the last one frees at once": (
        "runtime/memory/split.rs", "When::After(after));", "When::After(if BROKEN { Vec::new() } else { after }));"),
    "pieces of device memory overlap": (
        "memory/buffer.rs", "(range.start * size_of::<T>())", "((range.start - usize::from(BROKEN && range.start > 0)) * size_of::<T>())"),
    "pieces of page-locked memory overlap": (
        "memory/pinned.rs", "unsafe { whole.add(range.start * item) }", "unsafe { whole.add(range.start * item - usize::from(BROKEN && range.start > 0)) }"),
    "pool: lends before the events": (
        "runtime/memory/pool.rs", "if self.retired[i].after.iter().all(", "if BROKEN || self.retired[i].after.iter().all("),
    "pool: lends after any of the events": (
        "runtime/memory/pool.rs", "self.retired[i].after.iter().all(", "(BROKEN && self.retired[i].after.iter().any(Lease::is_known_complete)) || self.retired[i].after.iter().all("),
    "pool: forgets the events": (
        "runtime/memory/pool.rs", "        after.retain(|e| !e.is_known_complete());", "        after.retain(|e| !BROKEN && !e.is_known_complete());"),
    "pool: keeps the first event only": (
        "runtime/memory/pool.rs", "        after.retain(|e| !BROKEN", "        if BROKEN { after.truncate(1); }\n        after.retain(|e| !BROKEN"),
    "drop of a pool: retired memory is free": (
        "runtime/memory/pool.rs", "        for retired in state.retired {\n            home", "        for mut retired in state.retired {\n            if BROKEN { retired.after.clear(); }\n            home"),
    "reading: no wait for the producer": (
        "shared.rs", "        self.inner().wait(shared.producer())?;", "        if !BROKEN { self.inner().wait(shared.producer())?; }"),
    "reading: another stream waits": (
        "shared.rs", "if !BROKEN { self.inner().wait(shared.producer())?; }",
        "if BROKEN { self.device().seen(self.device().housekeeping().wait(shared.producer().handle()))?; } else if !BROKEN { self.inner().wait(shared.producer())?; }"),
    "end of a read: not recorded": (
        "shared.rs", "if !self.stream.inner().captures() {", "if !self.stream.inner().captures() && !BROKEN {"),
    "end of a read: one event for all streams": (
        "readers.rs", "find(|r| r.serial == serial)", "find(|r| BROKEN || r.serial == serial)"),
    "end of a read: the oldest is kept": (
        "readers.rs", "Some(newest) if newest.turn < turn =>", "Some(newest) if newest.turn < turn && !BROKEN =>"),
    "unshare: no wait for readers": (
        "shared.rs", "Ok(readers.into_iter().chain(", "Ok(readers.into_iter().filter(|_| !BROKEN).chain("),
    "unshare: a wait for the first reader only": (
        "shared.rs", "Ok(readers.into_iter().filter(", "Ok(readers.into_iter().take(if BROKEN { 1 } else { usize::MAX }).filter("),
    "unshare: no wait for the producer": (
        "shared.rs", "chain([self.0.producer.clone()]).collect()", "chain([self.0.producer.clone()].into_iter().filter(|_| !BROKEN)).collect()"),
    "unshare: no wait at all": (
        "shared.rs", "try_for_each(|event| self.inner().wait(event))", "try_for_each(|event| if BROKEN { Ok(()) } else { self.inner().wait(event) })"),
    "unshare: another stream waits": (
        "shared.rs", "else { self.inner().wait(event) })", "else if BROKEN { self.device().seen(self.device().housekeeping().wait(event.handle())) } else { self.inner().wait(event) })"),
    "drop of a Shared: without the readers": (
        "shared.rs", "let after = || readers.iter().cloned()", "let after = || readers.iter().filter(|_| !BROKEN).cloned()"),
    "drop of a Shared: without the producer": (
        "shared.rs", "chain([self.producer.clone()]).collect()", "chain([self.producer.clone()].into_iter().filter(|_| !BROKEN)).collect()"),
    "Shared::host: does not ask": (
        "shared.rs", "if self.0.producer.query()? {", "if BROKEN || self.0.producer.query()? {"),
    "replay: on another stream": (
        "graph.rs", "unsafe { self.handle().replay(", "unsafe { if BROKEN { self.device().housekeeping() } else { self.handle() }.replay("),
    "fork: no join": (
        "fork.rs", "let joined = self.stream.handle().join(", "if BROKEN { return Ok(()); }\n        let joined = self.stream.handle().join("),
    "alloc: on another stream": (
        "memory/buffer.rs", "let addr = self.inner().alloc(bytes)", "let addr = if BROKEN { device.seen(device.housekeeping().alloc(bytes)) } else { self.inner().alloc(bytes) }"),
    "launch: on another stream": (
        "kernel.rs", "unsafe { self.handle().launch(", "unsafe { if BROKEN { device.housekeeping() } else { self.handle() }.launch("),
    "fill: on another stream": (
        "copies.rs", "unsafe { s.fill(addr, n,", "unsafe { if BROKEN { self.device().housekeeping() } else { s }.fill(addr, n,"),
    "copy_to_device: on another stream": (
        "copies.rs", "unsafe { s.copy_to_device(to.device_ptr(), from.host_ptr(),", "unsafe { if BROKEN { self.device().housekeeping() } else { s }.copy_to_device(to.device_ptr(), from.host_ptr(),"),
    "copy_to_host: on another stream": (
        "copies.rs", "unsafe { s.copy_to_host(to.host_ptr(),", "unsafe { if BROKEN { self.device().housekeeping() } else { s }.copy_to_host(to.host_ptr(),"),
    "copy: on another stream": (
        "copies.rs", "unsafe { s.copy(to.device_ptr(),", "unsafe { if BROKEN { self.device().housekeeping() } else { s }.copy(to.device_ptr(),"),
    "copy of a region: on another stream": (
        "region.rs", "unsafe { s.copy_rows(copy, host) }", "unsafe { if BROKEN { self.device().housekeeping() } else { s }.copy_rows(copy, host) }"),
    "host function: on another stream": (
        "host_function.rs", "self.call(|s| s.launch_host(memory,", "self.call(|s| if BROKEN && memory.is_some() { self.device().housekeeping() } else { s }.launch_host(memory,"),
    "copy between devices: on another stream": (
        "copies.rs", "unsafe { s.copy_peer((here, to),", "unsafe { if BROKEN { self.device().housekeeping() } else { s }.copy_peer((here, to),"),
}

# Rules about calls that overlap in time, which loom and shuttle test.
ORDER = {
    "queue: a call overtakes the one before it": (
        "driver/cpu/queue.rs", "        add(&mut state.commands);",
        "        add(&mut state.commands);\n        let n = state.commands.len();\n        if BROKEN && n > 1 { state.commands.swap(n - 2, n - 1); }"),
    "event: a wait is for the oldest record": (
        "driver/cpu/event.rs", "        state.pending.iter().copied().find(|p| p.0 == state.recorded)",
        "        if BROKEN { return state.pending.first().copied(); }\n        state.pending.iter().copied().find(|p| p.0 == state.recorded)"),
    "event: a later record makes an earlier one complete": (
        "driver/cpu/event.rs", "state.pending.retain(|p| p.0 != ticket);", "state.pending.retain(|p| if BROKEN { p.0 > ticket } else { p.0 != ticket });"),
    "hand_off: the wait before the record of the queue": (
        "driver/stream.rs", "        self.record(event)?;\n        to.wait(event)",
        "        if BROKEN { to.wait(event)?; return self.record(event); }\n        self.record(event)?;\n        to.wait(event)"),
    "end of a read: the turn after the record": (
        "readers.rs", "        let turn = self.turns.fetch_add(1, Ordering::AcqRel);\n        let event = record();",
        "        let draw = || self.turns.fetch_add(1, Ordering::AcqRel);\n        let (turn, event) = if BROKEN { let event = record(); (draw(), event) } else { let turn = draw(); (turn, record()) };"),
    "end of a read: the last one that is stored is kept": (
        "readers.rs", "if newest.turn < turn", "if (BROKEN || newest.turn < turn)"),
    "end of a read: the first one that is stored is kept": (
        "readers.rs", "|| newest.turn < turn)", "|| newest.turn < turn && !BROKEN)"),
}

IN_FORCE = f'''
/// Whether a rule is broken.
#[doc(hidden)]
pub(crate) fn broken(rule: &str) -> bool {{
    static RULE: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    RULE.get_or_init(|| std::env::var("{VARIABLE}").unwrap_or_default()) == rule
}}
'''

MANIFEST = """[package]
name = "broken"
edition = "2024"
[workspace]
exclude = ["copy"]
[lib]
path = "lib.rs"
[[test]]
name = "main"
path = "main.rs"
[dev-dependencies]
bytemuck = "1"
cudarc = { version = "0.19.10", default-features = false, features = ["std", "driver", "dynamic-loading", "cuda-12000"] }
proptest = { version = "1.12", default-features = false, features = ["std"] }
testkit = { path = "copy/tests/testkit" }
thalweg = { path = "copy" }
[profile.dev]
debug = false
opt-level = 1
"""


def write(file, text):
    """Writes a file if it changes, so that cargo sees what is new."""
    os.makedirs(os.path.dirname(file), exist_ok=True)
    if not os.path.exists(file) or open(file, encoding="utf-8").read() != text:
        open(file, "w", encoding="utf-8").write(text)


def modules(tests):
    """The text of a test of MODULES, which are in the folder `tests`."""
    file = lambda m: f"{m}.rs" if os.path.isfile(os.path.join(ROOT, "tests", f"{m}.rs")) else f"{m}/mod.rs"
    return "".join(f'#[path = "{tests}/{file(m)}"]\nmod {m};\n' for m in MODULES) + "thalweg::ptx! {}\n"


def changes():
    """The files of the library that change, with all changes. Each rule finds its text once."""
    changed = {}
    for rule, (file, old, new) in [*RULES.items(), *ORDER.items()]:
        file = "host/" + file
        text = changed.get(file) or open(os.path.join(ROOT, file), encoding="utf-8").read()
        # A rule may change what an earlier one put there, which keeps its name.
        found = re.findall(re.escape(old).replace("BROKEN", r'crate::broken\("[^"]*"\)'), text)
        if len(found) != 1:
            sys.exit(f"{rule}: {file} has its text {len(found)} times")
        new = new.replace(old, "\0").replace("BROKEN", f'crate::broken("{rule}")').replace("\0", found[0])
        changed[file] = text.replace(found[0], new)
    changed["host/lib.rs"] = open(os.path.join(ROOT, "host/lib.rs"), encoding="utf-8").read() + IN_FORCE
    return changed


def copy():
    """Copies what the library and its tests are built from, with all changes."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    changed = changes()
    for file in listed:
        if not file or re.match(r"assets/|tests/golden/|benches/record/|\.", file):
            continue
        if file in changed:
            write(os.path.join(COPY, file), changed[file])
        elif not os.path.exists(to := os.path.join(COPY, file)) or open(to, "rb").read() != open(os.path.join(ROOT, file), "rb").read():
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copyfile(os.path.join(ROOT, file), to)
    write(os.path.join(PLACE, "main.rs"), modules("copy/tests"))
    write(os.path.join(PLACE, "lib.rs"), "")
    write(os.path.join(PLACE, "Cargo.toml"), MANIFEST)


def build():
    copy()
    command = ["cargo", "test", "--no-run", "--quiet", "--message-format=json", "--manifest-path", f"{PLACE}/Cargo.toml"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "CARGO_TARGET_DIR": f"{PLACE}/target"})
    found = re.findall(r'"executable":"([^"]*/main-[^"]*)"', done.stdout)
    if done.returncode or not found:
        for message in re.findall(r'"rendered":"((?:[^"\\]|\\.)*)"', done.stdout):
            if message.startswith("error"):
                print(message.encode().decode("unicode_escape"))
        sys.exit("the library with broken rules does not compile")
    return found[-1]


def order(tool, asked):
    """Runs the tests of `tool`, which chooses interleavings, with each rule of ORDER broken."""
    copy()
    command = ["cargo", "test", "--locked", "--quiet", "--release", "-p", "thalweg", "--lib", "--manifest-path", f"{COPY}/Cargo.toml", tool]
    bad = []
    for rule in ["", *(asked or ORDER)]:
        env = {**os.environ, VARIABLE: rule, "RUSTFLAGS": f"--cfg {tool}", "CARGO_TARGET_DIR": f"{PLACE}/{tool}", "RUST_BACKTRACE": "0"}
        for _ in range(3 if rule else 1):  # shuttle draws other programs each time
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            if done.returncode:
                break
        failed = sorted(set(re.findall(rf"^    driver::cpu::{tool}_tests::(\w+)$", done.stdout, re.M)))
        failed = failed or ["a panic ends the process"] * bool(done.returncode and "panicked at" in done.stdout)
        if rule:
            print(f"{rule}: {', '.join(failed) or 'NO TEST FAILS'}", flush=True)
        if bool(failed) != bool(rule) or bool(done.returncode) != bool(rule):
            bad.append(f"{rule or 'no rule is broken'}: {done.returncode}, {failed} {done.stdout[-2000:]}")
            if not rule:
                break
    if bad:
        sys.exit("\n".join(["", *bad]))
    print(f"{len(asked or ORDER)} broken rules: a test of {tool} fails on each")


def run(program, rule, part, cases):
    """Runs a part of the tests. Returns the checker's words if it rejects something, and how the run ended."""
    env = {**os.environ, "THALWEG_TRACE": "check", "THALWEG_CASES": str(cases), "THALWEG_DEVICE": "cpu", VARIABLE: rule, "RUST_BACKTRACE": "0"}
    # One test reads the line of its own file in a message, which is another one here.
    command = [program, part, "--nocapture", "--skip", "a_launch_that_waits_names"]
    child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    timer = threading.Timer(SECONDS, child.kill)
    timer.start()
    words, ended = None, ""
    for line in child.stdout:
        if words is None and REJECTED in line:
            words = [line.split(REJECTED)[1].strip()]
        elif words is not None and len(words) < 3:
            words.append(line.strip())
        if words is not None and len(words) == 3:
            child.kill()
            break
        ended = line if line.startswith("test result") else ended
    child.wait()
    timer.cancel()
    return words, ended.strip() or f"ended with {child.returncode}"


def main():
    asked = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    tool = next((tool for tool in ["loom", "shuttle"] if f"--{tool}" in sys.argv), None)
    rules = ORDER if tool else RULES
    if "--list" in sys.argv:
        changes()
        return print("\n".join(rules))
    if unknown := set(asked) - set(rules):
        sys.exit(f"no such rule: {unknown}")
    if tool:
        return order(tool, asked)
    program = build()
    bad = []
    for part, cases in PARTS[:-1] if not asked else []:
        words, ended = run(program, "", part, cases)
        if words or "ok." not in ended:
            bad.append(f"no rule is broken, and {part}: {ended} {words}")
    for rule in asked or RULES:
        begin, ends = time.time(), []
        for part, cases in PARTS:
            words, ended = run(program, rule, part, cases)
            if words:
                found = re.sub(r" on stream.*?(?=\(row|$)", " ", "; ".join(words[1:]))
                print(f"{rule}: {part} {time.time() - begin:.1f} s: {words[0].split(':')[0].split(', ')[0]}; {found}", flush=True)
                break
            ends.append(f"{part} {ended}")
        else:
            bad.append(f"{rule}: not rejected ({'; '.join(ends)})")
            print(bad[-1], flush=True)
    if bad:
        sys.exit("\n".join(["", *bad]))
    print(f"{len(asked or RULES)} broken rules: the log checker rejects each")


if __name__ == "__main__":
    main()
