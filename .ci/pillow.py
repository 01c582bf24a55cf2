#!/usr/bin/env python3
"""Compares what thalweg decodes with Pillow, over the images of Pillow's own tests.

usage: .ci/pillow.py THALWEG [FOLDER...]

It fetches Pillow's source distribution from the registry, checks its hash, and decodes each JPEG, PNG and WebP file of its tests
with `THALWEG tokens --textures` on the CPU device, once by the kernels and once by the host's decoder, and with Pillow. Folders
are searched instead, if any are named. It needs Python with Pillow 13.0.0 and NumPy. It fails if the two halves differ, or if a
file differs from Pillow that is not in the list below.
"""

import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import warnings

import numpy as np
from PIL import Image, ImageOps

VERSION = "13.0.0"
SHA256 = "cdcd1ba258178f7356d74170c9a81ba4eab6a5d55748bc402a5a2a6fe6be3510"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")

# What may differ, by name, and why.
KNOWN = {
    "hopper_bad_exif.jpg": "its coded data is damaged, of which libjpeg only warns",
    "png_decompression_dos.png": "a large text beside the pixels, which does not matter",
    "unknown_compression_method.png": "a broken text beside the pixels, which does not matter",
    "chunk_no_fctl.png": "a broken animation, of which only the first frame counts",
    "mode_16bit.png": "16-bit colors are rounded, where Pillow takes the upper 8 bits",
}


def fetch(folder):
    with urllib.request.urlopen(f"{INDEX}/pillow/", timeout=60) as page:
        links = re.findall(r'href="([^"]+)"', page.read().decode())
    link = next(link for link in links if f"/pillow-{VERSION}.tar.gz" in link).split("#")[0]
    with urllib.request.urlopen(link, timeout=600) as file:
        data = file.read()
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        sys.exit(f"the hash of {link} is {found}")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def kind(path):
    with open(path, "rb") as file:
        head = file.read(12)
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    return "WebP" if head[:4] == b"RIFF" and head[8:] == b"WEBP" else None


def pillow(path):
    """The pixels as Pillow has them: those of 16 bits are rounded, as thalweg does it."""
    try:
        image = ImageOps.exif_transpose(Image.open(path))
        if image.mode.startswith("I"):
            wide = np.asarray(image).astype(np.uint32)
            return np.repeat(((wide * 255 + 32767) // 65535).astype(np.uint8)[..., None], 3, axis=2)
        if image.mode == "P" or image.mode == "1":
            image = image.convert("RGBA")
        return np.asarray(image.convert("RGBA" if image.mode == "RGBA" else "RGB"))[..., :3]
    except Exception as error:  # whatever Pillow says of a file that it refuses
        return f"{type(error).__name__}: {error}"


def thalweg(program, paths, decode, folder):
    """The pixels, or why there are none, of each path."""
    command = [program, "tokens", "--device=cpu", "--textures", "--budget=64", "--json", f"--decode={decode}", "--out", folder]
    run = subprocess.run(command + paths, capture_output=True, text=True)
    if run.returncode not in (0, 1):
        sys.exit(f"{run.returncode}: {run.stderr}")
    report = json.loads(run.stdout)
    found = {failed["source"]: failed["error"] for failed in report["failed"]}
    for image in report["images"]:
        with open(image["output"], "rb") as file:
            data = file.read()
        length = struct.unpack("<Q", data[:8])[0]
        start, end = json.loads(data[8 : 8 + length])["textures"]["data_offsets"]
        planes = np.frombuffer(data[8 + length + start : 8 + length + end], np.float32)
        planes = planes.reshape(-1, image["height"], image["width"])[:3]
        found[image["source"]] = np.rint(planes * 255).astype(np.uint8).transpose(1, 2, 0)
    return found, report["jpeg"]


def main():
    program, folders = sys.argv[1], sys.argv[2:]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as work:
        if not folders:
            fetch(work)
            folders = [os.path.join(work, f"pillow-{VERSION}", "Tests", "images")]
        paths = []
        for folder in folders:
            for parent, _, names in os.walk(folder):
                paths += [os.path.join(parent, name) for name in sorted(names)]
        paths = [path for path in paths if os.path.getsize(path) and kind(path)]
        counts, wrong = {}, []
        # Equal names would have one result, so each file gets one of its own.
        links = os.path.join(work, "links")
        os.mkdir(links)
        names = {}
        for number, path in enumerate(paths):
            link = os.path.join(links, f"{number:05}.image")
            os.symlink(os.path.abspath(path), link)
            names[link] = path
        for first in range(0, len(paths), 200):
            part = list(names)[first : first + 200]
            halves = []
            for decode in ("device", "host"):
                with tempfile.TemporaryDirectory() as out:
                    halves.append(thalweg(program, part, decode, out))
            (device, left), (host, _) = halves
            for why, count in left["left_device"].items():
                counts[f"left the device: {why}"] = counts.get(f"left the device: {why}", 0) + count
            for link in part:
                name, expected = os.path.basename(names[link]), pillow(link)
                a, b = device[link], host[link]
                both = a == b if isinstance(a, str) or isinstance(b, str) else a.shape == b.shape and (a == b).all()
                if not both:
                    verdict = "the halves differ"
                elif isinstance(b, str):
                    verdict = "refused by both" if isinstance(expected, str) else "refused"
                elif isinstance(expected, str):
                    verdict = "decoded, and Pillow refuses it"
                elif b.shape != expected.shape:
                    verdict = "another size"
                else:
                    verdict = "equal" if (b == expected).all() else "other pixels"
                if verdict not in ("equal", "refused by both"):
                    reason = KNOWN.get(name)
                    detail = b if isinstance(b, str) else expected if isinstance(expected, str) else ""
                    if verdict == "other pixels":
                        levels = np.abs(b.astype(int) - expected)
                        detail = f"up to {levels.max()} levels, {levels.mean():.4f} on average"
                    print(f"{kind(link)} {name}: {verdict}; {detail}" + (f"; known: {reason}" if reason else ""))
                    if reason is None:
                        wrong.append(name)
                    else:
                        verdict += ", known"
                counts[f"{kind(link)}: {verdict}"] = counts.get(f"{kind(link)}: {verdict}", 0) + 1
    for what, count in sorted(counts.items()):
        print(f"{count:5} {what}")
    sys.exit(1 if wrong or not counts else 0)


if __name__ == "__main__":
    main()
