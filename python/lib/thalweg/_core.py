"""The interface of thalweg. ``thalweg.torch`` has the same names for tensors of PyTorch."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

from . import _thalweg
from ._thalweg import Place, Tensor

FRAMEWORKS = ("torch", "numpy")


class DeviceInfo(NamedTuple):
    """A device: ``name`` is what ``device=`` takes."""

    name: str
    description: str
    uuid: bytes | None
    memory: int
    compute_capability: tuple[int, int] | None


def devices() -> list[DeviceInfo]:
    """Lists the GPUs that can be opened, and the CPU.

    >>> import thalweg
    >>> thalweg.devices()[-1].name
    'cpu'
    """
    return [
        DeviceInfo(name, text, None if uuid is None else bytes(uuid), memory, capability)
        for name, text, uuid, memory, capability in _thalweg.devices()
    ]


def set_num_threads(threads: int) -> None:
    """Sets how many threads decode and process on the host; 0 is one for each core.

    A forked child begins with one.

    >>> import thalweg
    >>> thalweg.set_num_threads(2)
    """
    _thalweg.set_num_threads(threads)


def _framework(into: Any) -> str | None:
    """The name of a framework, from its name or from the type of its arrays."""
    name = into.__module__.split(".")[0] if isinstance(into, type) else into
    if name is None or name in FRAMEWORKS:
        return cast("str | None", name)
    if into is Tensor:
        return None
    raise ValueError(f"into is {into!r}, expected one of {', '.join(FRAMEWORKS)}, or None for thalweg.Tensor")


def _torch() -> Any:
    return importlib.import_module("thalweg.torch")


_places: dict[tuple[str | None, str | None], Place] = {}


def _open(device: str | None, framework: str | None) -> Place:
    if (device, framework) not in _places:
        torch = _torch() if framework == "torch" else None
        place = Place(device, torch)
        if torch is not None:
            torch._same_device(place.device, place.uuid)
        _places[device, framework] = place
    return _places[device, framework]


class _Where:
    """A device and a framework, as the caller named them."""

    def __init__(self, device: Any, into: Any, host: bool) -> None:
        self.framework = _framework(into)
        self.device = None if device is None else str(device)
        if self.device == "auto":
            self.device = None
        if self.framework == "torch":
            if self.device is None and not os.environ.get("THALWEG_DEVICE"):
                self.device = _torch()._current_device()
            elif self.device == "cuda":  # as in PyTorch; without a GPU of PyTorch the error is that of a device
                self.device = _torch()._current_device() or "cuda"
        self.host = host

    def place(self) -> Place | None:
        """The place; for functions of the host on the CPU there is none, and no device is opened."""
        if self.host and self.device == "cpu":
            return None
        place = _open(self.device, self.framework)
        return None if self.host and place.device == "cpu" else place

    def device_place(self) -> Place:
        return _open(self.device, self.framework)

    def stream(self, stream: Any) -> int | None:
        """The handle of a stream. This comes before all that a capture on it would not survive."""
        handle = self._handle(stream)
        self.refuse_capture(handle)
        return handle

    def refuse_capture(self, handle: int | None) -> None:
        if self.framework == "torch" and self.device != "cpu":
            _torch()._refuse_capture(handle, self.device)

    def on(self, stream: int | None) -> contextlib.AbstractContextManager[Any]:
        """The context in which a stream of the caller is the framework's current one."""
        if stream is None or self.framework != "torch" or self.device_place().device == "cpu":
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = _torch()._on(stream, self.device)
        return context

    def _handle(self, stream: Any) -> int | None:
        if stream is None or isinstance(stream, int):
            return stream
        if hasattr(stream, "__cuda_stream__"):
            return int(stream.__cuda_stream__()[1])
        if hasattr(stream, "cuda_stream"):
            return int(stream.cuda_stream)
        raise TypeError(f"stream is {type(stream).__name__}, expected a handle or an object with __cuda_stream__")

    def finish(self, tensor: Any) -> Any:
        """A result in the form that the caller asked for."""
        if not isinstance(tensor, Tensor):
            return tensor
        if self.framework == "torch":
            return tensor.torch()
        return tensor.numpy() if self.framework == "numpy" else tensor

    def view(self, tensor: Any, offset: int, shape: Sequence[int], dtype: str, order: Sequence[int] | None = None) -> Any:
        """A part of a tensor, from a byte on."""
        if isinstance(tensor, Tensor):
            return self.finish(tensor._view(offset, list(shape), dtype, order))
        return _torch()._view(tensor, offset, shape, dtype, order)

    def __repr__(self) -> str:
        return f"device={self.device!r}, into={self.framework!r}"


