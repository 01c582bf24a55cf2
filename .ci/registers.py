#!/usr/bin/env python3
"""Registers and occupancy of every kernel on every architecture, as the table in benches/record/registers.md.

usage: .ci/registers.py > benches/record/registers.md      (after .ci/ptxas.sh, which installs ptxas)

Occupancy: warps that fit a multiprocessor, of those it can hold, by registers, shared memory, threads and blocks (CUDA C++
programming guide, compute capabilities). It is of the launch named: blocks and shared memory as the kernels declare them.
"""

import glob
import os
import re
import subprocess

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PTX = sorted(glob.glob(os.path.join(ROOT, "kernels-gpu", "ptx", "*.ptx")))
# Warps, blocks, and shared memory in KiB of a multiprocessor; each takes 65536 registers.
LIMITS = {
    "sm_75": (32, 16, 64),
    "sm_80": (64, 32, 164),
    "sm_90": (64, 32, 228),
    "sm_100": (64, 32, 228),
    "sm_120": (48, 24, 100),
}


def launches():
    """Threads and dynamic shared memory of a block of each kernel, from the declarations, for 4K frames in patches of 32."""
    command = "cargo run --locked -q -p thalweg-kernels --example launches --features augment,collective,jpeg,linear,stream,train,vision"
    lines = subprocess.run(command.split(), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return {kernel: (int(threads), int(shared)) for kernel, threads, shared in map(str.split, lines)}


def runs(ptx, arch):
    """Whether an architecture runs the PTX of a file. It runs PTX for sm_NNa only if it is that one."""
    target = re.search(r"^\.target sm_(\d+)(a?)", open(ptx).read(), re.M)
    number = int(arch.removeprefix("sm_"))
    return int(target[1]) == number if target[2] else int(target[1]) <= number


def assemble(ptxas, arch):
    """Registers of each kernel, by name."""
    log = ""
    for ptx in PTX:
        if not runs(ptx, arch):
            continue
        exact = "a" if re.search(r"^\.target sm_\d+a", open(ptx).read(), re.M) else ""
        command = [ptxas, "-v", f"-arch={arch}{exact}", "-o", "/dev/null", ptx]
        log += subprocess.run(command, capture_output=True, text=True, check=True).stderr
    kernels, kernel = {}, None
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\w+?)__", line):
            kernel = found[1]
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if any(map(int, found.groups())):
                raise SystemExit(f"{arch}: {kernel} uses local memory: {line.strip()}")
        elif found := re.search(r"Used (\d+) registers", line):
            kernels[kernel] = int(found[1])
    return kernels


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


def main():
    found = glob.glob(os.path.join(ROOT, "target", "ptxas-*", "**", "bin", "ptxas"), recursive=True)
    if not found:
        raise SystemExit("no ptxas in target/: run .ci/ptxas.sh first")
    registers = {arch: assemble(found[0], arch) for arch in LIMITS}
    launch = launches()
    version = subprocess.run([found[0], "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"V([\d.]+)", version)[1]
    print("# Registers and occupancy\n")
    print(f"`.ci/registers.py`, ptxas {release}. No kernel spills, has local memory or calls a function on any of them. Registers of a thread /")
    print("percent of a multiprocessor's warps that are resident, for 4K frames in patches of 32 x 32 (`analyze_large`: of 64 x 64).\n")
    print("| kernel | threads | shared bytes | " + " | ".join(LIMITS) + " |")
    print("|---|---|---|" + "---|" * len(LIMITS))
    for kernel in sorted(set().union(*registers.values())):
        threads, shared = launch[kernel]
        for arch in LIMITS:
            if kernel in registers[arch] and occupancy(arch, registers[arch][kernel], threads, shared) == 0:
                raise SystemExit(f"{arch}: a block of {kernel} has more registers or shared memory than a multiprocessor")
        used = [(arch, registers[arch].get(kernel)) for arch in LIMITS]
        cells = [f"{n} / {occupancy(arch, n, threads, shared)}" if n else "not for it" for arch, n in used]
        print(f"| `{kernel}` | {threads} | {shared} | " + " | ".join(cells) + " |")


main()
