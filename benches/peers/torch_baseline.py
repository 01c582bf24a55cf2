"""What a user would run instead: the texture array, and the whole way from an image to tokens, in PyTorch.

Needs PyTorch 2.x, and a CUDA GPU unless --cpu is given; says so and exits with 1 where they are missing. Prints a JSON
object a line: facts about PyTorch; measurements, in the fields of benches/record/README.md; and, before each
measurement of tokens, a safetensors file with what the measured function computed, for the caller to check. The
roofline benchmark runs it. By itself, on noise, or to compare torch_tokens.py with files computed in NumPy:

    python3 benches/peers/torch_baseline.py [--cpu] [--threads N] [--ordinal N] [--quick]
    python3 benches/peers/torch_baseline.py --self-test tests/golden [--compiled] [--cpu]
    ... --image photo 4K 2160 3840 RGB --results DIR     an image to measure on, raw bytes; any number of them
"""
import argparse, json, math, pathlib, statistics, struct, sys, time, zlib

try:
    import torch
except ImportError as error:
    sys.exit(f"PyTorch is not installed for {sys.executable}: {error}")

from torch_tokens import ImageToTokens, trimmed

DEPTH = 4  # images under way at once
FRAMES = "pinned image to tokens, frames"


def parse():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--cpu", action="store_true")
    arguments.add_argument("--ordinal", type=int, default=0, help="which GPU")
    arguments.add_argument("--threads", type=int)
    arguments.add_argument("--quick", action="store_true", help="few runs, nothing compiled")
    arguments.add_argument("--image", nargs=5, action="append", metavar=("CONTENT", "SIZE", "HEIGHT", "WIDTH", "RGB"))
    arguments.add_argument("--results", type=pathlib.Path, metavar="DIR", help="where to write what was computed")
    arguments.add_argument("--self-test", type=pathlib.Path, metavar="GOLDEN", help="measure nothing, compare with these files")
    arguments.add_argument("--compiled", action="store_true", help="the self-test of compiled functions")
    return arguments.parse_args()


args = parse()
if not args.cpu and not torch.cuda.is_available():
    sys.exit(f"PyTorch {torch.__version__} finds no CUDA GPU; --cpu measures it on the CPU")
dev = "cpu" if args.cpu else f"cuda:{args.ordinal}"
if not args.cpu: torch.cuda.set_device(args.ordinal)
if args.threads: torch.set_num_threads(args.threads)


# --- how it is measured ------------------------------------------------------------------------------------


def bench(f):
    """Microseconds of one call, the median; and of one among many without anything between."""
    if args.cpu:
        f()
        times = []
        for _ in range(3 if args.quick else 9):
            start = time.perf_counter()
            f()
            times.append((time.perf_counter() - start) * 1e6)
        return statistics.median(times), None
    warm, runs = (1, 3) if args.quick else (5, 30)
    for _ in range(warm): f()
    torch.cuda.synchronize()
    times = []
    event = lambda: torch.cuda.Event(enable_timing=True)
    for _ in range(runs):
        start, end = event(), event()
        start.record(); f(); end.record(); end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    start, end = event(), event()
    start.record()
    for _ in range(runs): f()
    end.record(); end.synchronize()
    return statistics.median(times), start.elapsed_time(end) * 1e3 / runs


def row(section, name, by, image, us, in_a_row, nbytes, **more):
    fields = {"section": section, "name": name, "by": by, "content": image.content, "size": image.size, "us": us}
    print(json.dumps({**fields, "us in a row": in_a_row, "bytes": nbytes, **more}), flush=True)


class Image:
    """An image to measure on: raw bytes of a file, or noise."""

    def __init__(self, content, size, height, width, file=None):
        self.content, self.size, self.height, self.width = content, size, int(height), int(width)
        shape = (self.height, self.width, 3)
        if file:
            self.rgb = torch.frombuffer(bytearray(pathlib.Path(file).read_bytes()), dtype=torch.uint8).reshape(shape)
        else:
            self.rgb = torch.randint(0, 256, shape, dtype=torch.uint8)

    @property
    def pixels(self):
        return self.height * self.width


