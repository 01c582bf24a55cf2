"""`Loader`: order, labels, ranks, checkpoints and errors."""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import numpy as np
import pytest
from conftest import jpeg, pillow

import thalweg


def loader(source: Any, **options: Any) -> Any:
    return thalweg.Loader(source, **{"device": "cpu", "into": "numpy", "batch_size": 3, "threads": 2, **options})


def indices(batches: Any) -> list[int]:
    return [index for batch in batches for index in batch.indices]


def test_a_folder_of_classes(folder: pathlib.Path) -> None:
    with loader(folder) as files:
        assert (files.classes, len(files)) == (["cat", "dog"], 4)
        batches = list(files)
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert np.concatenate([batch.labels for batch in batches]).tolist() == [0] * 6 + [1] * 4
    for batch in batches:
        for image, name in zip(batch.images, batch.names):
            assert (image == pillow(pathlib.Path(name).read_bytes())).all()


def test_a_list_of_files_with_labels(folder: pathlib.Path) -> None:
    files = sorted(folder.rglob("*.jpg"))
    (batch,) = loader(files, labels=list(range(10)), batch_size=10)
    assert batch.labels.tolist() == list(range(10)) and batch.names == [str(file) for file in files]
    (batch,) = loader(files, batch_size=10)
    assert batch.labels is None
    assert indices(loader(folder, labels=None)) == list(range(10))


def test_each_iter_is_an_epoch(folder: pathlib.Path) -> None:
    with loader(folder, shuffle=True, seed=3) as files:
        epochs = [indices(files) for _ in range(3)]
        assert files.state_dict()["epoch"] == 2
        assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
        assert epochs[0] != epochs[1] != epochs[2]
        next(iter(files))
        assert files.state_dict()["epoch"] == 3  # a part of an epoch is one, too
        assert indices(files) != epochs[2] and files.state_dict()["epoch"] == 4
        files.set_epoch(1)
        assert indices(files) == epochs[1]


def test_ranks_share_all_samples(folder: pathlib.Path) -> None:
    for world in (1, 2, 3):
        parts = [indices(loader(folder, shuffle=True, seed=1, rank=r, world_size=world)) for r in range(world)]
        assert sorted(sum(parts, [])) == list(range(10))


def test_the_rest_of_an_epoch_after_each_position(folder: pathlib.Path) -> None:
    for seed in range(3):
        options: dict[str, Any] = {"shuffle": True, "seed": seed, "batch_size": 2 + seed}
        whole = [batch.indices for batch in loader(folder, **options)]
        for position in range(1, len(whole)):
            with loader(folder, **options) as first:
                for _, batch in zip(range(position), first):
                    pass
                state = pickle.loads(pickle.dumps(first.state_dict()))
            with loader(folder, **options) as second:
                second.load_state_dict(state)
                assert [batch.indices for batch in second] == whole[position:]
                assert second.state_dict()["epoch"] == 0


def test_after_the_end_of_an_epoch_the_next_one_begins(folder: pathlib.Path) -> None:
    options = {"shuffle": True, "seed": 9}
    with loader(folder, **options) as one, loader(folder, **options) as two:
        list(one)
        two.load_state_dict(one.state_dict())
        assert indices(two) == indices(one) and two.state_dict()["epoch"] == 1


def test_a_state_of_other_files_or_ranks_is_refused(folder: pathlib.Path) -> None:
    with loader(folder, shuffle=True, seed=1) as files:
        state = files.state_dict()
        for name, value in [("len", 9), ("seed", 2), ("shard", (1, 2)), ("version", 7)]:
            with pytest.raises(ValueError, match=name) as error:
                files.load_state_dict({**state, name: value})
            assert str(value) in str(error.value) and str(state[name]) in str(error.value)


def test_a_broken_file_is_named_and_the_rest_goes_on(folder: pathlib.Path) -> None:
    broken = folder / "cat" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    files = loader(folder)
    seen, errors = [], []
    iterator = iter(files)
    while True:
        try:
            seen += next(iterator).indices
        except StopIteration:
            break
        except thalweg.DecodeError as error:
            errors.append((error.index, error.name))
    assert errors == [(3, str(broken))] and seen == [i for i in range(10) if i != 3]
    skipped = list(loader(folder, skip_errors=True))
    assert [batch.failed for batch in skipped] == [[], [3], [], []]


def test_a_missing_file_is_an_os_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        list(loader([tmp_path / "none.jpg"]))
    assert error.value.filename == str(tmp_path / "none.jpg")


def test_what_is_closed_says_so(folder: pathlib.Path) -> None:
    files = loader(folder)
    next(files)
    files.close()
    files.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(files)


