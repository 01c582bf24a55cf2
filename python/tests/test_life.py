"""Processes and threads: fork, spawn, Ctrl-C, the end of the interpreter, logging."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from conftest import growth, jpeg, photo, pillow

import thalweg

HERE = pathlib.Path(__file__).parent
START = f"""
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.path.insert(0, {str(HERE)!r})
import thalweg
from conftest import jpeg, photo, pillow
"""


def program(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", START + code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_a_child_of_an_open_device_is_told_what_to_do() -> None:
    out = program("""
pipeline = thalweg.Pipeline(device="cpu", budget=300)
pipeline([photo(64, 64)])
if os.fork() == 0:
    try:
        pipeline([photo(64, 64)])
    except thalweg.ForkedError as error:
        print(error)
    # What the host does alone works here, too.
    print((thalweg.decode_jpeg(jpeg(), device="cpu", into="numpy") == pillow(jpeg())).all())
    print(thalweg.ImageProcessor.clip(32, device="cpu")([photo(40, 40)])["pixel_values"].shape)
    del pipeline
    sys.stdout.flush()
    os._exit(0)
os.wait()
print("parent", pipeline([photo(64, 64)]).trim().tokens.shape[1])
""")
    lines = out.stdout.splitlines()
    assert out.returncode == 0 and not out.stderr, out.stderr
    assert "spawn" in lines[0] and "num_workers=0" in lines[0]
    assert lines[1:] == ["True", "(1, 3, 32, 32)", "parent 13"]


def test_a_child_that_was_forked_before_works() -> None:
    out = program("""
if os.fork() == 0:
    print(thalweg.Pipeline(device="cpu", budget=300, exact=True)([photo(64, 64)]).tokens.shape[1], flush=True)
    os._exit(0)
print(os.wait()[1])
""")
    assert (out.stdout.split(), out.stderr) == (["13", "0"], "")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_other_methods_work(method: str, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        START
        + f"""
import multiprocessing
def work(seed):
    return thalweg.Pipeline(device="cpu", budget=300, exact=True, into="numpy")([photo(64, 64, seed)]).tokens.sum()
if __name__ == "__main__":
    here = [work(seed) for seed in range(3)]
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(work, range(3)) == here)
"""
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert out.stdout.split() == ["True"], out.stderr


def test_ctrl_c_ends_a_wait_for_a_batch(tmp_path: pathlib.Path) -> None:
    """The only file is a pipe that nobody has written to, so the batch does not come."""
    pipe = tmp_path / "slow.jpg"
    os.mkfifo(pipe)
    code = f"""
loader = thalweg.Loader([{str(pipe)!r}], device="cpu", into="numpy")
print("waits", flush=True)
try:
    next(loader)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print((next(loader).images[0] == pillow(jpeg())).all())
"""
    child = subprocess.Popen([sys.executable, "-c", START + code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "waits\n"
    time.sleep(0.3)
    before = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    assert time.monotonic() - before < 2
    pipe.write_bytes(jpeg())
    assert child.stdout.readline() == "True\n" and child.wait(30) == 0


def test_the_end_in_the_middle_is_silent(tmp_path: pathlib.Path) -> None:
    for i in range(6):
        (tmp_path / f"{i}.jpg").write_bytes(jpeg(200, 300, seed=i))
    out = program(
        f"""
loader = thalweg.Loader({str(tmp_path)!r}, labels=None, batch_size=1, device="cpu", into="numpy")
batch = next(loader)
tensor = thalweg.decode_jpeg(jpeg(), device="cpu")
capsule = tensor.__dlpack__(max_version=(1, 0))
tokens = thalweg.Pipeline(device="cpu")([photo(64, 64)])
threading.Thread(target=lambda: [thalweg.decode_jpeg([jpeg()] * 50, device="cpu") for _ in range(100)], daemon=True).start()
""",
        THALWEG_LOG="debug",
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")


def test_messages_of_threads_reach_logging(folder: pathlib.Path) -> None:
    (folder / "cat" / "0.jpg").write_bytes(b"broken")
    out = program(
        f"""
