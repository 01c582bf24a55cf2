"""The table of thalweg for Python on one GPU: every row in one run, and each validated before it is timed.

    python bench.py [--files FOLDER] [--iterations 200] [--quick]

`--files` has 4K JPEG files; without it, the bench makes some. Rows of torchvision and transformers are there if these
are installed.
"""

from __future__ import annotations

import argparse
import io
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

import thalweg
import thalweg.torch as tt

GPU = torch.cuda.is_available()


def row(what: str, value: str) -> None:
    print(f"| {what} | {value} |", flush=True)


def median(run: Callable[[], Any], times: int) -> float:
    """The median of the seconds that a call takes until the device is done."""
    run()
    took = []
    for _ in range(times):
        wait()
        begin = time.perf_counter()
        run()
        wait()
        took.append(time.perf_counter() - begin)
    return statistics.median(took)


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def files_4k(folder: str | None, count: int, size: tuple[int, int]) -> list[bytes]:
    if folder:
        paths = sorted(p for p in pathlib.Path(folder).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
        found = [path.read_bytes() for path in paths[:count]]
        return [found[i % len(found)] for i in range(count)]
    random, made = np.random.default_rng(0), []
    for _ in range(4):
        small = random.integers(0, 256, (size[0] // 24, size[1] // 24, 3), np.uint8)
        image = Image.fromarray(small).resize((size[1], size[0]), Image.Resampling.BICUBIC)
        noise = random.normal(0, 8, (size[0], size[1], 3))
        out = io.BytesIO()
        Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=85)
        made.append(out.getvalue())
    return [made[i % 4] for i in range(count)]


def imports() -> None:
    code = "import time; t = time.perf_counter(); import thalweg; print(time.perf_counter() - t)"
    runs = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
    row("`import thalweg`", f"{1e3 * min(runs):.1f} ms")
    library = next(pathlib.Path(thalweg.__file__).parent.glob("_thalweg*.so"))
    row("the library, not packed", f"{library.stat().st_size / 1e6:.2f} MB")


def cycles(milliseconds: float) -> int:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1 << 20)
    start.record()
    torch.cuda._sleep(1 << 24)
    end.record()
    wait()
    return int((1 << 24) / start.elapsed_time(end) * milliseconds)


def game(decode: Callable[[bytes], torch.Tensor], file: bytes, iterations: int, milliseconds: float) -> int:
    """The times that a block was written before its former owner had read it, or read before it was written."""
    want = int(np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).sum())
    bytes_, sleep, corrupt = 3 * 512 * 512, cycles(milliseconds), 0
    for _ in range(iterations):
        blocks = [torch.full((bytes_,), k + 1, dtype=torch.uint8, device="cuda") for k in range(32)]
        torch.cuda._sleep(sleep)
        sums = [block.sum(dtype=torch.int64) for block in blocks]
        del blocks
        total = decode(file).sum(dtype=torch.int64)
        wrong = any(int(s) != (k + 1) * bytes_ for k, s in enumerate(sums))
        # libjpeg-turbo's pixels and those of nvJPEG differ a little, so far off means another memory.
        corrupt += wrong or abs(int(total) - want) > want // 50
    return corrupt


def games(iterations: int, milliseconds: float) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).resize((512, 512)).save(out, "JPEG")
    file, side = out.getvalue(), torch.cuda.Stream()
    pixels = torch.from_numpy(np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).copy()).cuda()

    def control(_: bytes) -> torch.Tensor:
        """A producer that writes memory of the consumer's stream on its own, without a wait."""
        memory = torch.empty(512, 512, 3, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(side):
            memory.copy_(pixels)
        return memory

    ways: dict[str, Callable[[bytes], torch.Tensor]] = {"thalweg": tt.decode_jpeg, "control without a wait": control}
    try:
        import torchvision.io as tv

        ways["torchvision"] = lambda f: tv.decode_jpeg(torch.frombuffer(bytearray(f), dtype=torch.uint8), device="cuda")
    except ImportError:
        pass
    for name, decode in ways.items():
        try:
            decode(file)
            wait()
            row(f"corrupt, {name}, {milliseconds:g} ms queued", f"{game(decode, file, iterations, milliseconds)} of {iterations}")
        except Exception as error:  # noqa: BLE001
            row(f"corrupt, {name}", f"not run: {error}")


def hand_over() -> None:
    """What a call costs beyond `torch.empty` and the launch: 64 calls behind a busy stream, so the host enqueues."""
    image = thalweg.decode_jpeg(files_4k(None, 1, (48, 64))[0], device="cuda")
    place = thalweg._core._open("cuda:0", "torch")
    shape = list(image.shape)
    like, other = (torch.empty(shape, dtype=torch.uint8, device="cuda") for _ in range(2))
    expected = image.numpy().copy()
    assert (image._into(place, None).view(shape).cpu().numpy() == expected).all()
    assert (place._filled(shape, 7).cpu() == 7).all()

    def host(run: Callable[[], Any]) -> float:
        took = []
        for _ in range(40):
            wait()
            torch.cuda._sleep(1 << 25)
            begin = time.perf_counter()
            for _ in range(64):
                run()
            took.append((time.perf_counter() - begin) / 64)
        wait()
        return 1e6 * statistics.median(took)

    alone = host(lambda: torch.empty(shape, dtype=torch.uint8, device="cuda"))
    row("`torch.empty`", f"{alone:.1f} us")
    for name, run, launch in (
        ("work on the consumer's stream", lambda: place._filled(shape, 7), lambda: like.zero_()),
        ("made ahead", lambda: image._into(place, None), lambda: like.copy_(other)),
    ):
        whole, launched = host(run), host(launch)
        row(f"{name}: whole call; the same launch by torch", f"{whole:.1f} us; {launched:.1f} us")
        row(f"{name}, beyond torch.empty and the launch", f"{whole - alone - launched:.1f} us")


def decoding(files: list[bytes]) -> None:
    images = tt.decode_jpeg(files[:4], device="cuda" if GPU else "cpu")
    for image, file in zip(images, files):
        assert (image.cpu().numpy() == np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))).all()
    del images
    seconds = median(lambda: tt.decode_jpeg(files), 10)
    row(f"`decode_jpeg` of {len(files)} files of 4K", f"{1e3 * seconds:.2f} ms, {len(files) / seconds:.0f} images/s")


