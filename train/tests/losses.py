"""Trains the token transformer of docs/training.md in PyTorch, in f64, and writes the losses of 60 steps.

usage: pip install torch numpy; python3 train/tests/losses.py train/tests/golden

It reads small/weights.safetensors, draws eight batches, and writes them with the losses to torch/losses.safetensors. The
optimizer is torch.optim.AdamW, the gradient is clipped by clip_grad_norm_, and the rate rises for 5 steps and then falls
along half a cosine. The test `losses_are_those_of_pytorch` takes the same steps.
"""
import json
import math
import os
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

STEPS, WARM_UP, RATE, DECAY, CLIP, BATCHES, SEQUENCES = 60, 5, 2e-3, 0.05, 0.5, 8, 6
TYPES = {"F32": "<f4", "I32": "<i4"}
folder = sys.argv[1]


def load(path):
    """The tensors and the metadata of a safetensors file."""
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    read = lambda t: np.frombuffer(data[8 + size :][slice(*t["data_offsets"])], TYPES[t["dtype"]]).reshape(t["shape"])
    return {k: read(t) for k, t in header.items() if k != "__metadata__"}, header["__metadata__"]


def save(tensors, path, metadata):
    header, parts, end = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        kind = next(kind for kind, letters in TYPES.items() if tensor.dtype == letters)
        parts.append(tensor.tobytes())
        header[name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": [end, end := end + len(parts[-1])]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + b"".join(parts))


weights, metadata = load(f"{folder}/small/weights.safetensors")
heads, depth = int(metadata["heads"]), int(metadata["depth"])
w = {k: torch.nn.Parameter(torch.from_numpy(v.copy()).double()) for k, v in weights.items()}
width, inputs = w["embed.weight"].shape
classes = w["head.weight"].shape[0]


def linear(x, name):
    return F.linear(x, w[name + ".weight"], w[name + ".bias"])


def norm(x, name):
    return F.layer_norm(x, (width,), w[name + ".weight"], w[name + ".bias"], 1e-5)


def attention(x, name, ends):
    q, k, v = linear(x, name + ".qkv").view(-1, 3, heads, width // heads).permute(1, 2, 0, 3)
    rows = [F.scaled_dot_product_attention(q[:, a:b], k[:, a:b], v[:, a:b]) for a, b in zip(ends, ends[1:])]
    return linear(torch.cat(rows, 1).transpose(0, 1).reshape(-1, width), name + ".proj")


def logits(tokens, position, ends):
    x = linear(tokens, "embed") + F.linear(position, w["position.weight"])
    for i in range(depth):
        block = f"blocks.{i}."
        x = x + attention(norm(x, block + "norm1"), block + "attn", ends)
        x = x + linear(F.gelu(linear(norm(x, block + "norm2"), block + "mlp.fc1"), approximate="tanh"), block + "mlp.fc2")
    x = norm(x, "norm")
    return linear(torch.stack([x[a:b].mean(0) for a, b in zip(ends, ends[1:])]), "head")


random = np.random.default_rng(12)
centers = random.normal(size=(classes, inputs))  # so that there is something to learn
file, batches = {}, []
for n in range(BATCHES):
    lengths = random.integers(1, 12, SEQUENCES)
    ends = np.cumsum([0, *lengths]).astype("i4")
    labels = random.integers(0, classes, SEQUENCES).astype("i4")
    tokens = (centers[np.repeat(labels, lengths)] + random.normal(size=(ends[-1], inputs))).astype("f4")
    position = random.random((ends[-1], 2)).astype("f4")
    file |= {f"{n}.tokens": tokens, f"{n}.position": position, f"{n}.cu_seqlens": ends, f"{n}.labels": labels}
    batches.append([torch.from_numpy(tokens).double(), torch.from_numpy(position).double(), ends, torch.from_numpy(labels).long()])

optimizer = torch.optim.AdamW(w.values(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=DECAY)
fall = lambda step: 0.5 * (1 + math.cos(math.pi * min((step - WARM_UP) / (STEPS - WARM_UP), 1)))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / WARM_UP if step < WARM_UP else fall(step))
losses = []
for step in range(STEPS):
    tokens, position, ends, labels = batches[step % BATCHES]
    optimizer.zero_grad()
    loss = F.cross_entropy(logits(tokens, position, ends), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(w.values(), CLIP)
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
file["losses"] = np.array(losses, "f4")
os.makedirs(f"{folder}/torch", exist_ok=True)
settings = dict(steps=STEPS, warm_up=WARM_UP, rate=RATE, weight_decay=DECAY, clip=CLIP, batches=BATCHES)
save(file, f"{folder}/torch/losses.safetensors", {k: str(v) for k, v in settings.items()} | {"torch": torch.__version__})
print(" ".join(f"{loss:.4f}" for loss in losses))
