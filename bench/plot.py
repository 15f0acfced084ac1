"""The picture of a result file: speed against the best peer, and shares of the machine's limits.

    .venv/bin/python bench/plot.py bench/results/cpu-MODEL.json picture.png
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from points import BARS, MODELS
from report import best_peer, figures

COLOURS = {"flash-row": "#1b6ca8", "flash-block": "#6aaed6", "q30": "#e08e2b", "gptoss": "#6a9f58"}
STEPS = [("T={} forward", tokens, f"T={tokens}") for tokens in (1, 4, 16, 256, 2048)]
STEPS += [("T=2048 forward + dx", 0, "T=2048\n+ dx"), ("T=2048 forward + dx + LoRA", 0, "T=2048\n+ dx + LoRA")]


def draw(results, path):
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(15, 7), width_ratios=(1.7, 1), layout="constrained")
    speedups(left, results)
    shares(right, results)
    machine = results["machine"]
    figure.suptitle(f"moe64 {machine['moe64']} on {machine['cpu']}, {machine['threads']} threads, "
                    f"PyTorch {machine['torch']}, Transformers {machine['transformers']}", fontsize=12)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def speedups(axes, results):
    """Time of the best peer over ours, one group of bars per batch; small lines are what is asked for."""
    points = {point["name"]: point for point in results["points"]}
    wanted = {bar.point: bar.value for bar in BARS if bar.figure == "speedup"}
    width = 0.8 / len(MODELS)
    for place, model in enumerate(MODELS):
        label = MODELS[model].title
        for group, (step, tokens, _) in enumerate(STEPS):
            name = f"{model} {step.format(tokens)}"
            found = figures(points[name], results["limits"]).get("speedup") if name in points else None
            if found is None:
                continue
            x = group + (place - (len(MODELS) - 1) / 2) * width
            axes.bar(x, found, 0.92 * width, color=COLOURS[model], label=label)
            label = None
            axes.annotate(f"{found:.1f}" if found >= 1 else f"{found:.2f}", (x, clear_of(found, wanted.get(name))), (0, 2), textcoords="offset points",
                          ha="center", fontsize=8)
            if name in wanted:
                axes.plot([x - width / 2, x + width / 2], [wanted[name]] * 2, color="black", linewidth=1.6)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(STEPS)), [title for _, _, title in STEPS])
    axes.set_xlim(-0.6, len(STEPS) - 0.4)
    axes.margins(y=0.12)
    axes.set_ylabel("time of the best PyTorch peer / time of moe64")
    axes.set_title("Expert layer, speed against the best peer (black: the bar)")
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure_legend(axes, handles, labels)


def clear_of(value, bar):
    """Where the number of a bar of this height is written: not across the mark of what is asked for."""
    return bar if bar is not None and value < bar < 1.3 * value else value


def figure_legend(axes, handles, labels):
    axes.legend(handles, labels, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)


def shares(axes, results):
    """Operations against memcpy, and streamed weights of small batches against a pure read."""
    rows = []
    wanted = {(bar.point, bar.figure): bar.value for bar in BARS}
    for point in results["points"]:
        found = figures(point, results["limits"])
        if point["model"] and point["kind"] == "forward" and point["tokens"] <= 16:
            rows.append((point["name"].replace(" forward", ""), found.get("read_share"), "read",
                         wanted.get((point["name"], "read_share"))))
        elif not point["model"] and not point["tokens"]:
            rows.append((point["name"], found.get("copy_share"), "copy", wanted.get((point["name"], "copy_share"))))
            peer = best_peer(point)
            if peer and "copy_share" in found:
                rows.append((f"{peer[0]}: {point['name']}", found["copy_share"] / found["speedup"], "peer", None))
    colours = {"read": "#1b6ca8", "copy": "#8d6cab", "peer": "#b0b0b0"}
    titles = {"read": "weight bytes of a layer / read bandwidth", "copy": "bytes moved / memcpy", "peer": "PyTorch"}
    for place, (name, value, kind, bar) in enumerate(rows[::-1]):
        if value is None:
            continue
        axes.barh(place, value, 0.7, color=colours[kind], label=titles.pop(kind, None))
        axes.annotate(f"{value:.2f}", (clear_of(value, bar), place), (3, 0), textcoords="offset points", va="center", fontsize=8)
        if bar is not None:
            axes.plot([bar, bar], [place - 0.4, place + 0.4], color="black", linewidth=1.6)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows[::-1]], fontsize=8)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.margins(x=0.1)
    axes.set_xlabel("share of the machine's limit")
    axes.set_title("Shares of the memory limits")
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, labels, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=2, frameon=False)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as stored:
        draw(json.load(stored), sys.argv[2])
