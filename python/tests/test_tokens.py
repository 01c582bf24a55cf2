"""`Pipeline` and `Augment`: shapes without a wait, results that last, and one result for all inputs."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from conftest import jpeg, photo, pillow

import thalweg


def pipeline(**options: Any) -> Any:
    return thalweg.Pipeline(**{"device": "cpu", "budget": 500, "into": "numpy", **options})


def test_shapes_depend_on_sizes_only() -> None:
    make = pipeline()
    images = [photo(70, 90), photo(64, 64)]
    batch, other = make(images), make([image // 3 for image in images])
    tokens, cu_seqlens, most = batch
    t, k = batch.counts.tolist()
    assert most == 400 and 0 < t <= 1000 and tokens.shape == (1000, 13)
    assert (cu_seqlens[k:] == t).all() and (np.diff(cu_seqlens) >= 0).all()
    assert np.isfinite(tokens).all() and np.isfinite(batch.position).all()
    assert (batch.patch_id[k:] == -1).all() and (batch.patch_id[:k] >= 0).all()
    assert batch.image_cu_seqlens.tolist()[0] == 0 and batch.image_cu_seqlens.tolist()[-1] == t
    assert other.tokens.shape == tokens.shape and other.cu_seqlens.shape == cu_seqlens.shape


def test_trim_and_exact() -> None:
    image = photo(100, 120)
    batch, exact = pipeline()([image]), pipeline(exact=True)([image])
    trimmed = batch.trim()
    t, k = batch.counts.tolist()
    assert trimmed.tokens.shape == (t, 13) and trimmed.cu_seqlens.shape == (k + 1,)
    assert trimmed.position.shape == (t, 2) and trimmed.patch_id.shape == (k,)
    assert (exact.tokens == trimmed.tokens).all() and (exact.cu_seqlens == trimmed.cu_seqlens).all()
    assert (trimmed.tokens == batch.tokens[:t]).all()


def test_files_arrays_and_tensors_are_one_image() -> None:
    file = jpeg(80, 100)
    make = pipeline(exact=True)
    results = [make([image]).tokens for image in (file, pillow(file), thalweg.decode_jpeg(file, device="cpu"))]
    assert all((result == results[0]).all() for result in results)


def test_halves_are_the_rounded_numbers() -> None:
    image = photo(64, 96)
    full = pipeline(exact=True)([image]).tokens
    half = pipeline(exact=True, dtype="float16")([image]).tokens
    assert half.dtype == np.float16 and (half == full.astype(np.float16)).all()


def test_batches_that_are_kept_never_stop_the_pipeline() -> None:
    make = pipeline(depth=2, exact=True)
    images = [photo(64, 64 + i, seed=i) for i in range(12)]
    kept = [make([image]) for image in images]
    for batch, image in zip(kept, images):
        assert (batch.tokens == make([image]).tokens).all()


def test_results_are_writable_and_last() -> None:
    make = pipeline(exact=True)
    first = make([photo(64, 64)])
    first.tokens[:] = 7
    for seed in range(5):
        make([photo(64, 64, seed)])
    assert (first.tokens == 7).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"patch": 0}, "patch"),
        ({"sides": (9, 3)}, "sides"),
        ({"budget": 1}, "budget"),
        ({"focus": 2.0}, "focus"),
        ({"fixation": (0.5, 3.0)}, "fixation"),
        ({"mix": (0.0, 0.0, 0.0)}, "mix"),
        ({"dtype": "int8"}, "dtype"),
        ({"depth": 0}, "depth"),
        ({"head": b""}, "head and query"),
    ],
)
def test_a_bad_setting_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pipeline(**options)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((40, 50), np.uint8),
        np.zeros((40, 50, 4), np.uint8),
        np.zeros((40, 50, 3), np.float32),
        np.zeros((40, 100, 3), np.uint8)[:, ::2],
        np.zeros((0, 50, 3), np.uint8),
    ],
)
def test_what_is_no_image_is_refused(image: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        pipeline()([image])


def test_a_pipeline_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="arguments"):
        pickle.dumps(pipeline())


def test_seed_epoch_and_index_decide_an_augmentation() -> None:
    images = [photo(50, 70, seed) for seed in range(3)]
    augment = thalweg.Augment(24, seed=5, device="cpu", into="numpy")
    batch = augment(images, epoch=1, indices=[4, 5, 6])
    assert batch.shape == (3, 3, 24, 24) and batch.dtype == np.float32 and np.isfinite(batch).all()
    alone = augment(images[1:2], epoch=1, indices=[5])
    assert (alone[0] == batch[1]).all()
    assert (augment(images, epoch=2, indices=[4, 5, 6]) != batch).any()
    assert (thalweg.Augment(24, seed=6, device="cpu", into="numpy")(images, epoch=1, indices=[4, 5, 6]) != batch).any()
    same = augment(images[:1], epoch=1, indices=[4])
    assert (augment(images[:1], epoch=1, indices=[5]) != same).any()


def test_an_augmentation_that_only_resizes() -> None:
    image = np.full((40, 40, 3), 51, np.uint8)
    still = thalweg.Augment(
        16, scale=None, flip=0, brightness=0, contrast=0, saturation=0, grayscale=0, blur=None,
        mean=(0, 0, 0), std=(1, 1, 1), device="cpu", into="numpy",
    )  # fmt: skip
    assert np.allclose(still([image], epoch=0, indices=[0]), 0.2, atol=1e-6)


def test_more_steps_and_the_weights_of_a_mixture() -> None:
    images = [np.full((40, 40, 3), value, np.uint8) for value in (0, 255, 51)]
    still = {"scale": None, "flip": 0, "brightness": 0, "contrast": 0, "saturation": 0, "grayscale": 0, "blur": None}
    plain = {**still, "mean": (0, 0, 0), "std": (1, 1, 1), "device": "cpu", "into": "numpy", "seed": 3}
    mixed = thalweg.Augment(16, mixup=0.4, **plain)
    batch, weights = mixed(images, epoch=2, indices=[7, 8, 9]), mixed.mix_weights(epoch=2, indices=[7, 8, 9])
    assert all(0 <= w <= 1 for w in weights) and len(set(weights)) == 3
    for i, (own, other) in enumerate([(0.0, 1.0), (1.0, 0.2), (0.2, 0.0)]):
        assert np.allclose(batch[i], weights[i] * own + (1 - weights[i]) * other, atol=2e-5)
    photos = [photo(40, 40)]
    flipped = thalweg.Augment(16, flip_vertical=1, **plain)(photos, epoch=0, indices=[0])
    assert np.allclose(flipped[:, :, ::-1], thalweg.Augment(16, **plain)(photos, epoch=0, indices=[0]), atol=2e-5)
    for option in ({"rotation": 45.0}, {"hue": 0.5}, {"erase": (0.1, 0.2), "erase_p": 1.0}):
        changed = thalweg.Augment(16, **option, **plain)(photos, epoch=0, indices=[0])
        assert (abs(changed[:, :, ::-1] - flipped) > 0.01).any(), option
    # A crop of the result's size, at any place, has the pixels as they are.
    [cropped] = thalweg.Augment(16, crop=(16, 16), **plain)(photos, epoch=0, indices=[0])
    places = np.lib.stride_tricks.sliding_window_view(photos[0].transpose(2, 0, 1) / 255, (3, 16, 16))[0]
    assert (abs(places - cropped).max((2, 3, 4)) < 1e-5).sum() == 1
    with pytest.raises(ValueError, match="crop"):
        thalweg.Augment(16, crop=(0, 16), device="cpu")
    with pytest.raises(ValueError, match="mixup alpha"):
        thalweg.Augment(16, mixup=2.0, device="cpu")


def test_what_an_augmentation_refuses() -> None:
    augment = thalweg.Augment(16, device="cpu")
    with pytest.raises(ValueError, match="as many"):
        augment([photo(20, 20)], epoch=0, indices=[1, 2])
    with pytest.raises(ValueError, match="as many"):
        augment([], epoch=0, indices=[])
    for wrong in ({"flip": 2.0}, {"blur": (3.0, 1.0)}, {"std": (0.0, 1.0, 1.0)}, {"dtype": "float16"}):
        with pytest.raises(ValueError):
            thalweg.Augment(16, device="cpu", **wrong)
    with pytest.raises(ValueError, match="size"):
        thalweg.Augment(0, device="cpu")
