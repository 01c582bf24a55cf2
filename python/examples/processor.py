"""The inputs of a model by thalweg's processor and by that of transformers: the bits, and both rates.

    python processor.py [IMAGE...]

It makes an image if none is named. The model is Qwen2-VL's family; no weights are needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessor

import thalweg.torch


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    run()
    begin = time.perf_counter()
    result = run()
    return result, time.perf_counter() - begin


def main() -> None:
    torch.set_num_threads(1)
    thalweg.set_num_threads(1)
    images = [Image.open(path).convert("RGB") for path in sys.argv[1:]]
    if not images:
        noise = np.random.default_rng(0).integers(0, 256, (1080 // 8, 1920 // 8, 3), np.uint8)
        images = [Image.fromarray(noise).resize((1920, 1080))]
    theirs = Qwen2VLImageProcessor()
    ours = thalweg.torch.ImageProcessor(theirs.to_dict(), device="cpu")
    want, slow = timed(lambda: theirs(images=images, return_tensors="pt"))
    got, fast = timed(lambda: ours(images, return_tensors="pt"))
    same = all(torch.equal(want[name], got[name]) for name in want)
    print(f"equal bits: {same}; transformers {slow:.3f} s, thalweg {fast:.3f} s, one thread each")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