def test_transforms_are_those_of_single_calls(folder: pathlib.Path) -> None:
    names = [str(path) for path in sorted(folder.rglob("*.jpg"))]
    images = [pillow(pathlib.Path(name).read_bytes()) for name in names]
    augment = thalweg.Augment(16, seed=2, device="cpu", into="numpy")
    got = np.concatenate([batch.images for batch in loader(folder, transform=augment)])
    assert (got == augment(images, epoch=0, indices=list(range(10)))).all()

    pipeline = thalweg.Pipeline(device="cpu", budget=300, patch=16, into="numpy", exact=True)
    for n, batch in enumerate(loader(folder, transform=pipeline)):
        assert (batch.tokens.tokens == pipeline(images[3 * n : 3 * n + 3]).tokens).all()

    processor = thalweg.ImageProcessor.siglip(32, device="cpu", into="numpy")
    got = np.concatenate([batch.inputs["pixel_values"] for batch in loader(folder, transform=processor)])
    assert (got == processor(images)["pixel_values"]).all()


def test_the_device_decodes_to_the_same(folder: pathlib.Path) -> None:
    augment = thalweg.Augment(16, device="cpu", into="numpy")
    one, two = (loader(folder, transform=augment, decode=who) for who in ("host", "device"))
    assert all((a.images == b.images).all() for a, b in zip(one, two))
    assert two.stats.jpeg_on_device == 10 and one.stats.jpeg_on_host == 10


def test_statistics_and_drop_last(folder: pathlib.Path) -> None:
    with loader(folder, drop_last=True) as files:
        assert len(files) == len(list(files)) == 3
        assert files.stats.images >= 9 and "decode" in str(files.stats)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"prefetch": 0}, ValueError, "prefetch"),
        ({"rank": 3, "world_size": 2}, ValueError, "rank 3 of 2"),
        ({"labels": "names"}, ValueError, "labels"),
        ({"labels": [1]}, ValueError, "1 labels for 10"),
        ({"decode": "gpu"}, ValueError, "decode"),
        ({"transform": len}, TypeError, "transform"),
    ],
)
def test_a_bad_setting_is_named(
    folder: pathlib.Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        loader(folder, **options)


def test_an_empty_folder_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="no JPEG"):
        loader(tmp_path)
    with pytest.raises(ValueError):
        loader(tmp_path / "none")


def test_a_loader_is_not_pickled(folder: pathlib.Path) -> None:
    with loader(folder) as files, pytest.raises(TypeError, match="num_workers=0"):
        pickle.dumps(files)

def test_the_seed_decides_the_order(folder: pathlib.Path) -> None:
    orders = {tuple(indices(loader(folder, shuffle=True, seed=seed))) for seed in range(4)}
    assert len(orders) == 4


def test_close_ends_the_threads(folder: pathlib.Path) -> None:
    def threads() -> int:
        return len(list(pathlib.Path("/proc/self/task").iterdir()))

    loader(folder).close()  # the device has threads of its own from now on
    before = threads()
    files = loader(folder, threads=3)
    next(files)
    assert threads() > before
    files.close()
    assert threads() == before


def test_a_budget_is_a_memory_error(folder: pathlib.Path) -> None:
    with pytest.raises(thalweg.OutOfMemoryError, match="bytes"):
        list(loader(folder, pinned_budget=100))


def test_an_image_that_a_processor_refuses(tmp_path: pathlib.Path) -> None:
    names = []
    for i, (height, width) in enumerate([(60, 60), (2, 1000), (60, 70)]):
        names.append(tmp_path / f"{i}.jpg")
        names[-1].write_bytes(jpeg(height, width))
    processor = thalweg.ImageProcessor.qwen2_vl(device="cpu", into="numpy")
    with pytest.raises(thalweg.DecodeError, match="1.jpg") as refused:
        list(loader(names, transform=processor))
    assert refused.value.index == 1
    (batch,) = loader(names, transform=processor, skip_errors=True, labels=[7, 8, 9])
    assert (batch.indices, batch.failed, batch.labels.tolist()) == ([0, 2], [1], [7, 9])
    assert batch.inputs["image_grid_thw"].prod(axis=1).sum() == len(batch.inputs["pixel_values"])
    assert len(batch.inputs["image_grid_thw"]) == 2


def test_a_batch_without_images_is_delivered_once(tmp_path: pathlib.Path) -> None:
    names = [tmp_path / f"{i}.jpg" for i in range(3)]
    for name, size in zip(names, ((60, 60), (2, 1000), (60, 70))):
        name.write_bytes(jpeg(*size))
    processor = thalweg.ImageProcessor.qwen2_vl(device="cpu", into="numpy")
    files = loader(names, batch_size=1, skip_errors=True, transform=processor)
    batches = [next(files) for _ in names]
    assert [(batch.indices, batch.failed) for batch in batches] == [([0], []), ([], [1]), ([2], [])]
    with pytest.raises(StopIteration):
        next(files)
