#!/usr/bin/env python3
"""Compares the host's resize of thalweg-processor with Pillow, in an environment of each version.

usage: .ci/resize.py PROGRAM [CASES]

PROGRAM is the built example `resize` of thalweg-processor. The cases are random crops of the bundled photographs, and noise, of
sides from 1 up, by every filter, to random sizes; half of them long and narrow. It installs each version of Pillow in `target`.
"""

import os
import random
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# The versions, and what `Resampler` names each.
VERSIONS = {"12.1.1": "Pil", "12.3.0": "Pil12_2", "13.0.0": "Pil13"}
FILTERS = ["Box", "Bilinear", "Hamming", "Bicubic", "Lanczos"]


def environment(version):
    """The Python that has this version."""
    venv = os.path.join(ROOT, "target", f"resize-{version}")
    if not os.path.exists(f"{venv}/done"):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([f"{venv}/bin/pip", "install", "--quiet", f"pillow=={version}"], check=True)
        open(f"{venv}/done", "w").close()
    return f"{venv}/bin/python"


def side(random_):
    return random_.choice([1, 2, 3, random_.randint(1, 40), random_.randint(1, 400)])


def compare(program, cases):
    """In the Python of a version: resizes each case twice."""
    import PIL
    from PIL import Image

    resampler = VERSIONS[PIL.__version__]
    random_ = random.Random(f"resize {PIL.__version__}")
    photos = [Image.open(f"{ROOT}/assets/photos/{name}.png").convert("RGB") for name in ("astronaut", "chelsea", "coffee")]
    data, expected = [], []
    for i in range(cases):
        height, width, rows, columns = (side(random_) for _ in range(4))
        if i % 4 == 0:
            # These have the pass down first in some versions.
            height, width, rows = random_.randint(200, 900), random_.randint(1, 8), random_.randint(1, 60)
        if i % 2:
            image = Image.frombytes("RGB", (width, height), random_.randbytes(3 * width * height))
        else:
            photo = random_.choice(photos)
            left, top = random_.randint(0, photo.width), random_.randint(0, photo.height)
            image = photo.crop((left, top, left + width, top + height))  # black beside the photograph
        name = FILTERS[i % len(FILTERS)]
        data.append(f"{height} {width} {rows} {columns} {name} {resampler}\n".encode() + image.tobytes())
        resized = image.resize((columns, rows), getattr(Image.Resampling, name.upper()))
        expected.append((f"{height} x {width} to {rows} x {columns}, {name}", resized.tobytes()))
    done = subprocess.run([program, "-"], input=b"".join(data), stdout=subprocess.PIPE, check=True)
    at, wrong = 0, []
    for what, pixels in expected:
        if done.stdout[at : at + len(pixels)] != pixels:
            wrong.append(what)
        at += len(pixels)
    if wrong or at != len(done.stdout):
        sys.exit(f"Pillow {PIL.__version__}: {len(wrong)} of {cases} differ, such as {wrong[:3]}; {len(done.stdout)} bytes of {at}")
    print(f"Pillow {PIL.__version__}: {cases} resizes are equal, {at} bytes")


program, cases = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000
if os.environ.get("RESIZE_INSIDE"):
    compare(program, cases)
else:
    for version in VERSIONS:
        arguments = [environment(version), os.path.abspath(__file__), program, str(cases)]
        subprocess.run(arguments, check=True, env={**os.environ, "RESIZE_INSIDE": "1"})
