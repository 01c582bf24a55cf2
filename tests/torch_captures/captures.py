#!/usr/bin/env python3
"""Captures graphs by PyTorch while a loader of thalweg runs in the same process.

On a machine with Rust, and then on one with a GPU and PyTorch:

    cargo build --release --manifest-path tests/torch_captures/Cargo.toml --target-dir target/outside
    python3 captures.py libtorch_captures.so              every capture succeeds: exit code 0
    python3 captures.py libtorch_captures.so --global     threads in CUDA's mode "global": captures fail, exit code 1
    python3 captures.py libtorch_captures.so --no-torch   the loader alone, on the CPU device

A capture is open until the loader has yielded some batches meanwhile. Then the graph runs, and its results are compared.
"""

import argparse
import ctypes
import sys
import tempfile
import time

LIMIT = 60.0  # seconds to wait for a batch


class Loader:
    def __init__(self, library, folder, device, flags):
        lib = ctypes.CDLL(library)
        lib.write_photos.argtypes = [ctypes.c_char_p, ctypes.c_uint]
        lib.start_loader.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
        lib.start_loader.restype = ctypes.c_void_p
        lib.batches.argtypes = [ctypes.c_void_p]
        lib.batches.restype = ctypes.c_uint64
        lib.stop.argtypes = [ctypes.c_void_p]
        self.lib = lib
        if lib.write_photos(folder.encode(), 64) != 0:
            sys.exit("no files can be written")
        self.handle = lib.start_loader(folder.encode(), device.encode(), flags)
        if not self.handle:
            sys.exit("the loader does not start")

    def batches(self):
        return self.lib.batches(self.handle)

    def wait(self, count):
        """Waits until so many batches have come in all."""
        end = time.monotonic() + LIMIT
        while self.batches() < count:
            if time.monotonic() > end:
                sys.exit(f"only {self.batches()} of {count} batches came in {LIMIT:.0f} s")
            time.sleep(0.0005)

    def stop(self):
        return self.lib.stop(self.handle)


class Graphs:
    """Graphs of a few kernels on 1 MiB, each with numbers of its own."""

    KERNELS = 12

    def __init__(self, device):
        import torch

        self.torch, self.device = torch, torch.device(device)
        torch.cuda.set_device(self.device)
        self.x = torch.arange(1 << 18, dtype=torch.float32, device=self.device)
        print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name(self.device)}")
        # What the first use of a kernel loads must not happen in a capture.
        for _ in range(3):
            self.work(1, lambda: None)
        torch.cuda.synchronize()

    def work(self, number, between):
        y = self.x
        for k in range(self.KERNELS):
            y = y * 0.5 + (number + k)
            between()
        return y

    def capture(self, number, between):
        """Returns what went wrong, or None."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):  # in the mode that is its default, "global"
                y = self.work(number, between)
        except Exception as error:  # PyTorch has several types for errors of CUDA
            return f"capture: {str(error).splitlines()[0]}"
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(y, self.work(number, lambda: None)):
            return "the replay computed something else"
        return None


class NoGraphs:
    KERNELS = 12

    def capture(self, number, between):
        for _ in range(self.KERNELS):
            between()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", help="path of libtorch_captures.so")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--captures", type=int, default=100)
    parser.add_argument("--batches", type=int, default=2, help="batches that come during each capture, at least")
    parser.add_argument("--ms", type=float, default=5.0, help="milliseconds of each capture, at least")
    parser.add_argument("--global", dest="flags", action="append_const", const=1, default=[], help="threads go back to the mode global")
    parser.add_argument("--pinned", dest="flags", action="append_const", const=2, help="page-locked memory is made and given back, too")
    parser.add_argument("--no-torch", action="store_true", help="no graphs, and the CPU device")
    options = parser.parse_args()

    device = "cpu" if options.no_torch else options.device
    graphs = NoGraphs() if options.no_torch else Graphs(device)
    with tempfile.TemporaryDirectory() as folder:
        loader = Loader(options.library, folder, device, sum(set(options.flags)))
        loader.wait(20)
        rows, failed = [], []
        for number in range(options.captures):
            before, begin = loader.batches(), time.monotonic()
            steps = 0

            def between():
                """Keeps the capture open for its share of the time and of the batches."""
                nonlocal steps
                steps += 1
                share = steps / graphs.KERNELS
                loader.wait(before + int(share * options.batches))
                left = begin + share * options.ms / 1000 - time.monotonic()
                time.sleep(max(left, 0))

            error = graphs.capture(number, between)
            rows.append((time.monotonic() - begin, loader.batches() - before, error))
            if error:
                failed.append(number)
                print(f"capture {number}: {error}")
        ended = loader.stop()

    print("| captures | succeeded | ms each, least and most | batches during each, least and most |")
    print("|---|---|---|---|")
    for first in range(0, len(rows), 10):
        part = rows[first : first + 10]
        times, came = [1000 * row[0] for row in part], [row[1] for row in part]
        good = sum(row[2] is None for row in part)
        print(f"| {first} to {first + len(part) - 1} | {good} | {min(times):.1f}, {max(times):.1f} | {min(came)}, {max(came)} |")
    starved = sum(row[1] < 1 for row in rows)
    print(f"{len(rows) - len(failed)} of {len(rows)} captures succeeded; {starved} without a batch; the loader {'failed' if ended else 'ended well'}")
    sys.exit(1 if failed or starved or ended else 0)


main()