def images():
    """Of each size noise, for the texture array, and something to make tokens of."""
    if args.image: return [Image(*image) for image in args.image]
    sizes = [("1080p", 1080, 1920), ("4K", 2160, 3840), ("8K", 4320, 7680)]
    if args.cpu: sizes = sizes[:1]
    if args.quick: sizes = [("180p", 180, 320)]
    return [Image("noise", *size) for size in sizes]


def everything(image):
    """Whether all rows are measured of its size, or only those that show how time grows with it."""
    return image.size == "4K" or args.cpu or args.quick


def compiled(f):
    """Compiled for each shape by itself, and refused where it would fall back to eager parts."""
    return torch.compile(f, dynamic=False, fullgraph=True)


# --- the streams -------------------------------------------------------------------------------------------


class Slot:
    """Page-locked memory for an image and its results, and when they were last complete."""

    def __init__(self, image, results):
        self.image = image.rgb.pin_memory()
        self.results = {name: torch.empty(value.shape, dtype=value.dtype).pin_memory() for name, value in results.items()}
        self.done = None

    def download(self, results):
        for name, value in results.items():
            self.results[name].copy_(value, non_blocking=True)


class Streams:
    """Upload, computation and download on a stream each; a result is waited for when its slot's turn comes again."""

    def __init__(self, image, step, expected):
        self.step = step
        self.up, self.compute, self.down = (torch.cuda.Stream() for _ in range(3))
        self.slots = [Slot(image, expected) for _ in range(DEPTH)]

    def submit(self, slot):
        with torch.cuda.stream(self.up):
            rgb = slot.image.to(dev, non_blocking=True)
            uploaded = self.up.record_event()
        with torch.cuda.stream(self.compute):
            self.compute.wait_event(uploaded)
            rgb.record_stream(self.compute)
            results = self.step(rgb)
            computed = self.compute.record_event()
        with torch.cuda.stream(self.down):
            self.down.wait_event(computed)
            for value in results.values(): value.record_stream(self.down)
            slot.download(results)
            slot.done = self.down.record_event()

    def run(self, images):
        """Microseconds an image."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(images):
            slot = self.slots[i % DEPTH]
            if slot.done: slot.done.synchronize()
            self.submit(slot)
        for slot in self.slots: slot.done.synchronize()
        return (time.perf_counter() - start) * 1e6 / images

    def measure(self, expected):
        self.run(2 * DEPTH)
        us = self.run(8 if args.quick else 128)
        for slot in self.slots:
            for name, value in trimmed(slot.results).items():
                if not torch.equal(value, expected[name]):
                    sys.exit(f"streams: {name} is not what one stream computes")
        return us


class Captured:
    """A step as a CUDA graph, with an image and results of its own."""

    def __init__(self, step, rgb):
        self.rgb, self.graph = rgb.clone(), torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3): step(self.rgb)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(self.graph):
            self.results = step(self.rgb)


class CapturedStreams(Streams):
    """The same with a graph for each slot, whose buffers the slot's last image has left when its turn comes."""

    def __init__(self, image, captured, expected):
        super().__init__(image, None, expected)
        for slot, graph in zip(self.slots, captured): slot.captured = graph

    def submit(self, slot):
        captured = slot.captured
        with torch.cuda.stream(self.up):
            captured.rgb.copy_(slot.image, non_blocking=True)
            uploaded = self.up.record_event()
        with torch.cuda.stream(self.compute):
            self.compute.wait_event(uploaded)
            captured.graph.replay()
            computed = self.compute.record_event()
        with torch.cuda.stream(self.down):
            self.down.wait_event(computed)
            slot.download(captured.results)
            slot.done = self.down.record_event()


# --- what is measured --------------------------------------------------------------------------------------


def check_textures(by, wrap, image):
    """The texture array of an image that only serves this: rows of textures count where the caller finds it right."""
    model = ImageToTokens(image.height, image.width).to(dev)
    report(by, image, {"textures": wrap(model.textures)(image.rgb.to(dev)).cpu()})


