"""Times a training step of a vision-language model in PyTorch, compiled with CUDA graphs: the mathematics of
`cargo bench -p thalweg-train --bench step -- answers`, which is that of docs/training.md.

usage: torch_answers.py [--autotune] [IMAGES TOKENS ASK ANSWER WIDTH DEPTH TEXT_DEPTH]

Weights are f32 and products bf16, by autocast. An image row sees the rows of its image, and a text row these and the text up
to itself. The optimizer is fused AdamW. Each number is the best of five times ten steps. `--autotune` compiles for minutes.
"""
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

IDS = 32_000
autotune = "--autotune" in sys.argv
shape = [int(word) for word in sys.argv[1:] if word != "--autotune"] or [64, 196, 32, 32, 768, 12, 6]
images, tokens, asked, said, width, depth, text_depth = shape
texts = asked + said
torch.manual_seed(1)
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mask = mask

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, n, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        place = torch.arange(tokens + texts, device="cuda")
        mask = (place[None, :] < tokens) | (place[None, :] <= place[:, None])
        self.embed, self.position = nn.Linear(min(768, width), width), nn.Linear(2, width, bias=False)
        self.encoder = nn.Sequential(*[Block(None) for _ in range(depth)], nn.LayerNorm(width))
        self.projector = nn.Linear(width, width)
        self.tok, self.pos = nn.Embedding(IDS, width), nn.Embedding(texts, width)
        self.decoder = nn.Sequential(*[Block(mask) for _ in range(text_depth)], nn.LayerNorm(width))
        nn.init.normal_(self.tok.weight, std=width**-0.5)

    def forward(self, x, position, ids):
        image = self.projector(self.encoder(self.embed(x) + self.position(position)))
        text = self.tok(ids) + self.pos.weight
        rows = self.decoder(torch.cat([image.float(), text], 1))[:, tokens + asked - 1 : -1]
        logits = F.linear(rows, self.tok.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, asked:].flatten())


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True, capturable=True)
x = torch.rand(images, tokens, min(768, width), device="cuda")
position = torch.rand(images, tokens, 2, device="cuda")
ids = torch.randint(1, IDS, (images, texts), device="cuda")
ids[:, -1] = 0


@torch.compile(dynamic=False, mode="max-autotune-no-cudagraphs" if autotune else None)
def loss_of(x, position, ids):
    with torch.autocast("cuda", torch.bfloat16):
        return model(x, position, ids)


def work():
    optimizer.zero_grad(set_to_none=True)  # the gradients are then written and not added to
    loss = loss_of(x, position, ids)
    loss.backward()
    optimizer.step()
    return loss.detach()


beside = torch.cuda.Stream()
beside.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(beside):
    start = work().item()
    work()
torch.cuda.current_stream().wait_stream(beside)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = work()


def step():
    graph.replay()
    return loss


print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; {shape}")
for _ in range(10):
    step()
best = float("inf")
for _ in range(5):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        last = step()
    torch.cuda.synchronize()
    best = min(best, (time.perf_counter() - begin) / 10)
assert last.item() < start, f"the loss falls from {start}, and not to {last.item()}"
print(f"bf16, compiled{' with max-autotune' * autotune}, the step in a graph {best * 1e3:9.2f} ms a step, {images / best:9.0f} images/s")
