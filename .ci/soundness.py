#!/usr/bin/env python3
"""Compares docs/soundness.md with the code.

usage: .ci/soundness.py [--list]

- Each `unsafe` block and `unsafe impl` of `host` has a comment that begins with `SAFETY: [NAME]`. The names are those of
  the table "The facts behind `unsafe`", and each name of the table is used. Each such comment belongs to a block. The
  tests of the CPU device are left out: that file allows blocks without comments.
- Each place that the page names, as `file.rs` or `file.rs::name`, is there. Files are of `host` or of the repository.
- Each public function of the files in MOVERS, which move values between states, is on the page.
- The page names each rule of proof/theorem/Races.v and no other, and each broken rule of proof/theorem/check.py and of
  proof/model/src/cases.rs.

`--list` prints how many blocks have which name.
"""

import collections
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = "docs/soundness.md"
FACTS = "The facts behind `unsafe`"
TESTS = ["host/driver/cpu/tests.rs"]
MOVERS = ["host/transitions.rs", "host/shared.rs", "host/fork.rs"]

BLOCK = re.compile(r"\bunsafe\s+(?:\{|impl\b)")
COMMENT = re.compile(r"\s*//(?!/|!)")
LABEL = re.compile(r"\s*// SAFETY: \[(\w+)\] \S")
PLACE = re.compile(r"`([\w/-]+\.(?:rs|v|py))(?:::(\w+))?`")


def read(file):
    return open(os.path.join(ROOT, file), encoding="utf-8").read()


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [f for f in listed.stdout.splitlines() if os.path.isfile(os.path.join(ROOT, f))]


def indent(line):
    return len(line) - len(line.lstrip())


def comment_of(lines, at):
    """The line of the comment on the facts behind the block in line `at`: the next one above, in the same statement."""
    for number in range(at - 1, -1, -1):
        line = lines[number]
        if COMMENT.match(line):
            if "SAFETY:" in line:
                return number
        elif not line.strip():
            return None
        elif indent(line) <= indent(lines[at]) and re.search(r"[;}]$", line) and not line.strip().startswith("#["):
            return None
    return None


def check_blocks(facts):
    """What is wrong with the blocks of `host`, and how many have which name."""
    wrong, count = [], collections.Counter()
    for file in tracked("host/*.rs"):
        if file in TESTS:
            continue
        lines = read(file).split("\n")
        labels = {n for n, line in enumerate(lines) if COMMENT.match(line) and "SAFETY:" in line}
        claimed = set()
        for number, line in enumerate(lines):
            code = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)
            for _ in BLOCK.findall(re.sub(r"//.*", "", code)):
                comment = comment_of(lines, number)
                name = LABEL.match(lines[comment]) if comment is not None else None
                if comment is None:
                    wrong.append(f"{file}:{number + 1}: an `unsafe` block without a comment")
                    continue
                claimed.add(comment)
                if name is None:
                    wrong.append(f"{file}:{comment + 1}: the comment does not begin with `SAFETY: [NAME]`")
                elif name[1] not in facts:
                    wrong.append(f"{file}:{comment + 1}: {PAGE} has no fact `{name[1]}`")
                else:
                    count[name[1]] += 1
        wrong += [f"{file}:{n + 1}: no `unsafe` block belongs to this comment" for n in sorted(labels - claimed)]
    wrong += [f"{PAGE}: no block has the fact `{fact}`" for fact in facts if not count[fact]]
    return wrong, count


def section(page, heading):
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.S | re.M)
    if not found:
        sys.exit(f"{PAGE} has no heading `{heading}`")
    return found[1]


def defines(text, name):
    """Whether a file defines a name: an item, a field, a variant, or a rule of the proof."""
    items = r"fn|struct|enum|trait|type|const|static|mod|def|Theorem|Lemma|Definition|Inductive"
    return re.search(rf"\b(?:{items}) {name}\b|^\s*(?:pub(?:\(crate\))? )?{name}\s*[:({{,]|^\| {name}\b", text, re.M)


def check_places(page):
    wrong, files = [], set(tracked("*.rs", "*.v", "*.py"))
    places = sorted(set(PLACE.findall(page)))
    for file, name in places:
        path = next((p for p in (f"host/{file}", file) if p in files), None)
        if path is None:
            wrong.append(f"{PAGE}: there is no file {file}")
        elif name and not defines(read(path), name):
            wrong.append(f"{PAGE}: {path} does not define `{name}`")
    for file in MOVERS:
        text = re.split(r"^#\[cfg\(test\)\]", read(file), flags=re.M)[0]
        for name in sorted(set(re.findall(r"^ *pub fn (\w+)", text, re.M))):
            if (file.removeprefix("host/"), name) not in places:
                wrong.append(f"{PAGE} does not name `{file.removeprefix('host/')}::{name}`")
    return wrong, len(places)


def check_rules(page):
    rules = set(re.findall(r"^\| ([mq]_\w+)", read("proof/theorem/Races.v"), re.M))
    named = set(re.findall(r"`([mq]_\w+)`", page))
    wrong = [f"{PAGE} does not name the rule {rule} of the theorem" for rule in sorted(rules - named)]
    wrong += [f"{PAGE}: the theorem has no rule {rule}" for rule in sorted(named - rules)]
    rows = {row.split("|")[1].strip() for row in page.split("\n") if row.startswith("| ")}
    model = re.findall(r'(?:rule\(\s*Broken::\w+,\s*|name: )"([^"]+)"', section_of_rules(read("proof/model/src/cases.rs")))
    theorem = re.findall(r'^    \("(.+?)",', read("proof/theorem/check.py").split("HARMLESS = [")[0], re.M)
    if not rules or not model or not theorem:
        sys.exit("no rules were found: the form of the files has changed")
    for broken in model + theorem:
        if broken not in rows:
            wrong.append(f"{PAGE}: no row of a table is `{broken}`, which is broken on purpose")
    return wrong, len(rules), len(model), len(theorem)


def section_of_rules(text):
    return text[text.index("pub const RULES") :]


def main():
    page = read(PAGE)
    facts = re.findall(r"^\| `(\w+)` \|", section(page, FACTS), re.M)
    blocks, count = check_blocks(facts)
    places, number = check_places(page)
    rules, *numbers = check_rules(page)
    if "--list" in sys.argv:
        for fact in facts:
            print(f"{fact:8} {count[fact]:4}")
    wrong = blocks + places + rules
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(f"{len(wrong)} differences between {PAGE} and the code")
    print(f"{sum(count.values())} `unsafe` blocks of host have one of {len(facts)} facts; {number} places are there;")
    print("{} rules of the theorem, {} broken rules of the model and {} of the theorem are on the page".format(*numbers))


main()
