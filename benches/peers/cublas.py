"""Products of matrices by cuBLAS, in the form of `cargo bench --bench products` and timed in the same way.

Needs a CUDA GPU and PyTorch 2.x. Ten products follow one another between two events, after a rest of 4 ms; the median of
eleven. TF32 is off. cuBLAS gets no epilogue.

    python3 benches/peers/cublas.py
"""
import statistics, time, torch

SIZES = ((4096, 4096, 4096), (8192, 3072, 768), (8192, 768, 3072), (3152, 2304, 768))
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    every = ("nt", "nn", "tn")
    for kind, out, forms in (
        (torch.bfloat16, torch.bfloat16, every),
        (torch.bfloat16, torch.float32, ("nt",)),
        (torch.float16, torch.float16, ("nt",)),
        (torch.float32, torch.float32, every),
    ):
        for m, n, k in SIZES:
            for form in forms:
                us = measure(kind, out, form, m, n, k)
                print(f"  {NAMES[kind] + ' to ' + NAMES[out]:12} {m:>5} {n:>5} {k:>5} {form} {'':15} {us:>9.1f} us {2e-3 * m * n * k / us:>9.1f} GFLOP/s", flush=True)


def measure(kind, out, form, m, n, k):
    random = lambda *shape: torch.rand(shape, device="cuda").mul_(2).sub_(1).to(kind)
    a = random(k, m).T if form == "tn" else random(m, k)
    b = random(n, k).T if form == "nt" else random(k, n)
    c = torch.empty((m, n), device="cuda", dtype=out)
    run = (lambda: torch.mm(a, b, out=c)) if kind == out else (lambda: torch.mm(a, b, out_dtype=out))
    times = []
    for _ in range(11):
        torch.cuda.synchronize()
        time.sleep(0.004)
        run()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(10):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 100)
    return statistics.median(times)


main()
