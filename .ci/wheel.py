#!/usr/bin/env python3
"""Builds the wheel of python/, installs it in a fresh environment without Rust on its path, and tests it there.

- The Rust tests of `thalweg-dlpack`, and the format of the workspace.
- The wheel has at most 4 MB.
- `pytest` without PyTorch, `stubtest`, `mypy --strict` of the package's own files, and the examples of docstrings.
- The time of `import thalweg`.
"""

import os
import subprocess
import sys
import tempfile
import venv

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PYTHON = os.path.join(ROOT, "python")
MOST_BYTES = 4_000_000


def run(*command, **options):
    print("$", " ".join(command), flush=True)
    subprocess.run(command, check=True, **options)


def environment(folder, *packages):
    venv.create(folder, with_pip=True)
    python = os.path.join(folder, "bin", "python")
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
    return python


def main():
    manifest = ["--manifest-path", os.path.join(PYTHON, "Cargo.toml")]
    run("cargo", "fmt", "--check", "--all", *manifest)
    run("cargo", "test", "-q", "-p", "thalweg-dlpack", *manifest)
    with tempfile.TemporaryDirectory() as folder:
        builder = environment(os.path.join(folder, "build"), "maturin>=1.9,<2")
        wheels = os.path.join(folder, "wheels")
        run(builder, "-m", "maturin", "build", "-q", *manifest, "--out", wheels)
        (wheel,) = os.listdir(wheels)
        size = os.path.getsize(os.path.join(wheels, wheel))
        print(f"{wheel}: {size / 1e6:.2f} MB")
        if size > MOST_BYTES:
            sys.exit(f"the wheel has {size} bytes, more than {MOST_BYTES}")

        clean = {name: value for name, value in os.environ.items() if not name.startswith(("CARGO", "RUST", "PYTHON"))}
        clean["PATH"] = "/usr/bin:/bin"
        clean["THALWEG_DEVICE"] = "cpu"
        packages = ["pytest", "numpy", "pillow", "mypy"]
        python = environment(os.path.join(folder, "test"), os.path.join(wheels, wheel), *packages)
        here = {"cwd": folder, "env": clean}
        timed = "import time; t = time.perf_counter(); import thalweg; print(f'import: {1e3 * (time.perf_counter() - t):.1f} ms')"
        for _ in range(3):
            run(python, "-c", timed, **here)
        run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", os.path.join(PYTHON, "tests"), **here)
        run(python, "-c", "import doctest, thalweg._core as c; assert not doctest.testmod(c).failed", **here)
        run(python, "-m", "mypy.stubtest", "thalweg._thalweg", **here)


if __name__ == "__main__":
    main()