def _is_file(item: Any) -> bool:
    return isinstance(item, (bytes, bytearray)) or (isinstance(item, memoryview) and item.ndim == 1)


def _image(item: Any) -> Any:
    """One image as Rust takes it: the bytes of a file, or a buffer of uint8."""
    if _is_file(item):
        return bytes(item)
    if isinstance(item, (str, os.PathLike)):
        with open(item, "rb") as file:
            return file.read()
    if isinstance(item, Tensor):
        return item.numpy()
    if type(item).__module__.split(".")[0] == "torch":
        return _torch()._to_host(item)
    if hasattr(item, "convert") and hasattr(item, "getbands"):
        return importlib.import_module("numpy").asarray(item.convert("RGB"))
    return item


def _images(images: Any) -> list[Any]:
    """Images of any nesting, one after another."""
    if isinstance(images, (list, tuple)) or (isinstance(images, Iterator) and not hasattr(images, "getbands")):
        return [image for item in images for image in _images(item)]
    return [_image(images)]


def decode_jpeg(
    data: Any,
    *,
    device: Any = None,
    into: Any = None,
    stream: Any = None,
    layout: str = "HWC",
    fallback: bool = True,
    errors: str = "raise",
    decode: str = "auto",
) -> Any:
    """Decodes one JPEG file, or several, to upright RGB of ``uint8``.

    ``data`` is the bytes of a file, or an iterable of such. The images of one call share one
    allocation. A file that fails raises :class:`DecodeError` with its ``index``; with
    ``errors="none"`` its place in the list is ``None``. On a GPU, ``fallback`` lets the host decode
    the few kinds of files that the kernels do not. The call waits until the device knows which files
    are broken.

    >>> import thalweg
    >>> thalweg.decode_jpeg([b"no photograph"], device="cpu", errors="none")
    [None]
    """
    if layout not in ("HWC", "CHW"):
        raise ValueError(f"layout is {layout!r}, expected HWC or CHW")
    if errors not in ("raise", "none"):
        raise ValueError(f"errors is {errors!r}, expected raise or none")
    if decode not in ("auto", "device", "host"):
        raise ValueError(f"decode is {decode!r}, expected auto, device or host")
    where = _Where(device, into, host=decode != "device")
    stream = where.stream(stream)
    single = _is_file(data) or isinstance(data, str) or hasattr(data, "__array_interface__")
    files = [data] if single else list(data)
    place = None if decode == "host" else where.place()
    memory, found = _thalweg.decode_jpeg(files, place, stream, fallback)
    images: list[Any] = []
    for image in found:
        if isinstance(image, Exception):
            if errors == "raise":
                raise image
            images.append(None)
            continue
        start, height, width = image
        order = (2, 0, 1) if layout == "CHW" else None
        images.append(where.view(memory, start, (height, width, 3), "uint8", order))
    return images[0] if single else images


class TokenBatch:
    """The tokens of some images.

    It unpacks as ``tokens, cu_seqlens, max_seqlen``, which variable-length attention takes. Of
    ``tokens`` and ``position`` the first T rows count, and the others are finite; each entry of
    ``cu_seqlens`` after the first K + 1 is T, so the sequences there are empty. T and K are
    ``counts``. So no shape waits for the device; :meth:`trim` waits, and cuts.
    """

    __slots__ = ("counts", "cu_seqlens", "image_cu_seqlens", "max_seqlen", "patch_id", "position", "tokens")

    def __init__(self, parts: Mapping[str, Any], max_seqlen: int) -> None:
        for name, value in parts.items():
            setattr(self, name, value)
        self.max_seqlen = max_seqlen

    tokens: Any
    cu_seqlens: Any
    max_seqlen: int
    position: Any
    patch_id: Any
    image_cu_seqlens: Any
    counts: Any

    def __iter__(self) -> Iterator[Any]:
        return iter((self.tokens, self.cu_seqlens, self.max_seqlen))

    def trim(self) -> TokenBatch:
        """Waits for the counts, and returns the rows that count."""
        counts = self.counts.numpy() if isinstance(self.counts, Tensor) else self.counts
        tokens, patches = (int(n) for n in counts.tolist())
        lengths = {"tokens": tokens, "position": tokens, "cu_seqlens": patches + 1, "patch_id": patches}
        parts = {name: _first(getattr(self, name), n) for name, n in lengths.items()}
        parts.update(image_cu_seqlens=self.image_cu_seqlens, counts=self.counts)
        return TokenBatch(parts, self.max_seqlen)

    def __repr__(self) -> str:
        return f"thalweg.TokenBatch(tokens of shape {tuple(self.tokens.shape)}, max_seqlen={self.max_seqlen})"


