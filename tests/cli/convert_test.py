"""moe64 convert and moe64 diff: kills, interruptions, full disks, the bound of memory."""

import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TOOL = os.environ.get("MOE64_TOOL", "build/release/bin/moe64")

HIDDEN, INTER, EXPERTS = 256, 256, 2


def run(*arguments, **options):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=280, **options)


def write_file(path, tensors):
    """tensors: name -> (dtype, shape, bytes, or a size for zeros that take no space)."""
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        size = data if isinstance(data, int) else len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            if isinstance(data, int):
                file.seek(data, os.SEEK_CUR)
            else:
                file.write(data)
        file.truncate(8 + len(text) + end)


def codes(count, draw):
    """FP8 codes without NaN."""
    table = bytes(c ^ 1 if c & 0x7F == 0x7F else c for c in range(256))
    return draw.randbytes(count).translate(table)


def fp8(name, rows, cols, data, draw):
    grid = [-(-rows // 128), -(-cols // 128)]
    scales = struct.pack(f"<{grid[0] * grid[1]}f", *(draw.uniform(1e-3, 1e-2) for _ in range(grid[0] * grid[1])))
    return {f"{name}.weight": ("F8_E4M3", [rows, cols], data),
            f"{name}.weight_scale_inv": ("F32", grid, scales)}


def make_checkpoint(folder, dense_mib, modules=1, sparse=False):
    """A layer of small experts, and `modules` attention matrices of `dense_mib` each."""
    draw = random.Random(1)
    folder.mkdir()
    config = {"model_type": "deepseek_v3", "hidden_size": HIDDEN, "moe_intermediate_size": INTER,
              "n_routed_experts": EXPERTS, "num_experts_per_tok": 1, "num_hidden_layers": 1,
              "first_k_dense_replace": 0, "hidden_act": "silu", "torch_dtype": "bfloat16",
              "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    tensors = {}
    for expert in range(EXPERTS):
        for part in ("gate_proj", "up_proj", "down_proj"):
            tensors.update(fp8(f"model.layers.0.mlp.experts.{expert}.{part}", HIDDEN, INTER,
                               codes(HIDDEN * INTER, draw), draw))
    for module in range(modules):
        rows, cols = 1024 * dense_mib, 1024
        data = rows * cols if sparse else codes(rows * cols, draw)
        tensors.update(fp8(f"model.layers.0.self_attn.p{module}_proj", rows, cols, data, draw))
    write_file(folder / "model.safetensors", tensors)


def contents(folder, every=True):
    """Checksums of all files of an output, or of those under final names."""
    found = {}
    for path in sorted(folder.iterdir()) if folder.exists() else []:
        if path.name.startswith(".moe64") or (not every and path.name.endswith(".partial")):
            continue
        found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


class Convert(unittest.TestCase):
    def setUp(self):
        self.base = Path(tempfile.mkdtemp(prefix="moe64_convert_"))
        self.addCleanup(shutil.rmtree, self.base)

    def convert(self, source, out, *more):
        return run("convert", self.base / source, self.base / out, "--to", "bf16", *more)

    def test_report_and_diff(self):
        make_checkpoint(self.base / "a", 1)
        done = self.convert("a", "b", "--json", "--coverage", self.base / "coverage.tsv")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["tensors"], {"input": 14, "output": 7, "converted": 7, "copied": 0,
                                             "consumed": 7, "dropped": 0})
        self.assertEqual(report["side_files"], ["tokenizer.json"])
        lines = (self.base / "coverage.tsv").read_text().splitlines()
        self.assertEqual(len(lines), 14)
        self.assertNotIn("quantization_config", (self.base / "b/config.json").read_text())
        close = run("diff", self.base / "a", self.base / "b", "--tolerance", "0.004")
        self.assertEqual(close.returncode, 0, close.stdout + close.stderr)
        self.assertIn("same: 7 close", close.stdout)
        exact = run("diff", self.base / "a", self.base / "b", "--json")
        self.assertEqual(exact.returncode, 1)
        self.assertEqual(json.loads(exact.stdout)["counts"]["different"], 7)
        self.assertEqual(run("diff", self.base / "b", self.base / "b", "--bitwise").returncode, 0)

    def test_a_file_that_is_named_alone(self):
        make_checkpoint(self.base / "a", 1)
        [file] = (self.base / "a").glob("*.safetensors")
        for source, out in [(file.relative_to(self.base), "b"), ("a", "c")]:
            done = self.convert(source, out, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.base / "b" / file.name).read_bytes(), (self.base / "c" / file.name).read_bytes())
        self.assertEqual((self.base / "b/config.json").read_bytes(), (self.base / "c/config.json").read_bytes())
        self.assertFalse((self.base / "b/tokenizer.json").exists())
        self.assertEqual(self.convert(file.relative_to(self.base), "b").returncode, 0)  # finished already

    def test_refusals(self):
        make_checkpoint(self.base / "a", 1)
        self.assertEqual(self.convert("a", "a").returncode, 2)
        (self.base / "full").mkdir()
        (self.base / "full/thesis.tex").write_text("years")
        refused = self.convert("a", "full")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("thesis.tex", refused.stderr)
        self.assertEqual(self.convert("a", "b", "--memory", "12 parsecs").returncode, 2)
        self.assertEqual(self.convert("a", "b", "--memory", "1kB").returncode, 4)
        self.assertEqual(self.convert("missing", "b").returncode, 6)
        self.assertFalse((self.base / "b").exists())

    def test_memory_does_not_grow_with_a_tensor(self):
        make_checkpoint(self.base / "small", 1, sparse=True)
        make_checkpoint(self.base / "large", 256, sparse=True)
        peaks = {}
        for source in ("small", "large"):
            done = self.convert(source, source + "_out", "--memory", "32MiB", "--threads", "4", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)
            self.assertLessEqual(report["buffer_bytes"], 32 << 20)
            peaks[source] = report["peak_bytes"]
        self.assertLess(peaks["large"] - peaks["small"], 32 << 20, peaks)
        if not os.environ.get("MOE64_SANITIZED"):
            self.assertLess(peaks["large"], 64 << 20, peaks)

    def test_kill_at_random_moments_and_resume(self):
        make_checkpoint(self.base / "a", 2, modules=24)
        options = ("--shard-size", "9MB", "--threads", "2")
        begin = time.monotonic()
        self.assertEqual(self.convert("a", "whole", *options).returncode, 0)
        seconds = time.monotonic() - begin
        whole = contents(self.base / "whole")
        self.assertGreater(len(whole), 10)
        draw = random.Random(7)
        kills = 0
        while kills < 15:
            shutil.rmtree(self.base / "out", ignore_errors=True)
            for _ in range(4):  # the same output, killed again and again
                job = subprocess.Popen([TOOL, "convert", self.base / "a", self.base / "out", "--to", "bf16", *options],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(draw.uniform(0.0, 0.8 * seconds))
                job.kill()
                if job.wait() == -signal.SIGKILL:
                    kills += 1
                for name, digest in contents(self.base / "out", every=False).items():
                    self.assertEqual(whole[name], digest, f"{name} is there and not whole")
            done = self.convert("a", "out", *options, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(contents(self.base / "out"), whole)

    def test_interrupt_and_resume(self):
        make_checkpoint(self.base / "a", 16, modules=24)
        options = ("--shard-size", "70MB", "--threads", "1")
        out = self.base / "out"
        job = subprocess.Popen([TOOL, "convert", self.base / "a", out, "--to", "bf16", *options],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while job.poll() is None and len(list(out.glob("model-*.safetensors")) if out.exists() else []) < 2:
            time.sleep(0.01)
        job.send_signal(signal.SIGINT)
        _, message = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 130, message)
        self.assertFalse(list(out.glob("*.partial")))
        done = self.convert("a", "out", *options, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreaterEqual(json.loads(done.stdout)["shards_kept"], 2)

    def test_two_writers(self):
        make_checkpoint(self.base / "a", 16, modules=8)
        out = self.base / "out"
        first = subprocess.Popen([TOOL, "convert", self.base / "a", out, "--to", "bf16", "--threads", "1"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while first.poll() is None and not (out / ".moe64-convert.jsonl").exists():
            time.sleep(0.001)
        os.kill(first.pid, signal.SIGSTOP)
        second = self.convert("a", "out")
        os.kill(first.pid, signal.SIGCONT)
        self.assertEqual(first.wait(), 0)
        self.assertEqual(second.returncode, 6)
        self.assertIn("another process", second.stderr)
        self.assertEqual(run("diff", self.base / "a", out, "--tolerance", "0.004").returncode, 0)

    def test_full_file_system(self):
        make_checkpoint(self.base / "a", 4)
        mount = self.base / "small"
        mount.mkdir()
        script = (f"mount -t tmpfs -o size=2m none '{mount}' && '{TOOL}' convert '{self.base / 'a'}' '{mount}/out' "
                  f"--to bf16; code=$?; ls '{mount}/out'; exit $code")
        probe = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", str(mount)], capture_output=True)
        if probe.returncode != 0:
            self.skipTest("this machine lends no mount namespace")
        full = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual(full.returncode, 6, full.stderr)
        self.assertIn("No space left on device", full.stderr)
        self.assertEqual([name for name in full.stdout.split() if not name.startswith(".moe64")], [])


if __name__ == "__main__":
    if not Path(TOOL).exists():
        sys.exit(f"{TOOL} is not there: build it, or set MOE64_TOOL")
    unittest.main(verbosity=2)
