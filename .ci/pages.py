#!/usr/bin/env python3
"""Checks README.md and the pages of docs: their links, that each is in the book, and who compiles their code.

usage: .ci/pages.py

- A link to a file, or to a heading of a page, leads to one that is there.
- docs/SUMMARY.md, the contents of the book, names every page of docs, and docs/book.toml is there. Where mdbook is
  installed, it makes the book.
- A page with a block of Rust is in the list of one of the files in LISTS, whose blocks are tested with the
  documentation, or it is docs/first-kernel.md, which .ci/tutorial.py follows. A block of other code says `rust,ignore`.
- README's first program is that of tests/ui/readme.rs, which must be refused without the hand-over, with the error that
  README prints.
- README has at most 150 lines.
- Each published crate has a README whose first sentence says what the crate is. Its Rust is an example of the crate's
  documentation, which is tested there.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
LISTS = ["host/lib.rs", "train/src/lib.rs", "processor/src/lib.rs"]
LINK = re.compile(r"\]\(([^()\s]+)\)")


def read(file):
    return open(os.path.join(ROOT, file), encoding="utf-8").read()


def prose(text):
    """The text without code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))


def anchors(text):
    """The anchors of a page's headings, as GitHub and mdBook make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M), re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def check_links(pages):
    for page in pages:
        for link in LINK.findall(prose(read(page))):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(os.path.join(ROOT, target)):
                yield f"{page}: {link} is not there"
            elif anchor and target.endswith(".md") and anchor not in anchors(read(target)):
                yield f"{page}: {target} has no heading #{anchor}"
            if page.startswith("docs/") and target.endswith(".md") and not target.startswith("docs/"):
                yield f"{page}: {link} is no page of the book, which takes it for one: link to its folder"


def check_book(docs):
    if tomllib.loads(read("docs/book.toml"))["book"]["src"] != ".":
        yield "docs/book.toml: the pages are in its own folder"
    if shutil.which("mdbook"):
        with tempfile.TemporaryDirectory() as made:
            run = subprocess.run(["mdbook", "build", "docs", "-d", made], cwd=ROOT, capture_output=True, text=True)
            if run.returncode != 0:
                yield f"mdbook: {run.stderr}"
    listed = [os.path.normpath(os.path.join("docs", link)) for link in LINK.findall(read("docs/SUMMARY.md"))]
    for page in docs:
        if listed.count(page) != 1 and page != "docs/SUMMARY.md":
            yield f"docs/SUMMARY.md names {page} {listed.count(page)} times"


def check_code(pages):
    lists = "".join(map(read, LISTS))
    tested = re.findall(r'#\[doc = include_str!\("(?:\.\./)+([\w/.-]+)"\)\]', lists)
    for page in pages:
        blocks = re.findall(r"^```(rust\S*)$", read(page), re.M)
        for block in blocks:
            if block not in ("rust", "rust,ignore"):
                yield f"{page}: a block is `{block}`: a block that is compiled is `rust`"
        if "rust" in blocks and page not in tested and page != "docs/first-kernel.md":
            yield f"{page}: nothing compiles its code: put it in the list of {' or '.join(LISTS)}"


def check_readme():
    text = read("README.md")
    if (lines := text.count("\n")) > 150:
        yield f"README.md: {lines} lines, more than 150: docs has pages for more"
    shown = re.search(r"^```rust\n(.*?)^```$", text, re.S | re.M)[1]
    case = read("tests/ui/readme.rs").split("\n", 1)[1]
    promised = " ".join(re.findall(r"^ *//~.*\n", case, re.M))
    case = re.sub(r"^ *//~.*\n", "", case, flags=re.M).replace(" // fix\n", "\n")
    if shown != case:
        yield "README.md: its first program is another one than that of tests/ui/readme.rs"
    error = re.search(r"^```text\n(error.*?)^```$", text, re.S | re.M)[1]
    code = re.search(r"E\d+", error)[0]
    for part in (code, *re.search(r"expected (`[^`]+`), found (`[^`]+`)", error).groups()):
        if part not in promised:
            yield f"README.md: tests/ui/readme.rs does not expect {part}"
    for line in error.split("\n"):
        if line.endswith("?;") and line.strip(" |") not in shown:
            yield f"README.md: the error is about a line that the program does not have: {line}"


def check_crates(readmes):
    for page in readmes:
        folder = os.path.dirname(page)
        name = tomllib.loads(read(f"{folder}/Cargo.toml"))["package"]["name"]
        text = read(page)
        if not re.match(rf"# {name}\n\n({name}|The command) ", text):
            yield f"{page}: its first sentence is not one that begins with {name}"
        source = read(f"{folder}/src/lib.rs") if "```rust\n" in text else ""
        lines = re.findall(r"^//[/!] ?(.*)$", source, re.M)
        documentation = "\n".join(line for line in lines if line != "#" and not line.startswith("# "))
        for code in re.findall(r"^```rust\n(.*?)\n```$", text, re.S | re.M):
            if code not in documentation:
                yield f"{page}: its code is none of the documentation of {name}: {code.splitlines()[0]}"


def main():
    docs = sorted("docs/" + name for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md"))
    members = [member for member in tomllib.loads(read("Cargo.toml"))["workspace"]["members"] if "/" not in member]
    readmes = [f"{member}/README.md" for member in members if member != "xtask"]
    others = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *readmes]
    pages = ["README.md", *docs]
    wrong = [*check_links(pages + others), *check_book(docs), *check_code(pages), *check_readme(), *check_crates(readmes)]
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(f"{len(wrong)} errors in pages")
    print(f"{len(pages)} pages: links, contents and code are as they should be")


main()
