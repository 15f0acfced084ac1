"""The moe64 tool, found in $MOE64_TOOL, as its users meet it: texts, exit codes, JSON."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

TOOL = os.environ.get("MOE64_TOOL", "build/release/bin/moe64")
ROOT = pathlib.Path(__file__).resolve().parents[2]
SMOKE = ROOT / "bench" / "problems" / "smoke.txt"
SMALL = "tokens=4 hidden=32 inter=24 experts=4 top_k=2"
OPERATIONS = "quantize route plan gather grouped_gemm activate combine".split()
KEYS = ("op tokens hidden inter experts top_k weight scale scale_dtype act mode scheme io layout routing weight_on lora "
        "bias backward quantized device seed impl").split()
VERBS = "verify bench doctor demo inspect check convert merge diff run synth".split()

OK, FAILED, USAGE, UNSUPPORTED, OUT_OF_MEMORY = range(5)


def run(*arguments, stdin=None, **environment):
    return subprocess.run([TOOL, *arguments], input=stdin, capture_output=True, text=True, timeout=240,
                          env=os.environ | environment)


class Tool(unittest.TestCase):
    def expect(self, code, *arguments, stdin=None):
        done = run(*arguments, stdin=stdin)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def objects(self, code, *arguments, stdin=None):
        done = self.expect(code, *arguments, "--json", stdin=stdin)
        return [json.loads(line) for line in done.stdout.splitlines()]


class Verify(Tool):
    def test_smoke_file_is_ok(self):
        done = self.expect(OK, "verify", "-f", str(SMOKE))
        wanted = [line for line in SMOKE.read_text().splitlines() if line and not line.startswith("#")]
        self.assertEqual(len(done.stdout.splitlines()), len(wanted))
        for line in done.stdout.splitlines():
            self.assertTrue(line.endswith("| ok"), line)

    def test_json_has_the_promised_keys(self):
        found, = self.objects(OK, "verify", SMALL + " backward=1")
        for key in ("problem", "impl", "ok", "worst_error"):
            self.assertIn(key, found)
        self.assertIs(found["ok"], True)
        self.assertGreater(found["worst_error"], 0)
        self.assertEqual([output["output"] for output in found["outputs"]], ["y", "dx", "d_weights"])

    def test_printed_problem_is_the_one_that_ran(self):
        found, = self.objects(OK, "verify", "top_k=2 tokens=4 hidden=32 inter=24 experts=4 seed=1")
        self.assertEqual(found["problem"], SMALL)
        again, = self.objects(OK, "verify", found["problem"])
        self.assertEqual(again["worst_error"], found["worst_error"])

    def test_words_without_quotes_are_one_problem(self):
        self.assertEqual(len(self.objects(OK, "verify", *SMALL.split())), 1)
        self.assertEqual(len(self.objects(OK, "verify", SMALL, SMALL + " seed=2", SMALL + " seed=3")), 3)

    def test_file_with_comments_and_standard_input(self):
        text = f"# a comment\n\n{SMALL}  # behind it\n{SMALL} io=f32\n"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "problems.txt"
            path.write_text(text)
            self.assertEqual(len(self.objects(OK, "verify", "-f", str(path))), 2)
        self.assertEqual(len(self.objects(OK, "verify", "-f", "-", stdin=text)), 2)

    def test_exact_data_are_equal(self):
        found, = self.objects(OK, "verify", "--data", "exact", "op=grouped_gemm " + SMALL)
        self.assertEqual(found["worst_error"], 0)

    def test_threads_do_not_change_anything(self):
        one, = self.objects(OK, "verify", SMALL, "--threads", "1")
        three, = self.objects(OK, "verify", SMALL, "--threads", "3")
        self.assertEqual(one["worst_error"], three["worst_error"])

    def test_sampling_is_reported(self):
        found, = self.objects(OK, "verify", "tokens=64 hidden=64 inter=64 experts=4 top_k=2", "--budget", "300000")
        self.assertLess(found["compared"], found["total"])
        self.assertEqual(found["total"], 64)

    def test_standard_output_holds_results_only(self):
        done = self.expect(OK, "verify", SMALL, "--progress")
        self.assertEqual(len(done.stdout.splitlines()), 1)
        self.assertNotIn("\r", done.stdout)


class Refusals(Tool):
    def test_unknown_key(self):
        done = self.expect(USAGE, "verify", SMALL + " colour=red")
        self.assertIn("colour=red", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_bad_line_of_a_file_is_located_before_anything_runs(self):
        done = self.expect(USAGE, "verify", "-f", "-", stdin=f"{SMALL}\n{SMALL} tokens=4\n")
        self.assertIn(":2:", done.stderr)
        self.assertIn("tokens", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_bad_usage(self):
        for arguments in ([], ["fly"], ["verify"], ["verify", "--threads", "0", SMALL], ["bench", "-f", "/nonexistent"],
                          ["verify", "--budget", "-1", SMALL]):
            self.assertNotEqual(self.expect(USAGE, *arguments).stderr, "", arguments)

    def test_device_that_is_not_there(self):
        done = self.expect(UNSUPPORTED, "verify", SMALL + " device=cuda:99")
        self.assertIn("cuda:99", done.stdout)
        found, = self.objects(UNSUPPORTED, "verify", SMALL + " device=cuda:99")
        self.assertEqual(found["error"], "unsupported")
        self.assertIs(found["ok"], False)

    def test_the_other_problems_still_run(self):
        found = self.objects(UNSUPPORTED, "verify", SMALL + " device=cuda:99", SMALL)
        self.assertEqual([one["ok"] for one in found], [False, True])

    def test_implementation_that_is_not_there(self):
        done = self.expect(UNSUPPORTED, "verify", SMALL + " impl=magic")
        self.assertIn("magic", done.stdout)

    def test_too_large_for_the_memory(self):
        self.expect(OUT_OF_MEMORY, "bench", "op=gather tokens=1000000000 hidden=65536 experts=4 top_k=2")

    def test_too_large_for_any_machine(self):
        done = self.expect(USAGE, "verify", "tokens=4611686018427387904 hidden=4611686018427387904")
        self.assertIn("4611686018427387904", done.stdout)

    def test_control_characters_are_written_out(self):
        done = self.expect(USAGE, "verify", "tokens=\x1b[31m4 \x07")
        self.assertNotIn("\x1b", done.stderr)
        self.assertNotIn("\x07", done.stderr)
        self.assertIn("\\x1b", done.stderr)
        done = self.expect(USAGE, "verify", "-f", "/nonexistent/\x1b]0;title\x07")
        self.assertNotIn("\x1b", done.stderr)
        done = self.expect(USAGE, "verify", "--\x1b[31m")
        self.assertNotIn("\x1b", done.stderr)


class Bench(Tool):
    def test_json_has_the_promised_keys(self):
        found, = self.objects(OK, "bench", SMALL, "--min-time", "0.01", "--threads", "1")
        for key in ("problem", "impl", "seconds", "flops_per_s", "bytes_per_s", "limit_share", "workspace_bytes",
                    "peak_bytes"):
            self.assertIn(key, found)
        for key in ("seconds", "flops_per_s", "bytes_per_s", "limit_share", "workspace_bytes", "peak_bytes",
                    "weight_bytes", "weight_bytes_per_s", "weight_read_share", "operand_bytes"):
            self.assertGreater(found[key], 0, key)
        for key in ("copy_bytes_per_s", "read_bytes_per_s", "fma_flops_per_s"):
            self.assertGreater(found["limits"][key], 1e8, key)
        self.assertGreaterEqual(found["peak_bytes"], found["operand_bytes"] + found["workspace_bytes"])

    def test_small_batches_take_turns_among_routings(self):
        few, many, operation = self.objects(OK, "bench", SMALL,
                                            SMALL.replace("tokens=4", "tokens=17"), "op=gather " + SMALL,
                                            "--min-time", "0.01", "--threads", "1")
        self.assertEqual([few["routings"], many["routings"], operation["routings"]], [16, 1, 1])
        self.assertGreaterEqual(few["runs"], 16)
        self.assertEqual(operation["weight_bytes"], 0)

    def test_weights_are_held_against_reading(self):
        done = self.expect(OK, "bench", "tokens=1 hidden=256 inter=256 experts=4 top_k=1", "--min-time", "0.01")
        self.assertRegex(done.stdout, r"\| weights [0-9.]+ .B/s, [0-9.]+ % of read \|")
        self.assertRegex(done.stderr, r"copy .*, read .*, multiply-add ")
        self.assertNotIn("weights", self.expect(OK, "bench", "op=gather " + SMALL, "--min-time", "0.01").stdout)

    def test_text_names_the_limit(self):
        done = self.expect(OK, "bench", "op=gather " + SMALL, "--min-time", "0.01")
        self.assertIn("% of copy", done.stdout)


class Texts(Tool):
    def test_help_teaches(self):
        overview = self.expect(OK, "--help").stdout
        for verb in (*VERBS, "version"):
            self.assertIn(verb, overview)
        self.assertIn("Exit codes", overview)
        for verb in VERBS:
            text = self.expect(OK, verb, "--help").stdout
            self.assertTrue(all(c.isprintable() or c == "\n" for c in text), f"{verb} --help is not fit for a terminal")
            self.assertGreater(len(text), 200, verb)
        for verb in ("verify", "bench"):
            text = self.expect(OK, verb, "--help").stdout
            self.assertIn("Examples", text)
            for key in KEYS:
                self.assertIn(key, text, f"{verb} --help does not name {key}")

    def test_manual_names_every_key_and_exit_code(self):
        lines = (ROOT / "docs" / "problem-lines.md").read_text()
        for key in KEYS:
            self.assertIn(f"`{key}`", lines)
        manual = (ROOT / "docs" / "cli.md").read_text()
        for code in (*range(7), 130):
            self.assertIn(f"| {code} |", manual)

    def test_verbose_lines_are_problems(self):
        done = run("verify", SMALL + " backward=1 lora=2 bias=1", MOE64_VERBOSE="1")
        self.assertEqual(done.returncode, OK, done.stderr)
        lines = [line.split(",") for line in done.stderr.splitlines() if line.startswith("moe64,exec,")]
        self.assertEqual({line[2] for line in lines},
                         {"plan", "gather", "grouped_gemm", "activate", "combine", "slot_weight_gradient",
                          "grouped_gemm_wgrad", "activate_backward"})
        for _, _, operation, device, implementation, problem, time in lines:
            self.assertEqual(device, "cpu")
            self.assertRegex(implementation, r"^[a-z][a-z0-9_]*$")
            self.assertRegex(time, r"^[0-9.]+ms$")
        found = self.objects(OK, "verify", "-f", "-", stdin="\n".join(sorted({line[5] for line in lines})))
        self.assertTrue(all(one["ok"] for one in found))
        self.assertNotIn("moe64,", run("verify", SMALL).stderr)

    def test_doctor_names_every_operation(self):
        text = self.expect(OK, "doctor").stdout
        for operation in OPERATIONS:
            self.assertIn(operation, text)
        self.assertIn("cuda", text)
        found, = self.objects(OK, "doctor")
        self.assertLessEqual(set(OPERATIONS), {one["operation"] for one in found["operations"]})
        for one in found["operations"]:
            self.assertNotEqual(one["impl"], "none", one)
        layers = {(one["device"], one["layer"]): one["answer"] for one in found["layers"]}
        self.assertIn("mode w8a16: gate_up: cpu has no FP8 GEMM in hardware",
                      layers["cpu", "weight=e4m3 scheme=dynamic"])
        self.assertIn("mode native", layers["cpu", "weight=bf16"])
        for answer in layers.values():
            self.assertIn(answer, text)

    def test_verbose_says_the_mode_of_a_layer_and_why(self):
        done = run("verify", SMALL + " scheme=dynamic", MOE64_VERBOSE="2")
        self.assertEqual(done.returncode, OK, done.stderr)
        self.assertIn("moe64,mode,layer,cpu,w8a16,gate_up: cpu has no FP8 GEMM in hardware", done.stderr.splitlines())
        self.assertNotIn("moe64,mode,", run("verify", SMALL + " scheme=dynamic", MOE64_VERBOSE="1").stderr)

    def test_verbose_says_why_a_w8a8_layer_is_several_calls(self):
        done = run("verify", SMALL + " mode=w8a8", MOE64_VERBOSE="2")
        self.assertEqual(done.returncode, OK, done.stderr)
        lines = done.stderr.splitlines()
        self.assertIn("moe64,refused,layer,cpu,quantize in gather,cpu has no gather that makes the codes of a token once", lines)
        self.assertTrue(any(line.startswith("moe64,refused,layer,cpu,fused layer,nothing on cpu takes ") for line in lines), lines)

    def test_version(self):
        self.assertRegex(self.expect(OK, "version").stdout, r"^moe64 \d+\.\d+\.\d+\n$")

    def test_every_committed_problem_parses(self):
        for path in sorted((ROOT / "bench" / "problems").glob("*.txt")):
            done = run("verify", "-f", "-", stdin=path.read_text() + "\nno_such_key=1\n")
            self.assertEqual(done.returncode, USAGE)
            self.assertIn("no_such_key", done.stderr, path)


if __name__ == "__main__":
    unittest.main()
