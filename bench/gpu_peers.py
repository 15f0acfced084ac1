"""The same computations in PyTorch on the GPU, for `make bench-gpu`. Each function gives (what it is, seconds)."""

import gc
import math
import statistics
import time
from types import SimpleNamespace

import torch

REPLAYS = 12


def between_events(body):
    """The device's seconds for what body() queues."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    body()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def median_seconds(body):
    """Median over runs of what body() queues, with a rest as long after each."""
    found = []
    for _ in range(REPLAYS):
        found.append(between_events(body))
        time.sleep(found[-1])
    return statistics.median(found)


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
    return median_seconds(graph.replay) / times


def give_memory_back():
    """What PyTorch keeps for later is missing to the other process."""
    gc.collect()
    torch.cuda.empty_cache()


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


def counts_of(rows, experts):
    """How many rows each expert has, uniform routing."""
    return torch.randint(0, experts, (rows,), device="cuda").bincount(minlength=experts)


def ends_of(rows, experts):
    """Where the rows of each expert end."""
    return counts_of(rows, experts).cumsum(0).to(torch.int32)


def codes(*shape):
    """Normal numbers as e4m3, made expert by expert: a whole stack as bf16 would be twice as large."""
    found = torch.empty(shape, device="cuda", dtype=torch.float8_e4m3fn)
    for part in found if len(shape) == 3 else [found]:
        part.copy_((100 * numbers(*part.shape)).clamp(-448, 448))
    return found


def grouped_mm(tokens, experts, top_k, outs, depth):
    x, weights = numbers(tokens * top_k, depth), numbers(experts, outs, depth)
    ends = ends_of(tokens * top_k, experts)
    return "torch._grouped_mm", seconds_of(lambda: torch._grouped_mm(x, weights.transpose(1, 2), offs=ends))


def scaled_grouped_mm(tokens, experts, top_k, outs, depth):
    """FP8 by FP8 with one scale per row: what PyTorch has; moe64 is compared with blocks of 128."""
    rows = tokens * top_k
    x, weights, ends = codes(rows, depth), codes(experts, outs, depth), ends_of(rows, experts)
    x_scales, weight_scales = torch.rand(rows, device="cuda"), torch.rand(experts, outs, device="cuda")
    return "torch._scaled_grouped_mm, row scales", seconds_of(
        lambda: torch._scaled_grouped_mm(x, weights.transpose(1, 2), x_scales, weight_scales, offs=ends,
                                         out_dtype=torch.bfloat16, use_fast_accum=True))


def deep_gemm(tokens, experts, top_k, outs, depth):
    """Where the package deep_gemm is installed: the same product, scales of 1 x 128 by 128 x 128. Rows of an expert begin at
    multiples of what it asks for, and scales of x lie as it reads them: making them so is not in its time."""
    import deep_gemm as library

    alignment = library.get_theoretical_mk_alignment_for_contiguous_layout()
    library.set_mk_alignment_for_contiguous_layout(alignment)
    counts = counts_of(tokens * top_k, experts)
    padded = (counts + alignment - 1) // alignment * alignment
    rows, ends = int(padded.sum()), (padded.cumsum(0) - padded + counts).to(torch.int32)
    x = codes(rows, depth), library.get_mn_major_tma_aligned_tensor(torch.rand(rows, depth // 128, device="cuda"))
    weights = codes(experts, outs, depth), torch.rand(experts, outs // 128, depth // 128, device="cuda")
    y = torch.empty(rows, outs, device="cuda", dtype=torch.bfloat16)
    return "DeepGEMM", seconds_of(
        lambda: library.m_grouped_fp8_gemm_nt_contiguous(x, weights, y, ends, use_psum_layout=True))


def dequantised_grouped_mm(tokens, experts, top_k, outs, depth):
    from lora_peer import dequantised

    x, ends = numbers(tokens * top_k, depth), ends_of(tokens * top_k, experts)
    stack = SimpleNamespace(values=codes(experts, outs, depth),
                            scales=torch.rand(experts, outs // 128, depth // 128, device="cuda"))
    return "Triton dequantise, torch._grouped_mm", seconds_of(
        lambda: torch._grouped_mm(x, dequantised(stack).transpose(1, 2), offs=ends))


def transformers(tokens, experts, top_k, hidden, inter):
    """What a user of Transformers gets: bf16, its own kernels, launched one by one."""
    from peers import make_experts

    with torch.device("cuda"), torch.inference_mode():
        module = make_experts(SimpleNamespace(peer="glm4_moe_lite", experts=experts, top_k=top_k, hidden=hidden,
                                              inter=inter))
        module.config._experts_implementation = "grouped_mm"
        x = numbers(tokens, hidden)
        weights, ids = torch.topk(torch.rand(tokens, experts), top_k, dim=-1)
        for _ in range(3):
            module(x, ids, weights.to(torch.bfloat16))
        return "Transformers, bf16 grouped_mm", median_seconds(lambda: module(x, ids, weights.to(torch.bfloat16)))
