"""What only a GPU shows: streams of PyTorch, captures, and results that nothing overwrites."""

from __future__ import annotations

import pathlib
import threading
from typing import Any

import pytest
from conftest import jpeg, photo, pillow

import thalweg

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("without a GPU", allow_module_level=True)
import thalweg.torch as tt  # noqa: E402


def busy(milliseconds: float) -> None:
    """Queues work on the current stream."""
    torch.cuda._sleep(int(milliseconds * 1e6 * 1.5))


def test_pixels_tokens_and_inputs_are_those_of_the_cpu() -> None:
    files = [jpeg(200 + i, 300, seed=i, progressive=i % 2 == 1) for i in range(6)]
    for image, file in zip(tt.decode_jpeg(files), files):
        assert image.is_cuda and (image.cpu().numpy() == pillow(file)).all()
    for image, file in zip(thalweg.decode_jpeg(files, device="cuda"), files):
        assert (image.numpy() == pillow(file)).all() and (image.torch().cpu().numpy() == pillow(file)).all()
    for images in (files, [pillow(file) for file in files]):
        for make in (lambda m, **o: m.ImageProcessor.qwen2_vl(**o), lambda m, **o: m.ImageProcessor.siglip(64, **o)):
            here = make(thalweg, device="cpu", into="numpy")(images)
            there = make(tt, device="cuda")(images)
            assert there["pixel_values"].is_cuda
            assert all((there[name].cpu().numpy() == here[name]).all() for name in here)
        here = thalweg.Pipeline(device="cpu", budget=500, into="numpy", exact=True)(images)
        there = tt.Pipeline(budget=500, exact=True)(images)
        assert there.cu_seqlens.cpu().tolist() == here.cu_seqlens.tolist()
        assert abs(there.tokens.cpu().numpy() - here.tokens).max() < 1e-3
        a = thalweg.Augment(32, device="cpu", into="numpy")(images, epoch=0, indices=range(6))
        b = tt.Augment(32)(images, epoch=0, indices=range(6))
        assert abs(b.cpu().numpy() - a).max() < 1e-3


@pytest.mark.parametrize("side", [False, True])
def test_memory_that_the_consumer_still_reads_is_not_written(side: bool) -> None:
    """PyTorch frees blocks in the order of its stream, and gives them to the next call."""
    file = jpeg(256, 256)
    want = int(pillow(file).sum())
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        for _ in range(20):
            blocks = [torch.full((256 * 256 * 3,), k + 1, dtype=torch.uint8, device="cuda") for k in range(16)]
            busy(20)
            sums = [block.sum(dtype=torch.int64) for block in blocks]
            del blocks
            image = tt.decode_jpeg(file)
            total = image.sum(dtype=torch.int64)
            assert [int(s) for s in sums] == [(k + 1) * 256 * 256 * 3 for k in range(16)]
            assert int(total) == want


def test_a_stream_by_its_name() -> None:
    file, stream = jpeg(), torch.cuda.Stream()
    for name in (stream, stream.cuda_stream):
        image = tt.decode_jpeg(file, stream=name)
        torch.cuda.current_stream().wait_stream(stream)
        image.record_stream(torch.cuda.current_stream())
        assert (image.cpu().numpy() == pillow(file)).all()


def test_nothing_waits_for_the_queue_of_the_consumer() -> None:
    """An augmentation returns while the stream that it is enqueued on has 300 ms to do."""
    import time

    augment, pipeline = tt.Augment(32), tt.Pipeline(budget=500)
    images = [photo(64, 64)]
    for _ in range(3):
        augment(images, epoch=0, indices=[0]), pipeline(images)
    torch.cuda.synchronize()
    busy(300)
    begin = time.monotonic()
    for _ in range(3):
        augment(images, epoch=0, indices=[0]), pipeline(images)
    took = time.monotonic() - begin
    torch.cuda.synchronize()
    assert took < 0.1, took


