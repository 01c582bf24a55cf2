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
PTX = os.path.join(ROOT, "kernels-gpu", "ptx", "vision.ptx")
# Warps, blocks, and shared memory in KiB of a multiprocessor; each takes 65536 registers.
LIMITS = {
    "sm_75": (32, 16, 64),
    "sm_80": (64, 32, 164),
    "sm_90": (64, 32, 228),
    "sm_100": (64, 32, 228),
    "sm_120": (48, 24, 100),
}
# Threads and dynamic shared memory of a block, for 4K frames in patches of 32 (8160 patches).
LAUNCH = {
    "textures": (256, 0),
    "textures_f16": (256, 0),
    "features": (32, 0),
    "entropy": (32, 256 * 4 + 33 * 4),
    "analyze_small": (128, 1024 + 4 * (1024 + 32 * 15 * 4)),
    "analyze_large": (128, 2048 + 128 * 15 * 4 * 2),  # patches of 64
    "participatory": (256, (3400 + 65 * 64 + 2 * 8 * 64 + 13 * 64) * 4),
    "balance": (512, (12 + 128 + 4 * 128 + 128 + 4) * 4),
    "relevance": (1024, 2 * 33 * 4),
    "relevance_with_query": (1024, 2 * 33 * 4),
    "allocate_each": (1024, 1024 + 2 * 1024 + 16 + 3 * 32 * 4 + 32 * 1024),
    "pack": (1024, 2 * 33 * 4),
    "compress": (416, 0),
    "compress_fused": (64, 0),
    "compress_fused_f16": (64, 0),
    "compress_fused_bf16": (64, 0),
    "profile_sample": (256, (4 * 256 + 8 * 64) * 4),
    "profile_scale": (512, 6 * 33 * 4),
    "top": (256, 8 * 32 * 4),
}


def assemble(ptxas, arch):
    """Registers of each kernel, by name."""
    log = subprocess.run([ptxas, "-v", f"-arch={arch}", "-o", "/dev/null", PTX], capture_output=True, text=True, check=True)
    kernels, kernel = {}, None
    for line in log.stderr.splitlines():
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
    version = subprocess.run([found[0], "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"V([\d.]+)", version)[1]
    print("# Registers and occupancy\n")
    print(f"`.ci/registers.py`, ptxas {release}. No kernel spills, has local memory or calls a function on any of them. Registers of a thread /")
    print("percent of a multiprocessor's warps that are resident, for 4K frames in patches of 32 x 32 (`analyze_large`: of 64 x 64).\n")
    print("| kernel | threads | shared bytes | " + " | ".join(LIMITS) + " |")
    print("|---|---|---|" + "---|" * len(LIMITS))
    for kernel in sorted(registers["sm_75"]):
        threads, shared = LAUNCH[kernel]
        for arch in LIMITS:
            if occupancy(arch, registers[arch][kernel], threads, shared) == 0:
                raise SystemExit(f"{arch}: a block of {kernel} has more registers or shared memory than a multiprocessor")
        cells = [f"{registers[arch][kernel]} / {occupancy(arch, registers[arch][kernel], threads, shared)}" for arch in LIMITS]
        print(f"| `{kernel}` | {threads} | {shared} | " + " | ".join(cells) + " |")


main()
