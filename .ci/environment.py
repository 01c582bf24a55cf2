#!/usr/bin/env python3
"""Compares docs/environment.md with the code.

- The tables of "Set by you" and "Of other programs" have the variables that sources, build scripts and the command
  name, and no others. The table of "Tests" has those that only tests and benchmarks name.
- Only the files of `READERS` read the environment. A library reads it where its documentation says so.
- Each `THALWEG_...` that a document names is one of the page.

Variables that a test sets for its own children begin with `THALWEG_TEST_` and are left out.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = "docs/environment.md"

# The files of libraries and of the command that may read the environment, and for whom.
READERS = {
    "cli/src/args.rs": "options of the command",
    "collective/src/nccl/handshake.rs": "World::comm and RankEnv::gpu, as NCCL itself reads it",
    "collective/src/nccl/library.rs": "the first World::comm on a GPU",
    "collective/src/options.rs": "WorldOptions::from_env",
    "collective/src/rank_env.rs": "RankEnv::from_env",
    "collective/src/world.rs": "World::device",
    "cublaslt/src/library.rs": "the first CublasLt::new",
    "host/driver/cpu/mod.rs": "constructors of CPU devices",
    "host/driver/cuda/mod.rs": "the error of Device::cuda if there is no device",
    "host/driver/nvtx.rs": "the first range that a timeline marks",
    "host/runtime/device.rs": "constructors of Device",
    "kernels-gpu/build.rs": "a build script",
    "loader/src/loader.rs": "Loader::new",
    "ptx-builder/src/compiler.rs": "build scripts and thalweg-ptx",
    "ptx-builder/src/lib.rs": "build scripts and thalweg-ptx",
}

# Names that a compiler of kernels inherits, and that nobody reads.
INHERITED = {"CARGO_HOME", "CARGO_REGISTR"}

READ = r"\benv::(?:var|var_os|vars|vars_os|home_dir)\s*\(|\benv = \""
NAME = r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|RANK|CARGO|RUSTC)"'
OWN = r"\bTHALWEG_[A-Z0-9_]+\b"


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [f for f in listed.stdout.splitlines() if os.path.isfile(os.path.join(ROOT, f))]


def read(file):
    return open(os.path.join(ROOT, file), encoding="utf-8").read()


def is_source(file):
    """Whether a file is of a library, of the command or a build script, and not a test of it."""
    return re.match(r"(host/|[a-z-]+/src/|(?:[a-z-]+/)?build\.rs$)", file) and not (
        file.startswith("xtask/") or file.endswith("tests.rs")
    )


def code(file):
    """The text of a source without its tests, comments and the variables that it sets for children."""
    text = re.split(r"^#\[cfg\((?:all\()?test\b[^\n]*\n(?:#[^\n]*\n)*mod \w+ \{", read(file), flags=re.M)[0]
    text = re.sub(r"(?<![:\"])//[^\n]*", "", text)
    return re.sub(r"\.env(?:_remove)?\(\s*\"\w+\"", "", text)


def named():
    """The variables that sources name, and the own ones that only tests and benchmarks name."""
    sources, tests = set(), set()
    for file in tracked("*.rs"):
        if is_source(file):
            text = code(file)
            # In a file that reads the environment, each text in capitals is the name of a variable.
            sources |= {n for n in re.findall(NAME, text) if file in READERS or n.startswith("THALWEG_")}
            sources -= INHERITED
        elif not file.startswith("simt/tests/vocabulary"):
            tests |= {n for n in re.findall(NAME, read(file)) if n.startswith("THALWEG_")}
    return sources, {n for n in tests - sources if not n.startswith("THALWEG_TEST_")}


def tables(text):
    """The variables of the first columns, by heading."""
    found, heading = {}, ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        if line.startswith("| `"):
            found.setdefault(heading, []).extend(re.findall(r"`([A-Z][A-Z0-9_]+)`", line.split("|")[1]))
    return found


def main():
    wrong = []
    page = tables(read(PAGE))
    sources, tests = named()
    expected = {
        "Set by you": {n for n in sources if n.startswith("THALWEG_")},
        "Of other programs": {n for n in sources if not n.startswith("THALWEG_")},
        "Tests": tests,
    }
    for heading, names in expected.items():
        listed = page.get(heading, [])
        wrong += [f"{PAGE}, {heading}: {n} is missing" for n in sorted(names - set(listed))]
        wrong += [f"{PAGE}, {heading}: the code does not name {n}" for n in sorted(set(listed) - names)]
        wrong += [f"{PAGE}, {heading}: {n} is there twice" for n in sorted({n for n in listed if listed.count(n) > 1})]
    readers = {f for f in tracked("*.rs") if is_source(f) and re.search(READ, code(f))}
    wrong += [f"{f} reads the environment and is not in READERS of .ci/environment.py" for f in sorted(readers - set(READERS))]
    wrong += [f"{f} is in READERS of .ci/environment.py and does not read the environment" for f in sorted(set(READERS) - readers)]
    known = {n for names in page.values() for n in names}
    for file in tracked("*.md", "docs/*", "*.yml"):
        if not file.startswith(("benches/record/", "CHANGELOG")):
            stale = {n for n in re.findall(OWN, read(file)) if n not in known and not n.endswith("_")}
            wrong += [f"{file}: {PAGE} has no {n}" for n in sorted(stale)]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(sources) + len(tests)} variables of the environment are on {PAGE}; {len(readers)} files read them")


main()
