"""The names of ``thalweg`` for tensors of PyTorch. This is the only file that imports torch.

Results lie in memory that PyTorch allocated for its current stream, or for ``stream=``, and are
written by work on that stream. So they are used as any tensor of that stream is, and freed as one.
On another stream of PyTorch they need ``record_stream``, as every tensor does.

>>> import thalweg.torch
>>> thalweg.torch.decode_jpeg([b"no photograph"], device="cpu", errors="none")
[None]
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils.dlpack
from torch.utils.data import IterableDataset

from . import _core
from ._core import Batch, Inputs, Stats, TokenBatch
from ._errors import CaptureError
from ._thalweg import Tensor

_DTYPES = {
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}


def _current_device() -> str | None:
    """The device that PyTorch works on now; without a GPU that of thalweg."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else None


def _same_device(device: str, uuid: Any) -> None:
    """Refuses a number that means two GPUs, which CUDA_DEVICE_ORDER can cause."""
    if device == "cpu":
        return
    theirs = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if theirs is not None and uuid is not None and bytes(theirs.bytes) != bytes(uuid):
        raise ValueError(
            f"{device} of PyTorch and of thalweg are two GPUs: set CUDA_DEVICE_ORDER=PCI_BUS_ID before both start"
        )


def _current_stream(index: int) -> int:
    """The handle of PyTorch's current stream of a GPU."""
    return torch.cuda.current_stream(index).cuda_stream


# The same without an object for the stream, which takes longer than the copy that follows.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _current_stream)


def _stream(handle: int | None, device: str | torch.device | None) -> torch.cuda.Stream:
    """The stream of a handle, or PyTorch's current one. Without a handle ExternalStream makes another stream."""
    if handle is None:
        return torch.cuda.current_stream(device)
    if handle == 0:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(handle, device=device)  # type: ignore[no-untyped-call]


def _on(handle: int | None, device: str | torch.device | None) -> Any:
    """The context in which a stream is the current one."""
    return torch.cuda.stream(_stream(handle, device))


def _refuse_capture(stream: int | None, device: str | None) -> None:
    """Refuses a stream that captures a graph, by a question that the capture survives."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    with _on(stream, device):
        capturing = torch.cuda.is_current_stream_capturing()
    if capturing:
        raise CaptureError(
            "the stream captures a graph: call thalweg before or after the capture, and copy its results into the "
            "graph's own tensors"
        )


class _Allocator:
    """What the extension module calls for a tensor of PyTorch on one device, without a frame of Python between."""

    def __init__(self, device: str) -> None:
        where = torch.device(device)
        self.empty = torch.empty
        self.tensor = torch.Tensor
        self.keywords: dict[str, dict[str, Any]] = {name: {"dtype": kind, "device": where} for name, kind in _DTYPES.items()}
        self.current_stream = None if where.type == "cpu" else functools.partial(_raw_stream, where.index)

    def on_stream(self, shape: Sequence[int], dtype: str, stream: int) -> torch.Tensor:
        """A new tensor of a stream that is not PyTorch's current one."""
        keywords = self.keywords[dtype]
        with _on(stream, keywords["device"]):
            return self.empty(shape, **keywords)


def _view(
    tensor: torch.Tensor, offset: int, shape: Sequence[int], dtype: str, order: Sequence[int] | None
) -> torch.Tensor:
    kind = _DTYPES[dtype]
    elements = 1
    for n in shape:
        elements *= n
    flat = tensor.view(torch.uint8).narrow(0, offset, elements * kind.itemsize)
    view = flat.view(kind).view(tuple(shape))
    return view if order is None else view.permute(tuple(order))


def _of_tensor(tensor: Tensor) -> torch.Tensor:
    """A tensor of PyTorch: the same memory on the host, or a copy on the same GPU."""
    if tensor.device == "cpu":
        return torch.utils.dlpack.from_dlpack(tensor)
    memory: torch.Tensor = tensor._into(_core._open(tensor.device, "torch"), None)
    return memory.view(_DTYPES[tensor.dtype]).as_strided(tensor.shape, tensor._strides)


def _to_host(tensor: Any) -> Any:
    """The array of a tensor that is an image on the host."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"a {type(tensor).__name__} has no memory to read: pass a torch.Tensor")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError("a tensor that requires grad: pass image.detach(), since nothing here has a gradient")
    if tensor.device.type != "cpu":
        raise ValueError(f"an image on {tensor.device}: images come from the host, as the bytes of files or as arrays")
    return tensor.detach().numpy()


def decode_jpeg(data: Any, **options: Any) -> Any:
    """Decodes JPEG files to tensors: see :func:`thalweg.decode_jpeg`."""
    return _core.decode_jpeg(data, into="torch", **options)


class Pipeline(_core.Pipeline):
    """Photographs to tokens, as tensors: see :class:`thalweg.Pipeline`."""

    _into = "torch"


class Augment(_core.Augment):
    """Augmented batches, as tensors: see :class:`thalweg.Augment`."""

    _into = "torch"


class ImageProcessor(_core.ImageProcessor):
    """Stands in for the image processor of transformers: see :class:`thalweg.ImageProcessor`.

    ``processor.image_processor = thalweg.torch.ImageProcessor.from_pretrained(folder)``
    """

    _into = "torch"


class Loader(_core.Loader):
    """Files to batches of tensors: see :class:`thalweg.Loader`."""

    _into = "torch"


class _Batches(IterableDataset[Batch]):
    def __init__(self, loader: _core.Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError("a thalweg.Loader has threads of its own: set num_workers=0")
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)


def dataset(loader: _core.Loader) -> IterableDataset[Batch]:
    """The batches of a loader as a data set, for ``DataLoader(dataset, batch_size=None)``.

    Its ``state_dict`` is that of the loader, so ``StatefulDataLoader`` of torchdata works.
    """
    return _Batches(loader)


__all__ = [
    "Augment",
    "Batch",
    "ImageProcessor",
    "Inputs",
    "Loader",
    "Pipeline",
    "Stats",
    "TokenBatch",
    "dataset",
    "decode_jpeg",
]
