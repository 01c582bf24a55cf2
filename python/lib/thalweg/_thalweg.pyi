"""The extension module. Programs use ``thalweg`` and ``thalweg.torch``."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

__all__ = [
    "Augment",
    "ImageProcessor",
    "Loader",
    "Pipeline",
    "Place",
    "Tensor",
    "__version__",
    "decode_jpeg",
    "decode_photo",
    "devices",
    "set_num_threads",
    "start_logging",
]
__version__: str

@final
class Tensor:
    """A result of thalweg, on the host or on a GPU."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...
    def __reduce__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]: ...
    def numpy(self) -> np.ndarray[Any, Any]: ...
    def torch(self) -> Any: ...
    def cpu(self) -> Tensor: ...
    def _view(
        self, offset: int, shape: list[int], dtype: str | None = None, order: Sequence[int] | None = None
    ) -> Tensor: ...
    def _into(self, place: Place, stream: int | None) -> Any: ...
    @property
    def _strides(self) -> tuple[int, ...]: ...

@final
class Place:
    def __new__(cls, device: str | None = None, framework: Any = None) -> Place: ...
    def _filled(self, shape: list[int], value: int, stream: int | None = None) -> Any: ...
    @property
    def device(self) -> str: ...
    @property
    def uuid(self) -> Any: ...

@final
class Pipeline:
    def __new__(
        cls,
        place: Place,
        *,
        patch: int,
        sides: tuple[int, int],
        budget: int,
        focus: float,
        fixation: list[float],
        foveal_bias: float,
        mix: list[float] | None,
        dtype: str,
        depth: int,
        head: bytes | None = None,
        query: list[float] | None = None,
    ) -> Pipeline: ...
    def tokens(
        self, images: list[Any], place: Place, stream: int | None = None
    ) -> tuple[Any, dict[str, tuple[int, list[int], str]]]: ...

@final
class Augment:
    def __new__(
        cls,
        size: int,
        *,
        seed: int,
        scale: tuple[float, float] | None,
        ratio: tuple[float, float],
        crop: tuple[int, int] | None,
        flip: float,
        brightness: float,
        contrast: float,
        saturation: float,
        grayscale: float,
        blur: tuple[float, float] | None,
        blur_p: float,
        flip_vertical: float,
        rotation: float,
        hue: float,
        erase: tuple[float, float] | None,
        erase_p: float,
        mixup: float | None,
        mean: list[float],
        std: list[float],
        dtype: str,
    ) -> Augment: ...
    def mix_weights(self, epoch: int, indices: list[int]) -> list[float]: ...
    def augment(
        self, images: list[Any], place: Place, epoch: int, indices: list[int], stream: int | None = None
    ) -> Any: ...

@final
class ImageProcessor:
    def __new__(
        cls,
        config: str | None = None,
        named: str | None = None,
        size: int | None = None,
        resampler: str = "aten",
        style: str = "fast",
        dtype: str = "float32",
    ) -> ImageProcessor: ...
    def attributes(self) -> dict[str, Any]: ...
    def patches(self, height: int, width: int) -> int: ...
    def process(
        self, images: list[Any], place: Place | None = None, stream: int | None = None
    ) -> tuple[Any, dict[str, Tensor]]: ...

@final
class Loader:
    def __new__(
        cls,
        place: Place,
        files: list[str],
        *,
        labels: list[int] | None,
        folder: bool | None,
        batch_size: int,
        shuffle: int | None,
        drop_last: bool,
        rank: int,
        world_size: int,
        prefetch: int,
        threads: int,
        skip_errors: bool,
        decode: str,
        pinned_budget: int | None,
        host: bool,
    ) -> Loader: ...
    @property
    def classes(self) -> list[str]: ...
    @property
    def total(self) -> int: ...
    def next(
        self, place: Place, transform: Any = None, stream: int | None = None
    ) -> tuple[Any, dict[str, Any] | None, dict[str, Any]] | None: ...
    def samples(self) -> int: ...
    def position(self) -> tuple[int, int]: ...
    def resume(self, epoch: int, samples: int) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...

def start_logging(level: str) -> bool: ...
def set_num_threads(threads: int) -> None: ...
def devices() -> list[tuple[str, str, list[int] | None, int, tuple[int, int] | None]]: ...
def decode_jpeg(
    files: list[Any], place: Place | None = None, stream: int | None = None, fallback: bool = True
) -> tuple[Any, list[Any]]: ...
def decode_photo(file: Any) -> Tensor: ...
