"""The same computations in PyTorch on the GPU, for `make bench-gpu`. Each function gives (what it is, seconds)."""

import math
import statistics
import time

import torch


def between_events(body):
    """The device's seconds for what body() queues."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    body()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def seconds_of(body):
    """Median over replays of a CUDA graph that repeats body() until it takes two milliseconds, with a rest after each: as
    moe64 is timed."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            body()
        times = min(500, math.ceil(2e-3 / between_events(body)))
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(times):
            body()
    graph.replay()
    found = []
    for _ in range(20):
        found.append(between_events(graph.replay))
        time.sleep(found[-1])
    return statistics.median(found) / times


def numbers(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def dequantize(rows, cols):
    codes = numbers(rows, cols).to(torch.float8_e4m3fn)
    scales = torch.rand(rows // 128, cols // 128, device="cuda")

    @torch.compile
    def product():
        blocks = codes.view(rows // 128, 128, cols // 128, 128).float() * scales[:, None, :, None]
        return blocks.to(torch.bfloat16).view(rows, cols)

    return "torch.compile", seconds_of(product)


def slots(tokens, top_k):
    return torch.randperm(tokens * top_k, device="cuda")


def gather(tokens, hidden, top_k):
    x, token_of_row = numbers(tokens, hidden), slots(tokens, top_k) // top_k
    return "torch index_select", seconds_of(lambda: x.index_select(0, token_of_row))


def combine(tokens, hidden, top_k):
    rows, row_of_slot = numbers(tokens * top_k, hidden), slots(tokens, top_k)
    weights = torch.rand(tokens, top_k, device="cuda")

    @torch.compile
    def weighted_sum():
        taken = rows[row_of_slot].view(tokens, top_k, hidden)
        return (taken.float() * weights[:, :, None]).sum(1).to(torch.bfloat16)

    return "torch.compile", seconds_of(weighted_sum)


def activate(rows, inter):
    fused = numbers(rows, 2 * inter)

    @torch.compile
    def silu_glu():
        gate, up = fused[:, :inter].float(), fused[:, inter:].float()
        return (torch.nn.functional.silu(gate) * up).to(torch.bfloat16)

    return "torch.compile", seconds_of(silu_glu)


def grouped_gemm(tokens, experts, top_k, hidden, inter):
    rows = tokens * top_k
    x, weights = numbers(rows, hidden), numbers(experts, 2 * inter, hidden)
    ends = torch.randint(0, experts, (rows,), device="cuda").bincount(minlength=experts).cumsum(0).to(torch.int32)
    return "torch._grouped_mm", seconds_of(lambda: torch._grouped_mm(x, weights.transpose(-2, -1), offs=ends))
