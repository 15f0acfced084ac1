#!/usr/bin/env python3
"""FP8 LoRA training of one expert layer on a GPU, compared with the way without moe64: one run, one table.

    PYTHONPATH=python python3 bench/lora_training.py

The other way dequantises each stack to bf16 (a Triton kernel) in forward and again in backward, multiplies with
torch._grouped_mm, and has LoRA as two thin grouped GEMMs next to it. Both give the gradients of x, the routing weights
and the factors. Times are medians between CUDA events; added memory is the peak of PyTorch's allocator above what lay
there before the step. Writes bench/results/lora-NAME.md.
"""

import argparse
import pathlib
import statistics
import time

import torch

import moe64
from compare import commit
from lora_peer import Peer
from moe64.lora import _converted, factors_of
from report import slug

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {  # experts, top_k, hidden, inter
    "dsv3": ("DeepSeek-V3", 256, 8, 7168, 2048),
    "glm52": ("GLM-5.2", 256, 8, 6144, 2048),
    "flash": ("GLM-4.7-Flash", 64, 4, 2048, 1536),
    "tiny": ("tiny", 8, 2, 256, 128),
}


class Problem:
    """Codes, scales and factors of one layer, and a batch; random, the same for both ways."""

    def __init__(self, experts, top_k, hidden, inter, tokens, rank):
        torch.manual_seed(0)

        def codes(rows, cols):
            made = torch.randint(0, 256, (experts, rows, cols), dtype=torch.uint8, device="cuda")
            made = torch.where(made & 127 == 127, made - 1, made).view(torch.float8_e4m3fn)  # no NaN
            scales = torch.rand(experts, -(-rows // 128), -(-cols // 128), device="cuda") * 2e-4 + 1e-4
            return moe64.Quantized(made, scales, "block:128x128")

        def factor(*shape):
            return (torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02).requires_grad_()

        self.gate_up, self.down = codes(2 * inter, hidden), codes(hidden, inter)
        self.factors = [factor(experts, rank, hidden), factor(experts, 2 * inter, rank),
                        factor(experts, rank, inter), factor(experts, hidden, rank)]
        self.x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16).requires_grad_()
        self.ids = torch.rand(tokens, experts, device="cuda").topk(top_k).indices
        self.routing = torch.rand(tokens, top_k, device="cuda").requires_grad_()
        self.dy = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)

    def inputs(self, lora):
        return [self.x, self.routing, *(self.factors if lora else [])]

    def ours(self, scheme, lora=True, mode="auto"):
        a1, b1, a2, b2 = self.factors
        weights = moe64.ExpertWeights(self.gate_up, self.down, "silu_glu", scheme=scheme, mode=mode)
        if lora:
            weights = weights.with_lora(moe64.Lora(a1, b1, 2.0), moe64.Lora(a2, b2, 2.0))
        return lambda: moe64.experts(self.x, self.ids, self.routing, weights), weights

    def as_in_peft(self, scheme):
        """The step as PEFT's users have it: float32 factors in PEFT's layout. Answers its inputs too."""
        experts = self.down.values.shape[0]
        stored = []
        for a, b in (self.factors[:2], self.factors[2:]):
            stored += [a.detach().float().flatten(0, 1), b.detach().float().permute(1, 2, 0).flatten(1)]
        stored = [one.requires_grad_() for one in stored]

        def forward():
            made = [_converted(None, factors_of(a, b, experts, 2.0), torch.bfloat16) for a, b in (stored[:2], stored[2:])]
            weights = moe64.ExpertWeights(self.gate_up, self.down, "silu_glu", scheme=scheme).with_lora(*made)
            return moe64.experts(self.x, self.ids, self.routing, weights)
        return forward, [self.x, self.routing, *stored]

    def theirs(self, lora=True):
        return Peer(self.gate_up, self.down, self.factors if lora else None, 2.0).bind(self.x, self.ids, self.routing)


