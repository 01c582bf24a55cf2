"""The kernels of the family `linear` beside cuBLAS, in one process: TFLOP/s of both for the same operands.

Needs a CUDA GPU of compute capability 8.0 or newer, PyTorch 2.x and CuPy. It takes the checked-in PTX, or the file that it
is given, compares each result with a product in f64, and times both sides in turns: warm, with events, the median of
rounds over three sets of random operands. TF32 is off.

    python3 benches/peers/matmul.py [kernels-gpu/ptx/linear.ptx]
"""
import pathlib, statistics, sys

import cupy, numpy, torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = ((4096, 4096, 4096), (8192, 3072, 768), (8192, 768, 3072), (3152, 2304, 768))
FORMS = ("nt", "nn", "tn")
WIDE, ALIGNED = 32, 64  # as kernels-gpu/src/linear/epilogue.rs has them
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    text = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "kernels-gpu/ptx/linear.ptx")
    names = [line.split("(")[0].split()[-1] for line in text.read_text().splitlines() if line.startswith(".visible .entry")]
    module = cupy.RawModule(path=str(text))
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    print("M x N x K, types: form, TFLOP/s of those of cuBLAS (percent, relative error)")
    for m, n, k in SIZES:
        for kind, dtype in TYPES.items():
            for out in dict.fromkeys((dtype, torch.float32)):
                cells = []
                for form in FORMS:
                    name = next(name for name in names if name.startswith(f"{form}_{kind}__"))
                    cells.append(measure(module.get_function(name), stream, form, dtype, out, m, n, k))
                print(f"{m} x {n} x {k}, {str(dtype)[6:]} to {str(out)[6:]}: {'; '.join(cells)}", flush=True)


def measure(kernel, stream, form, dtype, out, m, n, k):
    random = lambda *shape: torch.randn(shape, device="cuda").to(dtype)
    a = [random(*((k, m) if form == "tn" else (m, k))) for _ in range(3)]
    b = [random(*((n, k) if form == "nt" else (k, n))) for _ in range(3)]
    c = [torch.empty((m, n), device="cuda", dtype=out) for _ in range(3)]
    threads, shared = (256, 4 * 2 * 2 * 128 * 20) if dtype == torch.float32 else (128, 2 * 3 * 2 * 128 * 32)
    flags = ALIGNED | (WIDE if out == torch.float32 else 0)
    u32, u64 = numpy.uint32, numpy.uint64
    extents = [u32(x) for x in (m, n, k, 1, a[0].shape[1], b[0].shape[1], n, 0, flags)] + [u64(0)] * 4
    grid = (-(-m // 128) * -(-n // 128), 1, 1)

    def ours(i):
        with stream:
            kernel(grid, (threads, 1, 1), (*extents, a[i].data_ptr(), b[i].data_ptr(), 0, 0, c[i].data_ptr()), shared_mem=shared)

    left = [x.T if form == "tn" else x for x in a]
    right = [x.T if form == "nt" else x for x in b]
    if dtype == out:
        theirs = lambda i: torch.mm(left[i], right[i], out=c[i])
    else:
        theirs = lambda i: torch.mm(left[i], right[i], out_dtype=out)
    ours(0)
    want = left[0].double() @ right[0].double()
    error = ((c[0].double() - want).norm() / want.norm()).item()
    assert error < {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 4e-3}[out], error
    times = [[], []]
    for round in range(3 + 30):
        for side, run in zip(times, (ours, theirs)):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run(round % 3)
            end.record()
            torch.cuda.synchronize()
            if round >= 3:
                side.append(start.elapsed_time(end))
    rates = [2e-9 * m * n * k / statistics.median(side) for side in times]
    return f"{form} {rates[0]:.0f} of {rates[1]:.0f} ({100 * rates[0] / rates[1]:.0f} %, error {error:.0e})"


main()
