"""Training on adaptive tokens: attention within each patch of tokens, by `cu_seqlens`.

    python tokens.py [--steps 30]

Each image has a disk of a random color in its left or its right half, and the network learns in which. On a GPU
with `torch.nn.attention.varlen` the attention is `varlen_attn`; else it is plain attention over the
sequences that `cu_seqlens` names.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn

import thalweg.torch

HEADS, WIDTH = 2, 32


def varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu: torch.Tensor, most: int) -> torch.Tensor:
    """Attention of [T, heads, width] within the sequences that begin at `cu`."""
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        half = torch.bfloat16
        out: Any = varlen_attn(q.to(half), k.to(half), v.to(half), cu, cu, most, most)
        return torch.as_tensor(out).to(q.dtype)
    rows = torch.arange(len(q), device=q.device)
    # Rows past T are of no sequence. They see themselves, and nobody sees them.
    sequence = torch.searchsorted(cu.to(torch.int64), rows, right=True)
    mask = (sequence[:, None] == sequence[None, :]) & (rows[None, :] < cu[-1]) | torch.eye(len(q), dtype=torch.bool)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(13 + 2, HEADS * WIDTH)
        self.qkv = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.leave = nn.Linear(HEADS * WIDTH, 2)

    def forward(self, batch: thalweg.torch.TokenBatch) -> torch.Tensor:
        tokens, cu_seqlens, most = batch
        x = self.enter(torch.cat([tokens, batch.position], 1)).relu()
        q, k, v = self.qkv(x).view(-1, 3, HEADS, WIDTH).unbind(1)
        x = x + varlen(q, k, v, cu_seqlens, most).flatten(1)
        # The mean over the tokens of each image; rows past T count nowhere.
        images = len(batch.image_cu_seqlens) - 1
        rows = torch.arange(len(x), device=x.device, dtype=torch.int32)
        image = torch.searchsorted(batch.image_cu_seqlens, rows, right=True) - 1
        sums = x.new_zeros(images + 1, x.shape[1]).index_add(0, image.clamp(max=images), x)[:images]
        counts = batch.image_cu_seqlens.diff().clamp(min=1)[:, None]
        result: torch.Tensor = self.leave(sums / counts)
        return result


def shapes(count: int, random: np.random.Generator) -> tuple[list[Any], torch.Tensor]:
    y, x = np.mgrid[0:96, 0:96] - 48
    images, labels = [], []
    for _ in range(count):
        label, radius = int(random.integers(2)), random.integers(10, 22)
        inside = (x - (24 if label else -24)) ** 2 + y**2 < radius**2
        colors = random.integers(0, 256, (2, 3))
        images.append(np.where(inside[..., None], colors[0], colors[1]).astype(np.uint8))
        labels.append(label)
    return images, torch.tensor(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    pipeline = thalweg.torch.Pipeline(patch=16, sides=(2, 4), budget=100)
    model = Network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        images, labels = shapes(16, random)
        loss = nn.functional.cross_entropy(model(pipeline(images)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
