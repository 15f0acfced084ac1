"""moe64 merge and moe64 check --base: adapters in the weights of a checkpoint, refusals, kills and the bound of memory."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from convert_test import EXPERTS, HIDDEN, INTER, TOOL, contents, make_checkpoint, run, write_file

OK, USAGE, UNSUPPORTED = 0, 2, 3
RANK = 4
DENSE = "model.layers.0.self_attn.p{}_proj"


def factors(path, rows, inputs, outputs, draw, size=0.05):
    def matrix(name, shape):
        data = struct.pack(f"<{shape[0] * shape[1]}f", *(draw.uniform(-size, size) for _ in range(shape[0] * shape[1])))
        return {f"base_model.model.{path}.{name}.weight": ("F32", shape, data)}
    return {**matrix("lora_A", [rows, inputs]), **matrix("lora_B", [outputs, rows])}


def make_adapter(folder, dense=(), size=0.05, config=None, **more):
    """For the experts of make_checkpoint's layer, and for some of its attention matrices of so many rows."""
    draw = random.Random(7)
    folder.mkdir(exist_ok=True)
    experts = "model.layers.0.mlp.experts"
    tensors = {**factors(experts + ".base_layer", RANK * EXPERTS, HIDDEN, 2 * INTER, draw, size),
               **factors(experts, RANK * EXPERTS, INTER, HIDDEN, draw, size)}
    for module, rows in enumerate(dense):
        tensors.update(factors(DENSE.format(module), RANK, 1024, rows, draw, size))
    write_file(folder / "adapter_model.safetensors", {**tensors, **more})
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj"],
        "target_parameters": ["experts.gate_up_proj", "experts.down_proj"], **(config or {})}))