def _first(tensor: Any, rows: int) -> Any:
    if isinstance(tensor, Tensor):
        return tensor._view(0, [rows, *tensor.shape[1:]])
    return tensor[:rows]


def _no_pickle(what: str, instead: str) -> TypeError:
    return TypeError(f"a {what} cannot be pickled, because it has memory of a device: {instead}")


class Pipeline:
    """Photographs to adaptive visual tokens.

    >>> import numpy, thalweg
    >>> pipeline = thalweg.Pipeline(device="cpu", budget=500, into="numpy")
    >>> image = numpy.full((64, 96, 3), 128, numpy.uint8)
    >>> tokens, cu_seqlens, max_seqlen = pipeline([image])
    >>> tokens.shape[1], max_seqlen
    (13, 400)
    """

    _into: Any = None

    def __init__(
        self,
        *,
        device: Any = None,
        patch: int = 32,
        sides: tuple[int, int] = (8, 20),
        budget: int = 4096,
        focus: float = 0.8,
        fixation: tuple[float, float] = (0.5, 0.5),
        foveal_bias: float = 0.0,
        mix: tuple[float, float, float] | None = None,
        dtype: str = "float32",
        head: bytes | None = None,
        query: Sequence[float] | None = None,
        into: Any = None,
        exact: bool = False,
        depth: int = 4,
    ) -> None:
        self._where = _Where(device, self._into if into is None else into, host=False)
        self._exact = exact
        self._most = sides[1] ** 2
        self._settings = f"patch={patch}, sides={sides}, budget={budget}, focus={focus}, dtype={dtype!r}"
        self._core = _thalweg.Pipeline(
            self._where.device_place(),
            patch=patch,
            sides=sides,
            budget=budget,
            focus=focus,
            fixation=list(fixation),
            foveal_bias=foveal_bias,
            mix=None if mix is None else list(mix),
            dtype=dtype,
            depth=depth,
            head=head,
            query=None if query is None else [float(v) for v in query],
        )

    def __call__(self, images: Any, *, stream: Any = None) -> TokenBatch:
        """Makes tokens of images: arrays [height, width, 3] of uint8, or the bytes of files."""
        where = self._where
        stream = where.stream(stream)
        tensor, parts = self._core.tokens(_images(images), where.device_place(), stream)
        return self._batch(where, stream, tensor, parts)

    def _batch(
        self, where: _Where, stream: int | None, tensor: Any, parts: Mapping[str, tuple[int, list[int], str]]
    ) -> TokenBatch:
        views = {name: where.view(tensor, *part) for name, part in parts.items()}
        batch = TokenBatch(views, self._most)
        if not self._exact:
            return batch
        with where.on(stream):  # which writes the counts
            return batch.trim()

    def __repr__(self) -> str:
        return f"thalweg.Pipeline({self._settings}, {self._where})"

    def __reduce__(self) -> Any:
        raise _no_pickle("Pipeline", "pickle its arguments, and make it again")


