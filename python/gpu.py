"""Runs all tests and the bench from a wheel, on a machine with a GPU, PyTorch and pytest. It builds and downloads nothing.

    python gpu.py thalweg-0.1.0-cp311-abi3-linux_x86_64.whl [ARGUMENT OF THE BENCH...]
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def main() -> int:
    wheel, arguments = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        environment = {**os.environ, "PYTHONPATH": folder, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "tests")]
        tested = subprocess.call(tests, env=environment, cwd=folder)
        timed = subprocess.call([sys.executable, str(HERE / "benches/bench.py"), *arguments], env=environment, cwd=folder)
        return tested or timed


if __name__ == "__main__":
    sys.exit(main())
