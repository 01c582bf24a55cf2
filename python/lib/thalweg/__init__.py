"""JPEG decoding, augmentation, adaptive visual tokens and image processors, as tensors.

``thalweg.torch`` has the same names for tensors of PyTorch.
"""

import os as _os

from . import _thalweg
from ._core import (
    Augment,
    Batch,
    DeviceInfo,
    ImageProcessor,
    Inputs,
    Loader,
    Pipeline,
    Stats,
    TokenBatch,
    decode_jpeg,
    devices,
    set_num_threads,
)
from ._errors import CaptureError, DecodeError, DeviceError, ForkedError, OutOfMemoryError, ThalwegError
from ._thalweg import Tensor, __version__

_level = _os.environ.get("THALWEG_LOG") or "warn"
if not _thalweg.start_logging(_level):
    raise ValueError(f"THALWEG_LOG is {_level!r}, expected off, error, warn, info, debug or trace")

__all__ = [
    "Augment",
    "Batch",
    "CaptureError",
    "DecodeError",
    "DeviceError",
    "DeviceInfo",
    "ForkedError",
    "ImageProcessor",
    "Inputs",
    "Loader",
    "OutOfMemoryError",
    "Pipeline",
    "Stats",
    "Tensor",
    "ThalwegError",
    "TokenBatch",
    "__version__",
    "decode_jpeg",
    "devices",
    "set_num_threads",
]
