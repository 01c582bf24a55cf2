"""`thalweg.torch`: tensors of PyTorch, its loaders, and the image processors of transformers."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from conftest import jpeg, photo, pillow

import thalweg

torch = pytest.importorskip("torch")
import thalweg.torch as tt  # noqa: E402


def test_the_core_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, thalweg; thalweg.decode_jpeg([], device='cpu'); print('torch' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_decoded_images_are_tensors(decode: str) -> None:
    files = [jpeg(31, 44, seed=i) for i in range(3)]
    images = tt.decode_jpeg(files, device="cpu", decode=decode)
    assert all(type(image) is torch.Tensor and image.dtype == torch.uint8 for image in images)
    assert all((image.numpy() == pillow(file)).all() for image, file in zip(images, files))
    chw = tt.decode_jpeg(files[0], device="cpu", decode=decode, layout="CHW")
    assert chw.shape == (3, 31, 44) and (chw.permute(1, 2, 0) == images[0]).all()


def test_what_a_call_fills_is_memory_of_torch() -> None:
    """The way W1: PyTorch allocates, and a stream of the device writes there."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Allocations(TorchDispatchMode):
        made: list[int] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if "empty" in str(func):
                self.made.append(out.data_ptr())
            return out

    file = jpeg()
    with Allocations() as mode:
        image = tt.decode_jpeg(file, device="cpu", decode="device")
    assert image.untyped_storage().data_ptr() in mode.made
    assert image.untyped_storage().resizable()
    assert (image.numpy() == pillow(file)).all()


def test_a_stream_of_the_caller(decode: str) -> None:
    class Theirs:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 77

    file = jpeg()
    for stream in (5, Theirs()):
        image = tt.decode_jpeg(file, device="cpu", decode="device", stream=stream)
        assert (image.numpy() == pillow(file)).all()
    with pytest.raises(ValueError, match="stream"):
        thalweg.decode_jpeg(file, device="cpu", decode="device", stream=5)