class Augment:
    """Random crops, flips, colors and blurs. Seed, epoch and index decide what happens to an image.

    `crop`, a height and a width, crops this size at a random place, instead of `scale` and `ratio`; a side that the image does
    not have is as long as the image. Off by default: `flip_vertical`, the probability of a flip upside down; `rotation`, the most degrees either way; `hue`,
    the most of a turn of the color circle either way, up to 0.5; `erase`, the area of an erased rectangle as a part of the
    image, from and to, which comes with the probability `erase_p`; and `mixup`, the alpha of a Beta distribution, from 0.05 to
    1: each image is mixed with the next one of its batch, and `mix_weights` says by which weight.

    >>> import numpy, thalweg
    >>> augment = thalweg.Augment(32, seed=7, device="cpu", into="numpy")
    >>> images = [numpy.full((40, 70, 3), 90, numpy.uint8)]
    >>> augment(images, epoch=0, indices=[0]).shape
    (1, 3, 32, 32)
    """

    _into: Any = None

    def __init__(
        self,
        size: int,
        *,
        seed: int = 0,
        scale: tuple[float, float] | None = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        crop: tuple[int, int] | None = None,
        flip: float = 0.5,
        brightness: float = 0.4,
        contrast: float = 0.4,
        saturation: float = 0.4,
        grayscale: float = 0.1,
        blur: tuple[float, float] | None = (0.1, 2.0),
        blur_p: float = 0.5,
        flip_vertical: float = 0.0,
        rotation: float = 0.0,
        hue: float = 0.0,
        erase: tuple[float, float] | None = None,
        erase_p: float = 0.5,
        mixup: float | None = None,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        dtype: str = "float32",
        device: Any = None,
        into: Any = None,
    ) -> None:
        self._where = _Where(device, self._into if into is None else into, host=False)
        self._settings = f"{size}, seed={seed}, dtype={dtype!r}"
        self._core = _thalweg.Augment(
            size,
            seed=seed,
            scale=scale,
            ratio=ratio,
            crop=crop,
            flip=flip,
            brightness=brightness,
            contrast=contrast,
            saturation=saturation,
            grayscale=grayscale,
            blur=blur,
            blur_p=blur_p,
            flip_vertical=flip_vertical,
            rotation=rotation,
            hue=hue,
            erase=erase,
            erase_p=erase_p,
            mixup=mixup,
            mean=list(mean),
            std=list(std),
            dtype=dtype,
        )

    def __call__(self, images: Any, *, epoch: int, indices: Sequence[int], stream: Any = None) -> Any:
        """Augments images, whose numbers in the data set are ``indices``: [B, 3, S, S]."""
        where = self._where
        stream, place = where.stream(stream), where.device_place()
        return where.finish(self._core.augment(_images(images), place, epoch, list(indices), stream))

    def mix_weights(self, *, epoch: int, indices: Sequence[int]) -> list[float]:
        """Returns the weight of each image in its mixture with the next one of the batch.

        The last image is mixed with the first. ``w * loss(label) + (1 - w) * loss(next label)`` is
        the loss of an image.

        >>> import thalweg
        >>> thalweg.Augment(32, device="cpu").mix_weights(epoch=0, indices=[4, 5])
        [1.0, 1.0]
        """
        return self._core.mix_weights(epoch, list(indices))

    def __repr__(self) -> str:
        return f"thalweg.Augment({self._settings}, {self._where})"

    def __reduce__(self) -> Any:
        raise _no_pickle("Augment", "pickle its arguments, and make it again")


class Inputs(dict[str, Any]):
    """The inputs of a model by name, as ``BatchFeature`` of transformers has them."""

    @property
    def data(self) -> dict[str, Any]:
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to(self, *args: Any, **kwargs: Any) -> Inputs:
        """Moves each tensor, and casts those of floats, as transformers does."""
        moved = Inputs()
        for name, value in self.items():
            floats = "float" in str(value.dtype)
            target = [a for a in args if floats or "torch.dtype" not in str(type(a))]
            moved[name] = value.to(*target, **{k: v for k, v in kwargs.items() if floats or k != "dtype"})
        return moved


