#!/usr/bin/env python3
"""Assembles every PTX file for every architecture that runs it, without a GPU, and compares registers and occupancy of the
kernels with benches/record/registers.md.

usage: .ci/registers.py [--write] [--launches PROGRAM] [PTX...]

It fails where a kernel spills, has local memory, calls a function or needs more than a multiprocessor has, and where the table
is another one (`--write` writes it). It assembles the files PTX too, which are not in the table. PROGRAM is the built example
`launches` of thalweg-kernels; without it, cargo runs that.

Occupancy: warps that fit a multiprocessor, of those it can hold, by registers, shared memory, threads and blocks (CUDA C++
programming guide, compute capabilities). It is of the launch named: blocks and shared memory as the kernels declare them.
"""

import argparse
import concurrent.futures
import difflib
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
RECORD = os.path.join(ROOT, "benches", "record", "registers.md")
PTXAS = "13.0.88"
# What PTX files promise to run on.
ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
# Warps, blocks, and shared memory in KiB of a multiprocessor; each takes 65536 registers. These are in the table.
LIMITS = {
    "sm_75": (32, 16, 64),
    "sm_80": (64, 32, 164),
    "sm_90": (64, 32, 228),
    "sm_100": (64, 32, 228),
    "sm_120": (48, 24, 100),
}


def find_ptxas():
    """The assembler, from a package of PyPI in `target`."""
    venv = os.path.join(ROOT, "target", f"ptxas-{PTXAS}")
    pattern = os.path.join(venv, "**", "bin", "ptxas")
    if not glob.glob(pattern, recursive=True):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([f"{venv}/bin/pip", "install", "--quiet", f"nvidia-cuda-nvcc=={PTXAS}"], check=True)
    ptxas = glob.glob(pattern, recursive=True)[0]
    os.chmod(ptxas, 0o755)
    return ptxas


def launches(program):
    """Threads and dynamic shared memory of a block of each kernel, from the declarations, for 4K frames in patches of 32."""
    command = [program]
    if not program:
        features = "augment,collective,jpeg,linear,processor,train,vision"
        command = f"cargo run --locked -q -p thalweg-kernels --example launches --features {features}".split()
    lines = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return {kernel: (int(threads), int(shared)) for kernel, threads, shared in map(str.split, lines)}


class File:
    """A PTX file."""

    def __init__(self, path):
        self.path = path
        self.name = os.path.relpath(path, ROOT)
        self.text = open(path).read()
        found = re.search(r"^\.target sm_(\d+)(a?)", self.text, re.M)
        self.oldest, self.exact = int(found[1]), found[2]
        self.entries = len(re.findall(r"^\.visible \.entry", self.text, re.M))

    def architectures(self):
        """PTX for sm_NN runs on newer architectures too, PTX for sm_NNa on no other."""
        numbers = [int(arch.removeprefix("sm_")) for arch in ARCHITECTURES]
        return [f"sm_{n}{self.exact}" for n in numbers if (n == self.oldest if self.exact else n >= self.oldest)]

    def calls(self):
        lines = enumerate(self.text.splitlines(), 1)
        found = [f"{self.name}:{at}: {line.strip()}" for at, line in lines if re.match(r"\s*(@!?%p\d+\s+)?call\b", line)]
        return [f"{call}: mark the callee #[inline(always)]" for call in found]


def assemble(ptxas, file, arch):
    """Registers of each kernel, by name, and what is wrong."""
    command = [ptxas, "-v", f"-arch={arch}", "-o", "/dev/null", file.path]
    done = subprocess.run(command, capture_output=True, text=True)
    bad = [] if done.returncode == 0 else [f"{file.name} for {arch}: {done.stdout}{done.stderr}"]
    kernels, kernel = {}, None
    for line in done.stderr.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = found[1]
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if any(map(int, found.groups())):
                bad.append(f"{file.name} for {arch}: {kernel} has local memory: {line.strip()}")
        elif found := re.search(r"Used (\d+) registers", line):
            kernels[kernel] = int(found[1])
    if len(kernels) != file.entries:
        bad.append(f"{file.name} for {arch}: {len(kernels)} of {file.entries} kernels assembled")
    return kernels, bad


