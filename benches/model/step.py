#!/usr/bin/env python3
"""A model of a data-parallel step: fitted to what two GPUs measured, with its prediction for more.

    benches/model/step.py RECORD [--nic GB/s] [--nics N]

RECORD has the output of the benches `nccl` (thalweg-collective) and `mlp` (thalweg-train) on two GPUs.

  a reduction of S bytes over n ranks    t = a log2 n + 2 (n - 1) / n S / B
  a step without other ranks             C = forward + backward + update; backward = 2 forward; the update by its bytes
  a bucket                               is ready when the backward pass has come to its end; buckets are reduced in turn;
                                         its update waits for the pass and for its reduction
  beside a reduction                     the pass runs at 1 / (1 + s) of its speed: NCCL takes multiprocessors and memory

The logarithm stands for NCCL's trees; between two ranks it is 1. `a` and `B` are fitted to the bandwidths, `s` to the steps. Several machines share `nics` network cards of `nic` GB/s each
on a machine of eight; the bandwidth is then the smaller one. These two numbers are assumptions: nothing here measured them.
"""
import argparse
import math
import re

MEMORY = 3.7e9  # bytes in a ms that the update moves, 28 for each weight (bench `kernels`)


def read(path):
    """Bandwidths [(bytes, s)], and steps [(shape, elements, alone, reduction, [(bucket bytes, ms)])]."""
    sums, steps = [], []
    for line in open(path):
        if found := re.match(r"\| (\d+) \| [\d.]+ \| ([\d.]+) \| [\d.]+ % \|", line):
            size = int(found[1]) << 20
            sums.append((size, size / (float(found[2]) * 1e9)))  # of two ranks, bus bandwidth is bytes over time
        elif found := re.match(r"width (\d+), (\d+) layers, (\d+) tokens, .* alone ([\d.]+) ms, all-reduce alone ([\d.]+)", line):
            d, layers, tokens = map(int, found.groups()[:3])
            steps.append(((d, layers, tokens), layers * (8 * d * d + 7 * d), float(found[4]), float(found[5]), []))
        elif (found := re.match(r"  buckets of (\d+) MiB \(\d+\): ([\d.]+) ms", line)) and steps:
            steps[-1][4].append((int(found[1]) << 20, float(found[2])))
    return sums, steps


def fit_sums(sums):
    """Latency in s and bandwidth in bytes/s, with the least squares of relative errors, and the largest of these."""
    def of(a):
        # For a given latency the bandwidth is a weighted mean.
        b = sum((s / t) * (1 - a / t) for s, t in sums) / sum((s / t) ** 2 for s, t in sums)
        errors = [(a + b * s) / t - 1 for s, t in sums]
        return sum(e * e for e in errors), b, max(map(abs, errors))
    a = min((k * 1e-7 for k in range(0, 1000)), key=lambda a: of(a)[0])
    _, b, worst = of(a)
    return a, 1 / b, worst


def buckets(shape, sizes):
    """Elements of each bucket in the order of the backward pass: as `BucketSizes`, the first one of 1 MiB."""
    d, layers, _ = shape
    lens = [n for _ in range(layers) for n in (4 * d * d, 4 * d * d, 7 * d)]
    made = []
    for n in lens:
        most = 1 << 20 if len(made) == 1 else sizes
        if made and 2 * (made[-1] + n) <= most:
            made[-1] += n
        else:
            made.append(n)
    return made


def step(shape, elements, alone, size, reduce, slow):
    """The time of a step in ms. `reduce` is the time of a sum of bytes in ms."""
    update = 28 * elements / MEMORY
    forward = (alone - update) / 3
    backward = 2 * forward
    now, free = forward, 0.0  # the pass, and the communicator
    ends = []
    for n in buckets(shape, size):
        work = backward * n / elements
        # While a reduction of the buckets before is under way, the pass is slower.
        beside = max(free - now, 0.0)
        now += work + slow * min(work, beside / (1 + slow))
        free = max(free, now) + reduce(2 * n)
        ends.append((free, n))
    for end, n in ends:
        now = max(now, end) + update * n / elements
    return now


def main():
    options = argparse.ArgumentParser()
    options.add_argument("record")
    options.add_argument("--nic", type=float, default=50.0)
    options.add_argument("--nics", type=int, default=8)
    options = options.parse_args()
    sums, steps = read(options.record)
    a, b, worst = fit_sums(sums)
    print(f"a reduction: {a * 1e6:.1f} us log2 n + 2 (n - 1) / n bytes / {b / 1e9:.0f} GB/s; the fit is off by {100 * worst:.0f} % at most")

    def reduce(n, bandwidth):
        return lambda bytes: 1e3 * (a * math.log2(n) + 2 * (n - 1) / n * bytes / bandwidth)

    rows = [(s, e, c, size, ms) for s, e, c, _, found in steps for size, ms in found]
    def errors(slow):
        return [step(s, e, c, size, reduce(2, b), slow) / ms - 1 for s, e, c, size, ms in rows]
    slow = min((k * 0.02 for k in range(0, 1000)), key=lambda k: sum(v * v for v in errors(k)))
    off = errors(slow)
    print(f"the pass beside a reduction: {100 * slow:.1f} % slower; steps are off by {100 * max(map(abs, off)):.1f} % at most, "
          f"{100 * math.sqrt(sum(v * v for v in off) / len(off)):.1f} % in the mean square")
    print("| width x layers, tokens | alone | buckets | measured, 2 GPUs | model: 2 | 8 | 64 |")
    print("|---|---|---|---|---|---|---|")
    network = min(b, options.nic * options.nics * 1e9)
    for s, e, c, size, ms in rows:
        two, eight, many = (step(s, e, c, size, reduce(n, w), slow) for n, w in ((2, b), (8, b), (64, network)))
        print(f"| {s[0]} x {s[1]}, {s[2]} | {c:.2f} ms | {size >> 20} MiB | {ms:.2f} ms | {two:.2f} | {eight:.2f} | {many:.2f} |")


if __name__ == "__main__":
    main()