def test_a_broken_file_after_the_allocation() -> None:
    good = jpeg(100, 100)
    broken = bytearray(good)
    broken[len(good) // 2 :] = bytes(len(good) - len(good) // 2)
    with pytest.raises(thalweg.DecodeError):
        tt.decode_jpeg([good, bytes(broken)], device="cpu", decode="device")
    assert (tt.decode_jpeg(good, device="cpu", decode="device").numpy() == pillow(good)).all()


def test_tokens_and_augmentations_are_those_of_numpy() -> None:
    images = [photo(70, 90), photo(40, 40)]
    for dtype in ("float32", "float16"):
        options: dict[str, Any] = {"device": "cpu", "budget": 400, "dtype": dtype}
        ours, theirs = thalweg.Pipeline(into="numpy", **options)(images), tt.Pipeline(**options)(images)
        for name in thalweg.TokenBatch.__slots__:
            assert np.array_equal(np.asarray(getattr(ours, name)), np.asarray(getattr(theirs, name))), name
    assert tt.Pipeline(device="cpu", dtype="bfloat16")(images).tokens.dtype == torch.bfloat16
    one = thalweg.Augment(20, device="cpu", into="numpy")(images, epoch=0, indices=[1, 2])
    two = tt.Augment(20, device="cpu")(images, epoch=0, indices=[1, 2])
    assert (two.numpy() == one).all()
    half = tt.Augment(20, device="cpu", dtype="bfloat16")(images, epoch=0, indices=[1, 2])
    assert half.dtype == torch.bfloat16 and (half == two.bfloat16()).float().mean() > 0.99


def test_tensors_as_images() -> None:
    image = torch.from_numpy(photo(40, 60))
    make = tt.Pipeline(device="cpu", budget=300, exact=True)
    assert (make([image]).tokens == make([image.numpy()]).tokens).all()
    with pytest.raises(ValueError, match="contiguous"):
        make([image[:, ::2]])
    with pytest.raises(TypeError):
        make([image.float()])
    with pytest.raises(ValueError, match="requires grad"):
        make([image.float().requires_grad_()])


def test_into_a_type() -> None:
    file = jpeg()
    assert type(thalweg.decode_jpeg(file, device="cpu", into=torch.Tensor)) is torch.Tensor
    assert type(thalweg.decode_jpeg(file, device="cpu", into=np.ndarray)) is np.ndarray
    assert type(thalweg.decode_jpeg(file, device="cpu").torch()) is torch.Tensor


def test_the_loaders_of_torch(folder: pathlib.Path) -> None:
    from torch.utils.data import DataLoader

    loader = tt.Loader(folder, batch_size=4, device="cpu")
    data = DataLoader(tt.dataset(loader), batch_size=None, num_workers=0)
    batches = list(data)
    assert [len(batch) for batch in batches] == [4, 4, 2] and len(data) == 3
    assert torch.cat([batch.labels for batch in batches]).tolist() == [0] * 6 + [1] * 4
    assert len(list(data)) == 3


def test_stateful_data_loader(folder: pathlib.Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        loader = tt.Loader(folder, batch_size=2, device="cpu", shuffle=True, seed=4)
        return stateful.StatefulDataLoader(tt.dataset(loader), batch_size=None, num_workers=0)

    first = make()
    whole = [batch.indices for batch in first]
    first = make()
    iterator = iter(first)
    got = [next(iterator).indices for _ in range(2)]
    state = first.state_dict()
    second = make()
    second.load_state_dict(state)
    assert got + [batch.indices for batch in second] == whole


def test_workers_are_told(folder: pathlib.Path) -> None:
    from torch.utils.data import DataLoader

    with tt.Loader(folder, device="cpu") as loader, pytest.raises(RuntimeError, match="num_workers=0|forked"):
        list(DataLoader(tt.dataset(loader), batch_size=None, num_workers=1))


SIZES = [(60, 90), (333, 500), (224, 224), (97, 31), (640, 480)]


def compare(theirs: Any, ours: Any, names: dict[str, str] | None = None) -> None:
    from PIL import Image

    for some in ([size] for size in SIZES):
        images = [Image.fromarray(photo(*size, seed=7)) for size in some]
        want, got = theirs(images=images, return_tensors="pt"), ours(images=images, return_tensors="pt")
        assert set(want) <= set(got), (set(want), set(got))
        for name in want:
            assert want[name].shape == got[name].shape, (name, some)
            assert torch.equal(want[name], got[name].to(want[name].dtype)), (name, some)


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VLImageProcessor", {}),
    "qwen3_vl": (
        "Qwen2VLImageProcessor",
        {
            "patch_size": 16,
            "size": {"shortest_edge": 65536, "longest_edge": 16777216},
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
    ),
    "siglip2_naflex": ("Siglip2ImageProcessor", {}),
    "siglip": ("SiglipImageProcessor", {}),
    "clip": ("CLIPImageProcessor", {}),
    "internvl": ("GotOcr2ImageProcessor", {"size": {"height": 448, "width": 448}, "crop_to_patches": True}),
    "llava_onevision": ("LlavaOnevisionImageProcessor", {}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_bit_is_that_of_transformers(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    name, settings = FAMILIES[family]
    theirs = getattr(transformers, name)(**settings)
    config = {key: value for key, value in theirs.to_dict().items() if value is not None}
    ours = tt.ImageProcessor(config, device="cpu")
    compare(theirs, ours)


def test_a_processor_of_transformers_takes_it() -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    from PIL import Image

    theirs = transformers.Qwen2VLImageProcessor()
    ours = tt.ImageProcessor(theirs.to_dict(), device="cpu")
    for attribute in ("patch_size", "temporal_patch_size", "merge_size", "model_input_names"):
        assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    for size in SIZES:
        assert ours.get_number_of_image_patches(*size, {}) == theirs.get_number_of_image_patches(*size, {})
    image = Image.fromarray(photo(90, 120))
    want = theirs(image, return_tensors="pt")
    got = ours(image, return_tensors="pt", do_resize=True, patch_size=14, data_format="channels_first")
    assert torch.equal(want["pixel_values"], got.pixel_values)
    assert got.to(torch.float16).pixel_values.dtype == torch.float16
    assert got.to(torch.float16)["image_grid_thw"].dtype == torch.int64
    with pytest.raises(ValueError, match="do_resize"):
        ours(image, do_resize=False)
    with pytest.raises(ValueError, match="video"):
        ours(image, videos=[image])
    with pytest.raises(AttributeError):
        got.nothing  # noqa: B018


def test_workers_made_by_fork_can_process() -> None:
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset[Any]):
        def __init__(self) -> None:
            self.processor = tt.ImageProcessor.clip(32, device="cpu")

        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            return self.processor([photo(40, 50, seed=i)])["pixel_values"][0]

    data = Images()
    here = torch.stack([data[i] for i in range(4)])
    (there,) = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=60)
    assert torch.equal(here, there)
