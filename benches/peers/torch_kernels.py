"""What training does, in PyTorch: attention over sequences of different lengths, AdamW, layer norm, cross-entropy, augmentation.

`cargo bench -p thalweg-train --bench kernels` prints the same rows for this crate. Needs a CUDA GPU and PyTorch 2.11 or newer.
The augmentation is section 9 of docs/spec.md, all of it, for images of one size, compiled: the crop with its antialiased resize is
two products with a matrix of weights for each image. `--self-test FOLDER PHOTOS` compares it with the golden files in FOLDER.

    python3 benches/peers/torch_kernels.py [--self-test tests/golden/augment assets/photos]
"""
import argparse
import pathlib
import re
import statistics

import torch
import torch.nn.functional as F

MEAN, STD, LUMA = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), (0.299, 0.587, 0.114)
COLD = 160 << 20  # bytes that pass through the caches before a buffer has its next turn


def time(run, runs=15, warm=3):
    """The median milliseconds of `run`, which gets the number of its call."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(warm + runs + 1)]
    for i in range(warm + runs):
        marks[i].record()
        run(i)
    marks[-1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in list(zip(marks, marks[1:]))[warm:])


def sets(make, size):
    """So many tensors that none is in the caches at its next turn."""
    return [make() for _ in range(max(1, min(15, COLD // size)) + 1)]


def limited(name, size, run):
    """Times `run` beside a copy that reads and writes `size` bytes in all."""
    ms = time(run)
    a, b = ([torch.zeros(size // 2, dtype=torch.uint8, device="cuda") for _ in range(4)] for _ in range(2))
    copy = time(lambda i: b[i % 4].copy_(a[i % 4]))
    print(f"  {name:48} {1e3 * ms:10.1f} us {1e-6 * size / ms:8.1f} GB/s {100 * copy / ms:6.1f} % of a copy", flush=True)


def kernels():
    n = 1 << 27
    w = torch.nn.Parameter(torch.randn(n, device="cuda"))
    w.grad = torch.randn(n, device="cuda")
    optimizer = torch.optim.AdamW([w], lr=1e-3, weight_decay=0.05, fused=True)
    optimizer.step()
    limited(f"AdamW, fused, {n} weights", 28 * n, lambda i: optimizer.step())
    del w, optimizer

    rows, columns = 25216, 768
    x = sets(lambda: torch.randn(rows, columns, device="cuda"), 4 * rows * columns)
    weight, bias = torch.randn(columns, device="cuda"), torch.randn(columns, device="cuda")
    norm = lambda i: torch.native_layer_norm(x[i % len(x)], (columns,), weight, bias, 1e-5)
    limited(f"layer norm, f32, of {rows} x {columns}", 8 * rows * columns, norm)
    _, mean, root = norm(0)
    both = torch.ops.aten.native_layer_norm_backward
    limited(
        f"its gradients of {rows} x {columns}",
        12 * rows * columns,
        lambda i: both(x[(i + 1) % len(x)], x[i % len(x)], (columns,), mean, root, weight, bias, [True, True, True]),
    )
    del x

    rows, classes = 8192, 32000
    z, labels = torch.randn(rows, classes, device="cuda"), torch.randint(0, classes, (rows,), device="cuda")

    def loss_and_gradient(z, labels):
        logs = torch.log_softmax(z, -1)
        gradient = logs.exp()
        gradient = gradient - F.one_hot(labels, classes)
        return -logs.gather(1, labels[:, None]).mean(), gradient / rows

    compiled = torch.compile(loss_and_gradient)
    limited(f"cross-entropy, compiled, of {rows} x {classes}", 8 * rows * classes, lambda i: compiled(z, labels))


def attention():
    from torch.nn.attention.varlen import varlen_attn

    count, heads = 16, 12
    for t in (197, 1024, 4096):
        cu = torch.arange(0, count * t + 1, t, device="cuda", dtype=torch.int32)
        make = lambda: torch.randn(count * t, heads, 64, device="cuda", dtype=torch.bfloat16)
        q, k, v = (make().requires_grad_() for _ in range(3))
        gradient = make()

        def both(_):
            varlen_attn(q, k, v, cu, cu, t, t).backward(gradient)

        with torch.no_grad():
            one = time(lambda _: varlen_attn(q, k, v, cu, cu, t, t))
        two = time(both)
        work = 4e-9 * count * t * t * heads * 64
        print(
            f"  attention, {count} x {t}: forward {one:9.3f} ms {work / one:6.1f} TFLOP/s, "
            f"both {two:9.3f} ms {3.5 * work / two:6.1f} TFLOP/s",
            flush=True,
        )


def weights(start, length, n, out, flip):
    """The weights of the samples 0 .. n for each of `out` pixels, [B, out, n]: antialiased, bilinear, inside the crop."""
    i = torch.arange(out, device=start.device)
    i = torch.where(flip[:, None], out - 1 - i, i)
    scale = (length / out)[:, None]
    center, support = (i + 0.5) * scale, scale.clamp(min=1)
    j = torch.arange(n, device=start.device) - start[:, None]
    w = (1 - (j[:, None, :] + 0.5 - center[:, :, None]).abs() / support[:, :, None]).clamp(min=0)
    w = w * ((j >= 0) & (j < length[:, None]))[:, None, :]
    return w / w.sum(-1, keepdim=True)


def augment(images, crop, factors, size, normalize=True):
    """Augments uint8 [B, 3, H, W]: crop [B, 4] is top, left, height, width; factors [B, 6] as the golden files have them."""
    top, left, height, width = crop.float().unbind(1)
    flip, brightness, contrast, saturation, gray, sigma = factors.unbind(1)
    never = torch.zeros_like(flip, dtype=torch.bool)
    down = weights(top, height, images.shape[2], size, never)
    across = weights(left, width, images.shape[3], size, flip > 0)
    x = images.float() / 255
    x = torch.matmul(torch.matmul(down[:, None], x), across[:, None].transpose(-1, -2))
    each = lambda v: v[:, None, None, None]
    luma = torch.tensor(LUMA, device=x.device)[None, :, None, None]
    of = lambda x: (x * luma).sum(1, keepdim=True)
    x = (x * each(brightness)).clamp(0, 1)
    x = (each(contrast) * x + (1 - each(contrast)) * of(x).mean((2, 3), keepdim=True)).clamp(0, 1)
    x = (each(saturation) * x + (1 - each(saturation)) * of(x)).clamp(0, 1)
    x = torch.where(each(gray) > 0, of(x), x)
    taps = torch.arange(-3, 4, device=x.device)
    kernel = torch.exp(-(taps**2) / (2 * sigma.clamp(min=1e-3)[:, None] ** 2))
    kernel = torch.where(sigma[:, None] > 0, kernel, (taps == 0).float())
    kernel = kernel / kernel.sum(1, keepdim=True)
    rows = F.pad(x, (3, 3, 0, 0), mode="reflect")
    x = sum(each(kernel[:, k]) * rows[:, :, :, k : k + size] for k in range(7))
    columns = F.pad(x, (0, 0, 3, 3), mode="reflect")
    x = sum(each(kernel[:, k]) * columns[:, :, k : k + size] for k in range(7))
    if normalize:
        mean, std = (torch.tensor(v, device=x.device)[None, :, None, None] for v in (MEAN, STD))
        x = (x - mean) / std
    return x


def augmentation():
    torch.backends.cuda.matmul.allow_tf32 = False
    compiled = torch.compile(augment, dynamic=False)
    for batch in (64, 256):
        images = [torch.randint(0, 256, (batch, 3, 256, 256), dtype=torch.uint8, device="cuda") for _ in range(4)]
        u = torch.rand(batch, 10, device="cuda")
        area, ratio = 65536 * (0.08 + 0.92 * u[:, 0]), torch.exp((2 * u[:, 1] - 1) * 0.28768)
        width, height = ((area * r).sqrt().add(0.5).floor().clamp(max=256) for r in (ratio, 1 / ratio))
        top, left = ((v * (257 - n)).floor() for v, n in ((u[:, 2], height), (u[:, 3], width)))
        crop = torch.stack([top, left, height, width], 1)
        factors = [(u[:, 4] < 0.5).float(), *(0.6 + 0.8 * u[:, k] for k in (5, 6, 7)), (u[:, 8] < 0.1).float()]
        sigma = torch.where(u[:, 9] < 0.5, 0.1 + 3.8 * u[:, 9], 0)
        factors = torch.stack([*factors, sigma], 1)
        for name, run in (("eager", augment), ("compiled", compiled)):
            ms = time(lambda i: run(images[i % 4], crop, factors, 224))
            print(f"  augmentation, {name}, {batch} images: {ms:8.3f} ms, {1e3 * batch / ms:9.0f} images/s", flush=True)


def self_test(folder, photos):
    from safetensors.torch import load_file
    from torchvision.io import ImageReadMode, decode_image

    worst, files = 0, sorted(pathlib.Path(folder).glob("*.safetensors"))
    for path in files:
        name, size = re.fullmatch(r"(.*)-s\d+-e\d+-i\d+-(\d+)", path.stem).groups()
        photo = next(p for p in pathlib.Path(photos).iterdir() if p.stem == name)
        image = decode_image(str(photo), ImageReadMode.RGB).cuda()[None]
        golden = load_file(path)
        crop, factors = (golden[key].cuda().float()[None] for key in ("crop", "factors"))
        error = (augment(image, crop, factors, int(size))[0] - golden["image"].cuda()).abs().max().item()
        worst = max(worst, error)
    print(f"  augmentation: {len(files)} golden files, the largest error is {worst:.1e}")
    assert files and worst < 1e-4  # of normalized values, which are up to 4.5 times as large


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--self-test", nargs=2, metavar=("FOLDER", "PHOTOS"))
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    if options.self_test:
        self_test(*options.self_test)
    attention()
    kernels()
    augmentation()


main()
