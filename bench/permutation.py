#!/usr/bin/env python3
"""The drop-in replacements for TransformerEngine's permutations on a GPU: milliseconds of a call, as a caller waits for them,
against the time that the GPU needs to move the bytes.

    PYTHONPATH=python python3 bench/permutation.py [tokens hidden top_k experts]
"""

import sys
import time

import torch

from moe64.compat import transformer_engine as te


def milliseconds(call, rounds=20):
    """The median of some rounds with a rest between them: the clock of the GPU falls under load."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        time.sleep(0.02)
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[rounds // 2]


def main():
    tokens, hidden, top_k, experts = map(int, sys.argv[1:5] or (8192, 7168, 8, 256))
    torch.manual_seed(1)
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    ids = torch.rand(tokens, experts, device="cuda").topk(top_k).indices.int()
    probs = torch.rand(tokens, top_k, device="cuda")
    mask = torch.zeros(tokens, experts, dtype=torch.bool, device="cuda").scatter_(1, ids.long(), True)
    weights = torch.rand(tokens, experts, device="cuda")
    slots = tokens * top_k
    rows, index_map = te.moe_permute(x, ids, slots, map_type="index")
    _, _, mask_map = te.moe_permute_with_probs(x, weights, mask, slots)
    counts = mask.sum(0)
    padded, _, padded_map, offsets, _ = te.moe_permute_and_pad_with_probs(x, weights, mask, counts, 16)
    chunks = torch.arange(experts - 1, -1, -1, device="cuda")
    copied = torch.empty_like(rows)
    grown = x.detach().clone().requires_grad_()
    d_rows, dy = torch.randn_like(rows), torch.randn_like(x)
    trained = te.moe_permute(grown, ids, slots, map_type="index")[0]
    wanted = rows.detach().clone().requires_grad_()
    factors = probs.clone().requires_grad_()
    merged = te.moe_unpermute(wanted, index_map, factors, map_type="index")
    for name, call in {
            "copy of all rows": lambda: copied.copy_(rows),
            "permute, index": lambda: te.moe_permute(x, ids, slots, map_type="index"),
            "permute, index, size unknown": lambda: te.moe_permute(x, ids, map_type="index"),
            "unpermute, index": lambda: te.moe_unpermute(rows, index_map, probs, map_type="index"),
            "permute backward, index": lambda: torch.autograd.grad(trained, grown, d_rows, retain_graph=True),
            "unpermute backward, index": lambda: torch.autograd.grad(merged, (wanted, factors), dy, retain_graph=True),
            "permute with probs, mask": lambda: te.moe_permute_with_probs(x, weights, mask, slots),
            "unpermute, mask": lambda: te.moe_unpermute(rows, mask_map, weights, restore_shape=x.shape),
            "permute and pad": lambda: te.moe_permute_and_pad_with_probs(x, weights, mask, counts, 16),
            "unpermute and unpad": lambda: te.moe_unpermute(padded, padded_map, weights, pad_offsets=offsets),
            "sort chunks": lambda: te.moe_sort_chunks_by_index(rows, counts, chunks)}.items():
        call()
        print(f"{name:30} {milliseconds(call):7.3f} ms", flush=True)


if __name__ == "__main__":
    main()