def measured(forward, inputs, dy, runs):
    """(seconds, added bytes at the peak) of a step; without inputs, of its forward half."""
    def step():
        y = forward()
        return torch.autograd.grad(y, inputs, dy) if inputs else y

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(found), torch.cuda.max_memory_allocated() - before


def distances(problem, ours, theirs):
    """How far results and gradients are from the other way's: the norm of the difference over the norm."""
    names = ("y", "dx", "d_weights", "dA1", "dB1", "dA2", "dB2")
    one, other = ((y, *torch.autograd.grad(y, problem.inputs(True), problem.dy)) for y in (ours(), theirs()))
    found = {name: ((a.float() - b.float()).norm() / b.float().norm()).item() for name, a, b in zip(names, one, other)}
    return ", ".join(f"{name} {value:.1e}" for name, value in found.items())


def rows_of(name, options):
    """Lines of the table for one model."""
    title, *shape = MODELS[name]
    problem = Problem(*shape, options.tokens, options.rank)

    def step(forward, inputs):
        return measured(forward, inputs, problem.dy, options.runs)

    with_lora, without = problem.inputs(True), problem.inputs(False)
    theirs = problem.theirs()
    peer, peer_bytes = step(theirs, with_lora)
    yield [title, "dequantise, grouped_mm", peer, peer_bytes, "", step(theirs, None)[0],
           step(problem.theirs(lora=False), without)[0], ""]
    modes = set()
    for scheme in ("dynamic", "unstated"):
        forward, weights = problem.ours(scheme)
        mode = moe64.explain(weights, "cuda")[0]
        if mode in modes:
            continue
        modes.add(mode)
        far = distances(problem, forward, theirs)
        seconds, added = step(forward, with_lora)
        yield [title, f"moe64, {mode}", seconds, added, f"{peer / seconds:.2f}x", step(forward, None)[0],
               step(problem.ours(scheme, lora=False, mode=mode)[0], without)[0], far]
    forward, inputs = problem.as_in_peft("dynamic")
    seconds, added = step(forward, inputs)
    yield [title, "moe64, float32 factors as PEFT has them", seconds, added, f"{peer / seconds:.2f}x",
           step(forward, None)[0], None, ""]


def line(row):
    title, way, seconds, added, ratio, alone, plain, _ = row
    return (f"| {title} | {way} | {1e3 * seconds:.2f} ms | {added / 2**30:.2f} GiB | {ratio} | {1e3 * alone:.2f} ms | "
            f"{'' if plain is None else f'{1e3 * plain:.2f} ms'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="dsv3,glm52,flash", help="some of " + ", ".join(MODELS))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--runs", type=int, default=7, help="steps of which the median counts (default 7)")
    parser.add_argument("--commit", default="", help="what to call the tree where it is no checkout")
    parser.add_argument("--output", type=pathlib.Path, help="default bench/results/lora-NAME.md")
    options = parser.parse_args()
    gpu = torch.cuda.get_device_name()
    path = options.output or HERE / "results" / f"lora-{slug(gpu)}.md"
    lines = [f"# FP8 LoRA training of one layer on {gpu}", "",
             f"{time.strftime('%Y-%m-%d')}, commit {options.commit or commit()}, PyTorch {torch.__version__}; T = "
             f"{options.tokens}, r = {options.rank}, uniform routing, e4m3 in blocks of 128x128, states and factors in bf16.",
             "[bench/lora_training.py](../lora_training.py) says what is measured.", "",
             "| model | way | LoRA forward + backward | added peak memory | times as fast | LoRA forward | no LoRA, forward + dx |",
             "|---|---|---|---|---|---|---|"]
    notes = []
    for name in options.models.split(","):
        for row in rows_of(name, options):
            lines.append(line(row))
            print(lines[-1], row[-1], flush=True)
            if row[-1]:
                notes.append(f"* {row[0]}, {row[1]}: {row[-1]}")
        path.write_text("\n".join([*lines, "", "Distance to the other way's results (norm of the difference over norm):", "",
                                   *notes]) + "\n")


if __name__ == "__main__":
    main()
