#!/usr/bin/env python3
"""Times `moe64 check` and `moe64 convert --to bf16` of an FP8 checkpoint in the page cache.

    bench/checkpoint_speed.py [--tool PATH] [--folder DIR] [--layers N] [--rounds N] [--python PATH] [--out FILE]

check runs beside two `cat` to nowhere, which share the files; convert beside `cp` of its output. Both of the latter run
until their bytes are permanent (cp is followed by fsync of each file and of the folder; convert also computes checksums
and reads everything back). With --python, an interpreter that has torch and safetensors, the usual scripts, shard by
shard, run beside them. Also timed: opening a header of 120,000 tensors. Writes Markdown tables of medians.
"""

import argparse
import datetime
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HIDDEN, INTER, EXPERTS = 2048, 1536, 64  # one layer of GLM-4.7-Flash
BLOCK = 128
MANY_TENSORS = 120_000

DEQUANTIZED = """
import glob, os, sys, torch
from safetensors import safe_open
from safetensors.torch import save_file

def tensors(path):
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        for name in sorted(names):
            if not name.endswith("_scale_inv"):
                yield name, file.get_tensor(name), file.get_tensor(name + "_scale_inv")
"""

PYTHON_CHECK = DEQUANTIZED + """
for path in sorted(glob.glob(sys.argv[1] + "/*.safetensors")):
    for name, codes, scale in tensors(path):
        magnitude = codes.view(torch.uint8) & 0x7F
        assert magnitude.max() < 0x7F and torch.isfinite(scale).all() and (scale > 0).all(), name
        (magnitude == 0x7E).sum()
"""

PYTHON_CONVERT = DEQUANTIZED + """
os.makedirs(sys.argv[2])
for path in sorted(glob.glob(sys.argv[1] + "/*.safetensors")):
    out = {}
    for name, codes, scale in tensors(path):
        rows, cols = codes.shape
        blocks = codes.float().view(rows // 128, 128, cols // 128, 128) * scale[:, None, :, None]
        out[name] = blocks.view(rows, cols).to(torch.bfloat16)
    target = os.path.join(sys.argv[2], os.path.basename(path))
    save_file(out, target, metadata={"format": "pt"})
    os.fsync(os.open(target, os.O_RDONLY))
"""


def write_shard(path, tensors):
    """tensors: (name, dtype, shape, bytes); the header's names, in order."""
    header, end = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data for *_, data in tensors)
    return list(header)


def write_folder(folder, shards, layers, hidden, inter, experts):
    """shards: lists of tensors, one list per layer or one for all."""
    folder.mkdir(parents=True)
    places = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}.safetensors"
        places.update(dict.fromkeys(write_shard(folder / name, tensors), name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "deepseek_v3", "hidden_size": hidden, "moe_intermediate_size": inter, "n_routed_experts": experts,
        "num_experts_per_tok": 4, "num_hidden_layers": layers, "first_k_dense_replace": 0, "hidden_act": "silu",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}}))