class Merge(unittest.TestCase):
    def setUp(self):
        self.base = Path(tempfile.mkdtemp(prefix="moe64_merge_"))
        self.addCleanup(shutil.rmtree, self.base)

    def merge(self, out, *more, to="bf16"):
        return run("merge", self.base / "a", self.base / "adapter", self.base / out, "--to", to, *more)

    def test_reports(self):
        make_checkpoint(self.base / "a", 1)
        make_adapter(self.base / "adapter", dense=[1024])
        done = self.merge("out", "--json")
        self.assertEqual(done.returncode, OK, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual((report["pairs"], report["modules"], len(report["merged"])), (3, 3 * EXPERTS + 1, 3 * EXPERTS + 1))
        for tensor in report["merged"]:
            self.assertGreater(tensor["delta"], 0)
            self.assertAlmostEqual(tensor["kept"], 1, delta=0.05)
            self.assertTrue(tensor["survives"])
        self.assertEqual(report["warnings"], [])
        self.assertNotIn("quantization_config", (self.base / "out/config.json").read_text())
        text = self.merge("text", to="same")
        self.assertEqual(text.returncode, OK, text.stderr)
        self.assertRegex(text.stdout, r"(?m)^merged +3 pairs of factors into 7 tensors of the base, 7 of the result$")
        self.assertIn("quantization_config", (self.base / "text/config.json").read_text())
        self.assertEqual(run("inspect", self.base / "text").returncode, OK)

    def test_a_small_change_is_a_warning_and_no_failure(self):
        make_checkpoint(self.base / "a", 1)
        make_adapter(self.base / "adapter", size=1e-4)
        done = self.merge("out", to="same")
        self.assertEqual(done.returncode, OK, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^WARNING +in 6 of 6 tensors little of the adapter survives")

    def test_check_says_whether_it_fits(self):
        make_checkpoint(self.base / "a", 1)
        make_adapter(self.base / "adapter", dense=[1024])
        done = run("check", self.base / "adapter", "--base", self.base / "a")
        self.assertEqual(done.returncode, OK, done.stderr)
        self.assertIn("ok: 3 pairs of factors fit 7 tensors", done.stdout)
        found = json.loads(run("check", self.base / "adapter", "--base", self.base / "a", "--json").stdout)
        self.assertEqual((found["ok"], found["pairs"], found["modules"]), (True, 3, 7))
        done = run("check", self.base / "adapter")
        self.assertEqual(done.returncode, USAGE)
        self.assertIn("is an adapter: state the checkpoint that it is for with --base", done.stderr)
        self.assertEqual(run("check", self.base / "adapter", "--base", self.base / "a", "--sha256").returncode, USAGE)
        self.assertEqual(run("check", self.base / "adapter", "--lora-layout", "peft").returncode, USAGE)
        self.assertEqual(run("check", self.base / "adapter", "--base", "").returncode, USAGE)

    def test_refusals_write_nothing(self):
        make_checkpoint(self.base / "a", 1)
        nan = struct.pack("<f", float("nan")) * 1024
        other = {f"base_model.model.{DENSE.format(0)}.lora_A.weight": ("F32", [1, 1024], nan),
                 f"base_model.model.{DENSE.format(0)}.lora_B.weight": ("F32", [1024, 1], nan)}
        for code, part, options in (
                (UNSUPPORTED, "use_dora", {"config": {"use_dora": True}}),
                (USAGE, "another model", {"dense": [1024, 1024]}),
                (USAGE, "rank 8", {"config": {"r": 8}}),
                (USAGE, "1000", {"dense": [1000]}),
                (USAGE, "not finite", {"config": {"rank_pattern": {"p0_proj": 1}}, **other}),
                (UNSUPPORTED, "lm_head", {"base_model.model.lm_head.weight": ("F32", [1, 1], b"1234")})):
            make_adapter(self.base / "adapter", **options)
            done = self.merge("out", "--json")
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(part, json.loads(done.stdout)["message"])
            self.assertFalse((self.base / "out").exists(), part)
            self.assertEqual(run("check", self.base / "adapter", "--base", self.base / "a").returncode, code)
        make_adapter(self.base / "adapter")
        for options in (["--to", "f16"], ["--to", "bf16", "--lora-layout", "mine"], []):
            done = run("merge", self.base / "a", self.base / "adapter", self.base / "out", *options)
            self.assertEqual(done.returncode, USAGE, done.stderr)
        os.remove(self.base / "a/model.safetensors")
        self.assertNotEqual(self.merge("out").returncode, OK)
        self.assertFalse((self.base / "out").exists())

    def test_memory_is_bounded(self):
        make_checkpoint(self.base / "a", 64, sparse=True)
        make_adapter(self.base / "adapter", dense=[64 * 1024])
        done = self.merge("out", "--memory", "40MiB", "--json", "--threads", "2", to="fp8-block")
        self.assertEqual(done.returncode, OK, done.stderr)
        report = json.loads(done.stdout)
        self.assertLessEqual(report["buffer_bytes"], 40 << 20)
        self.assertLess(report["peak_bytes"], 120 << 20)

    def test_kill_at_random_moments_and_resume(self):
        make_checkpoint(self.base / "a", 4, modules=6)
        make_adapter(self.base / "adapter", dense=[4096] * 6)
        options = ("--shard-size", "4MB", "--threads", "1")
        self.assertEqual(self.merge("whole", *options).returncode, OK)
        whole = contents(self.base / "whole")
        draw = random.Random(3)
        for _ in range(4):
            for _ in range(2):
                process = subprocess.Popen([TOOL, "merge", self.base / "a", self.base / "adapter", self.base / "out", "--to",
                                            "bf16", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(draw.uniform(0.01, 0.15))
                process.send_signal(signal.SIGKILL)
                process.wait()
                for name, found in contents(self.base / "out", every=False).items():
                    self.assertEqual(whole[name], found, name)
            done = self.merge("out", *options)
            self.assertEqual(done.returncode, OK, done.stderr)
            self.assertEqual(contents(self.base / "out"), whole)
            shutil.rmtree(self.base / "out")


if __name__ == "__main__":
    unittest.main()