def textures(by, wrap, image):
    model, rgb = ImageToTokens(image.height, image.width).to(dev), image.rgb.to(dev)
    only = wrap(model.textures)
    row("kernels", "textures", by, image, *bench(lambda: only(rgb)), 55 * image.pixels)
    if everything(image):

        def both(rgb):
            planes = model.textures(rgb)
            return planes, model.features(planes)

        both = wrap(both)
        row("kernels", "textures + features", by, image, *bench(lambda: both(rgb)), 107 * image.pixels)


def tokens(by, wrap, image):
    """Image to tokens: of one image that is on the device; and, on a GPU, of many that come from page-locked memory."""
    model, rgb = ImageToTokens(image.height, image.width).to(dev), image.rgb.to(dev)
    step, nbytes = wrap(model), 3 * image.pixels + 60 * model.budget
    results = unsynchronized(step, rgb)
    expected = report(by, image, trimmed(results))
    row("kernels", "image to tokens", by, image, *bench(lambda: step(rgb)), nbytes)
    if args.cpu: return
    streams = everything(image)
    pipeline = lambda by, us: row("pipeline", FRAMES, f"{by}, three streams", image, us, None, 3 * image.pixels, images=1)
    if streams: pipeline(by, Streams(image, step, results).measure(expected))
    by = f"{by}, CUDA graph"
    graphs = [Captured(step, rgb) for _ in range(DEPTH if streams else 1)]
    graphs[0].graph.replay()
    expected = report(by, image, trimmed(graphs[0].results))
    row("kernels", "image to tokens", by, image, *bench(graphs[0].graph.replay), nbytes)
    if streams: pipeline(by, CapturedStreams(image, graphs, results).measure(expected))


def unsynchronized(step, rgb):
    """The results; refuses a step that makes the host wait, once it has been compiled and its constants are there."""
    step(rgb)
    if args.cpu: return step(rgb)
    torch.cuda.set_sync_debug_mode("error")
    try: return step(rgb)
    finally: torch.cuda.set_sync_debug_mode("default")


def report(by, image, results):
    """Writes what the function that is measured next has computed, for the caller to check."""
    if args.results:
        path = args.results / f"{by}, {image.size}.safetensors"
        path.write_bytes(safetensors(results))
        print(json.dumps({"results": str(path), "by": by, "size": image.size}), flush=True)
    return results


def measure():
    print(json.dumps({"PyTorch": torch.__version__, "PyTorch threads": torch.get_num_threads()}), flush=True)
    work = {"check": [check_textures], "noise": [textures], "photo": [tokens]}
    if not args.image: work["noise"] = [textures, tokens]
    every = images()
    versions = [("PyTorch eager", lambda f: f)]
    if not args.quick: versions.append(("PyTorch compiled", compiled))
    for by, wrap in versions:
        for image in every:
            for measurement in work[image.content]:
                measurement(by, wrap, image)
                if wrap is compiled: torch._dynamo.reset()  # else sizes count as recompilations, of which there are few


# --- files -------------------------------------------------------------------------------------------------

DTYPES = {"F32": torch.float32, "I32": torch.int32}


def safetensors(tensors):
    header, data = {}, bytearray()
    names = {dtype: name for name, dtype in DTYPES.items()}
    for name, value in tensors.items():
        raw = bytearray(value.nbytes)
        torch.frombuffer(raw, dtype=value.dtype).copy_(value.flatten())
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": names[value.dtype], "shape": list(value.shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path):
    raw = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    view = lambda at, count, dtype: torch.frombuffer(raw[8 + length :], dtype=dtype, offset=at, count=count)
    return {
        name: view(field["data_offsets"][0], math.prod(field["shape"]), DTYPES[field["dtype"]]).reshape(field["shape"])
        for name, field in header.items()
    }


