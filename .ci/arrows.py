#!/usr/bin/env python3
"""Checks the direction of the arrows: which file names which.

usage: .ci/arrows.py [--graph]

In each crate, files may not name one another in a circle, apart from a module and the files in its folder. In `host`, a room
names only rooms below it: errors, then driver, runtime, the typed layer, and on top overlap and timeline. The files of the
runtime are in the order that docs/ARCHITECTURE.md gives. What is behind
`#[cfg(test)] mod tests`, and the root `lib.rs`, which re-exports everything, does not count.

The f64 reference of the tests names no crate, so it shares nothing with the kernels. Where cargo does not find tests by
itself, each file of them is a module of one: a file that none names would not be run.
"""

import glob

import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CRATES = ["host", "vision/src", "loader/src", "jpeg/src", "processor/src", "cublaslt/src", "train/src", "collective/src", "kernels-gpu/src", "simt/src", "ptx-builder/src", "cli/src"]
# The rooms of `host`, from the lowest; a file in none of them is in the typed layer.
ROOMS = ["error", "driver", "runtime", None, "overlap timeline"]


def room(file):
    top = file.split("/")[0].removesuffix(".rs")
    for level, names in enumerate(ROOMS):
        if names and top in names.split():
            return level
    return ROOMS.index(None)


def strip(text):
    """The text without comments, strings and the tests at its end."""
    text = re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", text)[0]
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def names(text):
    """The paths that a text names from `crate::` or `super::` on, with braces written out."""
    found = []
    for m in re.finditer(r"\b(crate|(?:super::)*super|self)::", text):
        found += expand(m[1], text, m.end())
    return found


def expand(prefix, text, at):
    """The paths that begin with `prefix` and go on in `text` at `at`, which may be a tree in braces."""
    if text[at : at + 1] == "{":
        paths, depth, start = [], 1, at + 1
        end = start
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        for part in split(text[start : end - 1]):
            paths += expand(prefix, part.strip(), 0)
        return paths
    m = re.match(r"\s*(\w+|\*)(::)?", text[at:])
    if not m:
        return []
    path = f"{prefix}::{m[1]}"
    return expand(path, text, at + m.end()) if m[2] else [path]


