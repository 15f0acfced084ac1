#!/usr/bin/env python3
"""What a call from Python costs besides the library: one token through a small layer, per call.

    PYTHONPATH=python python3 bench/python_call.py [cpu|cuda]

On a GPU it is the time until the call returns, with the device waited for between rounds only.
"""

import sys
import time

import torch

import moe64
from moe64 import layer
from moe64._description import describe
from moe64._handles import layer_of
from moe64._library import library
from moe64._torch import stream_of


def microseconds(call, calls=100, rounds=60):
    """The best of some rounds: what the call costs when nothing else runs."""
    best = float("inf")
    for _ in range(rounds):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def main():
    torch.set_num_threads(1)
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.set_default_device(device)
    weights = moe64.ExpertWeights(torch.randn(4, 32, 32), torch.randn(4, 32, 16))
    x, ids, factors = torch.randn(1, 32), torch.tensor([[0, 1]]), torch.rand(1, 2)
    handle = layer_of(*describe(weights))
    args, scratch_bytes, _ = layer._prepared(handle, x, ids, factors, False, -1)
    y, scratch = torch.empty_like(x), torch.empty(scratch_bytes, dtype=torch.uint8)
    args.x.data, args.expert_ids.data, args.weights.data = x.data_ptr(), ids.data_ptr(), factors.data_ptr()
    args.y.data, args.scratch.data = y.data_ptr(), scratch.data_ptr()
    stream = stream_of(x)
    torch.set_default_device(None)  # it costs time in each call
    bare = microseconds(lambda: library().call("forward", handle.handle, args, stream))
    with torch.no_grad():
        whole = microseconds(lambda: moe64.experts(x, ids, factors, weights))
    x.requires_grad_()
    kept = microseconds(lambda: moe64.experts(x, ids, factors, weights))
    print(f"{device}: library {bare:.1f} us, moe64.experts {whole:.1f} us: {whole - bare:.1f} us of Python; "
          f"with gradients on {kept - bare:.1f} us")


if __name__ == "__main__":
    main()