def read_png(path):
    """An RGB image of 8 bits, as `[H, W, 3]`: what the photographs of this repository are."""
    raw, at, data = path.read_bytes(), 8, b""
    while at < len(raw):
        (length,), kind = struct.unpack(">I", raw[at : at + 4]), raw[at + 4 : at + 8]
        body, at = raw[at + 8 : at + 8 + length], at + 12 + length
        if kind == b"IHDR": width, height, *form = struct.unpack(">IIBBBBB", body)
        if kind == b"IDAT": data += body
    if form != [8, 2, 0, 0, 0]: sys.exit(f"{path} is no plain RGB image of 8 bits")
    data, rows, above = zlib.decompress(data), [], bytearray(3 * width + 3)
    for y in range(height):
        line = data[y * (3 * width + 1) :][: 3 * width + 1]
        row = bytearray(3 * width + 3)  # a pixel of zeros, and the row
        for x, value in enumerate(line[1:], 3):
            a, b, c = row[x - 3], above[x], above[x - 3]
            pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
            paeth = a if pa <= pb and pa <= pc else b if pb <= pc else c
            row[x] = (value + (0, a, b, (a + b) // 2, paeth)[line[0]]) & 255
        rows.append(row[3:])
        above = row
    return torch.frombuffer(bytearray().join(rows), dtype=torch.uint8).reshape(height, width, 3)


# --- the self-test -----------------------------------------------------------------------------------------

SCORE_ERROR, POSITION_ERROR = 2e-5, 2e-6
PLANE_ERROR = [2e-6] * 3 + [2e-5] * 6 + [2e-6] * 3 + [2e-5]
GOLDEN = [
    ("eye", "eye", {"budget": 1024}),
    ("chelsea", "chelsea", {}),
    ("coffee-budget10000-focus0.5", "coffee", {"budget": 10000, "focus": 0.5}),
    (
        "eye-options",
        "eye",
        {"patch": 24, "sides": (4, 12), "budget": 300, "fixation": (0.2, 0.8), "foveal_bias": 0.5},
    ),
    ("row", "row", {"patch": 16, "budget": 200}),
]


class Checks:
    def __init__(self):
        self.count, self.failures = 0, 0

    def check(self, what, good, detail=""):
        self.count += 1
        if not good:
            self.failures += 1
            print(f"FAILED {what}: {detail}")

    def close(self, what, got, want, bound):
        if got.shape != want.shape: return self.check(what, False, f"{list(got.shape)}, expected {list(want.shape)}")
        error = (got.double() - want.double()).abs().max().item()
        self.check(what, error <= bound, f"off by {error:.2e}, allowed {bound:.2e}")  # not so for NaN


def greedy(relevance, lo, hi, budget, gains):
    """Allocation one step after another, in plain Python."""
    steps, sides = [], [0] * len(relevance)
    for patch, r in enumerate(relevance):
        share = int(min(max(math.floor(65535 * r + 0.5), 1), 65535))
        for n, gain in zip(range(lo, hi + 1), gains):
            cost = n * n if n == lo else 2 * n - 1
            if share * gain: steps.append((-share * gain, patch, n, cost))
    for _, patch, n, cost in sorted(steps):
        if cost > budget: break
        budget -= cost
        sides[patch] = n
    return sides


def self_test(golden):
    checks, photos = Checks(), golden.parent.parent / "assets" / "photos"
    wrap = compiled if args.compiled else lambda f: f
    with_query = read_safetensors(golden / "chelsea-query.safetensors")
    for file, photo, params in GOLDEN:
        rgb, want = read_png(photos / f"{photo}.png"), read_safetensors(golden / f"{file}.safetensors")
        model = ImageToTokens(*rgb.shape[:2], **params).to(dev)
        planes = model.textures(rgb.to(dev))
        for plane, bound in enumerate(PLANE_ERROR):
            if "textures" in want:
                checks.close(f"{file}: plane {plane}", planes[plane].cpu(), want["textures"][plane], bound)
        got = trimmed(unsynchronized(wrap(model), rgb.to(dev)))
        torch._dynamo.reset()
        scores = want["entropy"].double(), want["salience"].double()
        spread = (0.5 * sum(scores)).max() - (0.5 * sum(scores)).min()
        bounds = {"features": SCORE_ERROR, "entropy": SCORE_ERROR, "salience": SCORE_ERROR, "relevance": 2e-6 / spread.item()}
        for name, bound in bounds.items():
            checks.close(f"{file}: {name}", got[name].reshape(want[name].shape), want[name], bound)
        # Exact: from the run's own relevance, and from that of the file.
        lo, hi = params.get("sides", (8, 20))
        rule = lambda relevance: greedy(relevance.flatten().tolist(), lo, hi, model.budget, model.gains.tolist())
        checks.check(f"{file}: sides", got["sides"].tolist() == rule(got["relevance"]), "not those of its relevance")
        files = [want, with_query] if file == "chelsea" else [want]
        for other in files:
            sides = model.allocate(other["relevance"].flatten().to(dev)).cpu().reshape(other["sides"].shape)
            checks.check(f"{file}: sides of the file's relevance", sides.equal(other["sides"].long()), "not the file's")
            packed = model.compress(planes, other["sides"].flatten().long().to(dev))
            packed = dict(zip(("tokens", "position", "cu_seqlens", "patch_id", "counts"), packed))
            packed = trimmed(packed)
            for name in ("cu_seqlens", "patch_id"):
                checks.check(f"{file}: {name}", packed[name].equal(other[name].long()), "not the file's")
            if "tokens" in other:
                checks.close(f"{file}: tokens", packed["tokens"], other["tokens"], SCORE_ERROR)
                checks.close(f"{file}: position", packed["position"], other["position"], POSITION_ERROR)
        differ = (got["sides"].reshape(want["sides"].shape) != want["sides"]).sum().item()
        print(f"{file}: {len(got['tokens'])} tokens, {differ} of {model.patches} patches have another side than in the file")
        packed = model.compress(planes, got["sides"].long().to(dev))
        checks.close(f"{file}: tokens of the whole", got["tokens"], packed[0][: len(got["tokens"])].cpu(), SCORE_ERROR)
        checks.check(f"{file}: offsets", got["cu_seqlens"][-1] == (got["sides"].long() ** 2).sum(), "not the squares' sum")
    # Ties of whole keys, budgets that end within a step, and none or all of the patches selected.
    torch.manual_seed(1)
    for case in range(200):
        h, w = (int(v) for v in torch.randint(1, 400, (2,)))
        patch, lo = int(torch.randint(8, 40, ())), int(torch.randint(1, 10, ()))
        hi, focus = lo + int(torch.randint(0, 14, ())), 0.05 + 0.9 * torch.rand(()).item()
        budget = lo * lo + int(torch.randint(0, 5000, ()))
        model = ImageToTokens(h, w, patch=patch, sides=(lo, hi), budget=budget, focus=focus).to(dev)
        levels = int(torch.randint(1, 30, ()))
        # Some of it so small that the rounding to 16 bits decides.
        relevance = torch.randint(0, levels + 1, (model.patches,)) / levels / 10 ** (case % 6)
        sides = model.allocate(relevance.to(dev)).cpu()
        same = sides.tolist() == greedy(relevance.tolist(), lo, hi, budget, model.gains.tolist())
        checks.check(f"allocation {case}: {model.patches} patches, {lo}..{hi}, budget {budget}, focus {focus}", same)
        # Packing, beside the definition: adaptive_avg_pool2d has the same cells.
        planes = torch.rand(13, h, w)
        packed = model.compress(planes.to(dev), sides.to(dev))
        want, gw = [], model.grid[1]
        for i in sides.nonzero().flatten().tolist():
            y, x = i // gw * patch, i % gw * patch
            cells = torch.nn.functional.adaptive_avg_pool2d(planes[:, y : y + patch, x : x + patch], int(sides[i]))
            want.append(cells.flatten(1).T)
        tokens, count = torch.cat(want), int(packed[4][0])
        checks.check(f"packing {case}: tokens", count == len(tokens), f"{count}, expected {len(tokens)}")
        checks.close(f"packing {case}", packed[0][:count].cpu(), tokens, SCORE_ERROR)
    print(f"{checks.count - checks.failures} of {checks.count} checks passed on {dev}")
    return checks.failures == 0


if __name__ == "__main__":
    with torch.inference_mode():
        if args.self_test: sys.exit(0 if self_test(args.self_test) else 1)
        measure()
