#!/usr/bin/env python3
"""Checks names and sentences.

usage: .ci/names.py [--list]

- A public name means one thing: a name that two modules or crates define must be in `ALLOWED`, with the reason.
- Comments have at most 100 columns and Markdown at most 120, apart from tables, links and code.
- The spelling is American.
- A documentation comment begins with a noun or a verb, and not with a clause ("What ...", "How ...", "Where ...").

`--list` prints the public names that are defined twice, with their places.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CRATES = {
    "thalweg": "host/lib.rs",
    "thalweg_simt": "simt/src/lib.rs",
    "thalweg_kernels": "kernels-gpu/src/lib.rs",
    "thalweg_jpeg": "jpeg/src/lib.rs",
    "thalweg_processor": "processor/src/lib.rs",
    "thalweg_loader": "loader/src/lib.rs",
    "thalweg_vision": "vision/src/lib.rs",
    "thalweg_cublaslt": "cublaslt/src/lib.rs",
    "thalweg_train": "train/src/lib.rs",
    "thalweg_collective": "collective/src/lib.rs",
    "thalweg_ptx_builder": "ptx-builder/src/lib.rs",
}

# Public names that mean two things, and why.
ALLOWED = {
    "Error": "each crate has its own",
    "Result": "each crate has its own",
    "In": "a parameter that a kernel reads: as a pointer, and in `safe` as a checked view",
    "Out": "the same for a parameter that a kernel writes",
    "InOut": "the same for a parameter that a kernel reads and writes",
    "Atomic": "an atomic element: in `safe` one that a kernel without `unsafe` may use",
    "Block": "a block of threads: as a scope of atomics, and in `safe` as the argument of a cooperative body",
    "Device": "a device: as a scope of atomics, and as the handle of the host",
    "Global": "a cache hint of loads, as PTX calls it, and an owner in `safe`: neither is used by its short name",
    "TensorMap": "a map of the copy engine: as the host makes it, and as a kernel names it",
}

# Parts of words of British spelling, and what is written instead.
BRITISH = {
    "optimis": "optimiz", "quantis": "quantiz", "colour": "color", "neighbour": "neighbor", "centre": "center",
    "initialis": "initializ", "labelled": "labeled", "normalis": "normaliz", "synchronis": "synchroniz",
    "tokenis": "tokeniz", "summaris": "summariz", "serialis": "serializ", "recognis": "recogniz", "favour": "favor",
    "behaviour": "behavior", "licence": "license", "cancelled": "canceled", "utilis": "utiliz",
}  # fmt: skip
CLAUSE = r"(What|How|Where)\b"
ITEM = r"^pub (?:const |unsafe |async )*(struct|enum|trait|type|fn|union|const|static) (\w+)"


def tracked(*patterns):
    """The files that git knows, without records of measurements and this list of words."""
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [f for f in listed.stdout.splitlines() if os.path.isfile(os.path.join(ROOT, f))]
    return [f for f in files if not f.startswith(("benches/record/", "assets/")) and f != ".ci/names.py"]


def read(file):
    return open(os.path.join(ROOT, file), encoding="utf-8").read()


# --- public names ------------------------------------------------------------------------------------------------


def leaves(prefix, tree):
    """The paths of a `use`, with braces written out, each with the name that it gets."""
    tree = tree.strip()
    if tree.startswith("{"):
        depth, start, parts = 0, 1, []
        for i, c in enumerate(tree):
            depth += {"{": 1, "}": -1}.get(c, 0)
            if depth == 1 and c == "," or depth == 0:
                parts.append(tree[start:i])
                start = i + 1
                if depth == 0:
                    break
        return [leaf for part in parts if part.strip() for leaf in leaves(prefix, part)]
    head, _, rest = tree.partition("::")
    if rest:
        return leaves(prefix + [head.strip()], rest)
    name, _, alias = head.partition(" as ")
    name = name.strip()
    return [(prefix if name == "self" else prefix + [name], alias.strip() or (prefix[-1] if name == "self" else name))]


class Module:
    """A module of a crate: its file and its text without comments, bodies of inner modules and hidden items."""

    def __init__(self, file, text, parent=None):
        self.file, self.parent = file, parent
        text = re.sub(r"//[^\n]*", "", text)
        self.text = re.sub(r"#\[doc\(hidden\)\]\s*(?:#\[[^\n]*\]\s*)*pub (?:use [^;]*;|[^\n]*)", "", text)

    def child(self, name):
        if name in ("super", "crate"):
            above = self.parent
            while name == "crate" and above and above.parent:
                above = above.parent
            return above
        inline = re.search(rf"^ *(?:pub(?:\([^)]*\))? )?mod {name} \{{\n(.*?)^\}}", self.text, re.M | re.S)
        if inline:
            return Module(self.file, re.sub(r"^    ", "", inline[1], flags=re.M), self)
        folder, base = os.path.split(self.file)
        if base not in ("lib.rs", "mod.rs"):
            folder = os.path.join(folder, base.removesuffix(".rs"))
        for file in (f"{name}.rs", f"{name}/mod.rs"):
            if os.path.isfile(os.path.join(ROOT, folder, file)):
                return Module(os.path.join(folder, file), read(os.path.join(folder, file)), self)
        return None

    def defines(self):
        return {m[2]: m[1] for m in re.finditer(ITEM, self.text, re.M)}


def origin(module, name):
    """The file that defines a name which a module may itself export from elsewhere; `None` if that is another crate."""
    if name in module.defines():
        return module.file
    for m in re.finditer(r"^pub(?:\([^)]*\))? use (?:self::)?([^;]+);", module.text, re.M | re.S):
        for parts, alias in leaves([], re.sub(r"\s+", " ", m[1])):
            if alias == name:
                inner = module.child(parts[0])
                for part in parts[1:-1] if inner else ():
                    inner = inner.child(part) or inner
                return origin(inner, parts[-1]) if inner else None
    return module.file  # a macro makes it


def public(root):
    """The public names of a crate: `(name, module, file that defines it)`."""
    found = []

    def visit(module, path):
        for name in module.defines():
            found.append((name, path, module.file))
        for m in re.finditer(r"^pub use (?:self::)?([^;]+);", module.text, re.M | re.S):
            for parts, name in leaves([], re.sub(r"\s+", " ", m[1])):
                inner = module.child(parts[0])
                if inner is None:
                    continue  # of another crate, which defines it
                if name == "*":
                    visit(inner, path)
                    continue
                for part in parts[1:-1]:
                    inner = inner.child(part) or inner
                file = origin(inner, parts[-1])
                if file:
                    found.append((name, path, file))
        for m in re.finditer(r"^pub mod (\w+)", module.text, re.M):
            inner = module.child(m[1])
            if inner:
                visit(inner, f"{path}::{m[1]}")

    visit(Module(root, read(root)), next(name for name, file in CRATES.items() if file == root))
    return found


def double_names():
    """Public names that are defined in more than one file, each with where it is public."""
    places = {}
    for root in CRATES.values():
        for name, path, file in public(root):
            if not name.startswith("__") and not name.isupper():
                places.setdefault(name, {}).setdefault(file, path)
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def check_names():
    doubles = double_names()
    if "--list" in sys.argv:
        for name, files in doubles.items():
            print(f"{name}: {', '.join(f'{path} ({file})' for file, path in files.items())}")
    for name, files in doubles.items():
        if name not in ALLOWED:
            where = " and ".join(sorted(f"{path}::{name} in {file}" for file, path in files.items()))
            yield f"the public name `{name}` means several things: {where}; rename one, or add it to ALLOWED"
    for name in sorted(ALLOWED.keys() - doubles.keys()):
        yield f"`{name}` is in ALLOWED, and there are no longer two of it"


# --- sentences ---------------------------------------------------------------------------------------------------


def check_widths():
    for file in tracked("*.rs"):
        fenced = False
        for number, line in enumerate(read(file).split("\n"), 1):
            m = re.match(r"^\s*//[/!]? ?(.*)$", line)
            if not m:
                fenced = False
                continue
            if re.match(r"\s*(```|~~~)", m[1]):
                fenced = not fenced
            elif len(line) > 100 and not fenced and not exempt(m[1]):
                yield f"{file}:{number}: a comment of {len(line)} columns, more than 100"
    for file in tracked("*.md"):
        fenced = False
        for number, line in enumerate(read(file).split("\n"), 1):
            if re.match(r"\s*(```|~~~)", line):
                fenced = not fenced
            elif len(line) > 120 and not fenced and not exempt(line):
                yield f"{file}:{number}: {len(line)} columns, more than 120"


def exempt(line):
    """Whether a line is of a table, of code, or has a link or a word that cannot be broken."""
    return re.match(r"\s*\||~| {4,}|<", line) or "](" in line or "://" in line or re.search(r"\S {3,}\S|\S{60}", line)


def check_spelling():
    words = re.compile("|".join(BRITISH), re.I)
    for file in tracked("*.rs", "*.md", "*.py", "*.toml", "*.sh", ".ci/*"):
        for number, line in enumerate(read(file).split("\n"), 1):
            for m in words.finditer(line):
                yield f"{file}:{number}: `{m[0]}` is British: write `{BRITISH[m[0].lower()]}`"


def check_clauses():
    for file in tracked("*.rs"):
        if re.search(r"(^|/)tests?(/|\.rs$)", file):
            continue
        before = ""
        for number, line in enumerate(read(file).split("\n"), 1):
            m = re.match(rf"^\s*//[/!] {CLAUSE}", line)
            if m and not re.match(r"^\s*//[/!]", before):
                yield f"{file}:{number}: documentation that begins with the clause `{m[1]} ...`: begin with a noun or a verb"
            before = line


def main():
    wrong = [line for check in (check_names, check_widths, check_spelling, check_clauses) for line in check()]
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(f"{len(wrong)} names and sentences to change")
    print("names: each public name means one thing; comments, widths and spelling are as they should be")


main()
