#!/usr/bin/env python3
"""Compares docs/soundness.md and docs/broken-rules.md with the code.

usage: .ci/soundness.py [--list]

- Each `unsafe` block and `unsafe impl` of `host` has a comment that begins with `SAFETY: [NAME]`. The names are those of
  the table "The facts behind `unsafe`", and each name of the table is used. Each such comment belongs to a block. The
  tests of the CPU device are left out: that file allows blocks without comments.
- Each place that the page names, as `file.rs` or `file.rs::name`, is there. Files are of `host` or of the repository.
- Each public function of the files in MOVERS, which move values between states, is on the page.
- The page names each rule of proof/theorem/Races.v and no other.
- The table of docs/broken-rules.md names each broken rule of proof/theorem/check.py, of proof/model/src/cases.rs and of
  tests/broken_rules.py, in the column of that check, and no other. Its programs of `tests/ui` are there. Each row has a
  check that rejects the rule, and each rule of the model has as many transitions as its program. Each rule of
  tests/broken_rules.py finds the text that it changes.

`--list` prints how many blocks have which name.
"""

import collections
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = "docs/soundness.md"
BROKEN = "docs/broken-rules.md"
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
    return wrong, len(rules)


def table(page, heading):
    """The cells of each row of the last table below a heading."""
    rows = [row for row in section(page, heading).split("\n") if row.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def check_broken(page):
    """What is wrong with the table of broken rules, and its number of rows."""
    wrong = []
    cases = section_of_rules(read("proof/model/src/cases.rs"))
    changes = read("tests/broken_rules.py")
    lists = {
        "theorem": re.findall(r'^    \("(.+?)",', read("proof/theorem/check.py").split("HARMLESS = [")[0], re.M),
        "model": re.findall(r'rule\(\s*Broken::\w+,\s*"([^"]+)"', cases),
        "log checker": re.findall(r'^    "(.+?)": \($', changes[changes.index("RULES = {") : changes.index("ORDER = {")], re.M),
        "loom and shuttle": re.findall(r'^    "(.+?)": \($', changes[changes.index("ORDER = {") :], re.M),
    }
    applied = subprocess.run([sys.executable, "tests/broken_rules.py", "--list"], cwd=ROOT, capture_output=True, text=True)
    if applied.returncode:
        wrong.append(f"tests/broken_rules.py: {applied.stderr.strip()}")
    free = re.findall(r'name: "([^"]+)"', cases)
    if not free or not all(lists.values()):
        sys.exit("no rules were found: the form of the files has changed")
    named = {check: [] for check in lists}
    programs = {name: int(count) for name, count, _ in table(page, "The shortest programs with a race")}
    rows = table(page, "Who rejects which rule")
    for rule, types, theorem, model, log, order in rows:
        if not (types or theorem or model or log or order):
            wrong.append(f"{BROKEN}: nothing rejects `{rule}`")
        for file in types.split(", ") if types else []:
            if not os.path.isfile(os.path.join(ROOT, "tests/ui", file.strip("`"))):
                wrong.append(f"{BROKEN}: there is no tests/ui/{file}")
        named["theorem"] += [re.sub(r" \(`\w+`\)$", "", name) for name in theorem.split("; ") if name]
        named["model"] += [rule] if model else []
        named["log checker"] += [name for name in log.split("; ") if name]
        named["loom and shuttle"] += [name for name in order.split("; ") if name]
        if model and programs.get(rule) != int(model):
            wrong.append(f"{BROKEN}: no program of {model} transitions for `{rule}`")
    for check, rules in lists.items():
        wrong += [f"{BROKEN}: `{rule}` is not in the column of the {check}" for rule in rules if rule not in named[check]]
        wrong += [f"{BROKEN}: the {check} has no rule `{rule}`" for rule in named[check] if rule not in rules]
    others = [row[0] for row in table(page, "Rules on which no race depends")]
    wrong += [f"{BROKEN}: `{rule}` is not among the rules on which no race depends" for rule in free if rule not in others]
    return wrong, [len(rows), *(len(rules) for rules in lists.values())]


def section_of_rules(text):
    return text[text.index("pub const RULES") :]


def main():
    page = read(PAGE)
    facts = re.findall(r"^\| `(\w+)` \|", section(page, FACTS), re.M)
    blocks, count = check_blocks(facts)
    places, number = check_places(page)
    rules, number_of_rules = check_rules(page)
    broken, numbers = check_broken(read(BROKEN))
    if "--list" in sys.argv:
        for fact in facts:
            print(f"{fact:8} {count[fact]:4}")
    wrong = blocks + places + rules + broken
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(f"{len(wrong)} differences between {PAGE} or {BROKEN} and the code")
    print(f"{sum(count.values())} `unsafe` blocks of host have one of {len(facts)} facts; {number} places are there;")
    print(f"{number_of_rules} rules of the theorem are on the page")
    print("{} broken rules: {} changes of the theorem, {} of the model, {} and {} of the code".format(*numbers))


main()
