"""What a user would run instead: the texture array, patch means and a three-stream pipeline in PyTorch.

Needs PyTorch 2.x, and a CUDA GPU unless --cpu is given. Prints a JSON object a line: facts about PyTorch, then a
measurement each, in the fields of benches/record/README.md. The roofline benchmark runs it; it also runs alone:

    python3 benches/peers/torch_baseline.py [--cpu] [--threads N] [--ordinal N] [--quick]
    ... --height H --width W --check RGB PLANES     planes of the raw image RGB, as raw f32, before anything is timed
"""
import argparse, json, statistics, time

import torch

arguments = argparse.ArgumentParser()
arguments.add_argument("--cpu", action="store_true")
arguments.add_argument("--ordinal", type=int, default=0, help="which GPU")
arguments.add_argument("--threads", type=int)
arguments.add_argument("--quick", action="store_true", help="small images, nothing compiled")
arguments.add_argument("--height", type=int)
arguments.add_argument("--width", type=int)
arguments.add_argument("--check", nargs=2, metavar=("RGB", "PLANES"))
args = arguments.parse_args()
dev = "cpu" if args.cpu else "cuda"
if not args.cpu: torch.cuda.set_device(args.ordinal)
if args.threads: torch.set_num_threads(args.threads)


def bench(f, n=30, warm=5):
    """Median microseconds."""
    v = []
    if args.cpu:
        f()
        for _ in range(3 if args.quick else 9): t = time.perf_counter(); f(); v.append((time.perf_counter() - t) * 1e6)
        return statistics.median(v)
    for _ in range(warm): f()
    torch.cuda.synchronize()
    for _ in range(n):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record(); f(); b.record(); b.synchronize(); v.append(a.elapsed_time(b) * 1e3)
    return statistics.median(v)


def row(section, name, by, size, us, nbytes, **more):
    fields = {"section": section, "name": name, "by": by, "size": size, "us": us, "bytes": nbytes, **more}
    print(json.dumps(fields), flush=True)


M = torch.tensor([[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]], device=dev)
WHITE = torch.tensor([0.95047, 1.0, 1.08883], device=dev)
KX = torch.tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1.0]], device=dev) / 8
K = torch.stack([KX, KX.t()])[:, None]


def textures(img):  # [H, W, 3] u8 on the device -> [13, H, W] f32
    x = img.permute(2, 0, 1).float() / 255
    lin = torch.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    xyz = torch.einsum("ij,jhw->ihw", M, lin) / WHITE[:, None, None]
    f = torch.where(xyz > 0.008856, xyz.clamp(min=1e-12) ** (1 / 3), 7.787 * xyz + 16 / 116)
    lab = torch.stack([(116 * f[1] - 16) / 100, (500 * (f[0] - f[1]) + 128) / 255, (200 * (f[1] - f[2]) + 128) / 255])
    g = 0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]
    p = torch.nn.functional.pad(g[None, None], (1, 1, 1, 1), mode="replicate")
    s = torch.nn.functional.conv2d(p, K)[0]
    win = torch.nn.functional.avg_pool2d(p, 3, 1)[0]
    var = (torch.nn.functional.avg_pool2d(p * p, 3, 1)[0] - win * win).clamp(min=0)
    H, W = g.shape
    Y, X = torch.meshgrid(torch.linspace(0, 1, H, device=dev), torch.linspace(0, 1, W, device=dev), indexing="ij")
    e = torch.hypot(Y - 0.5, X - 0.5) * 2**0.5
    return torch.cat([x, lab, s, torch.hypot(s[0], s[1])[None], Y[None], X[None], e[None], 2 * var.sqrt()], 0)


def features(img):  # the same, and the mean of each plane over patches of 32 x 32
    return torch.nn.functional.avg_pool2d(textures(img), 32, ceil_mode=True)


def pool(planes):
    return torch.nn.functional.adaptive_avg_pool2d(planes, (32, 32))


def versions():
    """Name, textures, features: eager, as torch.compile does by itself, and compiled for each shape anew."""
    yield "PyTorch eager", textures, features
    if args.quick: return
    yield "PyTorch compiled", torch.compile(textures), torch.compile(features)
    if not args.cpu:
        torch._dynamo.reset()
        yield "PyTorch compiled, static shapes", torch.compile(textures, dynamic=False), torch.compile(features, dynamic=False)


def frames(fn):
    """4K frames from page-locked memory, pooled textures back: upload, computation and download on a stream each."""
    n, h, w = 64, 2160, 3840
    host = [torch.randint(0, 256, (h, w, 3), dtype=torch.uint8).pin_memory() for _ in range(4)]
    outp = [torch.empty(13, 32, 32).pin_memory() for _ in range(4)]
    up, cp, dn = (torch.cuda.Stream() for _ in range(3))

    def run():
        for i in range(n):
            with torch.cuda.stream(up): d = host[i % 4].to(dev, non_blocking=True); eu = up.record_event()
            with torch.cuda.stream(cp): cp.wait_event(eu); d.record_stream(cp); o = pool(fn(d)); ec = cp.record_event()
            with torch.cuda.stream(dn): dn.wait_event(ec); o.record_stream(dn); outp[i % 4].copy_(o, non_blocking=True)
        torch.cuda.synchronize()

    run(); t = time.perf_counter(); run(); return (time.perf_counter() - t) * 1e6 / n, 3 * h * w


if __name__ == "__main__":
    print(json.dumps({"PyTorch": torch.__version__, "PyTorch threads": torch.get_num_threads()}), flush=True)
    if args.check:
        rgb = torch.frombuffer(bytearray(open(args.check[0], "rb").read()), dtype=torch.uint8)
        planes = textures(rgb.reshape(args.height, args.width, 3).to(dev)).contiguous().cpu()
        open(args.check[1], "wb").write(bytes(planes.untyped_storage()))
    sizes = [("1080p", 1080, 1920), ("4K", 2160, 3840), ("8K", 4320, 7680)]
    if args.cpu: sizes = sizes[:1]
    if args.quick: sizes = [("180p", 180, 320)]
    pipelines = []
    with torch.inference_mode():
        for by, f, g in versions():
            for size, h, w in sizes:
                im = torch.randint(0, 256, (h, w, 3), dtype=torch.uint8, device=dev)
                row("kernels", "textures", by, size, bench(lambda: f(im)), 55 * h * w, content="noise")
                if args.cpu or size == "4K":
                    row("kernels", "textures + features", by, size, bench(lambda: g(im)), 107 * h * w, content="noise")
            if not args.cpu and not args.quick and "static" not in by:
                us, nbytes = frames(f)
                row("pipeline", "pinned image to tokens, frames", f"{by}, three streams", "4K", us, nbytes, content="noise", images=1)
