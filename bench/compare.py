#!/usr/bin/env python3
"""Compares moe64 with PyTorch, Transformers and the limits of this machine, all in one run.

Each point is measured in rounds that alternate between moe64 (the tool, `moe64 bench`) and its peers (this process),
so that noise of the machine hits both. Writes bench/results/cpu-MODEL.json, .md and .png; docs/benchmarks.md explains
them. Exits with 0 whether or not the bars hold: it measures, others judge.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
from importlib import metadata

import report
import tool
from points import MODELS, POINTS

HERE = pathlib.Path(__file__).resolve().parent


class Progress:
    """Lines on standard error with the time left."""

    def __init__(self, points, rounds):
        self.left = sum(point.effort for point in points) * rounds
        self.done = 0.0
        self.begin = time.monotonic()

    def step(self, effort, text):
        self.done += effort
        self.left -= effort
        seconds = (time.monotonic() - self.begin) * self.left / self.done
        print(f"{text} | {seconds / 60:.1f} min left", file=sys.stderr, flush=True)


def measure_ours(options, point):
    """What the tool says about a point, and its seconds for the line that the point is held against."""
    lines = [point.line] + ([point.against] if point.against else [])
    found = tool.bench(options.tool, lines, options.threads, options.min_time)
    ours = found[0]
    if point.against:
        ours["against_seconds"] = found[1]["seconds"]
    return ours


class Peers:
    """The peer of the current point; layers keep their weights while points of one model follow each other."""

    def __init__(self, threads):
        import peers
        import torch

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.peers = peers
        self.kept = (None, None)

    def measure(self, point, min_time):
        if point.kind == "dequantise":
            return self.peers.measure_dequantise(point, min_time)
        if not point.kind:
            return {}
        shape = MODELS[point.model].peer
        if self.kept[0] != shape:
            self.kept = (None, None)  # free the old weights first
            self.kept = (shape, self.peers.LayerPeer(MODELS[point.model]))
        return self.kept[1].measure(point, min_time)


def measure(options, point, peers, progress):
    """All rounds of one point."""
    ours, others, problem = [], {}, ""
    for number in range(1, options.rounds + 1):
        try:
            ours.append(measure_ours(options, point))
        except tool.ToolError as refused:
            problem = str(refused)
        for name, seconds in peers.measure(point, options.min_time).items():
            others.setdefault(name, []).append(seconds)
        texts = [f"moe64 {report.milliseconds(ours[-1]['seconds'])}" if not problem else problem]
        texts += [f"{name} {report.milliseconds(found[-1])}" for name, found in others.items()]
        progress.step(point.effort, f"{point.name}, round {number} of {options.rounds}: {', '.join(texts)}")
    return {"name": point.name, "kind": point.kind, "model": point.model, "tokens": point.tokens,
            "line": point.line, "against": point.against, "error": problem, "ours": ours,
            "peers": {name: report.peer_summary(found) for name, found in others.items()}}


def commit():
    """The commit that was measured, with a + where files differ from it; unknown outside a checkout."""
    found = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=pathlib.Path(__file__).parent,
                           capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def machine_of(options):
    said = tool.doctor(options.tool)
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "peft")}
    return {"cpu": said["cpu"]["model"], "extensions": said["cpu"]["extensions"], "cores": said["cpu"]["cores"],
            "memory_bytes": said["memory"]["total_bytes"], "threads": options.threads, "moe64": said["version"],
            "date": time.strftime("%Y-%m-%d"), "commit": commit(), **versions}


def limits_of(measured, matmul):
    """The median of what the tool measured whenever it was called, and PyTorch's matrix product."""
    found = [ours["limits"] for point in measured for ours in point["ours"]]
    limits = {name: statistics.median(one[name] for one in found) for name in found[0]} if found else {}
    return limits | {"torch_bf16_matmul_flops_per_s": statistics.median(matmul)}


def noise_of(measured):
    """How much the tool's multiply-add limit varied: a few percent on a machine that does nothing else."""
    found = [ours["limits"]["fma_flops_per_s"] for point in measured for ours in point["ours"]]
    return report.spread(found) if found else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=str(HERE.parent / "build/release/bin/moe64"), help="the moe64 to measure")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="for both sides")
    parser.add_argument("--rounds", type=int, default=3, help="alternations per point (default 3)")
    parser.add_argument("--min-time", type=float, default=0.5, help="seconds per measurement (default 0.5)")
    parser.add_argument("--quick", action="store_true", help="few points, one round: does it work at all?")
    parser.add_argument("--only", default="", metavar="REGEX", help="points whose name it matches")
    parser.add_argument("--list", action="store_true", help="print the points and their problem lines")
    parser.add_argument("--output", type=pathlib.Path, 
                        help="path without suffix (default bench/results/cpu-MODEL, with -partial after a part)")
    options = parser.parse_args()
    points = [p for p in POINTS if re.search(options.only, p.name) and (p.quick or not options.quick)]
    if not points:
        parser.error(f"--only {options.only}: no point has such a name")
    if options.list:
        for point in points:
            print(f"{point.name}: {point.line}")
        return
    if options.quick:
        options.rounds, options.min_time = 1, 0.2

    machine = machine_of(options)
    peers = Peers(options.threads)
    progress = Progress(points, options.rounds)
    matmul, measured = [], []
    for point in points:
        matmul.append(peers.peers.matmul_flops(min(options.min_time, 0.2)))
        measured.append(measure(options, point, peers, progress))
    machine["noise"] = noise_of(measured)
    results = {"machine": machine, "rounds": options.rounds, "min_time": options.min_time, "partial": bool(options.quick or options.only),
               "limits": limits_of(measured, matmul), "points": measured}

    part = "-partial" if results["partial"] else ""  # never in the place of a whole run
    output = options.output or HERE / "results" / f"cpu-{report.slug(machine['cpu'])}{part}"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    output.with_suffix(".md").write_text(report.document(results))
    import plot

    plot.draw(results, output.with_suffix(".png"))
    print(report.verdict(results) + report.warning(results))
    print(f"written: {output}.json, .md, .png")


if __name__ == "__main__":
    main()
