#!/usr/bin/env python3
"""Measures moe64 on a GPU against the GPU's own copy and, where PyTorch is there, against PyTorch: one run, one table.

Writes bench/results/gpu-NAME.md, .json and .svg; docs/benchmarks.md explains them. Exits with 0 whether or not the bars hold:
it measures, others judge.
"""

import argparse
import collections
import json
import pathlib
import re
import sys
import time

import gpu_plot
import tool
from compare import commit
from gpu_points import POINTS
from report import slug

HERE = pathlib.Path(__file__).resolve().parent
UNITS = {"copy_share": "of copy", "microseconds": "us", "tflops": "TFLOP/s", "weights": "TB/s of weights",
         "workspace": "GiB"}
SMALLER_IS_BETTER = ("microseconds", "workspace")


def figure_of(point, ours):
    """The number that the bar is about."""
    return {"copy_share": lambda: ours["bytes_per_s"] / ours["limits"]["copy_bytes_per_s"],
            "microseconds": lambda: ours["seconds"] * 1e6,
            "tflops": lambda: ours["flops_per_s"] / 1e12,
            "weights": lambda: ours["weight_bytes_per_s"] / 1e12,
            "workspace": lambda: ours["workspace_bytes"] / 2**30}[point.figure]()


def share_of_bar(point, figure):
    """1 or more: the bar is met."""
    if not point.bar:
        return None
    return point.bar / figure if point.figure in SMALLER_IS_BETTER else figure / point.bar


def verdict(point, share):
    if share is None:
        return ""
    sign = "≤" if point.figure in SMALLER_IS_BETTER else "≥"
    return f"{sign} {point.bar:g}: {'met' if share >= 1 else 'missed'}"


def peers_module():
    try:
        import gpu_peers
    except ImportError as missing:
        print(f"no peers: {missing}", file=sys.stderr)
        return None
    return gpu_peers


def compared(peers, point):
    """What each peer of a point takes, or why it did not run."""
    found = []
    for function, *arguments in point.peers if peers else ():
        try:
            name, seconds = getattr(peers, function)(*arguments)
            found.append({"name": name, "seconds": seconds})
        except Exception as failure:  # a peer that cannot run here is no reason to stop
            found.append({"name": function, "failure": f"{type(failure).__name__}: {str(failure).splitlines()[0]}"})
        peers.give_memory_back()
    return found


def measure(options, points, peers):
    """One process for the points of an operation, and the copy that they are held against."""
    lines = [f"{point.line} device={options.device}" for point in points]
    for point, ours in zip(points, tool.bench(options.tool, lines, options.threads, options.min_time)):
        figure = figure_of(point, ours)
        share = share_of_bar(point, figure)
        found = {"group": point.group, "name": point.name, "line": point.line, "ours": ours, "figure": figure,
                 "unit": UNITS[point.figure], "share": share, "bar": verdict(point, share), "peers": compared(peers, point)}
        print(f"{point.group}, {point.name}: {figure:.3f} {found['unit']} {found['bar']} {text_of(found)}", file=sys.stderr,
              flush=True)
        yield found


def text_of(one):
    """The peers of a point: their time, and that as a ratio to ours."""
    texts = []
    for peer in one["peers"]:
        beside_ours = f"{1e6 * peer['seconds']:.1f} us: {peer['seconds'] / one['ours']['seconds']:.2f}x" \
            if "seconds" in peer else peer["failure"]
        texts.append(f"{peer['name']} {beside_ours}")
    return "; ".join(texts)


def updated(before, again):
    """The points of a run, with those that were measured again in their places."""
    found = {(one["group"], one["name"]): one for one in again}
    return [found.pop((one["group"], one["name"]), one) for one in before] + list(found.values())


def later_runs(gpu, measured):
    """What the table says of points that an --update has measured: whole groups, or how many of one."""
    points = collections.Counter(one["group"] for one in measured)
    runs = {}
    for one in measured:
        if "run" in one and one["run"] != gpu:
            runs.setdefault((one["run"]["date"], one["run"]["commit"]), collections.Counter())[one["group"]] += 1
    return [", ".join(group if count == points[group] else f"{group} ({count} of {points[group]})"
                      for group, count in groups.items()) + f": {date}, commit {commit}."
            for (date, commit), groups in runs.items()]


