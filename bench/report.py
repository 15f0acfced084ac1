"""Tables from the JSON that compare.py writes; only the standard library.

    python3 bench/report.py bench/results/cpu-MODEL.json    # the tables again, from stored figures
"""

import json
import re
import statistics
import sys

from points import BARS, MODELS

GIGA = 1e9
FIGURES = {  # figure of a bar: what its number is
    "copy_share": "of copy",
    "read_share": "of read, weight bytes",
    "speedup": "x best peer",
    "against": "x uniform routing",
    "extra_memory": "of the operands, beyond them and workspace",
}


def slug(text):
    """'AMD EPYC (rev 2)' as 'amd-epyc-rev-2'."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def milliseconds(seconds):
    if isinstance(seconds, str):
        return f"not run ({seconds})"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1.0 else f"{1e3 * seconds:.0f} ms"


def spread(seconds):
    """Half the distance between the extremes, as a share of the median."""
    return (max(seconds) - min(seconds)) / 2.0 / statistics.median(seconds)


def peer_summary(found):
    """Seconds of all rounds, or the reason why there are none."""
    errors = [one for one in found if isinstance(one, str)]
    return {"error": errors[0]} if errors else {"seconds": found}


def seconds_of(point):
    """Median over the rounds of our median, or None."""
    return statistics.median(one["seconds"] for one in point["ours"]) if point["ours"] else None


def best_peer(point):
    """(name, seconds) of the fastest peer, or None."""
    found = [(statistics.median(peer["seconds"]), name) for name, peer in point["peers"].items() if "seconds" in peer]
    return min(found)[::-1] if found else None


def figures(point, limits):
    """Every figure that a bar can ask for, as far as the point has it."""
    if not point["ours"]:
        return {}
    median = {key: statistics.median(one[key] for one in point["ours"])
              for key in ("seconds", "bytes_per_s", "weight_bytes_per_s", "weight_bytes", "operand_bytes",
                          "workspace_bytes", "peak_bytes")}
    found = {"copy_share": median["bytes_per_s"] / limits["copy_bytes_per_s"]}
    if median["weight_bytes"] > 0:
        found["read_share"] = median["weight_bytes_per_s"] / limits["read_bytes_per_s"]
        extra = median["peak_bytes"] - median["operand_bytes"] - median["workspace_bytes"]
        found["extra_memory"] = max(0.0, extra) / median["operand_bytes"]
    peer = best_peer(point)
    if peer:
        found["speedup"] = peer[1] / median["seconds"]
    if point["against"]:
        found["against"] = statistics.median(one["against_seconds"] / one["seconds"] for one in point["ours"])
    return found


def bar_rows(results):
    """(bar, point, value or None) of every bar whose point was measured."""
    points = {point["name"]: point for point in results["points"]}
    for bar in BARS:
        if bar.point in points:
            point = points[bar.point]
            yield bar, point, figures(point, results["limits"]).get(bar.figure)


def table(heading, rows):
    """A Markdown table with aligned columns; all but the first column are set to the right."""
    cells = [heading, *rows]
    widths = [max(len(str(row[i])) for row in cells) for i in range(len(heading))]
    text = []
    for number, row in enumerate(cells):
        text.append("| " + " | ".join(str(cell).ljust(w) if i == 0 else str(cell).rjust(w)
                                      for i, (cell, w) in enumerate(zip(row, widths))) + " |")
        if number == 0:
            text.append("|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":"
                                       for i, w in enumerate(widths)) + "|")
    return "\n".join(text)


def bars_table(results):
    rows = []
    for bar, point, value in bar_rows(results):
        peer = best_peer(point)
        ours = seconds_of(point)
        share = limit_share(point, results["limits"])
        rows.append([point["name"], milliseconds(ours) if ours else "not run",
                     f"{milliseconds(peer[1])} ({peer[0]})" if peer else "",
                     f"{peer[1] / ours:.2f}" if peer and ours else "", share,
                     f"{'<=' if bar.at_most else '>='} {bar.value:g} {FIGURES[bar.figure]}",
                     "?" if value is None else f"{value:.3g}",
                     "?" if value is None else "yes" if bar.holds(value) else "NO"])
    return table(["what", "moe64", "best peer", "ratio", "share of limit", "bar", "figure", "met"], rows)


def limit_share(point, limits):
    """The share of the limit that binds, as the tool names it, against the limits of the whole run."""
    if not point["ours"]:
        return ""
    name = statistics.mode(one["limit"] for one in point["ours"])
    keys = {"copy": ("bytes_per_s", "copy_bytes_per_s"), "read": ("bytes_per_s", "read_bytes_per_s"),
            "multiply-add": ("flops_per_s", "fma_flops_per_s"), "bf16 dot": ("flops_per_s", "bf16_flops_per_s"),
            "bf16 tile": ("flops_per_s", "bf16_tile_flops_per_s"), "int8 dot": ("flops_per_s", "int8_ops_per_s")}
    rate, limit = keys[name]
    return f"{100 * statistics.median(one[rate] for one in point['ours']) / limits[limit]:.0f} % of {name}"


def points_table(results):
    rows = []
    for point in results["points"]:
        ours = seconds_of(point)
        peers = [f"{name} " + (f"{milliseconds(statistics.median(peer['seconds']))} ±{100 * spread(peer['seconds']):.0f} %"
                               if "seconds" in peer else f"({peer['error']})")
                 for name, peer in point["peers"].items()]
        first = point["ours"][0] if point["ours"] else {}
        flops = statistics.median(one["flops_per_s"] for one in point["ours"]) if point["ours"] else 0.0
        rate = statistics.median(one["bytes_per_s"] for one in point["ours"]) if point["ours"] else 0.0
        rows.append([point["name"], first.get("impl", ""),
                     f"{milliseconds(ours)} ±{100 * spread([o['seconds'] for o in point['ours']]):.0f} %" if ours
                     else f"not run: {point['error']}",
                     f"{flops / GIGA:.4g}" if flops else "", f"{rate / GIGA:.3g}",
                     limit_share(point, results["limits"]), ", ".join(peers)])
    return table(["what", "implementation", "moe64", "GFLOP/s", "GB/s", "share of limit", "peers"], rows)


def memory_table(results):
    rows = []
    for point in results["points"]:
        if not point["model"] or not point["ours"]:
            continue
        one = point["ours"][-1]
        mib = 1024.0 * 1024.0
        rows.append([point["name"], *(f"{one[key] / mib:.1f}" for key in
                                      ("operand_bytes", "workspace_bytes", "peak_bytes")),
                     f"{100 * figures(point, results['limits'])['extra_memory']:.1f} %"])
    return table(["what", "operands MiB", "workspace MiB", "peak MiB", "beyond both"], rows)


def limits_table(results):
    names = {"copy_bytes_per_s": ("copy (memcpy), bytes read and written", "GB/s"),
             "read_bytes_per_s": ("read (sum of a buffer)", "GB/s"),
             "fma_flops_per_s": ("f32 multiply-add on registers", "GFLOP/s"),
             "bf16_flops_per_s": ("bf16 dot product on registers", "GFLOP/s"),
             "bf16_tile_flops_per_s": ("bf16 tile product (AMX)", "GFLOP/s"),
             "int8_ops_per_s": ("int8 dot product on registers", "GOP/s"),
             "torch_bf16_matmul_flops_per_s": ("PyTorch bf16 matmul 2048^3", "GFLOP/s")}
    limits = results["limits"]
    return table(["limit", "rate", "unit"], [[title, f"{limits[key] / GIGA:.1f}" if limits[key] else "none here", unit]
                                             for key, (title, unit) in names.items() if key in limits])


def verdict(results):
    """Which bars are missed, in words."""
    rows = list(bar_rows(results))
    missed = [(bar, value) for bar, _, value in rows if value is None or not bar.holds(value)]
    text = f"{len(rows) - len(missed)} of {len(rows)} bars met"
    for bar, value in missed:
        reached = "not measured" if value is None else f"{value:.3g}"
        text += (f"\nmissed: {bar.point}: {reached} where {'at most' if bar.at_most else 'at least'} {bar.value:g} "
                 f"{FIGURES[bar.figure]} is asked for")
    return text


def warning(results):
    """A sentence where the machine was not quiet enough to be believed, or not all was measured."""
    text = ""
    if results["machine"]["noise"] > 0.1:
        text += (f"\nThe machine was busy (its arithmetic varied by ±{100 * results['machine']['noise']:.0f} %), which hurts "
                 "the peers more than moe64: do not quote these figures.")
    if results["partial"]:
        text += "\nThis is a part of the points, or a quick run: do not quote it."
    return text


def document(results):
    machine = results["machine"]
    models = "; ".join(f"{model.name}: {model.title}, E{model.experts} k{model.top_k} H{model.hidden} I{model.inter}"
                       for model in MODELS.values())
    return f"""# moe64 {machine['moe64']} on {machine['cpu']}, {machine['threads']} threads

Made by `make bench` on {machine['date']}, commit {machine['commit']}, with PyTorch {machine['torch']}, \
Transformers {machine['transformers']}, \
PEFT {machine['peft']}; {results['rounds']} rounds; the multiply-add limit varied by ±{100 * machine['noise']:.0f} %.{warning(results)}
What the columns mean: [docs/benchmarks.md](../../docs/benchmarks.md).

{models}.

## Limits of the machine

{limits_table(results)}

## The bars

{bars_table(results)}

{verdict(results).splitlines()[0]}.

## Every point

{points_table(results)}

## Memory

{memory_table(results)}
"""


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as stored:
        print(document(json.load(stored)))
