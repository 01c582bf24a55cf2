"""PyTorch's DistributedDataParallel on the MLPs of the bench `mlp` (thalweg-train).

  torchrun --nproc-per-node 2 torch_ddp.py [--reference FOLDER] [--only-reference]

Prints the bus bandwidth of all-reduce by size, and the time of a step without all-reduce, with it after the backward pass,
and as DDP, the model as written and compiled (`torch.compile`, which splits the backward pass at DDP's buckets). Rounds of
the last four take turns; their times are medians, with quartiles. With --reference it first writes, for each size, the
weights (bf16, in the order of the bench: of each layer the norm, both biases, both matrices), the input, and the losses of
10 steps whose optimizer keeps its weights in f32.
NCCL's multicast stays off.
"""
import copy, os, sys, time, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
os.environ.setdefault('NCCL_NVLS_ENABLE', '0')
rank = int(os.environ['RANK']); n = int(os.environ['WORLD_SIZE']); torch.cuda.set_device(rank); dist.init_process_group('nccl')
folder = sys.argv[sys.argv.index('--reference') + 1] if '--reference' in sys.argv else None
def say(*a):
    if rank == 0: print(*a, flush=True)
def wall(f, k=15, warm=3):
    for _ in range(warm): f()
    t = []
    for _ in range(k):
        torch.cuda.synchronize(); dist.barrier(); torch.cuda.synchronize(); s = time.perf_counter(); f(); torch.cuda.synchronize(); t.append(time.perf_counter() - s)
    return sorted(t)[k // 2]
def turns(forms, k=21, warm=5):
    for f in forms:
        for _ in range(warm): f()
    t = [[] for _ in forms]
    for _ in range(k):
        for f, own in zip(forms, t):
            torch.cuda.synchronize(); dist.barrier(); torch.cuda.synchronize(); s = time.perf_counter(); f(); torch.cuda.synchronize(); own.append(time.perf_counter() - s)
    return [sorted(own) for own in t]
def text(t): return f'{t[len(t) // 2]*1e3:.2f} [{t[len(t) // 4]*1e3:.2f}, {t[3 * len(t) // 4]*1e3:.2f}]'
class Mlp(nn.Module):
    def __init__(s, d, layers):
        super().__init__(); s.l = nn.ModuleList([nn.ModuleList([nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)]) for _ in range(layers)])
    def forward(s, x):
        for n, a, b in s.l: x = x + b(F.gelu(a(n(x)), approximate='tanh'))
        return x
def save(x, name): x.detach().contiguous().view(torch.int16).cpu().numpy().tofile(os.path.join(folder, name))
def reference(m, x, name):
    parts = []
    for ln, a, b in m.l: parts += [ln.weight, ln.bias, a.bias, b.bias, a.weight, b.weight]
    save(torch.cat([p.reshape(-1) for p in parts]), name + '.weights'); save(x, name + '.input')
    wide = [p.detach().float() for p in m.parameters()]
    opt = torch.optim.AdamW(wide, lr=1e-4, fused=True)
    losses = []
    for _ in range(10):
        m.zero_grad(); loss = m(x).float().square().mean(); loss.backward(); losses.append(loss.item())
        for w, p in zip(wide, m.parameters()): w.grad = p.grad.float()
        opt.step()
        for w, p in zip(wide, m.parameters()): p.data.copy_(w)
    with open(os.path.join(folder, name + '.losses'), 'w') as f: f.write(' '.join(repr(v) for v in losses))
say(torch.cuda.get_device_name(), torch.__version__, 'nccl', torch.cuda.nccl.version(), 'ranks', n)
sizes = ((1024, 12, 4096), (1024, 12, 16384), (2048, 12, 8192))
if folder and rank == 0:
    os.makedirs(folder, exist_ok=True)
    for d, layers, tokens in sizes:
        torch.manual_seed(0); m = Mlp(d, layers).cuda().bfloat16(); x = torch.randn(tokens, d, device='cuda', dtype=torch.bfloat16)
        reference(m, x, f'{d}_{tokens}')
dist.barrier()
if '--only-reference' in sys.argv: dist.destroy_process_group(); sys.exit()
for mb in (1, 4, 25, 100, 400, 1024):
    x = torch.randn(mb * 2**18, device='cuda'); t = wall(lambda: [dist.all_reduce(x) for _ in range(10)]) / 10
    say(f'all-reduce {mb} MiB: {t*1e6:.0f} us, bus {2*(n-1)/n*mb*2**20/t/1e9:.1f} GB/s')
for d, layers, tokens in sizes:
    torch.manual_seed(0); m = Mlp(d, layers).cuda().bfloat16(); x = torch.randn(tokens, d, device='cuda', dtype=torch.bfloat16)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True)
    def none(): opt.zero_grad(); m(x).square().mean().backward(); opt.step()
    def after():
        opt.zero_grad(); m(x).square().mean().backward()
        for p in m.parameters(): dist.all_reduce(p.grad)
        opt.step()
    a, b = wall(none), wall(after)
    g = sum(p.numel() for p in m.parameters()) * 2
    flat = torch.zeros(g // 2, device='cuda', dtype=torch.bfloat16); c = wall(lambda: dist.all_reduce(flat))
    def step(ranks, quick):
        own = copy.deepcopy(m); model = nn.parallel.DistributedDataParallel(own, device_ids=[rank], gradient_as_bucket_view=True) if ranks else own
        model = torch.compile(model) if quick else model; opt = torch.optim.AdamW(own.parameters(), lr=1e-4, fused=True)
        def f(): opt.zero_grad(); model(x).square().mean().backward(); opt.step()
        return f
    own, eager, alone, compiled = turns([step(*form) for form in ((0, 0), (1, 0), (0, 1), (1, 1))])
    say(f'mlp d={d} layers={layers} tokens={tokens}, by turns, ms: alone {text(own)}, DDP {text(eager)}; compiled: alone {text(alone)}, DDP {text(compiled)}')
    e = eager[len(eager) // 2]
    say(f'mlp d={d} layers={layers} tokens={tokens} grads={g/2**20:.0f} MiB: alone {a*1e3:.2f} ms, reduce after {b*1e3:.2f}, DDP {e*1e3:.2f}, all-reduce alone {c*1e3:.2f}; gain {b/e:.3f}, exposed {(e-a)/c*100:.0f} %')
dist.destroy_process_group()