def table(gpu, measured):
    copy = max(one["ours"]["limits"]["copy_bytes_per_s"] for one in measured)
    judged = [one for one in measured if one["bar"]]
    met = sum(one["bar"].endswith("met") for one in judged)
    lines = [f"# moe64 on {gpu['name']}", "",
             f"{gpu['date']}, commit {gpu['commit']}, copy {copy / 1e12:.2f} TB/s. {met} of {len(judged)} bars met.",
             *later_runs(gpu, measured),
             "[docs/benchmarks.md](../../docs/benchmarks.md) says how the figures are taken.", "",
             "| operation | problem | implementation | time | figure | bar | peers |", "|---|---|---|---|---|---|---|"]
    for one in measured:
        seconds = one["ours"]["seconds"]
        time_text = f"{1e6 * seconds:.1f} us" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"
        figure = f"{one['figure']:.3f}" if one["unit"] in ("of copy", "TB/s of weights", "GiB") else f"{one['figure']:.1f}"
        lines.append(f"| {one['group']} | {one['name']} | {one['ours']['impl']} | {time_text} | {figure} {one['unit']} | "
                     f"{one['bar']} | {text_of(one)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=str(HERE.parent / "build/release/bin/moe64"), help="the moe64 to measure")
    parser.add_argument("--device", default="cuda:0", help="default cuda:0")
    parser.add_argument("--threads", type=int, default=16, help="for making the data (default 16)")
    parser.add_argument("--min-time", type=float, default=0.05,
                        help="seconds of replays per measurement, at least ten of them (default 0.05)")
    parser.add_argument("--only", default="", metavar="REGEX", help="points whose operation or name it matches")
    parser.add_argument("--update", action="store_true",
                        help="put the points of --only into the table that is there, which says when they were measured")
    parser.add_argument("--commit", default="", help="what to call the tree where it is no checkout")
    parser.add_argument("--output", type=pathlib.Path, help="path without suffix (default bench/results/gpu-NAME)")
    options = parser.parse_args()
    devices = {f"cuda:{i}": found for i, found in enumerate(tool.doctor(options.tool)["cuda_devices"])}
    if options.device not in devices:
        parser.error(f"--device {options.device}: the devices are {', '.join(devices) or 'none'}")
    gpu = {"name": devices[options.device]["name"], "date": time.strftime("%Y-%m-%d"),
            "commit": options.commit or commit()}
    peers = peers_module()
    points = [point for point in POINTS if re.search(options.only, f"{point.group} {point.name}")]
    if not points:
        parser.error(f"--only {options.only}: no point has such a name")
    partial = "-partial" if options.only and not options.update else ""
    base = options.output or HERE / "results" / f"gpu-{slug(gpu['name'])}{partial}"
    base.parent.mkdir(parents=True, exist_ok=True)
    run, measured = gpu, []
    if options.update:
        if not base.with_suffix(".json").exists():
            parser.error(f"--update: there is no {base}.json")
        before = json.loads(base.with_suffix(".json").read_text())
        if before["gpu"]["name"] != gpu["name"]:
            parser.error(f"--update: {base}.json is of {before['gpu']['name']}, not of {gpu['name']}")
        gpu, measured = before["gpu"], before["points"]
    begin = time.monotonic()
    for group in dict.fromkeys(point.group for point in points):
        again = measure(options, [point for point in points if point.group == group], peers)
        measured = updated(measured, [{**one, "run": run} for one in again])
        base.with_suffix(".json").write_text(json.dumps({"gpu": gpu, "points": measured}, indent=1) + "\n")
        base.with_suffix(".md").write_text(table(gpu, measured))  # what there is so far
        print(f"{group}: done after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    base.with_suffix(".svg").write_text(gpu_plot.picture(gpu, measured))
    print(base.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
