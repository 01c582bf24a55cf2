"""`Tensor`: DLPack, NumPy's protocol, and what it refuses."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import growth, jpeg, pillow
from PIL import Image

import thalweg


def tensor() -> Any:
    return thalweg.decode_jpeg(jpeg(), device="cpu")


def test_what_it_says_of_itself() -> None:
    x = tensor()
    assert (x.shape, x.dtype, x.device, len(x)) == ((60, 90, 3), "uint8", "cpu", 60)
    assert repr(x) == 'thalweg.Tensor(shape=(60, 90, 3), dtype="uint8", device="cpu")'
    assert x.__dlpack_device__() == (1, 0)


def test_two_exports_are_one_memory() -> None:
    x = tensor()
    a, b = np.from_dlpack(x), x.numpy()
    a[0, 0, 0], b[1, 1, 1] = 11, 22
    assert (np.asarray(x) == a).all() and (a == b).all() and a[1, 1, 1] == 22


def test_both_versions_of_capsules() -> None:
    x = tensor()
    assert "dltensor_versioned" in repr(x.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(x.__dlpack__())
    assert '"dltensor"' in repr(x.__dlpack__(max_version=(0, 8)))


def test_the_memory_outlives_the_tensor() -> None:
    file = jpeg(200, 200)
    arrays = [np.from_dlpack(thalweg.decode_jpeg(file, device="cpu")) for _ in range(20)]
    gc.collect()
    assert all((array == pillow(file)).all() for array in arrays)


@pytest.mark.parametrize("wrong", [{"stream": 1}, {"stream": -1}, {"dl_device": (2, 0)}, {"copy": True}])
def test_what_an_export_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(BufferError):
        tensor().__dlpack__(**wrong)


def test_dl_device_and_copy_that_are_right() -> None:
    tensor().__dlpack__(dl_device=(1, 0), copy=False, stream=None, max_version=(1, 3))


def test_copies_of_numpy() -> None:
    x = tensor()
    copied = np.array(x, copy=True)
    copied[:] = 0
    assert np.asarray(x).any()
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    assert np.shares_memory(np.asarray(x), x.numpy())


def test_a_tensor_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="numpy"):
        pickle.dumps(tensor())


def test_bfloat16_is_not_for_numpy() -> None:
    processor = thalweg.ImageProcessor.qwen2_vl(device="cpu", dtype="bfloat16")
    values = processor([np.zeros((60, 60, 3), np.uint8)])["pixel_values"]
    assert values.dtype == "bfloat16"
    with pytest.raises(TypeError, match="bfloat16"):
        values.numpy()
    with pytest.raises(TypeError, match="bfloat16"):
        np.asarray(values)


def test_images_without_elements() -> None:
    values = thalweg.ImageProcessor.siglip(32, device="cpu")([])["pixel_values"]
    assert values.shape == (0, 3, 32, 32) and np.asarray(values).size == 0


def test_nothing_leaks() -> None:
    file = jpeg(400, 500)
    seen = []

    def turn() -> None:
        image = thalweg.decode_jpeg(file, device="cpu")
        array = np.from_dlpack(image)
        unused = image.__dlpack__(max_version=(1, 0))
        old = image.__dlpack__()
        seen.append(weakref.ref(array))
        del unused, old

    objects, kilobytes = growth(turn, first=20)
    assert objects < 100 + len(seen)
    assert kilobytes < 16 << 10
    assert all(reference() is None for reference in seen)

def test_an_image_within_a_batch_is_itself_for_every_consumer() -> None:
    files = [jpeg(40 + i, 50, seed=i) for i in range(3)]
    for image, file in zip(thalweg.decode_jpeg(files, device="cpu"), files):
        assert (np.from_dlpack(image) == pillow(file)).all()
    for image, file in zip(thalweg.decode_jpeg(files, device="cpu", layout="CHW"), files):
        assert (np.from_dlpack(image) == pillow(file).transpose(2, 0, 1)).all()


def test_inputs_have_the_dtype_that_was_asked_for() -> None:
    image = [np.full((40, 40, 3), 90, np.uint8)]
    for dtype in ("float32", "float16"):
        values = thalweg.ImageProcessor.siglip(32, device="cpu", into="numpy", dtype=dtype)(image)["pixel_values"]
        assert values.dtype == dtype
        assert np.allclose(values.astype(np.float32), 90 / 127.5 - 1, atol=1e-3)


def test_numbers_of_patches_are_those_of_the_inputs() -> None:
    image = np.zeros((600, 900, 3), np.uint8)

    def inputs(processor: Any) -> tuple[int, Any]:
        return processor.get_number_of_image_patches(600, 900), processor([image])

    number, made = inputs(thalweg.ImageProcessor.qwen2_vl(device="cpu", into="numpy"))
    assert number == len(made["pixel_values"]) == made["image_grid_thw"].prod()
    number, made = inputs(thalweg.ImageProcessor.siglip2_naflex(256, device="cpu", into="numpy"))
    assert number == made["pixel_attention_mask"].sum() == made["spatial_shapes"].prod()
    number, made = inputs(thalweg.ImageProcessor.llava_onevision(device="cpu", into="numpy"))
    assert number == made["pixel_values"].shape[1]
    number, made = inputs(thalweg.ImageProcessor.internvl(device="cpu", into="numpy"))
    assert number == len(made["pixel_values"])


def test_resampler_and_style_are_those_that_were_asked_for() -> None:
    image = pillow(jpeg(70, 90))

    def values(**options: Any) -> Any:
        return thalweg.ImageProcessor.siglip(32, device="cpu", into="numpy", **options)([image])["pixel_values"][0]

    resized = np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.BICUBIC))
    pil = np.rint((values(resampler="pil") * 0.5 + 0.5) * 255)
    assert (pil == resized.transpose(2, 0, 1)).all()
    assert (np.rint((values() * 0.5 + 0.5) * 255) != pil).any()
    fast, slow = values(style="fast"), values(style="slow")
    assert np.allclose(fast, slow, atol=1e-6) and (fast != slow).any()


def test_an_image_that_a_processor_refuses_is_named() -> None:
    processor = thalweg.ImageProcessor.qwen2_vl(device="cpu", into="numpy")
    with pytest.raises(ValueError, match="image 1"):
        processor([np.zeros((60, 60, 3), np.uint8), np.zeros((2, 1000, 3), np.uint8)])
