"""`decode_jpeg`: the pixels of libjpeg-turbo, one allocation, and errors with an index."""

from __future__ import annotations

import io

import numpy as np
import pytest
from conftest import jpeg, photo, pillow
from PIL import Image

import thalweg


def test_the_cpu_is_the_last_device() -> None:
    assert thalweg.devices()[-1].name == "cpu"


@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 9), (16, 16), (61, 90), (200, 33)])
@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}])
def test_pixels_are_those_of_pillow(height: int, width: int, options: dict[str, int], decode: str) -> None:
    file = jpeg(height, width, **options)
    image = thalweg.decode_jpeg(file, device="cpu", into="numpy", decode=decode)
    assert (image == pillow(file)).all()


def test_gray_and_cmyk(decode: str) -> None:
    for mode in ("L", "CMYK"):
        out = io.BytesIO()
        Image.fromarray(photo(40, 50)).convert(mode).save(out, "JPEG")
        file = out.getvalue()
        image = thalweg.decode_jpeg(file, device="cpu", into="numpy", decode=decode)
        assert (image == pillow(file)).all(), mode


def test_without_fallback_the_kernels_refuse_cmyk() -> None:
    out = io.BytesIO()
    Image.new("CMYK", (20, 20)).save(out, "JPEG")
    with pytest.raises(thalweg.DecodeError, match="CMYK"):
        thalweg.decode_jpeg(out.getvalue(), device="cpu", decode="device", fallback=False)


@pytest.mark.parametrize("turn", range(1, 9))
def test_orientation_is_applied(turn: int, decode: str) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = turn
    file = jpeg(30, 44, exif=exif)
    image = thalweg.decode_jpeg(file, device="cpu", into="numpy", decode=decode)
    assert (image == np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))))).all()


def test_a_batch_is_one_allocation(decode: str) -> None:
    files = [jpeg(20 + i, 31 + i, seed=i) for i in range(5)]
    images = thalweg.decode_jpeg(files, device="cpu", into="numpy", decode=decode)
    assert all((image == pillow(file)).all() for image, file in zip(images, files))
    starts = [image.__array_interface__["data"][0] for image in images]
    sizes = [-(-image.nbytes // 16) * 16 for image in images]
    assert [b - a for a, b in zip(starts, starts[1:])] == sizes[:-1]


def test_chw_is_a_view(decode: str) -> None:
    file = jpeg(21, 35)
    image = thalweg.decode_jpeg(file, device="cpu", into="numpy", layout="CHW", decode=decode)
    assert image.shape == (3, 21, 35)
    assert (image.transpose(1, 2, 0) == pillow(file)).all()


def test_a_broken_file_has_its_index_and_leaves_the_others(decode: str) -> None:
    good = jpeg(40, 40)
    files = [good, b"no photograph", good[: len(good) // 2], good]
    with pytest.raises(thalweg.DecodeError) as error:
        thalweg.decode_jpeg(files, device="cpu", decode=decode)
    assert error.value.index == 1 and "file 1" in str(error.value)
    images = thalweg.decode_jpeg(files, device="cpu", into="numpy", errors="none", decode=decode)
    assert [image is None for image in images] == [False, True, True, False]
    assert (images[3] == pillow(good)).all()


def test_every_buffer_of_bytes_is_a_file() -> None:
    file = jpeg()
    expected = pillow(file)
    for data in (file, bytearray(file), memoryview(file), np.frombuffer(file, np.uint8)):
        assert (thalweg.decode_jpeg(data, device="cpu", into="numpy") == expected).all()
    assert len(thalweg.decode_jpeg(iter([file, file]), device="cpu")) == 2
    assert thalweg.decode_jpeg([], device="cpu") == []


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"layout": "NHWC"}, ValueError, "HWC or CHW"),
        ({"errors": "ignore"}, ValueError, "raise or none"),
        ({"decode": "gpu"}, ValueError, "auto, device or host"),
        ({"into": "cupy"}, ValueError, "torch, numpy"),
        ({"device": "cpu:x"}, ValueError, "cpu:x"),
        ({"device": "cuda:999"}, Exception, "cuda|driver"),
        ({"stream": "s"}, TypeError, "__cuda_stream__"),
    ],
)
def test_a_bad_keyword_is_named(options: dict[str, str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        thalweg.decode_jpeg(jpeg(), **{"device": "cpu", **options})


def test_a_path_is_no_file() -> None:
    with pytest.raises(TypeError, match="a path"):
        thalweg.decode_jpeg("cat.jpg", device="cpu")
    with pytest.raises(TypeError, match="int"):
        thalweg.decode_jpeg([7], device="cpu")


def test_results_are_writable_and_last() -> None:
    file = jpeg()
    image = thalweg.decode_jpeg(file, device="cpu", into="numpy")
    image[:] = 7
    thalweg.decode_jpeg([file] * 5, device="cpu")
    assert (image == 7).all()
