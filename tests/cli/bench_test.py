"""The comparison of `make bench` as far as it needs neither PyTorch nor Transformers: its points, its tables."""

import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = os.environ.get("MOE64_TOOL", str(ROOT / "build/release/bin/moe64"))
sys.path.insert(0, str(ROOT / "bench"))

import points  # noqa: E402
import report  # noqa: E402
import tool  # noqa: E402

LIMITS = {"copy_bytes_per_s": 20e9, "read_bytes_per_s": 30e9, "fma_flops_per_s": 200e9, "bf16_flops_per_s": 400e9,
          "bf16_tile_flops_per_s": 0.0, "int8_ops_per_s": 0.0, "torch_bf16_matmul_flops_per_s": 300e9}


def ours(seconds, **more):
    return {"impl": "reference", "seconds": seconds, "flops_per_s": 1e9, "bytes_per_s": 15e9, "limit": "read",
            "weight_bytes": 30e6, "weight_bytes_per_s": 30e6 / seconds, "operand_bytes": 100e6, "workspace_bytes": 1e6,
            "peak_bytes": 103e6} | more


def point(name, kind, seconds, peers, **more):
    return {"name": name, "kind": kind, "model": "", "tokens": 0, "line": "", "against": "", "error": "",
            "ours": [ours(one) for one in seconds], "peers": peers} | more


def results(*measured):
    return {"machine": {"cpu": "A CPU", "threads": 2, "moe64": "1.2.3", "commit": "abcdef0",
                        "date": "2026-01-01", "torch": "2", "peft": "0",
                        "transformers": "5", "noise": 0.03},
            "rounds": 3, "partial": False, "limits": LIMITS, "points": list(measured)}


DECODE = point("flash-row T=1 forward", "forward", [0.0010, 0.0012, 0.0020],
               {"eager": {"seconds": [0.003, 0.0031, 0.003]}, "grouped_mm": {"seconds": [0.0024, 0.0024, 0.002]},
                "batched_mm": {"error": "RuntimeError: no"}}, model="flash-row", tokens=1)


class Points(unittest.TestCase):
    def test_names_are_unique_and_every_bar_has_its_point(self):
        names = [one.name for one in points.POINTS]
        self.assertEqual(len(names), len(set(names)))
        for bar in points.BARS:
            self.assertIn(bar.point, names)
            self.assertIn(bar.figure, report.FIGURES)

    def test_every_line_is_a_problem(self):
        lines = [line for one in points.POINTS for line in (one.line, one.against) if line]
        done = subprocess.run([TOOL, "verify", "-f", "-"], input="\n".join([*lines, "no_such_key=1"]), text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(f":{len(lines) + 1}:", done.stderr)
        self.assertIn("no_such_key", done.stderr)

    def test_peers_of_one_shape_follow_each_other(self):
        shapes = [points.MODELS[one.model].peer for one in points.POINTS if one.model]
        changes = [shape for i, shape in enumerate(shapes) if i == 0 or shapes[i - 1] != shape]
        self.assertEqual(len(changes), len(set(shapes)))


class Tool(unittest.TestCase):
    LINE = "tokens=4 hidden=32 inter=24 experts=4 top_k=2"

    def test_answers_have_what_the_tables_need(self):
        first, second = tool.bench(TOOL, [self.LINE, "op=gather " + self.LINE], 1, 0.01)
        for key in ours(1.0):
            self.assertIn(key, first)
        self.assertLessEqual(set(first["limits"]), set(LIMITS))
        measured = point("x", "", [], {}) | {"ours": [first]}
        self.assertGreater(report.figures(measured, first["limits"])["read_share"], 0)
        self.assertNotIn("read_share", report.figures(measured | {"ours": [second]}, LIMITS))

    def test_a_refused_problem_says_why(self):
        with self.assertRaisesRegex(tool.ToolError, "cuda:99"):
            tool.bench(TOOL, [self.LINE + " device=cuda:99"], 1, 0.01)


class Tables(unittest.TestCase):
    def test_medians_and_the_best_peer_decide(self):
        self.assertEqual(report.seconds_of(DECODE), 0.0012)
        self.assertEqual(report.best_peer(DECODE), ("grouped_mm", 0.0024))
        found = report.figures(DECODE, LIMITS)
        self.assertAlmostEqual(found["speedup"], 2.0)
        self.assertAlmostEqual(found["read_share"], 25.0 / 30.0)
        self.assertAlmostEqual(found["copy_share"], 0.75)
        self.assertAlmostEqual(found["extra_memory"], 0.02)
        self.assertNotIn("against", found)

    def test_skewed_routing_is_held_against_the_same_call(self):
        skewed = point("flash-row T=2048 zipf", "", [], {}, against="tokens=2048")
        skewed["ours"] = [ours(2.0, against_seconds=1.0), ours(1.0, against_seconds=0.9)]
        self.assertAlmostEqual(report.figures(skewed, LIMITS)["against"], 0.7)

    def test_bars_are_met_or_missed_and_said_so(self):
        slow = point("gather", "", [0.1], {})  # 0.75 of copy where 0.7 is asked for
        late = point("activate", "", [], {}) | {"ours": [ours(0.1, bytes_per_s=13e9)]}
        refused = point("combine", "", [], {}, error="no memory")
        text = report.verdict(results(DECODE, slow, late, refused))
        self.assertIn("3 of 5 bars met", text)  # two of decode, gather
        self.assertIn("missed: activate: 0.65 where at least 0.7 of copy", text)
        self.assertIn("missed: combine: not measured", text)

    def test_document_names_everything(self):
        text = report.document(results(DECODE, point("combine", "", [], {}, error="no memory")))
        for words in ("A CPU, 2 threads", "2.4 ms (grouped_mm)", "RuntimeError: no", "no memory", "none here",
                      ">= 2 x best peer", "50 % of read", "±42 %"):
            self.assertIn(words, text)
        self.assertNotIn("quote", text)

    def test_a_busy_machine_and_a_partial_run_are_not_to_be_quoted(self):
        busy = results(DECODE)
        busy["machine"] = busy["machine"] | {"noise": 0.5}
        self.assertIn("The machine was busy (its arithmetic varied by ±50 %)", report.document(busy))
        self.assertIn("do not quote it", report.document(results(DECODE) | {"partial": True}))

    def test_columns_are_aligned(self):
        lines = report.table(["a", "long heading"], [["first row", 1], ["b", "x"]]).splitlines()
        self.assertEqual(len({len(line) for line in lines}), 1)
        self.assertEqual(len(lines), 4)

    def test_slug(self):
        self.assertEqual(report.slug("Intel(R) Xeon(R) Gold 6448Y @ 2.1GHz"), "intel-r-xeon-r-gold-6448y-2-1ghz")


if __name__ == "__main__":
    unittest.main()
