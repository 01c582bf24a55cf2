#!/usr/bin/env python3
"""Runs the random programs of `tests/streams` and tests of states under ThreadSanitizer or Miri.

usage: tests/sanitize.py thread|miri [FILTER...]

ThreadSanitizer watches the threads of the host and of the CPU device: two accesses to one address, of which one is a
write, that no lock, atomic or join orders. The standard library is built for it, so that its locks are seen. Miri looks
for undefined behavior of all `unsafe` code that a program runs, and for races.

Both need a nightly Rust with the component `rust-src`, and `miri` for Miri: `rustup toolchain install nightly -c rust-src
-c miri`. `THALWEG_CASES` sets the number of programs. The package that is built is in target/sanitize.
"""

import os
import subprocess
import sys

from broken_rules import MANIFEST, ROOT, modules, write

PLACE = os.path.join(ROOT, "target", "sanitize")
TARGET = "x86_64-unknown-linux-gnu"
# The flags, the command, the number of random programs, and the tests that run if none are named.
TOOLS = {
    "thread": ("-Zsanitizer=thread", ["test", "-Zbuild-std", "--target", TARGET, "--release"], 200,
               ["streams::", "states::", "shared_graphs::", "forks::", "foreign::"]),
    "miri": ("", ["miri", "test", "--target", TARGET], 2, ["streams::under_seeded_schedules"]),
}  # fmt: skip
PROFILE = "[profile.release]\nopt-level = 1\ndebug = 1\ndebug-assertions = true\nlto = false\n"


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in TOOLS:
        sys.exit(__doc__)
    flags, command, cases, filters = TOOLS[sys.argv[1]]
    write(os.path.join(PLACE, "main.rs"), modules(os.path.join(ROOT, "tests")))
    write(os.path.join(PLACE, "lib.rs"), "")
    write(os.path.join(PLACE, "Cargo.toml"), MANIFEST.replace('exclude = ["copy"]\n', '').replace("copy", ROOT) + PROFILE)
    write(os.path.join(PLACE, "Cargo.lock"), open(os.path.join(ROOT, "Cargo.lock"), encoding="utf-8").read())
    env = {
        "RUSTFLAGS": flags,
        "CARGO_TARGET_DIR": f"{PLACE}/target",
        "THALWEG_DEVICE": "cpu",
        "THALWEG_CASES": str(cases),
        "TSAN_OPTIONS": "halt_on_error=1",
        "MIRIFLAGS": "-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks",
    }
    cargo = os.environ.get("CARGO", "cargo").split()
    toolchain = [] if "CARGO" in os.environ else ["+nightly"]
    # One test reads the line of its own file in a message, which is another one here.
    tests = [*(sys.argv[2:] or filters), "--skip", "a_launch_that_waits_names"]
    command = [*cargo, *toolchain, *command, "--manifest-path", f"{PLACE}/Cargo.toml", "--test", "main", "--", *tests]
    done = subprocess.run(command, env={**env, **os.environ, "RUSTFLAGS": flags})
    sys.exit(done.returncode)


main()
