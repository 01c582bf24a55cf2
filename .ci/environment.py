#!/usr/bin/env python3
"""Compares docs/environment.md with the code.

- The tables of "Set by you" and "Of other programs" have the variables that sources, build scripts and the command
  name, and no others. The table of "Tests" has those that only tests and benchmarks name.
- Only the functions of `READERS` read the environment. They are called by constructors, whose documentation says so:
  it has the name of a variable.
- Each `THALWEG_...` that a document names is one of the page.

Variables that a test sets for its own children begin with `THALWEG_TEST_` and are left out.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = "docs/environment.md"

# The functions of libraries and of the command that may read the environment (or the structs whose options clap reads
# from it), each with the constructor of the same crate whose documentation says so, or with the reason in parentheses.
READERS = {
    "cli/src/args.rs: DeviceArg": "(`--help` names the variable)",
    "cli/src/args.rs: DecodeArg": "(`--help` names the variable)",
    "cli/src/args.rs: ProcessArgs": "(`--help` names the variable)",
    "collective/src/nccl/handshake.rs: shares": "World::comm, RankEnv::gpu",
    "collective/src/nccl/library.rs: get": "World::comm",
    "collective/src/options.rs: from_env": "WorldOptions::from_env",
    "collective/src/rank_env.rs: from_env": "RankEnv::from_env",
    "collective/src/world.rs: device": "World::device",
    "cublaslt/src/library.rs: get": "CublasLt::new",
    "host/driver/cpu/mod.rs: new": "Device::cpu, Device::checked_cpu",
    "host/driver/cuda/mod.rs: hidden": "Device::cuda",
    "host/cupti.rs: get": "Timeline::with_all_work",
    "host/driver/nvtx.rs: injected": "Timeline::new",
    "host/driver/trace/mod.rs: start": "Device::cpu, Device::cuda",
    "host/runtime/device.rs: check_all": "Device::checked_cpu",
    "host/runtime/device.rs: chosen": "Device::best, Device::from_env",
    "host/runtime/device.rs: new": "Device::set_launch_blocking",
    "kernels-gpu/build.rs: main": "(a build script reads the features that cargo passes)",
    "loader/src/options.rs: from_env": "LoaderOptions::from_env",
    "ptx-builder/src/compiler.rs: at": "(cargo passes its own path to build scripts)",
    "ptx-builder/src/compiler.rs: cargo": "(removes what a compiler of kernels must not inherit)",
    "ptx-builder/src/compiler.rs: find": "PtxBuilder::build",
    "ptx-builder/src/compiler.rs: installed": "(rustup's own folder, for a build script)",
    "ptx-builder/src/lib.rs: build_to_out_dir": "build_to_out_dir",
    "ptx-builder/src/lib.rs: compiles_for_gpu": "(cargo passes the target to build scripts)",
    "ptx-builder/src/lib.rs: out_dir": "(cargo passes the folder to build scripts)",
    "ptx-builder/src/lib.rs: without_ptx": "without_ptx",
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


def readers(file):
    """The functions of a source that read the environment, and the structs of options that clap reads from it."""
    text = code(file)
    for found in re.finditer(READ, text):
        yield re.findall(r"\b(?:fn|struct) (\w+)", text[: found.start()])[-1]


def says_so(crate, path):
    """Whether a public function of a crate, as in `Type::function`, has a variable in its documentation."""
    kind, _, name = path.rpartition("::")
    for file in tracked(f"{crate}/*.rs"):
        text = read(file)
        for found in re.finditer(rf"((?: *///[^\n]*\n| *#\[[^\n]*\n)+) *pub (?:const )?fn {name}\b", text):
            impls = re.findall(r"^impl(?:<[^\n]*?>)? (?:[\w<>: ]+ for )?(\w+)", text[: found.start()], flags=re.M)
            if (not kind or impls[-1:] == [kind]) and re.search(r"\b[A-Z]+_[A-Z0-9_]+\b|environment", found[1]):
                return True
    return False


def named():
    """The variables that sources name, and the own ones that only tests and benchmarks name."""
    sources, tests = set(), set()
    files = {reader.split(":")[0] for reader in READERS}
    for file in tracked("*.rs"):
        if is_source(file):
            text = code(file)
            # In a file that reads the environment, each text in capitals is the name of a variable.
            sources |= {n for n in re.findall(NAME, text) if file in files or n.startswith("THALWEG_")}
            sources -= INHERITED
        elif not file.startswith("simt/tests/vocabulary"):
            tests |= {n for n in re.findall(NAME, read(file)) if n.startswith("THALWEG_")}
    for file in tracked("python/lib/**.py"):
        sources |= {n for n in re.findall(NAME, read(file)) if n.startswith("THALWEG_")}
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
    found = {f"{f}: {name}" for f in tracked("*.rs") if is_source(f) for name in readers(f)}
    wrong += [f"{r} reads the environment and is not in READERS of .ci/environment.py" for r in sorted(found - set(READERS))]
    wrong += [f"{r} is in READERS of .ci/environment.py and does not read the environment" for r in sorted(set(READERS) - found)]
    for reader, constructors in READERS.items():
        if not constructors.startswith("("):
            crate = reader.split("/")[0]
            silent = [c for c in constructors.split(", ") if not says_so(crate, c)]
            wrong += [f"{c}: the documentation does not say that it reads the environment" for c in silent]
    known = {n for names in page.values() for n in names}
    for file in tracked("*.md", "docs/*", "*.yml"):
        if not file.startswith(("benches/record/", "CHANGELOG")):
            stale = {n for n in re.findall(OWN, read(file)) if n not in known and not n.endswith("_")}
            wrong += [f"{file}: {PAGE} has no {n}" for n in sorted(stale)]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(sources) + len(tests)} variables of the environment are on {PAGE}; {len(found)} functions read them")


main()
