#!/usr/bin/env python3
"""Follows docs/first-kernel.md from an empty folder: makes its package beside a checkout, writes its files, runs its commands.

usage: .ci/tutorial.py [FOLDER]      (a temporary folder if none is named; CARGO_TARGET_DIR is taken from the environment)

A file is a block of Rust or TOML, and the paragraph before it names the file ("Append ..." adds to it). A command is a line of a console
block that starts with "$ "; the lines after it are what it must print. The name of the device may differ. A block of changes
(diff) is applied for the command after it and then taken back; that command must fail and print its lines.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PAGE = open(os.path.join(ROOT, "docs", "first-kernel.md"), encoding="utf-8").read()
# What the machine has already.
SKIPPED = ("rustup ",)
PACKAGE = "first-kernel"


def blocks():
    """Language, text and the last line before it, of each block of code."""
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", PAGE, re.S | re.M):
        before = PAGE[: found.start()].rstrip("\n").rsplit("\n", 1)[-1]
        yield *found.groups(), before


def changed(folder, text):
    """Applies a block of changes to the file that has the lines. Returns the file and what it held."""
    old = "".join(line[1:] for line in text.splitlines(True) if line[0] in " -")
    new = "".join(line[1:] for line in text.splitlines(True) if line[0] in " +")
    for name in ("src/lib.rs", "src/main.rs"):
        path = os.path.join(folder, name)
        content = open(path, encoding="utf-8").read()
        if content.count(old) == 1:
            open(path, "w", encoding="utf-8").write(content.replace(old, new))
            return path, content
    sys.exit(f"the page changes lines that no file has once:\n{old}")


def run(folder, command, expected, fails):
    """Runs a command of the page and compares what it prints."""
    *settings, program = re.match(r"((?:[A-Z_]+=\S+ )*)(.*)", command.split("  #")[0]).groups()
    environment = dict(os.environ, **dict(pair.split("=", 1) for pair in settings[0].split()))
    environment.setdefault("THALWEG_DEVICE", "cpu")
    done = subprocess.run(
        shlex.split(program), cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if (done.returncode != 0) != fails:
        sys.exit(f"`{command}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    printed = done.stdout + done.stderr
    for line in expected:
        # `...` stands for anything, and the name of the device is that of the machine.
        parts = re.sub(r" on CPU device, \d+ threads?", " on ...", line).split("...")
        if not re.search(".*".join(map(re.escape, parts)), printed):
            sys.exit(f"`{command}` did not print\n{line}\nbut\n{printed}")
    print(f"$ {command}\n{''.join(line + chr(10) for line in expected)}", end="", flush=True)


def main():
    scratch = None if len(sys.argv) > 1 else tempfile.TemporaryDirectory()
    place = sys.argv[1] if scratch is None else scratch.name
    os.symlink(ROOT, os.path.join(place, "thalweg"))
    folder = os.path.join(place, PACKAGE)
    broken = None
    files = commands = 0
    for language, text, before in blocks():
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
                command, *expected = part.rstrip("\n").split("\n")
                if command.startswith(SKIPPED) or command == f"cd {PACKAGE}":
                    continue
                run(folder if os.path.isdir(folder) else place, command, expected, broken is not None)
                commands += 1
            if broken is not None:
                path, content = broken
                open(path, "w", encoding="utf-8").write(content)
                broken = None
        elif language == "diff":
            if broken is not None:
                sys.exit(f"no command shows what this change does, so take it back:\n{text}")
            broken = changed(folder, text)
        elif language in ("rust", "toml"):
            name = re.search(r"`([\w./-]+)`", before).group(1)
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            mode = "a" if before.startswith("Append") else "w"
            open(os.path.join(folder, name), mode, encoding="utf-8").write("\n" * (mode == "a") + text)
            files += 1
    if files < 4 or commands < 3:
        sys.exit(f"only {files} files and {commands} commands were found on the page")
    print(f"{files} files were written and {commands} commands did what the page says")


main()
