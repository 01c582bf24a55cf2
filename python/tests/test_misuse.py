"""Programs that use thalweg wrongly: each has the right result or an exception, and never a crash."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
START = f"""
import gc, os, sys, threading
sys.path.insert(0, {str(HERE)!r})
import numpy as np
import thalweg
from conftest import jpeg, photo, pillow
file, image = jpeg(), photo(64, 64)
def pipeline(**options):
    return thalweg.Pipeline(**{{"device": "cpu", "budget": 300, "into": "numpy", "exact": True, **options}})
"""
TORCH = "import torch, thalweg.torch as tt\n"

# The code, and what it prints; or the exception that ends it.
PROGRAMS: dict[str, tuple[str, str]] = {
    "tokens after their pipeline": (
        "p = pipeline(); t = p([image]).tokens; want = t.copy(); del p; gc.collect(); print((t == want).all())",
        "True",
    ),
    "a pipeline that is gone while a thread uses it": (
        "p = pipeline(); threads = [threading.Thread(target=p, args=([image],)) for _ in range(4)]\n"
        "[t.start() for t in threads]; del p; [t.join() for t in threads]; print('done')",
        "done",
    ),
    "an array after its tensor, in another thread": (
        "x = thalweg.decode_jpeg(file, device='cpu'); a = np.from_dlpack(x); out = []\n"
        "t = threading.Thread(target=lambda: out.append(bool((a == pillow(file)).all()))); del x; gc.collect()\n"
        "t.start(); t.join(); print(out)",
        "[True]",
    ),
    "a capsule that nobody takes": (
        "x = thalweg.decode_jpeg(file, device='cpu'); c = x.__dlpack__(max_version=(1, 0)); del x, c; gc.collect(); print('done')",
        "done",
    ),
    "a capsule that is taken twice": (
        TORCH + "c = thalweg.decode_jpeg(file, device='cpu').__dlpack__(); a = torch.utils.dlpack.from_dlpack(c)\n"
        "torch.utils.dlpack.from_dlpack(c)",
        "RuntimeError",
    ),
    "a pipeline after fork": (
        "p = pipeline()\nif os.fork() == 0:\n    p([image])\nelse:\n    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))",
        "ForkedError",
    ),
    "a loader after fork": (
        "import pathlib, tempfile; d = pathlib.Path(tempfile.mkdtemp()); (d / '1.jpg').write_bytes(file)\n"
        "l = thalweg.Loader(d, labels=None, device='cpu')\n"
        "if os.fork() == 0:\n    next(l)\nelse:\n    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))",
        "ForkedError",
    ),
    "a loader that is used after close": (
        "import pathlib, tempfile; d = pathlib.Path(tempfile.mkdtemp()); (d / '1.jpg').write_bytes(file)\n"
        "l = thalweg.Loader(d, labels=None, device='cpu'); l.close(); next(l)",
        "RuntimeError",
    ),
    "a loader that is closed while a thread waits": (
        "import pathlib, tempfile; d = pathlib.Path(tempfile.mkdtemp()); (d / '1.jpg').write_bytes(file)\n"
        "l = thalweg.Loader([d / '1.jpg'] * 50, batch_size=1, device='cpu')\n"
        "def work():\n    try:\n        list(l)\n    except RuntimeError:\n        pass\n"
        "t = threading.Thread(target=work); t.start(); l.close(); t.join(); print('done')",
        "done",
    ),
    "objects that live until the exit": (
        "p = pipeline(); t = p([image]); x = thalweg.decode_jpeg(file, device='cpu'); a = np.from_dlpack(x); print('done')",
        "done",
    ),
    "work in a thread at the exit": (
        "threading.Thread(target=lambda: [pipeline()([image]) for _ in range(1000)], daemon=True).start(); print('done')",
        "done",
    ),
    "an image of floats": ("pipeline()([image.astype(np.float32)])", "TypeError"),
    "an image of another shape": ("pipeline()([image[:, :, :2]])", "ValueError"),
    "an image with alpha": ("pipeline()([np.zeros((8, 8, 4), np.uint8)])", "ValueError"),
    "an image that is not contiguous": ("pipeline()([image[:, ::-1]])", "ValueError"),
    "an image without pixels": ("pipeline()([np.zeros((0, 8, 3), np.uint8)])", "ValueError"),
    "no image": ("pipeline()([])", "ValueError"),
    "an image that is too large": ("pipeline()([np.zeros((1, 16385, 3), np.uint8)])", "ValueError"),
    "a budget beyond all memory": ("print(pipeline(budget=2**62)([image]).tokens.shape[1])", "13"),
    "a number as an image": ("pipeline()([7])", "TypeError"),
    "a broken file as an image": ("pipeline()([image, b'broken'])", "DecodeError"),
    "a view outside of a tensor": ("thalweg.decode_jpeg(file, device='cpu')._view(1, [60, 90, 3])", "ValueError"),
    "a view that is not aligned": (
        "thalweg.decode_jpeg(file, device='cpu')._view(1, [4], 'float32')",
        "ValueError",
    ),
    "a size that overflows": ("thalweg.decode_jpeg(file, device='cpu')._view(0, [2**62, 4])", "ValueError|OverflowError"),
    "a file that claims 65535 x 65535 pixels": (
        "at = file.index(bytes([0xff, 0xc0])); f = bytearray(file); f[at + 5 : at + 9] = b'\\xff' * 4\n"
        "thalweg.decode_jpeg(bytes(f), device='cpu')",
        "DecodeError",
    ),
    "a file that changes during the call": (
        "f = bytearray(jpeg(400, 400)); stop = []\n"
        "def work():\n    while not stop:\n        f[500:600] = os.urandom(100)\n"
        "t = threading.Thread(target=work); t.start()\n"
        "for _ in range(30):\n    thalweg.decode_jpeg(f, device='cpu', errors='none')\n"
        "stop.append(1); t.join(); print('done')",
        "done",
    ),
    "a tensor that requires grad": (TORCH + "tt.Pipeline(device='cpu')([torch.rand(8, 8, 3, requires_grad=True)])", "ValueError"),
    "a tensor without memory": (
        TORCH + "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "with FakeTensorMode():\n    tt.Pipeline(device='cpu')([torch.zeros(8, 8, 3, dtype=torch.uint8)])",
        "TypeError",
    ),
    "a result in a mode without memory": (
        TORCH + "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "with FakeTensorMode():\n    tt.decode_jpeg(file, device='cpu', decode='device')",
        "Error",
    ),
    "a result that is resized": (
        TORCH + "x = tt.decode_jpeg(file, device='cpu', decode='device'); x.resize_(3, 100, 100); x.zero_(); print('done')",
        "done",
    ),
    "a result that is freed while others are made": (
        TORCH + "p = tt.Pipeline(device='cpu', budget=300, exact=True); want = p([image]).tokens.clone()\n"
        "print(all((p([image]).tokens == want).all() for _ in range(50)))",
        "True",
    ),
    "a stream of another device": (TORCH + "tt.decode_jpeg(file, device='cpu', stream=-7)", "OverflowError"),
    "a GPU that is not there": ("thalweg.decode_jpeg(file, device='cuda:77')", "Error"),
    "a pickled tensor": ("import pickle; pickle.dumps(thalweg.decode_jpeg(file, device='cpu'))", "TypeError"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program(name: str) -> None:
    code, expected = PROGRAMS[name]
    if TORCH in code and importlib.util.find_spec("torch") is None:
        pytest.skip("without torch")
    out = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, timeout=120)
    assert out.returncode in (0, 1), (out.returncode, out.stderr)
    if out.returncode == 0:
        assert out.stdout.split("\n")[0] == expected, (out.stdout, out.stderr)
    else:
        assert re.search(rf"^[\w.]*({expected})(:|$)", out.stderr, re.MULTILINE), out.stderr
        assert "PanicException" not in out.stderr


def test_there_are_thirty() -> None:
    assert len(PROGRAMS) >= 30