def experts_of(layer, draw, pool):
    for expert in range(EXPERTS):
        for part, rows, cols in (("gate_proj", INTER, HIDDEN), ("up_proj", INTER, HIDDEN), ("down_proj", HIDDEN, INTER)):
            at = draw.randrange(len(pool) - rows * cols)
            grid = [rows // BLOCK, cols // BLOCK]
            scales = [draw.uniform(1e-4, 1e-2) for _ in range(grid[0] * grid[1])]
            module = f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight"
            yield module, "F8_E4M3", [rows, cols], pool[at:at + rows * cols]
            yield module + "_scale_inv", "F32", grid, struct.pack(f"<{len(scales)}f", *scales)


def make_checkpoint(folder, layers):
    draw = random.Random(1)
    table = bytes(c ^ 1 if c & 0x7F == 0x7F else c for c in range(256))  # no NaN
    pool = b"".join(draw.randbytes(1 << 20) for _ in range(32)).translate(table)
    write_folder(folder, (list(experts_of(layer, draw, pool)) for layer in range(layers)), layers, HIDDEN, INTER, EXPERTS)


def make_many_tensors(folder):
    layers, experts, parts = 20, 1000, ("gate_proj", "up_proj", "down_proj")
    modules = [f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight"
               for layer in range(layers) for expert in range(experts) for part in parts]
    tensors = [tensor for module in modules for tensor in (
        (module, "F8_E4M3", [1, 1], b"\x38"), (module + "_scale_inv", "F32", [1, 1], struct.pack("<f", 1)))]
    assert len(tensors) == MANY_TENSORS
    write_folder(folder, [tensors], layers, 1, 1, experts)


def peak_bytes(command):
    """Largest resident memory of one run of a command."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while child.poll() is None:
        status = Path(f"/proc/{child.pid}/status").read_text()
        peak = max([peak] + [int(line.split()[1]) for line in status.split("\n") if line.startswith("VmHWM")])
        time.sleep(0.002)
    if child.returncode != 0:
        raise SystemExit(f"{command}: status {child.returncode}")
    return peak * 1024


def run(command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def compare(ways, rounds, out=None):
    """Seconds of each round of each way, in turn; the first round warms the caches and does not count."""
    seconds = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way in list(ways) if turn % 2 else reversed(list(ways)):
            begin = time.monotonic()
            ways[way]()
            taken = time.monotonic() - begin
            if out:
                shutil.rmtree(out)
            if turn:
                seconds[way].append(taken)
                print(f"{way}: {taken:.2f} s", file=sys.stderr)
    return seconds


def table(seconds, size):
    limit_way = next(iter(seconds))
    limit = statistics.median(seconds[limit_way])
    lines = [f"| way | seconds | GB/s | of {limit_way} | fastest, slowest |", "|---|---|---|---|---|"]
    for way, taken in seconds.items():
        middle = statistics.median(taken)
        lines.append(f"| {way} | {middle:.2f} | {size / middle / 1e9:.2f} | {limit / middle:.2f} | "
                     f"{min(taken):.2f}, {max(taken):.2f} |")
    return "\n".join(lines)


def cpu_model():
    text = Path("/proc/cpuinfo").read_text()
    return next((line.split(":")[1].strip() for line in text.split("\n") if line.startswith("model name")), "unknown CPU")


def measure(asked, base):
    source, whole, out, many = base / "source", base / "whole", base / "out", base / "many"
    make_checkpoint(source, asked.layers)
    make_many_tensors(many)
    shards = sorted(source.glob("*.safetensors"))
    read_size = sum(path.stat().st_size for path in shards)

    def read():
        halves = [subprocess.Popen(["cat", *shards[i::2]], stdout=subprocess.DEVNULL) for i in range(2)]
        if any(half.wait() for half in halves):
            raise SystemExit("cat failed")

    def copy():
        out.mkdir()
        run(["cp", *whole.glob("*.safetensors"), out])
        for path in (*out.iterdir(), out):
            sync(path)

    convert = [asked.tool, "convert", source, out, "--to", "bf16", "--threads", "2"]
    check = [asked.tool, "check", source, "--threads", "2"]
    checks = {"two cat": read, "moe64 check": lambda: run(check)}
    converts = {"cp": copy, "moe64 convert": lambda: run(convert)}
    if asked.python:
        checks["safetensors and torch"] = lambda: run([asked.python, "-c", PYTHON_CHECK, source])
        converts["safetensors and torch"] = lambda: run([asked.python, "-c", PYTHON_CONVERT, source, out])

    convert_peak = peak_bytes(convert)
    out.rename(whole)
    write_size = sum(path.stat().st_size for path in whole.glob("*.safetensors"))
    check_seconds = compare(checks, asked.rounds)
    convert_seconds = compare(converts, asked.rounds, out)
    opened = compare({"moe64 inspect": lambda: run([asked.tool, "inspect", many])}, asked.rounds)["moe64 inspect"]
    return f"""# moe64 check and convert compared with the machine's own tools

{datetime.date.today()}, {cpu_model()}, two threads, files in the page cache, {asked.rounds} rounds in turn, medians.
Made by `make bench-checkpoint`.

## check: {read_size / 1e9:.2f} GB of FP8 with 128 x 128 scales in {len(shards)} shards

{table(check_seconds, read_size)}

Peak memory of check: {peak_bytes(check) / 2**20:.0f} MiB.

## convert --to bf16: {write_size / 1e9:.2f} GB of output, permanent on the disk

{table(convert_seconds, write_size)}

Peak memory of convert: {convert_peak / 2**20:.0f} MiB, files of the page cache not counted.

## A header of {MANY_TENSORS:,} tensors

`moe64 inspect` of the whole folder: {statistics.median(opened):.2f} s.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="build/release/bin/moe64")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--layers", type=int, default=4, help="of 0.6 GB each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", help="an interpreter with torch and safetensors")
    parser.add_argument("--out", type=Path, help="write the document there instead of printing it")
    asked = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="moe64_checkpoint_", dir=asked.folder))
    try:
        document = measure(asked, base)
    finally:
        shutil.rmtree(base)
    if asked.out:
        asked.out.write_text(document)
    else:
        print(document)


if __name__ == "__main__":
    main()
