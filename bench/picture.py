"""The picture of the README: how many times as fast as the peers, on a CPU and on a GPU, from the committed results.

    .venv/bin/python bench/picture.py            # bench/results/{cpu-amd-epyc,gpu-nvidia-h200}.json and the LoRA table

Each mark is one model (or one GEMM of it): time of the peer over time of moe64. It is written to bench/results/speed.svg;
the same results give the same bytes.
"""

import argparse
import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, NullLocator
from points import MODELS
from report import figures

RESULTS = Path(__file__).resolve().parent / "results"
MARKS = {"GLM-4.7-Flash": ("#1b6ca8", "o"), "Qwen3-30B-A3B": ("#e08e2b", "s"), "gpt-oss-20b": ("#6a9f58", "^"),
         "DeepSeek-V3": ("#8d4f9e", "D"), "GLM-5.2": ("#c2473b", "v"), "MiniMax-M3": ("#4a4a4a", "P")}
CPU_ROWS = [("forward, 1 token", "T=1 forward"), ("forward, 16 tokens", "T=16 forward"),
            ("forward, 256 tokens", "T=256 forward"), ("forward, 2048 tokens", "T=2048 forward"),
            ("forward and dx, 2048 tokens", "T=2048 forward + dx"),
            ("with LoRA of rank 16, 2048 tokens", "T=2048 forward + dx + LoRA")]
# (title, group of the results, end of the point's name, beginning of the peer's name)
GPU_ROWS = [("layer W8A8, 1 token\nvs bf16 of Transformers", "layer w8a8", "T=1", "Transformers"),
            ("layer W8A8, 64 tokens\nvs bf16 of Transformers", "layer w8a8", "T=64", "Transformers"),
            ("layer W8A8, 8192 tokens\nvs bf16 of Transformers", "layer w8a8", "T=8192", "Transformers"),
            ("GEMM W8A8, 8192 tokens\nvs DeepGEMM", "prefill w8a8", "T=8192", "DeepGEMM"),
            ("GEMM W8A8, 32,768 tokens\nvs DeepGEMM", "prefill w8a8", "T=32768", "DeepGEMM"),
            ("GEMM W8A16, 8192 tokens\nvs dequantise, then GEMM", "prefill w8a16", "T=8192", "Triton dequantise"),
            ("GEMM bf16, 8192 tokens\nvs torch._grouped_mm", "prefill bf16", "T=8192", "torch._grouped_mm")]
LORA_ROW = "LoRA training, 8192 tokens\nvs dequantise, then GEMM"


def cpu_rows(results):
    """(title, [(model, times as fast)]) from top to bottom."""
    points = {point["name"]: point for point in results["points"]}
    for title, end in CPU_ROWS:
        yield title, [(MODELS[model].title.split(",")[0], figures(points[f"{model} {end}"], results["limits"])["speedup"])
                      for model in MODELS]


def gpu_rows(results, lora):
    for title, group, end, peer in GPU_ROWS:
        yield title, [(one["name"].split()[0], other["seconds"] / one["ours"]["seconds"]) for one in results["points"]
                      if one["group"] == group and one["name"].endswith(f" {end}")
                      for other in one["peers"] if other["name"].startswith(peer) and "seconds" in other]
    yield LORA_ROW, [(model, float(times)) for model, times in
                     re.findall(r"^\| (\S+) \| moe64, w8a16 \|[^|]*\|[^|]*\| ([\d.]+)x", lora, re.M)]


def draw(axes, title, rows):
    rows = list(rows)
    for place, (_, marks) in enumerate(rows):
        for model, times in marks:
            colour, shape = MARKS[model]
            axes.plot(times, place, shape, color=colour, markersize=8, alpha=0.85, markeredgewidth=0, label=model)
        most = max(times for _, times in marks)
        least = min(times for _, times in marks)
        axes.annotate(f"{short(least)} to {short(most)}", (most, place), (10, 0), textcoords="offset points", va="center",
                      fontsize=9, color="#444444")
    axes.axvline(1.0, color="black", linewidth=1.2)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=10)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_title(title, fontsize=12, loc="left")
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def short(times):
    return f"{times:.2f}" if times < 10 else f"{times:.0f}"


def scale(axes, ticks, most):
    axes.set_xscale("log")
    axes.set_xlim(0.85, most)
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("times as fast as the peer (logarithmic)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "speed.svg")
    options = parser.parse_args()
    cpu = json.loads((RESULTS / "cpu-amd-epyc.json").read_text())
    gpu = json.loads((RESULTS / "gpu-nvidia-h200.json").read_text())
    lora = (RESULTS / "lora-nvidia-h200.md").read_text()
    matplotlib.rcParams.update({"svg.hashsalt": "moe64", "font.family": "DejaVu Sans"})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(15, 5.6), layout="constrained")
    machine = cpu["machine"]
    draw(left, f"{machine['cpu']} (Zen 4), {machine['threads']} cores: a layer with FP8 or MXFP4 weights\n"
               "vs the fastest bf16 experts of Transformers", cpu_rows(cpu))
    scale(left, [1, 1.5, 2, 3, 4], 5.5)
    draw(right, f"{gpu['gpu']['name']}: layers, grouped GEMMs, training", gpu_rows(gpu, lora))
    scale(right, [1, 2, 4, 8, 16, 32], 110)
    marks = {}
    for axes in (left, right):
        marks |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend([marks[model] for model in MARKS], list(MARKS), loc="outside lower center", ncols=len(MARKS), frameon=False)
    figure.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