def loop(files: list[bytes], count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        own = list(dict.fromkeys(files))  # each once, as the example `folder` in Rust takes files in turn
        for i, file in enumerate(own):
            (pathlib.Path(folder) / f"{i}.jpg").write_bytes(file)
        paths = [os.path.join(folder, f"{i % len(own)}.jpg") for i in range(count)]
        for name, transform in (
            ("pixels", None),
            ("tokens", tt.Pipeline()),
            ("augmented to 224", tt.Augment(224)),
            ("inputs of Qwen2.5-VL in bf16", tt.ImageProcessor.qwen2_5_vl(dtype="bfloat16")),
        ):
            with tt.Loader(paths, batch_size=8, labels=None, transform=transform) as loader:
                rates = []
                for _ in range(4):  # the first epoch fills the pools and loads the kernels
                    wait()
                    begin, seen = time.perf_counter(), 0
                    for batch in loader:
                        seen += len(batch)
                        total = consume(batch)
                    wait()
                    rates.append(seen / (time.perf_counter() - begin))
                assert torch.isfinite(total.float())
                row(f"4K files into a torch loop, {name}", f"{statistics.median(rates[1:]):.0f} images/s")


def consume(batch: Any) -> torch.Tensor:
    """A little work on what a batch has."""
    if batch.tokens is not None:
        return batch.tokens.tokens[0].sum()
    if batch.inputs is not None:
        return batch.inputs["pixel_values"][0].sum()
    return batch.images[0].sum()


def processors(files: list[bytes]) -> None:
    ours = tt.ImageProcessor.qwen2_5_vl(device="cuda" if GPU else "cpu", dtype="float32")
    here = tt.ImageProcessor.qwen2_5_vl(device="cpu")
    assert torch.equal(ours(files[:2])["pixel_values"].cpu(), here(files[:2])["pixel_values"])
    seconds = median(lambda: ours(files[:8]), 5) / 8
    row("`ImageProcessor` (Qwen2.5-VL), 4K JPEG bytes" + (", GPU" if GPU else ", CPU"), f"{1 / seconds:.1f} images/s")
    try:
        from transformers import Qwen2VLImageProcessor
    except ImportError:
        row("transformers", "not installed")
        return
    theirs = Qwen2VLImageProcessor(size={"shortest_edge": 3136, "longest_edge": 12_845_056})

    def transform(some: list[bytes]) -> Any:
        images = [Image.open(io.BytesIO(file)).convert("RGB") for file in some]
        return theirs(images=images, return_tensors="pt")

    assert torch.equal(transform(files[:1])["pixel_values"], here(files[:1])["pixel_values"])
    torch.set_num_threads(16)
    other = median(lambda: transform(files[:4]), 3) / 4
    row("transformers' fast one, 16 threads, the same", f"{1 / other:.1f} images/s: {other / seconds:.1f} times as long")
    torch.set_num_threads(1)
    thalweg.set_num_threads(1)
    images = [Image.open(io.BytesIO(file)).convert("RGB") for file in files[:2]]
    alone = median(lambda: here(images), 3) / 2
    other = median(lambda: theirs(images=images, return_tensors="pt"), 3) / 2
    row("on the CPU, one thread, decoded 4K", f"{1 / alone:.2f} images/s; transformers {1 / other:.2f}: {other / alone:.2f} x")
    thalweg.set_num_threads(0)


def captures(files: list[bytes], count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i in range(32):
            paths.append(os.path.join(folder, f"{i}.jpg"))
            pathlib.Path(paths[-1]).write_bytes(files[i % len(files)])
        loader = tt.Loader(paths, batch_size=4, labels=None, transform=tt.Augment(224))
        delivered, stop, failed = [0], threading.Event(), []

        def load() -> None:
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    while not stop.is_set():
                        for _ in loader:
                            delivered[0] += 1
                            if stop.is_set():
                                return
            except Exception as error:  # noqa: BLE001
                failed.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        x, good, least = torch.zeros(1 << 20, device="cuda"), 0, 1 << 30
        for _ in range(count):
            graph, before = torch.cuda.CUDAGraph(), delivered[0]
            try:
                with torch.cuda.graph(graph):
                    x += 1
                    while delivered[0] == before and not failed:
                        pass
                graph.replay()
                wait()
                good, least = good + 1, min(least, delivered[0] - before)
            except RuntimeError as error:
                failed.append(error)
                break
        stop.set()
        thread.join()
        row(f"captures by torch beside a loader, at least {least} batch during each", f"{good} of {count} {failed or ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="small images, to see that the bench works")
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if GPU else "no GPU"
    print(f"thalweg {thalweg.__version__}, torch {torch.__version__}, {name}\n\n| work | result |\n|---|---|")
    imports()
    size, count = ((216, 384), 8) if options.quick else ((2160, 3840), 64)
    files = files_4k(options.files, count, size)
    decoding(files)
    loop(files, 16 if options.quick else 1024)
    processors(files)
    if GPU:
        hand_over()
        captures(files, 100)
        games(options.iterations, 100)
        games(10 * options.iterations, 5)


if __name__ == "__main__":
    main()
