#!/usr/bin/env python3
"""Checks that the figures in the tables of README.md and of docs are in the records they are from.

usage: .ci/figures.py

A table with measurements follows a line `<!-- figures: FILE... -->`. Every number in it, outside its first column and
outside `code`, links and names such as 4K, has to stand in one of the files (of benches/record). A table with a unit of
time or rate that has no such line is an error, too.
"""

import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
MEASURED = re.compile(r"\d (?:ns|us|ms|GB/s|images/s|frames/s|TFLOP/s)\b")
# A number, with thin groups (18 400) as one; not a part of a name (1080p, H200, 4K, f32) or of a version.
NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?: \d{3})+(?![\w.]*\w)|(?<![\w.])\d+(?:\.\d+)?(?![\w]|\.\d)")


# In a record a unit may follow at once: 1.03x, 495.00ns.
RECORDED = re.compile(r"\d+(?:\.\d+)?")


def numbers(text):
    return {n.replace(" ", "") for n in NUMBER.findall(text)}


def cells(line):
    line = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", line)
    return line.strip().strip("|").split("|")[1:]


def check(page):
    """The figures of a page that were checked, and what is wrong."""
    lines = open(os.path.join(ROOT, page)).read().splitlines()
    bad, checked, record, table = [], 0, None, []
    for at, line in enumerate(lines + [""], 1):
        if found := re.match(r"<!-- figures: (.*) -->", line):
            names = found[1].split()
            texts = [open(os.path.join(ROOT, "benches/record", name)).read() for name in names]
            record = (names, set().union(*(set(RECORDED.findall(text)) for text in texts)))
        elif line.startswith("|"):
            table.append((at, line))
        elif table:
            body = table[2:]
            if record:
                for number, row in body:
                    for cell in cells(row):
                        for figure in numbers(cell):
                            checked += 1
                            if figure not in record[1]:
                                bad.append(f"{page}:{number}: {figure} is not in {' or '.join(record[0])}")
            elif any(MEASURED.search(row) for _, row in body):
                bad.append(f"{page}:{body[0][0]}: a table of measurements names no record")
            record, table = None, []
    return checked, bad


def main():
    docs = sorted("docs/" + name for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md"))
    total, bad = 0, []
    for page in ["README.md", *docs]:
        checked, wrong = check(page)
        total, bad = total + checked, bad + wrong
        if checked:
            print(f"{page}: {checked} figures")
    for line in bad:
        print(line)
    if bad:
        sys.exit(f"{len(bad)} figures without a record")
    print(f"{total} figures, all in their records")


main()
