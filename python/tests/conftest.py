"""What the tests share: files, and the two frameworks."""

from __future__ import annotations

import gc
import io
import pathlib
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image


def photo(height: int, width: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Smooth colors with some noise, as a photograph has."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (7 + c) + seed) + np.cos(y / (5 + c)) for c in range(3)]
    levels = 128 + 50 * np.stack(waves, -1) + random.normal(0, 6, (height, width, 3))
    return levels.clip(0, 255).astype(np.uint8)


def jpeg(height: int = 60, width: int = 90, seed: int = 0, **options: Any) -> bytes:
    """A JPEG file."""
    out = io.BytesIO()
    Image.fromarray(photo(height, width, seed)).save(out, "JPEG", **{"quality": 85, **options})
    return out.getvalue()


def pillow(file: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """What Pillow decodes."""
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))


def growth(turn: Callable[[], None], first: int) -> tuple[int, int]:
    """The objects, and the kilobytes of the process at its largest, that 150 turns add after the first ones."""
    for _ in range(first):
        turn()
    gc.collect()
    objects, peak = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(150):
        turn()
    gc.collect()
    return len(gc.get_objects()) - objects, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Ten files of two classes, of growing sizes."""
    for i in range(10):
        place = tmp_path / ("cat" if i < 6 else "dog") / f"{i}.jpg"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(jpeg(20 + i, 30 + i, seed=i))
    return tmp_path


@pytest.fixture(params=["host", "device"])
def decode(request: pytest.FixtureRequest) -> str:
    """Who decodes: the host's decoder, or the kernels, here on the CPU device."""
    return str(request.param)