# What callers pass that changes no number here.
_WITHOUT_EFFECT = {"device", "data_format", "input_data_format", "disable_grouping", "return_mm_token_type_ids"}
_ALWAYS = {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"}


class ImageProcessor:
    """Stands in for the image processor of transformers, to the same bits.

    ``config`` is the content of a ``preprocessor_config.json``, as a mapping or as text. On the CPU
    the host computes, without any device, so workers made by fork can use it.

    >>> import numpy, thalweg
    >>> processor = thalweg.ImageProcessor.qwen2_5_vl(device="cpu", into="numpy")
    >>> inputs = processor([numpy.full((60, 90, 3), 128, numpy.uint8)])
    >>> inputs["pixel_values"].shape, inputs["image_grid_thw"].tolist()
    ((24, 1176), [[1, 4, 6]])
    """

    _into: Any = None
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    max_num_patches: int
    size: dict[str, int]
    crop_size: dict[str, int]
    image_mean: list[float]
    image_std: list[float]
    resample: int
    model_input_names: list[str]
    image_processor_type: str
    do_resize = do_rescale = do_normalize = do_convert_rgb = True
    rescale_factor = 1 / 255
    is_fast = True

    def __init__(
        self,
        config: Mapping[str, Any] | str,
        *,
        device: Any = None,
        into: Any = None,
        resampler: str = "aten",
        style: str = "fast",
        dtype: str = "float32",
    ) -> None:
        import json  # here, because it takes longer than all of thalweg

        text = config if isinstance(config, str) else json.dumps(dict(config))
        self._make({"config": text}, device, into, resampler, style, dtype)

    def _make(self, what: dict[str, Any], device: Any, into: Any, resampler: str, style: str, dtype: str) -> None:
        self._arguments = (what, None if device is None else str(device), into, resampler, style, dtype)
        self._where = _Where(device, self._into if into is None else into, host=True)
        self._core = _thalweg.ImageProcessor(**what, resampler=resampler, style=style, dtype=dtype)
        for name, value in self._core.attributes().items():
            setattr(self, name, value)

    @classmethod
    def _named(cls, name: str, size: int | None, options: dict[str, Any]) -> Any:
        made = cls.__new__(cls)
        defaults = {"device": None, "into": None, "resampler": "aten", "style": "fast", "dtype": "float32"}
        unknown = set(options) - set(defaults)
        if unknown:
            raise TypeError(f"unknown arguments: {', '.join(sorted(unknown))}")
        made._make({"named": name, "size": size}, **{**defaults, **options})
        return made

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], **options: Any) -> Any:
        """The processor that a configuration describes."""
        return cls(config, **options)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], **options: Any) -> Any:
        """The processor of a model's folder, from its ``preprocessor_config.json``."""
        for name in ("preprocessor_config.json", "processor_config.json"):
            path = os.path.join(folder, name)
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    return cls(file.read(), **options)
        raise FileNotFoundError(f"{os.fspath(folder)} has no preprocessor_config.json")

    @classmethod
    def qwen2_vl(cls, **options: Any) -> Any:
        """The processor of Qwen2-VL."""
        return cls._named("qwen2_vl", None, options)

    @classmethod
    def qwen2_5_vl(cls, **options: Any) -> Any:
        """The processor of Qwen2.5-VL, which is that of Qwen2-VL."""
        return cls._named("qwen2_5_vl", None, options)

    @classmethod
    def qwen3_vl(cls, **options: Any) -> Any:
        """The processor of Qwen3-VL."""
        return cls._named("qwen3_vl", None, options)

    @classmethod
    def siglip2_naflex(cls, max_patches: int = 256, **options: Any) -> Any:
        """The processor of SigLIP2 for images of any shape."""
        return cls._named("siglip2_naflex", max_patches, options)

    @classmethod
    def clip(cls, size: int = 224, **options: Any) -> Any:
        """The processor of CLIP."""
        return cls._named("clip", size, options)

    @classmethod
    def siglip(cls, size: int = 224, **options: Any) -> Any:
        """The processor of SigLIP."""
        return cls._named("siglip", size, options)

    @classmethod
    def internvl(cls, **options: Any) -> Any:
        """The processor of InternVL."""
        return cls._named("internvl", None, options)

    @classmethod
    def llava_onevision(cls, **options: Any) -> Any:
        """The processor of LLaVA-OneVision."""
        return cls._named("llava_onevision", None, options)

    def __call__(
        self, images: Any = None, *, return_tensors: Any = None, stream: Any = None, videos: Any = None, **kwargs: Any
    ) -> Inputs:
        """Processes images: PIL images, arrays [height, width, 3] of uint8, bytes or paths of files.

        A PIL image is taken as it is, and a file is turned upright, as transformers does.
        """
        if videos is not None:
            raise ValueError("thalweg processes no video: keep the video processor of transformers")
        self._admit(kwargs)
        where = self._where
        into = {"pt": "torch", "np": "numpy", None: where.framework}.get(getattr(return_tensors, "value", return_tensors), "")
        if into == "":
            raise ValueError(f"return_tensors is {return_tensors!r}, expected pt, np or None")
        if into != where.framework:
            where = _Where(where.device or ("cpu" if where.place() is None else None), into, host=True)
        stream = where.stream(stream)
        values, beside = self._core.process(_images(images), where.place(), stream)
        inputs = Inputs(pixel_values=where.finish(values))
        for name, value in beside.items():
            # On a GPU these stay on the host, where models need them first.
            inputs[name] = where.finish(value)
        return inputs

    preprocess = __call__

    def _admit(self, kwargs: Mapping[str, Any]) -> None:
        """Refuses what would change numbers."""
        for name, value in kwargs.items():
            same = value is None or name in _WITHOUT_EFFECT or (name in _ALWAYS and value is True)
            if not same and _plain(getattr(self, name, _MISSING)) != _plain(value):
                raise ValueError(
                    f"{name}={value!r} differs from this processor's setting: make another ImageProcessor with it"
                )

    def get_number_of_image_patches(self, height: int, width: int, images_kwargs: Any = None) -> int:
        """The patches or tiles of an image of this size."""
        self._admit(images_kwargs or {})
        return self._core.patches(height, width)

    def to_dict(self) -> dict[str, Any]:
        """The settings, by the names of transformers."""
        return dict(self._core.attributes())

    def __repr__(self) -> str:
        return f"thalweg.ImageProcessor({self.image_processor_type}, {self._where})"

    def __reduce__(self) -> Any:
        return _remake, (type(self), self._arguments)