def split(text):
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += {"{": 1, "}": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [p for p in parts + [text[start:]] if p.strip()]


class Crate:
    def __init__(self, folder):
        self.folder = folder
        base = os.path.join(ROOT, folder)
        self.files = {}  # module path, as ("a", "b"), to file
        self.texts = {}
        for at, _, files in os.walk(base):
            for file in files:
                if not file.endswith(".rs") or file in ("tests.rs", "loom_tests.rs", "shuttle_tests.rs"):
                    continue
                path = os.path.relpath(os.path.join(at, file), base)
                parts = path.removesuffix(".rs").split("/")
                if parts[-1] in ("mod", "lib", "main"):
                    parts.pop()
                self.files[tuple(parts)] = path
                self.texts[path] = strip(open(os.path.join(at, file)).read())

    def exports(self, module):
        """Which module a name that `module` re-exports comes from."""
        text = self.texts.get(self.files.get(module, ""), "")
        found = {}
        for m in re.finditer(r"^\s*pub(?:\([^)]*\))? use ([\w:]+::(?:\{.*?\}|\w+|\*));", text, re.M | re.S):
            for path in expand("", "::" + m[1] if not m[1].startswith("::") else m[1], 2):
                parts = [p for p in path.split("::") if p not in ("", "crate", "self")]
                if tuple(module) + (parts[0],) in self.files:
                    found[parts[-1]] = tuple(module) + (parts[0],)
        return found

    def resolve(self, module, path):
        """The file that a path names, seen from `module`."""
        parts = path.split("::")
        at = () if parts[0] == "crate" else module
        for part in parts:
            if part == "super":
                at = at[:-1]
        parts = [p for p in parts if p not in ("crate", "super", "self")]
        while parts:
            if at + (parts[0],) in self.files:
                at += (parts.pop(0),)
                continue
            inner = self.exports(at).get(parts[0])
            if inner is None:
                break
            at = inner
        return self.files.get(at)

    def edges(self):
        edges = {}
        for module, file in self.files.items():
            targets = {self.resolve(module, path) for path in names(self.texts[file])}
            edges[file] = {t for t in targets if t and t != file}
        return edges

    def module(self, file):
        return next(m for m, f in self.files.items() if f == file)

    def related(self, a, b):
        """Whether one is the module in whose folder the other is."""
        a, b = self.module(a), self.module(b)
        return a == b[: len(a)] or b == a[: len(b)]


def circles(edges):
    """The strongly connected parts of more than one file (Tarjan)."""
    index, low, stack, on, found, count = {}, {}, [], set(), [], [0]

    def visit(v):
        index[v] = low[v] = count[0]
        count[0] += 1
        stack.append(v)
        on.add(v)
        for w in sorted(edges.get(v, ())):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            part = []
            while True:
                w = stack.pop()
                on.discard(w)
                part.append(w)
                if w == v:
                    break
            if len(part) > 1:
                found.append(sorted(part))

    sys.setrecursionlimit(10000)
    for v in sorted(edges):
        if v not in index:
            visit(v)
    return found


def runtime():
    """The files of the runtime, in the order of docs/ARCHITECTURE.md."""
    page = open(os.path.join(ROOT, "docs", "ARCHITECTURE.md")).read()
    return re.findall(r"`(\w+)`", re.search(r"those before them in this order:(.*?)\.", page, re.S)[1])


def backwards(edges):
    """What of the runtime is not in its order."""
    order = runtime()
    part = lambda file: file.split("/")[1].removesuffix(".rs")
    files = {file for file in edges if file.startswith("runtime/") and part(file) != "mod"}
    for missing in sorted({part(file) for file in files} ^ set(order)):
        yield f"runtime/{missing} is only in one of host/runtime and the order in docs/ARCHITECTURE.md"
    places = {name: at for at, name in enumerate(order)}
    for file in sorted(files):
        for target in sorted(edges[file] & files):
            if places.get(part(target), 0) > places.get(part(file), 0):
                yield f"host/{file} names {target}, which comes after it"


def oracle():
    """What the f64 reference names outside of itself and of the standard library."""
    folder = os.path.join(ROOT, "tests", "testkit", "src", "oracle")
    own = {name.removesuffix(".rs") for name in os.listdir(folder)}
    for name in sorted(os.listdir(folder)):
        text = strip(open(os.path.join(folder, name)).read())
        for first in sorted(set(re.findall(r"(?<![\w:])(?:::)?([a-z_]\w*)::(?!<)", text))):
            if first not in own | {"std", "super", "clippy"} and not re.fullmatch(r"[fiu](\d+|size)", first):
                yield f"tests/testkit/src/oracle/{name} names `{first}`, and the reference stands alone"
        if "super::super" in text:
            yield f"tests/testkit/src/oracle/{name} names what is above the reference"


def not_run():
    """Files of tests that are no module of a test."""
    manifests = ["Cargo.toml"] + [os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "*", "Cargo.toml"))]
    for manifest in sorted(manifests):
        text = open(os.path.join(ROOT, manifest)).read()
        if not re.search("^autotests = false", text, re.M):
            continue
        package = os.path.dirname(manifest)
        named = re.findall(r'\[\[test\]\]\nname = "(\w+)"\n(?:path = "tests/([^"]+)")?', text)
        roots = {path or f"{name}.rs" for name, path in named}
        tests = os.path.join(ROOT, package, "tests")
        modules = set()
        for root in roots:
            modules |= set(re.findall(r"^mod (\w+);", open(os.path.join(tests, root)).read(), re.M))
        files = [os.path.relpath(path, tests) for pattern in ("*.rs", "*/mod.rs") for path in glob.glob(os.path.join(tests, pattern))]
        for file in sorted(set(files) - roots):
            if file.removesuffix(".rs").removesuffix("/mod") not in modules:
                yield f"{package or '.'}/tests/{file} is a module of no test, so it is not run"


def main():
    bad = 0
    for wrong in [*oracle(), *not_run()]:
        print(wrong)
        bad += 1
    for folder in CRATES:
        crate = Crate(folder)
        roots = {crate.files.get(())} | {"main.rs", "lib.rs"}
        edges = crate.edges()
        if "--graph" in sys.argv:
            for file in sorted(edges):
                print(f"{folder}/{file}: {' '.join(sorted(edges[file]))}")
        if folder == "host":
            for file in sorted(edges):
                for target in sorted(edges[file]):
                    if file not in roots and target not in roots and room(target) > room(file):
                        print(f"{folder}/{file} names {target}, which is in a room above it")
                        bad += 1
            for wrong in backwards(edges):
                print(wrong)
                bad += 1
        # Arrows between a module and its own files are one file's business, as far as circles go.
        apart = {f: {t for t in ts if t not in roots and not crate.related(f, t)} for f, ts in edges.items() if f not in roots}
        for part in circles(apart):
            print(f"{folder}: a circle of {', '.join(part)}")
            bad += 1
    if bad:
        sys.exit(f"{bad} arrows in the wrong direction")
    print("arrows: every file names files below it only")


main()