def occupancy(arch, registers, threads, shared):
    """Part of a multiprocessor's warps that are resident, in percent."""
    most, blocks, kilobytes = LIMITS[arch]
    warps = -(-threads // 32)
    # A warp's registers come in 256, from one of four files; from sm_80 on a block has 1 KiB of shared memory reserved.
    by_registers = 4 * (16384 // (-(-registers * 32 // 256) * 256)) // warps
    reserved = 0 if arch == "sm_75" else 1024
    by_shared = kilobytes * 1024 // max(-(-(shared + reserved) // 256) * 256, 1)
    resident = min(blocks, most // warps, by_registers, by_shared)
    return round(100 * resident * warps / most)


def table(registers, launch, release, bad):
    """The record, as text. `registers` is by architecture and kernel."""
    lines = [
        "# Registers and occupancy\n",
        f"`.ci/registers.py`, ptxas {release}. No kernel spills, has local memory or calls a function on any of them. Registers of a thread /",
        "percent of a multiprocessor's warps that are resident, for 4K frames in patches of 32 x 32 (`analyze_large`: of 64 x 64).\n",
        "| kernel | threads | shared bytes | " + " | ".join(LIMITS) + " |",
        "|---|---|---|" + "---|" * len(LIMITS),
    ]
    for kernel in sorted(set().union(*registers.values())):
        if kernel not in launch:
            bad.append(f"{kernel} is not in kernels-gpu/examples/launches.rs")
            continue
        threads, shared = launch[kernel]
        cells = []
        for arch in LIMITS:
            used = registers[arch].get(kernel)
            percent = used and occupancy(arch, used, threads, shared)
            if percent == 0:
                bad.append(f"{arch}: a block of {kernel} has more registers or shared memory than a multiprocessor")
            cells.append(f"{used} / {percent}" if used else "not for it")
        lines.append(f"| `{kernel}` | {threads} | {shared} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--launches")
    parser.add_argument("ptx", nargs="*")
    asked = parser.parse_args()
    ptxas = find_ptxas()
    kept = [File(path) for path in sorted(glob.glob(os.path.join(ROOT, "kernels-gpu", "ptx", "*.ptx")))]
    files = kept + [File(path) for path in asked.ptx]
    # Where two files have an entry, the table has that of the later one, as a launch takes it.
    jobs = [(file, arch) for file in files for arch in file.architectures()]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        results = list(threads.map(lambda job: assemble(ptxas, *job), jobs))
    bad = [call for file in files for call in file.calls()]
    registers = {arch: {} for arch in LIMITS}
    for (file, arch), (kernels, wrong) in zip(jobs, results):
        bad += wrong
        if file in kept and (arch := arch.removesuffix("a")) in LIMITS:
            registers[arch].update((entry.split("__")[0], count) for entry, count in kernels.items())
    version = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout
    text = table(registers, launches(asked.launches), re.search(r"V([\d.]+)", version)[1], bad)
    recorded = open(RECORD).read()
    if asked.write and not bad:
        open(RECORD, "w").write(text)
    elif text != recorded:
        names = ("benches/record/registers.md", "registers as they are now")
        sys.stdout.writelines(difflib.unified_diff(recorded.splitlines(True), text.splitlines(True), *names))
        bad.append("benches/record/registers.md is another table: .ci/registers.py --write writes it")
    if bad:
        sys.exit("\n".join(bad))
    entries = sum(file.entries for file in files)
    print(f"{entries} kernels in {len(files)} files, assembled for {len(ARCHITECTURES)} architectures: no spills, no calls")


main()
