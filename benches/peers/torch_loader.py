#!/usr/bin/env python3
"""Training from JPEG files in PyTorch behind its DataLoader: the work of the example `prefetch` of thalweg-train.

usage: torch_loader.py FOLDER [--workers 0,4,16] [--batch 32] [--steps 60] [--thalweg target/release/examples/prefetch]

Each step decodes (Pillow) and resizes photographs of FOLDER to 224 x 224, and trains a transformer of width 384 with 6
blocks on their patches, in bf16, with AdamW; it reads the loss. With 0 workers the loop itself decodes; the others are
processes, each two batches ahead. The first result checks that workers change no pixel. `--thalweg` runs our program on the
same files, in the same minutes, which also makes the files that the folder lacks. The busy share is the time between events
around the kernels of a step, divided by the time of all.
"""
import argparse
import glob
import os
import subprocess
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset

WIDTH, HEADS, DEPTH, PATCH, SIDE, CLASSES = 384, 6, 6, 16, 224, 4
MEAN, STD = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]


class Files(Dataset):
    """Photographs by number; the number goes on from the start behind the last one, as epochs do."""

    def __init__(self, paths, count):
        self.paths, self.count = paths, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        with Image.open(self.paths[i % len(self.paths)]) as image:
            small = image.convert("RGB").resize((SIDE, SIDE), Image.BILINEAR)  # with antialiasing
        pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(SIDE, SIDE, 3)
        return (pixels.permute(2, 0, 1).float() / 255 - MEAN) / STD, i % len(self.paths) % CLASSES


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        images, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(images, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.position = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(1))


def loader(paths, batch, steps, workers):
    more = {"prefetch_factor": 2, "persistent_workers": True} if workers else {}
    return DataLoader(Files(paths, batch * steps), batch, num_workers=workers, pin_memory=torch.cuda.is_available(), **more)


def train(paths, batch, steps, workers, device):
    """Steps in a second, the share of the time in which kernels ran, and the last loss."""
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
    warm, busy, loss = 4, 0.0, None
    for n, (images, labels) in enumerate(loader(paths, batch, warm + steps, workers)):
        if n == warm:
            busy, begin = 0.0, time.perf_counter()
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device == "cuda" else None
        if marks:
            marks[0].record()
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(images).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if marks:
            marks[1].record()
        loss = loss.item()  # waits
        if marks:
            marks[1].synchronize()
            busy += marks[0].elapsed_time(marks[1]) / 1e3
    took = time.perf_counter() - begin
    return steps / took, busy / took, loss


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--workers", default="0,4,16")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--thalweg", metavar="PROGRAM")
    args = parser.parse_args()
    if args.thalweg:
        command = [args.thalweg, "--files", args.folder, "--batch", str(args.batch), "--steps", str(args.steps)]
        subprocess.run(command, check=True)
    paths = sorted(glob.glob(os.path.join(args.folder, "*.jpg")))
    if not paths:
        raise SystemExit(f"{args.folder}: no *.jpg; the example `prefetch` makes some with --files {args.folder}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"PyTorch {torch.__version__}, {name}, {os.cpu_count()} cores, {len(paths)} files, {args.batch} a step")
    workers = [int(n) for n in args.workers.split(",")]
    alone = [images for images, _ in loader(paths, args.batch, 2, 0)]
    for n in workers:
        others = [images for images, _ in loader(paths, args.batch, 2, n)]
        assert all(torch.equal(a, b) for a, b in zip(alone, others, strict=True)), f"{n} workers: other pixels"
    print("workers change no pixel")
    losses = set()
    for n in workers:
        rate, busy, loss = train(paths, args.batch, args.steps, n, device)
        losses.add(f"{loss:.3f}")
        share = f", a step is under way {100 * busy:.1f} % of the time" if device == "cuda" else ""
        print(f"{n} workers: {rate:.1f} steps/s{share}; last loss {loss:.4f}", flush=True)
    print("the losses are equal to 3 places" if len(losses) == 1 else f"the losses differ: {sorted(losses)}")


if __name__ == "__main__":
    main()
