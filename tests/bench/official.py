#!/usr/bin/env python3
"""The peer of `make bench`: the official SnapKV sequence of operations in PyTorch, on one thread.

    OPENBLAS_NUM_THREADS=1 python3 tests/bench/official.py          medians in ms, 8 heads
    OPENBLAS_NUM_THREADS=1 python3 tests/bench/official.py --serve  answers the bench's requests

Per layer, as update_kv of the official code does it: matmul of the last W queries with K^T, causal
mask on the window, softmax in float32, sum of the prefix columns over the window, avg_pool1d, topk,
gather of K and V, cat with the window. The number of K/V heads equals that of the query heads, so
there is nothing to expand. Inputs are those of tests/bench/bench.c, value for value.

--serve reads requests from standard input, one a line, and answers each with one line:
    shape HEADS LENGTH DIM WINDOW CAPACITY KERNEL   ok
    run                                             seconds of one update (--cpu-time: of the thread)
    kept HEAD                                       the kept positions of the last update, ascending
"""
import math
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"SKIP PyTorch: {error} (Debian: python3-torch)", flush=True)
    sys.exit(77)

AMPLITUDE = 4.0  # Q and K are uniform in [-2, 2): their logits have a standard deviation of 4/3


def signed(x):
    """A 64-bit pattern as the int64 that holds it."""
    return x - (1 << 64) if x >> 63 else x


def random_rows(seed, rows, dim):
    """[rows, dim] floats in [-AMPLITUDE/2, AMPLITUDE/2): output i of splitmix64(seed), i from 1."""
    def shifted(z, bits):
        return (z >> bits) & ((1 << (64 - bits)) - 1)

    z = torch.arange(1, rows * dim + 1, dtype=torch.int64) * signed(0x9E3779B97F4A7C15) + seed
    z = (z ^ shifted(z, 30)) * signed(0xBF58476D1CE4E5B9)
    z = (z ^ shifted(z, 27)) * signed(0x94D049BB133111EB)
    z = z ^ shifted(z, 31)
    return ((shifted(z, 40).float() * 2.0**-24 - 0.5) * AMPLITUDE).view(rows, dim)


def make_inputs(heads, length, dim, window):
    """Q of the window and K, V of the prompt, [1, heads, rows, dim]; the seeds are the bench's."""
    queries = torch.stack([random_rows(2000 + h, window, dim) for h in range(heads)])
    keys = torch.stack([random_rows(1000 + h, length, dim) for h in range(heads)])
    return queries.unsqueeze(0), keys.unsqueeze(0), -keys.unsqueeze(0)


def update(queries, keys, values, window, capacity, kernel):
    """Returns the compressed K and V, and the kept prefix positions by falling score."""
    dim = keys.shape[-1]
    weights = torch.matmul(queries, keys.transpose(2, 3)) / math.sqrt(dim)
    mask = torch.full((window, window), torch.finfo(weights.dtype).min)
    weights[..., -window:] += torch.triu(mask, diagonal=1)
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(queries.dtype)
    votes = weights[..., :-window].sum(dim=-2)
    scores = F.avg_pool1d(votes, kernel_size=kernel, padding=kernel // 2, stride=1)
    indices = scores.topk(capacity - window, dim=-1).indices
    rows = indices.unsqueeze(-1).expand(-1, -1, -1, dim)
    small_keys = torch.cat([keys[:, :, :-window].gather(2, rows), keys[:, :, -window:]], dim=2)
    small_values = torch.cat([values[:, :, :-window].gather(2, rows), values[:, :, -window:]], dim=2)
    return small_keys, small_values, indices


def blas_name():
    """Which BLAS matmul uses: with the reference one this peer is several times slower."""
    try:
        with open("/proc/self/maps") as maps:
            files = {line.split("/")[-1].strip() for line in maps if "blas" in line}
    except OSError:
        return "BLAS unknown"
    if any("openblas" in name for name in files):
        return "OpenBLAS"
    return " ".join(sorted(files)) + " (not OpenBLAS)" if files else "built-in BLAS"


def serve():
    print(f"ready PyTorch {torch.__version__}, {blas_name()}, one thread", flush=True)
    clock = time.thread_time if "--cpu-time" in sys.argv else time.perf_counter
    inputs, policy, indices = None, None, None
    for line in sys.stdin:
        words = line.split()
        if words[0] == "shape":
            heads, length, dim, window, capacity, kernel = map(int, words[1:])
            inputs = make_inputs(heads, length, dim, window)
            policy = (window, capacity, kernel)
            print("ok", flush=True)
        elif words[0] == "run":
            start = clock()
            indices = update(*inputs, *policy)[2]
            print(clock() - start, flush=True)
        elif words[0] == "kept":
            print(*sorted(indices[0, int(words[1])].tolist()), flush=True)


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if "--serve" in sys.argv:
        serve()
        return
    print(f"PyTorch {torch.__version__}, {blas_name()}, one thread, 8 heads, W 32, C 1024, D 128")
    for length in (4096, 16384, 65536):
        inputs = make_inputs(8, length, 128, 32)
        times = []
        for _ in range(9):
            start = time.perf_counter()
            update(*inputs, 32, 1024, 5)
            times.append(time.perf_counter() - start)
        print(f"L {length:6}  {statistics.median(times[1:]) * 1e3:8.2f} ms")


if __name__ == "__main__":
    main()
