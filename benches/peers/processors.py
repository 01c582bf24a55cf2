#!/usr/bin/env python3
"""Measures the image processors of transformers on one thread, beside `cargo bench -p thalweg-processor --bench host_path`.

usage: benches/peers/processors.py [qwen|clip|siglip] FILE...

Each file is decoded first and then processed alone; the time is the median of 9 runs. `slow` is Pillow and NumPy, `fast`
is torch and torchvision, if they are installed. Needs transformers, Pillow and NumPy.
"""

import os
import statistics
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
RUNS = 9


def processors(model):
    """The slow processor of a model, and the fast one if torch is there."""
    from transformers.utils import is_torchvision_available

    if model == "qwen":
        limits = {"min_pixels": 3136, "max_pixels": 12845056}
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor as Slow
    elif model == "clip":
        limits = {}
        from transformers.models.clip.image_processing_clip import CLIPImageProcessor as Slow
    else:
        limits = {"size": {"height": 384, "width": 384}}
        from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor as Slow
    yield "slow", lambda image: Slow(**limits)(images=image, return_tensors="np")
    if is_torchvision_available():
        import torch
        import transformers

        torch.set_num_threads(1)
        Fast = getattr(transformers, Slow.__name__ + "Fast")
        yield "fast", lambda image: Fast(**limits)(images=image, return_tensors="pt")
    else:
        print("no torchvision: the fast processor is not measured")


def main():
    arguments = sys.argv[1:]
    model = arguments.pop(0) if arguments and arguments[0] in ("qwen", "clip", "siglip") else "qwen"
    if not arguments:
        sys.exit(__doc__)
    import numpy
    import PIL
    import transformers
    from PIL import Image

    versions = f"transformers {transformers.__version__}, Pillow {PIL.__version__}, NumPy {numpy.__version__}"
    print(f"{model}, one thread, median of {RUNS} runs in ms; {versions}")
    for name, process in processors(model):
        for path in arguments:
            image = Image.open(path).convert("RGB")
            times = []
            for _ in range(RUNS + 1):
                begin = time.perf_counter()
                made = process(image)
                times.append(time.perf_counter() - begin)
            shape = list(made["pixel_values"].shape)
            print(f"{name}  {path}: {image.height} x {image.width}  {1e3 * statistics.median(times[1:]):8.2f}  {shape}")


if __name__ == "__main__":
    main()