import logging
logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
loader = thalweg.Loader({str(folder)!r}, batch_size=4, skip_errors=True, device="cpu")
list(loader)
time.sleep(0.3)
""",
        THALWEG_LOG="debug",
    )
    assert "thalweg.device DEBUG opened cpu" in out.stdout and "thalweg.loader" in out.stdout, out.stdout
    assert "0.jpg" in out.stdout
    assert program("", THALWEG_LOG="loud").stderr.count("THALWEG_LOG is 'loud'") == 1


def in_threads(work: Any, count: int = 8) -> list[Any]:
    results: list[Any] = [None] * count
    threads = [threading.Thread(target=lambda i=i: results.__setitem__(i, work(i))) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_share_every_object(folder: pathlib.Path) -> None:
    files = [jpeg(40, 50 + i, seed=i) for i in range(8)]
    pipeline = thalweg.Pipeline(device="cpu", budget=300, depth=2, exact=True, into="numpy")
    augment = thalweg.Augment(16, device="cpu", into="numpy")
    processor = thalweg.ImageProcessor.clip(32, device="cpu", into="numpy")

    def work(i: int) -> Any:
        image = pillow(files[i])
        for decode in ("host", "device"):
            assert (thalweg.decode_jpeg(files[i], device="cpu", into="numpy", decode=decode) == image).all()
        return (
            pipeline([image]).tokens,
            augment([image], epoch=0, indices=[i]),
            processor([image])["pixel_values"],
        )

    for i, results in enumerate(in_threads(work)):
        assert all((there == here).all() for there, here in zip(results, work(i)))

    with thalweg.Loader(folder, batch_size=1, device="cpu") as loader:
        seen = in_threads(lambda _: [batch.indices[0] for batch in loader_rest(loader)])
        assert sorted(sum(seen, [])) == list(range(10))


def loader_rest(loader: Any) -> Any:
    while (batch := next(loader, None)) is not None:
        yield batch


def test_the_interpreter_is_free_meanwhile() -> None:
    files, count, done = [jpeg(800, 1000)] * 12, 0, threading.Event()

    def decode() -> None:
        thalweg.decode_jpeg(files, device="cpu")
        done.set()

    thread = threading.Thread(target=decode)
    thread.start()
    while not done.is_set():
        time.sleep(0.001)
        count += 1
    thread.join()
    assert count > 10


def test_nothing_grows(folder: pathlib.Path) -> None:
    pipeline = thalweg.Pipeline(device="cpu", budget=300, into="numpy")
    augment = thalweg.Augment(32, device="cpu", into="numpy")
    file = jpeg(200, 300)

    def turn() -> None:
        pipeline([file, photo(64, 96)])
        augment([file], epoch=0, indices=[0])
        thalweg.decode_jpeg([file, b"broken"], device="cpu", decode="device", errors="none")
        with thalweg.Loader(folder, batch_size=4, device="cpu", into="numpy") as loader:
            next(loader)

    objects, kilobytes = growth(turn, first=30)
    assert objects < 100
    assert kilobytes < 16 << 10

def test_a_handler_of_a_signal_may_ask_a_loader(tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "never.jpg"
    os.mkfifo(pipe)
    out = program(f"""
files = thalweg.Loader([{str(pipe)!r}], device="cpu", labels=None, threads=1)
def handler(*_):
    print(files.state_dict()["samples"], len(files), files.stats.images, flush=True)
    os._exit(3)
signal.signal(signal.SIGUSR1, handler)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
next(iter(files))
""")
    assert (out.returncode, out.stdout.split()) == (3, ["0", "1", "0"]), out


def test_threads_of_a_parent_are_not_those_of_a_child() -> None:
    out = program("""
def named(want):
    for _ in range(200):  # a thread has its name a little after it began
        tasks = os.listdir("/proc/self/task")
        names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in tasks]
        number = sum(name.startswith("thalweg ") and name[8:].isdigit() for name in names)
        if number == want:
            break
        time.sleep(0.05)
    print(number, flush=True)
thalweg.set_num_threads(3)
thalweg.decode_jpeg([jpeg()] * 8, device="cpu")
named(3)
if os.fork() == 0:
    thalweg.decode_jpeg([jpeg()] * 8, device="cpu")
    named(1)
    thalweg.set_num_threads(2)
    thalweg.decode_jpeg([jpeg()] * 8, device="cpu")
    named(2)
    os._exit(0)
os.wait()
""")
    assert (out.stdout.split(), out.stderr) == (["3", "1", "2"], "")
