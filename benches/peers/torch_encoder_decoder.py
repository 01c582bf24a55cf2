#!/usr/bin/env python3
"""A frozen encoder in front of a model that learns, in PyTorch: the work of the example `encoder_decoder` of thalweg-train.

usage: torch_encoder_decoder.py [--batch 8,32,128] [--forms eager,graphs,compiled]

The encoder has the shape of ViT-B (224 x 224, bf16), the model 4 blocks and 1000 classes. Each form runs on one stream,
and with the encoder on a stream of its own. `graphs` captures both halves; `compiled` is torch.compile, captured too. Rates
are the median of five runs by the host's clock, after a wait for the device.
"""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, HEADS, DEPTH, LEARNING, PATCH, SIDE, CLASSES = 768, 12, 12, 4, 16, 224, 1000
STEPS = {8: 24, 32: 12, 128: 8}


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


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])

    def forward(self, x):
        return self.blocks(self.patches(x).flatten(2).transpose(1, 2))


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(LEARNING)])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(x).mean(1))


def rate(run, steps):
    """Steps in a second: the median of five runs, after one that is not timed."""
    times = []
    for n in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(steps)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return steps / sorted(times[1:])[2]


def eager(batch):
    torch.manual_seed(0)
    encoder = Encoder().cuda().bfloat16().eval().requires_grad_(False)
    learner = Learner().cuda().bfloat16()
    optimizer = torch.optim.AdamW(learner.parameters(), fused=True)
    images = [torch.randn(batch, 3, SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    labels = [torch.randint(0, CLASSES, (batch,), device="cuda") for _ in range(4)]

    def train(features, labels):
        optimizer.zero_grad()
        F.cross_entropy(learner(features).float(), labels).backward()
        optimizer.step()

    def one(steps):
        for n in range(steps):
            with torch.no_grad():
                features = encoder(images[n % 4])
            train(features, labels[n % 4])

    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    def two(steps):
        for n in range(steps):
            with torch.cuda.stream(first), torch.no_grad():
                features = encoder(images[n % 4])
                done = torch.cuda.Event()
                done.record()
            with torch.cuda.stream(second):
                second.wait_event(done)
                features.record_stream(second)
                train(features, labels[n % 4])

    return one, two


def graphs(batch, wrap=lambda module: module):
    torch.manual_seed(0)
    encoder = Encoder().cuda().bfloat16().eval().requires_grad_(False)
    learner = Learner().cuda().bfloat16()
    optimizer = torch.optim.AdamW(learner.parameters(), fused=True, capturable=True)
    images = [torch.randn(batch, 3, SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    labels = [torch.randint(0, CLASSES, (batch,), device="cuda") for _ in range(4)]
    encode, learn = wrap(encoder), wrap(learner)
    image, label, features, seen = images[0].clone(), labels[0].clone(), None, None

    def train():
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(learn(seen).float(), label).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            with torch.no_grad():
                features = encode(image)
            seen = features.clone() if seen is None else seen
            train()
    torch.cuda.synchronize()
    encoding, training = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(encoding), torch.no_grad():
        features = encode(image)
    with torch.cuda.graph(training):
        train()

    def one(steps):
        for n in range(steps):
            image.copy_(images[n % 4])
            encoding.replay()
            seen.copy_(features)
            label.copy_(labels[n % 4])
            training.replay()

    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    def two(steps):
        taken = None
        for n in range(steps):
            with torch.cuda.stream(first):
                image.copy_(images[n % 4])
                if taken is not None:
                    first.wait_event(taken)
                encoding.replay()
                done = torch.cuda.Event()
                done.record()
            with torch.cuda.stream(second):
                second.wait_event(done)
                seen.copy_(features)
                taken = torch.cuda.Event()
                taken.record()
                label.copy_(labels[n % 4])
                training.replay()

    return one, two


def compiled(batch):
    torch._dynamo.reset()
    return graphs(batch, lambda module: torch.compile(module, dynamic=False))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", default="8,32,128")
    parser.add_argument("--forms", default="eager,graphs,compiled")
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}", flush=True)
    for form in given.forms.split(","):
        for batch in map(int, given.batch.split(",")):
            one, two = {"eager": eager, "graphs": graphs, "compiled": compiled}[form](batch)
            steps = STEPS.get(batch, 12)
            one, two = rate(one, steps), rate(two, steps)
            print(f"{form:8}, batch {batch:4}: one stream {one:7.1f}, two streams {two:7.1f} steps/s; gain {two / one:.3f}", flush=True)


if __name__ == "__main__":
    main()
