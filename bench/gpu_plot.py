"""The picture of a run of bench/gpu.py: every figure that has a bar against that bar, and the peers against both.

    python3 bench/gpu_plot.py bench/results/gpu-NAME.json picture.svg
"""

import json
import sys
from html import escape

LINE, TITLE = 15, 26  # heights
LABEL, WIDTH, MOST = 330, 420, 1.5  # of a column: room for names, for bars, and the longest bar
COLUMN = LABEL + WIDTH + 130
COLOURS = {"met": "#2e7d4f", "missed": "#c8642b", "peer": "#9aa4b1"}


def rows_of(measured):
    """(group, None) or (point, share of the bar, [(peer, its share)]) from top to bottom."""
    group = None
    for one in measured:
        if one["share"] is None:
            continue
        if one["group"] != group:
            group = one["group"]
            yield group, None, []
        # What takes twice as long has half the share.
        peers = [(peer["name"], one["share"] * one["ours"]["seconds"] / peer["seconds"])
                 for peer in one["peers"] if "seconds" in peer and one["unit"] != "GiB"]
        yield one, one["share"], peers


def row_text(x, y, row):
    one, share, peers = row
    if share is None:
        return [f'<text x="{x}" y="{y + 18}" font-weight="bold">{escape(one)}</text>']
    left, scale = x + LABEL, WIDTH / MOST
    colour = COLOURS["met" if share >= 1 else "missed"]
    parts = [f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{escape(one["name"])}</text>',
             f'<rect x="{left}" y="{y + 2}" width="{scale * min(share, MOST):.1f}" height="{LINE - 4}" fill="{colour}"/>']
    for name, peer in peers:
        parts.append(f'<rect x="{left}" y="{y + 8}" width="{scale * min(peer, MOST):.1f}" height="5" '
                     f'fill="{COLOURS["peer"]}"><title>{escape(name)}</title></rect>')
    figure = f"{one['figure']:.3g}" if one["figure"] < 100 else f"{one['figure']:.0f}"
    at = left + scale * min(max([share, 1.0] + [peer for _, peer in peers]), MOST) + 5
    parts.append(f'<text x="{at:.1f}" y="{y + 11}">{figure} {escape(one["unit"])}</text>')
    return parts


def columns_of(rows, count=2):
    """The rows in columns of about the same height; a group is not cut."""
    groups = []
    for row in rows:
        if row[1] is None:
            groups.append([])
        groups[-1].append(row)
    height = sum(map(height_of, groups)) / count
    columns, filled = [[]], 0
    for group in groups:
        if filled + height_of(group) / 2 > height and len(columns) < count:
            columns.append([])
            filled = 0
        columns[-1] += group
        filled += height_of(group)
    return columns


def height_of(rows):
    return sum(TITLE if share is None else LINE for _, share, _ in rows)


def picture(gpu, measured):
    """SVG text."""
    columns = columns_of(list(rows_of(measured)))
    top = 58
    height, width = top + max(map(height_of, columns)) + 20, COLUMN * len(columns) + 20
    judged = [one for one in measured if one["share"] is not None]
    met = sum(one["share"] >= 1 for one in judged)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
             f'font-size="11"><rect width="100%" height="100%" fill="white"/>',
             f'<text x="10" y="22" font-size="15">moe64 on {escape(gpu["name"])}, commit {escape(gpu["commit"])}, '
             f'{gpu["date"]}: {met} of {len(judged)} bars met</text>',
             f'<text x="10" y="42"><tspan fill="{COLOURS["met"]}">bar met</tspan>, '
             f'<tspan fill="{COLOURS["missed"]}">bar missed</tspan>, <tspan fill="{COLOURS["peer"]}">peers</tspan> on the '
             f'same scale; the line is the bar, longer is faster, cut at {MOST:g}</text>']
    for place, rows in enumerate(columns):
        x, y = 10 + place * COLUMN, top
        line = x + LABEL + WIDTH / MOST
        for row in rows:
            parts += row_text(x, y, row)
            y += TITLE if row[1] is None else LINE
        parts.append(f'<line x1="{line}" y1="{top}" x2="{line}" y2="{y}" stroke="black"/>')
    return "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as stored:
        results = json.load(stored)
    with open(sys.argv[2], "w", encoding="utf-8") as drawn:
        drawn.write(picture(results["gpu"], results["points"]))
