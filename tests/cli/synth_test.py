"""moe64 synth: names, options, exit codes, JSON, and that what it breaks is seen."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

TOOL = os.environ.get("MOE64_TOOL", "build/release/bin/moe64")
OK, FAILED, USAGE = 0, 1, 2
SMALL = ("--scale-down", "64", "--layers", "4")


class Synth(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def tool(self, code, *arguments):
        done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def json(self, code, *arguments):
        return json.loads(self.tool(code, *arguments, "--json").stdout)

    def test_list_names_models_and_faults(self):
        text = self.tool(OK, "synth", "--list").stdout
        found = self.json(OK, "synth", "--list")
        for name in ("glm-4.7-flash", "glm-4.5", "glm-5.2", "deepseek-v3", "deepseek-v3.1", "deepseek-v4-flash",
                     "qwen3-30b", "qwen3.5", "qwen3-vl", "minimax-m2", "minimax-m3", "mixtral", "gpt-oss", "kimi-k2",
                     "kimi-k2-thinking", "llama-4", "step-3.5", "granite-moe", "mistral-large-3"):
            self.assertIn(name, text)
            self.assertIn(name, [model["like"] for model in found["models"]])
        for kind in ("dropped-scale", "truncated-shard", "nan-code", "reciprocal-scale"):
            self.assertIn(kind, text)
            self.assertIn(kind, [fault["kind"] for fault in found["faults"]])

    def test_what_it_says_is_what_inspect_says(self):
        made = self.json(OK, "synth", self.folder / "glm", "--like", "glm-5.2", *SMALL)
        found = self.json(OK, "inspect", self.folder / "glm")
        self.assertEqual(made["dialects"], found["dialects"])
        for word in ("hidden", "inter", "experts", "layers"):
            self.assertEqual(made[word], found["geometry"][word])
        self.assertEqual(made["tensors"], found["totals"]["tensors"])
        self.assertEqual(made["bytes"], found["totals"]["tensor_bytes"])
        self.assertEqual(made["shards"], found["totals"]["shards"])
        self.assertEqual(found["findings"], [])

    def test_without_a_name_it_is_glm_flash(self):
        made = self.json(OK, "synth", self.folder / "it", *SMALL)
        self.assertEqual(made["like"], "glm-4.7-flash")
        self.assertIn("D6", made["dialects"])

    def test_options_arrive(self):
        made = self.json(OK, "synth", self.folder / "it", "--dialect", "D1", "--scale-down", "32", "--layers", "5", "--seed",
                         "7", "--shard-size", "100000", "--mtp", "--threads", "2")
        self.assertEqual((made["layers"], made["moe_layers"], made["seed"]), (5, 4, 7))
        self.assertGreater(made["shards"], 3)

    def test_a_layer_of_it_runs(self):
        self.tool(OK, "synth", self.folder / "it", "--like", "qwen3-30b", *SMALL)
        self.tool(OK, "run", self.folder / "it", "--layer", "1", "--tokens", "8")

    def test_check_finds_nothing_in_a_model_of_each_kind_of_scale(self):
        for like in ("glm-4.7-flash", "deepseek-v3.1", "kimi-k2-thinking", "gpt-oss", "mixtral", "qwen3-30b-nvfp4",
                     "qwen3.8-nvfp4", "minimax-m3", "llama-4-fbgemm", "mistral-large-3"):
            with self.subTest(like=like):
                self.tool(OK, "synth", self.folder / like, "--like", like, *SMALL)
                self.tool(OK, "check", self.folder / like)

    def test_every_fault_is_caught_by_check_and_those_of_files_by_inspect(self):
        for fault in self.json(OK, "synth", "--list")["faults"]:
            kind = fault["kind"]
            with self.subTest(kind=kind):
                made = self.json(OK, "synth", self.folder / kind, "--like", "deepseek-v3.1", "--break", kind, *SMALL)
                self.assertEqual(made["fault"]["kind"], kind)
                done = subprocess.run([TOOL, "inspect", self.folder / kind], capture_output=True, text=True)
                self.assertEqual(done.returncode == OK, fault["value"], done.stdout + done.stderr)
                done = subprocess.run([TOOL, "check", self.folder / kind], capture_output=True, text=True)
                if kind == "zero-matrix":  # somebody may have switched an expert off: no error
                    self.assertIn("warning all-zero (1)", done.stdout)
                else:
                    self.assertNotEqual(done.returncode, OK, done.stdout + done.stderr)

    def test_refusals(self):
        (self.folder / "full").mkdir()
        (self.folder / "full" / "config.json").write_text("{}")
        for arguments, word in (((), "OUT"), ((self.folder / "a", "--like", "gpt-5"), "gpt-5"),
                                ((self.folder / "a", "--dialect", "D99"), "D99"),
                                ((self.folder / "a", "--break", "gremlins"), "gremlins"),
                                ((self.folder / "a", "--like", "gpt-oss", "--dialect", "D13"), "D13"),
                                ((self.folder / "a", "--like", "mixtral", "--mtp"), "MTP"),
                                ((self.folder / "a", "--scale-down", "0"), "scale-down"),
                                ((self.folder / "full",), "not empty")):
            with self.subTest(arguments=arguments):
                done = self.tool(USAGE, "synth", *arguments)
                self.assertIn(word, done.stderr)
                self.assertEqual(done.stdout, "")
        self.assertFalse((self.folder / "a").exists())


if __name__ == "__main__":
    unittest.main()