_MISSING = object()


def _plain(value: Any) -> Any:
    """A setting in a form that compares: transformers has types of its own for sizes."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) or hasattr(value, "keys"):
        return {key: value[key] for key in value.keys() if value[key] is not None}
    return value


def _remake(cls: Any, arguments: tuple[Any, ...]) -> Any:
    made = cls.__new__(cls)
    made._make(*arguments)
    return made


class Stats(NamedTuple):
    """What a loader has done, over all epochs. ``str`` of it is a table of the stages."""

    images: int
    bytes: int
    failed: int
    jpeg_on_device: int
    jpeg_on_host: int
    wait: float
    table: str

    def __str__(self) -> str:
        return self.table


class Batch:
    """A batch of a :class:`Loader`.

    ``images`` is a list of images, or one tensor with an :class:`Augment`. ``tokens`` is there with
    a :class:`Pipeline`, and ``inputs`` with an :class:`ImageProcessor`.
    """

    __slots__ = ("failed", "images", "indices", "inputs", "labels", "names", "tokens")

    def __init__(
        self,
        images: Any,
        tokens: TokenBatch | None,
        inputs: Inputs | None,
        labels: Any,
        indices: list[int],
        names: list[str],
        failed: list[int],
    ) -> None:
        self.images = images
        self.tokens = tokens
        self.inputs = inputs
        self.labels = labels
        self.indices = indices
        self.names = names
        self.failed = failed

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"thalweg.Batch({len(self)} images, {len(self.failed)} failed)"


class Loader:
    """Files to batches on the device, decoded ahead of their consumer.

    ``source`` is a folder whose subfolders are the classes, or a list of files. ``iter`` begins an
    epoch: the next one if something of this one was delivered. ``transform`` is an
    :class:`Augment`, a :class:`Pipeline` or an :class:`ImageProcessor`; its own device and framework
    do not count, those of the loader do.

    >>> import thalweg
    >>> loader = thalweg.Loader(["cat.jpg", "dog.jpg"], device="cpu", labels=[0, 1])
    >>> len(loader), loader.state_dict()["epoch"]
    (1, 0)
    >>> loader.close()
    """

    _into: Any = None

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        batch_size: int = 16,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        transform: Augment | Pipeline | ImageProcessor | None = None,
        labels: str | Sequence[int] | None = "folders",
        prefetch: int = 2,
        threads: int = 0,
        skip_errors: bool = False,
        decode: str = "auto",
        pinned_budget: int | None = None,
        device: Any = None,
        into: Any = None,
        stream: Any = None,
    ) -> None:
        self._where = _Where(device, self._into if into is None else into, host=False)
        self._stream = self._where.stream(stream)
        if transform is not None and not isinstance(transform, (Augment, Pipeline, ImageProcessor)):
            raise TypeError(f"transform is {type(transform).__name__}, expected Augment, Pipeline or ImageProcessor")
        self._transform = transform
        single = isinstance(source, (str, os.PathLike))
        files = [os.fspath(cast(Any, source))] if single else [os.fspath(path) for path in cast(Any, source)]
        if isinstance(labels, str) and labels != "folders":
            raise ValueError(f"labels is {labels!r}, expected folders, a list of numbers, or None")
        given = None if labels is None or isinstance(labels, str) else [int(label) for label in labels]
        self._seed = seed if shuffle else None
        self._shard = (rank, world_size)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._resumed = False
        self._core = _thalweg.Loader(
            self._where.device_place(),
            files,
            labels=given,
            folder=(labels == "folders") if single else None,
            batch_size=batch_size,
            shuffle=self._seed,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            prefetch=prefetch,
            threads=threads,
            skip_errors=skip_errors,
            decode=decode,
            pinned_budget=pinned_budget,
            host=transform is None or isinstance(transform, ImageProcessor),
        )

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of their numbers."""
        return self._core.classes

    @property
    def stats(self) -> Stats:
        """What the loader has done."""
        return Stats(**self._core.stats())

    def __len__(self) -> int:
        samples = self._core.samples()
        return samples // self._batch_size if self._drop_last else -(-samples // self._batch_size)

    def __iter__(self) -> Self:
        epoch, samples = self._core.position()
        ended = samples >= len(self) * self._batch_size or samples >= self._core.samples()
        if samples > 0 and (ended or not self._resumed):
            self._core.set_epoch(epoch + 1)
        self._resumed = False
        return self

    def __next__(self) -> Batch:
        where, transform = self._where, self._transform
        core = None if transform is None else transform._core
        where.refuse_capture(self._stream)
        result = self._core.next(where.device_place(), core, self._stream)
        if result is None:
            raise StopIteration
        tensor, beside, about = result
        images: Any = []
        tokens, inputs = None, None
        if tensor is None:
            pass
        elif isinstance(transform, Pipeline):
            tokens = transform._batch(where, self._stream, tensor, beside or {})
        elif isinstance(transform, ImageProcessor):
            parts = {name: where.finish(value) for name, value in (beside or {}).items()}
            inputs = Inputs(pixel_values=where.finish(tensor), **parts)
        elif transform is None:
            places = zip(about["starts"], about["sizes"])
            images = [where.view(tensor, start, (*size, 3), "uint8") for start, size in places]
        else:
            images = where.finish(tensor)
        labels = None if about["labels"] is None else where.finish(about["labels"])
        return Batch(images, tokens, inputs, labels, about["indices"], about["names"], about["failed"])

    def state_dict(self) -> dict[str, Any]:
        """The position of the consumer, for a checkpoint."""
        epoch, samples = self._core.position()
        return {
            "version": 1,
            "epoch": epoch,
            "samples": samples,
            "len": self._core.total,
            "seed": self._seed,
            "shard": self._shard,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where :meth:`state_dict` was called: with the same files, seed and ranks."""
        own = self.state_dict()
        for name in ("version", "len", "seed", "shard"):
            given = tuple(state[name]) if name == "shard" else state[name]
            if given != own[name]:
                raise ValueError(f"the state has {name} {given}, and this loader has {own[name]}")
        self._core.resume(state["epoch"], state["samples"])
        self._resumed = True

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, whose number alone decides the order."""
        self._core.set_epoch(epoch)
        self._resumed = True

    def close(self) -> None:
        """Stops the threads and gives the memory back."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"thalweg.Loader(batch_size={self._batch_size}, seed={self._seed}, {self._where})"

    def __reduce__(self) -> Any:
        raise _no_pickle("Loader", "it has threads of its own; set num_workers=0, and pickle state_dict()")
