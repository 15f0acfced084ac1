#!/usr/bin/env python3
"""Times `moe64 convert --to bf16` of a page-cached FP8 checkpoint beside `cp` of the same output bytes.

    bench/convert_speed.py [--tool PATH] [--folder DIR] [--layers N] [--rounds N] [--python PATH]

Both run until their bytes are permanent (cp is followed by fsync of each file and of the folder; convert also computes
checksums and reads everything back). With --python, an interpreter that has torch and safetensors, the usual script,
shard by shard, runs beside them. Prints a Markdown table of medians, and every round on standard error.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

HIDDEN, INTER, EXPERTS = 2048, 1536, 64  # one layer of GLM-4.7-Flash

PYTHON_WAY = """
import glob, os, sys, torch
from safetensors import safe_open
from safetensors.torch import save_file
source, out = sys.argv[1:]
os.makedirs(out)
for path in sorted(glob.glob(source + "/*.safetensors")):
    tensors = {}
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        for name in names:
            if name.endswith("_scale_inv"):
                continue
            weight, scale = file.get_tensor(name).float(), file.get_tensor(name + "_scale_inv")
            rows, cols = weight.shape
            blocks = weight.view(rows // 128, 128, cols // 128, 128) * scale[:, None, :, None]
            tensors[name] = blocks.view(rows, cols).to(torch.bfloat16)
    target = os.path.join(out, os.path.basename(path))
    save_file(tensors, target, metadata={"format": "pt"})
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
"""


def make_checkpoint(folder, layers):
    folder.mkdir(parents=True)
    draw = random.Random(1)
    table = bytes(c ^ 1 if c & 0x7F == 0x7F else c for c in range(256))  # no NaN
    pool = b"".join(draw.randbytes(1 << 20) for _ in range(32)).translate(table)
    names = {}
    for layer in range(layers):
        header, pieces, end = {}, [], 0
        for expert in range(EXPERTS):
            for part, rows, cols in (("gate_proj", INTER, HIDDEN), ("up_proj", INTER, HIDDEN), ("down_proj", HIDDEN, INTER)):
                at = draw.randrange(len(pool) - rows * cols)
                blocks = rows // 128 * (cols // 128)
                scales = struct.pack(f"<{blocks}f", *(draw.uniform(1e-4, 1e-2) for _ in range(blocks)))
                module = f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight"
                for name, dtype, shape, data in ((module, "F8_E4M3", [rows, cols], pool[at:at + rows * cols]),
                                                 (module + "_scale_inv", "F32", [rows // 128, cols // 128], scales)):
                    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
                    pieces.append(data)
                    end += len(data)
        name = f"model-{layer + 1:05}-of-{layers:05}.safetensors"
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.writelines(pieces)
        names.update(dict.fromkeys(header, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "deepseek_v3", "hidden_size": HIDDEN, "moe_intermediate_size": INTER, "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 4, "num_hidden_layers": layers, "first_k_dense_replace": 0, "hidden_act": "silu",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}))


def timed(action, out):
    shutil.rmtree(out, ignore_errors=True)
    begin = time.monotonic()
    action()
    seconds = time.monotonic() - begin
    shutil.rmtree(out)
    return seconds


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="build/release/bin/moe64")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", help="an interpreter with torch and safetensors")
    asked = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="moe64_convert_", dir=asked.folder))
    try:
        source, whole, out = base / "source", base / "whole", base / "out"
        make_checkpoint(source, asked.layers)

        def convert(target):
            subprocess.run([asked.tool, "convert", source, target, "--to", "bf16"], check=True, stdout=subprocess.DEVNULL)

        def copy():
            out.mkdir()
            subprocess.run(["cp", *whole.glob("*.safetensors"), out], check=True)
            for path in (*out.iterdir(), out):
                sync(path)

        convert(whole)
        size = sum(path.stat().st_size for path in whole.glob("*.safetensors"))
        ways = {"cp, fsync": copy, "moe64 convert": lambda: convert(out)}
        if asked.python:
            ways["safetensors and torch"] = lambda: subprocess.run([asked.python, "-c", PYTHON_WAY, source, out], check=True)
        seconds = {way: [] for way in ways}
        for turn in range(asked.rounds + 1):  # the first warms the caches and does not count
            for way in list(ways) if turn % 2 else reversed(list(ways)):
                taken = timed(ways[way], out)
                if turn:
                    seconds[way].append(taken)
        limit = statistics.median(seconds["cp, fsync"])
        print(f"{size / 1e9:.2f} GB of output, {asked.rounds} rounds, medians\n")
        print("| way | seconds | GB/s | of cp | fastest, slowest |\n| --- | --- | --- | --- | --- |")
        for way, all_seconds in seconds.items():
            middle = statistics.median(all_seconds)
            print(f"| {way} | {middle:.2f} | {size / middle / 1e9:.2f} | {limit / middle:.2f} | "
                  f"{min(all_seconds):.2f}, {max(all_seconds):.2f} |")
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