def test_a_capture_is_refused_and_lives_on() -> None:
    x = torch.zeros(16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    augment = tt.Augment(32)
    augment([photo(40, 40)], epoch=0, indices=[0])
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        x += 1
        with pytest.raises(thalweg.CaptureError):
            augment([photo(40, 40)], epoch=0, indices=[0])
    graph.replay()
    torch.cuda.synchronize()
    assert x.sum() == 16


def test_a_loader_beside_captures(folder: pathlib.Path) -> None:
    """Each capture has at least one batch delivered during it, by a loader in another thread."""
    files = sorted(folder.rglob("*.jpg")) * 50
    loader = tt.Loader(files, batch_size=4, labels=None, transform=tt.Augment(32))
    count, stop, failed = [0], threading.Event(), []

    def load() -> None:
        stream = torch.cuda.Stream()
        try:
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    for _ in loader:
                        count[0] += 1
                        if stop.is_set():
                            return
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    x = torch.zeros(16, device="cuda")
    try:
        # The first use of a kernel loads it, which waits for the whole context.
        while count[0] < 8 and not failed:
            pass
        for turn in range(20):
            graph, before = torch.cuda.CUDAGraph(), count[0]
            with torch.cuda.graph(graph):
                x += 1
                while count[0] == before and not failed:
                    pass
            graph.replay()
    finally:
        stop.set()
        thread.join()
    torch.cuda.synchronize()
    assert not failed and x[0] == 20


def test_the_memory_of_the_device_comes_back(folder: pathlib.Path) -> None:
    def turn() -> Any:
        return tt.decode_jpeg([jpeg(200, 300)] * 4), tt.Pipeline(budget=300)([photo(64, 64)]).tokens

    for _ in range(20):
        turn()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(100):
        turn()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20

def test_the_default_stream_by_its_name() -> None:
    """Its handle is 0, from which PyTorch makes another stream: the memory would not be in its order."""
    file, default = jpeg(256, 256), torch.cuda.default_stream()
    want = int(pillow(file).sum())
    for side in [torch.cuda.Stream() for _ in range(32)]:
        with torch.cuda.stream(side):
            block = torch.full((256 * 256 * 3,), 1, dtype=torch.uint8, device="cuda")
            busy(5)
            read = block.sum(dtype=torch.int64)
            del block
        image = tt.decode_jpeg(file, stream=default)
        assert int(image.sum(dtype=torch.int64)) == want
        side.synchronize()
        assert int(read) == 256 * 256 * 3


def test_counts_are_read_on_the_stream_that_writes_them() -> None:
    image, stream = photo(128, 160), torch.cuda.Stream()
    pipeline = tt.Pipeline(budget=500, exact=True)
    want = pipeline([image]).tokens.shape[0]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        busy(100)
    assert pipeline([image], stream=stream).tokens.shape[0] == want


def test_planes_are_those_of_the_host() -> None:
    files = [jpeg(40 + i, 50, seed=i) for i in range(3)]
    for image in thalweg.decode_jpeg(files, device="cuda", layout="CHW"):
        assert image.shape[0] == 3 and (image.torch().cpu().numpy() == image.numpy()).all()


def test_cuda_is_the_current_device() -> None:
    last = torch.cuda.device_count() - 1
    with torch.cuda.device(last):
        assert tt.decode_jpeg(jpeg(), device="cuda").device.index == last


def test_a_batch_without_images_is_delivered_once(tmp_path: pathlib.Path) -> None:
    names = [tmp_path / f"{i}.jpg" for i in range(3)]
    for name, size in zip(names, ((60, 60), (2, 1000), (60, 70))):
        name.write_bytes(jpeg(*size))
    files = tt.Loader(names, batch_size=1, labels=None, skip_errors=True, transform=tt.ImageProcessor.qwen2_vl())
    batches = [next(files) for _ in names]
    assert [(batch.indices, batch.failed) for batch in batches] == [([0], []), ([], [1]), ([2], [])]
